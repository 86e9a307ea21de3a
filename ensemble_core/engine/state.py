"""State of one run: its jobs, rules, metrics, timers and open requests; what decisions do to them.

The lowest of the engine's three parts, which knows neither of the others: ``rule_evaluation`` has
the state and fires rules upon it, ``engine`` has both and turns events into occasions. The laws of
all stand at the top of ``engine.py``. A snapshot of a run is this object, encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from ensemble_core.engine.attempts import coming, next_attempt
from ensemble_core.engine.job_record import Index, JobRecord, Link
from ensemble_core.engine.job_table import JobTable, Strangers
from ensemble_core.engine.rate_limit import HeldJob, RateLimit
from ensemble_core.engine.rule_index import Instance, RuleState
from ensemble_core.engine.rule_set import RuleSet, chain_text, group_path
from ensemble_core.engine.scopes import Scope, Slice
from ensemble_core.engine.timers import Timers
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import MetricPath, MetricStore
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.decisions import (
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Log,
    Resize,
    Retry,
    SetGroup,
    Submit,
    Terminate,
)
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, JobEvent, Observed
from ensemble_core.model.jobs import Job, JobGroup
from ensemble_core.model.rules import BoundRule

__all__ = ["Occasion", "Origin", "Pending", "State"]

Asked = TypeVar("Asked", Call, Resize)


class Occasion(NamedTuple):
    """What rules are woken by: an event, our job that it concerns, and fields of the event's own
    beside those that the job and its event have; for an instance of a rule with ``each``, the index
    or slice that it is about."""

    event: Event
    record: JobRecord | None = None
    fields: Mapping[str, Any] = NOTHING
    scope: Scope | None = None


@dataclass(slots=True, eq=False)
class Origin:
    """The firing that a decision comes from; plain data. Plans see it as an ``EngineFiring``.

    ``number`` counts the firings of the whole run, ``link`` is its place in a chain of them, and
    ``fields`` is what conditions and messages may speak of.
    """

    rule_state: RuleState
    number: int
    link: Link
    occasion: Occasion
    fields: Mapping[str, Any]

    @property
    def rule(self) -> str:
        """The rule's id."""
        return self.rule_state.rule.id

    @property
    def mark(self) -> dict[str, Any]:
        """What each of its decisions says of where it comes from."""
        return {"rule": self.rule, "firing": self.number}

    @property
    def job(self) -> str | None:
        """Our id of the event's job, if it has one that is ours."""
        record = self.occasion.record
        return None if record is None else record.job.id

    def knowing(self, fields: Mapping[str, Any]) -> Origin:
        """The same firing, with these fields beside those that it has."""
        return replace(self, fields={**self.fields, **fields})


@dataclass(frozen=True, slots=True)
class Pending(Generic[Asked]):
    """A call or a resize that was decided and has no answer yet. Firings that follow from the
    answer go on from ``link``."""

    origin: Origin
    link: Link
    decision: Asked

    def retry(self) -> Pending[Asked]:
        """The same request once more: who knows it answers, and does not carry it out twice. Its
        rule may have another id since the file changed."""
        attempt = self.decision.attempt + 1
        return Pending(
            self.origin,
            self.link,
            replace(self.decision, rule=self.origin.rule, attempt=attempt),
        )


def _asks_for_everything(ensemble: Ensemble) -> bool:
    """True if a user's function or a slow action may ask for any metric."""
    return bool(ensemble.functions) or any(
        each.plan is None
        for rule in ensemble.rules
        for action in rule.actions
        for each in action.flat()
    )


def _batches(held: Iterable[HeldJob]) -> list[Submit]:
    """Submits of these jobs, those of one group and firing together."""
    batches: dict[tuple[str, str | None, int], list[Job]] = {}
    for job, rule, firing in held:
        batches.setdefault((job.group, rule, firing), []).append(job)
    return [
        Submit(group=group, rule=rule, firing=firing, jobs=tuple(jobs))
        for (group, rule, firing), jobs in batches.items()
    ]


