"""Users' requests to a live run: carried out like actions of a rule, and replayed."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.requests import refusal
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.model.decisions import (
    Cancel,
    DisableRule,
    EnableRule,
    Log,
    SetGroup,
    SetLimits,
    Submit,
)
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
    change, _ = ask(told, "set", label="b", **{"with": {"nodes": 3}})
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


LIMITED = """
limits: {jobs: 3, at_once: {gpu: 2}}
jobs:
  - {name: a, command: 'x {T}', parameters: {T: [1, 2, 3, 4, 5]}, at_once: 1, retry: {times: 1, wait: 0}}
  - {name: b, command: x, uses: gpu}
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-success, name: b, action: {name: set, label: a, with: {at_once: 9, retry: {times: 2}}}}
"""


def queued(told: Story) -> int:
    return len(told.engine.in_queue())


def test_a_larger_at_once_submits_held_jobs_and_null_removes_it() -> None:
    told = Story(LIMITED.replace("jobs: 3", "jobs: 100"))
    told.start()
    change, submit = ask(told, "set", label="a", **{"with": {"at_once": 3}})
    assert isinstance(change, SetGroup)
    assert [job.id for job in submit.jobs] == ["a.1", "a.2"]
    _, submit = ask(told, "set", label="a", **{"with": {"at_once": None}})
    assert [job.id for job in submit.jobs] == ["a.3", "a.4"]
    ask(told, "set", label="a", **{"with": {"uses": ["gpu"], "at_once": 1}})
    assert (queued(told), told.engine.state.table.groups["a"].group.uses) == (5, ("gpu",))


def test_a_set_group_changes_jobs_that_are_not_in_the_queue_yet() -> None:
    told = Story(LIMITED.replace("jobs: 3", "jobs: 100"))
    told.start()
    fields = {"nodes": 2, "command": "y {T}", "environment": {"A": "b"}}
    change, warning, *rest = ask(told, "set", label="a", **{"with": fields})
    assert isinstance(change, SetGroup)
    assert warning.message == (
        "a: 1 job keeps its command, nodes, tasks, environment, as submitted before the change; "
        "further attempts follow it"
    )
    assert not rest
    told.play("a.0", status=256)
    for job in ("a.1", "a.2", "a.3", "a.4"):
        told.play(job)
    submits = [each for each in told.decisions if isinstance(each, Submit) and each.group == "a"]
    jobs = [job for each in submits for job in each.jobs]
    assert [(job.id, job.nodes, job.command) for job in jobs] == [
        ("a.0", 1, ("x", "1")),
        *((f"a.{place}", 2, ("y", f"{place + 1}")) for place in range(1, 5)),
        ("a.0-1", 2, ("y", "1")),
    ]
    assert all(job.environment == {"A": "b"} for job in jobs[1:])


def test_a_set_urgency_changes_the_order_of_held_jobs() -> None:
    told = Story("""
limits: {at_once: {gpu: 1}}
jobs: [{name: a, command: x, count: 3, uses: gpu}, {name: b, command: x, uses: gpu}]
rules: [{trigger: start, action: {name: submit}}]
""")
    told.start()
    ask(told, "set", label="b", **{"with": {"urgency": 31}})
    assert told.submitted(told.play("a.0")) == ["b.0"]


def test_further_retries_hold_for_jobs_that_run_and_after_a_snapshot() -> None:
    told = Story(LIMITED.replace("jobs: 3", "jobs: 100"))
    told.start()
    ask(told, "set", label="a", **{"with": {"at_once": 9}})
    told.play("a.0", status=256)
    told.play("a.0-1", status=256)
    assert told.metric("count.a.lost") == 1
    (change,) = ask(told, "set", label="a", **{"with": {"retry": {"times": 3}}})
    assert isinstance(change, SetGroup)
    for attempt in ("a.1", "a.1-1", "a.1-2"):
        told.play(attempt, status=256)
    again = snapshot.load(snapshot.dump(told.engine), told.ensemble)
    assert again is not None
    told.engine = again
    told.play("a.1-3", status=256)
    assert told.metric("count.a.lost") == 2
    assert told.metric("count.a.failed") == 6


def test_limits_of_a_live_run_can_change_also_after_a_snapshot_and_a_changed_file() -> None:
    told = Story(LIMITED)
    told.start()
    ask(told, "set", label="a", **{"with": {"at_once": 5}})
    assert queued(told) == 3
    change, submit = ask(told, "set", limits={"jobs": 4})
    assert isinstance(change, SetLimits)
    assert [job.id for job in submit.jobs] == ["a.3"]
    again = snapshot.load(snapshot.dump(told.engine), told.ensemble)
    assert again is not None
    told.engine = again
    assert told.engine.state.ensemble.limits.jobs == 4
    told.engine.reconfigure(Story(LIMITED.replace("gpu: 2", "gpu: 1")).ensemble)
    assert told.engine.state.ensemble.limits.jobs == 4
    told.engine.reconfigure(Story(LIMITED.replace("jobs: 3", "jobs: 5")).ensemble)
    assert told.engine.state.ensemble.limits.jobs == 5
    _, submit = ask(told, "set", limits={"jobs": None, "at_once": {"gpu": 3}})
    assert [job.id for job in submit.jobs] == ["a.4"]
    assert told.engine.state.table.slots.shared == {"gpu": 3}


def test_a_number_in_place_of_places_for_each_value_is_a_warning() -> None:
    told = Story(
        """
