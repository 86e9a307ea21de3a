"""Stop and resume: events since the stop are processed, cancelled jobs are requeued."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.metrics.store import COUNTS
from ensemble_core.model.decisions import Call, Cancel, Decision, Submit, Terminate
from ensemble_core.model.events import (
    CallReturned,
    Event,
    ExecutorLost,
    JobEvent,
    Observed,
    Problem,
    Resources,
    Resumed,
    Started,
    StopRequested,
    TimerElapsed,
)

START = "{trigger: start, action: {name: submit, label: work}}"
SWEEP = f"""
jobs:
  - name: work
    command: x
    parameters: {{T: [1, 2, 3]}}
    result: {{e: mean.e}}
    observe: {{json-lines: {{}}}}
  - {{name: after, command: x}}
rules:
  - {START}
  - {{trigger: job-success, name: work, repetitions: 9, action: {{name: submit, label: after}}}}
results:
  t: {{of: work, by: [T], columns: {{e: mean.e, n: n}}}}
"""


def stop(story: Story, then: str = "cancel") -> Terminate:
    (end,) = story.tell(StopRequested(story.now, "SIGTERM", 143, then))  # type: ignore[arg-type]
    assert isinstance(end, Terminate)
    assert end.stopped
    return end


def resume(story: Story, *absent: str) -> list[Decision]:
    again(story)
    return story.tell(Resumed(story.now, {}, absent))


def again(story: Story) -> None:
    """Replace the engine by one from a snapshot, as the next controller does."""
    engine = load(dump(story.engine), story.ensemble)
    assert engine is not None
    story.engine = engine


def requeued(decided: list[Decision]) -> list[tuple[str, str]]:
    return [
        (job.id, job.queue_name) for one in decided if isinstance(one, Submit) for job in one.jobs
    ]


def rows(story: Story, table: str) -> list[dict[str, Any]]:
    return story.engine.tables()[table]


def test_jobs_cancelled_by_a_stop_are_requeued_without_triggering_rules() -> None:
    story = Story(SWEEP + "logging: {heartbeat: 10}\n")
    story.start()
    story.begin("work.0")
    story.observe("work.0", e=100.0)
    story.play("work.1")
    end = stop(story)
    assert end.cancel == ("work.0", "work.2", "after.0")
    for job in end.cancel:
        assert story.cancel(job) == []
    assert not story.engine.waits_for_cancelled
    assert story.engine.in_queue() == []
    decided = resume(story)
    assert requeued(decided) == [
        ("work.0", "work.0~1"),
        ("work.2", "work.2~1"),
        ("after.0", "after.0~1"),
    ]
    assert story.fired(decided) == []
    counts = {name: story.metric(f"count.work.{name}") for name in COUNTS}
    assert (counts["submitted"], counts["active"], counts["cancelled"]) == (3, 2, 0)
    story.begin("work.0")
    story.observe("work.0", e=1.0)
    story.end("work.0")
    story.play("work.2")
    for number in range(3):
        story.play(f"after.{number}")
    assert story.exit_code == 0
    assert rows(story, "t")[0] == {"T": 1, "e": 1.0, "n": 1, "reused": 0}


def test_a_job_that_exited_meanwhile_triggers_its_rules_at_the_resume() -> None:
    story = Story(SWEEP)
    story.start()
    story.begin("work.0")
    stop(story)
    story.observe("work.0", e=4.0)
    assert story.end("work.0") == []
    assert story.metric("count.work.success") == 0
    for job in ("work.1", "work.2"):
        story.cancel(job)
    decided = resume(story)
    assert story.fired(decided) == ["rule-2"]
    assert ("after.0", "after.0") in requeued(decided)
    assert rows(story, "t") == [{"T": 1, "e": 4.0, "n": 1, "reused": 0}]


def test_a_stop_with_keep_leaves_jobs_running() -> None:
    story = Story(SWEEP)
    story.start()
    story.begin("work.0")
    assert stop(story, "keep").cancel == ()
    assert not story.engine.waits_for_cancelled
    assert story.submitted(resume(story)) == []
    story.end("work.0")
    assert story.metric("count.work.success") == 1


FIRST_CANCELS_REST = f"""
jobs: [{{name: work, command: x, count: 2}}]
rules:
  - {START}
  - {{trigger: job-success, action: {{name: cancel, label: work}}}}
