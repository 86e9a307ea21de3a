"""The engine: a pure state machine that turns events into decisions.

Its laws, which tests check (details in the comment below):

1. **Purity.** The same events give the same decisions. The engine has no clock, I/O, threads or
   randomness.
2. **Order.** An event updates the job table, then the metrics. Then rules on metrics are evaluated,
   then the other rules, both in file order.
3. **End.** After ``terminate``, nothing is submitted, and only rules with the trigger ``end`` fire.
4. **Repetitions.** A rule fires at most ``repetitions`` times. With ``each``, this limit holds for
   each job, or for each combination of parameters.
5. **Counting.** Each attempt of a job is counted once: ``submitted = finished + cancelled +
   active``, and ``finished = success + failed``.
6. **Chains.** Firings form a chain if each one causes the next and no job finishes in between. A
   rule whose firing would make a chain longer than ``limits.chain`` is switched off.
7. **Failures.** A run that ends by itself has exit code 0 if all failed jobs were handled, for
   example retried, and 1 otherwise. A cancelled job has failed too, unless the run had asked for
   the cancel.
8. **Natural end.** The run ends by itself when no job is active and nothing is pending: no call of
   a function, no retry and no timer of a rule.
9. **Stop.** A stop ends the run until a resume continues it.
"""

# Details of the laws. An *index* is a job of a group with all its *attempts* (the first submission
# and the retries); a *slice* is all jobs with the same values of some parameters.
#
# 1. **Purity.** Only ``Engine.handle(event) -> decisions`` changes the state. The engine has no
#    clock, I/O, threads, randomness or logging; each event carries its time. The same events give
#    the same decisions, byte for byte.
# 2. **Order.** An event first updates the job table and the metrics. Then the engine considers the
#    rules on the updated metrics, and after them the rules on the event itself. In each of these
#    two steps, every rule is considered once, in file order (rules that were added later come
#    last). The effects of a firing (a submitted job, a changed group, a switched rule) are visible
#    to the next rule. Firings can change counters such as ``submitted``; rules on these counters
#    follow, until no counter changes any more. If the event finished an index, a call or a wait,
#    these steps follow: record the result; rules on ``job-done`` or ``job-lost``; rules on counters
#    that this changed; rules on ``idle``, narrowest scope first (slices in the order of their first
#    submit, groups, lists of groups, the run), then in file order. Each step is complete before the
#    next one begins. A rule or instance sees each idle state once, but never while a call is
#    pending, before a first job, or because of a resume.
# 3. **End.** After ``terminate``, no rule fires and nothing is submitted, not even for the rest of
#    the same event. Jobs that remain are counted until they are over. The only exception is rules
#    on ``end``: they are considered last in the event that ends or stops the run, and may only log
#    and notify. (A resume may submit jobs again that an earlier controller had submitted.)
# 4. **Repetitions.** A rule fires at most ``repetitions`` times. With ``each``, this holds for
#    every instance, and every instance has its own backoff and its own count of consecutive checks
#    (``for``). If a resize request is not delivered, repeating it belongs to the same firing. Rules
#    that are exhausted, disabled or cut are removed from the rule index and cost nothing; an
#    exhausted instance costs one look-up.
# 5. **Counting.** Each of our jobs is counted once, by its outcome. At all times, ``submitted =
#    finished + cancelled + active``, where ``finished = success + failed``. The outcome is known at
#    ``finish``, or at ``clean`` for a job that never ran. Duplicate events change nothing. These
#    counters count attempts; ``open + done + lost`` is the number of all indices that were ever
#    submitted. When an attempt ends, at most one retry is decided, by the first rule that fires. If
#    a waiting retry is cancelled, its index is lost. At most ``at_once`` attempts of a group are in
#    the queue.
# 6. **Chains.** Firings form a chain if each causes the next one and no job finishes in between. A
#    chain longer than ``limits.chain`` is cut: the next rule (or instance) is switched off, and an
#    error shows the chain. A retry starts a new chain.
# 7. **Failures.** A failed job counts as handled if, at its ``clean``, a rule on failures has
#    matched one of its events, or a rule on ``count.G.failed`` has not yet reached its number. It
#    also counts as handled if it is retried, or if it belongs to a lost point of a generator with
#    the option ``failed``. A lost index counts as a failed job, unless the run asked for the cancel
#    of its last attempt: a rule, a request, a generator, an end or a stop did so before the
#    attempt's first exception arrived. Cancels by others keep the outcome ``cancelled``: rules on
#    ``job-cancel``, ``job-lost`` or the cause handle them, or a rule on ``count.G.cancelled`` that
#    has not yet reached its number. A group's ``retry`` retries them only if its condition is about
#    the cause. A natural end has exit code 0 if all failures were handled, and 1 otherwise.
# 8. **Natural end.** The run ends when no job is active, no call is pending, no retry waits, rules
#    on ``idle`` were considered, and no live rule waits for time to pass. Jobs that could exceed a
#    limit are held. If only held jobs are left, the run ends with exit code 4, after the rules on
#    ``limit``. A resume revokes such an end, and also an end because of a lost queue.
# 9. **Stop.** A stop is an end that a resume revokes. Events that arrive before the resume are
#    deferred; the resume handles them before it repeats any decision. A job that the stop cancelled
#    is requeued at its ``clean``: its record and statistics start again, nothing is counted, and no
#    rule is triggered. If such a job exits before it is cancelled, the resume counts it by its
#    outcome, and rules are triggered then. The same holds for a job that ends with its allocation
#    (exception ``interrupted``), also if the run continues. If the queue itself ends in order
#    (``ExecutorLost.drained``), the run stops.
#
# Only one thread, which the runtime owns, calls the engine.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from ensemble_core.engine import added_sweep_values
from ensemble_core.engine.agenda import Agenda
from ensemble_core.engine.decision_answers import DecisionAnswers
from ensemble_core.engine.done_jobs import DoneJobs, TableRow
from ensemble_core.engine.end_of_run import Stopping
from ensemble_core.engine.firing_records import Match, Steps
from ensemble_core.engine.generator_scheduler import GeneratorScheduler
from ensemble_core.engine.job_completion import JobCompletion
from ensemble_core.engine.job_events import apply_job_event, end_unsubmitted
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_states import ATTEMPT, NOT_HANDED_OVER
from ensemble_core.engine.rate_limit import HeldJob
from ensemble_core.engine.report import Report, report_of
from ensemble_core.engine.requests import carry_out
from ensemble_core.engine.result_and_fail_if import check_result, compute_result
from ensemble_core.engine.result_tables import Tables
from ensemble_core.engine.rule_evaluation import RuleEvaluation, RuleObserver
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.state import State
from ensemble_core.engine.timers import Timer
from ensemble_core.errors import no_such
from ensemble_core.metrics.store import MetricsView
from ensemble_core.model.causes import OUTPUT_LIMIT, OUTPUT_MISSING
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Call, Cancel, Decision, Log, Terminate
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Delivered,
    Event,
    ExecutorLost,
    Identified,
    JobEvent,
    LookedUp,
    Observed,
    PluginEvent,
    Problem,
    Requested,
    ResizeOutcome,
    Resources,
    Resumed,
    Signalled,
    Started,
    StopRequested,
    TimerElapsed,
)
from ensemble_core.quick_dataclass import replace

