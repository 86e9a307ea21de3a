"""Nodes on which jobs fail: the trigger ``bad-node``, the action ``avoid`` and the key ``avoid``."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ensemble_testing import FakeExecutor, Story

from ensemble_core import ExecutorPlugin, FileErrors
from ensemble_core.config import load_text
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.model.decisions import Avoid, Cancel, Decision, Log, Submit
from ensemble_core.model.events import Resumed
from ensemble_core.plugin.discovery import discover

FILE = """
jobs:
  - {name: md, command: x, count: 5, avoid: old, retry: {times: 9}}
  - {name: other, command: x, count: 2, at_once: 1}
rules:
  - {trigger: start, action: [{name: submit, label: md}, {name: submit, label: other}]}
use:
  - {algorithm: avoid-bad-nodes, with: {failures: 2, within: 1m, causes: [exit, signal], most: 2}}
"""


def begin(story: Story, job: str, host: str) -> list[Decision]:
    story.job(job, "submit", "validate", "depend", "priority", "alloc")
    return story.job(job, "start", host=host)


def fail(story: Story, job: str, host: str, *, status: int = 256) -> list[Decision]:
    begin(story, job, host)
    return story.end(job, status=status)


def avoided(decided: list[Decision]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(each.nodes, each.jobs) for each in decided if isinstance(each, Avoid)]


def submitted(decided: list[Decision]) -> dict[str, tuple[str, ...]]:
    found = [each.jobs for each in decided if isinstance(each, Submit)]
    return {job.id: job.avoid for jobs in found for job in jobs}


@pytest.fixture
def story() -> Story:
    told = Story(FILE)
    told.start()
    return told


def test_a_node_on_which_different_jobs_failed_gets_no_more_jobs(story: Story) -> None:
    """The retry, held jobs and jobs that wait in the queue avoid it, and running jobs stay."""
    assert submitted(story.decisions)["md.0"] == ("old",)
    assert submitted(fail(story, "md.0", "n1")) == {"md.0-1": ("old",)}
    assert not avoided(fail(story, "md.0-1", "n1")), "a job counts only once"
    begin(story, "md.1", "n1")
    begin(story, "md.2", "n2")
    decided = story.end("md.1", status=9)
    assert avoided(decided) == [(("n1",), ("md.3", "md.4", "md.0-2", "other.0"))]
    assert submitted(decided) == {"md.1-1": ("old", "n1")}
    assert [each.jobs for each in decided if isinstance(each, Cancel)] == [
        ("md.3", "md.4", "md.0-2", "other.0")
    ]
    logs = [each.message for each in decided if isinstance(each, Log)]
    assert logs == ["n1: 2 jobs failed on this node (md.0, md.1)"]
    again = submitted(story.cancel("md.3")) | submitted(story.cancel("other.0"))
    assert again == {"md.3": ("old", "n1"), "other.0": ("n1",)}
    assert submitted(story.play("other.0")) == {"other.1": ("n1",)}, "a held job"
    assert story.metric("count.md.cancelled") == 0
    assert story.engine.report().avoided == ("n1",)


def test_only_recent_failures_with_these_causes_count(story: Story) -> None:
    fail(story, "md.0", "n1")
    story.wait(70)
    assert not avoided(fail(story, "md.1", "n1")), "the first failure is too old"
    begin(story, "md.2", "n1")
    story.job("md.2", "exception", type="out-of-memory", severity=0, note="")
    assert not avoided(story.end("md.2", status=9)), "memory is not among the causes"
    assert avoided(fail(story, "md.3", "n2,n1"))[0][0] == ("n1",)
    assert not avoided(fail(story, "md.4", "n1")), "it is avoided already"


def test_a_failure_of_another_group_with_a_shorter_time_forgets_none() -> None:
    rule = "- {trigger: bad-node, name: %s, failures: 2, within: %s, repetitions: 9, action: {%s}}"
    told = Story(
        "jobs: [{name: a, command: x, count: 2}, {name: b, command: x}]\nrules:\n"
        "- {trigger: start, action: [{name: submit, label: a}, {name: submit, label: b}]}\n"
        + rule % ("a", "1h", "name: log, message: '{host} is bad'")
        + "\n"
        + rule % ("b", "10s", "name: log, message: b")
    )
    told.start()
    for seconds, job in ((0, "a.0"), (60, "b.0"), (60, "a.1")):
        told.wait(seconds)
        decided = fail(told, job, "n1")
    assert [each.message for each in decided if isinstance(each, Log)] == ["n1 is bad"]


def test_no_more_than_most_nodes_are_avoided(story: Story) -> None:
    decided = []
    for node in ("n1", "n2", "n3"):
        for job in ("md.0", "md.1"):
            record = next(
                each
                for name, each in story.engine.state.table.records.items()
                if name.partition("-")[0] == job
            )
            if record.cancel == "stopping":
                story.cancel(record.job.id)
            decided += fail(story, record.job.id, node)
    assert [nodes for nodes, _ in avoided(decided)] == [("n1",), ("n2",)]
    assert "n3: not avoided, because this run avoids 2 nodes" in str(decided[-2:])


def test_a_withdrawal_that_never_reached_the_queue_is_repeated_after_a_resume(
    story: Story,
) -> None:
    fail(story, "md.0", "n1")
    fail(story, "md.1", "n1")
    decided = story.tell(Resumed(story.now, {}))
    assert [each.jobs for each in decided if isinstance(each, Cancel)] == [
        ("md.2", "md.3", "md.4", "other.0", "md.0-1")
    ]


def test_a_retry_avoids_the_last_node_in_addition_to_the_group_s() -> None:
    story = Story(FILE.replace("{times: 9}", '{times: 9, with: {avoid: "{job.host}"}}'))
    story.start()
    assert submitted(fail(story, "md.0", "n1,n2")) == {"md.0-1": ("old", "n1", "n2")}
    assert submitted(fail(story, "md.0-1", "n3")) == {"md.0-2": ("old", "n1", "n2", "n3")}
    story.job("md.1", "submit")
    decided = story.job("md.1", "exception", type="submit", severity=0, note="")
    decided += story.job("md.1", "clean")
    assert submitted(decided) == {"md.1-1": ("old",)}, "it never ran, so it has no node"


@pytest.mark.parametrize("seed", range(5))
def test_counts_match_a_plain_list_and_survive_a_snapshot(seed: int) -> None:
    """Compare with the definition: K different jobs, each with a failure within the time."""
    pick = random.Random(seed)
    text = FILE.replace("most: 2", "most: 99").replace("times: 9", "times: 99")
    story, failures, bad = Story(text), [], []
    story.start()
    for _ in range(60):
        story.wait(pick.choice([0, 5, 30]))
        ready = [
            each
            for each in story.engine.state.table.records.values()
            if each.job.group == "md" and each.state == "queued"
        ]
        for each in ready:
            if each.cancel == "stopping":
                story.cancel(each.job.id)
        record = pick.choice(ready)
        host = pick.choice(["a", "b", "c", "d"])
        found = avoided(fail(story, record.job.id, host))
        failures.append((host, record.job.index, story.now))
        recent = {i for h, i, at in failures if h == host and at > story.now - 60}
        expected = len(recent) >= 2 and host not in bad
        assert [nodes for nodes, _ in found] == [(host,)] * expected
        bad += [host] * expected
        if pick.random() < 0.2:
            copy: Any = snapshot.load(snapshot.dump(story.engine), story.engine.state.ensemble)
            kept, known = copy.state.bad_nodes, story.engine.state.bad_nodes
            assert (kept.failed, kept.avoided) == (known.failed, known.avoided)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("avoid: 'n1 n2'", "'n1 n2' is not the name of a node"),
        ("avoid: ['n[1-3]']", "'n[1-3]' is not the name of a node"),
        ("avoid: 3", "expected"),
        ("avoid: ''", "'avoid' is empty"),
        ("avoid: ['']", "empty"),
        ("avoid: '{nodename}'", "nodename"),
    ],
)
def test_invalid_names_are_rejected(spec: str, what: str) -> None:
    with pytest.raises(FileErrors) as raised:
        load_text(f"jobs: [{{name: a, command: x, {spec}}}]\nrules: []\n", discover())
    assert what in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),  # the key and the algorithm
        ("avoid: old, ", ""),
        ("use:", "unused:"),
        ("avoid: old, retry: {times: 9}", 'retry: {times: 9, with: {avoid: "{job.host}"}}'),
    ],
)
def test_an_executor_that_cannot_avoid_nodes_is_refused(old: str, new: str) -> None:
    text = FILE.replace(old, new)
    if "unused" in text:
        text = text.partition("unused:")[0]
    record = ExecutorPlugin(name="q", summary="a queue", build=lambda options: FakeExecutor())
    with pytest.raises(FileErrors) as raised:
        load_text(text, discover(), file="e.yaml", executor=record)
    assert {each.code for each in raised.value.errors} == {"cannot-avoid"}
    assert str(raised.value).startswith("e.yaml:")
