"""Creates jobs from rows: the action ``submit`` with the key ``rows``.

The columns of a row set the parameters of new jobs. If a row is invalid, nothing is submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core.engine.firing_records import Origin
from ensemble_core.engine.job_record import MOST_ROWS
from ensemble_core.engine.state import State
from ensemble_core.engine.vary_action import combinations, varied_group
from ensemble_core.errors import EnsembleError
from ensemble_core.model.evaluated_options import changed_fields
from ensemble_core.model.filters import ALL, split_condition
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.sweep_values import without_noise


def rows_of(state: State, origin: Origin, rows: str) -> list[Mapping[str, Any]]:
    """Return the rows that the text ``rows`` selects. Raises :class:`EnsembleError`.

    - ``TABLE`` or ``TABLE(CONDITION)``: rows of a table of results. If a rule with ``each`` fires
      for some of the jobs, the table covers only these.
    - ``all.TABLE``: rows of the table over all jobs.
    - ``job``: the rows that the event's job has printed.
    """
    if rows != "job":
        name, condition = split_condition(rows, "rows")
        tables = state.tables(None if name.startswith(ALL) else origin.match.scope)
        name = name.removeprefix(ALL)
        if name not in tables:
            raise EnsembleError(f"there is no table {name!r}", code="no-such-table")
        return [*tables.passing(name, condition)]
    record = origin.match.record
    if record is None:
        raise EnsembleError("'rows: job' needs an event of a job", code="no-job")
    printed = (record.index_record and record.index_record.printed) or []
    if len(printed) > MOST_ROWS:
        raise EnsembleError(
            f"{record.job.id} printed more than {MOST_ROWS} rows: nothing was submitted",
            hint="let the job print only the rows that should become jobs",
            code="out-of-range",
        )
    return [values for *_, values in printed]


def of_rows(
    state: State,
    origin: Origin,
    name: str,
    rows: list[Mapping[str, Any]],
    fields: Mapping[str, Any],
    again: bool,
) -> tuple[list[Job], list[JobGroup], int]:
    """Return the new jobs, their groups, and the number of skipped combinations.

    Combinations that were submitted before are skipped. A column sets the parameter of the same
    name, unless ``fields`` sets it. Raises :class:`EnsembleError` if a row has an invalid value.
    """
    found, earlier = varied_group(state, name)
    jobs: list[Job] = []
    sources: list[JobGroup] = []
    used = earlier.draft()
    changed_groups: dict[str, JobGroup] = {}
    passed_over = 0
    for row in rows:
        changed = changed_fields(fields, {**origin.fields, **row}, state.metric)
        if any(changed.get(key, 1) <= 0 for key in ("count", "replicas")):
            continue  # the number of jobs for this row, not a parameter
        own = {key: row[key] for key in found.group.names if key in row}
        parameters = {**own, **(changed.pop("parameters", None) or {})}
        group = found.group
        if changed:
            key = repr(changed)
            if key not in changed_groups:
                changed_groups[key] = state.ensemble.binder.group(group, changed)
            group = changed_groups[key]
        for one in combinations(group, {}, parameters):
            chosen = {key: _value(name, key, value) for key, value in one.items()}
            numbers = used.claim_free(chosen, group.count) if again else range(group.count)
            for replica in numbers:
                if not again and not used.claim(chosen, replica):
                    passed_over += 1
                    continue
                jobs.append(group.job(found.next_index + len(jobs), chosen, replica))
                sources.append(group)
    found.next_index += len(jobs)
    earlier.keep(used)
    return jobs, sources, passed_over


def _value(group: str, name: str, value: object) -> object:
    """Return the value of a parameter. Raises :class:`EnsembleError` if it is invalid."""
    if isinstance(value, float) and value - value != 0:
        what = f"the parameter {name!r} of {group!r} would be {value}"
    elif value is None or not isinstance(value, (int, float, str)):
        what = f"a row gives no value for the parameter {name!r} of {group!r}"
    else:
        return without_noise(value) if isinstance(value, float) else value
    raise EnsembleError(
        f"{what}: nothing was submitted",
        hint=f"exclude such rows with 'where', or set 'with: {{parameters: {{{name}: …}}}}'",
        code="no-value",
    )