"""


def test_a_job_cancelled_by_a_rule_is_not_requeued() -> None:
    story = Story(FIRST_CANCELS_REST)
    story.start()
    story.begin("work.1")
    story.play("work.0")
    assert stop(story).cancel == ("work.1",)
    story.cancel("work.1")
    assert story.submitted(resume(story)) == []
    assert story.metric("count.work.cancelled") == 1


def test_a_rule_may_cancel_a_job_that_a_stop_is_cancelling() -> None:
    story = Story(FIRST_CANCELS_REST)
    story.start()
    story.begin("work.0")
    story.begin("work.1")
    stop(story)
    story.end("work.0")
    (cancel,) = [one for one in resume(story) if isinstance(one, Cancel)]
    assert cancel.jobs == ("work.1",)
    story.cancel("work.1")
    assert story.metric("count.work.cancelled") == 1
    assert story.exit_code == 0


def test_a_function_that_returned_after_the_stop_is_not_called_again() -> None:
    story = Story(
        """
jobs: [{name: work, command: x}]
custom: |
  def more(*_):
      return Action({"name": "submit", "label": "work"})
rules: [{trigger: start, action: {name: custom, label: more}}]
"""
    )
    (call,) = [one for one in story.start() if isinstance(one, Call)]
    stop(story)
    returned = CallReturned(
        story.now, call.call, ({"action": {"name": "submit", "label": "work"}},)
    )
    assert story.tell(returned) == []
    decided = resume(story)
    assert [one for one in decided if isinstance(one, Call)] == []
    assert story.submitted(decided) == ["work.0"]


def test_a_pending_function_is_called_again() -> None:
    story = Story(
        """
jobs: [{name: work, command: x}]
custom: |
  def more(*_):
      return None
rules: [{trigger: start, action: {name: custom, label: more}}]
"""
    )
    story.start()
    stop(story)
    (call,) = [one for one in resume(story) if isinstance(one, Call)]
    assert call.attempt == 2


def test_waiting_retries_and_held_jobs_survive_a_stop() -> None:
    story = Story(
        f"""
jobs: [{{name: work, command: x, count: 3, at_once: 2, retry: {{times: 2, wait: 60s}}}}]
rules: [{START}]
"""
    )
    story.start()
    story.play("work.0", status=256)
    assert stop(story).cancel == ("work.1", "work.2")
    story.cancel("work.1")
    story.cancel("work.2")
    assert story.engine.next_timer() is None
    assert requeued(resume(story)) == [("work.1", "work.1~1"), ("work.2", "work.2~1")]
    story.play("work.1")
    assert story.submitted(story.wait(60)) == ["work.0-1"]
    story.play("work.2")
    story.play("work.0-1")
    assert story.exit_code == 0


def test_a_requeued_job_of_a_resume_chain_restores_its_statistics() -> None:
    story = Story(
        """
