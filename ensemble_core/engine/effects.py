"""Applies decisions to the state of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ensemble_core.engine.firing_records import Origin, PendingRequest
from ensemble_core.engine.job_record import BY_OTHERS, Index
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
    Switch,
    Terminate,
)
from ensemble_core.model.ensemble import amount
from ensemble_core.model.option_values import leaves
from ensemble_core.quick_dataclass import replace

__all__ = ["Effects", "no_such_limit", "switch_changes", "switch_instances", "waiting_of"]


def no_such_limit(state: State, name: object) -> UsageError | None:
    """Return an error if the run has no shared limit with this name."""
    if name in state.table.places.shared:
        return None
    known = ", ".join(filter(None, state.table.places.shared)) or "none"
    return UsageError(
        f"there is no limit {name!r} under limits.at_once",
        hint=f"known: {known}; add it: 'ensemble set RUN limits.at_once.{name}=4'",
        code="no-such-limit",
    )


class Effects:
    """Applies decisions to ``state``, and ends the run."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.submission = Submitter(state)
        #: Fields of groups that rules have set at event ``_set_at``, with the rule and the value.
        self._set: dict[tuple[str, str], tuple[str, object]] = {}
        self._set_at = 0

    def apply(self, origin: Origin, decision: Decision) -> None:
        """Apply a decision to the state, and append it to the engine's output."""
        state = self.state
        if isinstance(decision, Terminate):
            self.end(decision)
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
            link = origin.link if state.via is None else state.extend(origin.rule, state.via)
            if link.depth > state.ensemble.limits.chain:
                state.cut_chain(origin.rule_state, origin.rule_state.own, link)
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
            self._steer(decision)
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
            table.follow((before, before), changed, waiting)
        if "retry" in fields:
            retry = {"retry": fields["retry"]}
            table.renew_sources(decision.group, lambda one: settings(one, retry), waiting)
        table.gauges.taken(decision.group)
        table.recount_places()
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

    def _steer(self, decision: SetGenerator) -> None:
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

    # -- the end -------------------------------------------------------------------------------

    def end(self, decision: Terminate) -> None:
        """End the run with this decision."""
        state = self.state
        held = self.submission.forget_held(state.held())
        reused = self.submission.reused(decision.cancel)
        self.submission.ask_cancel(reused)
        if held or state.attempts or reused:
            known = {*held, *state.attempts, *reused}
            left = tuple(job for job in decision.cancel if job not in known)
            decision = replace(decision, cancel=left)
        lost = [*state.attempts.values(), *(record.index for record in held.values())]
        state.attempts.clear()
        for index in lost:
            if index.record.job.id not in state.table.records:
                state.table.close(index.record, done=False)
        self.submission.ask_cancel(decision.cancel)
        self._end(decision)

    def lose(self, reason: str) -> None:
        """End the run because its queue is lost. Held jobs stay held for a resume."""
        self.state.ended_for_now = Terminate(exit_code=1, reason=reason)
        self._end(self.state.ended_for_now)

    def _end(self, decision: Terminate) -> None:
        state = self.state
        state.ended = decision
        state.rules.lasting.halted = state.now
        state.end_due = state.end_check_due = True
        state.rules.index.touched.clear()
        for index in (*state.dropped, *(record.index for record in state.withdrawn)):
            if index.record.job.id not in state.table.records:
                state.table.close(index.record, done=False)
        state.dropped.clear()
        state.withdrawn.clear()
        state.out.append(decision)

    def end_if_over(self) -> None:
        """End the run if nothing more can happen."""
        state = self.state
        state.end_check_due = False
        held = state.only_held
        if (state.table.records and not held) or state.awaits_answers() or state.attempts:
            return
        if (state.resizes or state.retries) and state.rules.waits_for_resize():
            return
        if state.rules.waits_for_time(state.now, shared=state.shared):
            return
        if state.rules.lasting.pending:
            self._report_wait()
            return
        if held:
            self._end_by_limit()
            return
        faults = [each.name for each in state.generators.values() if each.fault is not None]
        if faults:
            self._end_by_fault(faults)
            return
        failed = state.errors or state.failures
        self.end(Terminate(exit_code=1 if failed else 0, reason=self._end_reason(), natural=True))

    def _report_wait(self) -> None:
        """Say once for which rule the run waits, although no job is left."""
        state = self.state
        found = state.rules.lasting.first()
        if found is None or found.reported:
            return
        found.reported = True
        rule, since = found.state.rule, state.now if found.one.since is None else found.one.since
        left = max(0.0, since + rule.lasts - state.now)
        message = (
            f"no job is left; the run waits {left:.0f} s for rule {rule.id!r}: its condition is "
            f"true, and has to be true for {rule.spec.get('for', rule.lasts)}"
        )
        state.out.append(Log(rule=rule.id, message=message, level="info"))

    def _end_by_limit(self) -> None:
        """End the run because a limit holds all remaining jobs.

        A resume with a higher limit submits these jobs.
        """
        state = self.state
        state.ended_for_now = Terminate(exit_code=4, reason=self._held_reason(), natural=True)
        self._end(state.ended_for_now)

    def _end_by_fault(self, names: list[str]) -> None:
        """End the run because generators failed. A resume builds them again."""
        state = self.state
        which = f"generator{'s' * (len(names) > 1)} {', '.join(names)}"
        reason = f"{which} failed; {self._end_reason()}"
        state.ended_for_now = Terminate(exit_code=1, reason=reason, natural=True)
        self._end(state.ended_for_now)

    def _held_reason(self) -> str:
        """Describe how many jobs each limit holds, and how much more these jobs need."""
        state = self.state
        budget = state.table.budget
        assert budget is not None
        held = state.table.held_jobs()
        groups = Counter(job.group for job in held)
        if len(groups) == 1:
            named = f"of {held[0].group}"
        else:
            named = "(" + ", ".join(f"{name} {number}" for name, number in groups.items()) + ")"
        parts = []
        needed = budget.needed(held, state.now)
        for name, raised in budget.raised(held, state.now).items():
            used, _ = budget.use(name, state.now)
            least, known = needed[name]
            more = "at least " if not known else ""
            parts.append(
                f"limits.{name} is {amount(budget.limits[name])}, {amount(used)} used; they "
                f"need {more}{amount(max(0.0, least - used))} more: set limits.{name} to "
                f"{amount(raised)}"
            )
        jobs = "1 job" if len(held) == 1 else f"{len(held)} jobs"
        reason = f"only held jobs are left: {jobs} {named}; " + "; ".join(parts)
        return f"{reason}; {self._end_reason()}" if state.errors or state.failures else reason

    def _end_reason(self) -> str:
        failures, errors = self.state.unhandled_failures, self.state.errors
        reasons = []
        if failures:
            jobs, them = ("1 job", "it") if failures == 1 else (f"{failures} jobs", "them")
            reasons.append(f"{jobs} failed and no rule handled {them}")
        if self.state.unhandled_cancels:
            reasons.append(_cancels_text(self.state.unhandled_cancels))
        if errors:
            reasons.append("1 error" if errors == 1 else f"{errors} errors")
        return "; ".join(reasons) or "nothing more can happen"


