"""What decisions do to the run's own state: jobs join, calls are under way, groups change, it ends.

The lowest of the engine's three parts: ``reactions.Reactions`` decides by rules what is to be done,
``engine.Engine`` turns events into occasions for that. The laws of all stand at the top of
``engine.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ensemble_core.engine.firing import EngineFiring
from ensemble_core.engine.job_table import JobRecord, JobTable, Link
from ensemble_core.engine.rate_limit import Pacer
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.rule_set import RuleBook, chain_text
from ensemble_core.engine.timers import Timers
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import MetricPath, MetricStore
from ensemble_core.model.decisions import (
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Log,
    Resize,
    SetGroup,
    Submit,
    Terminate,
    WhenBusy,
)
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.jobs import Job, JobGroup

__all__ = ["Effects", "Request", "asks_for_everything"]


class Request(NamedTuple):
    """A resize that was asked for and not answered yet; ``attempt`` counts from 1."""

    firing: EngineFiring
    delta: int
    attempt: int
    when_busy: WhenBusy


def asks_for_everything(ensemble: Ensemble) -> bool:
    """Whether a user's function or a slow action may ask for any metric."""
    return bool(ensemble.functions) or any(
        each.plan is None
        for rule in ensemble.rules
        for action in rule.actions
        for each in action.flat()
    )


