"""Slurm's daemons are killed and restarted: no end is missed, no job is lost, and none runs twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_slurm.executor import SlurmExecutor

from ensemble_core import Job, Problem
from ensemble_core.testing.executor import Session, wait_until

if TYPE_CHECKING:
    from conftest import Cluster


def check(session: Session) -> None:
    """Each job that is over was told so once."""
    for job in {event.job for event in session.events if hasattr(event, "job")}:
        assert session.names(str(job)).count("clean") == 1, session.names(str(job))


def problems(session: Session) -> list[str]:
    return [event.message for event in session.events if isinstance(event, Problem)]


def exception(session: Session, job: Job) -> str:
    return str(session.context(job, "exception")["type"])


def shell_of(word: str) -> int:
    """The process of the batch script whose job has ``word`` on its command line."""
    wait_until(lambda: any(_shells(word)), 10)
    return next(_shells(word))


def _shells(word: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if word in (entry / "cmdline").read_text().split("\0"):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if "slurm_script" in Path(f"/proc/{parent}/cmdline").read_text():
                    yield parent


def test_slurmctld_may_be_away_while_jobs_end_are_submitted_and_are_cancelled(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 60.0, tidy=True) as session:
        short, lasting = session.job("sleep", "12"), session.job("sleep", "1000")
        session.submit(short, lasting)
        session.wait_for(short, "start")
        session.wait_for(lasting, "start")
        # What it has not saved, a slurmctld that is killed forgets.
        started, saved = time.time(), cluster.base / "state" / "job_state"
        wait_until(lambda: saved.exists() and saved.stat().st_mtime > started, 20)
        cluster.kill("slurmctld")
        later = [session.job("sh", "-c", "echo ran >> ran") for _ in range(5)]
        session.submit(*later)
        session.executor.cancel([lasting.id])
        session.wait_clean(short)
        assert session.context(short, "finish")["status"] == 0
        assert "clean" not in session.names(lasting)
        session.wait(lambda: bool(problems(session)), "a warning")
        cluster.start_slurmctld()
        session.wait_clean(*later, lasting)
        assert exception(session, lasting) == "cancel"
        assert (tmp_path / "ran").read_text().split() == ["ran"] * 5
        assert "goes on" in problems(session)[-1]
    check(session)


def test_a_slurmd_that_is_killed_does_not_lose_the_end_of_its_job(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 40.0, tidy=True) as session:
        job = session.job(
            "sh", "-c", "sleep 2; exit 5", options={"slurm": {"extra": ["--nodelist=n3"]}}
        )
        session.submit(job)
        session.wait_for(job, "start")
        cluster.kill("n3")
        try:
            session.wait_clean(job)
            assert session.context(job, "finish")["status"] == 5 << 8
        finally:
            cluster.start_slurmd("n3")
    check(session)


def test_with_the_sites_completion_script_a_killed_shell_is_known_at_once(
    make_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "ended"
    folder.mkdir()
    import ensemble_slurm

    source = Path(ensemble_slurm.__file__).with_name("jobcomp-ensemble.sh").read_text()
    script = tmp_path / "jobcomp.sh"
    script.write_text(source.replace("/var/spool/slurm/ensemble", str(folder)))
    script.chmod(0o755)
    make_cluster(f"JobCompType=jobcomp/script\nJobCompLoc={script}\n")
    executor = SlurmExecutor(look=60.0, rate=50, jobcomp=str(folder))
    with Session(executor, tmp_path, 40.0, tidy=True) as session:
        job = session.job("sleep", "1002.5")
        session.submit(job)
        session.wait_for(job, "start")
        began = time.monotonic()
        os.kill(shell_of("1002.5"), signal.SIGKILL)
        session.wait_clean(job)
        assert time.monotonic() - began < 20
        assert session.context(job, "finish")["status"] & 0x7F == signal.SIGKILL
