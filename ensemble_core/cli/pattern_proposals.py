"""Patterns for lines with numbers that no observer without options understands.

Lines that differ only in their numbers are of one kind. ``ensemble observe`` proposes a pattern for
each of the most frequent kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import NamedTuple

from ensemble_core.metrics.store import VARIABLES
from ensemble_core.model.numbers import NUMBER, read_number

#: How many bytes of a file are searched, how many kinds are counted, and how long lines can be.
_SEARCHED, _MOST_KINDS, _LONGEST = 4 << 20, 5000, 300
#: How many numbers of a line get a name.
_MOST_NUMBERS = 8
_ENDS = re.compile(rb"[\r\n]+")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = re.compile(
    rf"(?:(?<=[\s(\[{{<=:,;|])|^)(?<!\d[:,])({NUMBER})(?=[\s)\]}}>;|%]|[,:](?!\d)|\.?$)"
)
#: What stands for a number, and for another word with a digit.
_ANY_NUMBER, _ANY_WORD = "\0", "\1"
#: A name with = or : before a number.
_NAMED = re.compile(rf"[\w{_ANY_WORD}]\)? ?[=:] ?{_ANY_NUMBER}")
#: Words in lines that report results.
_RESULT = re.compile(r"(?i)\b(?:energy|final|loss|residual|scf done|total)\b")
_OTHER = re.compile(rf"[^\s{_ANY_NUMBER}]*\d[^\s{_ANY_NUMBER}]*")
#: Blanks within brackets, as in ``[ 20%]``.
_INSIDE = re.compile(r"(?<=[(\[{]) | (?=[)\]}])")
_WORD = re.compile(r"[^\W\d]\w*")
#: What would end the quotes of a shell or of YAML.
_QUOTES = "$`!\"'\\"


class Proposal(NamedTuple):
    """A pattern for lines of one kind, with the first one and their number."""

    line: str
    alike: int
    pattern: str

    @property
    def has_words(self) -> bool:
        """True unless the line has only numbers, as the rows of tables."""
        return re.search("[A-Za-z]{2}", self.line) is not None

    @property
    def columns(self) -> int:
        """Number of columns of the pattern."""
        return self.pattern.count("(?P<")


class LineKinds:
    """Counts the kinds of lines in a file. ``feed`` takes its bytes."""

    def __init__(self) -> None:
        self._rest, self._searched = b"", 0
        self._kinds: dict[str, tuple[int, str]] = {}

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the file."""
        if self._searched < _SEARCHED:
            self._searched += len(data)
            *lines, self._rest = _ENDS.split(self._rest + data)
            self._add(lines)

    def _add(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            text = _COLOUR.sub("", line[: 4 * _LONGEST].decode("utf-8", "replace")).strip()
            if len(text) > _LONGEST or not text.replace("\t", " ").isprintable():
                continue
            kind, numbers = _NUMBER.subn(_ANY_NUMBER, text)
            kind = _INSIDE.sub("", " ".join(_OTHER.sub(_ANY_WORD, kind).split()))
            worded = any(len(word) > 1 for word in _WORD.findall(kind))
            if numbers > 1 or (numbers and worded):
                found, first = self._kinds.get(kind, (0, text))
                if found or len(self._kinds) < _MOST_KINDS:
                    self._kinds[kind] = (found + 1, first)

    def proposals(self) -> Iterator[Proposal]:
        """Yield a pattern for each kind: first for those with a name and a sign before a number, of
        these for results and frequent kinds first.

        If lines of one kind come again, kinds with a single line are left out.
        """
        self._add([self._rest])
        self._rest = b""
        most = max((found for found, _ in self._kinds.values()), default=0)
        kinds = [each for each in self._kinds.items() if not each[1][0] == 1 < most]
        kinds.sort(
            key=lambda each: (
                not _NAMED.search(each[0]),
                not _RESULT.search(each[0]),
                -each[1][0],
            )
        )
        for kind, (found, first) in kinds:
            pattern = _pattern_of(kind, r"\s+" if "\t" in first else " +")
            if _is_right(pattern, first):
                yield Proposal(first, found, pattern)


def _pattern_of(kind: str, blanks: str) -> str:
    """Return a pattern for a kind, with a named group for each number."""
    names, known = _names_of(kind), {_ANY_WORD: r"\S+", " ": blanks}
    pieces: list[str] = []
    for piece in re.split(f"([{_ANY_NUMBER}{_ANY_WORD} ])", kind):
        if piece == _ANY_NUMBER:
            name = next(names, None)
            pieces.append(r"\S+" if name is None else rf"(?P<{name}>\S+)")
        elif piece in known:
            pieces.append(known[piece])
        else:
            pieces += map(_literal, piece)
    return rf"^\s*{''.join(pieces)}\s*$"


def _literal(sign: str) -> str:
    if sign in _QUOTES:
        return "."
    if sign in "([{":
        return rf"\{sign} *"
    if sign in ")]}":
        return rf" *\{sign}"
    return f"\\{sign}" if sign in ".^*+?|" else sign


def _names_of(kind: str) -> Iterator[str]:
    """Yield names for the numbers of a kind: the words before them, if that is clear."""
    letters = (f"x{number}" for number in count(1))
    used: set[str] = set(VARIABLES)
    for at, gap in enumerate(islice(kind.split(_ANY_NUMBER)[:-1], _MOST_NUMBERS)):
        words = _WORD.findall(gap)
        # In '2 MB, 5 s', the words are units.
        joined = gap.rstrip(" ([").endswith(("=", ":"))
        clear = words and gap.rstrip(" ([=:").endswith((words[-1], f"{words[-1]})"))
        name = words[-1] if clear and (joined or len(words) > 1 or not at) else next(letters)
        if not name.isascii() or name in used:
            name = next(letters)
        used.add(name)
        yield name


def _is_right(pattern: str, line: str) -> bool:
    """Return True if a pattern finds numbers in this line."""
    found = re.search(pattern, line)
    values = [] if found is None else found.groupdict().values()
    return bool(values) and all(read_number(each) is not None for each in values)
