"""Budget: jobs that could exceed a limit of the run's cost are held until they fit."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from ensemble_testing import Story
from hypothesis import given
from hypothesis import strategies as st

from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Log, Submit, Terminate
from ensemble_core.model.events import Resumed
from ensemble_core.plugin.discovery import discover

START = "  - {trigger: start, action: {name: submit, label: a}}"


def story(limits: str, job: str, rules: str = "", more: str = "") -> Story:
    return Story(f"""
limits: {{{limits}}}
jobs:
  - {{name: a, command: x, {job}}}
{more}
rules:
{START}
{rules}
""")


def ended(told: Story) -> Terminate:
    last = told.decisions[-1]
    assert isinstance(last, Terminate), last
    return last


def test_time_limits_decide_how_many_jobs_fit_into_the_budget() -> None:
    told = story("core_hours: 2", "count: 5, tasks: 2, duration: 30m")
    told.start()
    assert told.submitted() == ["a.0", "a.1"]
    assert told.metric("committed.core_hours") == 2
    assert told.metric("count.a.active") == 5
    assert told.metric("waiting.jobs") == 2, "what is held is in no queue"


def test_a_job_that_ends_early_makes_room_for_the_next() -> None:
    told = story("core_hours: 2", "count: 5, tasks: 2, duration: 30m")
    told.start()
    told.play("a.0", duration=900)
    assert told.metric("used.core_hours") == 0.5
    assert told.submitted() == ["a.0", "a.1"]
    assert told.submitted(told.play("a.1", duration=900)) == ["a.2"]


def test_a_running_job_has_used_its_time_so_far_and_commits_the_rest() -> None:
    told = story("core_hours: 2", "tasks: 2, duration: 30m")
    told.start()
    told.begin("a.0")
    told.wait(360)
    told.job("a.0", "memo")
    assert told.metric("used.core_hours") == pytest.approx(0.2)
    assert told.metric("committed.core_hours") == pytest.approx(0.8)
    told.wait(3600)
    told.job("a.0", "memo")
    assert told.metric("committed.core_hours") == 0, "never less, however late it is"
    assert told.metric("used.core_hours") == pytest.approx(2.2)


def test_without_a_time_limit_the_first_jobs_duration_decides_how_many_follow() -> None:
    told = story("core_hours: 1", "count: 9")
    told.start()
    assert told.submitted() == ["a.0"]
    told.begin("a.0")
    assert told.submitted(told.end("a.0", duration=720)) == ["a.1", "a.2", "a.3", "a.4"]


def test_if_the_first_job_is_cancelled_another_one_measures_the_duration() -> None:
    told = story("core_hours: 1", "count: 3")
    told.start()
    assert told.submitted(told.cancel("a.0")) == ["a.1"]


def test_a_held_large_job_does_not_block_small_jobs_of_other_groups() -> None:
    told = story(
        "node_hours: 3",
        "nodes: 2, count: 2, duration: 1h",
        "  - {trigger: job-start, action: {name: submit, label: b}}",
        "  - {name: b, command: x, duration: 1h}",
    )
    told.start()
    assert told.submitted() == ["a.0"]
    assert told.submitted(told.begin("a.0")) == ["b.0"]
    told.end("a.0", duration=3600)
    told.play("b.0", duration=3600)
    assert ended(told).exit_code == 4


def test_a_job_that_needs_no_gpu_is_not_held_by_gpu_hours() -> None:
    told = story(
        "gpu_hours: 1",
        "count: 2, gpus_per_task: 1, duration: 1h",
        "  - {trigger: start, action: {name: submit, label: b}}",
        "  - {name: b, command: x, duration: 9h}",
    )
    told.start()
    assert told.submitted() == ["a.0", "b.0"]


def test_the_most_urgent_held_job_goes_first() -> None:
    told = story(
        "jobs: 2, submits_per_second: 100",
        "count: 2",
        "  - {trigger: job-start, action: [{name: submit, label: b}, {name: submit, label: c}]}",
        "  - {name: b, command: x, urgency: 5}\n  - {name: c, command: x, urgency: 20}",
    )
    told.start()
    told.begin("a.0")
    told.begin("a.1")
    more = load_text(
        "limits: {jobs: 3}\njobs: [{name: a, command: x, count: 2}, {name: b, command: x, "
        f"urgency: 5}}, {{name: c, command: x, urgency: 20}}]\nrules:\n{START}\n",
        discover(),
    )
    told.engine.reconfigure(more)
    assert told.submitted(told.tell(Resumed(told.now))) == ["c.0"]


def test_rules_on_limit_fire_when_jobs_are_held_and_when_only_these_are_left() -> None:
    told = story(
        "core_hours: 2",
        "count: 5, tasks: 2, duration: 30m",
        "  - {id: met, trigger: limit, repetitions: 9, action: {name: log,"
        ' message: "{what} of {most}: {used} used, {committed} committed, {held} held,'
        ' {needed} needed, {left} left"}}',
    )
    told.start()
    told.play("a.0", duration=1800)
    told.play("a.1", duration=1800)
    said = [one.message for one in told.decisions if isinstance(one, Log) and one.rule == "met"]
    assert said == [
        "core_hours of 2: 0 used, 2 committed, 3 held, 5 needed, 2 left",
        "core_hours of 2: 2 used, 0 committed, 3 held, 5 needed, 0 left",
    ]
    assert ended(told).exit_code == 4


def test_the_needed_hours_have_no_value_before_the_time_of_a_job_is_known() -> None:
    told = story(
        "core_hours: 1.5",
        "count: 3",
        "  - {id: met, trigger: limit, repetitions: 9, action: {name: log, message: '{needed}'}}",
    )
    told.start()
    told.play("a.0", duration=3600)
    said = [one.message for one in told.decisions if isinstance(one, Log) and one.rule == "met"]
    assert said == ["? (the event has no 'needed')", "3"]


def test_a_rule_on_a_limit_may_end_the_run() -> None:
    told = story(
        "jobs: 1",
        "count: 3",
        "  - {trigger: limit, when: left == 0, action: {name: cancel, label: a}}",
    )
    told.start()
    told.play("a.0")
    assert told.exit_code == 0
    assert told.metric("count.a.cancelled") == 2


def test_a_rule_that_submits_at_every_limit_is_cut() -> None:
    told = story(
        "jobs: 1, chain: 10",
        "count: 2",
        "  - {trigger: limit, repetitions: unlimited, action: {name: submit, label: a}}",
    )
    told.start()
    told.play("a.0")
    assert told.exit_code == 4
    assert "triggered each other" in "".join(
        one.message for one in told.decisions if isinstance(one, Log)
    )


def test_the_end_reports_held_jobs_and_the_missing_budget() -> None:
    told = story(
        "core_hours: 1, jobs: 100",
        "count: 4, duration: 30m",
        "  - {trigger: start, action: {name: submit, label: b}}",
        "  - {name: b, command: x, duration: 15m, count: 3}",
    )
    told.start()
    told.play("a.0", duration=1800)
    told.play("a.1", duration=1800)
    assert ended(told).reason == (
        "only held jobs are left: 5 jobs (a 2, b 3); limits.core_hours is 1, 1 used; "
        "they need 1.75 more: set limits.core_hours to 2.75"
    )


def test_rules_may_use_the_costs_of_a_run() -> None:
    told = Story("""