def _cancels_text(cancels: Mapping[str, int]) -> str:
    """Describe how many jobs were cancelled by others, and by whom if that is known.

    ``cancels`` are the numbers of jobs by canceller.
    """
    total = sum(cancels.values())
    known = {who: number for who, number in cancels.items() if who != BY_OTHERS}
    if known == {**cancels} and len(known) == 1:
        named = f" ({next(iter(known))})"
    elif known:
        named = f" ({', '.join(f'{who} {known[who]}' for who in sorted(known))})"
    else:
        named = ""
    jobs, them = ("1 job was", "it") if total == 1 else (f"{total} jobs were", "them")
    return f"{jobs} cancelled by others{named} and no rule handled {them}"


def switch_changes(
    known: Mapping[str, bool], to: Iterable[str], away: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that a switch to ``to`` turns on, and the names that it turns off.

    - ``known``: all instances, or all generators, and whether each is on.
    - ``away``: the names to turn off. If it is ``None`` and something is turned on, all others are
      turned off.
    """
    wanted = dict.fromkeys(name for name in to if name in known)
    on = tuple(name for name in wanted if not known[name])
    left = (known if on else ()) if away is None else dict.fromkeys(away)
    return on, tuple(name for name in left if known.get(name) and name not in wanted)


def waiting_of(
    state: State, instances: Iterable[str], generators: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the waiting jobs that these instances or generators submitted.

    These jobs are held, wait in the queue, or wait for a retry.
    """
    named = set(instances)
    own = {name for name, each in state.rules.states.items() if each.rule.instance in named}
    own.update(f"generator {name}" for name in generators)
    waiting = [
        job
        for job, record in state.table.records.items()
        if record.started is None
        and record.outcome is None
        and not record.cancelling
        and record.link is not None
        and record.link.rule in own
    ]
    return (
        *waiting,
        *(job for job, index in state.attempts.items() if _is_submitted_by(index, own)),
    )


def _is_submitted_by(index: Index, rules: set[str]) -> bool:
    link = index.record.link
    return link is not None and link.rule in rules


def switch_instances(effects: Effects, decision: Switch) -> tuple[list[RuleState], list[Index]]:
    """Turn on and off the instances of algorithms that an action ``switch`` names.

    Unless ``decision.keep`` is true, drop the pending calls of the instances that were turned off.
    Return the rules on ``start`` of the instances that were turned on, and the jobs that waited for
    a dropped call.
    """
    state = effects.state
    rules = state.rules
    for name in decision.off:
        rules.switch(name, False, state.now)
    dropped = [] if decision.keep else _drop_calls(state, decision.off)
    for name in decision.on:
        if decision.reset:
            for each in rules.members(name):
                rules.reset(each)
        effects.check_enabled(rules.switch(name, True, state.now))
    state.end_check_due = True
    members = (each for name in decision.on for each in rules.members(name))
    return [each for each in members if "start" in each.rule.trigger.events], dropped


def _drop_calls(state: State, instances: Iterable[str]) -> list[Index]:
    """Drop the pending calls of rules of these instances.

    Return the indices that waited for the calls.
    """
    named, dropped = set(instances), list[Index]()
    for call, asked in list(state.calls.items()):
        origin = asked.origin
        if origin.rule_state.rule.instance not in named:
            continue
        del state.calls[call]
        state.idle_check_due = True
        if origin.match.record is not None:
            origin.match.record.index.calls -= 1
            dropped.append(origin.match.record.index)
    return dropped
