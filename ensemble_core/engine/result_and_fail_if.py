"""``result`` and ``fail_if`` of a job group, for one job that ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from ensemble_core.engine.firing_records import Match
from ensemble_core.engine.job_record import BY_RUN, JobRecord
from ensemble_core.engine.name_values import named_fields
from ensemble_core.engine.state import State
from ensemble_core.metrics.store import ROWS
from ensemble_core.model.conditions import Condition
from ensemble_core.model.decisions import Fail, Log
from ensemble_core.model.events import JobEvent
from ensemble_core.model.expressions import Expression
from ensemble_core.model.filters import split_name


def check_result(state: State, record: JobRecord, condition: Condition, event: JobEvent) -> None:
    """Let a job fail that is about to succeed, if its group's ``fail_if`` is true."""
    if record.exception is not None or event.context.get("status") != 0:
        return
    match = Match(event, record)
    ended = {"status": 0, "exit_code": 0, "duration": record.duration_until(event.timestamp)}
    if "duration" in event.context:  # a reused job
        ended["duration"] = event.context["duration"]
    known = named_fields(condition.sorted_names, state.ensemble, event, record, ended)
    for name in _read_by(record, condition.names):
        known[name] = state.read_scoped(name, None, match)
    verdict = condition.verdict(None, known, state.metric)
    if verdict:
        # If the run was cancelling the job, the outcome must not depend on which was faster. If
        # a stop was, the job is submitted again.
        cancelled = record.cancel in ("asked", "stopping")
        record.exception = "cancel" if cancelled else "result"
        record.cancelled_by = BY_RUN if cancelled else None
        record.note = f"fail_if: {condition.text}"
        outcome: Literal["failed", "cancelled"] = "cancelled" if cancelled else "failed"
        fail = Fail(job=record.job.id, condition=condition.text, outcome=outcome)
        state.out.append(fail)
    elif verdict is None:
        _report_undecided(state, record, condition, known)


def _read_by(record: JobRecord, names: Collection[str]) -> Sequence[str]:
    """Return those of the names that are statistics of the job's rows, such as ``max.E``."""
    reads = () if record.source is None else record.source.reads
    return [name for name in sorted(names) if name in reads] if reads else ()


def _report_undecided(
    state: State, record: JobRecord, condition: Condition, known: Mapping[str, Any]
) -> None:
    """Warn, once for each group, that a ``fail_if`` depends on a missing value."""
    key = f"fail_if: {condition.text}"
    reported = state.table.groups[record.job.group].without_value
    if key not in reported:
        reported.append(key)
        missing = [name for name in condition.sorted_names if known.get(name) is None]
        lacks = f"{' and '.join(missing)} has no value" if missing else "it has no value"
        message = f"{record.job.id}: {key} cannot be checked, because {lacks}"
        state.out.append(Log(message=message, level="warning"))


def compute_result(state: State, record: JobRecord, event: JobEvent) -> None:
    """Compute the values under the group's ``result`` for a job that has succeeded."""
    source = record.source
    if source is None or not source.result:
        return
    found: dict[str, Any] = {}
    for name, formula in source.result.items():
        known = named_fields(formula.sorted_names, state.ensemble, event, record)
        for read in _read_by(record, formula.names):
            known[read] = state.read_scoped(read, None, Match(event, record))
        value = formula.result(known, state.metric)
        if value is not None:
            found[name] = value
        else:
            _report_missing_result(state, record, name, formula, known)
    record.index.result = found


def _report_missing_result(
    state: State, record: JobRecord, name: str, formula: Expression, known: Mapping[str, Any]
) -> None:
    table = state.table.groups[record.job.group]
    message = f"{record.job.id}: its result {name!r} ({formula.text}) has no value"
    # If an observer could not parse the output, report only the first such job of the group.
    unread = record.unparsed_output or record.unreadable
    unread = unread or (table.unparsed_output and not record.rows)
    values = [(each, known.get(each)) for each in formula.sorted_names]
    lacks = any(_is_unread(record, *each) for each in values)
    if unread and lacks and not table.reported_unread:
        table.reported_unread = True  # one report for the whole group
        state.error(f"{message}, because no observer could read its output")
    elif name not in table.without_value:
        odd = [
            f"{each} is {value}"
            for each, value in values
            if isinstance(value, float) and value - value != 0.0
        ]
        why = f": {', '.join(odd)}" if odd else ""
        state.out.append(Log(message=message + why, level="warning"))
    else:
        return
    table.without_value.append(name)


def _is_unread(record: JobRecord, name: str, value: Any) -> bool:
    """Return True if a statistic, such as ``error.E``, lacks a value that was not read.

    It may also lack one because the values that were read have none: they are too few or too large.
    """
    column = split_name(name).path.partition(".")[2].removeprefix(ROWS)
    newest = (record.columns or {}).get(column) if value is None else value
    return newest is None or (record.unreadable and newest != newest)
