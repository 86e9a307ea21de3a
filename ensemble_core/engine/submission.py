"""Decides which new jobs and retries go to the executor now, and which are held.

A job is held as long as a limit, ``at_once`` or the rate limit does not allow it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ensemble_core.engine import stored_job_data
from ensemble_core.engine.at_once import AT_ONCE
from ensemble_core.engine.firing_records import Origin
from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.job_events import end_unsubmitted
from ensemble_core.engine.job_record import IndexRecord, JobRecord
from ensemble_core.engine.rate_limit import HeldJob
from ensemble_core.engine.replicas import Replicas
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Avoid, Cancel, Log, LookUp, Retry, Submit
from ensemble_core.model.ensemble import Binder
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import replace


def next_attempt_id(index: IndexRecord) -> str:
    """Return the id of a job's next attempt: ``GROUP.INDEX-ATTEMPT``."""
    job = index.record.job
    return f"{job.group}.{job.index}-{job.attempt + 1}"


def next_attempt(index: IndexRecord, retry: Retry, binder: Binder) -> tuple[Job, JobGroup]:
    """Return the next attempt of a job, with the changes of ``retry``, and its group.

    Here a retry's changes are merged: parameters with the job's, other fields by ``binder.group``
    (``change_group`` in ``config.group_changes``) with those of its group as the previous attempt
    had it. ``retries`` and ``action_decisions`` fill in formulas before.

    Raises :class:`EnsembleError` if the changed fields are invalid.
    """
    job, source = index.record.job, index.record.source
    if source is None:
        raise EnsembleError("a plugin built this job without a job group", code="no-source")
    fields = {**retry.fields}
    parameters = {**job.parameters, **(fields.pop("parameters", None) or {})}
    if fields:
        source = binder.group(replace(source, more=()) if source.more else source, fields)
    unknown = parameters.keys() - job.parameters.keys()
    if unknown:
        raise EnsembleError(
            f"{job.group!r} has no parameter {', '.join(sorted(unknown))}", code="no-such-parameter"
        )
    return source.job(job.index, parameters, job.replica, job.attempt + 1), source


def _batches(held: Iterable[HeldJob]) -> list[Submit]:
    """Combine jobs into submits, one for each group and firing."""
    batches: dict[tuple[str, str | None, int], list[Job]] = {}
    for job, rule, firing in held:
        batches.setdefault((job.group, rule, firing), []).append(job)
    return [
        Submit(group=group, rule=rule, firing=firing, jobs=tuple(jobs))
        for (group, rule, firing), jobs in batches.items()
    ]


def source_of(state: State, group: str, overrides: Mapping[str, Any]) -> JobGroup:
    """Return the job group of a submit, with some fields overridden."""
    found = state.table.groups.get(group)
    if found is None:
        raise EnsembleError(f"there is no job group {group!r}", code="no-such-group")
    return state.ensemble.binder.group(found.group, overrides) if overrides else found.group


def expand(state: State, source: JobGroup) -> tuple[Job, ...]:
    """Return the jobs of one submit of this group."""
    group, found = source.name, state.table.groups[source.name]
    if source.missing:
        raise EnsembleError(
            f"the parameter {source.missing[0]!r} of {group!r} is null, and the action gives it "
            "no value: nothing was submitted",
            hint=f"add 'with: {{parameters: {{{source.missing[0]}: …}}}}' to the action",
            code="no-value",
        )
    numbers = replicas_of(state, source)
    number = None if numbers is None else numbers.claim_free
    jobs = tuple(source.jobs(found.next_index, number))
    found.next_index += len(jobs)
    if jobs:
        entries = (source, *source.more)
        state.sources[jobs[0].id] = [one for one in entries for _ in range(one.own_size)]
    return jobs


def replicas_of(state: State, source: JobGroup) -> Replicas | None:
    """Return the replicas that a group has submitted, or ``None`` if it does not number them."""
    found = state.table.groups[source.name]
    if found.replicas is None and (
        source.replicated or any(entry.replicated for entry in source.more)
    ):
        stored_job_data.remember(state.table, (source.name,))
    return found.replicas


#: How to keep the files of jobs apart.
_APART = "give each job its own folder, such as workdir: 'runs/{run}/{group}/{index}'"