jobs: [{name: work, command: x, observe: {json-lines: {}}, result: {mean: mean.e}}]
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: job-fail, action: {name: retry, continue: true}}
results: {t: {of: work, columns: {s: mean}}}
"""
    )
    story.start()
    story.begin("work.0")
    story.observe("work.0", e=2.0)
    story.end("work.0", status=256)
    story.begin("work.0-1")
    story.observe("work.0-1", e=100.0)
    stop(story)
    story.cancel("work.0-1")
    assert requeued(resume(story)) == [("work.0-1", "work.0-1~1")]
    story.begin("work.0-1")
    story.observe("work.0-1", e=4.0)
    story.end("work.0-1")
    assert [row["s"] for row in rows(story, "t")] == [3.0]


def test_a_second_stop_requeues_again() -> None:
    story = Story(SWEEP)
    story.start()
    for number in (1, 2):
        for job in stop(story).cancel:
            story.cancel(job)
        assert requeued(resume(story))[0] == ("work.0", f"work.0~{number}")


def test_a_job_whose_cancel_is_pending_is_requeued_once_it_is_over() -> None:
    """The controller exited before the job ended."""
    story = Story(SWEEP)
    story.start()
    story.begin("work.0")
    stop(story)
    story.cancel("work.1")
    assert requeued(resume(story)) == [("work.1", "work.1~1")]
    assert requeued(story.cancel("work.0")) == [("work.0", "work.0~1")]
    story.play("work.2")
    assert story.metric("count.work.success") == 1


def test_a_stopped_run_can_be_cancelled() -> None:
    story = Story(SWEEP)
    story.start()
    story.begin("work.0")
    stop(story)
    story.cancel("work.0")
    again(story)
    end = story.tell(StopRequested(story.now, "cancelled by ada", 130))[-1]
    assert isinstance(end, Terminate)
    assert not end.stopped
    assert end.cancel == ("work.1", "work.2")
    assert story.tell(Resumed(story.now, {})) == [Cancel(jobs=("work.1", "work.2"))]
    for job in end.cancel:
        story.cancel(job)
    assert story.metric("count.work.cancelled") == 3
    assert story.exit_code == 130


def test_a_queue_lost_during_a_stop_is_not_an_error() -> None:
    story = Story(SWEEP)
    story.start()
    stop(story)
    story.tell(ExecutorLost(story.now, "flux", "the instance ended"))
    resume(story)
    assert story.engine.state.errors == 0
    assert story.exit_code is None


def test_problems_and_gauges_during_a_stop_do_no_harm() -> None:
    story = Story(SWEEP)
    story.start()
    stop(story, "keep")
    story.tell(Resources(story.now, {"nodes.up": 3}))
    assert len(story.tell(Problem(story.now, "look"))) == 1
    resume(story)
    assert story.metric("nodes.up") is None


def test_a_stop_of_a_run_that_has_ended_changes_nothing() -> None:
    story = Story(f"jobs: [{{name: work, command: x}}]\nrules: [{START}]")
    story.start()
    story.play("work.0")
    assert story.tell(StopRequested(story.now, "SIGTERM", 143, "keep")) == []
    assert story.exit_code == 0


def test_jobs_left_by_a_stop_can_be_cancelled_without_losing_deferred_events() -> None:
    story = Story(SWEEP)
    story.start()
    for number in range(3):
        story.begin(f"work.{number}")
    stop(story, "keep")
    story.end("work.0")
    story.job("work.1", "finish", status=0)
    again(story)
    end = stop(story, "cancel-left")
    assert end.cancel == ("work.1", "work.2")
    story.job("work.1", "clean")
    story.cancel("work.2")
    story.job("work.2", "exception", "clean", type="cancel", severity=0)  # late duplicates
    assert story.engine.in_queue() == []
    assert not story.engine.waits_for_cancelled
    decided = resume(story)
    assert requeued(decided) == [
        ("after.0", "after.0"),
        ("after.1", "after.1"),
        ("work.2", "work.2~1"),
    ]
    assert story.metric("count.work.cancelled") == 0


def test_jobs_of_a_run_whose_queue_was_lost_are_cancelled_by_the_next_controller() -> None:
    story = Story(SWEEP)
    story.start()
    story.begin("work.0")
    story.tell(ExecutorLost(story.now, "flux", "the instance ended"))
    again(story)
    assert len(stop(story, "cancel-left").cancel) == 3
    assert not story.engine.state.lost
    assert story.engine.state.errors == 0
    for number in range(3):
        story.cancel(f"work.{number}")
    assert len(requeued(resume(story))) == 3
    assert story.engine.state.errors == 0


def test_jobs_left_by_an_end_can_be_cancelled_without_changing_the_end() -> None:
    story = Story(
        """
jobs: [{name: work, command: x, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: job-success, action: {name: terminate, exit_code: 7, cancel: false}}
"""
    )
    story.start()
    story.play("work.0")
    assert story.exit_code == 7
    again(story)
    decided = story.tell(StopRequested(story.now, "stopped by ada", 5, "cancel-left"))
    assert decided == [Cancel(jobs=("work.1",))]
    # The controller was killed before it sent the cancel to the queue.
    again(story)
    assert Cancel(jobs=("work.1",)) in story.tell(Resumed(story.now))
    story.cancel("work.1")
    assert (story.exit_code, story.engine.busy) == (7, 0)


# -- stops at random events ----------------------------------------------------------------------

STUDY = """
limits: {submits_per_second: 50}
jobs:
  - name: work
    command: x
    parameters: {T: [1, 2]}
    replicas: 3
    at_once: 4
    observe: {json-lines: {}}
    result: {e: mean.e, k: max.e}
    retry: {times: 2, wait: 20s, when: 'exit_code == 1'}
  - {name: follow, command: x, parameters: {T: null}, observe: {json-lines: {}}, result: {e: max.e}}
custom: |
  def more(*_):
      return None
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: idle, name: work, each: [T], action: {name: vary, label: follow}}
  - {trigger: job-done, name: work, repetitions: 3, action: {name: custom, label: more}}
  - {trigger: idle, action: {name: log, message: all}}
results:
  work: {of: work, by: [T], columns: {e: mean.e, n: n, a: max.attempt}}
  follow: {of: follow, columns: {T: T, e: e}}
