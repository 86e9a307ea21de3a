"""Reads the files that belong to the identity of a job (``--reuse``).

These are the files that its command and environment name, and the ``inputs`` of its group.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from ensemble_core.model.identity import written
from ensemble_core.model.jobs import Job, JobGroup
from ensemble_core.model.placeholders import fill

__all__ = ["Inputs", "has_shell_text", "unknown"]

#: States of inputs whose content is not known. They equal nothing, not even themselves.
_MISSING = "missing"
_UNREADABLE = "cannot be read"
_NO_FILE = "neither a file nor a folder"
_CHANGING = "changed while it was read"
_UNKNOWN = frozenset({_MISSING, _UNREADABLE, _NO_FILE, _CHANGING})
#: What the shell writes to, as in ``prog > file``, is no input.
_WRITES = frozenset({">", ">>", ">|", "&>", "&>>"})
#: Size of the cache of words. There may be many, because rules may change fields at each submit.
_MOST_WORDS = 1000
#: How often a file is read whose size or times change at the same time.
_READS = 3

#: Signs of a pattern, and marks for them while values are filled in.
_MARKS = {"*": "\ue000", "?": "\ue001", "[": "\ue002"}
_SIGN = re.compile(r"\{[^{}]*\}|[*?\[]")
_MARK = re.compile("[\ue000-\ue002]")
_SIGN_OF = str.maketrans({mark: sign for sign, mark in _MARKS.items()})
#: Signs within a word before and after which a file name may stand.
_JOINTS = re.compile(r"[=,:;@]")
#: A word that may contain several file names, or one with an option before it.
_JOINED = re.compile(r"[\s=,:;@<>|&()]|^-\w.")
#: A word that is a script: it has several words, or signs of the shell.
_SCRIPT = re.compile(r"\S\s+\S|[<>|&;()]")

#: How many of these signs a word may have so that all parts between two of them are tried.
_MOST_JOINTS = 16

#: The inputs found for one path or pattern: for each file below it, its digest or time.
_Found = dict[str, str]


def unknown(files: dict[str, str]) -> tuple[str, str] | None:
    """Return the first input whose content is not known, and the reason, or ``None``."""
    return next(((name, state) for name, state in files.items() if state in _UNKNOWN), None)


def has_shell_text(group: JobGroup) -> bool:
    """Return True if a word of the command is a script: not all of its files can be seen."""
    return any(map(_SCRIPT.search, group.command))


class _Words(NamedTuple):
    """The words of a group's commands and variables that may name files."""

    #: Equal for all jobs of the group: each word as written, and filled in.
    fixed: tuple[tuple[str, str], ...]
    #: Different for each job: each word as written, and its place in the command. For the value of
    #: a variable, the place is -1.
    varying: tuple[tuple[str, int], ...]
    #: The group, so that its parts keep their ids.
    group: JobGroup


