"""Decides what follows when an attempt of a job ends: a retry, or the end of the job."""

from __future__ import annotations

from collections.abc import Iterable

from ensemble_core.engine.firing_records import Match, Step, Steps
from ensemble_core.engine.generator_scheduler import PointJobs
from ensemble_core.engine.job_record import BY_OTHERS, IndexRecord, JobRecord
from ensemble_core.engine.name_values import host_of
from ensemble_core.engine.retries import group_retry, open_again
from ensemble_core.engine.rule_evaluation import RuleEvaluation
from ensemble_core.model.events import Event
from ensemble_core.model.retry_policy import RetryPolicy


class JobCompletion:
    """Handles retries and the ends of jobs."""

    def __init__(self, rules: RuleEvaluation, points: PointJobs) -> None:
        self.state = rules.state
        self._points = points
        self._rules = rules
        self._submission = rules.effects.submission

    def gone(self, record: JobRecord, event: Event) -> Steps:
        """Handle a held job that a firing has cancelled."""
        self.state.link, group = record.link, record.job.group
        self._rules.report_trigger_events(("job-cancel",), group)
        self._rules.event_rules(("job-cancel",), group, Match(event, record))
        return self.handle_clean(record, event)

    def handle_clean(self, record: JobRecord, event: Event) -> Steps:
        """Handle the end of an attempt, after the rules on its last event were considered."""
        state, source = self.state, record.source
        if source is not None and source.retry is not None and record.failed:
            self._retry_by_group(record, source.retry, event)
        if record.outcome == "failed" and "bad-node" in state.rules.index.by_event:
            self._count_on_nodes(record, event)
        index = record.index_record
        if index is not None and index.instances and state.rules.true_conditions.pending:
            self._rules.interrupt(record)
        if index is None or (
            index.record is record and not (index.retry or index.calls or index.waits or index.over)
        ):  # usually, settle_index has nothing to decide, so skip the call
            follow = self._finish_index(record, event)
        else:
            follow = self.settle_index(index, event)
        if state.table.has_limits:
            return [*(follow or ()), (self._hand_over, (record.job.group,))]
        return follow

    def _count_on_nodes(self, record: JobRecord, event: Event) -> None:
        """Count a failure on each node of the job, and consider the rules on ``bad-node``.

        A retry of the job, which has been decided, is submitted afterwards.
        """
        state, job = self.state, record.job
        name, cause = f"{job.group}.{job.index}", record.why or "unknown"
        rules = state.rules.index.waiting(("bad-node",), job.group)
        triggers = [each.rule.trigger for each in rules]
        every = state.rules.index.by_event.get("bad-node", {}).values()
        longest = max((each.rule.trigger.within for of in every for each in of), default=0.0)
        for node in filter(None, (host_of(record) or "").split(",")):
            for position, fields in state.bad_nodes.fail(
                node, name, cause, state.now, triggers, longest
            ):
                self._rules.report_trigger_events(("bad-node",), job.group)
                self._rules.consider(rules[position], Match(event, None, fields))

    def _hand_over(self, groups: Iterable[str], event: Event) -> None:
        if self.state.ended is None:
            for group in groups:
                self._submission.hand_over(group)

    def retry_lost(self, event: Event) -> list[Step]:
        """Retry lost jobs of groups whose ``retry`` has changed in the file, if it applies now."""
        steps: list[Step] = []
        for index in [*self.state.table.lost.values()]:
            record = index.record
            policy = None if record.source is None else record.source.retry
            changed = self.state.table.groups[record.job.group].past.retries
            if not changed or policy is None or not record.failed:
                continue
            decision = group_retry(self.state, record, policy, event)
            if decision is not None:
                open_again(self._submission, index, decision, retried=index.retried + 1)
                steps.append((self.settle_index, index))
        for group in self.state.table.groups.values():
            group.past.retries = False
        return steps

    def _retry_by_group(self, record: JobRecord, policy: RetryPolicy, event: Event) -> None:
        index = record.index
        if index.retry is not None or self.state.ended is not None:
            return
        decision = group_retry(self.state, record, policy, event)
        if decision is not None:
            index.retried += 1
            self._submission.retry(index, decision)

    def settle_index(self, index: IndexRecord, event: Event) -> Steps:
        """Submit the next attempt of an index, or finish the index.

        Do nothing while an attempt, a call or a wait of the index is pending.
        """
        state = self.state
        if index.over or index.waits or index.record.job.id in state.table.records:
            return None
        if index.calls:
            if index.state != "called":
                state.table.move_index(index, "called")
            return None
        if index.retry is not None:
            if state.ended is None and self._submission.begin_attempt(index):
                return ()
            if state.ended is not None and state.ended is state.resumable_end:
                if index.state != "waiting":
                    state.table.move_index(index, "waiting")
                return None  # a resume revokes this end, so the index is not lost
        return self._finish_index(index.record, event)

    def resumed(self, event: Event) -> Steps:
        """Continue retries and held jobs after a resume that revoked an end or changed the file."""
        steps: list[Step] = [(self.settle_index, each) for each in self.state.attempts.values()]
        return [*steps, (self._hand_over, tuple(self.state.table.groups))]

    def _finish_index(self, record: JobRecord, event: Event) -> Steps:
        """Finish an index after its last attempt."""
        state, index = self.state, record.index_record
        done = record.outcome == "success"
        if index is not None:
            done = done and index.retry is None and not index.dropped
        state.table.close(record, done)
        if state.generators:
            self._points.index_over(record, done)
        rules = state.rules.index
        if not state.table.records or state.table.budget is not None:
            state.end_check_due = True
        state.index_over = state.events
        if state.table.emptied or (
            rules.broad_idle and (rules.new_idle or not state.table.groups[record.job.group].open)
        ):
            state.end_check_due = state.idle_check_due = True
        if state.ended is not None:
            rules.touched.clear()
            return None
        name, group = "job-done" if done else "job-lost", record.job.group
        if index is not None and done and index.result:
            state.table.statistics.record_result(index, state.now)
        state.link = record.link
        if self._rules.observer is not None:
            self._rules.report_trigger_events((name,), group)
        if name in rules.by_event:
            if index is None:
                # A rule may create the record's index only now.
                record.index.state = "done" if done else "lost"
            match = Match(event, record)
            for rule_state in rules.waiting((name,), group):
                self._rules.consider(rule_state, match)
        if not done and record.failed and not record.failure_rule_matched:
            return [(self._judge, record)]
        return () if rules.touched or state.withdrawn or state.dropped else None

    def _judge(self, record: JobRecord, event: Event) -> None:
        """Count a failure that no rule has handled (law 7 in ``engine``)."""
        state, outcome = self.state, record.outcome or "failed"
        if record.failure_rule_matched or state.rules.awaits_failures(record.job.group, outcome):
            return
        record.index.unhandled = True
        if record.cancelled_by_others:
            by = record.cancelled_by or BY_OTHERS
            state.unhandled_cancels[by] = state.unhandled_cancels.get(by, 0) + 1
        else:
            state.unhandled_failures += 1
