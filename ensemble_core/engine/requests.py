"""Carries out requests: actions that a user requests from a live run, such as ``submit``.

Callers first check a request with :func:`refusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from ensemble_core.engine import chain_limit
from ensemble_core.engine.action_decisions import EngineFiring
from ensemble_core.engine.at_once import AT_ONCE
from ensemble_core.engine.decision_effects import Effects, no_such_limit
from ensemble_core.engine.firing_records import Match, Origin, Step, Steps
from ensemble_core.engine.job_record import IndexRecord
from ensemble_core.engine.retries import chosen, no_such_job, reopen
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError, UsageError, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.decisions import Decision, Log, SetLimits, Submit
from ensemble_core.model.events import Event, Requested
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.placeholders import placeholders
from ensemble_core.quick_dataclass import dataclass

#: Actions that users can request.
ACTIONS = ("submit", "cancel", "retry", "set", "enable", "disable")
#: The id of an attempt, or of a job without the number of an attempt.
_JOB = late_pattern(
    r"(?P<group>.+)\.(?P<index>0|[1-9][0-9]{0,15})(?:-(?P<attempt>[1-9][0-9]{0,15}))?"
)


@dataclass(slots=True, eq=False)
class _RequestOrigin(Origin):
    """Origin of decisions that a user requested."""

    by: str

    @property
    def rule(self) -> str:
        return f"request of {self.by}"

    @property
    def decision_fields(self) -> dict[str, Any]:
        return {}


def refusal(state: State, action: Mapping[str, Any]) -> EnsembleError | None:
    """Return the reason why a request is not possible now, or ``None`` if it is possible."""
    name = action.get("name")
    if name not in ACTIONS:
        return UsageError(
            f"the action {name!r} cannot be requested from a run",
            hint=f"use one of {', '.join(ACTIONS)}",
            code="bad-action",
        )
    if name == "cancel" and "jobs" in action:
        return _no_cancel(state, action["jobs"])
    if name == "retry":
        try:
            chosen(state, action)
        except EnsembleError as error:
            return error
        return None
    if name == "set" and "limits" in action:
        return _no_limits(state, action["limits"])
    label, rules = action.get("label"), action.get("rules", ())
    if label is not None and label not in state.table.groups:
        return _no_such(
            "the run has no job group", label, list(state.table.groups), "no-such-group"
        )
    for rule in (rules,) if isinstance(rules, str) else rules:
        known = [*state.rules.states, *state.rules.instances]
        if rule not in known:
            return _no_such("the run has no rule", rule, known, "no-such-rule")
    fixed = _no_fields(state, action)
    if fixed is not None:
        return fixed
    try:
        _check_parameters(state, action)
        _check_names(state, action)
        state.ensemble.binder.action(action)
    except EnsembleError as error:
        return UsageError(error.what, cause=error.cause, hint=error.hint, code=error.code)
    return None


def _no_such(what: str, name: object, known: list[str], code: str) -> UsageError:
    alike = [each for each in known if each.lower() == str(name).lower()]
    listed = f"known: {', '.join(known) or 'none'}"
    hint = did_you_mean(alike[0] if alike else str(name), known, listed, cutoff=0.5)
    return UsageError(f"{what} {name!r}", hint=hint, code=code)


def _no_cancel(state: State, jobs: object) -> UsageError | None:
    """Return the reason why these jobs cannot be cancelled, or ``None``."""
    if not isinstance(jobs, list) or not jobs:
        return UsageError("'jobs' is not a list of jobs", hint="name jobs", code="bad-action")
    for job in jobs:
        found = _JOB.fullmatch(str(job))
        group_state = None if found is None else state.table.groups.get(found["group"])
        if found is None or group_state is None or int(found["index"]) >= group_state.next_index:
            return no_such_job(state, str(job))
        name, attempt = f"{found['group']}.{found['index']}", int(found["attempt"] or 0)
        last = _last_attempt(state, name)
        if last is not None and attempt > last:
            hint = f"the newest attempt of {name} is {name}-{last}" if last else f"name {name}"
            return UsageError(f"the run has no job {job!r}", hint=hint, code="no-such-job")
        if _newest(state, str(job)) is None:
            hint = "'ensemble jobs' shows the jobs that are not over"
            over = name if last is None else job
            return UsageError(f"{over} is over already", hint=hint, code="job-is-over")
    return None


#: Limits that the controller applies from its start, so that only a resume can change them.
_OF_CONTROLLER = ("wall", "stop", "output", "strict")
#: Keys of ``retry`` that only the file can change.
_OF_FILE = ("when", "with")


def _no_limits(state: State, limits: object) -> UsageError | None:
    """Return the reason why these limits cannot change now, or ``None``."""
    groups = [each.group for each in state.table.groups.values()]
    fixed = [each for each in _OF_CONTROLLER if isinstance(limits, Mapping) and each in limits]
    if fixed:
        return UsageError(
            f"limits.{fixed[0]} of a live run cannot change",
            cause="the run's controller applies it from its start",
            hint=f"'ensemble stop RUN', then 'ensemble resume RUN --set limits.{fixed[0]}=VALUE'",
            code="bad-override",
        )
    try:
        state.ensemble.binder.limits(limits, groups)  # type: ignore[arg-type]
    except EnsembleError as error:
        return UsageError(error.what, cause=error.cause, hint=error.hint, code=error.code)
    return None


def _no_fields(state: State, action: Mapping[str, Any]) -> UsageError | None:
    """Return the reason why a group's fields cannot be set now, or ``None``."""
    fields = action.get("with")
    if action.get("name") != "set" or not isinstance(fields, Mapping):
        return None
    retry = fields.get("retry")
    fixed = [each for each in _OF_FILE if isinstance(retry, Mapping) and each in retry]
    if fixed:
        return UsageError(
            f"retry.{fixed[0]} of a live run cannot change",
            cause="times, wait and continue can; the others are checked with the file",
            hint="change the file, then 'ensemble stop RUN' and 'ensemble resume RUN "
            "--accept-changes'; or retry failed jobs with other fields: 'ensemble retry RUN JOB "
            "--set FIELD=VALUE'",
            code="bad-override",
        )
    uses = fields.get("uses")
    for name in (uses,) if isinstance(uses, str) else uses or ():
        error = no_such_limit(state, name)
        if error is not None:
            return error
    return None


