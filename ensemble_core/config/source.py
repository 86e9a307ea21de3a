"""The ensemble file's text: found, read and decoded, or refused with a reason.

Called by :func:`ensemble_core.config.load` before anything is parsed.
"""

from __future__ import annotations

import os
import stat
from difflib import get_close_matches
from pathlib import Path

from ensemble_core.errors import Location, UsageError

__all__ = ["LARGEST", "decode", "read"]

#: Bytes that an ensemble file may have.
LARGEST = 4 * 1024 * 1024


def read(path: str | os.PathLike[str]) -> str:
    """The file's text. Raises :class:`UsageError` for whatever is no readable text file.

    Reads nothing of a file that is too large, and never waits for a pipe's writer.
    """
    file = Path(path)
    name = str(file)
    try:
        # Not blocking, so that a pipe put there by mistake does not hang the command.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _missing(file) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot read {name!r}: {reason}",
            where=Location(name),
            hint="check the path and its permissions",
            code="unreadable-file",
        ) from None
    try:
        data = _contents(descriptor, file)
    finally:
        os.close(descriptor)
    if len(data) > LARGEST:
        raise too_large(name, len(data))
    return decode(data, name)


def _contents(descriptor: int, file: Path) -> bytes:
    name = str(file)
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(
            f"{name!r} is a folder, not an ensemble file",
            where=Location(name),
            hint=_nearby(file) or "name the YAML file in it",
            code="not-a-file",
        )
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(
            f"{name!r} is not a regular file",
            where=Location(name),
            hint="write the ensemble to a file first",
            code="not-a-file",
        )
    if status.st_size > LARGEST:
        raise too_large(name, status.st_size)
    try:
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {name!r}: {error.strerror}", where=Location(name), code="unreadable-file"
        ) from None


def decode(data: bytes, name: str) -> str:
    """The bytes as text. Raises :class:`UsageError` at the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        start = before.rfind(b"\n") + 1
        where = Location(
            name,
            before.count(b"\n") + 1,
            len(before[start:].decode("utf-8", "replace").lstrip("\ufeff")) + 1,
        )
        utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        raise UsageError(
            f"the file is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            where=where,
            cause="it looks like UTF-16" if utf16 else None,
            hint="save it as UTF-8",
            code="not-utf-8",
        ) from None


def too_large(name: str, size: int) -> UsageError:
    """The error for a text above ``LARGEST``."""
    return UsageError(
        f"the file has {size / 1024 / 1024:.1f} MiB; an ensemble file has at most 4",
        where=Location(name),
        hint="is it the right file? A sweep needs one entry under 'parameters', not many jobs",
        code="file-too-large",
    )


def _missing(file: Path) -> UsageError:
    return UsageError(
        f"there is no file {str(file)!r}",
        where=Location(str(file)),
        hint=_nearby(file.parent, file.name),
        code="no-such-file",
    )


def _nearby(folder: Path, name: str = "") -> str | None:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".yaml", ".yml")) and entry.is_file():
                    found.append(entry.name)
                if len(found) >= 200:
                    break
    except OSError:
        return None if folder.is_dir() else f"there is no folder {str(folder)!r} either"
    near = get_close_matches(name, found, 1, 0.4) if name else []
    if near:
        return f"did you mean {str(folder / near[0])!r}?"
    if found:
        return f"in that folder there is {', '.join(sorted(found)[:5])}"
    return None
