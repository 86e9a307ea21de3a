"""No job is submitted twice, and none is lost, whatever becomes of the answers of sbatch."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ensemble_batch import CommandResult, Place, Sent
from ensemble_slurm.names import Batch
from ensemble_slurm.parse import Site
from ensemble_slurm.script import Scripts
from ensemble_slurm.submitter import Order, Submitter

from ensemble_core import Job

DOWN = CommandResult(
    1,
    "",
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
)
LATE = CommandResult(None, "", "no answer within 30 s")
FULL = CommandResult(
    1,
    "",
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
)
BAD = CommandResult(1, "", "sbatch: error: invalid partition specified: x")


class Slurm:
    """A Slurm of the test's own, with a clock that the test turns. ``answers`` is what sbatch says,
    one after the other, where it does not simply take the jobs; ``takes`` whether it takes them
    although it does not say so, ``after`` how many seconds later that is seen."""

    def __init__(self, *answers: CommandResult, takes: bool = False, after: float = 0.0) -> None:
        self.answers = list(answers)
        self.takes, self.delay = takes, after
        self.time = 0.0
        self.calls: list[list[str]] = []
        self.recorded: list[Sent] = []
        self.queue: list[tuple[float, Batch, str]] = []
        self.voided: list[str] = []
        self.taken: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.troubles: list[str | None] = []
        self.writable = True
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self.submitter = Submitter(self, Scripts("run", "t", "/spool", "/"), Site())

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.time + seconds, next(self._numbers), what))

    def sbatch(
        self,
        words: Sequence[str],
        script: bytes,
        deadline: float,
        then: Callable[[CommandResult], None],
    ) -> None:
        self.calls.append(list(words))
        answer = self.answers.pop(0) if self.answers else None
        (comment,) = (word[10:] for word in words if word.startswith("--comment="))
        batch = Batch.from_comment(comment, "run")
        assert batch is not None
        assert self.recorded[-1].names == [comment]  # on record before it is submitted
        number = str(100 + len(self.calls))
        if answer is None or self.takes:
            self.queue.append((self.time + (self.delay if answer else 0.0), batch, number))
        self.after(0.1, lambda: then(answer or CommandResult(0, f"{number};cluster\n", "")))

    def record(self, sent: Sent) -> bool:
        if self.writable:
            self.recorded.append(sent)
        return self.writable

    def find(self, batch: Batch, then: Callable[[str | None], None]) -> None:
        found = [id_ for seen, each, id_ in self.queue if each == batch and seen <= self.time]
        self.after(0.1, lambda: then(found[0] if found else None))

    def void(self, batch: Batch) -> bool:
        if self.writable:
            self.voided.append(f"{batch.key}.{batch.attempt}")
        return self.writable

    def accepted(self, batch: Batch, queue_id: str) -> None:
        for job in batch.jobs():
            assert job not in self.taken
            self.taken[job] = queue_id

    def refused(self, jobs: Sequence[str], kind: str, note: str) -> None:
        self.failed.update(dict.fromkeys(jobs, note))

    def trouble(self, of: str, what: str | None, hint: str | None = None) -> None:
        self.troubles.append(what)

    def run(self, seconds: float = 600.0) -> None:
        end = self.time + seconds
        while self._timers and self._timers[0][0] <= end:
            self.time, _, what = heapq.heappop(self._timers)
            what()
        self.time = end

    def submit(self, *indices: int, **fields: Any) -> Slurm:
        self.submitter.take([order(index, **fields) for index in indices])
        return self

    def alive(self) -> list[str]:
        """Our ids of what Slurm would run."""
        return [
            job
            for _, batch, _ in self.queue
            if f"{batch.key}.{batch.attempt}" not in self.voided
            for job in batch.jobs()
        ]


def order(index: int, **fields: Any) -> Order:
    job = Job(id=f"sim.{index}", group="sim", index=index, command=("true",), **fields)
    return Order(job, Place("/", "/o", "/e"))


def ids(count: int) -> set[str]:
    return {f"sim.{index}" for index in range(count)}


def test_what_gathers_while_one_is_on_its_way_goes_as_one_array() -> None:
    slurm = Slurm().submit(0)
    slurm.run(0.05)
    for index in range(1, 50):
        slurm.submit(index)
    slurm.run()
    assert len(slurm.calls) == 2
    assert "--array=0-48" in slurm.calls[1]
    assert set(slurm.taken) == ids(50)


def test_a_submit_without_an_answer_that_was_taken_is_found_and_not_made_again() -> None:
    for delay in (0.0, 5.0):
        slurm = Slurm(LATE, takes=True, after=delay).submit(0, 1, 2)
        slurm.run()
        assert len(slurm.calls) == 1
        assert set(slurm.taken) == ids(3)


def test_a_submit_that_never_arrived_is_made_again_once_that_is_certain() -> None:
    slurm = Slurm(LATE, DOWN).submit(0, 1, 2)
    slurm.run(9.0)
    assert len(slurm.calls) == 1  # slurmctld might still have it
    slurm.run()
    assert len(slurm.calls) == 3
    assert len(slurm.voided) == 2
    assert set(slurm.taken) == ids(3)


def test_one_that_arrives_after_it_was_given_up_is_void() -> None:
    slurm = Slurm(LATE, takes=True, after=100.0).submit(0)
    slurm.run(50.0)
    slurm.takes = False
    slurm.run()
    assert len(slurm.calls) == 2
    assert len(slurm.queue) == 2
    assert slurm.alive() == ["sim.0"]
    assert slurm.taken["sim.0"] == "102"


def test_one_that_arrives_while_it_is_given_up_is_kept() -> None:
    """Between the last look and the mark that makes it void."""
    slurm = Slurm(LATE, takes=True, after=10.3).submit(0)
    slurm.run()
    assert len(slurm.calls) == 1
    assert slurm.taken == {"sim.0": "101"}


def test_nothing_is_submitted_again_while_the_disk_does_not_take_that_the_first_is_void() -> None:
    slurm = Slurm(LATE, takes=True, after=400.0).submit(0)
    slurm.run(1.0)
    slurm.takes = slurm.writable = False
    slurm.run(100.0)
    slurm.writable = True
    slurm.run()
    assert len(slurm.calls) == len(slurm.queue) == 2
    assert slurm.alive() == ["sim.0"]


def test_what_slurm_refuses_for_good_is_not_asked_again() -> None:
    slurm = Slurm(BAD).submit(0, 1)
    slurm.run()
    assert len(slurm.calls) == 1
    assert set(slurm.failed) == ids(2)
    assert "invalid partition specified: x. 'sinfo -s'" in slurm.failed["sim.0"]


def test_a_full_queue_gets_fewer_at_once_and_the_rest_when_jobs_end() -> None:
    slurm = Slurm(FULL, FULL, FULL).submit(*range(4))
    slurm.run(5.0)
    assert len(slurm.calls) == 3  # four, two, one
    assert slurm.taken == {}
    assert "takes no more jobs for now (QOSMaxSubmitJobPerUserLimit" in str(slurm.troubles[-1])
    slurm.submitter.room()
    slurm.run(2.0)
    assert set(slurm.taken) == ids(4)
    assert slurm.failed == {}


def test_a_full_queue_is_tried_again_although_none_of_ours_ends() -> None:
    slurm = Slurm(FULL).submit(0)
    slurm.run(100.0)
    assert set(slurm.taken) == ids(1)


def test_a_job_that_is_cancelled_while_it_waits_here_never_goes() -> None:
    slurm = Slurm(FULL).submit(0)
    slurm.run(1.0)
    assert slurm.submitter.cancel("sim.0")
    assert not slurm.submitter.cancel("sim.0")
    slurm.run()
    assert slurm.taken == {}
    assert slurm.submitter.idle


def test_nothing_is_submitted_that_cannot_be_written_down() -> None:
    slurm = Slurm()
    slurm.writable = False
    slurm.submit(0)
    slurm.run(60.0)
    assert slurm.calls == []
    slurm.writable = True
    slurm.run()
    assert set(slurm.taken) == ids(1)
