"""Chains of firings, as long as they may be: every job is counted, however deep the caller is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from ensemble_testing import Story

import ensemble_core
from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.model.decisions import Cancel, Decision, Log
from ensemble_core.model.ensemble import LONGEST_CHAIN, Ensemble, Limits
from ensemble_core.model.rules import BoundAction, Firing
from ensemble_core.plugin.discovery import discover

#: Levels of the stack that whoever calls the engine may have taken already.
DEEP = 100

HELD = """
jobs: [{name: g, command: 'true', count: COUNT, at_once: 1}]
limits: {chain: CHAIN}
rules:
  - {id: begin, trigger: start, action: {name: submit}}
  - {id: first, trigger: job-start, action: {name: log, message: x}}
  - {id: next, trigger: TRIGGER, name: g, repetitions: unlimited, action: {name: log, message: x}}
"""
BEGIN = ("submit", "validate", "depend", "priority", "alloc", "start")


def held(trigger: str, count: int, *, chain: int = LONGEST_CHAIN) -> Ensemble:
    """A job that runs, others that are held, and a rule that cancels the next when one ends."""

    def first(firing: Firing, options: Any) -> Iterable[Decision]:
        yield Cancel(jobs=("g.1",), rule=firing.rule, firing=1)

    def following(firing: Firing, options: Any) -> Iterable[Decision]:
        assert firing.job is not None
        number = int(firing.job.partition(".")[2]) + 1
        if number < count:
            yield Cancel(jobs=(f"g.{number}",), rule=firing.rule, firing=1)

    text = HELD.replace("COUNT", str(count)).replace("CHAIN", str(chain))
    found = load_text(text.replace("TRIGGER", trigger), discover()).begun("r", "/c")
    plans = {"first": first, "next": following}
    rules = (
        replace(rule, actions=(BoundAction(name="cancel", plan=plans[rule.id]),))
        if rule.id in plans
        else rule
        for rule in found.rules
    )
    return replace(found, rules=tuple(rules))


def deep(levels: int, look: Callable[[], object]) -> None:
    """Call a function so many levels down."""
    if levels:
        deep(levels - 1, look)
    else:
        look()


def errors(decided: Iterable[Decision]) -> list[str]:
    return [one.message for one in decided if isinstance(one, Log) and one.level == "error"]


@pytest.mark.parametrize("trigger", ["job-cancel", "job-lost"])
def test_every_job_of_the_longest_chain_of_cancellations_is_counted(trigger: str) -> None:
    count = LONGEST_CHAIN - 1  # 'begin' and 'first' fire before, and 'next' for all but the first
    told = Story(held(trigger, count))
    told.start()
    deep(DEEP, lambda: told.job("g.0", *BEGIN))
    counts = told.engine.state.table.groups["g"].counts
    assert (counts["cancelled"], counts["lost"]) == (count - 1, count - 1)
    assert told.engine.state.firings == LONGEST_CHAIN
    assert not errors(told.decisions)


@pytest.mark.parametrize("trigger", ["job-cancel", "job-lost"])
def test_a_longer_chain_of_cancellations_is_cut_and_counted(trigger: str) -> None:
    told = Story(held(trigger, 1000, chain=100))
    told.start()
    told.job("g.0", *BEGIN)
    counts = told.engine.state.table.groups["g"].counts
    assert counts["cancelled"] == counts["lost"] == 99
    (said,) = errors(told.decisions)
    assert "rule 'next' is switched off: 100 rule firings caused one another" in said
    assert "begin → first → next → next → … → next → next" in said
    assert "or raise limits.chain" in said


SWITCHES = """
jobs: [{name: sim, command: 'true'}]
limits: {chain: 200}
use:
  - as: a
    rules:
      - {trigger: start, repetitions: unlimited, action: [{name: submit}, {name: switch, to: b}]}
  - as: b
    enabled: false
    rules: [{trigger: start, repetitions: unlimited, action: {name: switch, to: a}}]
"""


def test_the_longest_chain_of_switches_is_cut_with_an_error_that_names_its_rules() -> None:
    told = Story(SWITCHES)
    deep(DEEP, told.start)
    assert told.engine.state.firings == LONGEST_CHAIN
    (said,) = errors(told.decisions)
    assert "a-1 → b-1 → a-1 → b-1 → … → b-1 → a-1" in said
    assert "raise limits.chain" not in said  # it is as long as it can be


def test_a_limit_above_the_longest_chain_is_refused_wherever_it_is_written() -> None:
    rules = [{"trigger": "start", "action": {"name": "submit"}}]
    source = {"jobs": [{"name": "sim", "command": "true"}], "rules": rules}
    most = {**source, "limits": {"chain": LONGEST_CHAIN}}
    assert ensemble_core.load(most).limits.chain == LONGEST_CHAIN
    assert Limits().chain <= LONGEST_CHAIN
    said = f"'chain' is {LONGEST_CHAIN + 1}, it must be at most {LONGEST_CHAIN}: a longer chain"
    above = {"limits.chain": LONGEST_CHAIN + 1}
    with pytest.raises(FileErrors, match=f"^limits.chain: {said}"):
        ensemble_core.load({**source, "limits": {"chain": LONGEST_CHAIN + 1}})
    with pytest.raises(FileErrors, match=f"^--set limits.chain={LONGEST_CHAIN + 1}: {said}"):
        ensemble_core.load(source, overrides=above)