class Inputs:
    """Reads the files that belong to the identity of a job.

    Within a run, a file is read once as long as its inode, size and times stay the same.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], str] = {}
        self._words: dict[tuple[int, ...], _Words] = {}

    def of(self, job: Job, group: JobGroup, seen: dict[str, _Found]) -> dict[str, str]:
        """Return the input files of a job, as written in the ensemble file, each with its digest or
        time.

        If the content of an input is not known, its state says why (:func:`unknown`). ``seen``
        caches the files of the current batch.
        """
        folder = os.path.join(group.cwd, job.workdir) if job.workdir else group.cwd
        words = self._words_of(group)
        places = {"here": group.here, "cwd": group.cwd, "run": group.run, "attempt": job.attempt}
        key = f"{id(words)} {folder}"
        if key not in seen:
            fixed: _Found = {}
            for template, word in words.fixed:
                self._add_named(fixed, template, word, job, places, folder, seen)
            seen[key] = fixed
        found = seen[key].copy()
        for template, at in words.varying:
            word = job.command[at] if at >= 0 else fill(written(template, job), places)
            if word.strip("0123456789.+-eE"):  # not a number
                self._add_named(found, template, word, job, places, folder, seen)
        for template, by in group.inputs:
            self._add_listed(found, template, by, job, places, folder, seen)
        return found

    def _words_of(self, group: JobGroup) -> _Words:
        # Submits that change another field, such as the count, have different groups with the same
        # parts.
        key = (id(group.command), id(group.environment), id(group.inputs))
        words = self._words.get(key)
        if words is None:
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            listed = {template for template, _ in group.inputs}
            given = [
                (template, at)
                for at, template in enumerate(group.command)
                # A program without a slash is found on the PATH.
                if template not in listed and (at or "/" in template or "{" in template)
            ]
            given += [(f"{name}={value}", -1) for name, value in group.environment.items()]
            same = {"here": group.here, "cwd": group.cwd, "run": group.run, "group": group.name}
            filled = [fill(template, same) for template, _ in given]
            words = self._words[key] = _Words(
                tuple((given[n][0], word) for n, word in enumerate(filled) if "{" not in word),
                tuple(given[n] for n, word in enumerate(filled) if "{" in word),
                group,
            )
        return words

    def _add_named(
        self,
        found: _Found,
        template: str,
        word: str,
        job: Job,
        places: dict[str, object],
        folder: str,
        seen: dict[str, _Found],
    ) -> None:
        """Add the regular files that a word of a command or a variable names."""
        if not _JOINED.search(word):  # the usual case, fast
            if "{run}" not in template and (state := self._file(folder, word, seen)):
                found[written(template, job)] = state
            return
        for part in _parts(written(template, job)):
            if "{run}" not in part and (state := self._file(folder, fill(part, places), seen)):
                found[part] = state

    def _file(self, folder: str, word: str, seen: dict[str, _Found]) -> str | None:
        """Return the digest of a regular file, or ``None`` if the word names no file."""
        path = os.path.join(folder, word)
        if path not in seen:
            try:
                regular = stat.S_ISREG(os.stat(path).st_mode)
            except (OSError, ValueError):  # ValueError: the name contains NUL
                regular = False
            seen[path] = {"": self._read(path, "content")} if regular else {}
        return seen[path].get("")

    def _add_listed(
        self,
        found: _Found,
        template: str,
        by: str,
        job: Job,
        places: dict[str, object],
        folder: str,
        seen: dict[str, _Found],
    ) -> None:
        """Add the files of an entry of ``inputs``: a file, a folder, or a pattern."""
        name = written(template, job)
        # Only the signs that the user wrote make a pattern, not those in folders and values.
        marked = _SIGN.sub(lambda match: _MARKS.get(match[0], match[0]), template)
        path = os.path.join(folder, job.fill(marked, places))
        key = f"{by} {path}"
        if key not in seen:
            seen[key] = (
                self._matches(path, by) if _MARK.search(path) else {"": self._read(path, by)}
            )
        for below, state in seen[key].items():
            found[f"{name}: {below}" if below else name] = state

    def _matches(self, marked: str, by: str) -> _Found:
        """Return the matches of a pattern, by their paths below its fixed part."""
        fixed = os.path.dirname(_MARK.split(marked, maxsplit=1)[0])
        pattern = glob.escape(marked).translate(_SIGN_OF)
        # If the pattern matches all below a folder, don't read the folder's files twice.
        folders = not pattern.endswith(("**", "**/*"))
        found: _Found = {}
        for match in sorted(glob.glob(pattern, recursive=True)):
            if folders or not os.path.isdir(match):
                found[os.path.relpath(match, fixed)] = self._read(match, by)
        return found or {"": _MISSING}

    def _read(self, path: str, by: str) -> str:
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
            key = _version(status)
            if key in self._known:
                return self._known[key]
            with open(path, "rb") as file:
                digest = _digest(iter(lambda: file.read(1 << 20), b""))
                status = os.fstat(file.fileno())
            if _version(status) == key:
                self._known[key] = digest
                return digest
        return _CHANGING

    def _tree(self, path: str, by: str, above: frozenset[tuple[int, int]]) -> str:
        """Return a digest of all files below a folder. Links are followed, but never in a circle.

        Raises :class:`OSError` if a folder cannot be read.
        """
        status = os.stat(path)
        here = (status.st_dev, status.st_ino)
        if here in above:
            return "a folder above"
        parts = []
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir():
                state = self._tree(entry.path, by, above | {here})
            else:
                state = self._read(entry.path, by)
                if state == _MISSING and entry.is_symlink():
                    state = f"broken link to {os.readlink(entry.path)}"
            if state in _UNKNOWN:
                return state
            parts.append(f"{entry.name}\0{state}\0".encode(errors="surrogateescape"))
        return f"folder {_digest(parts)}"


def _version(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes if the content of a file changes."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:32]


@lru_cache(maxsize=1000)
def _parts(text: str) -> tuple[str, ...]:
    """Return the parts of a word that may name files: the word, its parts between signs such as
    ``=``, and the words of a script.

    >>> _parts("--conf=./x"), _parts("python sim.py -ia.dat > out")[1:]
    (('--conf=./x', '--conf', './x'), ('python', 'sim.py', '-ia.dat', 'a.dat'))
    """
    found: dict[str, None] = {}
    for word in (text, *_shell_words(text)):
        found[word] = None
        joints = [match.start() for match in _JOINTS.finditer(word)][:_MOST_JOINTS]
        ends = [*joints, len(word)]
        for first in (-1, *joints):
            found |= {word[first + 1 : end]: None for end in ends if end > first}
        if re.match(r"-\w.", word):
            found[word[2:]] = None
    found.pop("", None)
    return tuple(found)


def _shell_words(text: str) -> Iterator[str]:
    """Yield the words of a script, without the files that it writes to."""
    if not _SCRIPT.search(text):
        yield text
        return
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # an open quotation
        words = re.sub(r"['\"]", " ", text).split()
    for before, word in zip(["", *words], words, strict=False):
        if before not in _WRITES and word not in _WRITES:
            yield word
