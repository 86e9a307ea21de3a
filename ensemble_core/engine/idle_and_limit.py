"""Rules on ``idle`` and ``limit``: no job of a scope is open, or a limit holds the jobs.

``Agenda`` asks for them if nothing else follows from an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ensemble_core.engine.at_once import AT_ONCE
from ensemble_core.engine.firing_records import Match, Steps
from ensemble_core.engine.job_record import Link
from ensemble_core.engine.rule_evaluation import RuleEvaluation
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.scopes import Slice
from ensemble_core.model.events import Event


class IdleAndLimit:
    """Considers the rules on ``idle`` and ``limit``."""

    def __init__(self, rules: RuleEvaluation) -> None:
        self.state = rules.state
        self._rules = rules

    def only_held(self) -> list[str]:
        """If limits hold all remaining jobs, return those limits.

        Return each situation only once.
        """
        state = self.state
        if not state.only_held or state.awaits_answers() or state.attempts:
            return []
        filled = state.table.submitted
        if state.held_at == filled:
            return []
        state.held_at = filled
        groups = (group for group in state.table.groups.values() if group.held)
        found = (state.table.obstacle(group, state.now) for group in groups)
        return list(dict.fromkeys(each for each in found if each and not each.startswith(AT_ONCE)))

    def limited(self, met: Sequence[str], event: Event) -> Steps:
        """Consider the rules on ``limit``, once for each of these limits."""
        state = self.state
        what, *others = met
        budget, held = state.table.budget, state.table.held_jobs()
        if budget is None or what not in budget.limits or state.ended is not None:
            return None
        used, committed = budget.use(what, state.now)
        needed, exact = budget.needed(held, state.now)[what]
        fields = {
            "what": what,
            "most": budget.limits[what],
            "used": used,
            "committed": committed,
            **({"needed": needed} if exact else {}),
            "held": len(held),
            "left": len(state.table.records) - len(held),
        }
        state.link = state.deepest or state.link
        self._rules.react(("limit",), None, event, None, fields)
        return [(self.limited, others)] if others else None

    def idle(self, event: Event) -> Steps:
        """Consider the rules on ``idle`` whose scope has no open job, narrowest scope first.

        A running function counts as an open job.
        """
        self.state.idle_check_due = False
        return self._check_idle(event)

    def _check_idle(self, event: Event) -> Steps:
        state, index = self.state, self.state.rules.index
        index.new_idle = False
        if state.awaits_answers():
            return None
        found = self._find_idle() if "idle" in index.by_event else []
        if not found or state.ended is not None:
            state.table.emptied.clear()
            index.new_idle = state.ended is not None  # a resume may revoke the end
            return None
        link = state.deepest or state.link
        return [*((self._idle, *each, link) for each in found), (self._check_idle,)]

    def _idle(
        self, rule_state: RuleState, scope: Slice | None, link: Link | None, event: Event
    ) -> None:
        state = self.state
        one = rule_state.main if scope is None else scope.instance(rule_state.key)
        still_open, filled = state.coverage(rule_state.rule, scope)
        if (
            still_open
            or one.idle_job_count == filled
            or state.awaits_answers()
            or state.ended is not None
        ):
            return
        one.idle_job_count = filled
        state.link = link
        self._rules.report_trigger_events(("idle",), rule_state.rule.trigger.group)
        self._rules.consider(rule_state, Match(event, scope=scope))

    def _find_idle(self) -> list[tuple[RuleState, Slice | None]]:
        """Return the rules on ``idle`` whose scope has become idle since the last check.

        Each comes with its slice, or ``None``.
        """
        state = self.state
        emptied = sorted(state.table.emptied, key=attrgetter("order"))
        found: list[tuple[RuleState, Slice | None]] = []
        for rule_state in state.rules.idle():
            rule = rule_state.rule
            scopes: list[Slice | None] = [None]
            if rule.each is not None:
                scopes = [each for each in emptied if each.key == rule_state.slices]
            for scope in scopes:
                still_open, filled = state.coverage(rule, scope)
                one = rule_state.main if scope is None else scope.instance(rule_state.key)
                if not still_open and filled != one.idle_job_count:
                    found.append((rule_state, scope))
        return found
