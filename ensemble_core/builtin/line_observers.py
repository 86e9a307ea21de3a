"""Observers that read a job's output line by line: JSON objects, ``name=value`` pairs, patterns.

A carriage return ends a line, too, as in progress bars. Sequences for colours are removed.
"""

from __future__ import annotations

import ast
import codecs
import json
import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import VARIABLES
from ensemble_core.model.numbers import MOST_EXACT, NUMBER, finite_or_none, read_number
from ensemble_core.plugin.observer import Observer, Row

__all__ = ["LONGEST_LINE", "MOST_FIELDS", "JsonLines", "KeyValue", "Patterns"]

#: Maximum length of a line in bytes. Longer ones are skipped.
LONGEST_LINE = 1 << 20
#: Maximum number of fields in an output file if the ensemble file does not list the fields. Each
#: field costs memory, and a job may print any number of names.
MOST_FIELDS = 200
#: How many names of unused fields a complaint lists.
_MOST_TOLD = 5
#: Longest line that is read as a printed Python dict, in bytes.
_LONGEST_DICT = 1 << 16
#: How many levels of nested objects a complaint searches for a field.
_DEPTH = 4

_ENDS = re.compile(rb"[\r\n]")
#: Control sequences of terminals: colours and cursor movements, titles, and other escapes.
_COLOURS = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[@-Z\\^_])"
)
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_BEFORE = r"(?<![\w./-])"
_BETWEEN = r"[ \t]{0,40}[=:][ \t]{0,40}"
#: What must not follow a number: otherwise it is a part of something else (10ms, 12:30, 0,253).
_AFTER = r"(?![\w#]|\.[#.]|[.:/^*'+-]\w|,\d|[\u00d7\u00b7~]\s?\d|[\u00a0\u2009\u202f\u2019]\d)"
#: What follows a group of a pattern that ends within a number.
_GOES_ON = re.compile(r"\d|[.,]\d|[eEdD][-+]?\d")
_PAIR = re.compile(rf"{_BEFORE}([A-Za-z_][A-Za-z0-9_-]*){_BETWEEN}({NUMBER}){_AFTER}")
_LABEL = re.compile(rf"{_BEFORE}([A-Za-z_][A-Za-z0-9_-]*)[ \t]{{0,40}}([=:])[ \t]{{0,40}}(?=(\S*))")

#: The fields to read: names, or names with their names in the output.
Fields = Collection[str] | Mapping[str, str]


