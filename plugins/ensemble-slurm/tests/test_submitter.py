"""No job is submitted twice, and none is lost, whatever becomes of the answers of sbatch."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_slurm.commands import Done
from ensemble_slurm.ledger import Ledger, Sent
from ensemble_slurm.names import Batch
from ensemble_slurm.parse import Site
from ensemble_slurm.script import Place, Scripts
from ensemble_slurm.submitter import Order, Submitter

from ensemble_core import Job, JobEvent

DOWN = Done(
    1,
    "",
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
)
LATE = Done(None, "", "no answer within 30 s")
FULL = Done(
    1,
    "",
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
)
BAD = Done(1, "", "sbatch: error: invalid partition specified: x")


class Slurm:
    """A Slurm of the test's own, with a clock that the test turns. ``answers`` is what sbatch says,
    one after the other, where it does not simply take the jobs; ``takes`` whether it takes them
    although it does not say so, ``after`` how many seconds later that is seen."""

    def __init__(self, *answers: Done, takes: bool = False, after: float = 0.0) -> None:
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
        self, words: Sequence[str], script: bytes, deadline: float, then: Callable[[Done], None]
    ) -> None:
        self.calls.append(list(words))
        answer = self.answers.pop(0) if self.answers else None
        (comment,) = (word[10:] for word in words if word.startswith("--comment="))
        batch = Batch.from_comment(comment, "run")
        assert batch is not None
        assert batch == self.recorded[-1].batch  # on record before it is submitted
        number = str(100 + len(self.calls))
        if answer is None or self.takes:
            self.queue.append((self.time + (self.delay if answer else 0.0), batch, number))
        self.after(0.1, lambda: then(answer or Done(0, f"{number};cluster\n", "")))

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

    def trouble(self, what: str | None, hint: str | None = None) -> None:
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


def test_a_ledger_knows_again_what_was_sent_and_told(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "run")
    assert not ledger.resumed
    batch = Batch("run", "k1", "sim", (0, 1))
    ledger.send(Sent(batch, 5.0, {"sim.0": {"stdout": "/a"}, "sim.1": {"stdout": "/b"}}))
    ledger.accept("k1", "77")
    ledger.tell(
        [JobEvent(6.5, "sim.0", "submit", {"queue_id": "77_0"}), JobEvent(7.0, "sim.1", "clean")]
    )
    ledger.cancel(["sim.0"])
    ledger.empty("/out")
    ledger.close()
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('["e","sim.0",[[9.0,"sta')  # the controller was killed here
    for forget in (False, True):
        again = Ledger(str(tmp_path), "run")
        assert again.resumed
        sent = again.sent()["k1"]
        assert (sent.batch, sent.id, sent.at, sent.extra["sim.0"]) == (
            batch,
            "77",
            5.0,
            {"stdout": "/a"},
        )
        assert list(again.told("sim.0")) == [(6.5, "submit", {"queue_id": "77_0"})]
        assert again.was_cancelled("sim.0")
        assert again.was_emptied("/out")
        if not forget:
            again.forget(["sim.1"])
        again.close()
    last = Ledger(str(tmp_path), "run")
    assert list(last.told("sim.1")) == []
    last.close()


def test_a_line_that_was_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    whole, cut = '["e","sim.0",[[1.0,"submit",{}]]]\n', '["e","sim.0",[[2.0,"al'
    (tmp_path / "ledger.jsonl").write_text(whole + cut)
    ledger = Ledger(str(tmp_path), "run")
    ledger.tell([JobEvent(3.0, "sim.0", "clean")])
    ledger.close()
    again = Ledger(str(tmp_path), "run")
    assert [name for _, name, _ in again.told("sim.0")] == ["submit", "clean"]
    again.close()


def test_a_ledger_does_not_grow_with_jobs_that_are_over_and_done_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "renewal", 100)
    ledger = Ledger(str(tmp_path), "run")
    sizes = []
    for number in range(1000):
        job = f"sim.{number}"
        ledger.send(
            Sent(Batch("run", f"k{number}", "sim", (number,)), 1.0, {job: {"stdout": "/o"}})
        )
        ledger.tell([JobEvent(1.0, job, "submit"), JobEvent(2.0, job, "clean")])
        if number != 7:
            ledger.forget([job])
        sizes.append((tmp_path / "ledger.jsonl").stat().st_size)
    ledger.close()
    assert max(sizes) < 120 * max(sizes[:1])
    again = Ledger(str(tmp_path), "run")
    assert [name for _, name, _ in again.told("sim.7")] == ["submit", "clean"]
    assert "k7" in again.sent()
    assert len(again.sent()) < 101
    again.close()


def test_a_run_on_a_full_disk_ends_without_another_error() -> None:
    ledger = Ledger(None, "r")
    ledger._file = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115 -- the ledger closes it
    with pytest.raises(OSError, match="No space"):
        ledger.cancel(["sim.0"])
    ledger.close()