def _newest(state: State, job: str) -> str | None:
    """Return the id of the attempt that a job's id means: without a number, of the newest.

    Return ``None`` if the job, or the attempt, is over.
    """
    table = state.table
    record = table.records.get(job)
    if job in state.attempts or (record is not None and record.outcome is None):
        return job
    if "-" in job.rpartition(".")[2]:
        return None
    of_jobs = ((each, record.job) for each, record in table.records.items() if not record.outcome)
    coming = ((each, index.record.job) for each, index in state.attempts.items())
    for each, one in chain(of_jobs, coming):
        if f"{one.group}.{one.index}" == job:
            return each
    return None


def _last_attempt(state: State, name: str) -> int | None:
    """Return the number of a job's newest attempt, or ``None`` if it is done: it is not kept."""
    if name in state.table.lost:
        return state.table.lost[name].record.job.attempt
    of_jobs = ((one.job, one.job.attempt) for one in state.table.records.values())
    coming = ((one.record.job, one.record.job.attempt + 1) for one in state.attempts.values())
    attempts = (
        number for job, number in chain(of_jobs, coming) if f"{job.group}.{job.index}" == name
    )
    return max(attempts, default=None)


def _check_parameters(state: State, action: Mapping[str, Any]) -> None:
    """Reject a submit without values for a parameter that is null, or that a function computes.

    Only rules can call functions.
    """
    if action.get("name") != "submit":
        return
    label, given = action.get("label"), (action.get("with") or {}).get("parameters") or {}
    for name, group_state in state.table.groups.items():
        if label not in (None, name):
            continue
        unset = [each for each in group_state.group.missing if each not in given]
        lacking = [each for each in group_state.group.asked if each in unset]
        if unset and not lacking:
            raise UsageError(
                f"the parameter {unset[0]!r} of {name!r} is null",
                hint=f"set its value: --set {unset[0]}=VALUE",
                code="no-value",
            )
        if lacking:
            raise UsageError(
                f"the parameter {lacking[0]!r} of {name!r} is computed by a function, which a "
                "request cannot call",
                hint=f"set its value: {lacking[0]}=VALUE",
                code="no-value",
            )


def _check_names(state: State, action: Mapping[str, Any]) -> None:
    """Raise :class:`EnsembleError` if a submit sets a parameter that the group does not have."""
    group_state = state.table.groups.get(str(action.get("label")))
    if action.get("name") != "submit" or group_state is None:
        return
    group = group_state.group
    for name in (action.get("with") or {}).get("parameters") or {}:
        if name in group.points:
            raise UsageError(
                f"a request cannot change the parameter {name!r} of {group.name!r}, because its "
                "values come from the group's 'points'",
                hint="edit 'points' in the file",
                code="bad-value",
            )
        if name not in group.parameters:
            what = f"the job group {group.name!r} has no parameter"
            raise _no_such(what, name, [*group.parameters], "no-such-parameter")