class _Lines(Observer):
    """Base class of observers that read lines. Subclasses parse a line."""

    #: What the expected lines are called in complaints.
    _noun = "lines"

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
        self._seen: set[str] = set()
        self._line = bytearray()
        self._skipping = False
        #: The first bytes of the file, until they show whether it is UTF-16.
        self._start: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        # All of these are counted for the complaint.
        self._lines = self._understood = self._long = 0
        self._found: set[str] = set()
        self._unasked: dict[str, None] = {}
        #: Values that could not be read: how many, the first one, and its line.
        self._unread: dict[str, tuple[int, str, int]] = {}

    @property
    def path(self) -> str | None:
        return self._path

    @property
    def stream(self) -> Literal["stdout", "stderr"]:
        return self._stream

    def feed(self, data: bytes) -> Iterable[Row]:
        if self._start is not None or self._decoder is not None:
            data = self._decode(data)
        *ends, begun = _ENDS.split(data) if b"\r" in data else data.split(b"\n")
        rows: list[Row] = []
        for end in ends:
            self._append(end)
            rows += self._end_of_line()
        self._append(begun)
        return rows

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
        self._lines = self._understood = self._long = 0

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
            self._lines += 1
            self._long += 1
            return ()
        if b"\x1b" in line:
            line = _COLOURS.sub(b"", line)
        if not line.strip():
            return ()
        self._lines += 1
        row = self._row(line)
        return () if row is None else (row,)

    def _row(self, line: bytes) -> Row | None:
        found = self._parse(line)
        if found is None:
            return None
        self._understood += 1
        values = {
            name: value for printed, value in found.items() if (name := self._name_of(printed))
        }
        if not values:
            return None
        clock = None if self._clock is None else found.get(self._clock)
        return Row(values, clock if clock is None or math.isfinite(clock) else None)

    @abstractmethod
    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        """Return the numbers in a line by their printed names, or ``None`` if it cannot be
        parsed. A wanted value that is no number is nan (see ``_unreadable``).
        """

    def _unreadable(self, printed: str, text: object) -> float:
        """Count a wanted value that is no number, and return nan."""
        name = printed if self._wanted is None else self._wanted.get(printed, printed)
        count, first, line = self._unread.get(name, (0, str(text)[:40], self._lines))
        self._unread[name] = (count + 1, first, line)
        return math.nan

    def _name_of(self, printed: str) -> str | None:
        """Return the column's name for a printed name, or ``None`` if it is not wanted."""
        if self._wanted is not None:
            name = self._wanted.get(printed)
            if name is not None:
                self._found.add(name)
            elif len(self._unasked) < _MOST_TOLD and printed != self._clock:
                self._unasked[printed] = None
            return name
        if printed in VARIABLES:
            return None
        if printed not in self._seen:
            if len(self._seen) >= MOST_FIELDS:
                return None
            self._seen.add(printed)
        return printed

    def complaint(self) -> str | None:
        if not self._lines:
            return "no lines"
        lines = _count_of(self._lines)
        if self._long:
            return f"{_count_of(self._long)} of {lines} longer than {LONGEST_LINE >> 20} MiB"
        if not self._understood:
            return f"{lines}, none of them {self._noun}"
        missing = sorted(set((self._wanted or {}).values()) - self._found)
        if missing:
            there = f"; found {', '.join(map(repr, self._unasked))}" if self._unasked else ""
            several = "s" if len(missing) > 1 else ""
            return f"no field{several} {', '.join(map(repr, missing))}{there}"
        if self._wanted is None and not self._seen:
            return f"{lines}, none of them with a number"
        return self._unread_complaint()

    def _unread_complaint(self) -> str | None:
        texts = [
            f"{name} could not be read in {count} of {_count_of(self._lines)}, "
            f"first: {first!r} in line {line}"
            for name, (count, first, line) in self._unread.items()
        ]
        return "; ".join(texts[:_MOST_TOLD]) or None


def _count_of(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines} lines"


class JsonLines(_Lines):
    """Observer of JSON objects, one per line: the numeric fields of an object form a row.

    Printed Python dicts are read, too. A wanted field may be nested (``metrics.loss``), and its
    value may be a text such as ``"NaN"``. The option ``clock`` names the field with the time or
    step of the row. Unlisted values that are no numbers, lines that are not JSON objects, and the
    reserved names ``duration`` and ``pending`` are skipped.
    """

    _noun = "a JSON object"
    #: Number of lines that begin with ``{`` but are no valid object.
    _broken = 0

    def _unread_complaint(self) -> str | None:
        broken = None
        if self._broken:
            broken = f"{_count_of(self._broken)} of {_count_of(self._lines)} begin with {{ and are "
            broken += "no JSON object"
        return "; ".join(filter(None, (broken, super()._unread_complaint()))) or None

    def _is_complete(self, line: bytes) -> bool:
        return _object_in(line.strip()) is not None

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        line = line.removeprefix(codecs.BOM_UTF8).strip()
        found = _object_in(line)
        if found is None:
            self._broken += line.startswith(b"{")
            return None
        values: dict[str, float] = {}
        if self._wanted is None:
            for name, value in found.items():
                number = _number(value)
                if number is not None:
                    values[name] = number
                elif name in self._seen:  # it was a number before
                    number = read_number(value) if isinstance(value, str) else None
                    values[name] = self._unreadable(name, value) if number is None else number
            return values
        for printed in (*self._wanted, *((self._clock,) if self._clock else ())):
            there, value = _look_up(found, printed)
            if not there:
                if len(self._unasked) < _MOST_TOLD and self._wanted.get(printed) not in self._found:
                    self._unasked |= dict.fromkeys(_similar(found, printed))
                continue
            number = read_number(value) if isinstance(value, str) else _number(value)
            if number is not None:
                values[printed] = number
            elif printed in self._wanted:
                values[printed] = self._unreadable(printed, value)
        return values


