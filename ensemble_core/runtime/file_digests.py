"""Digests of files, folders and patterns: the states of inputs that ``--reuse`` compares."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence

from ensemble_core.late_pattern import late_pattern

#: States of inputs whose content is not known. They equal nothing, not even themselves.
_MISSING = "missing"
_UNREADABLE = "cannot be read"
_NO_FILE = "neither a file nor a folder"
_CHANGING = "changed while it was read"
_UNKNOWN = frozenset({_MISSING, _UNREADABLE, _NO_FILE, _CHANGING})
#: How often a file is read whose size or times change at the same time.
_READS = 3
#: A file that changed less than this many seconds ago may change again without new times, because
#: file systems count in ticks (FAT: 2 s). Its digest is not cached.
_TICK = 2.0
#: If a pattern matches more files, they have one common digest, because each identity of a job
#: contains all states of its inputs.
_MOST_MATCHES = 100

#: Signs of a pattern, and marks for them while values are filled in.
_MARKS = {"*": "\ue000", "?": "\ue001", "[": "\ue002"}
_SIGN = late_pattern(r"\{[^{}]*\}|[*?\[]")
_MARK = late_pattern("[\ue000-\ue002]")
_SIGN_OF = str.maketrans({mark: sign for sign, mark in _MARKS.items()})
_FOLDERS = 2 * _MARKS["*"]

_Above = frozenset[tuple[int, int]]


def unknown(files: dict[str, str]) -> tuple[str, str] | None:
    """Return the first input whose content is not known, and the reason, or ``None``."""
    return next(((name, state) for name, state in files.items() if state in _UNKNOWN), None)


def mark_pattern(template: str) -> str:
    """Replace the signs of a pattern by marks, which no folder or parameter value contains."""
    return _SIGN.sub(lambda match: _MARKS.get(match[0], match[0]), template)


class FileDigests:
    """Reads files and folders. A file is read once as long as its inode, size and times stay the
    same.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], str] = {}

    def states(self, path: str, by: str) -> dict[str, str]:
        """Return the digest or time of a file or folder, or of each match of a marked pattern.

        The key is the path below the pattern's fixed part. It is empty if there is one state for
        the whole path. If a content is not known, its state says why (:func:`unknown`).
        """
        first = _MARK.search(path)
        if first is None:
            return {"": self.state(path, by)}
        start = path.rfind(os.sep, 0, first.start()) + 1
        fixed = path[:start] or os.curdir
        found: dict[str, str] = {}
        try:
            for match in _matches(fixed, _parts(path[start:])):
                found[os.path.relpath(match, fixed)] = self.state(match, by)
        except (FileNotFoundError, NotADirectoryError):
            return {"": _MISSING}
        except OSError:
            return {"": _UNREADABLE}
        if len(found) <= _MOST_MATCHES or unknown(found):
            return found or {"": _MISSING}
        return {"": f"{len(found)} files {_digest(_pairs(found.items()))}"}

    def state(self, path: str, by: str) -> str:
        """Return the digest or time of a file or folder, or the reason why it is not known."""
        try:
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                return self._tree(path, by, frozenset())
            if not stat.S_ISREG(status.st_mode):
                return _NO_FILE
            if by == "mtime":
                return f"{status.st_size} {status.st_mtime_ns}"
            return self._content(path, status)
        except (FileNotFoundError, NotADirectoryError):
            return _MISSING
        except (OSError, ValueError):  # ValueError: the name contains NUL
            return _UNREADABLE

    def _content(self, path: str, status: os.stat_result) -> str:
        for _ in range(_READS):
            key, now = _version(status), time.time()
            if key in self._known:
                return self._known[key]
            with open(path, "rb", opener=_open) as file:
                status = os.fstat(file.fileno())
                if _version(status) != key:
                    continue
                digest = _digest(iter(lambda: file.read(1 << 20), b""))
                status = os.fstat(file.fileno())
            if _version(status) == key:
                if status.st_ctime < now - _TICK:
                    self._known[key] = digest
                return digest
        return _CHANGING

    def _tree(self, path: str, by: str, above: _Above) -> str:
        """Return a digest of all files below a folder. Links are followed, but never in a circle.

        Raises :class:`OSError` if a folder cannot be read.
        """
        here = _place(path)
        if here in above:
            return "a folder above"
        states: list[tuple[str, str]] = []
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir():
                state = self._tree(entry.path, by, above | {here})
            else:
                state = self.state(entry.path, by)
                if state == _MISSING and entry.is_symlink():
                    state = f"broken link to {os.readlink(entry.path)}"
            if state in _UNKNOWN:
                return state
            states.append((entry.name, state))
        return f"folder {_digest(_pairs(states))}"


def _parts(marked: str) -> list[str]:
    """Return the parts of a marked pattern between slashes.

    All files below a folder can be written as ``**`` and ``**/*``.
    """
    parts: list[str] = []
    for part in marked.split(os.sep):
        if part != _FOLDERS or parts[-1:] != [_FOLDERS]:
            parts.append(part)
    return parts[:-1] if parts[-2:] == [_FOLDERS, _MARKS["*"]] else parts


def _matches(path: str, parts: Sequence[str], above: _Above = frozenset()) -> Iterator[str]:
    """Yield the files and folders below ``path`` that a pattern matches, hidden ones too.

    The last part ``**`` matches files only. Raises :class:`OSError` if a folder cannot be read.
    """
    part, rest = parts[0], parts[1:]
    if part == _FOLDERS:
        here = _place(path)
        if here in above:
            return
        if rest:
            yield from _matches(path, rest)
        for entry in _entries(path):
            if entry.is_dir():
                yield from _matches(entry.path, parts, above | {here})
            elif not rest:
                yield entry.path
    elif _MARK.search(part):
        fits = re.compile(fnmatch.translate(glob.escape(part).translate(_SIGN_OF))).match
        for entry in _entries(path):
            if fits(entry.name):
                if not rest:
                    yield entry.path
                elif entry.is_dir():
                    yield from _matches(entry.path, rest)
    elif os.path.lexists(below := os.path.join(path, part)):
        if rest:
            yield from _matches(below, rest)
        else:
            yield below


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(path), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _place(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _open(path: str, flags: int) -> int:
    # If the path now leads to a pipe, this must not block.
    return os.open(path, flags | os.O_NONBLOCK)


def _version(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes if the content of a file changes."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _pairs(states: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    return (f"{name}\0{state}\0".encode(errors="surrogateescape") for name, state in states)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:32]