def check_parameters(state: State, action: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` if a change removes the last placeholder of a parameter.

    Without a placeholder, jobs with different values would be identical.
    """
    given = action.get("with") or {}
    fields = {key: given[key] for key in (*_TEXTS, "parameters", "points") if key in given}
    group_state = state.table.groups.get(str(action.get("label")))
    if group_state is not None and not fields.keys().isdisjoint(_TEXTS):
        group = group_state.group
        changed = state.ensemble.binder.group(group, fields)
        used, left = _placeholders(group), _placeholders(changed)
        for parameter in changed.names:
            if parameter in used and parameter not in left:
                raise UsageError(
                    f"the parameter {parameter!r} of {group.name!r} would no longer be used, so "
                    "jobs with different values would be identical",
                    hint=f"write {{{parameter}}} in the command, workdir, environment, stdout or "
                    "stderr",
                    code="unused-parameter",
                )


#: Fields of a group in which placeholders make its jobs differ.
_TEXTS = ("command", "workdir", "environment", "stdout", "stderr")


def _placeholders(group: JobGroup) -> set[str]:
    """Return the placeholders in a group's texts."""
    texts: list[str] = []
    for entry in (group, *group.more):
        texts += [*entry.command, *entry.environment.values()]
        texts += [text for text in (entry.workdir, entry.stdout, entry.stderr) if text]
    return {one.name for text in texts for one in placeholders(text)}


def carry_out(
    effects: Effects, event: Requested, settle: Callable[[IndexRecord, Event], Steps]
) -> list[Step]:
    """Carry out a request, and return the steps that follow. If it fails, report why.

    ``settle`` begins the attempt for which an index waits.
    """
    state = effects.state
    link = chain_limit.extend(state, f"request of {event.by}", None)
    # A request has no rule. Calls and resizes, which need a firing, are not in ACTIONS.
    origin = _RequestOrigin(None, 0, link, Match(event), {}, event.by)  # type: ignore[arg-type]
    state.link = state.deepest = link
    before = set(state.held())
    refused = refusal(state, event.action)
    steps: list[Step] = []
    try:
        if refused is not None:
            raise refused
        if event.action["name"] == "retry":
            for index in reopen(effects.submission, event.action):
                steps += settle(index, event) or ()
            _report_held(state, [job for job in state.held() if job not in before])
            return steps
        for decision in _decisions(state, EngineFiring(state, origin), event.action):
            effects.apply(origin, decision)
            if state.ended is not None:
                return steps
            if isinstance(decision, SetLimits):
                _report_unused(state, decision)
        _report_held(state, [job for job in state.held() if job not in before])
    except EnsembleError as error:
        # The user who made the request gets this error. It does not count as an error of the run.
        message = f"request {event.action.get('name')!r} by {event.by} failed: {error}"
        state.out.append(Log(message=message, level="warning"))
    return steps


def _decisions(state: State, firing: EngineFiring, action: Mapping[str, Any]) -> Iterable[Decision]:
    if action.get("name") == "cancel" and "jobs" in action:
        named = (_newest(state, str(job)) for job in action["jobs"])
        return [firing.cancel([job for job in named if job is not None])]
    if action.get("name") == "set" and "limits" in action:
        return [SetLimits(limits=action["limits"])]
    return firing.perform(state.ensemble.binder.action(action))


def _report_unused(state: State, decision: SetLimits) -> None:
    """Tell the user which new shared limits no group uses yet."""
    given = decision.limits.get("at_once")
    used = {name for each in state.table.groups.values() for name in each.group.uses}
    for name in given if isinstance(given, Mapping) else ():
        if name != "jobs" and name not in used:
            message = (
                f"no job group uses the limit {name!r} yet: 'ensemble set RUN GROUP uses={name}'"
            )
            state.out.append(Log(message=message))


#: How many held jobs are named in a report to the user.
_NAMED = 5


def _report_held(state: State, jobs: Sequence[str]) -> None:
    """Tell the user which jobs of a request are accepted but not submitted yet, and why."""
    by_group: dict[str, list[Job]] = {}
    for job in jobs:
        record = state.table.records[job]
        by_group.setdefault(record.job.group, []).append(record.job)
    for name, held in by_group.items():
        if not any(isinstance(one, Submit) and one.group == name for one in state.out):
            # The request had an effect, although no job goes to the queue now.
            state.out.append(Submit(group=name, jobs=()))
        shown = [_described(job) for job in held[:_NAMED]]
        if len(held) > _NAMED:
            shown.append(f"... ({len(held)} jobs)")
        verb = "is" if len(held) == 1 else "are"
        reason = _reason(state, held[0])
        state.out.append(Log(message=f"{', '.join(shown)} {verb} held by {reason}"))


def _described(job: Job) -> str:
    values = ", ".join(f"{name}={value}" for name, value in job.parameters.items())
    return f"{job.id} ({values})" if values else job.id


def _reason(state: State, job: Job) -> str:
    """Return what holds a job: ``at_once: 1``, a limit, or a look-up in earlier runs."""
    table, group_state = state.table, state.table.groups[job.group]
    if job.id in table.looking:
        return "a look-up in earlier runs (reuse)"
    if job.id not in group_state.held:
        return f"limits.submits_per_second: {state.ensemble.limits.submits_per_second:g}"
    what = table.obstacle(group_state, state.now)
    if what is None or what.startswith(AT_ONCE) or table.budget is None:
        return table.slots.described(group_state.group, what or AT_ONCE)
    return table.budget.described(what, state.now)
