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
   event. Jobs that are still there are counted until they are gone. (A resume hands on again what
   was submitted before it and was to be left alone.)
4. A rule fires at most ``repetitions`` times. A resize request that nobody received is asked again
   by the same firing. An exhausted, disabled or cut rule leaves the index and costs nothing.
5. Each job of ours is counted once, by its outcome: ``submitted = finished + cancelled + active``
   at every moment, with ``finished = success + failed``. The outcome is known at ``finish``, or at
   ``clean`` for a job that never ran. Echoes of an event that a job has only once change nothing.
6. Firings that cause one another without any job finishing in between form a chain. A chain longer
   than ``limits.chain`` is cut: the rule that would have gone on is switched off, and an error
   shows the chain.
7. A failed job is somebody's concern if, by its ``clean``, a rule about failure matched an event of
   it, or still waits for more failures (``count.G.failed``). Otherwise a natural end has exit
   code 1.
8. The run ends by itself when no job is active, no call is under way and no live rule waits for
   time to pass.

The runtime owns the only thread that calls this; the journal can replay it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ensemble_core.engine.firing import EngineFiring
from ensemble_core.engine.job_table import JobRecord, Link, Strangers
from ensemble_core.engine.report import GroupReport, Report
from ensemble_core.engine.rule_evaluation import NOTHING, Reactions
from ensemble_core.engine.state import Request
from ensemble_core.engine.timers import Timer
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import MetricsView
from ensemble_core.model.decisions import (
    AddRule,
    Call,
    Cancel,
    Decision,
    Log,
    Resize,
    Submit,
    Terminate,
)
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
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
    Resumed,
    Started,
    StopRequested,
    TimerElapsed,
)
from ensemble_core.model.jobs import Job

__all__ = ["Engine"]

_LONGEST_RETRY = 60.0


