"""Jobs of an earlier controller are found again, from whoever still knows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from ensemble_batch import Records, Sent
from ensemble_slurm.finder import Finder
from ensemble_slurm.job_state import JobStates
from ensemble_slurm.names import Batch
from ensemble_slurm.parse import Row, Site
from ensemble_slurm.queue_poller import QueuePoller

from ensemble_core import JobEvent

BATCH = Batch("run", "k1", "sim", (0, 1, 2))


class World:
    """What slurmctld shows now, what accounting has, and the records of the earlier controller."""

    def __init__(self, folder: Path, *, accounting: bool = False, accepted: bool = True) -> None:
        self.time = 1000.0
        self.shown: list[Row] = []
        self.accounts: list[Row] = []
        self.told: list[JobEvent] = []
        self.voided: list[str] = []
        #: How often the disk does not take a mark.
        self.full = 0
        self.cancelled: list[str] = []
        before = Records(str(folder))
        jobs = {f"sim.{n}": {"stdout": f"/o{n}"} for n in range(3)}
        before.send(Sent("k1", jobs, [BATCH.comment], 990.0))
        if accepted:
            before.accept("k1", ["7"])
            before.tell(
                [JobEvent(991.0 + n, "sim.0", name) for n, name in enumerate(("submit", "clean"))]
            )
        before.close()
        self.records = Records(str(folder))
        self.states = JobStates("cancelled by run run")
        self.finder = Finder(
            self,
            cast(QueuePoller, self),
            self.states,
            self.records,
            Site(accounting=accounting),
            "run",
        )

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.time += seconds
        what()

    def void(self, batch: Batch) -> bool:
        self.full -= 1
        if self.full < 0:
            self.voided.append(f"{batch.key}.{batch.attempt}")
        return self.full < 0

    def read_spool(self) -> None: ...

    def found(self) -> None: ...

    def retell(self, events: Sequence[JobEvent]) -> None:
        self.told += events

    def cancel_again(self, jobs: Sequence[str]) -> None:
        self.cancelled += jobs

    # The poller's:

    def find(self, then: Callable[[list[Row] | None], None]) -> None:
        then(self.shown)

    def account(
        self, ids: Sequence[str], then: Callable[[list[Row] | None], None], **_: Any
    ) -> None:
        then(self.accounts)

    def ask(self, *jobs: str, since: float = 0.0) -> Mapping[str, bool]:
        answers: dict[str, bool] = {}
        self.finder.find(dict.fromkeys(jobs, since), answers.update)
        self.told += self.states.take()
        self.records.close()
        return answers

    def names(self, job: str) -> list[str]:
        return [event.name for event in self.told if event.job == job]


def row(task: int, state: str, *, comment: bool = True, **more: Any) -> Row:
    return Row("7", task, state, name=BATCH.name, comment=BATCH.comment if comment else "", **more)


def test_what_was_told_is_told_again_with_the_same_times(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.ask("sim.0", since=991.0) == {"sim.0": True}
    assert [(event.timestamp, event.name) for event in world.told] == [(992.0, "clean")]


def test_jobs_that_slurmctld_shows_go_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.shown = [
        row(1, "RUNNING", nodes="n1", started=995.0),
        row(2, "COMPLETED", nodes="n1", ended=999.0),
    ]
    assert world.ask("sim.1", "sim.2") == {"sim.1": True, "sim.2": True}
    assert world.names("sim.1")[-1] == "start"
    assert world.names("sim.2")[-1] == "clean"
    assert list(world.states.jobs) == ["sim.1"]


@pytest.mark.parametrize("comment", [True, False])
def test_what_slurmctld_forgot_accounting_knows_by_comment_or_name(
    tmp_path: Path, comment: bool
) -> None:
    world = World(tmp_path, accounting=True, accepted=False)
    world.accounts = [
        row(n, "FAILED", comment=comment, status=n << 8, nodes="n1") for n in range(3)
    ]
    assert world.ask("sim.1", "sim.2") == {"sim.1": True, "sim.2": True}
    finish = [event for event in world.told if event.job == "sim.2" and event.name == "finish"]
    assert [event.context["status"] for event in finish] == [2 << 8]


def test_a_job_that_slurm_had_and_nobody_knows_is_lost_and_not_submitted_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    assert world.ask("sim.1") == {"sim.1": True}
    assert world.names("sim.1")[-2:] == ["exception", "clean"]


def test_a_submit_that_was_under_way_is_waited_for_then_void_then_made_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, accepted=False)
    assert world.ask("sim.0", "sim.1") == {"sim.0": False, "sim.1": False}
    assert world.time > 990.0 + 10.0
    assert world.voided == ["k1.1"]
    assert world.states.jobs == {}


def test_jobs_are_not_given_up_before_a_full_disk_takes_that_they_are_void(tmp_path: Path) -> None:
    world = World(tmp_path, accepted=False)
    world.full = 3
    assert world.ask("sim.0") == {"sim.0": False}
    assert world.voided == ["k1.1"]


def test_a_submit_that_arrived_although_nobody_was_told_is_found(tmp_path: Path) -> None:
    world = World(tmp_path, accepted=False)
    world.shown = [row(n, "PENDING") for n in range(3)]
    assert world.ask("sim.0", "sim.1") == {"sim.0": True, "sim.1": True}
    assert world.voided == []
    assert world.states.job_of("7_1") == "sim.1"


def test_a_cancel_that_the_earlier_controller_was_told_of_is_made(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.records.cancel(["sim.1"])
    world.records.close()
    world = World(tmp_path)
    world.shown = [row(1, "RUNNING", nodes="n1")]
    world.ask("sim.1")
    assert world.cancelled == ["sim.1"]
