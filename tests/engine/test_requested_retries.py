"""A request can run lost jobs again: live, or as the first event of a run that is reopened."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.requests import refusal
from ensemble_core.engine.state_validation import validate
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.journal.event_encoding import decisions_text, event_text, list_text, rows_of
from ensemble_core.model.decisions import Decision, Log, Retry, Submit
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
    Event,
    JobEvent,
    Requested,
    Resumed,
    Started,
    TimerElapsed,
)

FILE = """
jobs: [{name: sim, command: "x {T}", parameters: {T: [0, 1, 2, 3]}}]
rules: [{trigger: start, action: {name: submit}}]
"""
#: A wait status: exit code 1.
FAILED = 256


def begun(text: str = FILE) -> Story:
    story = Story(text)
    story.start()
    return story


def retry(story: Story, *jobs: str, **fields: Any) -> list[Decision]:
    """Request a retry of these jobs, or of all that failed. Reopen the run if it has ended."""
    action: dict[str, Any] = {"name": "retry"}
    if jobs:
        action["jobs"] = [*jobs]
    if fields:
        action["with"] = fields
    if story.exit_code is None:
        return story.tell(Requested(story.now, "alice", action))
    asked = {"by": "alice", "action": action}
    return story.tell(Resumed(story.now, reopened=True, request=asked))


def submitted(decided: list[Decision]) -> list[str]:
    return [job.id for each in decided if isinstance(each, Submit) for job in each.jobs]


def counts(story: Story, group: str = "sim") -> list[float | None]:
    return [story.metric(f"count.{group}.{name}") for name in ("open", "done", "lost", "failed")]


def test_failed_job_of_an_ended_run_runs_again_and_the_exit_code_is_0() -> None:
    story = begun()
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED * (job == "sim.1"))
    assert (story.exit_code, counts(story)) == (1, [0, 3, 1, 1])
    decided = retry(story)
    assert submitted(decided) == ["sim.1-1"]
    assert decided[-1].jobs[0].parameters == {"T": 1}  # type: ignore[attr-defined]
    assert (story.exit_code, counts(story)) == (None, [1, 3, 0, 1])
    story.play("sim.1-1")
    assert (story.exit_code, counts(story)) == (0, [0, 4, 0, 1])


def test_job_that_fails_again_is_lost_again_and_can_be_retried_again() -> None:
    story = begun()
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED * (job == "sim.1"))
    retry(story)
    story.play("sim.1-1", status=FAILED)
    assert (story.exit_code, counts(story)) == (1, [0, 3, 1, 2])
    assert submitted(retry(story, "sim.1-1")) == ["sim.1-2"]
    story.play("sim.1-2")
    assert (story.exit_code, counts(story)) == (0, [0, 4, 0, 2])


def test_failed_job_of_a_live_run_runs_again_beside_the_others() -> None:
    story = begun()
    story.play("sim.2", status=FAILED)
    assert submitted(retry(story, "sim.2")) == ["sim.2-1"]
    for job in ("sim.0", "sim.1", "sim.3", "sim.2-1"):
        story.play(job)
    assert (story.exit_code, counts(story)) == (0, [0, 4, 0, 1])


def test_job_that_others_cancelled_is_retried_and_its_cancel_is_handled() -> None:
    story = begun()
    story.begin("sim.0")
    story.cancel("sim.0", by="bob")
    for job in ("sim.1", "sim.2", "sim.3"):
        story.play(job)
    assert story.exit_code == 1
    assert submitted(retry(story)) == ["sim.0-1"]
    story.play("sim.0-1")
    assert (story.exit_code, story.engine.state.unhandled_cancels) == (0, {})


def test_job_that_the_run_cancelled_is_retried_only_if_it_is_named() -> None:
    story = begun()
    story.tell(Requested(story.now, "alice", {"name": "cancel", "jobs": ["sim.0"]}))
    story.cancel("sim.0")
    refused = refusal(story.engine.state, {"name": "retry"})
    assert refused is not None
    assert "no failed job" in refused.what
    assert "sim.0" in (refused.hint or "")
    assert submitted(retry(story, "sim.0")) == ["sim.0-1"]


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (["sim.0"], "sim.0 has succeeded"),
        (["sim.1"], "sim.1 is not over"),
        (["sim.2", "sim.9"], "no job 'sim.9'"),
        (["other/sim.2"], "no job 'other/sim.2'"),
        (["post.0"], "no job 'post.0'"),
        (["sim"], "no job 'sim'"),
        (["sim.2-7"], "sim.2-7 is not the newest attempt"),
        ([], "not a list of jobs"),
        ("sim.2", "not a list of jobs"),
    ],
)
def test_jobs_that_cannot_be_retried_are_refused_and_nothing_changes(jobs: Any, words: str) -> None:
    story = begun()
    story.play("sim.0")
    story.begin("sim.1")
    story.play("sim.2", status=FAILED)
    before = counts(story)
    refused = refusal(story.engine.state, {"name": "retry", "jobs": jobs})
    assert words in str(refused)
    decided = story.tell(Requested(story.now, "alice", {"name": "retry", "jobs": jobs}))
    assert [type(each) for each in decided] == [Log]
    assert counts(story) == before


def test_job_that_waits_for_its_retry_is_refused() -> None:
    story = begun(FILE.replace("}}]", "}, retry: {times: 1, wait: 1m}}]", 1))
    story.play("sim.0", status=FAILED)
    refused = refusal(story.engine.state, {"name": "retry", "jobs": ["sim.0"]})
    assert "sim.0 is not over" in str(refused)


def test_fields_change_for_the_retried_jobs_only_and_bad_fields_are_refused() -> None:
    story = begun()
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED)
    for fields in ({"nodes": -1}, {"parameters": {"U": 1}}, {"no-such": 1}):
        refused = refusal(story.engine.state, {"name": "retry", "jobs": ["sim.1"], "with": fields})
        assert refused is not None
        assert "cannot retry sim.1" in refused.what
    decided = retry(story, "sim.1", nodes=2, parameters={"T": 9})
    (job,) = (job for each in decided if isinstance(each, Submit) for job in each.jobs)
    assert (job.nodes, job.parameters, job.command) == (2, {"T": 9}, ("x", "9"))


def test_group_may_use_its_retries_again() -> None:
    story = begun(FILE.replace("}}]", "}, retry: {times: 1}}]", 1))
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED * (job == "sim.0"))
    story.play("sim.0-1", status=FAILED)
    assert story.exit_code == 1
    assert submitted(retry(story)) == ["sim.0-2"]
    story.play("sim.0-2", status=FAILED)
    story.play("sim.0-3")
    assert (story.exit_code, counts(story)) == (0, [0, 4, 0, 3])


def test_retry_waits_for_a_place_and_the_user_sees_why() -> None:
    story = begun(FILE.replace("}}]", "}, at_once: 1}]", 1))
    story.play("sim.0", status=FAILED)
    decided = retry(story, "sim.0")
    assert submitted(decided) == []
    assert any("sim.0-1" in each.message for each in decided if isinstance(each, Log))
    for job in ("sim.1", "sim.2", "sim.3", "sim.0-1"):
        story.play(job)
    assert (story.exit_code, counts(story)) == (0, [0, 4, 0, 1])


def test_rules_on_idle_and_on_counts_see_the_end_of_the_retried_job() -> None:
    story = begun(
        FILE.replace("jobs: [", "jobs: [{name: post, command: y}, {name: count, command: z}, ")
        .replace("{name: submit}", "{name: submit, label: sim}")
        .replace(
            "rules: [",
            "rules: [{id: after, trigger: idle, name: sim, when: count.lost == 0, "
            "action: {name: submit, label: post}}, {id: all, trigger: metric, name: count.sim.done, "
            "when: '== 4', "
            "action: {name: submit, label: count}}, ",
        )
    )
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED * (job == "sim.1"))
    assert story.fired() == ["rule-3"]
    retry(story)
    story.play("sim.1-1")
    assert sorted(story.fired()) == ["after", "all", "rule-3"]
    story.play("post.0")
    story.play("count.0")
    assert story.exit_code == 0


def test_reopening_and_the_retry_are_one_event_so_that_nothing_ends_in_between() -> None:
    story = begun(
        FILE.replace(
            "rules: [",
            "rules: [{id: bye, trigger: end, repetitions: 9, action: {name: log, message: over}}, ",
        )
    )
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED * (job == "sim.1"))
    assert story.fired().count("bye") == 1
    retry(story)
    assert story.fired().count("bye") == 1
    story.play("sim.1-1")
    assert story.fired().count("bye") == 2


def test_attempt_that_never_reached_the_queue_is_submitted_again_once() -> None:
    story = begun()
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED * (job == "sim.1"))
    retry(story)  # the controller is killed before the order reaches the queue
    decided = story.tell(Resumed(story.now, absent=("sim.1-1",)))
    assert submitted(decided) == ["sim.1-1"]
    assert not any(isinstance(each, Retry) for each in decided)
    assert submitted(story.tell(Resumed(story.now))) == []
    story.play("sim.1-1")
    assert (story.exit_code, counts(story)) == (0, [0, 4, 0, 1])


def test_lost_jobs_of_a_changed_group_run_as_the_file_says_now() -> None:
    story = begun()
    for job in ("sim.0", "sim.1", "sim.2", "sim.3"):
        story.play(job, status=FAILED * (job == "sim.1"))
    story.engine.reconfigure(Story(FILE.replace("x {T}", "y {T}")).ensemble)
    decided = retry(story)
    (job,) = (job for each in decided if isinstance(each, Submit) for job in each.jobs)
    assert (job.id, job.command) == ("sim.1-1", ("y", "1"))


LAW = """
jobs:
  - {name: sim, command: "x {T}", parameters: {T: [0, 1, 2, 3, 4, 5]}, at_once: 4, retry: {times: 1}}
  - {name: post, command: "y {T}", parameters: {T: 0}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: post, trigger: job-done, name: sim, repetitions: 6, action: {name: submit, label: post}}
  - {id: lost, trigger: job-lost, name: sim, each: job, action: {name: log, message: lost}}
  - {id: many, trigger: metric, name: count.sim.failed, when: ">= 3", action: {name: log, message: many}}