class Engine(Reactions):
    """One run of one ensemble. See the laws above."""

    def __init__(
        self, ensemble: Ensemble, *, everything: bool | None = None, shared: bool = False
    ) -> None:
        super().__init__(ensemble, everything=everything, shared=shared)
        self._strangers = Strangers()
        #: The metrics after an event that called functions: what these are given.
        self._view: MetricsView | None = None
        #: The end that the loss of the queue brought about, which a resumed run takes back.
        self._ended_by_loss: Terminate | None = None
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            JobEvent: self._on_job,
            Observed: self._on_observed,
            Started: self._on_started,
            Resumed: self._on_resumed,
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
    def busy(self) -> int:
        """Jobs whose last event has not come yet."""
        return len(self.table.records)

    def in_queue(self) -> list[tuple[str, JobRecord]]:
        """The jobs that were handed to the executor and whose last event has not come yet."""
        held = {job.id for job, _, _ in self._pacer.held}
        return [item for item in self.table.records.items() if item[0] not in held]

    def concerns(self, event: Event) -> bool:
        """Whether this event can matter. One of a stranger's job cannot, nor need it be kept,
        while no rule has ``scope: queue``."""
        return type(event) is not JobEvent or event.ours or self.rules.strangers

    def rule_of(self, call: Call) -> Mapping[str, Any]:
        """The rule that asked for a call, as the file had it when it did: the file may have changed
        since, and call another rule so, or none."""
        asked = self._calls.get(call.call)
        state = self.rules.states.get(call.rule or "") if asked is None else asked[0].state
        return {} if state is None else state.rule.spec

    def next_timer(self) -> Timer | None:
        """The earliest time the engine wants to be told of, and what for."""
        return None if self.ended else self.timers.first()

    def snapshot(self) -> MetricsView:
        """Every metric's value now, safe to hand to another thread."""
        return self._look() if self._view is None else self._view

    def _look(self) -> MetricsView:
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
        out = self._out = []
        self._link = self._deepest = None
        try:
            if event.timestamp > self.now:
                self.now = event.timestamp
            if type(event) is JobEvent:
                self._on_job(event)
            else:
                self._handlers[type(event)](event)
        except Exception as error:  # a plugin's malformed event: it must not take the run with it
            self._recover(event, error)
        # Here and not by who asks for it: reading may find a statistic at fault, which is told of
        # in the same place when the events are replayed.
        self._view = None
        if out and any(type(decision) is Call for decision in out):
            self._view = self._look()
        if self.metrics.problems:
            for problem in self.metrics.problems:
                self._error(problem)
            self.metrics.problems.clear()
        if self.metrics.warnings:
            self._out += [Log(message=m, level="warning") for m in self.metrics.warnings]
            self.metrics.warnings.clear()
        if self._look_for_end and self._started and self.ended is None:
            self._end_if_over()
        return out

    def _recover(self, event: Event, error: Exception) -> None:
        """An event broke off in the middle: what was decided stands, and the run goes on."""
        self._via = None
        self._beating = False
        self._look_for_end = True
        self._error(f"an event of type {type(event).__name__} could not be worked in: {error!r}")

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

    def _on_resumed(self, event: Resumed) -> None:
        """Say again what may not have been carried out: nobody knows how far that had got."""
        if self.lost:
            self.lost = False
            if self.ended is self._ended_by_loss:
                self.ended = None
                self.errors -= 1
        self._ended_by_loss = None
        self._look_for_end = True
        # An undisturbed run hears of gauges that change, and of no others.
        gauges = self.metrics.gauges
        self._gauge({p: v for p, v in event.resources.items() if gauges.get(p) != v})
        cancelled = self._submit_again(event.absent)
        again = tuple(
            job
            for job, record in self.table.records.items()
            if record.cancelling and record.outcome is None
        )
        if again:
            self._out.append(Cancel(jobs=again))
        if self.ended is not None:
            self.rules.index.touched.clear()
            return
        for firing, link, call in list(self._calls.values()):
            again_call = replace(call, rule=firing.rule, attempt=call.attempt + 1)
            self._calls[call.call] = (firing, link, again_call)
            self._out.append(again_call)
        for request, asked in list(self._requests.items()):
            self._ask_again(request, asked)
        self._withdrawn += cancelled
        self._react((), None, event, {})

    def _ask_again(self, request: str, asked: Request) -> None:
        """The same request once more: who knows it answers and does not carry it out twice."""
        asked = asked._replace(attempt=asked.attempt + 1)
        self._requests[request] = asked
        self._out.append(
            Resize(
                rule=asked.firing.rule,
                firing=asked.firing.number,
                request=request,
                delta=asked.delta,
                attempt=asked.attempt,
                when_busy=asked.when_busy,
            )
        )

    def _submit_again(self, absent: Sequence[str]) -> list[tuple[JobRecord, Link]]:
        """Hand the jobs on that never arrived; those that were to be cancelled are over."""
        cancelled: list[tuple[JobRecord, Link]] = []
        batches: dict[str, list[Job]] = {}
        for name in absent:
            record = self.table.records.get(name)
            if record is None or record.seen:
                continue
            # Not those of a run that ended and let its jobs be: they were submitted before that.
            if record.cancelling:
                self.table.forget(record)
                if record.link is not None:
                    cancelled.append((record, record.link))
            else:
                batches.setdefault(record.job.group, []).append(record.job)
        for group, jobs in batches.items():
            self._out.append(Submit(group=group, jobs=tuple(jobs)))
        return cancelled

    def _on_job(self, event: JobEvent) -> None:
        record = self.table.records.get(event.job) if event.ours else None
        if record is None:
            self._on_stranger(event)
            return
        self._link = record.link
        occasions = self.table.take(record, event)
        if occasions is None:
            return
        index = self.rules.index
        if self.ended is not None:
            index.touched.clear()
            return
        if index.touched:
            self._metric_rules(event, record, NOTHING)
        by_name = index.occasions.by_name
        if by_name:
            for occasion in occasions:
                if occasion in by_name:
                    self._event_rules(occasions, record.job.group, event, record, NOTHING)
                    break
        if index.touched or self._withdrawn:
            self._settle(event)
        if event.name == "clean":
            self._look_for_end = True
            if (
                record.outcome == "failed"
                and not record.concern
                and not self.rules.awaits_failures(record.job.group)
            ):
                self.unhandled_failures += 1

    def _on_stranger(self, event: JobEvent) -> None:
        if event.ours or self.ended is not None:
            return  # late news of a job that is over, or of a run that is
        if not self.rules.strangers:
            return
        names, fields = self._strangers.take(event)
        occasions = self.rules.index.occasions
        waking = [name for name in names if name in occasions]
        if waking:
            self._event_rules(waking, None, event, None, fields, stranger=True)
            self._settle(event)

    def _on_observed(self, event: Observed) -> None:
        record = self.table.records.get(event.job)
        if record is None:
            return
        self._link = record.link
        if event.anew and record.rows is not None:
            record.rows.pop(event.observer, None)
        self.table.observe(record, event.observer, event.values, event.timestamp)
        fields: dict[str, Any] = dict(event.values)
        if event.clock is not None:
            fields.setdefault("clock", event.clock)
        fields["observer"] = event.observer
        # How many more rows come of a job that a rule cancelled is chance.
        names = () if record.cancelling and not record.refused else ("observed",)
        self._react(names, record.job.group, event, fields, record)

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
            self._look_for_end = True
            self.rules.touch_what_moves()
            self._react(("heartbeat",), None, event, {})
            self._beating = False
        elif event.timer == "interval":
            state = self.rules.states[event.key]
            state.woken += 1
            self._consider(state, event, None, NOTHING)
            self._settle(event)
            if not state.live:
                self.timers.stop("interval", event.key)
            self._look_for_end = True
        elif event.timer == "pace":
            self._release()
        elif event.timer == "retry":
            request = self._retries.pop(event.key, None)
            if request is not None and request.firing.state.enabled:
                self._ask_again(event.key, request)
            self._look_for_end = True

    def _on_returned(self, event: CallReturned) -> None:
        called = self._calls.pop(event.call, None)
        self._look_for_end = True
        if called is None or self.ended is not None:
            return
        firing, self._via, _ = called
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
                told = spec.get("fields")
                self._act(
                    firing.knowing(told) if told else firing,
                    self.ensemble.binder.action(spec["action"]),
                )
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
            delay = min(_LONGEST_RETRY, 2.0 ** min(request.attempt - 1, 6))
            self.timers.once(self.now + delay, "retry", event.request)
            if request.attempt == 1:
                word = "grow" if request.delta > 0 else "shrink"
                self._out.append(
                    Log(
                        rule=request.firing.rule,
                        firing=request.firing.number,
                        level="warning",
                        message=f"{word} could not be delivered and will be asked again: "
                        f"{event.reason or 'no answer'}",
                    )
                )
            return
        fields: dict[str, Any] = {"delta": request.delta, "reason": event.reason}
        if event.size is not None:
            fields["size"] = event.size
        self._react((f"resize-{event.outcome}",), None, event, fields)

    def _on_stop(self, event: StopRequested) -> None:
        # The loss of a queue is an end that a resume takes back; this one is not.
        if self.ended is None or self.ended is self._ended_by_loss:
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
            # Not by _end: jobs that wait for their turn are not over, for the run may be resumed.
            self.ended = self._ended_by_loss = Terminate(exit_code=1, reason=reason)
            self.rules.index.touched.clear()
            self._withdrawn.clear()
            self._out.append(self.ended)

    def _on_plugin(self, event: PluginEvent) -> None:
        record = self.table.records.get(event.job) if event.job is not None else None
        if self.ended is None:
            group = record.job.group if record else None
            self._react((event.name,), group, event, dict(event.data), record)

    def _on_problem(self, event: Problem) -> None:
        for job in event.jobs:
            record = self.table.records.get(job)
            if record is not None:
                record.refused = True
        if event.level == "error":
            self._error(event.message)
        else:
            self._out.append(Log(message=event.message, level="warning"))
