"""Creates the jobs of the action ``vary``: like an existing job, but with other parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.engine.firing_records import Origin
from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.replicas import Replicas
from ensemble_core.engine.scopes import Slice
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.sweep_values import GivenBy


def expand_variation(
    state: State,
    origin: Origin,
    parameters: Mapping[str, Any],
    label: str | None,
    fields: Mapping[str, Any],
    again: bool,
) -> tuple[JobGroup, list[Job], int]:
    """Return the changed group, the new jobs, and the number of skipped combinations.

    A combination of parameters is skipped if the group has already submitted it. Raises
    :class:`EnsembleError` if the triggering event has no job, or if the group lacks a parameter.
    """
    record, scope = origin.match.record, origin.match.scope
    if record is not None:
        job = record.job
        base: Mapping[str, object] = job.parameters
        name, replicas = label or job.group, [job.replica]
    elif isinstance(scope, Slice):
        base, name, replicas = scope.parameters, label or scope.key.groups[0], []
    else:
        raise EnsembleError(
            "'vary' needs an event of a job, or a rule with 'each: [PARAMETER]'", code="no-job"
        )
    group_state, earlier = varied_group(state, name)
    group = group_state.group
    if fields:
        group = state.ensemble.binder.group(group, fields)
    unknown = sorted(parameters.keys() - set(group.names))
    if unknown:
        raise EnsembleError(
            f"the job group {name!r} has no parameter {', '.join(unknown)}",
            code="no-such-parameter",
        )
    if not replicas:
        replicas = list(range(group.count))
    jobs: list[Job] = []
    passed_over = 0
    used = earlier.draft()
    for one in combinations(group, base, parameters):
        absent = [
            name for name, value in one.items() if value is None or isinstance(value, GivenBy)
        ]
        if absent:
            raise EnsembleError(
                f"'vary' has no value for the parameter {absent[0]!r} of {name!r}: nothing was "
                "submitted",
                hint=f"write 'parameters: {{{absent[0]}: …}}'",
                code="no-value",
            )
        for replica in used.claim_free(one, len(replicas)) if again else replicas:
            if not again and not used.claim(one, replica):
                passed_over += 1
                continue
            jobs.append(group.job(group_state.next_index + len(jobs), one, replica))
    group_state.next_index += len(jobs)
    earlier.keep(used)
    return group, jobs, passed_over


def combinations(
    group: JobGroup, base: Mapping[str, object], parameters: Mapping[str, Any]
) -> Iterator[dict[str, object]]:
    """Yield the combinations of these values, in the order of the group's parameters.

    A parameter has the values in ``parameters``, otherwise its value in ``base``, otherwise all
    values in the group's sweep.
    """
    names = group.names
    given = {
        name: tuple(value) if isinstance(value, (list, tuple)) else (value,)
        for name, value in {**base, **parameters}.items()
        if name in names
    }
    others = [name for name in names if name not in given]
    own: dict[tuple[object, ...], None] = {(): None}
    if others:
        own = dict.fromkeys(
            tuple(one.get(name) for name in others)
            for entry in (group, *group.more)
            for one in entry.combinations()
        )
    for rest in own:
        for values in itertools.product(*given.values()):
            one = {**dict(zip(others, rest, strict=True)), **dict(zip(given, values, strict=True))}
            yield {name: one[name] for name in names}


def varied_group(state: State, name: str) -> tuple[GroupState, Replicas]:
    """Return a job group and its replicas so far.

    Raises :class:`EnsembleError` if there is no such group, or if no action declares that it varies
    the group.
    """
    group = state.table.groups.get(name)
    if group is None:
        raise EnsembleError(f"there is no job group {name!r}", code="no-such-group")
    if group.replicas is None:
        raise EnsembleError(
            f"the action submits new combinations of parameters of the job group {name!r}, but the "
            "schema of the action's options does not contain 'x-ensemble-varies'",
            code="bad-plugin",
        )
    return group, group.replicas
