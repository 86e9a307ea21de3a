"""The built-in observer ``json-lines``: a job that prints JSON objects, one a line, has metrics.
A plugin like any other; the runtime follows the files and hands their bytes on.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches

from ensemble_core.metrics.store import VARIABLES
from ensemble_core.plugin.hookspecs import ObserverPlugin, hookimpl
from ensemble_core.plugin.observer import Observer, Row

__all__ = ["LONGEST_LINE", "MOST_FIELDS", "JsonLines", "ensemble_observers"]

#: Bytes of a line beyond which it is skipped.
LONGEST_LINE = 1 << 20
#: Different fields that one file may bring, where the ensemble file does not name them: metrics
#: are kept for each, and a job that invents names must not fill the memory.
MOST_FIELDS = 200

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_FIELD = {"type": "string", "pattern": f"^{_NAME.pattern}$", "not": {"enum": list(VARIABLES)}}


class JsonLines(Observer):
    """Each line that is a JSON object gives one row of its numeric fields: NaN and Infinity, which
    many programs write, are numbers too.

    Other lines are passed over, and so are nested values, truth values, and fields named
    ``duration`` or ``pending``, which every job group has already. ``clock`` is the field that
    says the row's time or step.
    """

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

    @property
    def path(self) -> str | None:
        return self._path

    def feed(self, data: bytes) -> Iterable[Row]:
        *ends, begun = data.split(b"\n")
        rows: list[Row] = []
        for end in ends:
            self._take(end)
            rows += self.finish()
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
        self._line.clear()
        self._skipping = False

    def finish(self) -> Iterable[Row]:
        row = None if self._skipping else self._parse(bytes(self._line))
        self.truncated()
        return () if row is None else (row,)

    def _parse(self, line: bytes) -> Row | None:
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
        values: dict[str, float] = {}
        for name, value in found.items():
            number = _number(value)
            if number is not None and self._takes(name):
                values[name] = number
        if not values:
            return None
        clock = None if self._clock is None else _number(found.get(self._clock))
        return Row(values, clock if clock is None or math.isfinite(clock) else None)

    def _takes(self, name: str) -> bool:
        if self._fields is not None:
            return name in self._fields
        if name in VARIABLES:
            return False
        if name not in self._seen:
            if len(self._seen) >= MOST_FIELDS:
                return False
            self._seen.add(name)
        return True


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


class _Unasked(Mapping[str, str]):
    """Fields that are not among those to take, each with what to add: there is no end of them. One
    that is spelt much like one of those is rather meant to be that."""

    def __init__(self, fields: Collection[str]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        if name in VARIABLES or not _NAME.fullmatch(name):
            raise KeyError(name)
        if get_close_matches(name, self._fields, 1, 0.6):
            raise KeyError(name)
        return f"add {name!r} to the fields of json-lines"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@hookimpl
def ensemble_observers() -> Iterable[ObserverPlugin]:
    """The observer that comes with Ensemble."""
    return [
        ObserverPlugin(
            name="json-lines",
            summary="Numbers from lines that are JSON objects",
            build=lambda job, options: JsonLines(
                options.get("path"), options.get("fields"), options.get("clock")
            ),
            variables=lambda options: frozenset(options["fields"]) if "fields" in options else None,
            unasked=lambda options: _Unasked(options["fields"]) if "fields" in options else {},
            options={
                "type": "object",
                "properties": {
                    "path": {
                        "description": "File to read, relative to the job's workdir; "
                        "default: the job's standard output.",
                        "type": "string",
                        "minLength": 1,
                    },
                    "fields": {
                        "description": "Names of the fields to take; default: all that are "
                        f"numbers, up to {MOST_FIELDS} names.",
                        "type": "array",
                        "items": _FIELD,
                        "minItems": 1,
                        "uniqueItems": True,
                    },
                    "clock": {
                        "description": "Name of the field that is the step or time of its line.",
                        "type": "string",
                        "minLength": 1,
                    },
                },
                "additionalProperties": False,
            },
        )
    ]
