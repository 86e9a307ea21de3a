"""The built-in observers: jobs that print JSON objects, ``name=value``, or what a pattern finds
have metrics. A plugin like any other; the runtime follows the files and hands their bytes on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ensemble_core.builtin.line_observers import MOST_FIELDS, JsonLines, KeyValue, Patterns
from ensemble_core.errors import closest
from ensemble_core.metrics.store import VARIABLES
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import ObserverPlugin, hookimpl

__all__ = ["ensemble_observers"]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_FIELD = {"type": "string", "pattern": f"^{_NAME.pattern}$", "not": {"enum": list(VARIABLES)}}


class _Unasked(Mapping[str, str]):
    """Fields that are not among those to take, each with what to add: there is no end of them. One
    that is spelt much like one of those is rather meant to be that."""

    def __init__(self, observer: str, fields: Collection[str]) -> None:
        self._observer = observer
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        if name in VARIABLES or not _NAME.fullmatch(name):
            raise KeyError(name)
        if closest(name, self._fields):
            raise KeyError(name)
        return f"add {name!r} to the fields of {self._observer}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_PATH = {
    "description": "File to read, relative to the job's workdir; default: the job's standard "
    "output.",
    "type": "string",
    "minLength": 1,
}
_FIELDS = {
    "description": "Names of the fields to take; default: all that are numbers, up to "
    f"{MOST_FIELDS} names.",
    "type": "array",
    "items": _FIELD,
    "minItems": 1,
    "uniqueItems": True,
}
_CLOCK = {
    "description": "Name of the field that is the step or time of its line.",
    "type": "string",
    "minLength": 1,
}
_PATTERNS = {
    "description": "The pattern of each field, by its name: its first group is the number; without "
    "a group a line in which it is found gives 1.",
    "type": "object",
    "minProperties": 1,
    "propertyNames": _FIELD,
    "additionalProperties": {
        "description": "A regular expression, as RE2 has them.",
        "type": "string",
        "minLength": 1,
        "maxLength": 1000,
    },
}


def _path(job: Job, options: Mapping[str, Any]) -> str | None:
    path = options.get("path")
    return None if path is None else job.fill(path)


def _reader(name: str, summary: str, kind: type[JsonLines] | type[KeyValue]) -> ObserverPlugin:
    return ObserverPlugin(
        name=name,
        summary=summary,
        build=lambda job, options: kind(
            _path(job, options), options.get("fields"), options.get("clock")
        ),
        variables=lambda options: frozenset(options["fields"]) if "fields" in options else None,
        unasked=lambda options: _Unasked(name, options["fields"]) if "fields" in options else {},
        options={
            "type": "object",
            "properties": {"path": _PATH, "fields": _FIELDS, "clock": _CLOCK},
            "additionalProperties": False,
        },
    )


@hookimpl
def ensemble_observers() -> Iterable[ObserverPlugin]:
    """The observers that come with Ensemble."""
    return [
        _reader("json-lines", "Numbers from lines that are JSON objects", JsonLines),
        _reader("key-value", "Numbers from name=value and name: value, in any line", KeyValue),
        ObserverPlugin(
            name="regex",
            summary="Numbers that regular expressions find in lines",
            build=lambda job, options: Patterns(options["fields"], _path(job, options)),
            variables=lambda options: frozenset(options["fields"]),
            options={
                "type": "object",
                "required": ["fields"],
                "properties": {"path": _PATH, "fields": _PATTERNS},
                "additionalProperties": False,
            },
        ),
    ]
