"""What an occasion comes to: rules are looked at and fire.

The part of the engine that turns occasions into decisions; ``effects.Effects`` below gives
decisions their effect, ``engine.Engine`` above turns events into occasions. The laws of all stand
at the top of ``engine.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ensemble_core.engine.firing import EngineFiring
from ensemble_core.engine.job_table import JobRecord
from ensemble_core.engine.rule_index import RuleState, in_order
from ensemble_core.engine.state import Effects, asks_for_everything
from ensemble_core.errors import EnsembleError, raised_at
from ensemble_core.model.decisions import Fired
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.rules import BoundAction

__all__ = ["NOTHING", "Reactions"]

NOTHING: Mapping[str, Any] = MappingProxyType({})
_UNKNOWN = "without a value"


class Reactions(Effects):
    """The rules of one run at work. See the laws at the top of ``engine.py``."""

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
        """The rules that wait for what the firings themselves did, until there is nothing more:
        metric rules of what they counted, and ``job-cancel`` of held jobs they cancelled."""
        while (self.rules.index.touched or self._withdrawn) and self.ended is None:
            self._link = self._deepest
            self._metric_rules(event, None, {})
            withdrawn, self._withdrawn = self._withdrawn, []
            for record, link in withdrawn:
                self._link = link
                self._event_rules(("job-cancel",), record.job.group, event, record, NOTHING)

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
        known: dict[str, Any] | None = None
        if match is not None or (condition is not None and condition.tree is not None):
            known = self._fields(event, record, fields)
            if value is not None:
                known["value"] = value
        try:
            if match is not None and not match(event, known or {}):
                state.refused += 1
                return
            if condition is not None:
                verdict = condition.verdict(value, known or {}, self.metric)
                if not verdict:
                    # What was known says more than a last row in which it was not.
                    if known is not None and (
                        verdict is False or not state.seen or _UNKNOWN in state.seen
                    ):
                        state.seen = self._seen(condition.names, condition.metrics, known)
                    return
        except Exception as error:  # a plugin's match: it must not take the run with it
            place = raised_at(error)
            trigger = rule.spec.get("trigger", rule.label)
            why = f"its trigger {trigger!r} raised {error!r}" + (f" ({place})" if place else "")
            self.rules.cut(state, why)
            self._look_for_end = True
            self._error(f"rule {rule.id} is switched off: {why}")
            return
        if rule.concerns_failure and record is not None:
            record.concern = True
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
        known: dict[str, Any] | None,
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
        if known is None:
            known = self._fields(event, record, fields)
            if value is not None:
                known["value"] = value
        firing = EngineFiring(self, state, event, record, known, self.firings, link)
        self._out.append(
            Fired(
                rule=rule.id,
                firing=self.firings,
                label=rule.label or rule.id,
                count=state.fired,
                job=firing.job,
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
            self._error(f"action {action.name} raised {error!r} ({raised_at(error)})", firing)

    def adopt(self, ensemble: Ensemble) -> list[str]:
        """Go on with a changed file, between two events: jobs, counts and metrics stay, rules that
        are still there go on where they stood. The rules that joined while the run was under way
        and that speak of what the new file does not have: they are gone."""
        before, self.ensemble = self.ensemble, ensemble
        earlier = list(self.rules.states.values())
        self.metrics.adopt(
            ensemble.groups, ensemble.statistics, everything=asks_for_everything(ensemble)
        )
        intervals = {state.rule.id: state.rule.trigger.every for state in self.rules.intervals()}
        stayed, dropped = self.rules.adopt(ensemble)
        self.table.adopt(before.groups, ensemble.groups, self.rules.index)
        for firing, _, _ in self._calls.values():
            firing.state = stayed.get(id(firing.state), firing.state)
        for request in (*self._requests.values(), *self._retries.values()):
            state = request.firing.state
            request.firing.state = stayed.get(id(state), state)
        self._pacer.adopt(ensemble.limits.submits_per_second)
        now_every = {state.rule.id: state.rule.trigger.every for state in self.rules.intervals()}
        for rule, every in intervals.items():
            if now_every.get(rule) != every:
                self.timers.stop("interval", rule)
        for rule, period in now_every.items():
            if intervals.get(rule) != period:
                self._schedule(self.rules.states[rule], self.now)
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
                    self._look_at_once(state)
            elif state.watch is not None:
                state.watch.unread = True
        self._look_for_end = True
        return dropped

    # -- values --------------------------------------------------------------------------------

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
        found = {name: known.get(name) for name in sorted(names)}
        found.update((path, self.metric(path)) for path in sorted(metrics))
        return ", ".join(
            f"{name} {_UNKNOWN}" if value is None else f"{name}={value}"
            for name, value in found.items()
        )
