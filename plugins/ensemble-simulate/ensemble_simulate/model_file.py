"""Reads a simulation's model from an ensemble file (section ``simulate:``) or a separate file."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ensemble_core import (
    CAUSES,
    EnsembleError,
    Expression,
    FileErrors,
    JobGroup,
    Location,
    UsageError,
    did_you_mean,
)
from ensemble_core.cli.toolkit import Document, Ensemble, Registry, read_file
from ensemble_simulate.distributions import Draw, formula, parse
from ensemble_simulate.models import GroupModel, Model, RecordedRows, Rows, too_many_rows

#: Names that a model's expressions can use, in addition to the job's parameters.
_JOB_NAMES = (
    "index", "replica", "attempt", "nodes", "tasks", "cores", "gpus", "limit",
)  # fmt: skip
#: Causes of failure that a model may contain. ``cancelled``: by others than the run.
_CAUSES = tuple(cause for cause in CAUSES if cause not in ("output", "result", "unknown"))
_NOISE = re.compile(r"\bnoise\(\s*([^()]*)\s*\)")
#: Default wait statuses by cause.
_STATUSES = {
    "exit": 1 << 8,
    "signal": 9,
    "timeout": 15,
    "memory": 9,
    "preempted": 15,
    "cancelled": 15,
}
_Path = tuple[str | int, ...]


def read(
    document: Document, ensemble: Ensemble, registry: Registry, path: _Path, until: float = math.inf
) -> Model:
    """Return the model in a YAML document. Raise :class:`FileErrors` with all mistakes.

    - ``path``: keys that lead to the model, such as ``("simulate",)``
    - ``until``: maximum length of a run in seconds
    """
    return _Reader(document, ensemble, registry, until).model(document.get(path), path)


class _Reader:
    def __init__(
        self, document: Document, ensemble: Ensemble, registry: Registry, until: float
    ) -> None:
        self._until = until
        self._document = document
        self._ensemble = ensemble
        self._registry = registry
        self._errors: list[EnsembleError] = []

    def model(self, data: Any, path: _Path) -> Model:
        keys = ("jobs", "functions")
        data = self._mapping(data, path, keys)
        groups: dict[str, GroupModel] = {}
        for name, spec in self._entries(data.get("jobs"), (*path, "jobs")):
            group = self._ensemble.groups.get(name)
            if group is None:
                self._unknown((*path, "jobs", name), "job group", name, self._ensemble.groups)
                continue
            groups[name] = self._group(group, spec, (*path, "jobs", name))
        functions = {}
        for name, value in self._entries(data.get("functions"), (*path, "functions")):
            known = {*self._ensemble.functions, *self._actions()}
            if name not in known:
                self._unknown((*path, "functions", name), "function", name, known)
            draw = self._draw(value, (), (*path, "functions", name))
            if draw is not None:
                functions[name] = draw
        if self._errors:
            raise FileErrors(self._errors)
        return Model(groups, functions)

    def _actions(self) -> set[str]:
        return {
            each.name
            for rule in self._ensemble.rules
            for action in rule.actions
            for each in action.flat()
        }

    def _group(self, group: JobGroup, spec: Any, path: _Path) -> GroupModel:
        if not isinstance(spec, Mapping):  # only a duration
            draw = self._draw(spec, self._names(group), path)
            return GroupModel(draw, where=self._document.at(path))
        spec = self._mapping(spec, path, ("duration", "fail", "rows"))
        names = self._names(group)
        duration = None
        if spec.get("duration") is not None:
            duration = self._draw(spec["duration"], names, (*path, "duration"))
        fails, statuses = self._fails(spec.get("fail"), names, (*path, "fail"))
        rows = self._rows(group, spec.get("rows"), names, (*path, "rows"))
        if isinstance(rows, Rows) and duration is not None:
            self._check_number(group, duration.constant, rows.every.constant, (*path, "rows"))
        return GroupModel(duration, fails, statuses, rows, where=self._document.at(path))

    def _check_number(
        self, group: JobGroup, duration: float | None, period: float | None, path: _Path
    ) -> None:
        """Report a job with too many rows, if the number of rows does not depend on random
        numbers.
        """
        if duration is not None and period:
            seconds = min(duration, group.duration or duration, self._until)
            many = too_many_rows(period, seconds)
            if many is not None:
                what = f"each job of {group.name!r} would print {many}"
                self._report((*path, "every"), what, "write a longer time, such as every: 10s")

    @staticmethod
    def _names(group: JobGroup) -> tuple[str, ...]:
        return (*_JOB_NAMES, *group.names)

    def _fails(
        self, spec: Any, names: Sequence[str], path: _Path
    ) -> tuple[dict[str, Draw], dict[str, int]]:
        fails: dict[str, Draw] = {}
        statuses: dict[str, int] = {}
        if spec is None:
            return fails, statuses
        if not isinstance(spec, Mapping):
            spec, path = {"exit": spec}, path[:-1]
            path = (*path, "fail")
        for cause, value in spec.items():
            place = (*path, cause) if self._document.get((*path, cause)) is not None else path
            if cause not in _CAUSES:
                self._unknown(place, "cause", str(cause), _CAUSES)
                continue
            statuses[cause] = _STATUSES.get(cause, 0)
            if isinstance(value, Mapping):
                value = self._mapping(value, place, ("probability", "exit_code"))
                code = value.get("exit_code", 1)
                if not isinstance(code, int) or not 1 <= code <= 255:
                    self._report((*place, "exit_code"), f"invalid exit code {code!r}", "1–255")
                    continue
                statuses[cause] = code << 8
                value = value.get("probability", 1)
            draw = self._draw(value, names, place)
            if draw is None:
                continue
            if draw.constant is not None and not 0 <= draw.constant <= 1:
                self._report(
                    place,
                    f"the probability of {cause!r} is {draw.constant:g}",
                    "use a number between 0 and 1",
                )
            fails[cause] = draw
        return fails, statuses

    def _rows(
        self, group: JobGroup, spec: Any, names: Sequence[str], path: _Path
    ) -> Rows | RecordedRows | None:
        observed = self._observed_columns(group)
        if isinstance(spec, Mapping) and "file" in spec:
            return self._read_rows(group, spec, observed, path)
        if spec is None:
            self._check_columns(group, observed or frozenset(), frozenset(), path[:-1])
            return None
        spec = self._mapping(spec, path, ("every", "columns"))
        every = self._draw(spec.get("every", 1), names, (*path, "every"))
        columns: dict[str, Expression] = {}
        noises: dict[str, Draw] = {}
        if not group.observe:
            self._report(
                path,
                f"jobs of {group.name!r} are not observed, so their rows have no effect",
                "give the group an 'observe', or remove 'rows'",
            )
        for name, text in self._entries(spec.get("columns"), (*path, "columns")):
            place = (*path, "columns", name)
            if observed is not None and name not in observed:
                self._unknown(place, "column", name, observed)
            found = self._column(str(text), names, place, noises)
            if found is not None:
                columns[name] = found
        if every is not None and every.constant is not None and every.constant <= 0:
            self._report(
                (*path, "every"), f"invalid interval of rows: {every.text}", "use more than 0"
            )
        self._check_columns(group, observed or frozenset(), frozenset(columns), path)
        return None if every is None else Rows(every, columns, noises)

    def _read_rows(
        self,
        group: JobGroup,
        spec: Mapping[str, Any],
        observed: frozenset[str] | None,
        path: _Path,
    ) -> RecordedRows | None:
        """Return the rows of a file (CSV with a header, or JSON lines).

        The key ``t`` or ``every`` gives their times.
        """
        spec = self._mapping(spec, path, ("file", "every"))
        every = self._draw(spec.get("every", 1), (), (*path, "every"))
        period = 1.0 if every is None or every.constant is None else every.constant
        if period <= 0:
            self._report(
                (*path, "every"), f"invalid interval of rows: {spec['every']}", "use more than 0"
            )
        file = os.path.join(os.path.dirname(self._document.file), str(spec["file"]))
        try:
            found = list(_read_file(file, period))
        except EnsembleError as error:
            self._attach(error, (*path, "file"))
            return None
        columns = frozenset(name for _, values in found for name in values)
        if observed is not None:
            for name in sorted(columns - observed):
                hint = did_you_mean(name, observed, ", ".join(sorted(observed)), cutoff=0.5)
                what = f"{spec['file']} has a column {name!r} that no observer of the group yields"
                self._report((*path, "file"), what, hint)
        self._check_columns(group, observed or frozenset(), columns, path)
        return RecordedRows(found)

    def _observed_columns(self, group: JobGroup) -> frozenset[str] | None:
        """Return the columns that the group's observers yield; ``None`` if unknown."""
        found: set[str] = set()
        for name, options in group.observe.items():
            variables = self._registry.observers[name].variables
            names = None if variables is None else variables(options)
            if names is None:
                return None
            found.update(names)
        return frozenset(found)

    def _check_columns(
        self, group: JobGroup, observed: frozenset[str], given: frozenset[str], path: _Path
    ) -> None:
        """Report columns that rules use but jobs never print."""
        lacking = sorted((observed - given) & self._rule_words)
        if lacking:
            self._report(
                path,
                f"the model of {group.name!r} has no {lacking[0]!r}, which rules use",
                f"write 'rows: {{every: 10s, columns: {{{lacking[0]}: …}}}}'",
            )

    @cached_property
    def _rule_words(self) -> frozenset[str]:
        """The words that occur in rules and results."""
        texts = [str(rule.spec) for rule in self._ensemble.rules]
        for group in self._ensemble.groups.values():
            texts += [each.text for each in group.result.values()]
        return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text))

    def _column(
        self, text: str, names: Sequence[str], path: _Path, noises: dict[str, Draw]
    ) -> Expression | None:
        known = (*names, "t", "row")

        def named(match: re.Match[str]) -> str:
            name = f"noise_{len(noises)}"
            draw = self._draw(match[1], known, path)
            if draw is not None:
                noises[name] = draw
            return name

        replaced = _NOISE.sub(named, text)
        try:
            return formula(replaced, (*known, *noises))
        except EnsembleError as error:
            self._attach(error, path)
            return None

    # -- checks --------------------------------------------------------------------------------

    def _draw(self, value: Any, names: Sequence[str], path: _Path) -> Draw | None:
        try:
            draw = parse(value, names)
        except EnsembleError as error:
            self._attach(error, path)
            return None
        if draw.constant is not None and not draw.constant < math.inf:
            self._report(path, f"{draw.text} is not a finite number", "write a number")
        if isinstance(value, (int, float)) and value < 0:
            self._report(path, f"{value!r} is below 0", "write a duration or a probability")
        return draw

    def _mapping(self, data: Any, path: _Path, keys: Sequence[str]) -> Mapping[str, Any]:
        if data is None:
            return {}
        if not isinstance(data, Mapping):
            self._report(path, f"{data!r:.60} is not a mapping", f"its keys are {', '.join(keys)}")
            return {}
        for key in data:
            if key not in keys:
                self._unknown((*path, key), "key", str(key), keys)
        return data

    def _entries(self, data: Any, path: _Path) -> list[tuple[str, Any]]:
        if data is None:
            return []
        if not isinstance(data, Mapping):
            self._report(path, f"{data!r:.60} is not a mapping", "write NAME: …")
            return []
        return [(str(name), value) for name, value in data.items()]

    def _unknown(self, path: _Path, noun: str, name: str, known: Any) -> None:
        listed = ", ".join(sorted(known)) or f"unknown {noun}"
        hint = did_you_mean(name, known, f"known: {listed}", cutoff=0.5)
        self._errors.append(
            UsageError(
                f"unknown {noun} {name!r}",
                where=self._document.at_key(path),
                hint=hint,
                code=f"no-such-{noun.split()[-1]}",
            )
        )

    def _report(self, path: _Path, what: str, hint: str) -> None:
        self._errors.append(
            UsageError(what, where=self._document.at(path), hint=hint, code="bad-model")
        )

    def _attach(self, error: EnsembleError, path: _Path) -> None:
        told = UsageError(error.what, cause=error.cause, hint=error.hint, code=error.code)
        told.where = error.where or self._document.at(path)
        self._errors.append(told)


