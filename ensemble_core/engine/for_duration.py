"""Conditions that must be true for some time (``for: 5m``): since when they are, and their timers.

Each condition that is true has one timer. While it runs, nothing is done for the condition: the
index only considers the rule if the condition becomes false, or when the timer elapses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ensemble_core.engine.firing_records import Match
from ensemble_core.engine.rule_index import RuleInstance, RuleState
from ensemble_core.engine.timers import Timers
from ensemble_core.quick_dataclass import dataclass

#: After a resume, a condition whose time is over is looked at again after this many seconds at the
#: earliest (or after its whole time), because rows that jobs printed meanwhile have to be read.
_GRACE = 5.0


@dataclass(slots=True, eq=False)
class PendingCondition:
    """A condition of a rule, or of one of its instances, that has become true."""

    state: RuleState
    one: RuleInstance
    #: The last event at which the condition was true.
    match: Match
    reported: bool = False  # whether the user knows that the run waits for it


@dataclass(slots=True, eq=False)
class TrueConditions:
    """All conditions that are true and whose time is not over."""

    timers: Timers
    pending: dict[str, PendingCondition] = field(default_factory=dict)
    #: When the run ended or stopped, if a resume may continue it.
    ended_at: float | None = None
    _serial: int = 0

    def enough(self, state: RuleState, one: RuleInstance, match: Match, now: float) -> bool:
        """Note that a condition is true. Return True if it has been true for the rule's time."""
        if one.since is None:
            one.since = now
        if now >= one.since + state.rule.lasts:
            self._stop(one)
            return True
        state.longest = max(state.longest, now - one.since)
        if one.timer in self.pending:
            self.pending[one.timer].match = match
            return False
        self._serial += 1
        one.timer = str(self._serial)
        self.pending[one.timer] = PendingCondition(state, one, match)
        state.timers[one.timer] = None
        self.timers.once(one.since + state.rule.lasts, "for", one.timer)
        if one is state.main and state.watch is not None:
            state.watch.hold(state)
        return False

    def interrupt(self, state: RuleState, one: RuleInstance, now: float) -> None:
        """Note that a condition is not true."""
        if one.since is not None:
            if one.timer:
                state.longest = max(state.longest, now - one.since)
            one.since = None
            self._stop(one)

    def drop(self, state: RuleState) -> None:
        """Forget since when the conditions of a rule are true, because it can no longer fire."""
        for timer in list(state.timers):
            self.pending[timer].one.since = None
            self._stop(self.pending[timer].one)
        state.main.since = None

    def _stop(self, one: RuleInstance) -> None:
        found = self.pending.pop(one.timer, None)
        if found is not None:
            self.timers.stop("for", one.timer)
            del found.state.timers[one.timer]
            if found.state.watch is not None:
                found.state.watch.release(found.state)
        one.timer = ""

    def elapsed(self, timer: str) -> PendingCondition | None:
        """Return the condition whose timer has elapsed."""
        return self.pending.get(timer)

    def reconfigure(self, continued: Mapping[int, RuleState]) -> None:
        """Continue with a changed file. Conditions of changed or removed rules start again."""
        for found in list(self.pending.values()):
            before, state = found.state, continued.get(id(found.state))
            if state is None or state.rule.spec != before.rule.spec:
                found.one.since = None
                self._stop(found.one)
                continue
            found.state = state
            state.timers = before.timers
            if found.one is state.main and state.watch is not None and state.live:
                state.watch.hold(state)

    def resume(self, now: float) -> None:
        """Continue after an interruption. The time between a stop and the resume does not count."""
        ended_at, self.ended_at = self.ended_at, None
        for timer, found in self.pending.items():
            since, lasts = found.one.since, found.state.rule.lasts
            assert since is not None
            if ended_at is not None:
                since = found.one.since = since + max(0.0, now - max(ended_at, since))
            due = since + lasts
            self.timers.once(due if due > now else now + min(lasts, _GRACE), "for", timer)

    def true_for(self, now: float) -> dict[int, float]:
        """Return, by the id of each rule's state, the longest time for which one of its pending
        conditions has been true.

        Read-only: reports must not change snapshots.
        """
        times: dict[int, float] = {}
        for found in self.pending.values():
            if found.one.since is not None:
                key = id(found.state)
                times[key] = max(times.get(key, 0.0), now - found.one.since)
        return times

    def first(self) -> PendingCondition | None:
        """Return the condition whose time is over first."""

        def due(found: PendingCondition) -> float:
            return (found.one.since or 0.0) + found.state.rule.lasts

        return min(self.pending.values(), key=due, default=None)