"""


def _ended(seed: int) -> Story:
    """Play a run in random order, with attempts that fail at random.

    Lost jobs are retried at random moments, until none is lost. A retry changes nothing else.
    """
    chance, story = random.Random(seed), begun(LAW)
    for _ in range(400):
        state = story.engine.state
        lost = [name for name, each in state.table.lost.items() if each.record.failed]
        if lost and (story.exit_code is not None or chance.random() < 0.3):
            others = {job: record.state for job, record in state.table.records.items()}
            decided = retry(story, chance.choice(lost))
            now = {job: record.state for job, record in state.table.records.items()}
            assert {type(each) for each in decided} <= {Retry, Submit, Log}
            assert sum(isinstance(each, Retry) for each in decided) == 1
            assert {job: now[job] for job in others} == others
            if chance.random() < 0.3:
                story.engine = snapshot.load(snapshot.dump(story.engine), story.ensemble)
            continue
        jobs = [job for job, _ in story.engine.in_queue()]
        if not jobs:
            break
        job = chance.choice(jobs)
        attempt = int(job.partition("-")[2] or 0)
        fails = job.startswith("sim") and random.Random(f"{seed}{job}").random() < 0.6
        story.play(job, status=FAILED * (fails and attempt < 5))
    return story


@pytest.mark.parametrize("seed", range(15))
def test_run_whose_lost_jobs_are_retried_equals_one_in_which_none_failed(seed: int) -> None:
    retried = _ended(seed)
    assert retried.exit_code == 0
    assert counts(retried)[:3] == [0, 6, 0]
    assert counts(retried, "post")[:3] == [0, 6, 0]
    assert not retried.engine.state.table.lost
    first = {job.partition("-")[0] for job in retried.submitted()}
    assert first == {f"{group}.{number}" for group in ("sim", "post") for number in range(6)}
    assert len(retried.submitted()) == len(set(retried.submitted()))
    assert retried.fired().count("many") <= 1


@pytest.mark.parametrize("seed", range(5))
def test_same_events_give_the_same_decisions(seed: int) -> None:
    story = _ended(seed)
    again = Story(LAW)
    for event in story.events:
        again.tell(event)
    assert [each.to_dict() for each in again.decisions] == [
        each.to_dict() for each in story.decisions
    ]


KILLED = """
jobs:
  - {name: sim, command: "x {T}", parameters: {T: [0, 1, 2]}, at_once: 2,
     retry: {times: 1, wait: 2s, when: cause == "exit"}}
  - {name: post, command: y}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-lost, name: sim, each: [T], repetitions: 9, action: {name: log, message: lost}}
  - {trigger: idle, name: sim, when: count.lost == 0, action: {name: submit, label: post}}
