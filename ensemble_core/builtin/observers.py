"""The built-in observers, which read numbers from the output of jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ensemble_core.builtin.json_lines import JsonLines
from ensemble_core.builtin.key_value import KeyValue
from ensemble_core.builtin.line_observer import MOST_FIELDS, LineObserver
from ensemble_core.builtin.regex import Regex, compile_pattern
from ensemble_core.builtin.table_blocks import TableBlocks
from ensemble_core.builtin.table_observer import Table
from ensemble_core.errors import closest
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.store import VARIABLES
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin, hookimpl

_NAME = late_pattern(r"[A-Za-z0-9_-]+")
_FIELD = {"type": "string", "pattern": f"^{_NAME.pattern}$", "not": {"enum": list(VARIABLES)}}


class _UnlistedFields(Mapping[str, str]):
    """Maps names that are missing in the observer's option ``fields`` to hints for errors."""

    def __init__(self, observer: str, fields: Collection[str]) -> None:
        self._observer = observer
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        if name in VARIABLES or not _NAME.fullmatch(name):
            raise KeyError(name)
        if closest(name, self._fields):  # probably misspelt: another error suggests the right name
            raise KeyError(name)
        return f"add {name!r} to the fields of {self._observer}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_PATH = {
    "description": "File to read, relative to the job's workdir, or a pattern with * for parts of "
    "one output, which are read in the order of their numbers. Default: the job's standard output.",
    "type": "string",
    "minLength": 1,
}
_STREAM = {
    "description": "Read standard error instead of standard output.",
    "enum": ["stdout", "stderr"],
}
_FIELDS = {
    "description": f"Names of the fields to read. Default: all numbers, up to {MOST_FIELDS} names. "
    "As a mapping: each name with its name in the output, as in {loss: metrics.train.loss}.",
    "type": ["array", "object"],
    "items": _FIELD,
    "minItems": 1,
    "uniqueItems": True,
    "minProperties": 1,
    "propertyNames": _FIELD,
    "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 200},
}
_CLOCK = {
    "description": "Name of the field with the step or time of the line.",
    "type": "string",
    "minLength": 1,
}
_RATE = {
    "description": "At most so many rows a second are handed to rules and statistics; the newest "
    "value of each name counts. Default: all rows, but about 10 a second of a progress bar.",
    "type": "number",
    "exclusiveMinimum": 0,
    "maximum": 1_000_000,
}
_PATTERN = {
    "description": "A regular expression in RE2's syntax.",
    "type": "string",
    "minLength": 1,
    "maxLength": 1000,
}
_UNTIL = _PATTERN | {
    "description": "A pattern (RE2) for a line: it and all later ones are not read, as averages at "
    "the end of a log.",
}
_PATTERNS = {
    "description": "A pattern for each field name: its first group is the number; without a group, "
    "each line that matches counts as 1. Or a list of patterns with named groups, the fields.",
    "type": ["object", "array"],
    "minProperties": 1,
    "propertyNames": _FIELD,
    "additionalProperties": _PATTERN,
    "items": _PATTERN,
    "minItems": 1,
}
_TAKE = {
    "description": "Which match of a line counts. Default: first.",
    "enum": ["first", "last"],
}
_DECIMAL = {
    "description": "The decimal sign. Default: a point.",
    "enum": [".", ","],
}
_TABLE = {
    "path": _PATH,
    "stream": _STREAM,
    "fields": _FIELDS
    | {
        "description": f"Names of the columns to read. Default: all, up to {MOST_FIELDS}. As a "
        "mapping: each name with that in the header, as in {T: Temperature, P: Pressure (bar)}."
    },
    "clock": _CLOCK | {"description": "Name of the column with the step or time of the row."},
    "layout": {
        "description": "How names and numbers are arranged: in columns, or in blocks with names in "
        "one line and their numbers in the next. Default: columns.",
        "enum": ["columns", "pairs-of-lines"],
    },
    "header": _PATTERN
    | {
        "description": "A pattern (RE2) for the line with the names. Default: the line above the "
        "first numbers that has a wanted name."
    },
    "until": _PATTERN
    | {
        "description": "A pattern (RE2) for a line after which nothing is read until the next line "
        "that matches 'header'."
    },
    "separator": {
        "description": "What separates the columns. Default: blanks, or what the header has: tab, "
        "|, ; or a comma.",
        "enum": ["blanks", "tab", "|", ";", ","],
    },
    "decimal": _DECIMAL,
    "rate": _RATE,
    "take": _TAKE | {"description": "Which of several columns with the same name. Default: first."},
}
_SEPARATORS = {"blanks": " ", "tab": "\t"}
_GROUP = late_pattern(r"\(\?P?<([A-Za-z_]\w*)>")


