"""Reads the files that belong to the identity of a job (``--reuse``).

These are the files that its command and environment name, and the ``inputs`` of its group.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.identity import written
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.placeholders import fill
from ensemble_core.runtime.file_digests import FileDigests, mark_pattern

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

        If the content of an input is not known, its state says why (``file_digests.unknown``).
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
