"""Base class of observers that read a job's output line by line.

Carriage returns end a line, as in progress bars, and so do cursor movements, except those to the
right, which become a blank. Sequences for colours are removed. Numbers are read without their
units, as in ``5 GB``.
"""

from __future__ import annotations

import codecs
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Any, Literal

from ensemble_core.errors import closest
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.series import UNREADABLE
from ensemble_core.metrics.store import VARIABLES
from ensemble_core.plugin.observer import Observer, Row

#: Maximum length of a line in bytes. Longer ones are skipped.
LONGEST_LINE = 1 << 20
#: Maximum number of fields in an output file if the ensemble file does not list the fields. Each
#: field costs memory, and a job may print any number of names.
MOST_FIELDS = 200
#: How many names a complaint lists.
MOST_TOLD = 5
#: After this number of lines, lines that cannot have a row are only counted. Before, complaints
#: learn from every line what the program prints.
SURVEYED = 1000
#: If most lines have rows, searching for them is a waste: it is tried only at each so many pieces.
_PROBED = 16

#: The unit of a number, after it. Two units of one kind cannot be compared.
_UNIT = late_pattern(
    r"[ \t]{0,2}(%|[num\u00b5\u03bc]?s(?!/)|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|d|days?"
    r"|[kKMGTP]?i?B|[kKMGT]?bytes?|m?eV|[kKM]J|k?cal|Ha|Ry|[hkMG]?Pa|k?bar|[kMGT]?Hz|it/s|s/it)(?![\w^])"
)
_SAME_UNITS = {"sec": "s", "second": "s", "minute": "min", "hr": "h", "hour": "h", "day": "d"}
#: Maximum number of names whose units are remembered, and of units in a complaint.
_MOST_NAMES, _MOST_SHOWN = 200, 5

#: Cursor movements of terminals. ``_GAP``: to the right, or to a column other than the first: read
#: as a blank. ``_MOVE``: all others: they end the line.
_GAP = late_pattern(rb"\x1b\[(?:[0-9]*[CaI]|(?:[2-9]|[1-9][0-9]+)[G`])")
_MOVE = late_pattern(rb"\x1b(?:\[[0-9;]*[ABDEFGHZdefjk`]|[78DEM]|\[[su])")
#: Control sequences of terminals: colours, titles, and other escapes.
_COLOURS = late_pattern(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[@-Z\\^_])"
)
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

#: For other observers: what their lines look like, and what a complaint says about them.
_OTHERS = (
    ("json-lines", late_pattern(rb"\s*\{.*[:}]"), "begin with {", "begins with {"),
    (
        "key-value",
        late_pattern(rb"(?:.*[\s,;|])?[A-Za-z_]\w*\s*[=:]\s*[-+]?\d"),
        "have NAME=NUMBER",
        "has NAME=NUMBER",
    ),
)

#: The fields to read: names, or names with their names in the output.
Fields = Collection[str] | Mapping[str, str]


