"""Applies decisions to the state of the run."""

from __future__ import annotations

from collections.abc import Iterable

from ensemble_core.engine import chain_limit
from ensemble_core.engine.changed_jobs import follow, renew_sources
from ensemble_core.engine.end_of_run import EndOfRun
from ensemble_core.engine.firing_records import Origin, PendingRequest
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import Submitter
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.model.decisions import (
    Avoid,
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Log,
    Notify,
    Resize,
    Retry,
    SetGenerator,
    SetGroup,
    SetLimits,
    Signal,
    Submit,
    Terminate,
)
from ensemble_core.model.option_values import leaves


def no_such_limit(state: State, name: object) -> UsageError | None:
    """Return an error if the run has no shared limit with this name."""
    if name in state.table.slots.shared:
        return None
    known = ", ".join(filter(None, state.table.slots.shared)) or "none"
    return UsageError(
        f"there is no limit {name!r} under limits.at_once",
        hint=f"known: {known}; add it: 'ensemble set RUN limits.at_once.{name}=4'",
        code="no-such-limit",
    )


class Effects:
    """Applies decisions to ``state``."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.submission = Submitter(state)
        self.end_of_run = EndOfRun(state, self.submission)
        #: Fields of groups that rules have set at event ``_set_at``, with the rule and the value.
        self._set: dict[tuple[str, str], tuple[str, object]] = {}
        self._set_at = 0

    def apply(self, origin: Origin, decision: Decision) -> None:
        """Apply a decision to the state, and append it to the engine's output."""
        state = self.state
        if isinstance(decision, Terminate):
            self.end_of_run.end(decision)
            return
        if isinstance(decision, Submit):
            self.submission.submit(origin, decision)
            return
        if isinstance(decision, Cancel):
            decision = self.submission.cancel(origin, decision)
            self.submission.ask_cancel(decision.jobs)
        elif isinstance(decision, Retry):
            if origin.match.record is not None:
                self.submission.retry(origin.match.record.index, decision)
            return
        elif isinstance(decision, Call):
            link = (
                origin.link
                if state.via is None
                else chain_limit.extend(state, origin.rule, state.via)
            )
            if link.depth > state.ensemble.limits.chain:
                chain_limit.cut(state, origin.rule_state, origin.rule_state.main, link)
                return
            state.calls[decision.call] = PendingRequest(origin, link, decision)
            if origin.match.record is not None:
                origin.match.record.index.calls += 1
        elif isinstance(decision, Resize):
            state.resizes[decision.request] = PendingRequest(origin, origin.link, decision)
        elif isinstance(decision, Notify):
            state.notices[decision.notice] = decision
        elif isinstance(decision, Signal):
            state.signals[decision.request] = decision
        elif isinstance(decision, SetGroup):
            self._change_group(decision)
            return
        elif isinstance(decision, SetLimits):
            groups = [each.group for each in state.table.groups.values()]
            state.set_limits(state.ensemble.binder.limits(decision.limits, groups))
            state.out.append(decision)
            self.submission.release()
            for name in state.table.groups:
                self.submission.hand_over(name)
            return
        elif isinstance(decision, Avoid):
            self.submission.avoid(decision)
            return
        elif isinstance(decision, SetGenerator):
            self._set_generator(decision)
            return
        elif isinstance(decision, (EnableRule, DisableRule)):
            state.out.append(decision)
            for rule in decision.rules:
                on = isinstance(decision, EnableRule)
                self.check_enabled(state.rules.switch(rule, on, state.now))
            return
        elif not isinstance(decision, Decision):
            raise TypeError(f"{decision!r} is not a decision")
        state.out.append(decision)

    def _change_group(self, decision: SetGroup) -> None:
        state, fields = self.state, decision.fields
        table, settings = state.table, state.ensemble.binder.settings
        group_state = table.groups[decision.group]
        changed = settings(group_state.group, fields)
        for name in changed.uses:
            error = no_such_limit(state, name)
            if error is not None:
                raise error
        self._warn_of_other_rule(decision)
        before, waiting = group_state.group, state.attempts.values()
        group_state.use(changed)
        if decision.rule is None:  # a user means all jobs that are to come, as with a changed file
            indices = (*table.lost.values(), *waiting)
            for warning in follow(
                group_state, table.records.values(), indices, (before, before), changed
            ):
                table.metrics.warn(warning)
        if "retry" in fields:
            retry = {"retry": fields["retry"]}
            records = [*table.records.values()]
            records += [index.record for index in (*table.lost.values(), *waiting)]
            own = (record for record in records if record.job.group == decision.group)
            renew_sources(own, lambda one: settings(one, retry))
        table.gauges.taken(decision.group)
        table.recount_slots()
        state.out.append(decision)
        if before.at_once_each and not changed.at_once_each and changed.at_once is not None:
            each = ", ".join(before.at_once_each)
            message = (
                f"{decision.group}: at_once={changed.at_once} counts all jobs of the group; "
                f"before, it counted those of each value of {each}; "
                f"to keep that: at_once={{jobs: N, each: {each}}}"
            )
            state.out.append(Log(rule=decision.rule, message=message, level="warning"))
        self.submission.hand_over(decision.group)  # the new fields may have a larger at_once

    def _warn_of_other_rule(self, decision: SetGroup) -> None:
        """Warn, once for each field, if two rules set it to different values at one event."""
        state, group = self.state, decision.group
        if self._set_at != state.events:
            self._set_at = state.events
            self._set.clear()
        if decision.rule is None:
            return
        contested = state.table.groups[group].contested
        for path, value in leaves(decision.fields):
            name = ".".join(path)
            other, was = self._set.get((group, name), (decision.rule, value))
            self._set[group, name] = decision.rule, value
            if other == decision.rule or was == value or name in contested:
                continue
            contested[name] = None
            message = (
                f"{group}: rule {other!r} sets {name} to {was}, and rule {decision.rule!r} sets it "
                f"to {value} at the same event: the last one holds"
            )
            state.out.append(Log(rule=decision.rule, message=message, level="warning"))

    def check_enabled(self, states: Iterable[RuleState]) -> None:
        """Check newly enabled rules, because their metrics may already satisfy them."""
        for rule_state in states:
            self.state.schedule(rule_state, self.state.now)
            self.state.check_soon(rule_state)

    def _set_generator(self, decision: SetGenerator) -> None:
        """Pause or continue a generator, request more points, or let it learn from other
        generators.
        """
        state = self.state
        generator = state.generators.get(decision.generator)
        if generator is None or decision.generator not in state.ensemble.generators:
            raise EnsembleError(
                f"there is no generator {decision.generator!r}", code="no-such-generator"
            )
        if decision.pause is not None:
            generator.paused = decision.pause
        generator.extra += max(0, decision.count)
        for name in decision.learns:
            generator.learn(state.generators[name], state.generators)
        state.end_check_due = state.generators_due = True
        state.out.append(decision)