class State:
    """The state of one run. ``apply`` gives a decision its effect here and hands it on in ``out``.

    ``everything`` keeps every statistic of every variable, as is needed when a user's function may
    ask for any of them; left out, the ensemble itself says (it has functions or slow actions).
    ``shared`` says that others use the queue, so that its gauges move without us.
    """

    def __init__(
        self, ensemble: Ensemble, *, everything: bool | None = None, shared: bool = False
    ) -> None:
        if everything is None:
            everything = _asks_for_everything(ensemble)
        self.ensemble = ensemble
        self.shared = shared
        self.now = float("-inf")
        self.metrics = MetricStore(ensemble.groups, ensemble.statistics, everything=everything)
        self.rules = RuleSet(ensemble, self.metrics)
        self.table = JobTable(ensemble.groups, self.metrics, self.rules.index)
        self.strangers = Strangers()
        self.timers = Timers()
        self.rate_limit = RateLimit(ensemble.limits.submits_per_second)
        self.calls: dict[str, Pending[Call]] = {}
        self.resizes: dict[str, Pending[Resize]] = {}
        #: Resize requests that nobody received, until their timer elapses.
        self.retries: dict[str, Pending[Resize]] = {}
        #: Indices whose next attempt waits for its time, by the id that it will have.
        self.attempts: dict[str, Index] = {}
        for rule in ensemble.rules:
            self.table.serve(rule, ensemble.statistics)
        for group in ensemble.groups.values():
            self.table.read(group.name, group.reads, ensemble.statistics)
        self.started = False
        self.ended: Terminate | None = None
        #: Whether the queue was lost, and the end that this brought about, which a resume takes
        #: back.
        self.lost = False
        self.ended_by_loss: Terminate | None = None
        self.errors = 0
        #: What observers did not understand, for whoever looks at the run later.
        self.warnings: list[str] = []
        self.unhandled_failures = 0
        self.events = 0
        self.firings = 0
        self._serial = 0
        self._limit_told = False
        # Of the event at hand.
        self.out: list[Decision] = []
        #: Whether it may have left nothing to wait for.
        self.look_for_end = False
        #: Whether it may have left a group, a slice or the run without an open job.
        self.look_for_idle = False
        #: Whether it is a heartbeat, at which jobs that wait count with the time they waited.
        self.beating = False
        #: The firing that it comes from, and the deepest in a chain that it caused; for a function
        #: that returned, the firing that its decisions come from.
        self.link: Link | None = None
        self.deepest: Link | None = None
        self.via: Link | None = None
        #: Jobs not yet handed on that a firing cancelled, for the rules that wait for that.
        self.withdrawn: list[tuple[JobRecord, Link]] = []
        #: Indices whose retry a firing dropped.
        self.dropped: list[Index] = []
        #: What the jobs of submits that were planned are made of, by the first of each.
        self.sources: dict[str, Sequence[JobGroup]] = {}

    def adopt(self, ensemble: Ensemble) -> list[str]:
        """Go on with a changed file, between two events: jobs, counts and metrics stay, rules that
        are still there go on where they stood. The rules that joined while the run was under way
        and that speak of what the new file does not have: they are gone."""
        before, self.ensemble = self.ensemble, ensemble
        earlier = list(self.rules.states.values())
        everything = _asks_for_everything(ensemble)
        self.metrics.adopt(ensemble.groups, ensemble.statistics, everything=everything)
        intervals = {state.rule.id: state.rule.trigger.every for state in self.rules.intervals()}
        stayed, dropped = self.rules.adopt(ensemble)
        self.table.adopt(before.groups, ensemble.groups, self.rules.index)
        for state in self.rules.states.values():
            self.table.serve(state.rule, ensemble.statistics)
        for group in ensemble.groups.values():
            self.table.read(group.name, group.reads, ensemble.statistics)
        for asked in (self.calls, self.resizes, self.retries):
            for pending in asked.values():
                origin = pending.origin
                origin.rule_state = stayed.get(id(origin.rule_state), origin.rule_state)
        self.rate_limit.adopt(ensemble.limits.submits_per_second)
        for state in self.rules.intervals():
            if intervals.pop(state.rule.id, None) != state.rule.trigger.every:
                self.schedule(state, self.now)
        for rule in intervals:
            self.timers.stop("interval", rule)
        if ensemble.heartbeat != before.heartbeat:
            self.timers.stop("heartbeat", "")
            if ensemble.heartbeat:
                self.timers.every(ensemble.heartbeat, "heartbeat", "", self.now)
        # Rules that were there and say the same have been looked at: what holds by now has woken
        # them when it came to hold.
        looked_at = {
            id(stayed[id(state)])
            for state in earlier
            if id(state) in stayed and state.live and stayed[id(state)].rule.spec == state.rule.spec
        }
        for state in self.rules.states.values():
            if id(state) not in looked_at:
                if state.live:
                    self.look_at_once(state)
            elif state.watch is not None:
                state.watch.unread = True
        self.look_for_end = True
        return dropped

    # -- what may be asked ---------------------------------------------------------------------

    def active(self, group: str | None = None) -> list[str]:
        """Our ids of the jobs that are not over yet, oldest first, and those of retries to come."""
        active = [
            job
            for job, record in self.table.records.items()
            if record.outcome is None and group in (None, record.job.group)
        ]
        coming = self.attempts.items()
        return active + [job for job, index in coming if group in (None, index.record.job.group)]

    def standing(self, rule: BoundRule, scope: Slice | None) -> tuple[int, int]:
        """How many indices are open of those that a rule on ``idle`` looks at, and how many there
        have been."""
        if scope is not None:
            return scope.open, scope.submitted
        counts = self.metrics.counts
        found = [counts[name] for name in rule.groups or self.table.groups]
        still_open = sum(each["open"] for each in found)
        return still_open, still_open + sum(each["done"] + each["lost"] for each in found)

    def read_scoped(self, name: str, group: str | None, occasion: Occasion) -> float | None:
        """``STAT.NAME`` of the instance's scope, or else of the event's job; or of a group."""
        if group is not None:
            return self.metric(group_path(name, group))
        scope = occasion.scope
        if scope is None and occasion.record is not None:
            scope = occasion.record.index
        return None if scope is None else scope.read(name, self.now)

    def metric(self, path: str) -> float | None:
        """A metric's value now; ``None`` while there is none, or where there is no such metric."""
        parsed = self.rules.path(path)
        return None if parsed is None else self.read(parsed)

    def read(self, path: MetricPath) -> float | None:
        """The value now of the metric at a checked path."""
        if self.beating and path.variable == "pending" and path.kind == "series":
            ages = self.table.groups[path.group].ages(self.now)
            series = self.metrics.series[path.group, path.variable]
            return series.get_with(path.statistic, ages, self.now)
        if path.kind == "gauge":
            self.table.fill_gauges()
        return self.metrics.get(path, self.now)

    def spoken_of(self, condition: Condition, known: Mapping[str, Any]) -> dict[str, Any]:
        """The fields and metrics that a condition speaks of, with the values they have now."""
        found = {name: known.get(name) for name in sorted(condition.names)}
        found.update((path, self.metric(path)) for path in sorted(condition.metrics))
        return found

    def fields(self, occasion: Occasion) -> dict[str, Any]:
        """What a condition may speak of: fields of the event and its job, the job's parameters, the
        columns of an observed row, and the job's result; of one name the first of these."""
        event, record, own, scope = occasion
        known: dict[str, Any] = {}
        row = type(event) is Observed
        if record is not None:
            known.update(self.table.newer_fields(record))
            if row:
                known.update(own)
            known.update(record.job.parameters)
            known.update(self.table.fields(record))
        elif isinstance(scope, Slice):
            known.update(scope.parameters)
        if isinstance(event, JobEvent):
            if "cause" in event.context:  # a parameter, or the job's first exception, says more
                known.update({**event.context, "cause": known.get("cause")})
            else:
                known.update(event.context)
            known["name"] = event.name
        known["timestamp"] = event.timestamp
        if not row or record is None:
            known.update(own)
        return known

    # -- decisions -----------------------------------------------------------------------------

    def apply(self, origin: Origin, decision: Decision) -> None:
        """Give a decision its effect in here, and hand it on."""
        if isinstance(decision, Terminate):
            self.end(decision)
            return
        if isinstance(decision, Submit):
            self._submit(origin, decision)
            return
        if isinstance(decision, Cancel):
            decision = self._cancel(origin, decision)
            self._cancelling(decision.jobs)
        elif isinstance(decision, Retry):
            if origin.occasion.record is not None:
                self.retry(origin.occasion.record.index, decision)
            return
        elif isinstance(decision, Call):
            link = origin.link if self.via is None else self.extend(origin.rule, self.via)
            if link.depth > self.ensemble.limits.chain:
                self.cut_chain(origin.rule_state, origin.rule_state, link)
                return
            self.calls[decision.call] = Pending(origin, link, decision)
            if origin.occasion.record is not None:
                origin.occasion.record.index.calls += 1
        elif isinstance(decision, Resize):
            self.resizes[decision.request] = Pending(origin, origin.link, decision)
        elif isinstance(decision, SetGroup):
            state = self.table.groups[decision.group]
            state.group = self.ensemble.binder.group(state.group, decision.fields)
        elif isinstance(decision, (EnableRule, DisableRule)):
            self.out.append(decision)
            for rule in decision.rules:
                state_on = self.rules.switch(rule, isinstance(decision, EnableRule))
                if state_on is not None:
                    self.schedule(state_on, self.now)
                    self.look_at_once(state_on)
            return
        elif not isinstance(decision, Decision):
            raise TypeError(f"{decision!r} is no decision")
        self.out.append(decision)

    def extend(self, rule: str, parent: Link | None) -> Link:
        """One more firing in a chain; a job that finished since then makes it a new one."""
        finishes = self.table.finishes
        depth = parent.depth + 1 if parent is not None and parent.finishes == finishes else 1
        return Link(rule, parent if depth > 1 else None, depth, finishes)

    def cut_chain(self, state: RuleState, one: RuleState | Instance, link: Link) -> None:
        """Switch a rule, or an instance of it, off for good that would make its chain of firings
        too long."""
        if one is state:
            self.rules.cut(state)
        else:
            one.cut = True
        self.look_for_end = True
        self.error(
            f"rule {state.rule.id!r} is switched off: {link.depth - 1} rule firings caused one "
            f"another without any job finishing in between\n"
            f"  because: {chain_text(link.names())}\n"
            f"  hint: give one of these rules a condition or fewer repetitions, "
            f"or raise limits.chain",
        )
        if one is state:
            self.out.append(DisableRule(rules=(state.rule.id,)))

    def look_at_once(self, state: RuleState) -> None:
        """A rule that joined, or was switched on: its metric may have come to pass already."""
        watch = state.watch
        if watch is not None:
            if watch.path.kind == "gauge":
                self.table.fill_gauges()
            self.rules.index.touched[watch] = None

    def schedule(self, state: RuleState, now: float) -> None:
        """Start the timer of a rule that fires every so many seconds."""
        every = state.rule.trigger.every
        if every is not None:
            if state.live:
                self.timers.every(every, "interval", state.rule.id, now)
            else:
                self.timers.stop("interval", state.rule.id)

    def set_gauges(self, values: Mapping[str, float]) -> None:
        """Take what an executor reports of its queue."""
        index = self.rules.index
        for path, value in values.items():
            if path.startswith(("queue.", "waiting.")):
                self.table.queue_reported = True
            self.metrics.gauges[path] = value
            watch = index.gauges.get(path)
            if watch is not None:
                index.touched[watch] = None

    # -- submitting and cancelling -------------------------------------------------------------

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
        if source.missing:
            raise EnsembleError(
                f"the parameter {source.missing[0]!r} of {group!r} is null, and this submit gives "
                "no value for it: nothing is submitted",
                hint=f"write 'with: {{parameters: {{{source.missing[0]}: …}}}}' beside the label",
                code="no-value",
            )
        jobs = tuple(source.jobs(state.next_index))
        state.next_index += len(jobs)
        if jobs:
            self.sources[jobs[0].id] = [source] * len(jobs)
        return jobs

    def _submit(self, origin: Origin, decision: Submit) -> None:
        if decision.jobs and decision.jobs[0].id in self.table.records:
            raise EnsembleError(
                f"{decision.jobs[0].id} is submitted already",
                hint="a submit may be handed on once; ask the firing for another",
                code="submitted-twice",
            )
        jobs = decision.jobs
        if not self._within_limit(decision.group, len(jobs), origin):
            return
        link = self.via or origin.link
        for job, source in zip(jobs, self.sources.get(jobs[0].id, ()) if jobs else (), strict=True):
            index = Index(source=source)
            self.table.add(job, index, self.now, link, (decision.rule, decision.firing))
        if self.table.groups[decision.group].group.at_once is None:
            jobs = self.rate_limit.admit(jobs, decision.rule, decision.firing, self.now)
            self.out.append(replace(decision, jobs=jobs) if jobs != decision.jobs else decision)
            self._await_release()
        else:
            self.hand_over(decision.group)

    def _within_limit(self, group: str, more: int, origin: Origin | None) -> bool:
        """True if so many more jobs stay within ``limits.jobs``; told once if not."""
        limit = self.ensemble.limits.jobs
        if limit is None or self.table.submitted + more <= limit:
            return True
        if not self._limit_told:
            self._limit_told = True
            self.error(
                f"{group}: {more} more jobs would pass limits.jobs "
                f"({limit}, {self.table.submitted} submitted so far): not submitted\n"
                f"  hint: raise limits.jobs if this many are wanted",
                origin,
            )
        return False

    def hand_over(self, group: str) -> None:
        """Submit the jobs that ``at_once`` held and for which there is a place now."""
        state = self.table.groups[group]
        if not state.held:
            return
        for decision in _batches(self.table.free(state, self.now)):
            jobs = self.rate_limit.admit(decision.jobs, decision.rule, decision.firing, self.now)
            if jobs:
                self.out.append(replace(decision, jobs=jobs))
        self._await_release()

    def retry(self, index: Index, decision: Retry) -> None:
        """An attempt is to be followed by another, unless that is decided already."""
        if index.over or index.retry is not None or index.record.job.id != decision.job:
            return
        index.retry = decision
        index.record.concern = True
        self.out.append(decision)

    def begin_attempt(self, index: Index) -> bool:
        """Submit the next attempt of an index, now or when its wait is over; false if it cannot
        be."""
        decision, record = index.retry, index.record
        assert decision is not None
        if decision.wait > 0 and index.waited != record.job.attempt:
            index.waited = record.job.attempt
            self.attempts[coming(index)] = index
            self.timers.once(self.now + decision.wait, "attempt", coming(index))
            return True
        index.retry = None
        if not self._within_limit(record.job.group, 1, None):
            return False
        try:
            job, index.source = next_attempt(index, decision, self.ensemble.binder)
        except EnsembleError as error:
            self.error(f"{record.job.id} is not submitted again: {error}")
            return False
        if not decision.resume:
            index.series = None
        self.table.add(job, index, self.now, None, (decision.rule, decision.firing))
        if self.table.groups[job.group].group.at_once is None:
            jobs = self.rate_limit.admit((job,), decision.rule, decision.firing, self.now)
            if jobs:
                mark = decision.rule, decision.firing
                self.out += _batches((each, *mark) for each in jobs)
            self._await_release()
        else:
            self.hand_over(job.group)
        return True

    def _await_release(self) -> None:
        due = self.rate_limit.due(self.now)
        if due is not None:
            self.timers.once(due, "pace", "")

    def release(self) -> None:
        """Submit the jobs that the rate limit held and whose turn has come."""
        self.submit_each(self.rate_limit.release(self.now))
        self._await_release()

    def submit_each(self, held: Iterable[HeldJob]) -> None:
        """Hand these jobs on, those of one group and firing together."""
        self.out += _batches(held)

    def _cancel(self, origin: Origin, decision: Cancel) -> Cancel:
        """Held jobs are cancelled here, for no executor knows them yet; the others by theirs."""
        self._drop_attempts(decision.jobs)
        records = self._forget_held(decision.jobs)
        if not records:
            return decision
        self.look_for_end = True
        self.withdrawn += [(record, origin.link) for record in records.values()]
        return replace(decision, jobs=tuple(job for job in decision.jobs if job not in records))

    def _forget_held(self, jobs: Collection[str]) -> dict[str, JobRecord]:
        """Those of these jobs that ``at_once`` or the rate limit holds are over; their records by
        id."""
        groups = self.table.groups
        table = self.table.records
        held = [job for job in jobs if job in table and job in groups[table[job].job.group].held]
        records = {job: table[job] for job in (*held, *self.rate_limit.drop(jobs))}
        for record in records.values():
            self.table.forget(record)
        return records

    def _drop_attempts(self, jobs: Collection[str]) -> None:
        """Those of these jobs that are retries to come are not submitted: their indices are
        lost."""
        for job in jobs:
            index = self.attempts.pop(job, None)
            record = self.table.records.get(job)
            if index is not None:
                self.timers.stop("attempt", job)
                self.dropped.append(index)
            elif record is not None:
                index = record.index
            if index is not None and index.retry is not None:
                index.retry = None

    def _cancelling(self, jobs: Iterable[str]) -> None:
        """Remember that the executor is told to cancel these."""
        for job in jobs:
            record = self.table.records.get(job)
            if record is not None:
                record.cancelling, record.refused = True, False

    # -- the end -------------------------------------------------------------------------------

    def end(self, decision: Terminate) -> None:
        """End the run by this decision."""
        held = self._forget_held(self.held())
        if held:
            left = tuple(job for job in decision.cancel if job not in held)
            decision = replace(decision, cancel=left)
        lost = [*self.attempts.values(), *(record.index for record in held.values())]
        self.attempts.clear()
        for index in lost:
            self.table.close(index, done=False)
        self._cancelling(decision.cancel)
        self._end(decision)

    def lose(self, reason: str) -> None:
        """End the run because its queue is lost. Jobs that the rate limit holds are not over, for
        the run may be resumed."""
        self.ended_by_loss = Terminate(exit_code=1, reason=reason)
        self._end(self.ended_by_loss)

    def _end(self, decision: Terminate) -> None:
        self.ended = decision
        self.rules.index.touched.clear()
        for index in (*self.dropped, *(record.index for record, _ in self.withdrawn)):
            self.table.close(index, done=False)
        self.dropped.clear()
        self.withdrawn.clear()
        self.out.append(decision)

    def held(self) -> list[str]:
        """The jobs that were not handed over yet: ``at_once`` or the rate limit holds them."""
        held = [job for group in self.table.groups.values() for job in group.held]
        return held + [job.id for job, _, _ in self.rate_limit.held]

    def end_if_over(self) -> None:
        """End the run if nothing more can happen."""
        self.look_for_end = False
        if self.table.records or self.calls or self.attempts:
            return
        if (self.resizes or self.retries) and self.rules.waits_for_resize():
            return
        if self.rules.waits_for_time(self.now, shared=self.shared):
            return
        failed = self.errors or self.unhandled_failures
        self.end(Terminate(exit_code=1 if failed else 0, reason=self._why(), natural=True))

    def _why(self) -> str:
        reasons = []
        if self.unhandled_failures:
            jobs = "1 job" if self.unhandled_failures == 1 else f"{self.unhandled_failures} jobs"
            reasons.append(f"{jobs} failed and no rule concerned itself with that")
        if self.errors:
            reasons.append("1 error" if self.errors == 1 else f"{self.errors} errors")
        return "; ".join(reasons) or "nothing more can happen"

    def error(self, message: str, origin: Origin | None = None) -> None:
        """Tell of an error, which turns the exit code of a natural end to 1."""
        self.errors += 1
        mark = {} if origin is None else origin.mark
        self.out.append(Log(**mark, message=message, level="error"))
