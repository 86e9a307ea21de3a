"""Observers that read a job's output line by line: JSON objects, ``name=value`` pairs, patterns."""

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

#: Maximum length of a line in bytes. Longer ones are skipped.
LONGEST_LINE = 1 << 20
#: Maximum number of fields in an output file if the ensemble file does not list the fields. Each
#: field costs memory, and a job may print any number of names.
MOST_FIELDS = 200
#: Largest number that is stored as an integer, because floats represent larger ones inexactly.
_MOST_EXACT = 2**53
#: How many names of unused fields a complaint lists.
_MOST_TOLD = 5

#: A number as programs print it.
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|NaN|NAN|inf|Inf|INF|Infinity)\b)"
_PAIR = re.compile(
    rf"(?<![\w./-])([A-Za-z_][A-Za-z0-9_-]*)[ \t]{{0,40}}[=:][ \t]{{0,40}}({_NUMBER})"
    r"(?!\w|[.:/-]\w)"
)


class _Lines(Observer):
    """Base class of observers that read lines. Subclasses parse a line."""

    #: What the expected lines are called in complaints.
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
        # Both are counted for the complaint.
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
            self._append(end)
            rows += self._end_of_line()
        self._append(begun)
        return rows

    def _append(self, piece: bytes) -> None:
        """Append a piece to the current line."""
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
        values = {name: value for name, value in found.items() if self._is_wanted(name)}
        if not values:
            return None
        clock = None if self._clock is None else found.get(self._clock)
        return Row(values, clock if clock is None or math.isfinite(clock) else None)

    @abstractmethod
    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        """Return the numbers in a line by name, or ``None`` if it cannot be parsed."""

    def _is_wanted(self, name: str) -> bool:
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
            return "no lines"
        lines = "1 line" if self._lines == 1 else f"{self._lines} lines"
        if not self._understood:
            return f"{lines}, none of them {self._noun}"
        missing = sorted((self._fields or frozenset()) - self._found)
        if missing:
            there = f"; found {', '.join(map(repr, self._unasked))}" if self._unasked else ""
            several = "s" if len(missing) > 1 else ""
            return f"no field{several} {', '.join(map(repr, missing))}{there}"
        if self._fields is None and not self._seen:
            return f"{lines}, none of them with a number"
        return None


class JsonLines(_Lines):
    """Observer of JSON objects, one per line: the numeric fields of an object form a row.

    The option ``clock`` names the field with the time or step of the row. Nested values, booleans,
    lines that are not JSON objects, and the reserved names ``duration`` and ``pending`` are
    skipped.
    """

    _noun = "a JSON object"

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line.startswith(b"{"):
            return None
        try:
            found = json.loads(line.decode())
            if math.inf in found.values() or -math.inf in found.values():
                # 1e999 is not infinity, but a number too large for a float.
                found = json.loads(line.decode(), parse_float=_finite)
        except (ValueError, RecursionError):
            return None
        numbers = ((name, _number(value)) for name, value in found.items())
        return {name: number for name, number in numbers if number is not None}


class KeyValue(_Lines):
    """Observer of ``name=value`` and ``name: value`` pairs with numeric values.

    The pairs in a line form a row. If a name occurs twice, the last value counts. Numbers that are
    part of a longer word (``10ms``, ``12:30``) are skipped.
    """

    _noun = "with name=NUMBER or name: NUMBER"

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        found = {
            name: number
            for name, text in _PAIR.findall(line.decode("utf-8", "replace"))
            if (number := _read(text)) is not None
        }
        return found or None


# RE2 matches in linear time, so no pattern can block the run.
class Patterns(_Lines):
    """Observer of regular expressions: each line that matches at least one of them forms a row.

    The value of a pattern is the number in its first group, or 1 if it has no group. If the group
    does not contain a number, the value is missing. Raises :class:`EnsembleError` for an invalid
    pattern.
    """

    def __init__(self, patterns: Mapping[str, str], path: str | None = None) -> None:
        super().__init__(path, patterns)
        self._patterns = {name: _compile(name, text) for name, text in patterns.items()}

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
        # A pattern without a group may search for an error message, so it is normal if it never
        # matches.
        numbers = sorted(name for name, pattern in self._patterns.items() if pattern.groups)
        if self._lines and (not numbers or self._found.intersection(numbers)):
            return None
        if not self._lines:
            return super().complaint()
        lines = "1 line" if self._lines == 1 else f"{self._lines} lines"
        return f"no number for {', '.join(map(repr, numbers))} in {lines}"


def _compile(name: str, text: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        said = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
        raise EnsembleError(
            f"invalid pattern for {name!r}: {text!r:.80}",
            cause=said,
            hint="write an RE2 regular expression: no lookaround, no backreferences, and a "
            "backslash before each literal bracket",
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
    """Parse a number; an integer stays an integer.

    Return ``None`` if it is too large for a float.
    """
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
