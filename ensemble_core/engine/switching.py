"""Switching from instances of algorithms to others: what it does to rules, calls and jobs.

Called by ``rule_evaluation`` for the decision, by ``firing`` for what it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable

from ensemble_core.engine.effects import Effects
from ensemble_core.engine.job_record import Index
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.state import State
from ensemble_core.model.decisions import Switch

__all__ = ["switched", "waiting_of"]


def waiting_of(state: State, instances: Iterable[str]) -> tuple[str, ...]:
    """The jobs that rules of these instances submitted and that wait: held ones, those in the queue
    and retries to come."""
    named = set(instances)
    own = {name for name, each in state.rules.states.items() if each.rule.instance in named}
    waiting = [
        job
        for job, record in state.table.records.items()
        if record.started is None
        and record.outcome is None
        and not record.cancelling
        and record.link is not None
        and record.link.rule in own
    ]
    return (*waiting, *(job for job, index in state.attempts.items() if _by(index, own)))


def _by(index: Index, rules: set[str]) -> bool:
    link = index.record.link
    return link is not None and link.rule in rules


def switched(effects: Effects, decision: Switch) -> tuple[list[RuleState], list[Index]]:
    """Carry the decision out. The rules that wait for a start of what was switched to, and the
    indices of which a call is not awaited any more."""
    state = effects.state
    rules = state.rules
    for name in decision.off:
        rules.switch(name, False, state.now)
    dropped = [] if decision.keep else _drop_calls(state, decision.off)
    for name in decision.on:
        if decision.reset:
            for each in rules.members(name):
                rules.reset(each)
        effects.awaken(rules.switch(name, True, state.now))
    state.look_for_end = True
    members = (each for name in decision.on for each in rules.members(name))
    return [each for each in members if "start" in each.rule.trigger.wakes], dropped


def _drop_calls(state: State, instances: Iterable[str]) -> list[Index]:
    """Forget the calls that rules of these instances asked for."""
    named, dropped = set(instances), list[Index]()
    for call, asked in list(state.calls.items()):
        origin = asked.origin
        if origin.rule_state.rule.instance not in named:
            continue
        del state.calls[call]
        state.look_for_idle = True
        if origin.occasion.record is not None:
            origin.occasion.record.index.calls -= 1
            dropped.append(origin.occasion.record.index)
    return dropped
