"""Observers that read a job's output line by line: JSON objects, ``name=value`` pairs, patterns.

Registered by ``observers``. Each keeps at most one line, and knows what it could not understand, so
that a name that is misspelt in the ensemble file does not pass in silence.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import VARIABLES
from ensemble_core.plugin.observer import Observer, Row

__all__ = ["LONGEST_LINE", "MOST_FIELDS", "JsonLines", "KeyValue", "Patterns"]

#: Bytes of a line beyond which it is skipped.
LONGEST_LINE = 1 << 20
#: Different fields that one file may bring, where the ensemble file does not name them: metrics
#: are kept for each, and a job that invents names must not fill the memory.
MOST_FIELDS = 200
#: Whole numbers up to here stay integers: larger ones are not told apart by statistics anyway.
_MOST_EXACT = 2**53
#: So many names of fields that nobody asked for are remembered, to be told.
_MOST_TOLD = 5

#: A number as programs print it, with nothing attached to it: a unit, a second colon of a time.
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|NaN|NAN|inf|Inf|INF|Infinity)\b)"
_PAIR = re.compile(
    rf"(?<![\w./-])([A-Za-z_][A-Za-z0-9_-]*)[ \t]{{0,40}}[=:][ \t]{{0,40}}({_NUMBER})"
    r"(?!\w|[.:/-]\w)"
)


class _Lines(Observer):
    """A reader of lines; what a line means is its subclass's to say."""

    #: What a line is that it understands, in the plural.
    _noun = "lines"

    def __init__(
        self,
        path: str | None = None,
        fields: Collection[str] | None = None,
        clock: str | None = None,
    ) -> None:
        self._path = path
        self._fields = None if fields is None else frozenset(fields)
        self._clock = clock
        self._seen: set[str] = set()
        self._line = bytearray()
        self._skipping = False
        # What the complaint is made of.
        self._lines = self._understood = 0
        self._found: set[str] = set()
        self._unasked: dict[str, None] = {}

    @property
    def path(self) -> str | None:
        return self._path

    def feed(self, data: bytes) -> Iterable[Row]:
        *ends, begun = data.split(b"\n")
        rows: list[Row] = []
        for end in ends:
            self._take(end)
            rows += self._end_of_line()
        self._take(begun)
        return rows

    def _take(self, piece: bytes) -> None:
        """Take more of a line."""
        if self._skipping or len(self._line) + len(piece) > LONGEST_LINE:
            self._line.clear()
            self._skipping = True
        else:
            self._line += piece

    def truncated(self) -> None:
        self._begin_line()
        self._lines = self._understood = 0

    def finish(self) -> Iterable[Row]:
        return self._end_of_line()

    def _begin_line(self) -> None:
        self._line.clear()
        self._skipping = False

    def _end_of_line(self) -> Iterable[Row]:
        row = None if self._skipping else self._row(bytes(self._line))
        self._lines += self._skipping or bool(self._line.strip())
        self._begin_line()
        return () if row is None else (row,)

    def _row(self, line: bytes) -> Row | None:
        found = self._parse(line)
        if found is None:
            return None
        self._understood += 1
        values = {name: value for name, value in found.items() if self._takes(name)}
        if not values:
            return None
        clock = None if self._clock is None else found.get(self._clock)
        return Row(values, clock if clock is None or math.isfinite(clock) else None)

    @abstractmethod
    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        """The numbers of a line; ``None`` where it is none of those that are understood."""

    def _takes(self, name: str) -> bool:
        if self._fields is not None:
            taken = name in self._fields
            if taken:
                self._found.add(name)
            elif len(self._unasked) < _MOST_TOLD and name != self._clock:
                self._unasked[name] = None
            return taken
        if name in VARIABLES:
            return False
        if name not in self._seen:
            if len(self._seen) >= MOST_FIELDS:
                return False
            self._seen.add(name)
        return True

    def complaint(self) -> str | None:
        if not self._lines:
            return "there was no line in it"
        lines = "1 line" if self._lines == 1 else f"{self._lines} lines"
        if not self._understood:
            return f"{lines}, none of them {self._noun}"
        missing = sorted((self._fields or frozenset()) - self._found)
        if missing:
            there = f"; there was {', '.join(map(repr, self._unasked))}" if self._unasked else ""
            several = "s" if len(missing) > 1 else ""
            return f"no field{several} {', '.join(map(repr, missing))}{there}"
        if self._fields is None and not self._seen:
            return f"{lines}, none of them with a number"
        return None