#: Job events that may have to be changed, dropped or checked before they take effect.
_ENDS = frozenset({"exception", "finish"})

#: How many distinct warnings are stored for inspection at most.
_MOST_WARNINGS = 20


class Engine:
    """The state machine of one run: its ``state``, and the rules that act on it.

    An engine is built from an ensemble, or from the state in a snapshot. Other code may read
    ``state``, but only ``handle`` and ``reconfigure`` change it.
    """

    def __init__(
        self,
        ensemble: Ensemble | State,
        *,  # the following arguments are those of :class:`State`
        all_statistics: bool | None = None,
        shared: bool = False,
    ) -> None:
        if isinstance(ensemble, Ensemble):
            ensemble = State(ensemble, all_statistics=all_statistics, shared=shared)
        else:
            ensemble.keep_limits()
        self.state = ensemble
        ensemble.table.over = None
        self._rules = RuleEvaluation(ensemble)
        self._effects = self._rules.effects
        self._end_of_run = self._effects.end_of_run
        self._generating = GeneratorScheduler(self._rules)
        self._completion = JobCompletion(self._rules, self._generating.jobs)
        self._agenda = Agenda(ensemble, self._rules, self._completion, self._generating)
        self._answers = DecisionAnswers(self._rules, self._completion, self._generating)
        self._stopping = Stopping(ensemble, self._effects.submission)
        #: True while deferred events are handled. The rows in these events have been counted
        #: already.
        self._catching_up = False
        self._observer: RuleObserver | None = None
        #: Copy of the metrics for the functions that the current event calls.
        self._view: MetricsView | None = None
        self._handlers: dict[type[Event], Callable[[Any], Steps]] = {
            Observed: self._on_observed,
            Started: self._on_started,
            Resumed: self._on_resumed,
            Resources: self._on_resources,
            TimerElapsed: self._on_timer,
            CallReturned: self._answers.handle_return,
            CallFailed: self._answers.handle_failure,
            ResizeOutcome: self._answers.handle_resize,
            Delivered: self._answers.handle_delivery,
            Signalled: self._answers.handle_signalled,
            StopRequested: self._on_stop,
            ExecutorLost: self._on_lost,
            PluginEvent: self._on_plugin,
            Problem: self._on_problem,
            Requested: self._on_requested,
            Identified: self._on_identified,
            LookedUp: self._on_looked_up,
        }

    def observe(self, observer: RuleObserver) -> None:
        """Report what happens to rules to this observer, from now on."""
        self._rules.observer = self._observer = observer

    def reconfigure(
        self, ensemble: Ensemble, earlier: Mapping[str, DoneJobs] = NOTHING
    ) -> list[str]:
        """Continue with a changed file, between two events.

        ``earlier`` has the jobs that were done before, with the results of the changed file, for
        groups for which the engine has not kept them. Without them, new tables lack these jobs.

        Return the rules that were dropped because they do not fit the new file.
        """
        dropped = self.state.reconfigure(ensemble, earlier)
        if self._observer is not None:
            self._observer.reconfigured()
        return dropped

    # -- queries -------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """Number of jobs whose last event has not arrived yet."""
        return len(self.state.table.records)

    def in_queue(self) -> list[tuple[str, JobRecord]]:
        """Return the jobs in the queue: submitted, and without a last event so far."""
        over = () if self.state.stop is None else self.state.stop.over
        return [
            (job, record)
            for job, record in self.state.table.records.items()
            if record.state not in NOT_HANDED_OVER and record.reused is None and job not in over
        ]

    @property
    def waits_for_cancelled(self) -> bool:
        """True while a job that a stop has cancelled is still in the queue."""
        stop = self.state.stop
        return (
            stop is not None
            and len(stop.over) < len(self.state.table.records)
            and any(
                job not in stop.over and job in self.state.table.records
                for job in stop.decision.cancel
            )
        )

    def concerns(self, event: Event) -> bool:
        """Return True if this event can have an effect.

        Events of foreign jobs have an effect only if a rule has ``scope: queue``.
        """
        return type(event) is not JobEvent or event.ours or self.state.rules.watches_foreign

    def rule_of(self, call: Call) -> Mapping[str, Any]:
        """Return the rule that made a call, as it was when it made the call."""
        asked = self.state.calls.get(call.call)
        if asked is not None:
            return asked.origin.rule_state.rule.spec
        state = self.state.rules.states.get(call.rule or "")
        return {} if state is None else state.rule.spec

    def next_timer(self) -> Timer | None:
        """Return the next timer: the time at which the engine needs a timer event, and its
        purpose.
        """
        return None if self.state.ended else self.state.timers.first()

    def snapshot(self) -> MetricsView:
        """Return the current values of all metrics in a form that another thread can read."""
        return self._metrics_view() if self._view is None else self._view

    def tables(self) -> Tables:
        """Return the file's tables. Each table is computed when it is read."""
        return self.state.tables()

    def table(self, name: str) -> tuple[Sequence[str], Sequence[TableRow]]:
        """Return the columns and rows of a table of results, or of the points of a generator.

        Raises :class:`UsageError` if the file has neither with this name.
        """
        generators = self.state.ensemble.generators
        if name in generators and name in self.state.generators:
            return self.state.generators[name].table(generators[name].vocs)
        tables = self.tables()
        if name not in tables:
            if_empty = "the file has no 'results:'; without a name, each job has a row"
            raise no_such("the run", "table", name, [*tables, *generators], if_empty)
        return tables.columns(name), tables[name]

    def _metrics_view(self) -> MetricsView:
        self.state.table.gauges.fill()
        self.state.rules.fill()
        for generator in self.state.generators.values():
            self.state.metrics.gauges.update(generator.gauges())
        self.state.metrics.gauges.update(self.state.table.costs(self.state.now))
        return self.state.metrics.snapshot(self.state.now)

    def report(self) -> Report:
        """Return a report on the run."""
        return report_of(self.state)

    # -- events --------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Decision]:
        """Process one event and return the decisions, in order."""
        state = self.state
        state.events += 1
        out: list[Decision] = []
        state.out = out
        state.link = state.deepest = None
        try:
            if event.timestamp > state.now:
                state.now = event.timestamp
                if state.metrics.recent:
                    state.table.counters.now = state.now
            if state.stop is not None and self._stopping.defers(event):
                steps: Steps = None
            elif type(event) is JobEvent:
                steps = self._on_job(event)
            else:
                steps = self._handlers[type(event)](event) or ()
            if steps is not None or state.end_check_due:
                self._agenda.work(event, steps, self._agenda.of_run)
                if state.metrics.recent:
                    state.rules.await_drops(state.now)
        except Exception as error:  # a plugin's malformed event must not end the run
            self._recover(event, error)
        # Read the metrics here, not when they are used, so that a replay reports a statistic's
        # error at the same event.
        self._view = None
        if out and any(type(each) is Call and each.kind != "generator" for each in out):
            self._view = self._metrics_view()
        if state.metrics.reports:
            self._report_metric_problems()
        if state.end_check_due:
            state.sources = {}
            if state.started and state.ended is None:
                self._end_of_run.end_if_over()
            if state.end_due:
                self._consider_end_rules(event)
        if self._observer is not None:
            self._observer.handled(event)
        return out

    def _recover(self, event: Event, error: Exception) -> None:
        """Continue after an exception in the middle of an event.

        Decisions made before it stay valid.
        """
        state = self.state
        state.via = None
        state.in_heartbeat = False
        state.end_check_due = True
        state.error(f"cannot handle an event of type {type(event).__name__}: {error!r}")

    def _consider_end_rules(self, event: Event) -> None:
        """Consider the rules on ``end``."""
        state, ended = self.state, self.state.ended
        state.end_due = False
        if ended is None or "end" not in state.rules.index.by_event:
            return
        how = "stopped" if ended.stopped or ended is state.resumable_end else "ended"
        if ended is state.resumable_end and ended.exit_code == 4:
            how = "limited"
        state.link = state.deepest = None
        fields = {"state": how, "exit_code": ended.exit_code, "reason": ended.reason}
        self._rules.close(event, fields)

    def _report_metric_problems(self) -> None:
        """Report errors in statistics, and then warnings."""
        reports = self.state.metrics.reports
        for level, message in sorted(reports, key=itemgetter(0)):
            if level == "error":
                self.state.error(message)
            else:
                self.state.out.append(Log(message=message, level="warning"))
        reports.clear()

    # -- jobs ----------------------------------------------------------------------------------

    def _on_job(self, event: JobEvent) -> Steps:
        state = self.state
        record = state.table.records.get(event.job) if event.ours else None
        if record is None:
            self._on_foreign_job(event)
            return ()
        state.link = record.link
        name = event.name
        # Most events are none of these and concern no rule, so this path must be fast.
        if name in _ENDS:
            if name == "exception":
                kind = event.context.get("type")
                if kind == "interrupted":
                    event = self._stopping.interrupted(record, event)
                elif kind == OUTPUT_MISSING and record.cancel in ("asked", "stopping"):
                    # The run was cancelling the job: the outcome must not depend on which was
                    # faster.
                    event = replace(event, context={**event.context, "type": "cancel"})
                elif kind == OUTPUT_LIMIT and not self._cancel_for_output(record):
                    return None
            elif (
                state.watched_events
                and record.source is not None
                and record.source.fail_if is not None
                and "finish" in ATTEMPT[record.state]
            ):
                check_result(state, record, record.source.fail_if, event)
        if record.cancel == "stopping" and self._stopping.absorbs(record, event):
            if not self._catching_up:
                self._stopping.submit_requeued()
            return None
        trigger_events = apply_job_event(state.table, record, event)
        if trigger_events is None:
            return None
        if state.watched_events and name in state.watched_events:
            if state.silent_jobs.of:
                state.silent_jobs.handle_event(record, name, state.now, state.timers)
            if record.outcome == "success" and name == "finish":
                compute_result(state, record, event)
        index = state.rules.index
        if state.ended is not None:
            self._rules.report_trigger_events(trigger_events, record.job.group)
            index.touched.clear()
            if name == "clean":
                return [(self._completion.settle_index, record.index)]
            return None
        if (
            index.touched
            or self._observer is not None
            or (name in index.job_events and not index.by_event.keys().isdisjoint(trigger_events))
        ):
            self._rules.react(trigger_events, record.job.group, event, record)
            if index.touched or state.withdrawn or state.dropped:
                return [(self._completion.handle_clean, record)] if name == "clean" else ()
        return self._completion.handle_clean(record, event) if name == "clean" else None

    def _cancel_for_output(self, record: JobRecord) -> bool:
        """Cancel a job that has written too much. Return False if it ends anyway."""
        if record.exception is not None or record.outcome is not None or record.cancel != "none":
            return False
        self._effects.submission.ask_cancel((record.job.id,))
        self.state.out.append(Cancel(jobs=(record.job.id,)))
        return True

    def _on_foreign_job(self, event: JobEvent) -> None:
        state = self.state
        if event.ours or state.ended is not None:
            return  # a late event, after the end of the job or the run
        if state.rules.watches_foreign:
            names, fields = state.foreign_jobs.handle_event(event)
            self._rules.react(names, None, event, None, fields, foreign=True)

    def _on_observed(self, event: Observed) -> None:
        record = self.state.table.records.get(event.job)
        if record is None:
            return
        self.state.link = record.link
        if self.state.silent_jobs.of:
            self.state.silent_jobs.note_row(record, self.state.now)
        if event.restarted and record.rows is not None and record.index_record is not None:
            record.index_record.forget_rows(event.observer)
        if not self._catching_up:
            record.count_row(event.observer, event.restarted)
        statistics = self.state.table.statistics
        if event.clock is not None:
            if record.index_record is not None and record.index_record.repeats(
                event.observer, event.clock
            ):
                self.state.out += statistics.repeat(record, event, event.timestamp)
                return
            statistics.observe(record, event, event.timestamp)
            if record.clocks is None:
                record.clocks = {}
            record.clocks[event.observer] = event.clock
        else:
            statistics.observe(record, event, event.timestamp)
        if self.state.generators:
            self._generating.jobs.observed(record, event)
        fields: dict[str, Any] = dict(event.values)
        if event.clock is not None:
            fields.setdefault("clock", event.clock)
        fields["observer"] = event.observer
        # How many rows arrive after a cancel is random, so rules ignore these rows.
        names = () if record.cancel == "asked" else ("observed",)
        self._rules.react(names, record.job.group, event, record, fields)

    def _on_identified(self, event: Identified) -> None:
        for job, (_, _, *inputs) in event.jobs.items():
            record = self.state.table.records.get(job)
            if record is not None:
                record.inputs = inputs[0] if inputs else None

    def _on_looked_up(self, event: LookedUp) -> None:
        if self.state.ended is None:  # a resume repeats the look-up
            self._effects.submission.looked_up(event.hits, event.misses)

    # -- the run and its queue -----------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        state = self.state
        state.started = True
        state.end_check_due = True
        if state.ensemble.heartbeat:
            state.timers.every(state.ensemble.heartbeat, "heartbeat", "", event.timestamp)
        for rule_state in state.rules.intervals():
            state.schedule(rule_state, event.timestamp)
        state.set_gauges(event.resources)
        state.generators_due = bool(state.generators)
        for rule_state in state.rules.states.values():
            if rule_state.rule.crosses and rule_state.live:
                state.check_soon(rule_state)  # counts and gauges already have a value
        self._rules.react(("start",), None, event)

    def _on_resumed(self, event: Resumed) -> Steps:
        """Handle the events that a stop deferred, and repeat decisions that may have been lost."""
        state = self.state
        stop = state.stop
        deferred = self._stopping.take_back()
        if event.reopened:
            state.ended = None
        if state.ended is not None and state.ended is state.resumable_end:
            state.ended = None
            if state.lost:
                state.errors -= 1
        elif stop is not None and state.lost:
            state.errors -= 1
        state.lost = False
        state.resumable_end = None
        state.end_check_due = True
        at = max(state.now, event.at)
        state.silent_jobs.restart(at, state.timers)
        state.rules.true_conditions.resume(at)
        # Report only changed gauges, as in an uninterrupted run.
        gauges = state.metrics.gauges
        state.set_gauges({p: v for p, v in event.resources.items() if gauges.get(p) != v})
        self._answers.redeliver()
        self._effects.submission.repeat_look_ups()
        cancelled = self._resubmit(event.absent)
        for job in event.gone:
            if job in state.table.records:
                self._stopping.requeue(state.table.records[job])
        self._stopping.submit_requeued()
        again = tuple(
            job
            for job, record in state.table.records.items()
            # Without a stop, only jobs that are withdrawn from a bad node are "stopping".
            if (record.cancelling or (record.cancel == "stopping" and stop is None))
            and record.outcome is None
            and (stop is None or job not in stop.over)
        )
        if again:
            state.out.append(Cancel(jobs=again))
        self._answers.repeat_signals()
        calls, resizes = list(state.calls), list(state.resizes)
        if deferred:
            self._catch_up(deferred)
        if state.ended is not None:
            state.rules.index.touched.clear()
            return [(self._completion.settle_index, record.index) for record in cancelled]
        for call in calls:
            if call in state.calls:
                state.calls[call] = asked = state.calls[call].retry()
                state.out.append(asked.decision)
        for request in resizes:
            if request in state.resizes:
                self._answers.repeat_request(request)
        if state.generators:
            self._generating.resumed()
        state.withdrawn += cancelled
        added_sweep_values.complete(self._effects.submission, event)
        retried = self._completion.retry_lost(event)
        self._rules.react((), None, event)
        reopened: Steps = None
        if event.request:
            requested = Requested(event.timestamp, event.request["by"], event.request["action"])
            reopened = self._on_requested(requested)
        return [*(reopened or ()), *retried, (self._completion.resumed,)]

    def _catch_up(self, deferred: Sequence[Event]) -> None:
        """Handle the events that a stop deferred, as if they happened now."""
        state = self.state
        self._catching_up = True
        for event in deferred:
            state.link = state.deepest = None
            try:
                if type(event) is JobEvent:
                    steps = self._on_job(event)
                else:
                    steps = self._handlers[type(event)](event)
                self._agenda.work(event, steps, self._agenda.of_deferred)
            except Exception as error:  # a plugin's malformed event, as in `handle`
                self._recover(event, error)
        self._catching_up = False
        self._stopping.submit_requeued()
        state.link = state.deepest = None

    def _resubmit(self, absent: Sequence[str]) -> list[JobRecord]:
        """Submit jobs again that never reached the queue.

        If such a job is being cancelled, end it instead. Return the jobs that were ended.
        """
        state = self.state
        cancelled: list[JobRecord] = []
        absent_jobs: list[HeldJob] = []
        for name in absent:
            record = state.table.records.get(name)
            if record is None or record.seen or record.state != "queued":
                continue
            # In contrast to jobs that an ended run left to the queue, this submit is repeated.
            record.change_cancel("submit again")
            if record.cancelling:
                end_unsubmitted(state.table, record)
                cancelled.append(record)
            else:
                absent_jobs.append((record.job, None, 0))
        self._effects.submission.submit_each(absent_jobs)
        return cancelled

    def _on_resources(self, event: Resources) -> None:
        self.state.set_gauges(event.values)
        self._rules.react((), None, event)

    def _on_stop(self, event: StopRequested) -> None:
        state = self.state
        if event.then != "end":
            self._stopping.begin(event, [job for job, _ in self.in_queue()])
            return
        # This end replaces a stop, or an earlier end that a resume would revoke.
        by_stop = state.stop is not None
        self._catch_up(self._stopping.take_back(final=True))
        if state.ended is None or by_stop or state.ended is state.resumable_end:
            cancel = tuple(state.active())
            end = Terminate(exit_code=event.exit_code, cancel=cancel, reason=event.reason)
            self._end_of_run.end(end)

    def _on_lost(self, event: ExecutorLost) -> None:
        state = self.state
        if event.drained and (state.ended is None or state.stop is not None):
            self._stopping.drained(event)
            return
        state.lost = True
        reason = f"executor {event.executor} lost its queue: {event.reason}"
        state.error(f"{reason}\n  hint: {event.hint}" if event.hint else reason)
        if state.ended is None:
            self._end_of_run.lose(reason)

    def _on_problem(self, event: Problem) -> None:
        state = self.state
        for job in event.jobs:
            record = state.table.records.get(job)
            if record is None:
                continue
            if event.lasts:
                record.unparsed_output = True
                state.table.groups[record.job.group].unparsed_output = True
            else:
                record.change_cancel("refuse")
        if event.level == "error":
            state.error(event.message)
        else:
            state.out.append(Log(message=event.message, level=event.level))
        if event.lasts and len(state.warnings) < _MOST_WARNINGS:
            state.warnings.append(event.message)

    def _on_requested(self, event: Requested) -> Steps:
        self.state.end_check_due = True
        if self.state.ended is not None:
            return None
        return carry_out(self._effects, event, self._completion.settle_index)

    def _on_plugin(self, event: PluginEvent) -> None:
        record = self.state.table.records.get(event.job) if event.job is not None else None
        if self.state.ended is None:
            group = record.job.group if record else None
            self._rules.react((event.name,), group, event, record, dict(event.data))

    # -- timers --------------------------------------------------------------------------------

    def _on_timer(self, event: TimerElapsed) -> Steps:
        state = self.state
        if state.ended is not None:
            return None  # after a resume, the timer is still due
        state.timers.elapsed(event.timer, event.key, event.timestamp)
        if event.timer == "heartbeat":
            state.in_heartbeat = True
            state.end_check_due = True
            state.count_heartbeat()
            self._rules.react(("heartbeat",), None, event)
            return [(self._end_heartbeat,)]
        if event.timer == "interval":
            rule_state = state.rules.states[event.key]
            self._rules.consider(rule_state, Match(event))
            state.end_check_due = True
            return [(self._keep_interval, rule_state)]
        if event.timer in ("for", "within"):
            self._rules.consider_at_time(event)
            state.end_check_due = True
            return ()
        if event.timer == "silent":
            found = state.silent_jobs.found(event.key, state.now)
            state.end_check_due = True
            return [
                *((self._on_silence, *each) for each in found),
                (self._await_silence, event.key),
            ]
        if event.timer == "pace":
            self._effects.submission.release()
        elif event.timer == "attempt":
            index = state.attempts.get(event.key)
            if index is not None:
                index.waits = False
                return [(self._completion.settle_index, index)]
        elif event.timer == "retry":
            asked = state.retries.pop(event.key, None)
            if asked is not None and asked.origin.rule_state.enabled:
                state.resizes[event.key] = asked
                self._answers.repeat_request(event.key)
            state.end_check_due = True
        return None

    # The methods below are steps that follow from timers.

    def _end_heartbeat(self, event: Event) -> None:
        self.state.in_heartbeat = False

    def _keep_interval(self, rule_state: RuleState, event: TimerElapsed) -> None:
        if not rule_state.live:
            self.state.timers.stop("interval", event.key)

    def _on_silence(self, seconds: float, job: str, event: Event) -> None:
        record = self.state.table.records.get(job)
        if record is not None and record.cancel != "asked":
            self._rules.silent(record, seconds, event)

    def _await_silence(self, key: str, event: Event) -> None:
        self.state.silent_jobs.wait(key, self.state.timers)
