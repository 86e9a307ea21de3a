"""``limits.chain``: counts the firings that caused each other, and switches a rule off."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_core.engine.job_record import Link
from ensemble_core.engine.rule_index import RuleInstance, RuleState
from ensemble_core.engine.state import State
from ensemble_core.model.decisions import DisableRule


def extend(state: State, rule: str, parent: Link | None) -> Link:
    """Return the chain of ``parent`` with one more firing.

    If a job has finished since, it is a new chain.
    """
    finishes = state.table.finishes
    depth = parent.depth + 1 if parent is not None and parent.finishes == finishes else 1
    return Link(rule, parent if depth > 1 else None, depth, finishes)


def cut(state: State, rule_state: RuleState, one: RuleInstance, link: Link) -> None:
    """Permanently switch off a rule or instance whose firing would exceed the limit on chains."""
    state.limits_reported["chain"] = None
    if one is rule_state.main:
        state.rules.cut(rule_state)
    else:
        one.cut = rule_state.version
    state.end_check_due = True
    state.error(
        f"rule {rule_state.rule.id!r} is switched off: {link.depth - 1} rule firings triggered "
        f"each other without any job finishing\n  because: {_text(link.names())}\n  "
        "hint: give one of these rules a condition or fewer repetitions, or raise limits.chain"
    )
    if one is rule_state.main:
        state.out.append(DisableRule(rules=(rule_state.rule.id,)))


def _text(rules: Sequence[str]) -> str:
    """Return the rules of a chain as text, without the middle of a long chain."""
    shown = list(rules)
    if len(shown) > 12:
        shown = [*shown[:4], "…", *shown[-4:]]
    return " → ".join(shown)