jobs: [{name: a, command: x, count: 3, tasks: 4, duration: 1h}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: open, trigger: metric, name: committed.core_hours, when: "< 5", action: {name: log, message: x}}
  - {id: dear, trigger: metric, name: used.core_hours, when: ">= 8", action: {name: terminate}}
""")
    told.start()
    assert told.metric("committed.core_hours") == 12
    told.play("a.0", duration=3600)
    assert "dear" not in told.fired()
    assert "open" in told.fired(told.play("a.1", duration=3600))
    assert "dear" in told.fired()


def test_a_held_retry_does_not_lose_its_index() -> None:
    told = story("jobs: 1", "retry: {times: 2}")
    told.start()
    told.play("a.0", status=256)
    assert told.metric("count.a.open") == 1
    assert told.metric("count.a.lost") == 0
    assert ended(told).exit_code == 4


def test_idle_does_not_come_while_jobs_are_held() -> None:
    told = story("jobs: 1", "count: 2", "  - {id: idle, trigger: idle, action: {name: terminate}}")
    told.start()
    told.play("a.0")
    assert "idle" not in told.fired()
    assert told.exit_code == 4


def test_terminate_drops_held_jobs() -> None:
    told = story("jobs: 1", "count: 3", "  - {trigger: job-start, action: {name: terminate}}")
    told.start()
    told.begin("a.0")
    assert told.metric("count.a.cancelled") == 2
    assert told.exit_code == 0


def test_a_resume_with_a_larger_limit_submits_held_jobs() -> None:
    told = story("core_hours: 1", "count: 4, duration: 30m")
    told.start()
    told.play("a.0", duration=1800)
    told.play("a.1", duration=1800)
    assert told.exit_code == 4
    text = f"limits: {{core_hours: 2}}\njobs: [{{name: a, command: x, count: 4, duration: 30m}}]\nrules:\n{START}\n"
    told.engine.reconfigure(load_text(text, discover()))
    assert told.submitted(told.tell(Resumed(told.now))) == ["a.2", "a.3"]
    told.play("a.2")
    told.play("a.3")
    assert told.exit_code == 0


def test_a_resume_with_the_same_limit_ends_as_before_without_triggering_rules() -> None:
    told = story(
        "jobs: 1",
        "count: 2",
        "  - {id: met, trigger: limit, repetitions: 9, when: left == 0,"
        " action: {name: log, message: x}}",
    )
    told.start()
    told.play("a.0")
    assert told.fired().count("met") == 1
    told.tell(Resumed(told.now))
    assert ended(told).exit_code == 4
    assert told.fired().count("met") == 1


def test_rules_on_limit_fire_again_if_a_larger_limit_is_reached_too() -> None:
    met = (
        "  - {id: met, trigger: limit, repetitions: 9, when: left == 0,"
        " action: {name: log, message: '{used} of {most}'}}"
    )
    told = story("jobs: 1", "count: 4", met)
    told.start()
    told.play("a.0")
    for most in (2, 3):
        text = f"limits: {{jobs: {most}}}\njobs: [{{name: a, command: x, count: 4}}]\nrules:\n"
        told.engine.reconfigure(load_text(text + f"{START}\n{met}\n", discover()))
        told.tell(Resumed(told.now))
        told.play(f"a.{most - 1}")
        assert told.exit_code == 4
    said = [one.message for one in told.decisions if isinstance(one, Log) and one.rule == "met"]
    assert said == ["1 of 1", "2 of 2", "3 of 3"]


def test_a_new_limit_at_a_resume_includes_earlier_usage() -> None:
    told = Story(f"jobs: [{{name: a, command: x, count: 4, duration: 30m}}]\nrules:\n{START}\n")
    told.start()
    told.play("a.0", duration=1800)
    told.begin("a.1")
    text = f"""
