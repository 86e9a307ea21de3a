"""Switching from instances of algorithms, and from generators, to others: which these are, and what
it does to rules, calls and jobs.

Called by ``rule_evaluation`` for the decision, by ``firing`` for what it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ensemble_core.engine.effects import Effects
from ensemble_core.engine.job_record import Index
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.state import State
from ensemble_core.model.decisions import Switch

__all__ = ["changed", "switched", "waiting_of"]


def changed(
    known: Mapping[str, bool], to: Iterable[str], away: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of ``known``, each with whether it is on: what a switch to ``to`` switches on and what off.
    ``away`` of ``None`` is all that is on, where something of these is switched to."""
    wanted = dict.fromkeys(name for name in to if name in known)
    on = tuple(name for name in wanted if not known[name])
    left = (known if on else ()) if away is None else dict.fromkeys(away)
    return on, tuple(name for name in left if known.get(name) and name not in wanted)


def waiting_of(
    state: State, instances: Iterable[str], generators: Iterable[str] = ()
) -> tuple[str, ...]:
    """The jobs that rules of these instances, or these generators, submitted and that wait: held
    ones, those in the queue and retries to come."""
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