"""


class Queue:
    """Simulated queue with a random order of events. The events of a job depend on its ID alone."""

    def __init__(self, chance: random.Random, stops: float) -> None:
        self.story = Story(STUDY)
        self.chance = chance
        self.stops = stops
        #: The remaining events of each job, by the job's ID.
        self.lives: dict[str, list[Event]] = {}
        self.calls: list[str] = []
        self.stopped = 0

    def carry_out(self, decided: list[Decision]) -> None:
        for one in decided:
            if isinstance(one, Submit):
                for job in one.jobs:
                    assert job.id not in self.lives
                    self.lives[job.id] = self.life(job.id)
            elif isinstance(one, Call):
                self.calls.append(one.call)

    def life(self, job: str) -> list[Event]:
        what = random.Random(job)
        names = ("submit", "alloc", "start")
        events: list[Event] = [JobEvent(0, job, name) for name in names]
        rows = [{"e": what.random()} for _ in range(what.randint(1, 4))]
        events += [Observed(0, job, "json-lines", row) for row in rows]
        status = 256 if what.random() < 0.3 and job.startswith("work") else 0
        events.append(JobEvent(0, job, "finish", {"status": status}))
        events.append(JobEvent(0, job, "clean"))
        return events

    def tell(self, event: Event) -> None:
        self.story.now += self.chance.random()
        self.carry_out(self.story.tell(replaced(event, self.story.now)))

    def step(self) -> None:
        """Send one random event: of a job, a call or a timer."""
        timer = self.story.engine.next_timer()
        choices = [*self.lives, *self.calls, *(["timer"] if timer else [])]
        chosen = self.chance.choice(choices)
        if chosen == "timer" and timer is not None:
            self.story.now = max(self.story.now, timer.when)
            self.tell(TimerElapsed(self.story.now, timer.kind, timer.key))
        elif chosen in self.calls:
            self.calls.remove(chosen)
            self.tell(CallReturned(0, chosen))
        else:
            life = self.lives[chosen]
            event = life.pop(0)
            if not life:
                del self.lives[chosen]
            self.tell(event)

    def stop(self) -> None:
        self.stopped += 1
        if self.chance.random() < 0.2:  # the controller is killed
            self.calls.clear()
            again(self.story)
            self.cancel_left()
            self.carry_out(self.story.tell(Resumed(self.story.now, {})))
            self.calls = list(self.story.engine.state.calls)
            return
        then = self.chance.choice(["cancel", "keep"])
        (end,) = self.story.tell(StopRequested(self.story.now, "x", 143, then))  # type: ignore[arg-type]
        assert isinstance(end, Terminate)
        for _ in range(self.chance.randint(0, 5)):  # events before the queue gets the cancels
            if self.lives or self.calls:
                self.step()
        cancels = [job for job in end.cancel if job in self.lives]
        late = [job for job in cancels if self.chance.random() < 0.2]
        for job in cancels:
            self.cancel(job, late=late)
        self.calls.clear()  # calls end with the controller
        if self.chance.random() < 0.5:
            again(self.story)
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            self.cancel_left()
        self.carry_out(self.story.tell(Resumed(self.story.now, {})))
        self.calls = list(self.story.engine.state.calls)

    def cancel_left(self) -> None:
        """Cancel all jobs by another controller. Some may still run when it exits."""
        (end,) = self.story.tell(StopRequested(self.story.now, "y", 5, "cancel-left"))
        assert isinstance(end, Terminate)
        assert end.stopped
        assert set(end.cancel) == set(self.lives)
        late = [job for job in end.cancel if self.chance.random() < 0.2]
        for job in end.cancel:
            self.cancel(job, late=late)
        assert self.story.engine.waits_for_cancelled == bool(late)
        again(self.story)

    def cancel(self, job: str, late: list[str]) -> None:
        """Cancel a job. The events of jobs in ``late`` come later, in random order."""
        left = [
            JobEvent(0, job, "exception", {"type": "cancel", "severity": 0}),
            JobEvent(0, job, "finish", {"status": 15}),
            JobEvent(0, job, "clean"),
        ]
        if any(isinstance(event, JobEvent) and event.name == "finish" for event in self.lives[job]):
            self.lives[job] = list(left)
        if job not in late:
            for event in self.lives.pop(job):
                self.tell(event)

    def run(self) -> dict[str, Any]:
        self.carry_out(self.story.start())
        for count in itertools.count():
            assert count < 20_000
            if self.story.exit_code is not None:
                break
            if self.chance.random() < self.stops:
                self.stop()
            else:
                self.step()
        tables = self.story.engine.tables()
        metric = self.story.metric
        return {
            "work": tables["work"],
            # Jobs get these values in random order.
            "follow": sorted(row["T"] for row in tables["follow"]),
            "counts": {
                f"{group}.{name}": metric(f"count.{group}.{name}")
                for group in ("work", "follow")
                for name in COUNTS
            },
            "fired": sorted(self.story.fired()),
            "exit code": self.story.exit_code,
        }


def replaced(event: Event, now: float) -> Event:
    data = event.to_dict()
    return Event.from_dict({**data, "timestamp": now})


@pytest.mark.parametrize("seed", range(8))
def test_a_run_stopped_anywhere_has_the_results_of_an_undisturbed_one(seed: int) -> None:
    undisturbed = Queue(random.Random(seed), 0.0).run()
    stopped = Queue(random.Random(seed), 0.05)
    assert stopped.run() == undisturbed
    assert undisturbed["follow"] == [1, 2]


def test_a_replay_of_a_stopped_run_makes_the_same_decisions() -> None:
    queue = Queue(random.Random(1), 0.05)
    queue.run()
    decided = queue.story.decisions
    assert queue.stopped > 1
    assert any(job.requeued for one in decided if isinstance(one, Submit) for job in one.jobs)
    other = Story(STUDY)
    for event in queue.story.events:
        other.tell(event)
    assert [one.to_dict() for one in other.decisions] == [one.to_dict() for one in decided]
    assert isinstance(queue.story.events[0], Started)


def interrupt(story: Story, job: str) -> list[Decision]:
    """End a job as at the end of its allocation."""
    context = {"type": "interrupted", "severity": 0, "note": "ended with its allocation"}
    decided = list(story.tell(JobEvent(story.now, job, "exception", context)))
    for name, more in (("finish", {"status": 15}), ("clean", {})):
        decided += story.tell(JobEvent(story.now + 0.1, job, name, more))
    return decided


RETRIED = f"""
jobs: [{{name: work, command: x, count: 2, retry: {{times: 1}}}}]
rules:
  - {START}
  - {{trigger: job-fail, repetitions: 9, action: {{name: terminate, exit_code: 9}}}}
  - {{trigger: job-cancel, repetitions: 9, action: {{name: terminate, exit_code: 8}}}}