jobs:
  - {name: a, command: 'x {T}', parameters: {T: [1, 2]}, at_once: {jobs: 1, each: T}}
rules:
  - {trigger: start, action: {name: submit, label: a}}
"""
    )
    told.start()
    _, note = ask(told, "set", label="a", **{"with": {"at_once": 4}})
    assert note.message == (
        "a: at_once=4 counts all jobs of the group; before, it counted those of each value of T; "
        "to keep that: at_once={jobs: N, each: T}"
    )
    assert len(ask(told, "set", label="a", **{"with": {"at_once": 5}})) == 1


@pytest.mark.parametrize(
    "changes", [[{"nodes": 2}, {"nodes": 3}], [{"nodes": 3, "retry": {"times": 6}}]]
)
def test_held_jobs_of_all_entries_of_a_group_follow_each_change(
    changes: list[dict[str, Any]],
) -> None:
    told = Story(
        """
jobs:
  - {name: a, command: x, count: 2, at_once: 1, retry: {times: 1, wait: 0}}
  - {name: a, command: y, count: 2}
rules:
  - {trigger: start, action: {name: submit, label: a}}
"""
    )
    told.start()
    for change in changes:
        ask(told, "set", label="a", **{"with": change})
    nodes = [told.engine.state.table.records[f"a.{number}"].job.nodes for number in (1, 2, 3)]
    assert nodes == [3, 3, 3]


def test_a_rule_can_change_at_once_and_retries() -> None:
    told = Story(LIMITED.replace("jobs: 3", "jobs: 100"))
    told.start()
    ask(told, "submit", label="b")
    told.play("b.0")
    assert queued(told) == 5
    for attempt in ("a.0", "a.0-1", "a.0-2"):
        told.play(attempt, status=256)
    assert told.metric("count.a.lost") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label": "a", "with": {"at_once": 0}}, "0"),
        ({"label": "a", "with": {"retry": {"times": 0}}}, "0"),
        (
            {"label": "a", "with": {"retry": {"when": "T > 1"}}},
            "retry.when of a live run cannot change",
        ),
        (
            {"label": "a", "with": {"retry": {"times": 2, "with": {"nodes": 2}}}},
            "'ensemble retry RUN JOB --set FIELD=VALUE'",
        ),
        ({"label": "b", "with": {"retry": {"wait": 5}}}, "'b' has no 'retry' that could change"),
        ({"label": "a", "with": {"uses": "cpu"}}, "there is no limit 'cpu' under limits.at_once"),
        ({"limits": {"wall": "1h"}}, "'ensemble resume RUN --set limits.wall=VALUE'"),
        ({"limits": {"jobs": 5, "strict": True}}, "limits.strict of a live run cannot change"),
        ({"limits": {"wal": "1h"}}, "unknown key 'wal'"),
        ({"label": "a", "with": {"T": 5}}, "it is a parameter: write parameters.T=VALUE"),
        ({"limits": {"core_hours": -1}}, "-1"),
        ({"limits": {}}, "the specification is empty"),
        ({"limits": 5}, "5"),
    ],
)
def test_impossible_changes_have_no_effect(options: dict[str, Any], said: str) -> None:
    told = Story(LIMITED)
    told.start()
    before = told.engine.state.ensemble.limits, told.engine.state.table.groups["a"].group
    decided = ask(told, "set", **options)
    assert [type(each) for each in decided] == [Log]
    assert said in decided[0].message
    assert before == (told.engine.state.ensemble.limits, told.engine.state.table.groups["a"].group)


def test_new_shared_limit_is_added_to_a_live_run_and_used_by_a_group_afterwards() -> None:
    told = Story(LIMITED.replace("jobs: 3", "jobs: 100"))
    told.start()
    limit, note = ask(told, "set", limits={"at_once": {"cpu": 1}})
    assert limit.limits == {"at_once": {"cpu": 1}}
    assert "no job group uses the limit 'cpu' yet" in note.message
    assert "ensemble set RUN GROUP uses=cpu" in note.message
    assert ask(told, "set", label="a", **{"with": {"uses": "cpu"}})[0].fields == {"uses": "cpu"}
    (held,) = (each for each in ask(told, "submit", label="a") if isinstance(each, Log))
    assert "held by" in held.message
    assert ask(told, "set", limits={"at_once": {"cpu": 2}})[1:] == []


def test_submit_without_a_value_for_a_null_parameter_is_refused_with_the_option_to_set_it() -> None:
    told = Story(
        "jobs: [{name: post, command: 'x {m}', parameters: {m: null}}, {name: sim, command: x}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    told.start()
    action = {"name": "submit", "label": "post"}
    refused = refusal(told.engine.state, action)
    assert refused is not None
    assert refused.hint == "set its value: --set m=VALUE"
    assert refusal(told.engine.state, {**action, "with": {"parameters": {"m": 5}}}) is None
