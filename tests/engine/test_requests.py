"""Users' requests to a live run: carried out like actions of a rule, and replayed."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.requests import refusal
from ensemble_core.journal.codec import decisions_text
from ensemble_core.model.decisions import Cancel, DisableRule, EnableRule, Log, SetGroup, Submit
from ensemble_core.model.events import Event, Requested

FILE = """
limits: {jobs: 6}
jobs:
  - {name: a, command: 'x {T} {U}', parameters: {T: [1, 2], U: [5]}}
  - {name: b, command: x, count: 2}
rules:
  - {trigger: start, action: {name: submit, label: b}}
  - {id: next, trigger: job-success, name: b, repetitions: 9, action: {name: log, message: b}}
  - {id: second, trigger: job-success, enabled: false, repetitions: 9, action: {name: log, message: x}}
  - {id: many, trigger: metric, name: count.a.submitted, when: ">= 2", action: {name: log, message: m}}
"""


def ask(told: Story, name: str, **options: Any) -> list[Any]:
    return told.tell(Requested(told.now, "alice", {"name": name, **options}))


def test_requested_jobs_are_submitted_and_trigger_metric_rules() -> None:
    told = Story(FILE)
    told.start()
    decided = ask(told, "submit", label="a")
    (submit,) = (one for one in decided if isinstance(one, Submit))
    assert [job.id for job in submit.jobs] == ["a.0", "a.1"]
    assert (submit.rule, submit.firing) == (None, 0)
    assert told.fired(decided) == ["many"]


def test_requested_parameters_are_merged_with_the_groups() -> None:
    told = Story(FILE)
    told.start()
    parameters = {"T": 2.5}
    submit = ask(told, "submit", label="a", **{"with": {"parameters": parameters, "count": 2}})[0]
    assert [dict(job.parameters) for job in submit.jobs] == [{"T": 2.5, "U": 5}] * 2


def test_a_request_may_set_a_group_switch_rules_and_cancel() -> None:
    told = Story(FILE)
    told.start()
    (change,) = ask(told, "set", label="b", **{"with": {"nodes": 3}})
    assert isinstance(change, SetGroup)
    (submit,) = ask(told, "submit", label="b")
    assert submit.jobs[0].nodes == 3
    (on,) = ask(told, "enable", rules="second")
    (off,) = ask(told, "disable", rules=["next"])
    assert isinstance(on, EnableRule)
    assert isinstance(off, DisableRule)
    assert told.fired(told.play("b.0")) == ["second"]
    (cancel,) = ask(told, "cancel", label="b")
    assert isinstance(cancel, Cancel)
    assert cancel.jobs == ("b.1", "b.2", "b.3")


def test_limits_hold_requested_jobs() -> None:
    told = Story(FILE)
    told.start()
    decided = ask(told, "submit", label="a", **{"with": {"count": 3}})
    assert len(told.submitted(decided)) == 4
    assert any("2 of 6 jobs are held" in one.message for one in decided if isinstance(one, Log))


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"name": "submit", "label": "aa"}, "did you mean 'a'?"),
        ({"name": "enable", "rules": "nxet"}, "did you mean 'next'?"),
        ({"name": "submit", "label": "a", "with": {"parameters": {"t": 1}}}, "did you mean 'T'?"),
        ({"name": "submit", "label": "a", "with": {"nodse": 1}}, "did you mean 'nodes'?"),
        ({"name": "set", "label": "a"}, "no 'with'"),
        ({"name": "terminate"}, "use one of submit"),
        ({}, "use one of submit"),
    ],
)
def test_impossible_requests_are_warnings(action: dict[str, Any], said: str) -> None:
    told = Story(FILE)
    told.start()
    refused = refusal(told.engine.state, action)
    assert refused is not None
    assert said in str(refused)
    (log,) = told.tell(Requested(told.now, "alice", action))
    assert isinstance(log, Log)
    assert log.level == "warning"
    assert "by alice failed" in log.message
    for job in ("b.0", "b.1"):
        told.play(job)
    assert told.exit_code == 0


def test_requests_after_the_end_are_ignored() -> None:
    told = Story(FILE)
    told.start()
    for job in ("b.0", "b.1"):
        told.play(job)
    assert told.exit_code == 0
    assert ask(told, "submit", label="a") == []


def test_requests_are_replayed_exactly() -> None:
    told = Story(FILE)
    told.start()
    ask(told, "submit", label="a", **{"with": {"parameters": {"T": [3, 4]}}})
    ask(told, "submit", label="nobody")
    ask(told, "disable", rules=["next"])
    again = Engine(told.ensemble)
    texts = [decisions_text(again.handle(Event.from_dict(each.to_dict()))) for each in told.events]
    once = Engine(told.ensemble)
    assert texts == [decisions_text(once.handle(each)) for each in told.events]
