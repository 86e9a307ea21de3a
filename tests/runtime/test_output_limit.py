"""``limits.output``: a job that writes more than the limit is cancelled and has failed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ensemble_testing import Story, wait_until
from ensemble_testing.story import CLEARING

from ensemble_core import run
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Cancel, Retry, Submit
from ensemble_core.model.events import Event, JobEvent, Problem, Resumed
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime import output_limit
from ensemble_core.runtime.output_limit import OutputLimit

TEXT = "jobs: [{name: sim, command: x, MORE}]\nrules: [{trigger: start, action: {name: submit}}]"


def over(story: Story, job: str = "sim.0") -> list[object]:
    """Report that a job has exceeded the limit; return the decisions that follow."""
    note = "it has written 2G; limits.output is 1G"
    return [*story.job(job, "exception", type="output-limit", severity=0, note=note)]


def begun(more: str = "count: 1") -> Story:
    story = Story(TEXT.replace("MORE", more))
    story.start()
    story.begin("sim.0")
    return story


# -- the engine --------------------------------------------------------------------------------


def test_a_job_over_the_limit_is_cancelled_and_has_failed_with_the_cause_output() -> None:
    story = begun()
    (cancel,) = over(story)
    assert isinstance(cancel, Cancel)
    assert cancel.jobs == ("sim.0",)
    record = story.engine.state.table.records["sim.0"]
    story.cancel("sim.0")
    assert (record.outcome, record.why) == ("failed", "output")
    assert (story.metric("count.sim.failed"), story.metric("count.sim.cancelled")) == (1, 0)
    assert story.exit_code == 1


def test_a_retry_can_name_the_cause_output() -> None:
    story = begun("retry: {times: 1, when: 'cause == \"output\"', with: {command: quiet}}")
    over(story)
    assert [one.job for one in story.decisions if isinstance(one, Retry)] == []
    story.cancel("sim.0")
    assert [one.job for one in story.decisions if isinstance(one, Retry)] == ["sim.0"]


def test_a_job_that_is_over_or_being_cancelled_does_not_fail_by_the_limit() -> None:
    story = begun()
    story.job("sim.0", "finish", status=0)
    record = story.engine.state.table.records["sim.0"]
    assert over(story) == []
    assert (record.outcome, record.exception) == ("success", None)
    story.job("sim.0", *CLEARING)
    story = begun()
    record = story.engine.state.table.records["sim.0"]
    record.change_cancel("cancel")
    assert over(story) == []
    story.cancel("sim.0")
    assert record.outcome == "cancelled"


def test_a_resume_repeats_the_cancel() -> None:
    story = begun()
    over(story)
    again = load(dump(story.engine), story.ensemble)
    assert again is not None
    story.engine = again
    decisions = story.tell(Resumed(story.now))
    assert [one.jobs for one in decisions if isinstance(one, Cancel)] == [("sim.0",)]


# -- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("5", '5 means 5 bytes of output, which is too little; add a unit: "5M" or "5G"'),
        ("1X", "'1X' is not an amount of output; write a number with a unit"),
        ("'20'", 'the amount of output 20 has no unit; write "20M" or "20G"'),
        ("0", "the amount of output 0 is out of range; write at least 1M, or remove the key"),
    ],
)
def test_a_limit_that_is_no_size_is_an_error_with_its_position(given: str, said: str) -> None:
    with pytest.raises(EnsembleError) as caught:
        Story(f"limits: {{output: {given}}}\n" + TEXT.replace("MORE", "count: 1"))
    told = str(caught.value).replace("\n  hint: ", "; ")
    assert said in " ".join(told.split()) or said in told
    assert ":1:18" in str(caught.value)


def test_the_limit_is_a_size_with_a_unit() -> None:
    story = Story("limits: {output: 1.5G}\n" + TEXT.replace("MORE", "count: 1"))
    assert story.ensemble.limits.output == 3 << 29


# -- measuring ---------------------------------------------------------------------------------


class Bench:
    def __init__(self, most: int, *, live: bool = True) -> None:
        self.events: list[Event] = []
        self.limit = OutputLimit(most, self.take, time.time, discover().observers, live=live)

    def take(self, events: Sequence[Event]) -> None:
        self.events += events

    def submit(self, job: Job) -> None:
        self.limit.decision(Submit(group=job.group, jobs=(job,)))

    def start(self, job: Job, **context: str) -> None:
        self.limit.event(JobEvent(time.time(), job.id, "start", context))

    @property
    def caught(self) -> list[str]:
        return [one.job for one in self.events if isinstance(one, JobEvent)]

    def settle(self, job: Job) -> None:
        """Wait until the files that exist before the job are measured."""
        wait_until(lambda: not self.limit._new and job.id in self.limit._before)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    monkeypatch.setattr(output_limit, "_PAUSE", 0.01)
    made: list[Bench] = []

    def make(most: int, live: bool = True) -> Bench:
        made.append(Bench(most, live=live))
        return made[-1]

    yield make
    for one in made:
        one.limit.close()


def job(name: str = "sim.0", **fields: object) -> Job:
    return Job(id=name, group="sim", index=0, command=("x",), **fields)  # type: ignore[arg-type]


def test_streams_and_files_of_observers_count_together(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    limited, one = bench(25), job(observe={"json-lines": {"path": "log"}})
    limited.submit(one)
    limited.settle(one)
    limited.start(one, workdir=str(tmp_path), stdout="o", stderr=str(tmp_path / "e"))
    for name in ("o", "e", "log"):
        assert limited.caught == []
        (tmp_path / name).write_bytes(b"x" * 10)
    wait_until(lambda: limited.caught == ["sim.0"])
    (event,) = limited.events
    assert isinstance(event, JobEvent)
    assert event.context["type"] == "output-limit"


def test_what_a_file_had_before_the_job_does_not_count(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    limited, file = bench(100), tmp_path / "o"
    file.write_bytes(b"x" * 1000)
    one, two = job(stdout="o", workdir=str(tmp_path)), job("sim.1", workdir=str(tmp_path))
    limited.submit(one)
    limited.submit(two)
    limited.settle(one)
    limited.start(one, workdir=str(tmp_path), stdout=str(file))
    with file.open("ab") as more:
        more.write(b"x" * 99)
    (tmp_path / "own").write_bytes(b"x" * 101)
    limited.start(two, workdir=str(tmp_path), stdout=str(tmp_path / "own"))
    wait_until(lambda: limited.caught == ["sim.1"])
    file.write_bytes(b"x" * 101)  # truncated and written again
    wait_until(lambda: limited.caught == ["sim.1", "sim.0"])


def test_a_job_that_has_ended_is_no_longer_measured(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    limited, one, two = bench(10), job(), job("sim.1")
    for each in (one, two):
        limited.submit(each)
        limited.start(each, stdout=str(tmp_path / each.id))
    wait_until(lambda: limited.limit._measured.keys() == {"sim.0", "sim.1"})
    limited.limit.event(JobEvent(time.time(), "sim.0", "finish", {"status": 0}))
    for each in (one, two):
        (tmp_path / each.id).write_bytes(b"x" * 100)
    wait_until(lambda: limited.caught == ["sim.1"])
    wait_until(lambda: not limited.limit._measured)


def test_a_resumed_controller_measures_what_jobs_add(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    limited, file = bench(100), tmp_path / "o"
    file.write_bytes(b"x" * 1000)
    known = JobRecord(job(stdout=str(file)), 0.0, None, None, None)
    own = JobRecord(job("sim.1"), 0.0, None, None, None)
    known.files = {"stdout": str(file)}
    own.files = {"stdout": str(file)}
    limited.limit.resume([known, own])
    wait_until(lambda: limited.caught == ["sim.1"])  # only this job has written its file
    with file.open("ab") as more:
        more.write(b"x" * 101)
    wait_until(lambda: limited.caught == ["sim.1", "sim.0"])


@pytest.mark.parametrize(
    ("context", "where"),
    [
        ({}, "its queue stores it"),
        ({"stdout": "/dev/null"}, "its queue stores it"),
        ({"at_member": {"stdout": "/there"}}, "its member writes it"),
    ],
)
def test_output_that_this_machine_cannot_see_is_said_once(
    bench: Callable[..., Bench], context: dict[str, str], where: str
) -> None:
    limited = bench(10)
    for number in range(3):
        limited.submit(job(f"sim.{number}"))
        limited.start(job(f"sim.{number}"), **context)
    wait_until(lambda: len(limited.limit._measured) == 3)
    (problem,) = limited.events
    assert isinstance(problem, Problem)
    assert "limits.output has no effect" in problem.message
    assert where in problem.message


def test_files_that_are_written_at_the_end_count_only_if_observers_need_them_before(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    limited = bench(10, live=False)
    seen, unseen = job("sim.0", observe={"json-lines": {}}), job("sim.1")
    for each in (seen, unseen):
        (tmp_path / each.id).write_bytes(b"x" * 11 * (each is seen))
        limited.submit(each)
        limited.start(each, stdout=str(tmp_path / each.id))
    wait_until(lambda: limited.caught and len(limited.events) == 2)
    assert limited.caught == ["sim.0"]
    (problem,) = [one for one in limited.events if isinstance(one, Problem)]
    assert "the standard output and error of sim.1" in problem.message


def test_output_on_another_machine_is_said_when_its_job_ends(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    limited, seen, unseen = bench(10), job("sim.0"), job("sim.1")
    (tmp_path / "sim.0").touch()
    for each in (seen, unseen):
        limited.submit(each)
        limited.start(each, stdout=str(tmp_path / each.id))
    wait_until(lambda: len(limited.limit._measured) == 2)
    measured = limited.limit._measured["sim.1"]
    wait_until(lambda: measured.missed >= measured.began + output_limit._PAUSE)
    assert not limited.events
    for each in (seen, unseen):
        limited.limit.event(JobEvent(time.time() + 1, each.id, "finish", {"status": 0}))
    limited.submit(job("sim.2"))
    limited.start(job("sim.2"), stdout=str(tmp_path / "sim.0"))  # the next round
    wait_until(lambda: limited.events)
    (problem,) = limited.events
    assert isinstance(problem, Problem)
    assert f"{tmp_path / 'sim.1'} does not exist on this machine" in problem.message


def test_a_short_job_whose_empty_files_its_queue_has_removed_causes_no_warning(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    limited, silent, after = bench(10), job("sim.0"), job("sim.1")
    (tmp_path / "out").touch()
    began = time.time()
    for each, out in (silent, "gone"), (after, "out"):
        limited.submit(each)
        limited.start(each, stdout=str(tmp_path / out))
    wait_until(lambda: len(limited.limit._measured) == 2)
    limited.limit.event(JobEvent(began, silent.id, "finish", {"status": 0}))
    wait_until(lambda: silent.id not in limited.limit._measured)
    assert not limited.events


def test_all_parts_of_an_output_count(bench: Callable[..., Bench], tmp_path: Path) -> None:
    limited, one = bench(25), job(observe={"json-lines": {"path": "log.*"}})
    (tmp_path / "log.0").write_bytes(b"x" * 100)
    one = replace(one, workdir=str(tmp_path))
    limited.submit(one)
    limited.settle(one)
    limited.start(one, workdir=str(tmp_path), stdout=str(tmp_path / "o"))
    for number in (1, 2, 3):
        assert limited.caught == []
        (tmp_path / f"log.{number}").write_bytes(b"x" * 10)
    wait_until(lambda: limited.caught == ["sim.0"])


def test_a_job_that_nears_the_limit_is_measured_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    known, total, pauses = output_limit._Measured({}, now), 0, []
    for second in range(40):
        total += 10 if second < 20 else 1000
        known.plan(total, 12_000)
        pauses.append(known.pause)
        now = known.due
    assert pauses[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert pauses[19] == output_limit._PAUSE
    assert pauses[-1] == output_limit._SHORTEST


def test_at_most_500_files_are_measured_in_a_second(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited = bench(10)
    waits: list[float | None] = []
    wait = limited.limit._closing.wait
    monkeypatch.setattr(
        limited.limit._closing, "wait", lambda seconds: (waits.append(seconds), wait(0))[1]
    )
    for number in range(1000):
        one = job(f"sim.{number}")
        limited.submit(one)
        limited.start(one, stdout=str(tmp_path / one.id))
    wait_until(lambda: len(limited.limit._measured) == 1000)
    assert math.fsum(filter(None, waits)) >= 1.9


def test_a_real_job_that_prints_without_end_is_cancelled(tmp_path: Path) -> None:
    text = f"""
name: endless
limits: {{output: 2M}}
jobs:
  - name: sim
    command: ["{sys.executable}", "-c", "while {{flood}}: print('x' * 100_000, flush=True)"]
    parameters: {{flood: [0, 1]}}
rules: [{{trigger: start, action: {{name: submit}}}}]
"""
    (tmp_path / "endless.yaml").write_text(text)
    result = run(tmp_path / "endless.yaml", executor="local", output=tmp_path / "output")
    assert result.exit_code == 1
    (sim,) = result.report().groups
    assert sim.causes == {"output": 1}
