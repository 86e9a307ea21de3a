"""Switches instances of algorithms and generators on and off (the action ``switch``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ensemble_core.engine.decision_effects import Effects
from ensemble_core.engine.job_record import IndexRecord
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.state import State
from ensemble_core.model.decisions import Switch


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


def _is_submitted_by(index: IndexRecord, rules: set[str]) -> bool:
    link = index.record.link
    return link is not None and link.rule in rules


def switch_instances(
    effects: Effects, decision: Switch
) -> tuple[list[RuleState], list[IndexRecord]]:
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


def _drop_calls(state: State, instances: Iterable[str]) -> list[IndexRecord]:
    """Drop the pending calls of rules of these instances.

    Return the indices that waited for the calls.
    """
    named, dropped = set(instances), list[IndexRecord]()
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
