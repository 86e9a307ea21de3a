"""Observer of programs that print JSON objects or Python dicts, one per line."""

from __future__ import annotations

import ast
import codecs
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from ensemble_core.builtin.line_observer import MOST_TOLD, SURVEYED, LineObserver, count_of
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import MOST_EXACT, finite_or_none, read_number

#: Longest line that is read as a printed Python dict, in bytes.
_LONGEST_DICT = 1 << 16
#: The last word of a text, unless it is the level of a logger.
_LAST_WORD = late_pattern(
    r"(?<!\w)((?!(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR)\b)[^\W\d]\w*)[\s\d.,:=|>-]*$"
)
#: How many levels of nested objects a complaint searches for a field.
_DEPTH = 4
#: After so many objects, only each so many-th one is searched for it.
_LOOKED = 10
_BRACE = late_pattern(rb"\{")
#: What may be before an object in the same line: a progress bar, or the time and level of a logger.
_BEFORE = late_pattern(rb"[^{]*(?<![\w{])(?=\{)")
_MISSING = object()
_INFINITE = (math.inf, -math.inf)


def _finite(text: str) -> float | None:
    return finite_or_none(float(text))


_DECODER = json.JSONDecoder()
#: 1e999 is not infinity, but a number too large for a float.
_STRICT = json.JSONDecoder(parse_float=_finite)


class JsonLines(LineObserver):
    """Observer of JSON objects, one per line: the numeric fields of an object form a row.

    Printed Python dicts are read, too. A wanted field may be nested (``metrics.loss``), and its
    value may be a text such as ``"NaN"``. The option ``clock`` names the field with the time or
    step of the row. Unlisted values that are no numbers, lines that are not JSON objects, and the
    reserved names ``duration`` and ``pending`` are skipped.
    """

    _noun = "a JSON object"
    #: Number of lines that begin with ``{`` but are no valid object.
    _broken = 0

    @cached_property
    def _printed(self) -> tuple[str, ...]:
        """The listed names, and that of the clock."""
        return (*self._wanted, *((self._clock,) if self._clock else ())) if self._wanted else ()

    def _unread_complaint(self) -> str | None:
        broken = None
        if self._broken:
            broken = f"{count_of(self._broken)} of {count_of(self._lines)} begin with {{ and are "
            broken += "no JSON object"
        texts = [broken, super()._unread_complaint()]
        for name in sorted(self._seen if self._wanted is None else self._wanted):
            words = [word or "no word" for word, names in self._words.items() if name in names]
            if len(words) > 1:
                first, second = words[:2]
                texts.append(
                    f"{name!r} is in objects after {first!r} and {second!r}, and all of them were "
                    "read: read one kind with 'regex'"
                )
        return "; ".join([*filter(None, texts)][:MOST_TOLD]) or None

    @cached_property
    def _words(self) -> dict[str, set[str]]:
        """The fields of objects by the last word before them: results, as in ``best: {...}``."""
        return defaultdict(set)

    def _suggestion(self) -> str:
        self._alike["json-lines"] = 0
        return super()._suggestion()

    def _is_complete(self, line: bytes) -> bool:
        return _object_in(_without_others(line)[0]) is not None

    def _finder(self, text: bytes) -> Callable[[bytes, int], Any]:
        return _BRACE.search

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        line, word = _without_others(line.removeprefix(codecs.BOM_UTF8))
        found = _object_in(line)
        if found is None:
            self._broken += line.startswith(b"{")
            return None
        values = self._values_of(found, line)
        if self._is_surveyed:
            known = values if self._wanted is not None else self._seen.intersection(values)
            self._words[word].update(known)
        return values

    def _values_of(self, found: Mapping[str, Any], line: bytes) -> Mapping[str, float]:
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
        for printed in self._printed:
            value = found.get(printed, _MISSING)
            if value is _MISSING and "." in printed:
                value = _nested(found, printed)
                if value in _INFINITE:
                    value = _nested(_object_in(line, _STRICT) or {}, printed)
            if value is _MISSING:
                self._look_for(printed, found)
                continue
            number = read_number(value) if isinstance(value, str) else _number(value)
            if number is not None:
                values[printed] = number
            elif printed in self._wanted:
                values[printed] = self._unreadable(printed, value)
        return values

    def _look_for(self, printed: str, found: Mapping[str, Any]) -> None:
        """Remember, for the complaint, which fields an object has instead of this one."""
        if self._understood >= SURVEYED or len(self._unasked) >= MOST_TOLD:
            return
        few = self._understood < _LOOKED or not self._understood % _LOOKED
        if few and (self._wanted or {}).get(printed) not in self._found:
            self._unasked |= dict.fromkeys(_similar(found, printed))


def _without_others(line: bytes) -> tuple[bytes, str]:
    """Return a line without what may be before an object, and a comma that may be after it. Return
    also the last word before the object.
    """
    line = line.strip()
    if line.endswith(b","):
        line = line[:-1].rstrip()
    other = None if line.startswith(b"{") or not line.endswith(b"}") else _BEFORE.match(line)
    if other is None:
        return line, ""
    word = _LAST_WORD.search(other[0].decode("utf-8", "replace"))
    return line[other.end() :], word[1] if word else ""


def _object_in(line: bytes, decoder: json.JSONDecoder = _DECODER) -> dict[str, Any] | None:
    """Return the JSON object or the printed Python dict in a line, or ``None``."""
    if not line.startswith(b"{"):
        return None
    text = line.decode("utf-8", "replace")
    try:
        found: dict[str, Any]
        found, end = decoder.raw_decode(text)
        if end != len(text):
            raise ValueError("there is more than an object")
        values = found.values()
        if math.inf in values or -math.inf in values:
            found, _ = _STRICT.raw_decode(text)
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


def _nested(found: Mapping[str, Any], printed: str) -> Any:
    """Return the value of a field of an object, or ``_MISSING``. ``a.b`` is a field ``a.b``, or the
    field ``b`` of the object ``a``.
    """
    if printed in found:
        return found[printed]
    first, dot, rest = printed.partition(".")
    if not dot or first not in found:
        return _MISSING
    inner = found[first]
    return _nested(inner, rest) if isinstance(inner, Mapping) else inner


def _similar(found: Mapping[str, Any], printed: str) -> Iterator[str]:
    """Yield the fields of an object with this name at any depth, or otherwise its fields that have
    numbers.
    """
    last = re.split(r"[./]", printed)[-1]
    deep = [path for path in _paths(found, _DEPTH) if re.split(r"[./]", path)[-1] == last]
    if deep:
        yield from deep[:MOST_TOLD]
        return
    names = (name for name, value in found.items() if _number(value) is not None)
    yield from (name for name, _ in zip(names, range(MOST_TOLD), strict=False))


def _paths(found: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, value in found.items():
        yield name
        if isinstance(value, Mapping) and depth > 1:
            yield from (f"{name}.{inner}" for inner in _paths(value, depth - 1))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int) and abs(value) <= MOST_EXACT:
        return value
    try:
        return float(value)
    except OverflowError:
        return None