def _read_file(file: str, period: float) -> Iterator[tuple[float, Mapping[str, float]]]:
    """Return the rows of a file with their times. Raises :class:`EnsembleError` with the line
    number.
    """
    text = read_file(file)
    if file.endswith((".json", ".jsonl", ".ndjson")):
        lines: Iterator[tuple[int, Any]] = _objects(file, text)
    else:
        rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
        lines = ((rows.line_num, dict(row)) for row in rows)
    last = 0.0
    for number, (line, row) in enumerate(lines):
        values: dict[str, float] = {}
        for name, value in row.items():
            try:
                values[str(name)] = float(value)
            except (TypeError, ValueError):
                where = Location(file, line, 1)
                what = f"{name!r} is not a number: {value!r}"
                raise UsageError(what, where=where, code="bad-model") from None
        t = values.pop("t", (number + 1) * period)
        if not last <= t < math.inf:
            what = f"the row is at {t:g} s, but the previous one at {last:g}"
            hint = "'t' must be the seconds since the job's start, in order"
            raise UsageError(what, where=Location(file, line, 1), hint=hint, code="out-of-order")
        last = t
        yield t, values


def _objects(file: str, text: str) -> Iterator[tuple[int, Any]]:
    for line, each in enumerate(text.splitlines(), 1):
        if not each.strip():
            continue
        try:
            found = json.loads(each)
        except ValueError as error:
            where = Location(file, line, 1)
            what = f"the line is not JSON: {error}"
            raise UsageError(what, where=where, code="bad-model") from None
        if not isinstance(found, dict):
            raise UsageError(
                "the line is not a JSON object", where=Location(file, line, 1), code="bad-model"
            )
        yield line, found
