"""The engine: events in, decisions out.

These are its laws; the tests hold it to each of them.

1. ``Engine.handle(event) -> decisions`` is the only thing that changes state. There is no clock, no
   I/O, no thread, no randomness and no logging in here: the time is the event's. The same events
   give the same decisions, to the byte.
2. Each event is worked on in this order: the job table; the metrics; the rules that wait for a
   metric which this event updated; the rules that wait for the event itself. Within each of these,
   rules go by their place in the file (rules that joined later come last), and a rule is looked at
   once. What a firing changes (a submitted job, a changed group, a switched rule) holds from then
   on, also for the next rule of the same event. Then come the metric rules of what the firings
   themselves counted (``submitted``), until there is nothing more.
3. After ``terminate`` no rule fires and nothing is submitted, not even by the rest of the same
   event. Jobs that are still there are counted until they are gone.
4. A rule fires at most ``repetitions`` times. A resize request that nobody received is asked again
   by the same firing. An exhausted, disabled or cut rule leaves the index and costs nothing.
5. Each job of ours is counted once, by its outcome: ``submitted = finished + cancelled + active``
   at every moment, with ``finished = success + failed``. The outcome is known at ``finish``, or at
   ``clean`` for a job that never ran. Echoes of an event that a job has only once change nothing.
6. Firings that cause one another without any job finishing in between form a chain. A chain longer
   than ``limits.chain`` is cut: the rule that would have gone on is switched off, and an error
   shows the chain.
7. The run ends by itself when no job is active, no call is under way and no live rule waits for
   time to pass.

The runtime owns the only thread that calls this; the journal can replay it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ensemble_core.decisions import (
    AddRule,
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Fired,
    Log,
    Resize,
    SetGroup,
    Submit,
    Terminate,
)
from ensemble_core.ensemble import Ensemble
from ensemble_core.errors import EnsembleError
from ensemble_core.events import (
    CallFailed,
    CallReturned,
    Event,
    ExecutorLost,
    JobEvent,
    Observed,
    PluginEvent,
    Problem,
    ResizeOutcome,
    Resources,
    Started,
    StopRequested,
    TimerElapsed,
)
from ensemble_core.firing import EngineFiring
from ensemble_core.index import RuleState, in_order
from ensemble_core.jobs import Job
from ensemble_core.jobtable import JobRecord, JobTable, Link
from ensemble_core.metrics import MetricPath, MetricStore, MetricsView
from ensemble_core.pacing import Pacer
from ensemble_core.report import GroupReport, Report
from ensemble_core.rulebook import RuleBook, chain_text
from ensemble_core.rules import BoundAction
from ensemble_core.timers import Timer, Timers

__all__ = ["Engine"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_LONGEST_RETRY = 60.0
_LAST = frozenset({"finish", "clean"})


class _Request(NamedTuple):
    """A resize that was asked for and not answered yet; ``tries`` counts the earlier attempts."""

    firing: EngineFiring
    delta: int
    tries: int


class Engine:
    """One run of one ensemble. See the laws above.

    ``everything`` keeps every statistic of every variable, as is needed when a user's function may
    ask for any of them; left out, the ensemble itself says (it has functions or slow actions).
    """

    def __init__(
        self, ensemble: Ensemble, *, everything: bool | None = None, shared: bool = False
    ) -> None:
        if everything is None:
            everything = bool(ensemble.functions) or any(
                action.plan is None for rule in ensemble.rules for action in rule.actions
            )
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
        self._calls: dict[str, tuple[EngineFiring, Link]] = {}
        self._via: Link | None = None
        self._requests: dict[str, _Request] = {}
        self._retries: dict[str, _Request] = {}
        self._again: _Request | None = None
        self._serial = 0
        self._limit_told = False
        self._pacer = Pacer(ensemble.limits.submits_per_second)
        self._out: list[Decision] = []
        self._link: Link | None = None
        self._deepest: Link | None = None
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            JobEvent: self._on_job,
            Observed: self._on_observed,
            Started: self._on_started,
            Resources: self._on_resources,
            TimerElapsed: self._on_timer,
            CallReturned: self._on_returned,
            CallFailed: self._on_call_failed,
            ResizeOutcome: self._on_resize,
            StopRequested: self._on_stop,
            ExecutorLost: self._on_lost,
            PluginEvent: self._on_plugin,
            Problem: self._on_problem,
        }

    # -- what may be asked ---------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, object]:
        """The job groups by name."""
        return self.table.groups

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

    @property
    def busy(self) -> int:
        """Jobs whose last event has not come yet."""
        return len(self.table.records)

    def knows(self, job: str) -> bool:
        """Whether this job is ours and not over yet."""
        return job in self.table.records

    def metric(self, path: str) -> float | None:
        """A metric's value now; ``None`` while there is none, or where there is no such metric."""
        parsed = self.rules.path(path)
        return None if parsed is None else self._read(parsed)

    def next_timer(self) -> Timer | None:
        """The earliest time the engine wants to be told of, and what for."""
        return None if self.ended else self.timers.first()

    def snapshot(self) -> MetricsView:
        """Every metric's value now, safe to hand to another thread."""
        self.table.fill_gauges()
        return self.metrics.snapshot(self.now)

    def report(self) -> Report:
        """How the run stands, for people."""
        groups = []
        for name, state in self.table.groups.items():
            counts = self.metrics.counts[name]
            over = counts["finished"] + counts["cancelled"]
            groups.append(
                GroupReport(
                    name=name,
                    submitted=counts["submitted"],
                    running=state.running,
                    waiting=counts["submitted"] - state.running - over,
                    success=counts["success"],
                    failed=counts["failed"],
                    cancelled=counts["cancelled"],
                    mean_duration=self.metrics.mean(name, "duration"),
                    mean_pending=self.metrics.mean(name, "pending"),
                )
            )
        return Report(
            groups=tuple(groups),
            rules=self.rules.report(self.now),
            events=self.events,
            firings=self.firings,
            errors=self.errors,
            unhandled_failures=self.unhandled_failures,
        )

    # -- the one way in ------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Decision]:
        """Work one event in; what is to be done, in order."""
        self.events += 1
        if event.timestamp > self.now:
            self.now = event.timestamp
        out = self._out = []
        self._link = self._deepest = None
        if type(event) is JobEvent:
            self._on_job(event)
        else:
            self._handlers[type(event)](event)
        if self.metrics.problems:
            for problem in self.metrics.problems:
                self._error(problem)
            self.metrics.problems.clear()
        if self._look_for_end and self._started and self.ended is None:
            self._end_if_over()
        return out

    # -- events --------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        self._started = True
        self._look_for_end = True
        if self.ensemble.heartbeat:
            self.timers.every(self.ensemble.heartbeat, "heartbeat", "", event.timestamp)
        for state in self.rules.intervals():
            self._schedule(state, event.timestamp)
        self._gauge(event.resources)
        self._react(("start",), None, event, {})

    def _on_job(self, event: JobEvent) -> None:
        record = self.table.records.get(event.job) if event.ours else None
        if record is None:
            self._on_stranger(event)
            return
        self._link = record.link
        occasions = self.table.take(record, event)
        if occasions is None:
            return
        if event.name in _LAST:
            if event.name == "clean":
                self._look_for_end = True
            if occasions[-1] == "job-fail" and not self.rules.concerned_with_failure(
                record.job.group
            ):
                self.unhandled_failures += 1
        index = self.rules.index
        if self.ended is not None:
            index.touched.clear()
            return
        if index.touched:
            self._metric_rules(event, record, _NOTHING)
        by_name = index.occasions.by_name
        if by_name:
            for occasion in occasions:
                if occasion in by_name:
                    self._event_rules(occasions, record.job.group, event, record, _NOTHING)
                    break
        if index.touched:
            self._settle(event)

    def _on_stranger(self, event: JobEvent) -> None:
        if event.ours or self.ended is not None:
            return  # late news of a job that is over, or of a run that is
        name = f"job-{event.name}"
        if name in self.rules.index.occasions:
            fields = {**event.context, "name": event.name, "job": event.job}
            self._event_rules([name], None, event, None, fields, stranger=True)
            self._settle(event)

    def _on_observed(self, event: Observed) -> None:
        record = self.table.records.get(event.job)
        if record is None:
            return
        self._link = record.link
        self.table.observe(record, event.values, event.timestamp)
        fields = dict(event.values)
        if event.clock is not None:
            fields.setdefault("clock", event.clock)
        self._react(("observed",), record.job.group, event, fields, record)

    def _on_resources(self, event: Resources) -> None:
        self._gauge(event.values)
        self._react((), None, event, {})

    def _gauge(self, values: Mapping[str, float]) -> None:
        index = self.rules.index
        for path, value in values.items():
            if path.startswith(("queue.", "waiting.")):
                self.table.queue_reported = True
            self.metrics.gauges[path] = value
            watch = index.gauges.get(path)
            if watch is not None:
                index.touched.append(watch)

    def _on_timer(self, event: TimerElapsed) -> None:
        self.timers.elapsed(event.timer, event.key, event.timestamp)
        if self.ended is not None:
            return
        if event.timer == "heartbeat":
            self._beating = True
            self.rules.touch_what_moves()
            self._react(("heartbeat",), None, event, {})
            self._beating = False
        elif event.timer == "interval":
            state = self.rules.states[event.key]
            state.woken += 1
            self._consider(state, event, None, _NOTHING)
            self._settle(event)
            if not state.live:
                self.timers.stop("interval", event.key)
            self._look_for_end = True
        elif event.timer == "pace":
            self._release()
        elif event.timer == "retry":
            request = self._retries.pop(event.key, None)
            if request is not None and request.firing.state.enabled:
                self._again = request
                self._perform(request.firing, [request.firing.resize(request.delta)])
                self._again = None

    def _on_returned(self, event: CallReturned) -> None:
        called = self._calls.pop(event.call, None)
        self._look_for_end = True
        if called is None or self.ended is not None:
            return
        firing, self._via = called
        self._link = self._deepest = self._via
        for spec in event.result:
            self._follow(firing, spec)
        self._via = None
        self._settle(event)

    def _follow(self, firing: EngineFiring, spec: Mapping[str, Any]) -> None:
        """Do what a function returned."""
        if self.ended is not None:
            return
        try:
            if "rule" in spec:
                self._join(firing, spec["rule"])
            else:
                self._act(firing, self.ensemble.binder.action(spec["action"]))
        except EnsembleError as error:
            self._error(str(error), firing)

    def _join(self, firing: EngineFiring, spec: Mapping[str, Any]) -> None:
        state = self.rules.join(spec)
        rule = state.rule
        self._out.append(
            AddRule(rule=firing.rule, firing=firing.number, id=rule.id, spec=dict(rule.spec))
        )
        self._schedule(state, self.now)
        self._look_at_once(state)

    def _on_call_failed(self, event: CallFailed) -> None:
        called = self._calls.pop(event.call, None)
        self._look_for_end = True
        if called is not None:
            firing = called[0]
            self._error(f"{firing.rule}: {event.error}", firing)

    def _on_resize(self, event: ResizeOutcome) -> None:
        request = self._requests.pop(event.request, None)
        self._look_for_end = True
        if request is None or self.ended is not None:
            return
        self._link = request.firing.link
        if event.outcome == "undelivered":
            self._retries[event.request] = request
            delay = min(_LONGEST_RETRY, 2.0**request.tries)
            self.timers.once(self.now + delay, "retry", event.request)
            return
        fields: dict[str, Any] = {"delta": request.delta, "reason": event.reason}
        if event.size is not None:
            fields["size"] = event.size
        self._react((f"resize-{event.outcome}",), None, event, fields)

    def _on_stop(self, event: StopRequested) -> None:
        if self.ended is None:
            self._end(
                Terminate(
                    exit_code=event.exit_code,
                    cancel=tuple(self.active()),
                    reason=event.reason,
                )
            )

    def _on_lost(self, event: ExecutorLost) -> None:
        self.lost = True
        reason = f"executor {event.executor} lost its queue: {event.reason}"
        self._error(f"{reason}\n  hint: {event.hint}" if event.hint else reason)
        if self.ended is None:
            self._end(Terminate(exit_code=1, reason=reason))

    def _on_plugin(self, event: PluginEvent) -> None:
        record = self.table.records.get(event.job) if event.job is not None else None
        if self.ended is None:
            group = record.job.group if record else None
            self._react((event.name,), group, event, dict(event.data), record)

    def _on_problem(self, event: Problem) -> None:
        if event.level == "error":
            self._error(event.message)
        else:
            self._out.append(Log(message=event.message, level="warning"))

    # -- rules ---------------------------------------------------------------------------------

    def _react(
        self,
        names: Sequence[str],
        group: str | None,
        event: Event,
        fields: Mapping[str, Any],
        record: JobRecord | None = None,
    ) -> None:
        self._metric_rules(event, record, fields)
        if names:
            self._event_rules(names, group, event, record, fields)
        self._settle(event)

    def _settle(self, event: Event) -> None:
        """The metric rules of what the firings themselves counted, until there is nothing more."""
        while self.rules.index.touched and self.ended is None:
            self._link = self._deepest
            self._metric_rules(event, None, {})

    def _metric_rules(
        self, event: Event, record: JobRecord | None, fields: Mapping[str, Any]
    ) -> None:
        index = self.rules.index
        touched = index.touched
        if not touched:
            return
        index.touched = []
        found: list[RuleState] = []
        now, beating = self.now, self._beating
        for watch in touched if len(touched) == 1 else dict.fromkeys(touched):
            watch.updates += 1
            if beating:
                value = self._read(watch.path)
            else:
                bounds = watch.bounds
                if bounds is not None and bounds.high < watch.ceiling and bounds.low > watch.floor:
                    watch.unread = True
                    continue
                value = watch.read(now)
            watch.unread = False
            watch.last = value
            if value is not None:
                watch.match(value, found)
        if not found:
            return
        for state in in_order(found):
            if self.ended is not None:
                return
            self._consider(state, event, record, fields)

    def _event_rules(
        self,
        names: Sequence[str],
        group: str | None,
        event: Event,
        record: JobRecord | None,
        fields: Mapping[str, Any],
        *,
        stranger: bool = False,
    ) -> None:
        found: list[RuleState] = []
        for name in names:
            self.rules.index.occasions.find(name, group, found)
        for state in in_order(found):
            if self.ended is not None:
                return
            if not stranger or state.rule.queue_scope:
                state.woken += 1
                self._consider(state, event, record, fields)

    def _consider(
        self,
        state: RuleState,
        event: Event,
        record: JobRecord | None,
        fields: Mapping[str, Any],
    ) -> None:
        """Fire the rule if its condition holds and its backoff lets it."""
        if not state.live:
            return
        rule, watch = state.rule, state.watch
        value = None if watch is None else watch.last
        condition, match = rule.condition, rule.trigger.match
        known: Mapping[str, Any] | None = None
        if match is not None or (condition is not None and condition.tree is not None):
            known = self._fields(event, record, fields)
        try:
            if match is not None and not match(event, known or {}):
                return
            if condition is not None and not condition.holds(value, known or {}, self.metric):
                if known is not None:
                    state.seen = self._seen(condition.names, condition.metrics, known)
                return
        except Exception as error:  # a plugin's match: it must not take the run with it
            self.rules.cut(state)
            self._error(f"rule {rule.id} is switched off: its trigger raised {error!r}")
            return
        if state.skip > 0:
            state.skip -= 1
            return
        if self.now < state.not_before:
            return
        self._fire(state, value, event, record, known, fields)

    def _fire(
        self,
        state: RuleState,
        value: float | None,
        event: Event,
        record: JobRecord | None,
        known: Mapping[str, Any] | None,
        fields: Mapping[str, Any],
    ) -> None:
        rule = state.rule
        link = self._extend(rule.id, self._link)
        if link.depth > self.ensemble.limits.chain:
            self._cut(state, link)
            return
        if self._deepest is None or link.depth >= self._deepest.depth:
            self._deepest = link
        self.rules.fired(state, self.now)
        self._look_for_end = True
        self.firings += 1
        job = record.job.id if record is not None else None
        if known is None:
            known = self._fields(event, record, fields)
        if value is not None:
            known = {**known, "value": value}
        firing = EngineFiring(self, state, event, job, known, self.firings, link)
        self._out.append(
            Fired(
                rule=rule.id,
                firing=self.firings,
                label=rule.label or rule.id,
                count=state.fired,
                job=job,
                value=value,
            )
        )
        for action in rule.actions:
            if self.ended is not None:
                return
            self._act(firing, action)

    def _act(self, firing: EngineFiring, action: BoundAction) -> None:
        if action.plan is None:
            self._decide(firing, firing.call_off_thread("action", action.name, action.options))
            return
        try:
            self._perform(firing, action.plan(firing, action.options))
        except EnsembleError as error:
            self._error(str(error), firing)
        except Exception as error:  # a plugin's plan: it must not take the run with it
            self._error(f"action {action.name} raised {error!r}", firing)

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
        elif isinstance(decision, Call):
            link = firing.link if self._via is None else self._extend(firing.rule, self._via)
            if link.depth > self.ensemble.limits.chain:
                self._cut(firing.state, link)
                return
            self._calls[decision.call] = (firing, link)
        elif isinstance(decision, Resize):
            tries = self._again.tries + 1 if self._again else 0
            self._requests[decision.request] = _Request(firing, decision.delta, tries)
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
        if state.watch is not None and state.watch not in self.rules.index.touched:
            self.rules.index.touched.append(state.watch)

    def _schedule(self, state: RuleState, now: float) -> None:
        every = state.rule.trigger.every
        if every is not None:
            if state.live:
                self.timers.every(every, "interval", state.rule.id, now)
            else:
                self.timers.stop("interval", state.rule.id)

    # -- values --------------------------------------------------------------------------------

    def _read(self, path: MetricPath) -> float | None:
        if self._beating and path.variable == "pending" and path.kind == "series":
            ages = self.table.groups[path.group].ages(self.now)
            series = self.metrics.series[path.group, path.variable]
            return series.get_with(path.statistic, ages, self.now)
        if path.kind == "gauge" and path.text not in self.metrics.gauges:
            self.table.fill_gauges()
        return self.metrics.get(path, self.now)

    def _fields(
        self, event: Event, record: JobRecord | None, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        known: dict[str, Any] = {"timestamp": event.timestamp}
        if record is not None:
            known.update(self.table.fields(record))
        if isinstance(event, JobEvent):
            known.update(event.context)
            known["name"] = event.name
        known.update(fields)
        return known

    def _seen(self, names: Iterable[str], metrics: Iterable[str], known: Mapping[str, Any]) -> str:
        parts = [f"{name}={known[name]}" for name in sorted(names) if name in known]
        parts += [f"{path}={self.metric(path)}" for path in sorted(metrics)]
        return ", ".join(parts)

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
            self._event_rules(("job-cancel",), record.job.group, firing.event, record, _NOTHING)
        if not held:
            return decision
        gone = set(held)
        return replace(decision, jobs=tuple(job for job in decision.jobs if job not in gone))

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
        self.ended = decision
        self.rules.index.touched.clear()
        self._out.append(decision)

    def _end_if_over(self) -> None:
        self._look_for_end = False
        if self.table.records or self._calls:
            return
        if self._requests and any(
            self.rules.waits(f"resize-{outcome}") for outcome in ("granted", "denied", "timeout")
        ):
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
            reasons.append(f"{jobs} failed and no rule concerns itself with failure")
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
