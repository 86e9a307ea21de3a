"""Tests of job ends on a real Slurm: each is reported once, also if others interfere."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing.executor import Session, wait_until

if TYPE_CHECKING:
    from conftest import Cluster


@pytest.fixture
def session(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 90.0, tidy=True) as session:
        yield session
    session.check_ended_once()


def test_a_running_job_cancelled_by_another_user_is_cancelled(
    session: Session, cluster: Cluster
) -> None:
    job = session.job("sleep", "1000")
    session.submit(job)
    session.wait_for(job, "start")
    cluster.run("scancel", session.queue_id(job))
    session.wait_clean(job)
    assert session.exception(job) == "cancel"
    assert "not by this run" in session.context(job, "exception")["note"]
    assert session.context(job, "finish")["status"] != 0


def test_a_waiting_job_cancelled_by_another_user_has_no_start(
    session: Session, cluster: Cluster
) -> None:
    job = session.job("true", urgency=0)
    session.submit(job)
    session.wait_for(job, "submit")
    cluster.run("scancel", session.queue_id(job))
    session.wait_clean(job)
    assert session.exception(job) == "cancel"
    assert "start" not in session.names(job)


def test_waiting_tasks_of_an_array_that_others_cancel_are_not_lost(
    session: Session, cluster: Cluster
) -> None:
    """After ``scancel -u ME``, Slurm lists them in one row without the numbers of the tasks."""
    jobs = [session.job("sleep", "1000") for _ in range(12)]
    session.submit(*jobs)
    for job in jobs[:8]:
        session.wait_for(job, "start")
    cluster.run("scancel", "-t", "PENDING", "-u", str(os.getuid()))
    for job in jobs[8:]:
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
        assert "start" not in session.names(job)
    assert all("clean" not in session.names(job) for job in jobs[:8])
    for job in jobs[:8]:
        session.cancel(job)


def test_single_tasks_that_others_cancel_before_the_rest_of_the_array_runs_are_not_lost(
    session: Session, cluster: Cluster
) -> None:
    """Such a task leaves no record in Slurm."""
    jobs = [session.job("sleep", "3") for _ in range(12)]
    session.submit(*jobs)
    for job in jobs[:8]:
        session.wait_for(job, "start")
    cluster.run("scancel", *map(session.queue_id, jobs[8:10]))
    session.wait_clean(*jobs)
    assert {session.exception(job) for job in jobs[8:10]} == {"cancel"}
    assert all("exception" not in session.names(job) for job in (*jobs[:8], *jobs[10:]))


def test_the_end_of_a_job_whose_shell_is_killed_is_noticed(
    session: Session, shell_of: Callable[[str], int]
) -> None:
    job = session.job("sleep", "1001.5")
    session.submit(job)
    session.wait_for(job, "start")
    os.kill(shell_of("1001.5"), signal.SIGKILL)
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] & 0x7F == signal.SIGKILL
    assert "Slurm: FAILED" in session.context(job, "exception")["note"]


def test_a_job_that_slurm_restarts_ends_once_and_its_first_life_does_not_count(
    session: Session, cluster: Cluster, tmp_path: Path
) -> None:
    # Each attempt lasts long enough to be observed.
    job = session.job(
        "bash", "-c", "echo life >> lives; exec sleep 1000", options={"slurm": {"requeue": True}}
    )
    session.submit(job)
    session.wait_for(job, "start")
    wait_until((tmp_path / "lives").exists)
    # Slurm waits for two minutes before it restarts a job. An earlier start would fail, because the
    # node rejects a job that it has just ended (credential revoked).
    cluster.run("scontrol", "requeue", session.queue_id(job))
    requeue = session.wait_for(job, "requeue")
    assert requeue["restarts"] == 1
    assert "clean" not in session.names(job)
    cluster.run("scancel", session.queue_id(job))
    session.wait_clean(job)
    assert session.names(job).count("start") == 1
    assert session.exception(job) == "cancel"


def test_a_job_cancelled_while_its_first_life_still_ends_has_no_second_start(
    session: Session, cluster: Cluster, tmp_path: Path
) -> None:
    """Slurm then reports the nodes and the start of the first life."""
    loop = "trap '' TERM; echo life >> lives; while :; do sleep 0.2; done"
    job = session.job("bash", "-c", loop, options={"slurm": {"requeue": True}})
    session.submit(job)
    wait_until((tmp_path / "lives").exists)
    session.wait_for(job, "start")
    cluster.run("scontrol", "requeue", session.queue_id(job))
    session.wait_for(job, "requeue")
    cluster.run("scancel", session.queue_id(job))
    session.wait_clean(job)
    assert session.names(job).count("start") == 1
    assert session.exception(job) == "cancel"


def test_slurm_does_not_restart_a_job_unless_requested(session: Session, cluster: Cluster) -> None:
    job = session.job("sleep", "1000")
    session.submit(job)
    session.wait_for(job, "start")
    told = cluster.run("scontrol", "show", "job", session.queue_id(job))
    assert "Requeue=0" in told


def test_unopenable_output_fails_the_job_with_the_reason(session: Session) -> None:
    job = session.job("true", stdout="/proc/there/is/none")
    full = session.job("echo", "hello", stdout="/dev/full")
    session.run(job, full)
    assert session.exception(job) == "output"
    assert "/proc/there/is/none" in session.context(job, "exception")["note"]
    assert session.context(full, "finish")["status"] != 0


def test_a_job_that_slurm_rejects_has_its_message_and_a_hint(session: Session) -> None:
    bad = session.job("true", group="bad", options={"slurm": {"partition": "nowhere"}})
    large = session.job("true", group="large", options={"slurm": {"mem": "100G"}})
    good = session.job("true")
    session.run(bad, large, good)
    note = session.context(bad, "exception")["note"]
    assert "invalid partition specified: nowhere" in note.lower()
    assert "sinfo" in note
    assert "not available (it asked for mem=100G)" in session.context(large, "exception")["note"]
    assert session.context(good, "finish")["status"] == 0


def test_a_job_that_would_wait_forever_causes_a_warning(session: Session) -> None:
    job = session.job("true", duration=3600.0, options={"slurm": {"partition": "short"}})
    session.submit(job)

    def told() -> list[str]:
        """Return the warnings about the limit. A starting cluster may have others."""
        return [each for each in session.problems() if "PartitionTimeLimit" in each]

    session.wait(lambda: bool(told()), "a warning")
    assert "duration" in told()[0]


def test_tasks_of_a_job_run_on_all_its_nodes(session: Session, tmp_path: Path) -> None:
    job = session.job(
        "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME", nodes=2, tasks=4, stdout="out"
    )
    session.run(job)
    assert session.context(job, "finish")["status"] == 0
    lines = (tmp_path / "out").read_text().split("\n")[:-1]
    assert sorted(line.split()[0] for line in lines) == ["0", "1", "2", "3"]
    assert len({line.split()[1] for line in lines}) == 2


def test_without_a_listener_wrappers_write_files_and_no_end_is_missed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    executor = SlurmExecutor(look=0.5, rate=50, listen="none")
    with Session(executor, tmp_path, 90.0, tidy=True) as session:
        good, bad = session.job("sleep", "0.5"), session.job("sh", "-c", "exit 3")
        late = session.job("sleep", "1000", duration=1.0)
        gone = session.job("sleep", "1000")
        session.submit(good, bad, late, gone)
        session.wait_for(gone, "start")
        session.executor.cancel([gone.id])
        session.wait_clean(good, bad, late, gone)
        assert session.context(good, "finish")["status"] == 0
        assert session.context(bad, "finish")["status"] == 3 << 8
        assert session.exception(late) == "timeout"
        assert session.exception(gone) == "cancel"
        events = {event.name: event.timestamp for event in session.of(good)}
        assert events["finish"] - events["start"] > 0.4
    session.check_ended_once()


def test_a_waiting_job_that_somebody_holds_is_reported_once_with_what_releases_it(
    session: Session, cluster: Cluster
) -> None:
    fillers = [session.job("sleep", "1000") for _ in range(8)]
    session.submit(*fillers)
    for job in fillers:
        session.wait_for(job, "start")
    wished = session.job("true", group="wished", urgency=0)
    jobs = [session.job("true", group="work") for _ in range(2)]
    session.submit(wished, *jobs)
    for job in (wished, *jobs):
        session.wait_for(job, "submit")
    ids = [session.queue_id(job) for job in jobs]
    cluster.run("scontrol", "uhold", *ids)
    session.wait(session.problems, "a warning")
    (message,) = session.problems()
    assert message.startswith("work.")
    release = message.split("'")[1].split()
    assert release[:2] == ["scontrol", "release"]
    assert release[2] in ids
    for id_ in ids:
        cluster.run("scontrol", "release", id_)
    session.cancel(wished, *fillers)
    session.wait_clean(*jobs)
    assert session.problems() == [message]