def _names_in(patterns: Mapping[str, str] | Sequence[str]) -> frozenset[str]:
    """Return the fields of the patterns of ``regex``."""
    if isinstance(patterns, Mapping):
        return frozenset(patterns)
    return frozenset(name for pattern in patterns for name in _GROUP.findall(pattern))


def _path(job: Job, options: Mapping[str, Any]) -> str | None:
    path = options.get("path")
    return None if path is None else job.fill(path)


def _with_usual(observer: LineObserver, options: Mapping[str, Any]) -> LineObserver:
    observer.rate = options.get("rate")
    if "until" in options and not isinstance(observer, Table):
        observer.until = compile_pattern("until", options["until"])
    return observer


def _reader(name: str, summary: str, kind: type[JsonLines] | type[KeyValue]) -> ObserverPlugin:
    return ObserverPlugin(
        name=name,
        summary=summary,
        build=lambda job, options: _with_usual(
            kind(
                _path(job, options),
                options.get("fields"),
                options.get("clock"),
                options.get("stream", "stdout"),
            ),
            options,
        ),
        variables=lambda options: frozenset(options["fields"]) if "fields" in options else None,
        unasked=lambda options: (
            _UnlistedFields(name, options["fields"]) if "fields" in options else {}
        ),
        options={
            "type": "object",
            "properties": {
                "path": _PATH,
                "stream": _STREAM,
                "fields": _FIELDS,
                "clock": _CLOCK,
                "until": _UNTIL,
                "rate": _RATE,
            },
            "additionalProperties": False,
        },
    )


def _table(job: Job, options: Mapping[str, Any]) -> Table:
    usual = (
        _path(job, options),
        options.get("fields"),
        options.get("clock"),
        options.get("stream", "stdout"),
    )
    decimal = options.get("decimal", ".")
    header, until, separator = (options.get(key) for key in ("header", "until", "separator"))
    if options.get("layout") == "pairs-of-lines":
        return TableBlocks(*usual, header=header, until=until, decimal=decimal)
    return Table(
        *usual,
        header=header,
        until=until,
        separator=None if separator is None else _SEPARATORS.get(separator, separator),
        decimal=decimal,
        take=options.get("take"),
    )


@hookimpl
def ensemble_observers() -> Iterable[ObserverPlugin]:
    """Return the built-in observers."""
    return [
        _reader("json-lines", "Numbers in lines that are JSON objects", JsonLines),
        _reader("key-value", "Numbers in name=value or name: value, in any line", KeyValue),
        ObserverPlugin(
            name="regex",
            summary="Numbers in lines that match regular expressions",
            build=lambda job, options: _with_usual(
                Regex(
                    options["fields"],
                    _path(job, options),
                    options.get("clock"),
                    options.get("stream", "stdout"),
                    options.get("take", "first"),
                ),
                options,
            ),
            variables=lambda options: _names_in(options["fields"]),
            options={
                "type": "object",
                "required": ["fields"],
                "properties": {
                    "path": _PATH,
                    "stream": _STREAM,
                    "fields": _PATTERNS,
                    "clock": _CLOCK,
                    "take": _TAKE,
                    "until": _UNTIL,
                    "rate": _RATE,
                },
                "additionalProperties": False,
            },
        ),
        ObserverPlugin(
            name="table",
            summary="Numbers in columns below a header line",
            build=lambda job, options: _with_usual(_table(job, options), options),
            variables=lambda options: frozenset(options["fields"]) if "fields" in options else None,
            unasked=lambda options: (
                _UnlistedFields("table", options["fields"]) if "fields" in options else {}
            ),
            options={
                "type": "object",
                "properties": _TABLE,
                "additionalProperties": False,
                "if": {
                    "required": ["layout"],
                    "properties": {"layout": {"const": "pairs-of-lines"}},
                },
                "then": {"properties": {"separator": False, "take": False}},
            },
        ),
    ]