class Effects:
    """The state of one run, and what decisions change in it.

    ``everything`` keeps every statistic of every variable, as is needed when a user's function may
    ask for any of them; left out, the ensemble itself says (it has functions or slow actions).
    ``shared`` says that others use the queue, so that its gauges move without us.
    """

    def __init__(
        self, ensemble: Ensemble, *, everything: bool | None = None, shared: bool = False
    ) -> None:
        if everything is None:
            everything = asks_for_everything(ensemble)
        self.ensemble = ensemble
        self.now = float("-inf")
        self.metrics = MetricStore(ensemble.groups, ensemble.statistics, everything=everything)
        self.rules = RuleBook(ensemble, self.metrics)
        self.table = JobTable(ensemble.groups, self.metrics, self.rules.index)
        self.timers = Timers()
        self.ended: Terminate | None = None
        self.lost = False
        self.errors = 0
        self.unhandled_failures = 0
        self.events = 0
        self.firings = 0
        self._shared = shared
        self._started = False
        self._beating = False
        self._look_for_end = False
        self._calls: dict[str, tuple[EngineFiring, Link, Call]] = {}
        self._via: Link | None = None
        self._requests: dict[str, Request] = {}
        self._retries: dict[str, Request] = {}
        self._serial = 0
        self._limit_told = False
        self._pacer = Pacer(ensemble.limits.submits_per_second)
        self._out: list[Decision] = []
        self._link: Link | None = None
        self._deepest: Link | None = None
        #: Held jobs that a firing cancelled, for the rules that wait for that.
        self._withdrawn: list[tuple[JobRecord, Link]] = []

    # -- what may be asked ---------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, object]:
        """The job groups by name."""
        return self.table.groups

    def group(self, name: str) -> JobGroup | None:
        """A job group as it is now; ``None`` if there is none."""
        state = self.table.groups.get(name)
        return None if state is None else state.group

    def active(self, group: str | None = None) -> list[str]:
        """Our ids of the jobs that are not over yet, oldest first."""
        records = self.table.records
        if group is None:
            return [job for job, record in records.items() if record.outcome is None]
        return [
            job
            for job, record in records.items()
            if record.job.group == group and record.outcome is None
        ]

    def knows(self, job: str) -> bool:
        """Whether this job is ours and not over yet."""
        return job in self.table.records

    def metric(self, path: str) -> float | None:
        """A metric's value now; ``None`` while there is none, or where there is no such metric."""
        parsed = self.rules.path(path)
        return None if parsed is None else self._read(parsed)

    def _read(self, path: MetricPath) -> float | None:
        if self._beating and path.variable == "pending" and path.kind == "series":
            ages = self.table.groups[path.group].ages(self.now)
            series = self.metrics.series[path.group, path.variable]
            return series.get_with(path.statistic, ages, self.now)
        if path.kind == "gauge":
            self.table.fill_gauges()
        return self.metrics.get(path, self.now)

    # -- decisions ------------------------------------------------------------------------------

    def _perform(self, firing: EngineFiring, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if self.ended is not None:
                return
            self._decide(firing, decision)

    def _decide(self, firing: EngineFiring, decision: Decision) -> None:
        """Give a decision its effect in here, and hand it on."""
        if isinstance(decision, Terminate):
            self._end(decision)
            return
        if isinstance(decision, Submit):
            self._submit(firing, decision)
            return
        if isinstance(decision, Cancel):
            decision = self._cancel(firing, decision)
            self._cancelling(decision.jobs)
        elif isinstance(decision, Call):
            link = firing.link if self._via is None else self._extend(firing.rule, self._via)
            if link.depth > self.ensemble.limits.chain:
                self._cut(firing.state, link)
                return
            self._calls[decision.call] = (firing, link, decision)
        elif isinstance(decision, Resize):
            self._requests[decision.request] = Request(
                firing, decision.delta, decision.attempt, decision.when_busy
            )
        elif isinstance(decision, SetGroup):
            state = self.table.groups[decision.group]
            state.group = self.ensemble.binder.group(state.group, decision.fields)
        elif isinstance(decision, (EnableRule, DisableRule)):
            self._out.append(decision)
            for rule in decision.rules:
                state_on = self.rules.switch(rule, isinstance(decision, EnableRule))
                if state_on is not None:
                    self._schedule(state_on, self.now)
                    self._look_at_once(state_on)
            return
        elif not isinstance(decision, Decision):
            raise TypeError(f"{decision!r} is no decision")
        self._out.append(decision)

    def _extend(self, rule: str, parent: Link | None) -> Link:
        """One more firing in a chain; a job that finished since then makes it a new one."""
        finishes = self.table.finishes
        depth = parent.depth + 1 if parent is not None and parent.finishes == finishes else 1
        return Link(rule, parent if depth > 1 else None, depth, finishes)

    def _cut(self, state: RuleState, link: Link) -> None:
        self.rules.cut(state)
        self._look_for_end = True
        self._error(
            f"rule {state.rule.id!r} is switched off: {link.depth - 1} rule firings caused one "
            f"another without any job finishing in between\n"
            f"  because: {chain_text(link.names())}\n"
            f"  hint: give one of these rules a condition or fewer repetitions, "
            f"or raise limits.chain",
        )
        self._out.append(DisableRule(rules=(state.rule.id,)))

    def _look_at_once(self, state: RuleState) -> None:
        """A rule that joined, or was switched on: its metric may have come to pass already."""
        watch = state.watch
        if watch is not None and watch not in self.rules.index.touched:
            if watch.path.kind == "gauge":
                self.table.fill_gauges()
            self.rules.index.touched.append(watch)

    def _schedule(self, state: RuleState, now: float) -> None:
        every = state.rule.trigger.every
        if every is not None:
            if state.live:
                self.timers.every(every, "interval", state.rule.id, now)
            else:
                self.timers.stop("interval", state.rule.id)

    # -- submitting and cancelling ---------------------------------------------------------------

    def new_id(self, kind: str) -> str:
        """An id for a call or a request."""
        self._serial += 1
        return f"{kind}-{self._serial}"

    def expand(self, group: str, overrides: Mapping[str, Any]) -> tuple[Job, ...]:
        """The jobs of one submit of this group."""
        state = self.table.groups.get(group)
        if state is None:
            raise EnsembleError(f"there is no job group {group!r}", code="no-such-group")
        source = self.ensemble.binder.group(state.group, overrides) if overrides else state.group
        jobs = tuple(source.jobs(state.next_index))
        state.next_index += len(jobs)
        return jobs

    def _submit(self, firing: EngineFiring, decision: Submit) -> None:
        if decision.jobs and decision.jobs[0].id in self.table.records:
            raise EnsembleError(
                f"{decision.jobs[0].id} is submitted already",
                hint="a submit may be handed on once; ask the firing for another",
                code="submitted-twice",
            )
        limit = self.ensemble.limits.jobs
        if limit is not None and self.table.submitted + len(decision.jobs) > limit:
            if not self._limit_told:
                self._limit_told = True
                self._error(
                    f"{decision.group}: {len(decision.jobs)} more jobs would pass limits.jobs "
                    f"({limit}, {self.table.submitted} submitted so far): not submitted\n"
                    f"  hint: raise limits.jobs if this many are wanted",
                    firing,
                )
            return
        self.table.add(decision.jobs, self.now, self._via or firing.link)
        now = self._pacer.pass_through(decision.jobs, decision.rule, decision.firing, self.now)
        self._out.append(replace(decision, jobs=now) if now != decision.jobs else decision)
        self._pace()

    def _pace(self) -> None:
        due = self._pacer.due(self.now)
        if due is not None:
            self.timers.once(due, "pace", "")

    def _release(self) -> None:
        """Let the held jobs go whose turn has come."""
        batch: dict[tuple[str, str | None, int], list[Job]] = {}
        for job, rule, firing in self._pacer.release(self.now):
            batch.setdefault((job.group, rule, firing), []).append(job)
        for (group, rule, firing), jobs in batch.items():
            self._out.append(Submit(group=group, rule=rule, firing=firing, jobs=tuple(jobs)))
        self._pace()

    def _cancel(self, firing: EngineFiring, decision: Cancel) -> Cancel:
        """Held jobs are cancelled here, for no executor knows them yet; the others by theirs."""
        held = self._pacer.drop(decision.jobs)
        for job in held:
            record = self.table.records[job]
            self.table.forget(record)
            self._look_for_end = True
            self._withdrawn.append((record, firing.link))
        if not held:
            return decision
        gone = set(held)
        return replace(decision, jobs=tuple(job for job in decision.jobs if job not in gone))

    def _cancelling(self, jobs: Iterable[str]) -> None:
        """Remember that the executor is told to cancel these."""
        for job in jobs:
            record = self.table.records.get(job)
            if record is not None:
                record.cancelling, record.refused = True, False

    # -- the end -------------------------------------------------------------------------------

    def _end(self, decision: Terminate) -> None:
        held = [job.id for job, _, _ in self._pacer.held]
        self._pacer.drop(held)
        for job in held:
            self.table.forget(self.table.records[job])
        if held:
            gone = set(held)
            decision = replace(
                decision, cancel=tuple(job for job in decision.cancel if job not in gone)
            )
        self._cancelling(decision.cancel)
        self.ended = decision
        self.rules.index.touched.clear()
        self._withdrawn.clear()
        self._out.append(decision)

    def _end_if_over(self) -> None:
        self._look_for_end = False
        if self.table.records or self._calls:
            return
        if (self._requests or self._retries) and self.rules.waits_for_resize():
            return
        if self.rules.waits_for_time(self.now, shared=self._shared):
            return
        self._end(
            Terminate(
                exit_code=1 if self.errors or self.unhandled_failures else 0,
                reason=self._why(),
                natural=True,
            )
        )

    def _why(self) -> str:
        reasons = []
        if self.unhandled_failures:
            jobs = "1 job" if self.unhandled_failures == 1 else f"{self.unhandled_failures} jobs"
            reasons.append(f"{jobs} failed and no rule concerned itself with that")
        if self.errors:
            reasons.append("1 error" if self.errors == 1 else f"{self.errors} errors")
        return "; ".join(reasons) or "nothing more can happen"

    def _error(self, message: str, firing: EngineFiring | None = None) -> None:
        self.errors += 1
        if firing is None:
            self._out.append(Log(message=message, level="error"))
        else:
            self._out.append(
                Log(rule=firing.rule, firing=firing.number, message=message, level="error")
            )