class Submitter:
    """Submits jobs as far as limits, ``at_once`` and the rate limit allow, and cancels jobs."""

    def __init__(self, state: State) -> None:
        self.state = state

    def submit(self, origin: Origin, decision: Submit) -> None:
        """Add the jobs of a submit, and hand over those that may be submitted now."""
        state, jobs = self.state, decision.jobs
        if jobs and jobs[0].id in state.table.records:
            raise EnsembleError(
                f"{jobs[0].id} is already submitted",
                hint="yield each result of firing.submit only once; for more jobs, call it again",
                code="submitted-twice",
            )
        sources = self._sources(jobs)
        self._check_shared_files(zip(jobs, sources, strict=True), decision.group, decision.rule)
        link = state.via or origin.link
        group_state = state.table.groups[decision.group]
        submitter = decision.rule, decision.firing
        looks = self._needs_lookup(group_state)
        held = not looks and self._must_hold(group_state, jobs)
        cause = "look up" if looks else "hold" if held else "submit"
        free = jobs
        if cause == "submit":
            free = state.rate_limit.admit(jobs, *submitter, state.now)
        for position, (job, source) in enumerate(zip(jobs, sources, strict=True)):
            way = cause if position < len(free) else "pace"
            state.table.add(job, source, state.now, link, submitter, cause=way)
        if looks:
            self._look_up(decision.group, submitter, jobs)
            return
        if held:
            self.hand_over(decision.group, submitter, len(jobs))
            return
        self._send(decision if free == decision.jobs else replace(decision, jobs=free))
        self._await_release()

    def _sources(self, jobs: Sequence[Job]) -> Sequence[JobGroup | None]:
        """Return the groups of the jobs of a submit.

        If the plan of a plugin has built the submit, they are unknown.
        """
        unknown: Sequence[JobGroup | None] = [None] * len(jobs)
        return self.state.sources.get(jobs[0].id, unknown) if jobs else unknown

    def _check_shared_files(
        self, jobs: Iterable[tuple[Job, JobGroup | None]], group: str, rule: str | None
    ) -> None:
        """Report the first of these jobs that would overwrite files of an earlier job of the run.

        With ``limits.strict``, raise :class:`EnsembleError`, so that none of them is submitted.
        Otherwise warn, once for each group.
        """
        state, strict = self.state, self.state.ensemble.limits.strict
        what = state.shared_files.claim(jobs, strict=strict)
        if what is None:
            return
        if strict:
            raise EnsembleError(f"{what}: nothing was submitted", hint=_APART, code="shared-files")
        if group not in state.shared_files.reported:
            state.shared_files.reported[group] = None
            message = f"{what}\n  hint: {_APART}"
            state.out.append(Log(rule=rule, message=message, level="warning"))

    def _needs_lookup(self, group: GroupState) -> bool:
        """Return True if jobs of the group are first looked up in earlier runs."""
        return bool(self.state.ensemble.reuse) and group.group.reuse

    def _look_up(self, group: str, submitter: tuple[str | None, int], jobs: Sequence[Job]) -> None:
        rule, firing = submitter
        if jobs:
            self.state.out.append(LookUp(group=group, rule=rule, firing=firing, jobs=tuple(jobs)))

    def repeat_look_ups(self) -> None:
        """Repeat look-ups that were not answered."""
        asked: dict[tuple[str, str | None, int], list[Job]] = {}
        for record in self.state.table.looking.values():
            asked.setdefault((record.job.group, *record.origin), []).append(record.job)
        for (group, rule, firing), jobs in asked.items():
            self._look_up(group, (rule, firing), jobs)

    def looked_up(self, hits: Mapping[str, str], misses: Iterable[str]) -> None:
        """Handle the answer to a look-up: jobs in ``hits`` are reused, those in ``misses`` are
        submitted.
        """
        table = self.state.table
        for job, found in hits.items():
            table.looked_up(job, found)
        waiting: dict[str, dict[tuple[str | None, int], int]] = {}
        for job in misses:
            if job not in table.looking:
                continue  # the job was cancelled in the meantime
            record = table.looking[job]
            table.looked_up(job, None)
            counts = waiting.setdefault(record.job.group, {})
            counts[record.origin] = counts.get(record.origin, 0) + 1
        for group, counts in waiting.items():
            for submitter, count in counts.items():
                self.hand_over(group, submitter, count)

    def _must_hold(self, group: GroupState, jobs: Sequence[Job]) -> bool:
        """Return True if these jobs of a group have to be held first."""
        budget = self.state.table.budget
        if group.held or self.state.table.slots.limits(group.group):
            return True
        return budget is not None and not budget.has_room(jobs, self.state.now)

    def hand_over(
        self, group: str, submitter: tuple[str | None, int] = (None, 0), submitted: int = 0
    ) -> None:
        """Submit those held jobs of a group that have a slot now.

        If there are limits, do so for all groups.

        ``submitter`` is a rule and firing that have just submitted ``submitted`` jobs. If a limit
        holds some of these jobs, report how many.
        """
        state, table = self.state, self.state.table
        limited = table.budget is not None and bool(table.budget.limits)
        group_state = table.groups[group]
        every = limited or bool(table.slots.shared)
        if not group_state.held and not every:
            return
        rate = state.rate_limit
        cause = "submit" if rate.unlimited else "pace"
        free = (
            table.free_all(cause, state.now) if every else table.free(group_state, cause, state.now)
        )
        if free:
            state.held_at = 0  # notify rules on limit again if only held jobs are left later
        for decision in _batches(free):
            if not rate.unlimited:
                jobs = rate.admit(decision.jobs, decision.rule, decision.firing, state.now)
                for job in jobs:
                    table.move(table.records[job.id], "its turn", state.now)
                if not jobs:
                    continue
                decision = replace(decision, jobs=jobs)
            self._send(decision)
        self._await_release()
        if submitted and limited:
            self._report_held(group_state, submitter, submitted)

    def _report_held(
        self, group: GroupState, submitter: tuple[str | None, int], submitted: int
    ) -> None:
        """Notify rules and the user that a limit holds jobs of a submit."""
        state = self.state
        what, budget = state.table.obstacle(group, state.now), state.table.budget
        if what is None or what.startswith(AT_ONCE) or budget is None:
            return
        state.end_check_due = True
        state.limits_met[what] = None
        held = min(submitted, len(group.held))
        jobs = f"{held} of {submitted} jobs are" if submitted > 1 else "a job is"
        state.out.append(
            Log(
                rule=submitter[0],
                firing=submitter[1],
                level="info" if what in state.limits_reported else "warning",
                message=f"{group.group.name}: {jobs} held by {budget.described(what, state.now)}",
            )
        )
        state.limits_reported[what] = None

    def retry(self, index: IndexRecord, decision: Retry) -> None:
        """Decide to retry a job, unless this was decided already."""
        if index.over or index.retry is not None or index.record.job.id != decision.job:
            return
        index.retry = decision
        index.record.failure_rule_matched = True
        self.state.attempts[next_attempt_id(index)] = index
        self.state.out.append(decision)

    def begin_attempt(self, index: IndexRecord) -> bool:
        """Submit the next attempt of an index, now or after its wait.

        Return False if that is impossible.
        """
        state, decision, record = self.state, index.retry, index.record
        assert decision is not None
        if decision.wait > 0 and index.waited != record.job.attempt:
            index.waited, index.waits = record.job.attempt, True
            state.table.move_index(index, "waiting")
            state.timers.once(state.now + decision.wait, "attempt", next_attempt_id(index))
            return True
        index.retry = None
        state.attempts.pop(next_attempt_id(index), None)
        try:
            job, source = next_attempt(index, decision, state.ensemble.binder)
            self._check_shared_files(((job, source),), job.group, decision.rule)
        except EnsembleError as error:
            state.error(f"cannot retry {record.job.id}: {error}")
            return False
        state.table.move_index(index, "open")
        index.result = NOTHING
        index.continues = decision.resume
        if decision.resume:
            index.repeated = {**(index.repeated or {}), **(record.clocks or {})} or None
            index.before = {**(index.before or {}), **(record.columns or {})} or None
        else:
            index.forget_earlier()
        kept = index.series
        index.base = None if kept is None else {name: kept[name].copy() for name in kept}
        index.base_recent = None if index.recent is None else index.recent.copy()
        submitter = decision.rule, decision.firing
        group_state = state.table.groups[job.group]
        free: Sequence[Job] = ()
        if self._needs_lookup(group_state) and not decision.resume:
            cause = "look up"
        elif self._must_hold(group_state, (job,)):
            cause = "hold"
        else:
            free = state.rate_limit.admit((job,), *submitter, state.now)
            cause = "submit" if free else "pace"
        state.table.add(job, source, state.now, None, submitter, index=index, cause=cause)
        if cause == "look up":
            self._look_up(job.group, submitter, (job,))
        elif cause == "hold":
            self.hand_over(job.group, submitter, 1)
        else:
            if free:
                rule, firing = submitter
                self._send(Submit(group=job.group, rule=rule, firing=firing, jobs=(job,)))
            self._await_release()
        return True

    def _await_release(self) -> None:
        state = self.state
        due = state.rate_limit.due(state.now)
        if due is not None:
            state.timers.once(due, "pace", "")
            state.limits_reported["submits_per_second"] = None

    def release(self) -> None:
        """Submit the jobs whose delay by the rate limit is over."""
        state = self.state
        free: list[HeldJob] = []
        for job, rule, firing in state.rate_limit.release(state.now):
            record = state.table.records[job.id]
            state.table.move(record, "its turn", state.now)
            free.append((record.job, rule, firing))  # the file may have changed it
        self.submit_each(free)
        self._await_release()

    def submit_each(self, held: Iterable[HeldJob]) -> None:
        """Submit these jobs, with one decision for each group and firing."""
        for decision in _batches(held):
            self._send(decision)

    def _send(self, decision: Submit) -> None:
        """Hand over these jobs, which avoid the nodes that the run avoids."""
        if self.state.bad_nodes.avoided:
            decision = replace(decision, jobs=tuple(map(self._away, decision.jobs)))
        self.state.out.append(decision)

    def _away(self, job: Job) -> Job:
        nodes = tuple(dict.fromkeys((*job.avoid, *self.state.bad_nodes.avoided)))
        if nodes != job.avoid:
            job = self.state.table.records[job.id].job = replace(job, avoid=nodes)
        return job

    def avoid(self, decision: Avoid) -> None:
        """Keep jobs away from nodes, and withdraw those that wait in the queue, to submit them
        again.
        """
        state = self.state
        state.bad_nodes.avoided.update(dict.fromkeys(decision.nodes))
        jobs = decision.jobs
        for job in jobs:
            state.table.records[job].change_cancel("stop")  # it is requeued when it has ended
        state.out.append(decision)
        if jobs:
            state.out.append(Cancel(rule=decision.rule, firing=decision.firing, jobs=jobs))

    def cancel(self, origin: Origin, decision: Cancel) -> Cancel:
        """Cancel jobs: held jobs immediately, and others through the executor.

        Reused jobs end when their events arrive.
        """
        dropped = self._drop_attempts(origin, decision.jobs)
        records = self.forget_held(decision.jobs)
        reused = self.reused(decision.jobs)
        self.ask_cancel(reused)
        if not records and not dropped and not reused:
            return decision
        self.state.end_check_due = True
        for record in records.values():
            record.link = origin.link  # later firings belong to the chain of the cancel
        self.state.withdrawn += records.values()
        known = {*records, *dropped, *reused}
        return replace(decision, jobs=tuple(job for job in decision.jobs if job not in known))

    def forget_held(self, jobs: Collection[str]) -> dict[str, JobRecord]:
        """End those of these jobs that are held. Return their records by id."""
        table = self.state.table
        known = table.records
        held = [job for job in jobs if job in known and known[job].state in ("looking", "held")]
        records = {job: known[job] for job in (*held, *self.state.rate_limit.drop(jobs))}
        for record in records.values():
            end_unsubmitted(table, record)
        return records

    def reused(self, jobs: Iterable[str]) -> list[str]:
        """Return those of these jobs that are reused from an earlier run."""
        known = self.state.table.records
        return [job for job in jobs if job in known and known[job].reused is not None]

    def _drop_attempts(self, origin: Origin, jobs: Collection[str]) -> list[str]:
        """Drop pending retries of these jobs. Their indices are then lost."""
        state = self.state
        dropped = []
        for job in jobs:
            record = state.table.records.get(job)
            index = state.attempts.get(job) if record is None else record.index_record
            if index is None or index.retry is None:
                continue
            del state.attempts[next_attempt_id(index)]
            state.timers.stop("attempt", next_attempt_id(index))
            index.retry, index.waits, index.dropped = None, False, True
            state.dropped.append(index)
            if record is None:
                index.record.link = origin.link
                dropped.append(job)
        return dropped

    def ask_cancel(self, jobs: Iterable[str]) -> None:
        """Record that the executor was asked to cancel these jobs."""
        for job in jobs:
            record = self.state.table.records.get(job)
            if record is not None:
                record.change_cancel("cancel")
