"""``at_once`` for each value, for the whole run, and for groups that share a name."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from ensemble_testing import Story

from ensemble_core.engine.at_once import AT_ONCE
from ensemble_core.errors import EnsembleError
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import Requested, Resumed, StopRequested

SWEEP = "parameters: {user: [a, b], i: [1, 2, 3]}, command: 'x {user} {i}'"
START = "rules:\n  - {trigger: start, action: {name: submit}}\n"


def study(jobs: str, limits: str = "") -> Story:
    story = Story(f"jobs: [{jobs}]\n{START}" + (f"limits: {{{limits}}}\n" if limits else ""))
    story.start()
    return story


def active(story: Story) -> list[str]:
    """Return the jobs in the queue."""
    records = story.engine.state.table.records
    return [job for job, record in records.items() if record.state not in ("held", "looking")]


def users(story: Story) -> Counter[str]:
    records = story.engine.state.table.records
    return Counter(str(records[job].job.parameters["user"]) for job in active(story))


def test_each_value_has_its_own_slots() -> None:
    story = study(f"{{name: sim, {SWEEP}, at_once: {{jobs: 1, each: [user]}}}}")
    assert users(story) == {"a": 1, "b": 1}
    story.play("sim.3")  # of b
    assert active(story) == ["sim.0", "sim.4"]
    for job in ("sim.4", "sim.5", "sim.0", "sim.1", "sim.2"):
        assert max(users(story).values()) == 1
        story.play(job)
    assert story.exit_code == 0


def test_several_jobs_for_each_combination() -> None:
    story = study(f"{{name: sim, {SWEEP}, replicas: 3, at_once: {{jobs: 2, each: [user, i]}}}}")
    assert len(active(story)) == 12
    story = study(f"{{name: sim, {SWEEP}, at_once: {{jobs: 2, each: user}}}}")
    assert users(story) == {"a": 2, "b": 2}


def test_whole_run_has_slots_of_all_groups() -> None:
    groups = "{name: a, command: x, count: 3}, {name: b, command: x, count: 3}"
    story = study(groups, "at_once: 4")
    assert active(story) == ["a.0", "a.1", "a.2", "b.0"]
    story.play("a.1")
    assert active(story) == ["a.0", "a.2", "b.0", "b.1"]


def test_groups_share_the_slots_of_a_name() -> None:
    groups = (
        "{name: a, command: x, count: 3, uses: gpu}, {name: b, command: x, count: 3, uses: [gpu]}, "
        "{name: c, command: x, count: 3}"
    )
    story = study(groups, "at_once: {gpu: 4}")
    assert active(story) == ["a.0", "a.1", "a.2", "b.0", "c.0", "c.1", "c.2"]
    story.play("c.0")
    story.play("a.0")  # the end of a job of one group lets one of the other begin
    assert sorted(active(story)) == ["a.1", "a.2", "b.0", "b.1", "c.1", "c.2"]


def test_a_group_and_a_shared_limit_with_the_same_name_are_counted_apart() -> None:
    groups = (
        "{name: gpu, command: x, count: 5, at_once: 3, uses: gpu}, "
        "{name: b, command: x, count: 5, uses: gpu}"
    )
    story = study(groups, "at_once: {gpu: 5}")
    assert active(story) == ["gpu.0", "gpu.1", "gpu.2", "b.0", "b.1"]


def test_all_limits_of_a_job_count() -> None:
    groups = f"{{name: sim, {SWEEP}, uses: [gpu, net], at_once: {{jobs: 2, each: user}}}}"
    story = study(groups, "at_once: {gpu: 3, net: 5}")
    assert users(story) == {"a": 2, "b": 1}


def test_whole_run_and_names_have_limits_together() -> None:
    groups = "{name: a, command: x, count: 3, uses: gpu}, {name: b, command: x, count: 4}"
    story = study(groups, "at_once: {jobs: 4, gpu: 2}")
    assert active(story) == ["a.0", "a.1", "b.0", "b.1"]
    story.play("a.0")
    assert sorted(active(story)) == ["a.1", "a.2", "b.0", "b.1"]
    action = {"name": "set", "limits": {"at_once": {"jobs": 5}}}
    decided = story.tell(Requested(story.now, "alice", action))
    assert not any(isinstance(each, Log) for each in decided)  # 'jobs' is no name that groups use
    assert sorted(active(story)) == ["a.1", "a.2", "b.0", "b.1", "b.2"]


def test_limits_that_a_user_has_set_stay_if_the_file_changes_others() -> None:
    groups = "{name: a, command: x, count: 9, uses: [gpu, net]}"
    story = study(groups, "at_once: {gpu: 2, net: 7}, jobs: 20")
    action = {"name": "set", "limits": {"at_once": {"gpu": 3, "net": 5}, "jobs": 30}}
    story.tell(Requested(story.now, "alice", action))
    for limits, kept, words in (
        ("{gpu: 2, net: 6, jobs: 8}, jobs: 20", {"gpu": 3, "net": 6, "": 8}, "limits.at_once.net"),
        ("{gpu: 4, net: 6}, jobs: 20", {"gpu": 4, "net": 6}, "limits.at_once.gpu"),
        ("{gpu: 4, net: 6}, jobs: 25", {"gpu": 4, "net": 6}, "limits.jobs"),
        ("{gpu: 4, net: 6}, jobs: 30", {"gpu": 4, "net": 6}, ""),
    ):
        story.engine = snapshot.load(snapshot.dump(story.engine), story.ensemble)
        text = f"jobs: [{groups}]\n{START}limits: {{at_once: {limits}}}\n"
        story.ensemble = Story(text).ensemble
        story.engine.reconfigure(story.ensemble)
        decided = story.tell(Resumed(story.now))
        said = [each.message for each in decided if isinstance(each, Log)]
        known = "the changed file replaces what was set during the run: "
        assert said == ([f"{known}{words}"] if words else [])
        assert story.engine.state.ensemble.limits.at_once == kept
    assert story.engine.state.ensemble.limits.jobs == 30


def cancel(story: Story, *jobs: str) -> None:
    story.tell(Requested(story.now, "alice", {"name": "cancel", "jobs": [*jobs]}))


@pytest.mark.parametrize("limit", ["{jobs: 1, each: user}", "1"])
def test_slot_of_a_cancelled_held_job_goes_to_the_next_one(limit: str) -> None:
    story = study(f"{{name: sim, {SWEEP}, at_once: {limit}}}")
    cancel(story, "sim.1", "sim.4")
    while story.exit_code is None:
        story.play(active(story)[0])
    assert story.metric("count.sim.done") == 4


def test_held_job_that_waits_for_a_shared_limit_leaves_its_place_when_it_is_cancelled() -> None:
    story = study(
        "{name: sim, command: "
        "'x {user} {i}', parameters: {user: [a], i: [1, 2, 3]}, uses: gpu, "
        "at_once: {jobs: 1, each: user}}, {name: b, command: x, count: 3, uses: gpu, urgency: 20}",
        "at_once: {gpu: 2}",
    )
    story.play("sim.0")
    assert active(story) == ["b.0", "b.1"]
    cancel(story, "sim.1")
    story.play("b.0")
    story.play("b.1")
    assert sorted(active(story)) == ["b.2", "sim.2"]


def test_retry_waits_for_a_slot_of_its_value() -> None:
    story = study(f"{{name: sim, {SWEEP}, retry: {{times: 1}}, at_once: {{jobs: 1, each: user}}}}")
    story.play("sim.0", status=256)
    assert users(story) == {"a": 1, "b": 1}
    assert "sim.0-1" not in active(story)


def test_changed_limits_count_the_jobs_in_the_queue() -> None:
    story = study(f"{{name: sim, {SWEEP}, at_once: {{jobs: 1, each: user}}}}")
    request = {"name": "set", "label": "sim", "with": {"urgency": 20}}
    story.tell(Requested(story.now, "user", request))
    assert users(story) == {"a": 1, "b": 1}
    story.tell(StopRequested(story.now, then="keep"))
    text = f"jobs: [{{name: sim, {SWEEP}, at_once: 3}}]\n{START}"
    story.engine.reconfigure(Story(text).ensemble)
    story.tell(Resumed(story.now))
    assert len(active(story)) == 3
    story.play("sim.0")
    assert len(active(story)) == 3


def test_killed_run_counts_the_same_slots_after_a_resume() -> None:
    groups = f"{{name: sim, {SWEEP}, uses: gpu, at_once: {{jobs: 1, each: user}}}}"
    story = study(groups, "at_once: {gpu: 2}")
    kept = snapshot.load(snapshot.dump(story.engine), story.ensemble)
    assert kept is not None
    story.engine = kept
    story.tell(Resumed(story.now))
    story.begin("sim.0")
    story.end("sim.0")
    assert users(story) == {"a": 1, "b": 1}


def test_request_says_what_holds_its_job() -> None:
    groups = f"{{name: sim, {SWEEP}, uses: gpu, at_once: {{jobs: 1, each: user}}}}"
    for limits, words in (
        ("at_once: {gpu: 9}", "at_once: 1 for each user"),
        ("at_once: {gpu: 1}", "limits.at_once.gpu: 1"),
        ("at_once: {gpu: 9}, jobs: 99", "at_once: 1 for each user"),
    ):
        story = study(groups, limits)
        story.tell(Requested(story.now, "user", {"name": "submit", "label": "sim"}))
        said = story.messages()
        assert words in said[-1]


def test_slots_never_end_a_run_and_trigger_no_rule_on_limits() -> None:
    groups = f"{{name: sim, {SWEEP}, uses: gpu}}"
    story = study(groups, "at_once: {gpu: 1}, jobs: 6")
    assert story.exit_code is None
    for number in range(6):
        story.play(f"sim.{number}")
    assert story.exit_code == 0


@pytest.mark.parametrize("seed", range(30))
def test_random_jobs_never_exceed_a_limit_and_never_wait_without_one(seed: int) -> None:
    chance = random.Random(seed)
    each, gpu, run = chance.randint(1, 2), chance.randint(1, 4), chance.choice([None, 9])
    groups = (
        f"{{name: a, {SWEEP}, uses: gpu, at_once: {{jobs: {each}, each: user}}}}, "
        "{name: b, command: x, count: 4, uses: gpu, at_once: 3}, {name: c, command: x, count: 3}"
    )
    story = study(groups, f"at_once: {{gpu: {gpu}}}" + (f", jobs: {run + 4}" if run else ""))
    while story.exit_code is None:
        jobs = active(story)
        count = Counter(job.partition(".")[0] for job in jobs)
        by = Counter(
            str(story.engine.state.table.records[job].job.parameters["user"])
            for job in jobs
            if job.startswith("a.")
        )
        assert max([0, *by.values()]) <= each
        assert count["b"] <= 3
        assert count["a"] + count["b"] <= gpu
        for name, group in story.engine.state.table.groups.items():
            if name != "c" and group.held and run is None:
                full = count["a"] + count["b"] == gpu
                own = count["b"] == 3 if name == "b" else True
                assert full or own
                if name == "a" and not full:
                    held = {str(one.job.parameters["user"]) for one in group.held.values()}
                    assert all(by[user] == each for user in held)
        if chance.random() < 0.15:
            kept = snapshot.load(snapshot.dump(story.engine), story.ensemble)
            assert kept is not None
            story.engine = kept
        held = [one for each in story.engine.state.table.groups.values() for one in each.held]
        if held and chance.random() < 0.2:
            cancel(story, chance.choice(held))
        if not jobs:
            break
        story.play(chance.choice(jobs))
    assert story.exit_code is not None
    assert AT_ONCE == "at_once"


@pytest.mark.parametrize(
    ("jobs", "limits", "words"),
    [
        ("{name: a, command: x, uses: gpu}", "", "no limit 'gpu' under limits.at_once"),
        ("{name: a, command: x, uses: gpu}", "at_once: {gqu: 4}", "did you mean 'gqu'"),
        ("{name: a, command: x}", "at_once: {gpu: 4}", "no job group uses the limit 'gpu'"),
        ("{name: a, command: x}", "at_once: 0", "at least 1"),
        ("{name: a, command: x}", "at_once: {}", "at_once"),
        ("{name: a, command: x, at_once: {jobs: 2, each: user}}", "", "has no parameter 'user'"),
        ("{name: a, command: x, at_once: {jobs: 0, each: user}}", "", "at least 1"),
        ("{name: a, command: x, at_once: {each: user}}", "", "jobs"),
        ("{name: a, command: x, uses: gpu}", "at_once: 5", "no limit 'gpu'"),
        ("{name: a, command: x, uses: jobs}", "at_once: {jobs: 5}", "the limit of all jobs"),
    ],
)
def test_limits_that_cannot_be_are_refused(jobs: str, limits: str, words: str) -> None:
    with pytest.raises(EnsembleError) as caught:
        study(jobs, limits)
    assert words in str(caught.value)
