"""Lists the values that a run uses, each with its source, for ``ensemble validate --resolved``.

They are decided elsewhere: see ``config.loading``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from ensemble_core.config.document import Document, Path
from ensemble_core.config.schema import PROFILE_FIELDS
from ensemble_core.model.ensemble import Limits
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.numbers import whole
from ensemble_core.model.option_values import leaves

__all__ = ["BUILT_IN", "ResolvedValue", "leaves", "resolved_values"]

BUILT_IN = "built-in"


class ResolvedValue(NamedTuple):
    """A value, with the key that ``--set`` accepts, and where it comes from."""

    key: str
    value: object
    source: str
    shown: str

    @classmethod
    def of(cls, key: str, value: object, source: object) -> ResolvedValue:
        """Return a value that is shown as JSON, or as it is if it is a text."""
        shown = value if isinstance(value, str) else json.dumps(whole(value), ensure_ascii=False)
        return cls(key, value, str(source), shown)


def resolved_values(document: Document) -> Iterator[ResolvedValue]:
    """Yield the limits, pilots and fields of job groups of a file whose entries are expanded."""
    data = document.data
    limits = data.get("limits") or {}
    yield from _values(document, "limits", ("limits",), limits)
    for name, value in _defaults(Limits, [each.name for each in fields(Limits)]):
        if name not in limits:
            yield ResolvedValue.of(f"limits.{name}", value, BUILT_IN)
    yield from _values(document, "pilots", ("pilots",), data.get("pilots") or {})
    for number, group in enumerate(data.get("jobs") or ()):
        key = f"jobs.{group['name']}"
        given = {name: value for name, value in group.items() if name != "name"}
        yield from _values(document, key, ("jobs", number), given)
        for name, value in _defaults(JobGroup, PROFILE_FIELDS):
            if name not in given:
                yield ResolvedValue.of(f"{key}.{name}", value, BUILT_IN)


def _values(
    document: Document, key: str, at: Path, values: Mapping[str, Any]
) -> Iterator[ResolvedValue]:
    for path, value in leaves(values):
        place: Path = (*at, *path)
        found = ResolvedValue.of(".".join((key, *path)), value, document.at(place) or document.noun)
        if not isinstance(value, list):
            found = found._replace(shown=document.written(place, value))
        yield found


def _defaults(record: Any, names: Any) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of a record's fields that are values."""
    by_name = {each.name: each.default for each in fields(record)}
    for name in names:
        if isinstance(by_name[name], (int, float, str)):
            yield name, by_name[name]
