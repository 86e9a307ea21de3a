"""Base class for readers of a rule test's steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ensemble_core.cli.toolkit import Context, shown
from ensemble_core.cli.toolkit import DocumentPath as Path
from ensemble_core.metrics.store import GAUGES
from ensemble_core.model.ensemble import Ensemble

#: Gauges that a queue reports. Other gauges follow from events of jobs.
GIVEN_GAUGES = tuple(
    name
    for name in GAUGES
    if not name.startswith(("waiting.", "used.", "committed.")) and name != "queue.active"
)


class StepReader:
    """Reads values in the steps of rule tests, and reports mistakes in them."""

    def __init__(self, context: Context, ensemble: Ensemble) -> None:
        self._context = context
        self._ensemble = ensemble

    def _report(self, path: Path, what: str, hint: str, code: str = "bad-value") -> None:
        self._context.report(path, what, hint=hint, code=code)

    def _mapping(self, value: Any, path: Path, keys: Sequence[str], needed: Sequence[str]) -> Any:
        """Return a mapping with only these keys; empty if the mapping is invalid."""
        if not isinstance(value, Mapping):
            usage = ", ".join(f"{key}: …" for key in needed or keys)
            self._report(
                path, f"{shown(value)} is not a mapping", f"write {{{usage}}}", "wrong-type"
            )
            return {}
        for key in value:
            if keys and key not in keys:
                self._unknown_key((*path, key), "key", keys)
        for key in needed:
            if key not in value:
                self._report(path, f"missing key {key!r}", f"write {key}: …", "missing-key")
                return {}
        return value

    def _unknown_key(self, path: Path, noun: str, known: Collection[str]) -> None:
        where = self._context.document.at_key(path)
        self._context.unknown(path, noun, str(path[-1]), known, where=where)

    def _jobs(self, value: Any, path: Path) -> list[str]:
        """Return the names of jobs, and of groups for all their jobs."""
        names = value if isinstance(value, list) else [value]
        groups = self._context.known.groups
        for name in names:
            group, dot, number = str(name).rpartition(".")
            is_job = dot and group in groups and number.replace("-", "").isdigit()
            if name not in groups and not is_job:
                known = [*groups, *(f"{each}.0" for each in groups)]
                self._context.unknown(path, "job or job group", str(name), known)
        return list(map(str, names))

    def _jobs_and_fields(
        self, value: Any, path: Path, keys: Sequence[str]
    ) -> tuple[list[str], Mapping[str, Any]]:
        """Return jobs alone, or a mapping with ``job`` and these keys."""
        if not isinstance(value, Mapping):
            return self._jobs(value, path), {}
        found = self._mapping(value, path, ("job", *keys), ("job",))
        return self._jobs(found.get("job", []), (*path, "job")), found

    def _seconds(self, data: Mapping[str, Any], key: str, path: Path, default: float) -> float:
        if key not in data:
            return default
        found = self._context.duration((*path, key), data[key])
        return default if found is None else found

    def _number(
        self, value: Any, path: Path, low: float = -math.inf, high: float = math.inf
    ) -> Any:
        sound = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not sound:
            self._report(path, f"{shown(value)} is not a number", "write a number", "wrong-type")
        elif not (math.isnan(value) and low == -math.inf) and not low <= value <= high:
            self._report(
                path,
                f"{value!r} is not between {low:g} and {high:g}",
                "write a number in this range",
            )
        return value

    def _text(self, data: Mapping[str, Any], key: str, path: Path, default: str) -> str:
        value = data.get(key, default)
        if not isinstance(value, str):
            self._report((*path, key), f"{shown(value)} is not a text", f"write {key}: TEXT")
        return str(value)

    def _check_choice(self, value: Any, path: Path, noun: str, known: Sequence[str]) -> Any:
        if value not in known:
            self._context.unknown(path, noun, str(value), known)
        return value

    def _gauges(self, value: Any, path: Path) -> dict[str, float]:
        data = self._mapping(value, path, (), ())
        for name, number in data.items():
            if name not in GIVEN_GAUGES:
                self._unknown_key((*path, name), "gauge", GIVEN_GAUGES)
            self._number(number, (*path, name), 0)
        return {name: float(each) for name, each in data.items() if isinstance(each, (int, float))}
