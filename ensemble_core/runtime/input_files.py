"""Finds the files that belong to the identity of a job (``--reuse``), and computes their digests.

These are the files that its command and environment name, and the ``inputs`` of its group: files,
folders and patterns.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.identity import written
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.placeholders import fill

#: What the shell writes to, as in ``prog > file``, is no input.
_WRITES = frozenset({">", ">>", ">|", "&>", "&>>"})
#: Size of the cache of words. There may be many, because rules may change fields at each submit.
_MOST_WORDS = 1000
#: Signs within a word before and after which a file name may stand: those of options, lists, JSON,
#: URLs and the shell, but not the braces of placeholders.
_JOINTS = late_pattern(
    r"""[=,:;@+#?!%|&<>()\[\]"'`]|\{(?!(?:here|cwd|run|attempt)\})"""
    r"""|(?<!\{here)(?<!\{cwd)(?<!\{run)(?<!\{attempt)\}"""
)
#: Those signs in a script, or in a word that contains a file name with blanks.
_LIST = late_pattern("[=,:;@]")
#: A word that may contain several file names, or one with an option before it.
_JOINED = late_pattern(rf"\s|{_JOINTS.pattern}|^-\w.")
#: A word that is a script: it has several words, or signs of the shell.
_SCRIPT = late_pattern(r"\S\s+\S|[<>|&;()]")

_BLANK = late_pattern(r"\s")
#: A word that begins with an option of one letter.
_OPTION = late_pattern(r"-\w.")

#: A word of a script, or signs between its words; and the quotations in a word. ``shlex`` reads the
#: same words, but six times as slowly, while a job waits to be submitted.
_WORD = late_pattern(
    r"""[();<>|&]+|(?:[^ \t\r\n();<>|&'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+""", re.DOTALL
)
_QUOTED = late_pattern(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.DOTALL)
_ESCAPED = late_pattern(r'\\(["\\])')

#: How many of these signs a word may have so that all parts between two of them are tried, because
#: file names may contain such signs. Otherwise, only parts without a sign are tried.
_MOST_JOINTS = 16

#: The inputs found for one path or pattern: for each file below it, its digest or time.
_Found = dict[str, str]


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


class _JobFiles:
    """Builder of the inputs of one job."""

    __slots__ = ("_digests", "_folder", "_job", "_places", "_seen", "found")

    def __init__(
        self, job: Job, group: JobGroup, digests: FileDigests, seen: dict[str, _Found]
    ) -> None:
        self._job = job
        self._folder = os.path.join(group.cwd, job.workdir) if job.workdir else group.cwd
        self._places = {
            "here": group.here,
            "cwd": group.cwd,
            "run": group.run,
            "attempt": job.attempt,
        }
        self._digests = digests
        self._seen = seen
        self.found: _Found = {}

    def add_words(self, words: _Words) -> None:
        """Add the files that the words of the command and the variables name."""
        key = f"{id(words)} {self._folder}"
        if key in self._seen:
            self.found = self._seen[key].copy()
        else:
            for template, word in words.fixed:
                self._add_word(template, word)
            self._seen[key] = self.found.copy()
        for template, at in words.varying:
            if at >= 0:
                word = self._job.command[at]
            else:
                word = fill(written(template, self._job), self._places)
            if word.strip("0123456789.+-eE"):  # not a number
                self._add_word(template, word)

    def _add_word(self, template: str, word: str) -> None:
        if not _JOINED.search(word):  # the usual case, fast
            if "{run}" not in template and (state := self._named(word)):
                self.found[written(template, self._job)] = state
            return
        for part in _parts(written(template, self._job)):
            if "{run}" not in part and (state := self._named(fill(part, self._places))):
                self.found[part] = state

    def _named(self, word: str) -> str | None:
        """Return the digest of a regular file, or ``None`` if the word names no file."""
        path = os.path.join(self._folder, word)
        if path not in self._seen:
            try:
                regular = stat.S_ISREG(os.stat(path).st_mode)
            except (OSError, ValueError):  # ValueError: the name contains NUL
                regular = False
            self._seen[path] = {"": self._digests.state(path, "content")} if regular else {}
        return self._seen[path].get("")

    def add_listed(self, template: str, by: str) -> None:
        """Add the files of an entry of ``inputs``: a file, a folder, or a pattern."""
        # Only the signs that the user wrote make a pattern, not those in folders and values.
        marked = mark_pattern(template)
        path = os.path.join(self._folder, self._job.fill(marked, self._places))
        key = f"{by} {path}"
        if key not in self._seen:
            self._seen[key] = self._digests.states(path, by)
        name = written(template, self._job)
        for below, state in self._seen[key].items():
            self.found[f"{name}: {below}" if below else name] = state


