"""Reads text files: an ensemble file, and the files that it names, such as the CSV file of a sweep.

The text of a named file is stored with the run, so a resume does not read the file again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_core.errors import Location, UsageError, closest

if TYPE_CHECKING:
    from ensemble_core.config.context import Context
    from ensemble_core.config.document import Path as DocumentPath

#: Maximum size of an ensemble file in bytes.
LARGEST = 4 * 1024 * 1024
_YAML = (".yaml", ".yml")


def read_file(
    path: str | os.PathLike[str], *, largest: int = LARGEST, suffixes: Sequence[str] = _YAML
) -> str:
    """Return the text of a file. Raises :class:`UsageError` if it is not a readable text file.

    A file larger than ``largest`` bytes is rejected. If the file does not exist, the error suggests
    other files with one of the ``suffixes``.
    """
    file = Path(path)
    name, where = str(file), Location(str(file))
    try:
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= largest:
            return decode(file.read_bytes(), name)
    except FileNotFoundError:
        link = file.is_symlink()
        raise UsageError(
            f"{name!r} is a link to {os.readlink(file)!r}, which does not exist"
            if link
            else f"there is no file {name!r}",
            where=where,
            hint=None if link else _file_hint(file.parent, file.name, suffixes),
            code="no-such-file",
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}",
            where=where,
            hint="check the path and its permissions",
            code="unreadable-file",
        ) from None
    if stat.S_ISREG(status.st_mode):
        raise too_large(name, status.st_size, largest)
    what, hint = "is not a regular file", "save the ensemble as a regular file"
    if stat.S_ISDIR(status.st_mode):
        kind, example = ("an ensemble file", "YAML ") if suffixes is _YAML else ("a file", "")
        what, hint = f"is a folder, not {kind}", f"name the {example}file in it"
        hint = _file_hint(file, suffixes=suffixes) or hint
    raise UsageError(f"{name!r} {what}", where=where, hint=hint, code="not-a-file")


def decode(data: bytes, name: str) -> str:
    """Decode the content of a file.

    Raises :class:`UsageError` at the first byte that is not UTF-8.
    """
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


def too_large(name: str, size: int, largest: int = LARGEST) -> UsageError:
    """Return the error for a text of more than ``largest`` bytes."""
    noun, hint = "this file", "is it the right file?"
    if largest == LARGEST:
        noun = "an ensemble file"
        hint += " A sweep needs one entry under 'parameters', not many jobs"
    return UsageError(
        f"the file has {size / 1024 / 1024:.1f} MiB; the limit for {noun} is {largest >> 20} MiB",
        where=Location(name),
        hint=hint,
        code="file-too-large",
    )


def _file_hint(folder: Path, name: str = "", suffixes: Sequence[str] = _YAML) -> str | None:
    """Return a hint with the most similar file name in the folder, or with some of its files."""
    try:
        with os.scandir(folder) as entries:
            alike = (entry.name for entry in entries if entry.name.endswith(tuple(suffixes)))
            found = list(islice(alike, 200))
    except OSError:
        return None if folder.is_dir() else f"the folder {str(folder)!r} does not exist either"
    if name and (near := closest(name, found, 0.4)):
        return f"did you mean {str(folder / near)!r}?"
    return f"that folder contains {', '.join(sorted(found)[:5])}" if found else None


def sibling_path(context: Context, name: str) -> str:
    """Return the path of a file in the ensemble file's folder, as messages show it."""
    return os.path.join(os.path.dirname(context.document.file), name)


def read_attachment(
    context: Context,
    path: DocumentPath,
    name: str,
    *,
    largest: int = LARGEST,
    suffixes: Sequence[str] = (),
) -> str | None:
    """Return the text of the file that the value at ``path`` names, or ``None`` after an error.

    If the file does not exist, the error suggests other files with one of the ``suffixes``.
    """
    known = context.known
    if name in known.attached:
        return known.attached[name]
    if not known.reads:
        context.report(
            path,
            f"the file {name!r} was not stored when the run began",
            hint="name the file in the ensemble file, so that the run stores it",
            code="no-such-file",
        )
        return None
    try:
        text = read_file(os.path.join(known.here, name), largest=largest, suffixes=suffixes)
    except UsageError as error:
        if error.code in ("no-such-file", "not-a-file"):
            # Report the error at the value that contains the file's name.
            context.report(
                path,
                f"there is no file {sibling_path(context, name)!r}",
                hint=error.hint,
                code=error.code,
            )
        else:
            if error.where is not None:
                error.where = error.where._replace(quoted=False)
            context.errors.append(error)
        return None
    known.attached[name] = text
    return text