limits: {{core_hours: 3}}
jobs: [{{name: a, command: x, count: 4, duration: 30m}}]
rules:
{START}
  - {{trigger: job-fail, action: {{name: submit, label: a}}}}
"""
    told.engine.reconfigure(load_text(text, discover()))
    assert told.metric("used.core_hours") == 0.5
    assert told.metric("committed.core_hours") == 1.5
    assert told.submitted(told.end("a.1", status=256, duration=1800)) == ["a.4", "a.5"]
    assert told.metric("used.jobs") == 6


def test_jobs_held_by_at_once_are_not_reported_as_held_by_a_limit() -> None:
    told = story("core_hours: 100", "count: 5, at_once: 1, duration: 1h")
    told.start()
    assert not [one for one in told.decisions if isinstance(one, Log)]
    for number in range(5):
        told.play(f"a.{number}")
    assert told.exit_code == 0


# -- laws --------------------------------------------------------------------------------------

sizes = st.fixed_dictionaries(
    {
        "count": st.integers(1, 6),
        "tasks": st.integers(1, 4),
        "nodes": st.just(1),
        "gpus_per_task": st.integers(0, 1),
        "urgency": st.sampled_from([1, 16, 31]),
    },
    optional={"at_once": st.integers(1, 2), "retry": st.just({"times": 2})},
)


@st.composite
def budgets(draw: st.DrawFn, *, timed: bool) -> dict[str, Any]:
    """Draw an ensemble file with limits. With ``timed``, every group has a time limit."""
    groups = draw(st.lists(sizes, min_size=1, max_size=3))
    for number, group in enumerate(groups):
        group.update(name=f"g{number}", command="x")
        if timed or draw(st.booleans()):
            group["duration"] = draw(st.integers(60, 3600))
    limits = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "core_hours": st.floats(4.1, 30),
                "node_hours": st.floats(1.1, 10),
                "gpu_hours": st.floats(4.1, 20),
                "jobs": st.integers(1, 12),
                "submits_per_second": st.integers(1, 3),
            },
        )
    )
    start = [{"name": "submit", "label": group["name"]} for group in groups]
    more = {"name": "submit", "label": draw(st.sampled_from([g["name"] for g in groups]))}
    rules: list[dict[str, Any]] = [
        {"trigger": "start", "action": start},
        {"trigger": "job-success", "repetitions": draw(st.integers(1, 4)), "action": more},
        {"trigger": "limit", "repetitions": 3, "action": {"name": "log", "message": "{what}"}},
    ]
    return {"limits": limits, "jobs": groups, "rules": rules}


def play_at_random(told: Story, seed: int) -> None:
    """Start and end all jobs at random times, within their time limits."""
    chance = random.Random(seed)
    waiting: list[str] = []
    running: dict[str, float] = {}

    def note(decisions: list[Any]) -> None:
        for one in decisions:
            if isinstance(one, Submit):
                waiting.extend(job.id for job in one.jobs)

    note(told.start())
    while told.exit_code is None:
        pick = chance.random()
        if waiting and pick < 0.5:
            job = waiting.pop(chance.randrange(len(waiting)))
            if chance.random() < 0.1:
                note(told.cancel(job))
                continue
            note(told.begin(job))
            most = told.engine.state.table.records[job].job.duration or 3000.0
            running[job] = told.now + chance.random() * most
        elif running:
            job = min(running, key=lambda each: running[each])
            until = running.pop(job)
            note(told.wait(max(0.0, until - told.now)))
            note(told.end(job, status=256 * (chance.random() < 0.2), duration=0.0))
        else:
            note(told.wait(1.0))


@given(budgets(timed=True), st.integers(0, 2**32))
def test_no_limit_is_exceeded_if_jobs_keep_their_time_limits(
    data: dict[str, Any], seed: int
) -> None:
    told = Story(yaml.safe_dump(data))
    limits = {**data["limits"]}
    limits.pop("submits_per_second", None)
    tell = told.tell

    def checked(event: Any) -> Any:
        decided = tell(event)
        for name, most in limits.items():
            used = told.metric(f"used.{name}") or 0.0
            committed = told.metric(f"committed.{name}") if name != "jobs" else 0.0
            assert used + (committed or 0.0) <= most * (1 + 1e-6)
        return decided

    told.tell = checked  # type: ignore[method-assign]
    play_at_random(told, seed)
    left = told.engine.state.table.held_jobs()
    assert (told.exit_code == 4) == bool(left)
    metrics = told.engine.state.metrics
    assert sum(metrics.count(name, "open") for name in metrics.counts) == len(left)


@given(budgets(timed=False), st.integers(0, 2**32))
def test_held_jobs_are_replayed_exactly_from_snapshots_as_well(
    data: dict[str, Any], seed: int
) -> None:
    told = Story(yaml.safe_dump(data))
    play_at_random(told, seed)
    told.tell(Resumed(told.now))
    chance = random.Random(seed)
    first, second = Engine(told.ensemble), Engine(told.ensemble)
    for event in told.events:
        if chance.random() < 0.06:
            state = dump(second)
            assert state is not None
            loaded = load(state, told.ensemble)
            assert loaded is not None
            second = loaded
        assert decisions_text(second.handle(event)) == decisions_text(first.handle(event))
        assert second.next_timer() == first.next_timer()
        assert second.state.table.costs(second.state.now) == first.state.table.costs(
            first.state.now
        )
    assert first.report() == second.report() == told.engine.report()


def test_an_idle_rule_enabled_at_a_jobs_end_is_checked_at_that_end() -> None:
    told = Story("""
limits: {jobs: 3}
jobs: [{name: a, command: x}, {name: b, command: x, count: 2}]
rules:
  - {trigger: start, action: [{name: submit, label: a}, {name: submit, label: b}]}
  - {id: late, trigger: idle, name: a, enabled: false, action: {name: log, message: x}}
  - {trigger: job-done, name: b, when: index == 0, action: {name: enable, rules: [late]}}
  - {trigger: idle, name: [a, b], action: {name: log, message: y}}
""")
    told.start()
    told.play("a.0")
    assert "late" in told.fired(told.play("b.0"))
