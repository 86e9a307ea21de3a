"""A request can cancel single jobs of a live run."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.engine.requests import refusal
from ensemble_core.model.decisions import Cancel, Decision
from ensemble_core.model.events import Requested

FILE = """
jobs: [{name: sim, command: x, count: 4, at_once: 3, retry: {times: 1, wait: 1m}}]
rules: [{trigger: start, action: {name: submit}}]
"""


@pytest.fixture
def story() -> Story:
    told = Story(FILE)
    told.start()
    return told


def cancel(story: Story, *jobs: Any) -> list[Decision]:
    return story.tell(Requested(story.now, "alice", {"name": "cancel", "jobs": [*jobs]}))


def test_only_the_named_jobs_are_cancelled_and_are_no_failure(story: Story) -> None:
    story.begin("sim.0")
    assert [each.jobs for each in cancel(story, "sim.0") if isinstance(each, Cancel)] == [
        ("sim.0",)
    ]
    story.cancel("sim.0")
    for job in ("sim.1", "sim.2", "sim.3"):
        story.play(job)
    assert story.metric("count.sim.lost") == 1
    assert story.metric("count.sim.done") == 3
    assert story.exit_code == 0


def test_held_job_is_cancelled_without_the_queue(story: Story) -> None:
    assert [each.jobs for each in cancel(story, "sim.3") if isinstance(each, Cancel)] == [()]
    assert story.metric("count.sim.cancelled") == 1


def test_id_without_an_attempt_means_the_newest_one_and_its_retry(story: Story) -> None:
    story.play("sim.0", status=256)  # waits for its retry
    cancel(story, "sim.0")
    story.wait(100)
    assert story.metric("count.sim.lost") == 1
    story.play("sim.1", status=256)
    story.wait(100)
    found = [each.jobs for each in cancel(story, "sim.1") if isinstance(each, Cancel)]
    assert found == [("sim.1-1",)]


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (["sim.0"], "sim.0 is over already"),
        (["sim.1", "sim.9"], "no job 'sim.9'"),
        (["post.0"], "no job 'post.0'"),
        (["sim"], "no job 'sim'"),
        (["sim.0-1"], "sim.0 is over already"),
        (["sim.1-7"], "no job 'sim.1-7'"),
        (["sim.1-0"], "no job 'sim.1-0'"),
        (["sim.01"], "no job 'sim.01'"),
        ([], "not a list of jobs"),
        ("sim.1", "not a list of jobs"),
    ],
)
def test_jobs_that_cannot_be_cancelled_are_refused_and_nothing_is(
    story: Story, jobs: Any, words: str
) -> None:
    story.play("sim.0")
    refused = refusal(story.engine.state, {"name": "cancel", "jobs": jobs})
    assert words in str(refused)
    decided = story.tell(Requested(story.now, "alice", {"name": "cancel", "jobs": jobs}))
    assert not any(isinstance(each, Cancel) for each in decided)


def test_attempt_that_never_existed_is_no_job_and_an_earlier_one_is_over(story: Story) -> None:
    def refused(job: str) -> str:
        return str(refusal(story.engine.state, {"name": "cancel", "jobs": [job]}))

    story.play("sim.0")
    assert "no job 'sim.1-1'" in refused("sim.1-1")
    story.play("sim.1", status=256)  # waits for its retry, sim.1-1
    assert refused("sim.1-1") == "None"
    story.wait(100)
    assert "the newest attempt of sim.1 is sim.1-1" in refused("sim.1-2")
    assert "sim.1 is over already" not in refused("sim.1")
    story.play("sim.1-1", status=256)
    assert "sim.1-1 is over already" in refused("sim.1-1")
    assert "no job 'sim.1-9'" in refused("sim.1-9")


def test_other_requests_that_name_jobs_cancel_nothing(story: Story) -> None:
    request = {"name": "submit", "label": "sim", "jobs": ["sim.0"]}
    decided = story.tell(Requested(story.now, "alice", request))
    assert not any(isinstance(each, Cancel) for each in decided)