class LineObserver(Observer):
    """Base class of observers that read lines. Subclasses parse a line."""

    #: What the expected lines are called in complaints.
    _noun = "lines"
    rewrites = True
    #: A pattern for a line after which nothing is read.
    until: Any = None
    _ended = False

    def __init__(
        self,
        path: str | None = None,
        fields: Fields | None = None,
        clock: str | None = None,
        stream: Literal["stdout", "stderr"] = "stdout",
    ) -> None:
        self._path = path
        self._stream = stream
        #: The wanted fields by their names in the output; ``None``: all.
        self._wanted: dict[str, str] | None = None
        if fields is not None:
            names = fields if isinstance(fields, Mapping) else {name: name for name in fields}
            self._wanted = {printed: name for name, printed in names.items()}
        self._clock = clock
        #: Whether any row had a value of the clock, the latest one, and where it went back.
        self._clocked = False
        #: How many rows had no value of the clock, and the line of the first one.
        self._unclocked: tuple[int, int] = (0, 0)
        self._latest_clock = -math.inf
        self._back: tuple[int, str] = (0, "")
        self._seen: set[str] = set()
        self._line = bytearray()
        self._skipping = False
        #: Number of pieces so far, and whether many lines of the last searched piece had rows.
        self._round, self._dense = 0, False
        #: The first bytes of the file, until they show whether it is UTF-16.
        self._start: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        #: The number of the line, also of empty ones, for messages.
        self._line_number = 0
        # All of these are counted for the complaint.
        self._lines = self._understood = self._long = 0
        self._found: set[str] = set()
        self._unasked: dict[str, None] = {}
        #: How many lines look like those of other observers.
        self._alike = dict.fromkeys((name for name, *_ in _OTHERS), 0)
        self._zeros = 0
        #: Values that could not be read: how many, the first one, and its line.
        self._unread: dict[str, tuple[int, str, int]] = {}
        self._units = Units()

    @property
    def path(self) -> str | None:
        return self._path

    @property
    def stream(self) -> Literal["stdout", "stderr"]:
        return self._stream

    def feed(self, data: bytes) -> Iterable[Row]:
        if self._start is not None or self._decoder is not None:
            data = self._decode(data)
        if b"\b" in data:  # older progress bars go back by as many characters as they printed
            data = data.replace(b"\b", b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        start, end = 0, data.rfind(b"\n") + 1
        rows: list[Row] = []
        if end and (self._line or self._skipping):
            start = data.index(b"\n") + 1
            self._append(data[: start - 1])
            rows += self._end_of_line()
        if end > start:
            for line in self._lines_to_parse(data[start:end]):
                rows += self._whole_line(line)
        if end < len(data):
            self._append(data[end:])
        return rows

    def _finder(self, text: bytes) -> Callable[[bytes, int], Any] | None:
        """Return a function that finds the next place in a text that may be in a line with a row:
        ``search(text, position)`` returns a match or ``None``. Return ``None`` if any line may have
        a row.
        """
        return None

    def _lines_to_parse(self, text: bytes) -> Iterable[bytes]:
        """Yield those of some whole lines that may have a row. Count the others."""
        self._round += 1
        if (
            self.until is not None
            or self._lines < SURVEYED
            or (self._dense and self._round % _PROBED)
        ):
            return text.split(b"\n")[:-1]
        if not text.isascii():
            text = text.decode("utf-8", "replace").encode()
        search = self._finder(text)
        return text.split(b"\n")[:-1] if search is None else self._search(text, search)

    def _search(self, text: bytes, search: Callable[[bytes, int], Any]) -> Iterator[bytes]:
        position = parsed = 0
        while (match := search(text, position)) is not None:
            start = text.rfind(b"\n", position, match.start()) + 1 or position
            self._pass_over(text, position, start)
            position = text.find(b"\n", max(match.end() - 1, start)) + 1
            for line in text[start : position - 1].split(b"\n"):
                parsed += len(line)
                yield line
            if position == len(text):
                break
        self._pass_over(text, position, len(text))
        self._dense = parsed > len(text) // 4

    def _pass_over(self, text: bytes, start: int, end: int) -> None:
        """Count lines that have no row."""
        if end > start:
            text = text[start:end]
            self._line_number += text.count(b"\n")
            while b"\n\n" in text:
                text = text.replace(b"\n\n", b"\n")
            self._lines += text.count(b"\n") - text.startswith(b"\n")

    def _decode(self, data: bytes) -> bytes:
        """Convert UTF-16 to UTF-8. A byte-order mark at the start of the file selects it."""
        if self._start is not None:
            data = self._start + data
            if data in (b"", b"\xff", b"\xfe"):
                self._start = data
                return b""
            self._start = None
            encoding = _MARKS.get(data[:2])
            if encoding is not None:
                self._decoder = codecs.getincrementaldecoder(encoding)("replace")
                data = data[2:]
        return data if self._decoder is None else self._decoder.decode(data).encode()

    def _append(self, piece: bytes) -> None:
        """Append a piece to the current line."""
        if self._skipping or len(self._line) + len(piece) > LONGEST_LINE:
            self._line.clear()
            self._skipping = True
        else:
            self._line += piece

    def truncated(self) -> None:
        self._begin_line()
        self._start, self._decoder = b"", None
        self._ended, self._latest_clock = False, -math.inf
        self._lines = self._understood = self._long = self._line_number = 0

    def interrupted(self) -> str | None:
        line = bytes(self._line)
        if not line.strip() or self._is_complete(line):
            return None
        self._begin_line()
        text = line[-60:].decode("utf-8", "replace")
        return f"its last line has no end and may be incomplete, so it was not read: {text!r}"

    def _is_complete(self, line: bytes) -> bool:
        """Return True if no part is missing at the end of this line."""
        return False

    def finish(self) -> Iterable[Row]:
        return self._end_of_line()

    def _begin_line(self) -> None:
        self._line.clear()
        self._skipping = False

    def _end_of_line(self) -> Iterable[Row]:
        line, skipped = bytes(self._line), self._skipping
        self._begin_line()
        if skipped:
            self._line_number += 1
            self._lines += 1
            self._long += 1
            return ()
        return self._whole_line(line)

    def _whole_line(self, line: bytes) -> Iterable[Row]:
        self._line_number += 1
        if len(line) > LONGEST_LINE:
            self._lines += 1
            self._long += 1
            return ()
        if b"\x1b" in line:
            moved = _MOVE.split(_GAP.sub(b" ", line))
            if len(moved) > 1:  # as after a carriage return, other text follows
                self._line_number -= 1
                return [row for piece in moved for row in self._whole_line(piece)]
            line = _COLOURS.sub(b"", moved[0])
        if not line or line.isspace():
            return ()
        self._lines += 1
        if self.until is not None:
            self._ended = self._ended or self.until.search(line) is not None
            if self._ended:
                return ()
        row = self._row(line)
        return () if row is None else (row,)

    def _row(self, line: bytes) -> Row | None:
        found = self._parse(line)
        if found is not None:
            return self._row_with(found)
        if self._lines <= SURVEYED and not self._understood:
            self._zeros += b"\0" in line
            for observer, pattern, *_ in _OTHERS:
                self._alike[observer] += pattern.match(line) is not None
        return None

    def _row_with(self, found: Mapping[str, float]) -> Row | None:
        """Return the row with the wanted ones of these values, by their printed names."""
        self._understood += 1
        values = self._wanted_of(found)
        if not values:
            return None
        if self._clock is None:
            return Row(values)
        clock = found.get(self._clock)
        if clock is None:
            count, line = self._unclocked
            self._unclocked = count + 1, line or self._line_number
            return Row(values)
        self._clocked = True
        if not math.isfinite(clock):
            return Row(values)
        if clock < self._latest_clock:
            first = f"from {self._latest_clock} to {clock} in line {self._line_number}"
            self._back = self._back[0] + 1, self._back[1] or first
        self._latest_clock = clock
        return Row(values, clock)

    @abstractmethod
    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        """Return the numbers in a line by their printed names, or ``None`` if it cannot be
        parsed. A wanted value that is no number is ``UNREADABLE``.
        """

    @property
    def _is_surveyed(self) -> bool:
        """True for the first lines and for some later ones, from which complaints learn."""
        return self._understood < SURVEYED or not self._understood % SURVEYED

    def _unreadable(self, printed: str, text: object) -> float:
        """Count a wanted value that is no number, and return a nan that stands for it."""
        name = printed if self._wanted is None else self._wanted.get(printed, printed)
        count, first, line = self._unread.get(name, (0, str(text)[:40], self._line_number))
        self._unread[name] = (count + 1, first, line)
        return UNREADABLE

    def _wanted_of(self, found: Mapping[str, float]) -> Mapping[str, float]:
        """Return the wanted ones of these values by the names of their columns."""
        wanted = self._wanted
        if wanted is not None:
            values = {wanted[name]: value for name, value in found.items() if name in wanted}
            if len(self._found) < len(wanted):
                self._found.update(values)
            more = len(found) > len(values) and self._understood <= SURVEYED
            if more and len(self._unasked) < MOST_FIELDS:
                others = (name for name in found if name not in wanted and name != self._clock)
                self._unasked |= dict.fromkeys(others)
            return values
        if not self._seen.issuperset(found):
            for name in found:
                if name and len(self._seen) < MOST_FIELDS and name not in VARIABLES:
                    self._seen.add(name)
            return {name: value for name, value in found.items() if name in self._seen}
        return found

    def complaint(self) -> str | None:
        if not self._lines:
            return "no lines"
        lines = count_of(self._lines)
        if self._long:
            return f"{count_of(self._long)} of {lines} longer than {LONGEST_LINE >> 20} MiB"
        if not self._understood:
            return f"{lines}, none of them {self._noun}{self._suggestion()}"
        missing = sorted(set((self._wanted or {}).values()) - self._found)
        if missing:
            there = self._there(missing)
            several = "s" if len(missing) > 1 else ""
            return f"no field{several} {', '.join(map(repr, missing))}{there}"
        if self._wanted is None and not self._seen:
            return f"{lines}, none of them with a number"
        return self._unread_complaint()

    def _there(self, missing: Iterable[str]) -> str:
        """Return some names in the output, the most similar ones first, as the end of a text."""
        names = [*self._unasked, *sorted(self._seen)]
        similar = [each for name in missing if (each := closest(name, names)) is not None]
        found = [*dict.fromkeys((*similar, *names))][:MOST_TOLD]
        return f"; found {', '.join(map(repr, found))}" if found else ""

    def _clock_complaint(self) -> Iterator[str]:
        if self._clock is not None and not self._clocked and (self._found or self._seen):
            yield f"no row has the clock {self._clock!r}{self._there([self._clock])}"
        count, line = self._unclocked
        if self._clocked and count:
            rows = "1 row counts" if count == 1 else f"{count} rows count"
            where = "in" if count == 1 else "the first in"
            yield f"{rows} without the clock {self._clock!r}, {where} line {line}"
        if self._back[0]:
            times = "once" if self._back[0] == 1 else f"{self._back[0]} times, first"
            yield f"the clock {self._clock!r} goes back {times} {self._back[1]}"

    def _suggestion(self) -> str:
        """Return the observer that fits the lines better, as the end of a complaint."""
        for name, _, many, one in _OTHERS:
            alike = self._alike[name]
            if alike:
                said = one if alike == 1 else many
                return f"; {count_of(alike)} {said}: use the observer {name!r}"
        if self._zeros:
            return (
                f"; {count_of(self._zeros)} with zero bytes: if it is UTF-16 without a byte-order "
                "mark, let the program write UTF-8"
            )
        return ""

    def _unread_complaint(self) -> str | None:
        texts = [*self._clock_complaint()] + [
            f"{name} could not be read in {count} of {count_of(self._lines)}, "
            f"first: {first!r} in line {line}"
            for name, (count, first, line) in self._unread.items()
        ]
        texts += self._units.complaints(self._seen if self._wanted is None else self._wanted)
        return "; ".join(texts[:MOST_TOLD]) or None


def count_of(lines: int) -> str:
    """Return a number of lines as text."""
    return "1 line" if lines == 1 else f"{lines} lines"


class Units:
    """The units that were found after the values of each name."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, None]] = {}

    def note(self, printed: str, text: str, end: int) -> None:
        """Remember the unit that a text has after a number."""
        unit = _UNIT.match(text, end)
        word = "" if unit is None else unit[1]
        word = word if len(word) < 3 else word.removesuffix("s")
        if len(self._of) < _MOST_NAMES or printed in self._of:
            self._of.setdefault(printed, {})[_SAME_UNITS.get(word, word)] = None

    def complaints(self, names: Container[str]) -> Iterator[str]:
        """Yield a text for each of these names with several units: they cannot be compared."""
        for name, found in self._of.items():
            units = [unit or "no unit" for unit in found if unit or "%" in found]
            if len(units) > 1 and name in names:
                yield (
                    f"{name!r} has the units {' and '.join(map(repr, units[:_MOST_SHOWN]))}, and "
                    "its numbers were read without them: read one unit with 'regex'"
                )