"""


@cache
def _killed_ensemble() -> Ensemble:
    return Story(KILLED).ensemble


class Killed:
    """A run and its queue, which continues while no controller runs.

    ``journal`` has the events and decisions that are on disk. ``seen`` counts the submits that
    reached the queue.
    """

    def __init__(self) -> None:
        self.ensemble = _killed_ensemble()
        self.engine = Engine(self.ensemble)
        self.journal: list[tuple[Event, str | None]] = []
        self.seen: Counter[str] = Counter()
        self.queue: list[JobEvent] = []
        self.now = 1000.0

    def copy(self, events: int, lost_orders: int, *, restored: bool) -> Killed:
        """Return this run as it is when it is killed after so many events, while the last jobs of
        its orders had not reached the queue."""
        killed = Killed()
        killed.journal = self.journal[:events]
        orders = [
            job["id"]
            for _, text in killed.journal
            for each in json.loads(text or "[]")
            if each["type"] == "submit"
            for job in each["jobs"]
        ]
        killed.seen = Counter(orders[: len(orders) - lost_orders])
        told = {(each.job, each.name) for each, _ in killed.journal if isinstance(each, JobEvent)}
        killed.now = max(event.timestamp for event, _ in killed.journal) + 1
        killed.queue = [
            each
            for job in killed.seen
            for each in self.life(job, killed.now)
            if (job, each.name) not in told
        ]
        for event, _ in killed.journal:
            killed.engine.handle(event)
        if restored:
            killed.engine = restore(killed.engine)
        return killed

    def life(self, job: str, now: float) -> list[JobEvent]:
        """Return the events of a job. The first two attempts of sim.1 and sim.2 fail."""
        exits = 256 * (job.startswith(("sim.1", "sim.2")) and not job.endswith(("-2", "-3")))
        names = ("submit", "alloc", "start", "finish", "free", "clean")
        return [
            JobEvent(now + n / 8, job, name, {"status": exits} if name == "finish" else {})
            for n, name in enumerate(names)
        ]

    def tell(self, event: Event) -> None:
        self.now = max(self.now, event.timestamp)
        decisions = self.engine.handle(event)
        validate(self.engine.state)
        self.journal.append((event, decisions_text(decisions)))
        for job in submitted(decisions):
            self.seen[job] += 1
            self.queue += self.life(job, self.now + 1)

    def play(self) -> None:
        """Let everything happen, in the order of its times, until the run has ended."""
        while self.engine.state.ended is None:
            timer = self.engine.next_timer()
            self.queue.sort(key=lambda each: each.timestamp)
            if self.queue and (timer is None or self.queue[0].timestamp <= timer.when):
                self.tell(self.queue.pop(0))
            else:
                assert timer is not None
                self.tell(TimerElapsed(max(self.now, timer.when), timer.kind, timer.key))

    def resume(self) -> None:
        waiting = {job: record.newest for job, record in self.engine.in_queue()}
        absent = tuple(job for job, newest in waiting.items() if not newest and not self.seen[job])
        self.tell(Resumed(self.engine.state.now, absent=absent))
        self.play()

    def retry(self) -> None:
        asked = {"by": "alice", "action": {"name": "retry"}}
        self.tell(Resumed(self.engine.state.now, reopened=True, request=asked))
        self.play()

    def replay(self, from_snapshots: bool) -> None:
        """Compare all decisions with the journal; also those after a snapshot at each event."""
        engine = Engine(self.ensemble)
        for place, (event, text) in enumerate(self.journal, 1):
            (row,) = rows_of(1, 1, list_text([event_text(event)]))  # as on disk
            assert decisions_text(engine.handle(row.event())) == text
            if from_snapshots:
                copy = restore(engine)
                assert repr(copy.report()) == repr(engine.report())
                assert dict(copy.snapshot()) == dict(engine.snapshot())
                assert copy.next_timer() == engine.next_timer()
                for later, decided in self.journal[place:]:
                    assert decisions_text(copy.handle(later)) == decided


def restore(engine: Engine) -> Engine:
    loaded = snapshot.load(snapshot.dump(engine), engine.state.ensemble)
    assert loaded is not None
    return loaded


def test_retry_killed_at_any_event_and_order_is_carried_out_once_and_replays() -> None:
    whole = Killed()
    whole.tell(Started(1000.0))
    whole.play()
    ended = len(whole.journal)
    whole.retry()
    whole.replay(from_snapshots=True)
    once = dict.fromkeys(
        ["sim.0", "sim.1", "sim.2", "sim.1-1", "sim.2-1", "sim.1-2", "sim.2-2", "post.0"], 1
    )
    assert whole.seen == once
    for events in range(ended, len(whole.journal) + 1):
        for lost_orders, restored in ((0, False), (1, True), (2, False), (3, True)):
            if lost_orders > sum((text or "").count('"id"') for _, text in whole.journal[:events]):
                continue
            killed = whole.copy(events, lost_orders, restored=restored)
            if any(
                not killed.seen[each.job]
                for each, _ in killed.journal
                if isinstance(each, JobEvent)
            ):
                continue  # the queue has reported a job whose order was carried out
            killed.resume()
            killed.resume()  # of a run that has ended: nothing follows
            if killed.engine.state.table.lost:
                killed.retry()
            assert killed.seen == once, (events, lost_orders)
            assert killed.engine.state.ended is not None
            assert killed.engine.state.ended.exit_code == 0
            killed.replay(from_snapshots=(events, lost_orders) == (ended + 2, 1))
