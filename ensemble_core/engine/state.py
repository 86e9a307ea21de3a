"""State of a run: its jobs, rules, metrics, timers and pending requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ensemble_core.engine import stored_job_data
from ensemble_core.engine.bad_nodes import BadNodes
from ensemble_core.engine.done_jobs import DoneJobs, keep_done, warn_of_missing_results
from ensemble_core.engine.firing_records import Match, Origin, PendingRequest, Stop
from ensemble_core.engine.foreign_jobs import ForeignJobs
from ensemble_core.engine.generator_state import GeneratorState
from ensemble_core.engine.job_record import IndexRecord, JobRecord, Link
from ensemble_core.engine.job_table import JobTable
from ensemble_core.engine.name_values import all_fields, named_fields
from ensemble_core.engine.past_submits import same_sweep
from ensemble_core.engine.rate_limit import RateLimit
from ensemble_core.engine.result_tables import Tables
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.rule_set import RuleSet
from ensemble_core.engine.scopes import Scope, Slice
from ensemble_core.engine.shared_files import SharedFiles
from ensemble_core.engine.silent_jobs import SilentJobs
from ensemble_core.engine.timers import Timers
from ensemble_core.metrics.store import (
    COMMITTED,
    FIRINGS,
    GAUGES,
    GENERATOR,
    USED,
    MetricPath,
    MetricStore,
)
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.decisions import (
    Call,
    Decision,
    Log,
    Notify,
    Resize,
    Signal,
    Terminate,
)
from ensemble_core.model.ensemble import Ensemble, Limits
from ensemble_core.model.events import JobEvent
from ensemble_core.model.filters import ALL
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import INTERRUPTIONS
from ensemble_core.model.rules import BoundRule, group_path
from ensemble_core.quick_dataclass import replace


def _may_read_any_metric(ensemble: Ensemble) -> bool:
    """Return True if the ensemble has functions, or actions with ``run`` (not ``plan``).

    Both may read every metric.
    """
    return bool(ensemble.functions) or any(
        each.plan is None
        for rule in ensemble.rules
        for action in rule.actions
        for each in action.flat()
    )


def _within(record: JobRecord, scope: Scope) -> bool:
    """Return True if the job belongs to this scope, so that the rule's instance may cancel it."""
    job, index = record.job, record.index_record
    if isinstance(scope, IndexRecord):
        return index is scope or job.group != scope.record.job.group
    if not isinstance(scope, Slice):
        return True
    if job.group in scope.key.groups:
        return index is not None and scope in index.slices
    has = job.parameters
    return all(name in has and has[name] == value for name, value in scope.parameters.items())


#: Start of the names of limits on jobs at once.
_SHARED = "at_once."


def _by_name(limits: Limits) -> dict[str, Any]:
    """Return all limits, those under ``at_once`` one by one."""
    found = {each.name: getattr(limits, each.name) for each in fields(limits)}
    return found | {f"{_SHARED}{name}": most for name, most in found.pop("at_once").items()}


