"""Completes earlier submits after a change of the file that added values to a sweep.

Each new combination is submitted as often as the group was, so that the study has the same jobs as
one whose file had all values at the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core.engine import chain_limit
from ensemble_core.engine.firing_records import Match, Origin
from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.past_submits import PastSubmit, keys, pairs, same_sweep
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import Submitter, replicas_of
from ensemble_core.errors import EnsembleError
from ensemble_core.model.decisions import Log, Submit
from ensemble_core.model.events import Event
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job

_REPLACED = "the changed file replaces what was set during the run"
#: How many combinations a message names.
_NAMED = 5


def note(
    state: State, origin: Origin, action: str | None, group: str, fields: Mapping[str, Any]
) -> None:
    """Remember a submit of a group by this action, with changed ``fields``."""
    group_state, own = state.table.groups[group], state.ensemble.groups.get(group)
    if action != "submit" or own is None or not same_sweep(group_state.group, own):
        group_state.past.unclear += 1
        return
    rule = origin.rule if origin.decision_fields else None  # a request has none
    group_state.past.note(rule, origin.number, fields)


def complete(submission: Submitter, event: Event) -> None:
    """Complete the submits of all groups whose sweep has changed in the file.

    Say which fields and limits that were set during the run it has replaced.
    """
    state = submission.state
    if state.replaced_limits:
        names = ", ".join(f"limits.{name}" for name in state.replaced_limits)
        state.replaced_limits = {}
        state.out.append(Log(message=f"{_REPLACED}: {names}", level="warning"))
    for group_state in state.table.groups.values():
        if group_state.past.replaced:
            names = ", ".join(group_state.past.replaced)
            group_state.past.replaced = {}
            message = f"{group_state.group.name}: {_REPLACED}: {names}"
            state.out.append(Log(message=message, level="warning"))
        before, group_state.past.before = group_state.past.before, None
        if before is None or group_state.group.name not in state.ensemble.groups:
            continue
        if group_state.past.known or group_state.past.unclear:
            _complete(submission, group_state, before, event)
            _name_cancelled(state, group_state.group.name)
        if (group_state.taken or group_state.gone) and group_state.backlog:
            number = group_state.backlog
            jobs = "1 job of the changed sweep waits" if number == 1 else f"{number} jobs of the "
            jobs += "" if number == 1 else "changed sweep wait"
            message = f"{group_state.group.name}: {jobs} for a rule with 'submit-next'"
            state.out.append(Log(message=message))


def _name_cancelled(state: State, group: str) -> None:
    """Say which jobs of an extended group do not run, because the run had cancelled them."""
    names = [
        name
        for name, index in state.table.lost.items()
        if index.record.job.group == group
        and index.record.outcome == "cancelled"
        and not index.record.cancelled_by_others
    ]
    if names:
        jobs = "1 job was" if len(names) == 1 else f"{len(names)} jobs were"
        shown = " ".join(names[:_NAMED]) + " …" * (len(names) > _NAMED)
        message = (
            f"{group}: {jobs} cancelled earlier and not added again\n  hint: "
            f"'ensemble retry RUN {shown}' runs such jobs"
        )
        state.out.append(Log(message=message, level="warning"))


def _complete(
    submission: Submitter, group_state: GroupState, before: JobGroup, event: Event
) -> None:
    state, name = submission.state, group_state.group.name
    after = state.ensemble.groups[name]
    outside = _outside(state, group_state, before)
    ran = outside.total()
    gone: Counter[tuple[object, ...]] = Counter()
    if pairs(before, after) is None:
        group_state.past.outside = dict(outside)
        was, now = ", ".join(before.names) or "none", ", ".join(after.names) or "none"
        _warn(state, name, f"its parameters were {was}, and are {now} now", after.names)
        return
    for past in [*group_state.past.known.values()]:
        try:
            gone += _complete_submit(submission, group_state, before, past, outside, event)
        except EnsembleError as error:
            state.error(f"cannot complete the earlier submit of {name} by {past.rule}: {error}")
    ran -= outside.total()
    if ran:
        jobs = "1 job with values that the file has now" if ran == 1 else f"{ran} jobs with values "
        jobs += " was" if ran == 1 else "that the file has now were"
        state.out.append(Log(message=f"{name}: {jobs} submitted before: not repeated"))
    # Only later changes of the file can give these jobs their values back.
    group_state.past.outside = dict(+(outside + gone))
    if gone:
        removed = gone.total()
        jobs = "1 job" if removed == 1 else f"{removed} jobs"
        message = f"{name}: the file no longer has the values of {jobs}, which stay as they are"
        state.out.append(Log(message=message, level="warning"))
    if group_state.past.unclear:
        found = pairs(before, after) or []
        new = sum(len(_added(one, other, Counter())[0]) for one, other in found)
        if new:
            number = group_state.past.unclear
            _warn(
                state,
                name,
                f"{number} earlier submit{'s' * (number > 1)} cannot be completed with the new "
                "values, because functions, other actions or changed rules chose the jobs",
                after.names,
            )


def _outside(
    state: State, group_state: GroupState, before: JobGroup
) -> Counter[tuple[object, ...]]:
    """Return the jobs that no combination of the file stood for before it changed.

    A request is counted with the group as it was then, ``before`` the change.
    """
    past = group_state.past
    outside: Counter[tuple[object, ...]] = Counter(past.outside)
    past.outside = {}
    for label, each in [*past.known.items()]:
        if each.rule is None:
            del past.known[label]
            source = state.ensemble.binder.group(before, each.fields)
            for entry in (source, *source.more):
                for key in keys(entry):
                    outside[key] += each.times * entry.count
    return outside


def _warn(state: State, name: str, why: str, parameters: Sequence[str]) -> None:
    given = " ".join(f"--set {each}=VALUE" for each in parameters)
    message = (
        f"{name}: the sweep has changed, and no jobs are added: {why}\n  hint: "
        f"'ensemble submit RUN {name} {given}' submits further jobs"
    )
    state.out.append(Log(message=message.replace("  submits", " submits"), level="warning"))


def _complete_submit(
    submission: Submitter,
    group_state: GroupState,
    before: JobGroup,
    past: PastSubmit,
    outside: Counter[tuple[object, ...]],
    event: Event,
) -> Counter[tuple[object, ...]]:
    """Submit what a past submit would have had with the new values.

    Return its jobs whose values the file no longer has.
    """
    state, binder = submission.state, submission.state.ensemble.binder
    fields, name = past.fields, group_state.group.name
    was, source = before, state.ensemble.groups[name]
    if same_sweep(group_state.group, source):
        source = group_state.group  # with the fields that were set during the run
    if fields:
        was, source = binder.group(was, fields), binder.group(source, fields)
    removed: Counter[tuple[object, ...]] = Counter()
    if source.missing or source.asked:
        return removed
    for _ in range(past.times):
        jobs: list[Job] = []
        entries: list[JobGroup] = []
        for one, entry in pairs(was, source) or ():
            new, left = _added(one, entry, outside)
            removed += left
            if entry is None:
                continue
            for chosen, count in new:
                numbers = _numbers(state, source, entry, chosen, count)
                for replica in numbers:
                    jobs.append(entry.job(group_state.next_index + len(jobs), chosen, replica))
                    entries.append(entry)
        if not jobs:
            continue
        group_state.next_index += len(jobs)
        state.sources[jobs[0].id] = entries
        message = f"{_shown(jobs)}: added to the earlier submit of {name}, as the file says now"
        state.out.append(Log(rule=past.rule, firing=past.firing, message=message))
        link = chain_limit.extend(state, past.rule or "", None)
        origin = Origin(None, past.firing, link, Match(event), {})  # type: ignore[arg-type]
        decision = Submit(rule=past.rule, firing=past.firing, group=name, jobs=tuple(jobs))
        submission.submit(origin, decision)
    return removed


def _added(
    before: JobGroup | None, after: JobGroup | None, had: Counter[tuple[object, ...]]
) -> tuple[list[tuple[dict[str, object], int]], Counter[tuple[object, ...]]]:
    """Return the combinations of an entry that are new, each with the number of its jobs.

    ``had`` has jobs that were submitted otherwise; those that are found are removed from it. Also
    return the earlier jobs that the changed entry no longer has, by combination.
    """
    counts: Counter[tuple[object, ...]] = Counter()
    if before is not None:
        for key in keys(before):
            counts[key] += before.count
    new: list[tuple[dict[str, object], int]] = []
    if after is None:
        return new, counts
    for key, chosen in zip(keys(after), after.combinations(), strict=True):
        known = min(counts[key], after.count) if key in counts else 0
        if known:
            counts[key] -= known
        missing = after.count - known
        if missing and key in had:
            found = min(missing, had[key])
            had[key] -= found
            missing -= found
        if missing:
            new.append((chosen, missing))
    return new, +counts


def _numbers(
    state: State,
    source: JobGroup,
    entry: JobGroup,
    chosen: Mapping[str, object],
    count: int,
) -> Sequence[int]:
    """Return the replica numbers of new jobs of a combination."""
    replicas = replicas_of(state, source)
    if replicas is not None:
        return replicas.claim_free(chosen, count)
    return range(entry.count - count, entry.count)


def _shown(jobs: Sequence[Job]) -> str:
    named = [
        ", ".join(f"{name}={value}" for name, value in job.parameters.items()) or job.id
        for job in jobs[:_NAMED]
    ]
    more = "; …" if len(jobs) > _NAMED else ""
    count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    return f"{count} ({'; '.join(named)}{more})"