class Inputs:
    """The input files of a run's jobs. A file is read once as long as it does not change."""

    def __init__(self) -> None:
        self._digests = FileDigests()
        self._words: dict[tuple[int, ...], _Words] = {}

    def of(self, job: Job, group: JobGroup, seen: dict[str, _Found]) -> dict[str, str]:
        """Return the input files of a job, as written in the ensemble file, each with its digest or
        time.

        If the content of an input is not known, its state says why (:func:`unknown`).
        ``seen`` caches the files of the current batch.
        """
        files = _JobFiles(job, group, self._digests, seen)
        files.add_words(self._words_of(group))
        for template, by in group.inputs:
            files.add_listed(template, by)
        return files.found

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


@lru_cache(maxsize=1000)
def _parts(text: str) -> tuple[str, ...]:
    """Return the parts of a word that may name files: the word, its parts between signs such as
    ``=``, and the words of a script.

    >>> _parts("--conf=./x"), _parts("python sim.py -ia.dat > out")[1:]
    (('--conf=./x', '--conf', './x'), ('python', 'sim.py', '-ia.dat', 'a.dat'))
    """
    found: dict[str, None] = {}
    script = _SCRIPT.search(text)
    for place, word in enumerate((text, *_shell_words(text))):
        found[word] = None
        signs = _LIST if (script and not place) or _BLANK.search(word) else _JOINTS
        found |= dict.fromkeys(signs.split(word))
        joints = [match.start() for match in signs.finditer(word)][:_MOST_JOINTS]
        ends = [*joints, len(word)]
        for first in (-1, *joints):
            found |= {word[first + 1 : end]: None for end in ends if end > first}
        if _OPTION.match(word):
            found[word[2:]] = None
    found.pop("", None)
    return tuple(found)


def _shell_words(text: str) -> Iterator[str]:
    """Yield the words of a script, without the files that it writes to."""
    if not _SCRIPT.search(text):
        yield text
        return
    words = words_of_script(text)
    for before, word in zip(["", *words], words, strict=False):
        if before not in _WRITES and word not in _WRITES:
            yield word


def words_of_script(text: str) -> list[str]:
    """Return the words of a script, and the signs between them.

    >>> words_of_script("a 'b c'>d; e")
    ['a', 'b c', '>', 'd', ';', 'e']
    """
    words = _WORD.findall(text)
    if _WORD.sub("", text).strip(" \t\r\n"):  # an open quotation
        return re.sub(r"['\"]", " ", text).split()
    if "'" in text or '"' in text or "\\" in text:
        return [_QUOTED.sub(_unquoted, word) for word in words]
    return words


def _unquoted(quoted: re.Match[str]) -> str:
    """Return what the shell reads from a quotation, or from a sign after a backslash."""
    single, double, sign = quoted.groups()
    if double is not None:
        return _ESCAPED.sub(r"\1", double)
    return sign if single is None else single


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
            for match in _matches(fixed, _pattern_parts(path[start:])):
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


def _pattern_parts(marked: str) -> list[str]:
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
