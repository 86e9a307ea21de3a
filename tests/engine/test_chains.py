"""Chains of firings that are longer than Python's recursion limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.config import load_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Cancel, Decision, Log
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.rules import BoundAction, Firing
from ensemble_core.plugin.discovery import discover

#: Firings in a chain: twice the recursion limit.
LONG = 2000

HELD = """
jobs: [{name: g, command: 'true', count: COUNT, at_once: 1}]
limits: {chain: CHAIN}
rules:
  - {id: begin, trigger: start, action: {name: submit}}
  - {id: first, trigger: job-start, action: {name: log, message: x}}
  - {id: next, trigger: TRIGGER, name: g, repetitions: unlimited, action: {name: log, message: x}}
"""
BEGIN = ("submit", "validate", "depend", "priority", "alloc", "start")


def held(trigger: str, count: int, *, chain: int = LONG) -> Ensemble:
    """Return an ensemble with one running job and held jobs: each end cancels the next job."""

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


def errors(decided: Iterable[Decision]) -> list[str]:
    return [one.message for one in decided if isinstance(one, Log) and one.level == "error"]


@pytest.mark.parametrize("trigger", ["job-cancel", "job-lost"])
def test_every_job_of_a_long_chain_of_cancellations_is_counted(trigger: str) -> None:
    count = LONG - 1  # 'begin' and 'first' fire once, 'next' for all other jobs
    told = Story(held(trigger, count))
    told.start()
    told.job("g.0", *BEGIN)
    counts = told.engine.state.table.groups["g"].counts
    assert (counts["cancelled"], counts["lost"]) == (count - 1, count - 1)
    assert told.engine.state.firings == LONG
    assert not errors(told.decisions)


@pytest.mark.parametrize("trigger", ["job-cancel", "job-lost"])
def test_a_too_long_chain_of_cancellations_is_cut_and_counted(trigger: str) -> None:
    told = Story(held(trigger, 1000, chain=100))
    told.start()
    told.job("g.0", *BEGIN)
    counts = told.engine.state.table.groups["g"].counts
    assert counts["cancelled"] == counts["lost"] == 99
    (said,) = errors(told.decisions)
    assert "rule 'next' is switched off: 100 rule firings triggered each other" in said
    assert "begin → first → next → next → … → next → next" in said
    assert "or raise limits.chain" in said


SWITCHES = f"""
jobs: [{{name: sim, command: 'true'}}]
limits: {{chain: {LONG}}}
use:
  - as: a
    rules:
      - trigger: start
        repetitions: unlimited
        action: [{{name: submit}}, {{name: switch, to: b}}, {{name: log, message: back in a}}]
  - as: b
    enabled: false
    rules: [{{trigger: start, repetitions: unlimited, action: {{name: switch, to: a}}}}]
"""


def test_a_long_chain_of_switches_is_cut_with_an_error_that_names_its_rules() -> None:
    told = Story(SWITCHES)
    told.start()
    assert told.engine.state.firings == LONG
    (said,) = errors(told.decisions)
    assert f"rule 'a-1' is switched off: {LONG} rule firings triggered each other" in said
    assert "a-1 → b-1 → a-1 → b-1 → … → b-1 → a-1" in said
    assert "or raise limits.chain" in said
    assert told.metric("count.sim.submitted") == LONG / 2


def test_an_action_after_a_switch_follows_the_rules_that_the_switch_starts() -> None:
    told = Story(SWITCHES.replace(f"chain: {LONG}", "chain: 3"))
    words = [f"{one.type} {one.rule or ''}" for one in told.start() if not isinstance(one, Log)]
    assert words == [
        *("fired a-1", "submit a-1", "switch a-1", "fired b-1", "switch b-1", "fired a-1"),
        *("submit a-1", "switch a-1", "disable-rule "),
    ]
    said = told.messages()
    assert said[-2:] == ["back in a", "back in a"]


def test_a_snapshot_can_contain_a_long_chain() -> None:
    told = Story(SWITCHES)
    told.start()
    state = dump(told.engine)
    again = load(state, told.ensemble)
    assert again is not None
    assert dump(again) == state


MIXED = """
jobs: [{name: g, command: 'true', count: 5, at_once: 1, retry: {times: 2, wait: 50}}]
rules:
  - {trigger: start, action: {name: submit}}
  - {trigger: job-start, name: g, when: index == 2, action: {name: cancel, label: g}}
  - {trigger: job-cancel, repetitions: unlimited, action: {name: log, message: 'cancel {job}'}}
  - {trigger: job-lost, repetitions: unlimited, action: {name: log, message: 'lost {job}'}}
"""


def test_held_jobs_and_retries_cancelled_together_are_settled_one_by_one() -> None:
    told = Story(MIXED)
    told.start()
    for job in ("g.0", "g.1"):  # now both wait for a retry
        told.play(job, status=256)
    decided = told.job("g.2", *BEGIN)
    assert [one.message for one in decided if isinstance(one, Log)] == [
        *("cancel g.3", "lost g.3", "lost g.0", "lost g.1", "cancel g.4", "lost g.4")
    ]