def _object_in(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object or the printed Python dict in a line, or ``None``."""
    if not line.startswith(b"{"):
        return None
    text = line.decode("utf-8", "replace")
    try:
        found: dict[str, Any] = json.loads(text)
        if math.inf in found.values() or -math.inf in found.values():
            # 1e999 is not infinity, but a number too large for a float.
            found = json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError):
        return _dict_in(text) if len(line) <= _LONGEST_DICT else None
    return found


def _dict_in(text: str) -> dict[str, Any] | None:
    if "\\" in text:  # an invalid escape sequence would cause a warning of Python
        return None
    try:
        node = ast.parse(text, mode="eval").body
        return _literal(node) if isinstance(node, ast.Dict) else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _literal(node: ast.AST) -> Any:
    """Return the value of a literal, of a name such as nan, or of ``np.float64(0.5)``; ``None``
    for any other expression.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        pairs = zip(keys, node.values, strict=True)
        return {key: _literal(value) for key, value in pairs if isinstance(key, str)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _literal(node.operand)
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        return (-value if isinstance(node.op, ast.USub) else value) if known else None
    if isinstance(node, ast.Name):
        return read_number(node.id)
    if isinstance(node, ast.Call) and len(node.args) == 1:
        value = _literal(node.args[0])
        return value if isinstance(value, (int, float)) else None
    return None


def _look_up(found: Mapping[str, Any], printed: str) -> tuple[bool, Any]:
    """Return whether an object has a field, and its value. ``a.b`` is a field ``a.b``, or the field
    ``b`` of the object ``a``.
    """
    if printed in found:
        return True, found[printed]
    first, dot, rest = printed.partition(".")
    inner = found.get(first)
    if not dot or first not in found:
        return False, None
    return _look_up(inner, rest) if isinstance(inner, Mapping) else (True, inner)


def _similar(found: Mapping[str, Any], printed: str) -> Iterator[str]:
    """Yield the fields of an object with this name at any depth, or otherwise its fields that have
    numbers.
    """
    last = re.split(r"[./]", printed)[-1]
    deep = [path for path in _paths(found, _DEPTH) if re.split(r"[./]", path)[-1] == last]
    if deep:
        yield from deep[:_MOST_TOLD]
        return
    names = (name for name, value in found.items() if _number(value) is not None)
    yield from (name for name, _ in zip(names, range(_MOST_TOLD), strict=False))


def _paths(found: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, value in found.items():
        yield name
        if isinstance(value, Mapping) and depth > 1:
            yield from (f"{name}.{inner}" for inner in _paths(value, depth - 1))


class KeyValue(_Lines):
    """Observer of ``name=value`` and ``name: value`` pairs with numeric values.

    The pairs in a line form a row. If a name occurs twice, the last value counts. Numbers that are
    part of a longer word (``10ms``, ``12:30``, ``0,253``) are no numbers.
    """

    _noun = "with name=NUMBER or name: NUMBER"

    @cached_property
    def _odd(self) -> re.Pattern[str] | None:
        """Pattern of wanted labels that are not single words, such as ``Temperature (K)``."""
        odd = [name for name in self._wanted or () if not _WORD.fullmatch(name)]
        if not odd:
            return None
        names = "|".join(map(re.escape, sorted(odd, key=len, reverse=True)))
        return re.compile(
            rf"(?:^|[\t,;|]|  )[ \t]*({names})(?:[ \t]*([=:])[ \t]*|[ \t]{{2,}}|\t)(\S+)"
        )

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        text = line.decode("utf-8", "replace")
        found: dict[str, float] = {}
        pairs = _PAIR.findall(text)
        known = self._seen if self._wanted is None else self._wanted
        for name, spelled in pairs:
            number = read_number(spelled)
            if number is not None:
                found[name] = number
            elif name in known:  # too large for a float
                found[name] = self._unreadable(name, spelled)
        if text.count("=") + text.count(":") > len(pairs) and any(name in text for name in known):
            for match in _LABEL.finditer(text):  # names whose values may be no numbers
                name, sign, spelled = match.groups()
                if name in known and name not in VARIABLES:
                    pair = _PAIR.match(text, match.start())
                    number = None if pair is None else read_number(pair[2])
                    if number is not None:
                        found[name] = number  # the last value of a name counts
                    elif spelled or sign == "=":
                        found[name] = self._unreadable(name, spelled)
        if self._odd is not None:
            for name, sign, spelled in self._odd.findall(text):
                number = read_number(spelled.rstrip(",;"))
                if number is not None or sign:  # otherwise, the line may be a header
                    found[name] = self._unreadable(name, spelled) if number is None else number
        return found or None


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


# RE2 matches in linear time, so no pattern can block the run.
class Patterns(_Lines):
    """Observer of regular expressions: each line that matches at least one of them forms a row.

    The value of a pattern is the number in its first group, or 1 if it has no group. If the group
    contains no number, the value is nan. A list of patterns gives a column for each named group.
    ``take`` says which match of a line counts: the first, or the last. Raises
    :class:`EnsembleError` for an invalid pattern.
    """

    def __init__(
        self,
        patterns: Mapping[str, str] | Sequence[str],
        path: str | None = None,
        clock: str | None = None,
        stream: Literal["stdout", "stderr"] = "stdout",
        take: Literal["first", "last"] = "first",
    ) -> None:
        #: Each pattern with the column of each of its groups.
        self._patterns: list[tuple[Any, dict[str, int]]] = []
        columns: dict[str, None] = {}
        if isinstance(patterns, Mapping):
            for name, text in patterns.items():
                self._patterns.append((_compile(name, text), {name: 1}))
                columns[name] = None
        else:
            for text in patterns:
                pattern = _compile("fields", text)
                if not pattern.groupindex:
                    raise EnsembleError(
                        f"the pattern has no named group: {text!r:.80}",
                        hint="name the groups: 'Step +(?P<step>[0-9]+)', or write a mapping with a "
                        "pattern for each field",
                        code="bad-pattern",
                    )
                self._patterns.append((pattern, dict(pattern.groupindex)))
                columns |= dict.fromkeys(pattern.groupindex)
        super().__init__(path, [*columns], clock, stream)
        self._last = take == "last"

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        text = line.decode("utf-8", "replace")
        found: dict[str, float] = {}
        matched = False
        for pattern, groups in self._patterns:
            match = pattern.search(text)
            if match is None:
                continue
            matched = True
            if self._last:
                *_, match = pattern.finditer(text)
            if not pattern.groups:
                found |= dict.fromkeys(groups, 1)
                continue
            for name, group in groups.items():
                spelled = match.group(group)
                if spelled is not None:
                    cut = spelled[-1:].isdigit() and _GOES_ON.match(text, match.end(group))
                    number = None if cut else read_number(spelled)
                    found[name] = self._unreadable(name, spelled) if number is None else number
        return found if matched else None

    def complaint(self) -> str | None:
        # A pattern without a group may search for an error message, so it is normal if it never
        # matches.
        numbers = sorted(
            name for pattern, groups in self._patterns if pattern.groups for name in groups
        )
        if not self._lines:
            return super().complaint() if numbers else None
        if not numbers or self._found.intersection(numbers):
            return self._unread_complaint()
        return f"no number for {', '.join(map(repr, numbers))} in {_count_of(self._lines)}"


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
    if isinstance(value, int) and abs(value) <= MOST_EXACT:
        return value
    try:
        return float(value)
    except OverflowError:
        return None


def _finite(text: str) -> float | None:
    return finite_or_none(float(text))