"""


def test_a_job_that_ends_with_its_allocation_is_requeued_and_is_no_failure() -> None:
    story = Story(RETRIED)
    story.start()
    story.begin("work.0")
    assert requeued(interrupt(story, "work.0")) == [("work.0", "work.0~1")]
    story.begin("work.0")
    assert requeued(interrupt(story, "work.0")) == [("work.0", "work.0~2")]
    assert story.engine.state.ended is None
    story.play("work.0")
    story.play("work.1")
    ended = story.engine.state.ended
    assert ended is not None
    assert (ended.exit_code, ended.natural) == (0, True)


def test_a_cancelled_job_that_ends_with_its_allocation_is_cancelled() -> None:
    story = Story(RETRIED)
    story.start()
    story.begin("work.0")
    story.engine.state.table.records["work.0"].change_cancel("cancel")
    decided = interrupt(story, "work.0")
    assert requeued(decided) == []
    assert story.engine.state.ended is not None
    assert story.engine.state.ended.exit_code == 8


def test_a_queue_that_ends_with_its_allocation_stops_the_run() -> None:
    story = Story(RETRIED)
    story.start()
    story.begin("work.0")
    interrupt(story, "work.0")
    (end,) = story.tell(ExecutorLost(story.now, "local", "got SIGTERM", drained=True))
    assert isinstance(end, Terminate)
    assert (end.stopped, end.exit_code, end.cancel) == (True, 143, ())
    assert resume(story) == []
    assert story.engine.state.ended is None
    story.play("work.0")
    story.play("work.1")
    assert story.engine.state.ended is not None
    assert story.engine.state.ended.exit_code == 0


def test_a_stop_waits_for_no_job_of_a_queue_that_has_ended() -> None:
    story = Story(RETRIED)
    story.start()
    story.begin("work.0")
    stop(story)
    assert story.engine.waits_for_cancelled
    story.tell(ExecutorLost(story.now, "local", "got SIGTERM", drained=True))
    assert not story.engine.waits_for_cancelled
    assert story.engine.state.errors == 0