class JsonLines(_Lines):
    """Each line that is a JSON object gives one row of its numeric fields: NaN and Infinity, which
    many programs write, are numbers too.

    Other lines are passed over, and so are nested values, truth values, and fields named
    ``duration`` or ``pending``, which every job group has already. ``clock`` is the field that
    says the row's time or step.
    """

    _noun = "a JSON object"

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line.startswith(b"{"):
            return None
        try:
            found = json.loads(line.decode())
            if math.inf in found.values() or -math.inf in found.values():
                # 1e999 is no infinity, it is a number that no float can hold.
                found = json.loads(line.decode(), parse_float=_finite)
        except (ValueError, RecursionError):
            return None
        numbers = ((name, _number(value)) for name, value in found.items())
        return {name: number for name, number in numbers if number is not None}


class KeyValue(_Lines):
    """Each line with ``name=value`` or ``name: value`` in it, whose value is a number, gives one
    row of all that it has; the last of a name counts. A number that something is attached to
    (``10ms``, ``12:30``) is none."""

    _noun = "with name=NUMBER or name: NUMBER"

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        found = {
            name: number
            for name, text in _PAIR.findall(line.decode("utf-8", "replace"))
            if (number := _read(text)) is not None
        }
        return found or None


class Patterns(_Lines):
    """Each line in which a pattern is found gives one row: by name the number that its first group
    holds, or 1 where it has no group. A group that holds no number gives no value.

    The patterns are matched by RE2, in time that grows with the line only, so that none can keep
    the run busy; it has no lookaround and no backreferences. Raises :class:`EnsembleError` for a
    pattern that is none.
    """

    def __init__(self, patterns: Mapping[str, str], path: str | None = None) -> None:
        super().__init__(path, patterns)
        self._patterns = {name: _compiled(name, text) for name, text in patterns.items()}

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        text = line.decode("utf-8", "replace")
        found: dict[str, float] = {}
        matched = False
        for name, pattern in self._patterns.items():
            match = pattern.search(text)
            if match is None:
                continue
            matched = True
            if not pattern.groups:
                found[name] = 1
            elif match.group(1) is not None and (number := _read(match.group(1))) is not None:
                found[name] = number
        return found if matched else None

    def complaint(self) -> str | None:
        # A pattern without a group is one of a message that good jobs do not print.
        numbers = sorted(name for name, pattern in self._patterns.items() if pattern.groups)
        if self._lines and (not numbers or self._found.intersection(numbers)):
            return None
        if not self._lines:
            return super().complaint()
        lines = "1 line" if self._lines == 1 else f"{self._lines} lines"
        return f"{lines}, and no number for {', '.join(map(repr, numbers))} in any of them"


def _compiled(name: str, text: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        said = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
        raise EnsembleError(
            f"the pattern of {name!r} is none: {text!r:.80}",
            cause=said,
            hint="patterns are those of RE2: no lookaround, no backreferences, and a backslash "
            "before each bracket that is meant as it is",
            code="bad-pattern",
        ) from None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int) and abs(value) <= _MOST_EXACT:
        return value
    try:
        return float(value)
    except OverflowError:
        return None


def _read(text: str) -> float | None:
    """A number as it is written: whole ones are integers. ``None`` for one beyond every float."""
    text = text.strip()
    try:
        return _number(int(text)) if len(text) < 400 else None
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) or not any(map(str.isdigit, text)) else None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None
