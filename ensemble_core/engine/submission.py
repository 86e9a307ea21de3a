"""Submission: how the jobs of a submit, the next attempts of a retry and held jobs are handed on,
and how they are cancelled.

Works upon the state for ``effects``, which gives each decision its effect, and for ``endings``,
which finds the place for a further job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ensemble_core.engine.attempts import coming, next_attempt
from ensemble_core.engine.job_record import Index, JobRecord
from ensemble_core.engine.occasion import Origin
from ensemble_core.engine.rate_limit import HeldJob
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Cancel, Retry, Submit
from ensemble_core.model.jobs import Job, JobGroup

__all__ = ["Submission", "expand"]


def _batches(held: Iterable[HeldJob]) -> list[Submit]:
    """Submits of these jobs, those of one group and firing together."""
    batches: dict[tuple[str, str | None, int], list[Job]] = {}
    for job, rule, firing in held:
        batches.setdefault((job.group, rule, firing), []).append(job)
    return [
        Submit(group=group, rule=rule, firing=firing, jobs=tuple(jobs))
        for (group, rule, firing), jobs in batches.items()
    ]


def expand(state: State, group: str, overrides: Mapping[str, Any]) -> tuple[Job, ...]:
    """The jobs of one submit of this group."""
    found = state.table.groups.get(group)
    if found is None:
        raise EnsembleError(f"there is no job group {group!r}", code="no-such-group")
    source = state.ensemble.binder.group(found.group, overrides) if overrides else found.group
    if source.missing:
        raise EnsembleError(
            f"the parameter {source.missing[0]!r} of {group!r} is null, and this submit gives "
            "no value for it: nothing is submitted",
            hint=f"write 'with: {{parameters: {{{source.missing[0]}: …}}}}' beside the label",
            code="no-value",
        )
    jobs = tuple(source.jobs(found.next_index))
    found.next_index += len(jobs)
    if jobs:
        entries = (source, *source.more)
        state.sources[jobs[0].id] = [one for one in entries for _ in range(one.own_size)]
    return jobs


class Submission:
    """Hands jobs on within ``limits.jobs``, ``at_once`` and the rate limit, and cancels those that
    wait for one of these."""

    def __init__(self, state: State) -> None:
        self.state = state

    def submit(self, origin: Origin, decision: Submit) -> None:
        """Take the jobs of a submit, and hand on those that may go now."""
        state, jobs = self.state, decision.jobs
        if jobs and jobs[0].id in state.table.records:
            raise EnsembleError(
                f"{jobs[0].id} is submitted already",
                hint="a submit may be handed on once; ask the firing for another",
                code="submitted-twice",
            )
        if not self._within_limit(decision.group, len(jobs), origin):
            return
        link = state.via or origin.link
        # A plan of a plugin may have made a submit of its own.
        unknown: Sequence[JobGroup | None] = [None] * len(jobs)
        sources = state.sources.get(jobs[0].id, unknown) if jobs else unknown
        for job, source in zip(jobs, sources, strict=True):
            mark = decision.rule, decision.firing
            state.table.add(job, Index(source=source), state.now, link, mark)
        if state.table.groups[decision.group].group.at_once is None:
            jobs = state.rate_limit.admit(jobs, decision.rule, decision.firing, state.now)
            state.out.append(replace(decision, jobs=jobs) if jobs != decision.jobs else decision)
            self._await_release()
        else:
            self.hand_over(decision.group)

    def _within_limit(self, group: str, more: int, origin: Origin | None) -> bool:
        """True if so many more jobs stay within ``limits.jobs``; told once if not."""
        state = self.state
        limit = state.ensemble.limits.jobs
        if limit is None or state.table.submitted + more <= limit:
            return True
        if not state.limit_told:
            state.limit_told = True
            state.error(
                f"{group}: {more} more jobs would pass limits.jobs "
                f"({limit}, {state.table.submitted} submitted so far): not submitted\n"
                f"  hint: raise limits.jobs if this many are wanted",
                origin,
            )
        return False

    def hand_over(self, group: str) -> None:
        """Submit the jobs that ``at_once`` held and for which there is a place now."""
        state = self.state
        standing = state.table.groups[group]
        if not standing.held:
            return
        for decision in _batches(state.table.free(standing, state.now)):
            mark = decision.rule, decision.firing
            jobs = state.rate_limit.admit(decision.jobs, *mark, state.now)
            if jobs:
                state.out.append(replace(decision, jobs=jobs))
        self._await_release()

    def retry(self, index: Index, decision: Retry) -> None:
        """An attempt is to be followed by another, unless that is decided already."""
        if index.over or index.retry is not None or index.record.job.id != decision.job:
            return
        index.retry = decision
        index.record.concern = True
        self.state.attempts[coming(index)] = index
        self.state.out.append(decision)

    def begin_attempt(self, index: Index) -> bool:
        """Submit the next attempt of an index, now or when its wait is over; false if it cannot
        be."""
        state, decision, record = self.state, index.retry, index.record
        assert decision is not None
        if decision.wait > 0 and index.waited != record.job.attempt:
            index.waited, index.waits = record.job.attempt, True
            state.timers.once(state.now + decision.wait, "attempt", coming(index))
            return True
        index.retry = None
        state.attempts.pop(coming(index), None)
        if not self._within_limit(record.job.group, 1, None):
            return False
        try:
            job, index.source = next_attempt(index, decision, state.ensemble.binder)
        except EnsembleError as error:
            state.error(f"{record.job.id} is not submitted again: {error}")
            return False
        index.result = NOTHING
        if not decision.resume:
            index.series = index.printed = None
        mark = decision.rule, decision.firing
        state.table.add(job, index, state.now, None, mark)
        if state.table.groups[job.group].group.at_once is None:
            free = state.rate_limit.admit((job,), *mark, state.now)
            self.submit_each((each, *mark) for each in free)
            self._await_release()
        else:
            self.hand_over(job.group)
        return True

    def _await_release(self) -> None:
        state = self.state
        due = state.rate_limit.due(state.now)
        if due is not None:
            state.timers.once(due, "pace", "")

    def release(self) -> None:
        """Submit the jobs that the rate limit held and whose turn has come."""
        self.submit_each(self.state.rate_limit.release(self.state.now))
        self._await_release()

    def submit_each(self, held: Iterable[HeldJob]) -> None:
        """Hand these jobs on, those of one group and firing together."""
        self.state.out += _batches(held)

    def cancel(self, origin: Origin, decision: Cancel) -> Cancel:
        """Held jobs are cancelled here, for no executor knows them yet; the others by theirs."""
        dropped = self._drop_attempts(decision.jobs)
        records = self.forget_held(decision.jobs)
        if not records and not dropped:
            return decision
        self.state.look_for_end = True
        self.state.withdrawn += [(record, origin.link) for record in records.values()]
        known = {*records, *dropped}
        return replace(decision, jobs=tuple(job for job in decision.jobs if job not in known))

    def forget_held(self, jobs: Collection[str]) -> dict[str, JobRecord]:
        """Those of these jobs that ``at_once`` or the rate limit holds are over; their records by
        id."""
        table = self.state.table
        groups, known = table.groups, table.records
        held = [job for job in jobs if job in known and job in groups[known[job].job.group].held]
        records = {job: known[job] for job in (*held, *self.state.rate_limit.drop(jobs))}
        for record in records.values():
            table.forget(record)
        return records

    def _drop_attempts(self, jobs: Collection[str]) -> list[str]:
        """Those of these jobs that are retries to come are not submitted: their indices are lost.
        Also where one of these jobs is the attempt before."""
        state = self.state
        dropped = []
        for job in jobs:
            record = state.table.records.get(job)
            index = state.attempts.get(job) if record is None else record.index
            if index is None or index.retry is None:
                continue
            del state.attempts[coming(index)]
            state.timers.stop("attempt", coming(index))
            index.retry, index.waits, index.dropped = None, False, True
            state.dropped.append(index)
            if record is None:
                dropped.append(job)
        return dropped

    def cancelling(self, jobs: Iterable[str]) -> None:
        """Remember that the executor is told to cancel these."""
        for job in jobs:
            record = self.state.table.records.get(job)
            if record is not None:
                record.cancelling, record.refused = True, False