class State:
    """State of a run.

    ``all_statistics``: compute all statistics of all variables. By default, this is done if the
    ensemble has functions or actions with ``run``, which may read any statistic.

    ``shared``: other users share the queue, so its gauges may change at any time.
    """

    # With more than thirty attributes, slots are faster.
    __slots__ = (
        "_serial", "all_tables", "attempts", "bad_nodes", "calls", "changed_limits", "deepest",
        "dropped", "end_check_due", "end_due", "ended", "ensemble", "errors", "events",
        "firings", "foreign_jobs", "generators", "generators_due", "held_at", "idle_check_due",
        "in_heartbeat", "index_over", "limits_met", "limits_reported", "link", "lost",
        "metrics", "notices", "now", "out", "rate_limit", "replaced_limits", "resizes",
        "resumable_end", "retries", "rules", "shared", "shared_files", "signals", "silent_jobs",
        "sources", "started", "stop", "table", "timers", "unhandled_cancels",
        "unhandled_failures", "via", "warnings", "watched_events", "withdrawn",
    )  # fmt: skip

    def __init__(
        self, ensemble: Ensemble, *, all_statistics: bool | None = None, shared: bool = False
    ) -> None:
        if all_statistics is None:
            all_statistics = _may_read_any_metric(ensemble)
        self.ensemble = ensemble
        #: Limits that users have changed in the live run, such as ``at_once.gpu``: each
        #: value in the file, and the new one.
        self.changed_limits: dict[str, tuple[Any, Any]] = {}
        #: Those that a changed file has replaced, until a resume reports it.
        self.replaced_limits: dict[str, None] = {}
        self.shared = shared
        self.now = float("-inf")
        self.metrics = MetricStore(
            ensemble.groups, ensemble.statistics, all_statistics=all_statistics
        )
        self.timers = Timers()
        self.rules = RuleSet(ensemble, self.metrics, self.timers)
        self.table = JobTable(ensemble.groups, self.metrics, self.rules.index)
        self.tabulate()
        self.foreign_jobs = ForeignJobs()
        self.shared_files = SharedFiles()
        self.silent_jobs = SilentJobs()
        #: Names of job events that rules on ``silent``, results or ``fail_if`` need.
        self.watched_events: set[str] = set()
        self.rate_limit = RateLimit(ensemble.limits.submits_per_second)
        self.calls: dict[str, PendingRequest[Call]] = {}
        self.resizes: dict[str, PendingRequest[Resize]] = {}
        #: Messages by id. The field ``to`` keeps only those addresses for which delivery is not
        #: confirmed.
        self.notices: dict[str, Notify] = {}
        #: Signals, by request, that the executor has not confirmed.
        self.signals: dict[str, Signal] = {}
        self.bad_nodes = BadNodes()
        #: Resize requests that are repeated when their timer elapses.
        self.retries: dict[str, PendingRequest[Resize]] = {}
        #: Indices for which a retry was decided, by the id of the new attempt.
        self.attempts: dict[str, IndexRecord] = {}
        #: ``generators``: the generators by name. ``generators_due``: whether one of them may have
        #: to be called.
        self.generators: dict[str, GeneratorState] = {}
        self.generators_due = False
        self._collect_values(ensemble, all_statistics)
        self.started = False
        self.ended: Terminate | None = None
        #: ``lost``: whether the queue was lost. ``resumable_end``: an end that a resume revokes,
        #: because the queue was lost or a limit held jobs.
        self.lost = False
        self.resumable_end: Terminate | None = None
        #: The stop that is in effect. It counts as an end until a resume revokes it.
        self.stop: Stop | None = None
        self.errors = 0
        #: Problems of observers, stored for inspection.
        self.warnings: list[str] = []
        #: Failures that no rule has handled: failed jobs, and jobs that others have cancelled, by
        #: canceller.
        self.unhandled_failures = 0
        self.unhandled_cancels: dict[str, int] = {}
        self.events = 0
        self.firings = 0
        self._serial = 0
        #: Limits that took effect and were reported.
        self.limits_reported: dict[str, None] = {}
        #: Limits that have held further jobs since rules were last notified.
        self.limits_met: dict[str, None] = {}
        #: The number of attempts when only held jobs were last left; 0 after held jobs were
        #: released.
        self.held_at = 0
        # The attributes below are about the current event.
        self.out: list[Decision] = []
        #: True if the run may be over (a rule fired, a call returned, no job is left …).
        self.end_check_due = False
        #: True if the event ended or stopped the run, so that rules on ``end`` have to be
        #: considered.
        self.end_due = False
        #: True if a group, a slice or the run may be idle after the event.
        self.idle_check_due = False
        #: The number of the event that last finished an index.
        self.index_over = 0
        #: True during a heartbeat, at which waiting times are sampled.
        self.in_heartbeat = False
        #: ``link``: the firing that caused the event. ``deepest``: the longest chain of firings
        #: that the event has caused. ``via``: if a function has returned, the firing to which the
        #: new decisions belong.
        self.link: Link | None = None
        self.deepest: Link | None = None
        self.via: Link | None = None
        #: Held jobs that a firing has cancelled, for rules on ``job-cancel``.
        self.withdrawn: list[JobRecord] = []
        #: Indices whose retry a firing has dropped.
        self.dropped: list[IndexRecord] = []
        #: The groups of the jobs of each planned submit, by the first job of the submit.
        self.sources: dict[str, Sequence[JobGroup]] = {}

    def reconfigure(self, ensemble: Ensemble, done: Mapping[str, DoneJobs] = NOTHING) -> list[str]:
        """Continue with a changed file.

        Jobs, counts and metrics stay; unchanged rules keep their state. ``done``: the done jobs of
        some groups, with the results of the changed file.

        Return the rules that were dropped: they were added during the run, and the new file lacks
        names that they use.
        """
        before, self.ensemble = self.ensemble, ensemble
        self.keep_limits()
        ensemble = self.ensemble
        self.table.done.update(done)
        self.tabulate()
        earlier = list(self.rules.states.values())
        all_statistics = _may_read_any_metric(ensemble)
        self.metrics.reconfigure(
            ensemble.groups, ensemble.statistics, all_statistics=all_statistics
        )
        intervals = {state.rule.id: state.rule.trigger.every for state in self.rules.intervals()}
        continued, dropped = self.rules.reconfigure(ensemble)
        groups = {name: each.group for name, each in self.table.groups.items()}
        groups.update(before.groups)
        self.table.reconfigure(
            before.groups, ensemble.groups, self.rules.index, self.attempts.values()
        )
        rules = {
            state.rule.id: continued[id(state)].rule.id
            for state in earlier
            if id(state) in continued
        }
        for name, group in groups.items():
            after = ensemble.groups.get(name, group)
            self.table.groups[name].past.reconfigure(group, after, rules)
            if not same_sweep(group, after):
                self.table.gauges.taken(name)
        self._collect_values(ensemble, all_statistics)
        for name, generator in self.generators.items():
            now, was = ensemble.generators.get(name), before.generators.get(name)
            same = (
                now is not None
                and was is not None
                and (now.given, now.first, now.classes) == (was.given, was.first, ())
            )
            if not same:
                # The file has changed: it may have further points.
                generator.met = generator.exhausted = generator.short = False
            if now is not None and was is not None and generator.points:
                old, new = (
                    spec.replicas or each.groups[spec.group].count
                    for spec, each in ((was, before), (now, ensemble))
                )
                if old != new:
                    self.metrics.warn(
                        f"the generator {name!r} submits {new} job{'s' * (new != 1)} for each "
                        f"further point: its earlier points ({len(generator.points)}) keep {old}"
                    )
        for name in [name for name in before.generators if name not in ensemble.generators]:
            if points := len(self.generators[name].points):
                self.metrics.warn(
                    f"the file no longer has the generator {name!r}: its points ({points}) are not "
                    "known to the others"
                )
        warn_of_missing_results(done, self.table.groups, self.metrics)
        for asked in (self.calls, self.resizes, self.retries):
            for pending in asked.values():
                origin = pending.origin
                origin.rule_state = continued.get(id(origin.rule_state), origin.rule_state)
        self.rate_limit.reconfigure(ensemble.limits.submits_per_second)
        for state in self.rules.intervals():
            if intervals.pop(state.rule.id, None) != state.rule.trigger.every:
                self.schedule(state, self.now)
        for rule in intervals:
            self.timers.stop("interval", rule)
        if ensemble.heartbeat != before.heartbeat:
            self.timers.stop("heartbeat", "")
            if ensemble.heartbeat:
                self.timers.every(ensemble.heartbeat, "heartbeat", "", self.now)
        # Unchanged rules need no check, because they were triggered when their condition became
        # true.
        times_triggered = {
            id(continued[id(state)])
            for state in earlier
            if id(state) in continued
            and state.live
            and continued[id(state)].rule.spec == state.rule.spec
        }
        for state in self.rules.states.values():
            if id(state) not in times_triggered:
                if state.live:
                    self.check_soon(state)
            elif state.watch is not None:
                state.watch.unread = True
        self.end_check_due = True
        return dropped

    def set_limits(self, given: Mapping[str, Any]) -> None:
        """Change limits of the run, from now on. ``given``: arguments of ``Limits``."""
        limits = self.ensemble.limits
        if given.get("at_once"):
            given = {**given, "at_once": {**limits.at_once, **given["at_once"]}}
        before, after = _by_name(limits), _by_name(replace(limits, **given))
        for name in dict.fromkeys((*before, *after)):
            value = after.get(name)
            if before.get(name) != value or name in given:
                was, _ = self.changed_limits.get(name, (before.get(name), None))
                self.changed_limits[name] = (was, value)
        for name in given:
            self.limits_reported.pop(name, None)  # reported again if it holds jobs again
        self.ensemble = replace(self.ensemble, limits=replace(limits, **given))
        self.rate_limit.reconfigure(self.ensemble.limits.submits_per_second)
        self._apply_limits()

    def keep_limits(self) -> None:
        """Apply the limits that users have changed to those of the file, which was read again.

        A limit that differs in the file since then is the file's.
        """
        limits, changed = self.ensemble.limits, self.changed_limits
        now = _by_name(limits)
        given: dict[str, Any] = {}
        at_once = dict(limits.at_once)
        for name, (was, value) in [*changed.items()]:
            shared = name.startswith(_SHARED)
            if now.get(name) != was:
                del changed[name]
                if now.get(name) != value:
                    self.replaced_limits[name.rstrip(".")] = None
            elif not shared:
                given[name] = value
            elif value is None:
                at_once.pop(name.removeprefix(_SHARED), None)
            else:
                at_once[name.removeprefix(_SHARED)] = value
        if changed:
            limits = replace(limits, **given, at_once=at_once)
            self.ensemble = replace(self.ensemble, limits=limits)

    def tabulate(self) -> None:
        """Prepare the tables of the file, which snapshots do not contain."""
        self.all_tables = Tables(self.ensemble.tables, self.table.done, self.ensemble.statistics)

    def prepare_for(self, rule: BoundRule) -> None:
        """Collect the values that a rule reads or waits for, from now on."""
        stored_job_data.keep_for(self.table, rule, self.ensemble.statistics)
        for text in rule.of_group:
            self._collect_metric(text)
        if any(COMMITTED in path for path in rule.metrics):
            self.table.keep_budget(self.ensemble.limits)
        elif any(USED in path for path in rule.metrics):
            self.table.usage.keep()
        if rule.trigger.after is not None:
            self.watched_events.update(("start", *INTERRUPTIONS, "finish", "clean"))
            groups = rule.groups or tuple(self.table.groups)
            records = self.table.records.values()
            self.silent_jobs.watch(groups, rule.trigger.after, records, self.now)
            for group in groups:
                self.silent_jobs.wait(group, self.timers)

    def _collect_values(self, ensemble: Ensemble, all_statistics: bool) -> None:
        """Collect all values that the ensemble reads, from now on.

        With ``all_statistics``, combinations and usage are collected too, because rules that are
        added later may read them.
        """
        self._apply_limits()
        for name, spec in ensemble.generators.items():
            generator = self.generators.get(name)
            if generator is None:
                self.generators[name] = GeneratorState(name, paused=not spec.enabled)
            for text in (*sorted(spec.metrics), *(group_path(n, spec.group) for n in spec.reads)):
                self._collect_metric(text)
        for state in self.rules.states.values():
            self.prepare_for(state.rule)
        for group in ensemble.groups.values():
            if any(entry.replicated for entry in (group, *group.more)):
                stored_job_data.remember(self.table, (group.name,))
            stored_job_data.read(self.table, group.name, group.reads, ensemble.statistics)
            entries = (group, *group.more)
            if any(each.result or each.fail_if is not None for each in entries):
                self.watched_events.add("finish")
            whole = (group_path(n, group.name) for n in group.reads if n.startswith(ALL))
            own = {text for entry in (group, *group.more) for text in entry.metrics}
            for text in (*sorted(own), *whole):
                self._collect_metric(text)
        rules = [each.rule for each in self.rules.states.values()]
        keep_done(self.table.done, self.table.groups, self.metrics, ensemble.tables.values(), rules)
        if all_statistics:
            stored_job_data.remember(self.table, ensemble.groups)
            self.table.usage.keep()

    def _apply_limits(self) -> None:
        limits = self.ensemble.limits
        if limits.holds or self.table.budget is not None:
            self.table.keep_budget(limits)
        if limits.at_once or self.table.has_limits:
            self.table.limit_slots(limits.at_once)

    def _collect_metric(self, text: str) -> None:
        """Collect the values for a metric, including those that its filter needs."""
        path = self.rules.path(text)
        if path is None:
            return
        self.metrics.keep(path)
        if path.variable.endswith(")") and not path.recent:
            counts = path.kind == "count"
            kept = f"count.{path.variable}" if counts else path.variable
            self.table.groups[path.group].keep_variables([kept])

    # -- queries -------------------------------------------------------------------------------

    @property
    def failures(self) -> int:
        """Number of failures that no rule has handled."""
        return self.unhandled_failures + sum(self.unhandled_cancels.values())

    def active(self, group: str | None = None, scope: Scope | None = None) -> list[str]:
        """Return the ids of jobs without an outcome, oldest first, and of retries that are still to
        come.

        ``group`` and ``scope`` restrict the jobs. A slice also includes jobs of other groups that
        have the same parameter values.
        """
        active = {
            job: record
            for job, record in self.table.records.items()
            if record.outcome is None and group in (None, record.job.group)
        }
        coming = ((job, index.record) for job, index in self.attempts.items())
        active |= {job: record for job, record in coming if group in (None, record.job.group)}
        return [job for job, record in active.items() if scope is None or _within(record, scope)]

    def coverage(self, rule: BoundRule, scope: Slice | None) -> tuple[int, int]:
        """Return how many open indices a rule on ``idle`` covers, and how many indices it has ever
        covered.
        """
        if scope is not None:
            return scope.open, scope.ever
        groups, counts = rule.groups or self.table.groups, self.metrics.counts
        ever = sum(counts[name]["submitted"] - counts[name]["repeated"] for name in groups)
        return ever - sum(counts[name]["done"] + counts[name]["lost"] for name in groups), ever

    def read_scoped(
        self, name: str, group: str | None, match: Match, scope: Scope | None = None
    ) -> float | None:
        """Return ``STAT.NAME`` over the scope of the instance, or else over the event's job or
        group.
        """
        if name.startswith(ALL):
            record = match.record
            if record is not None:
                group = record.job.group
            elif isinstance(scope, Slice):
                group = scope.key.groups[0]
            name = name.removeprefix(ALL)
        statistic, _, variable = name.partition(".")
        if group is not None:
            series = self.metrics.series.get((group, variable))
            if statistic == "variance" and series is not None and series.count < 2:
                return None  # within a scope, a single value has no variance
            if series is None or statistic not in self.metrics.statistics or self.in_heartbeat:
                return self.metric(group_path(name, group))
            return series.get(statistic, self.now)
        if scope is None and match.record is not None:
            scope = match.record.index
        found = None if scope is None else scope.read(statistic, variable, self.now)
        return self.metric(name) if found is None and name in GAUGES else found

    def tables(self, scope: Scope | None = None) -> Tables:
        """Return the tables. For an instance of a rule, return the tables over its slice."""
        whole = self.all_tables
        return whole.of_slice(scope.parameters) if isinstance(scope, Slice) else whole

    def metric(self, path: str) -> float | None:
        """Return the current value of a metric, or ``None``."""
        parsed = self.rules.path(path)
        return None if parsed is None else self.read(parsed)

    def read(self, path: MetricPath) -> float | None:
        """Return the current value of the metric with a checked path."""
        if self.in_heartbeat and path.variable == "pending" and path.kind == "series":
            ages = self.table.groups[path.group].ages(self.now)
            series = self.metrics.series[path.group, path.variable]
            return series.get_with(path.statistic, ages, self.now)
        if path.kind == "gauge":
            self._refresh(path.text)
        return self.metrics.get(path, self.now)

    def _refresh(self, gauge: str) -> None:
        if gauge.startswith(FIRINGS):
            self.rules.refresh(gauge)
        elif gauge.startswith(GENERATOR):
            _, name, what = gauge.split(".", 2)
            generator = self.generators.get(name)
            value = None if generator is None else generator.gauge(what)
            if value is not None:
                self.metrics.gauges[gauge] = value
        elif gauge.startswith((USED, COMMITTED)):
            self.metrics.gauges.update(self.table.costs(self.now))
        else:
            self.table.gauges.refresh(gauge)

    def count_heartbeat(self) -> None:
        """At a heartbeat, sample the gauges that statistics and rules need."""
        self.table.gauges.heartbeats += 1
        for gauge in self.metrics.sampled():
            self._refresh(gauge)
            value = self.metrics.gauges.get(gauge)
            if value is not None:
                self.metrics.add("", gauge).record(value, self.now)
                self.rules.index.touched.update(self.rules.index.series.get(("", gauge), {}))
        self.rules.touch_time_dependent()

    def condition_values(self, condition: Condition, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the current values of the fields and metrics in a condition."""
        found = {name: known.get(name) for name in condition.sorted_names}
        found.update((path, self.metric(path)) for path in sorted(condition.metrics))
        return found

    def fields(self, match: Match) -> dict[str, Any]:
        """Return all fields that conditions can use, except ``STAT.NAME``, tables and gauges."""
        return all_fields(self.ensemble, match)

    def known(self, rule_state: RuleState, match: Match, scope: Scope | None) -> dict[str, Any]:
        """Return the values of all names in a rule's condition, for the instance with this
        scope.
        """
        known = self._plain(rule_state, match, scope) if rule_state.plain else {}
        event, record, own, _ = match
        # A column that is named like STAT.NAME or STAT.TABLE.COLUMN takes precedence.
        context = event.context if type(event) is JobEvent else NOTHING
        if rule_state.tabled:
            tables = self.tables(scope)
            for name in rule_state.tabled:
                if name in own or name in context:
                    known |= named_fields((name,), self.ensemble, *match)
                elif (value := tables.statistic(name)) is not None:
                    known[name] = value
        if rule_state.scoped:
            group = rule_state.rule.reads_of
            if scope is None and record is not None and group is None:
                scope = record.index
            for name, statistic, variable in rule_state.scoped:
                if name in own or name in context:
                    known |= named_fields((name,), self.ensemble, *match)
                    continue
                if group is not None:
                    value = self.read_scoped(name, group, match)
                else:
                    value = None if scope is None else scope.read(statistic, variable, self.now)
                if value is not None:
                    known[name] = value
        return known

    def _plain(self, rule_state: RuleState, match: Match, scope: Scope | None) -> dict[str, Any]:
        rule, names = rule_state.rule, rule_state.plain
        known = named_fields(names, self.ensemble, *match)
        for name in names:
            if name in known:
                continue
            value = self.metric(name) if name in rule.of_gauges else None
            if value is None and name in rule.reads:
                value = self.read_scoped(name, rule.reads_of, match, scope)
            if value is not None:
                known[name] = value
        return known

    # -- updates by other parts -----------------------------------------------------------------

    def check_soon(self, state: RuleState) -> None:
        """Have a newly added or enabled rule checked, because its metric may already satisfy it."""
        watch = state.watch
        if watch is not None:
            if watch.path.kind == "gauge":
                self._refresh(watch.path.text)
            self.rules.index.touch(state)

    def schedule(self, state: RuleState, now: float) -> None:
        """Start the timer of a rule with a fixed interval."""
        every = state.rule.trigger.every
        if every is not None:
            if state.live:
                self.timers.every(every, "interval", state.rule.id, now)
            else:
                self.timers.stop("interval", state.rule.id)

    def set_gauges(self, values: Mapping[str, float]) -> None:
        """Store gauges that an executor has reported."""
        index = self.rules.index
        for path, value in values.items():
            if path.startswith(("queue.", "waiting.")):
                self.table.gauges.queue_reported = True
            self.metrics.gauges[path] = value
            watch = index.gauges.get(path)
            if watch is not None:
                index.touched[watch] = None

    def awaits_answers(self) -> bool:
        """Return True while a function or generator is running. It counts as an open job."""
        return bool(self.calls) or any(each.open_call for each in self.generators.values())

    @property
    def only_held(self) -> bool:
        """Return True if jobs remain and limits hold all of them."""
        table = self.table
        if table.budget is None or not table.budget.limits or not table.records:
            return False
        return len(table.records) == sum(len(group.held) for group in table.groups.values())

    def held(self) -> list[str]:
        """Return the jobs that are not handed over yet.

        They wait for a look-up, or ``at_once``, a limit or the rate limit holds them.
        """
        held = [*self.table.looking]
        held += [job for group in self.table.groups.values() for job in group.held]
        return held + [job.id for job, _, _ in self.rate_limit.held]

    def new_id(self, kind: str) -> str:
        """Return a new id for a call or request."""
        self._serial += 1
        return f"{kind}-{self._serial}"

    def error(self, message: str, origin: Origin | None = None, *, tolerated: bool = False) -> None:
        """Report an error. A natural end then has exit code 1. With ``tolerated``, only warn."""
        self.errors += not tolerated
        fields = {} if origin is None else origin.decision_fields
        self.out.append(Log(**fields, message=message, level="warning" if tolerated else "error"))
