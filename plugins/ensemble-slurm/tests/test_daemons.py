"""Tests with killed and restarted Slurm daemons: no end is missed, no job is lost or repeated."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing.executor import Session, wait_until

if TYPE_CHECKING:
    from conftest import Cluster


def test_jobs_may_end_and_be_submitted_and_cancelled_while_slurmctld_is_away(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 90.0, tidy=True) as session:
        short = session.job("sh", "-c", "until [ -e go ]; do sleep 0.1; done")
        lasting = session.job("sleep", "1000")
        session.submit(short, lasting)
        session.wait_for(short, "start")
        session.wait_for(lasting, "start")
        # A killed slurmctld forgets what it has not saved.
        started, saved = time.time(), cluster.base / "state" / "job_state"
        wait_until(lambda: saved.exists() and saved.stat().st_mtime > started)
        cluster.kill("slurmctld")
        later = [session.job("sh", "-c", "echo ran >> ran") for _ in range(5)]
        session.submit(*later)
        session.executor.cancel([lasting.id])
        Path("go").touch()
        session.wait_clean(short)
        assert session.context(short, "finish")["status"] == 0
        assert "clean" not in session.names(lasting)
        session.wait(lambda: bool(session.problems()), "a warning")
        cluster.start_slurmctld()
        session.wait_clean(*later, lasting)
        assert session.exception(lasting) == "cancel"
        assert (tmp_path / "ran").read_text().split() == ["ran"] * 5
        assert "continues" in session.problems()[-1]
    session.check_ended_once()


def test_a_slurmd_that_is_killed_does_not_lose_the_end_of_its_job(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 90.0, tidy=True) as session:
        script = "until [ -e go ]; do sleep 0.1; done; exit 5"
        job = session.job("sh", "-c", script, options={"slurm": {"extra": ["--nodelist=n3"]}})
        session.submit(job)
        session.wait_for(job, "start")
        cluster.kill("n3")
        try:
            Path("go").touch()
            session.wait_clean(job)
            assert session.context(job, "finish")["status"] == 5 << 8
        finally:
            cluster.start_slurmd("n3")
    session.check_ended_once()


def test_a_job_that_its_node_could_not_start_runs_when_slurm_starts_it_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm requeues it although it may not be restarted, so it failed without having run."""
    monkeypatch.chdir(tmp_path)
    cluster.kill("n4")
    try:
        with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
            options = {"slurm": {"partition": "urgent"}}
            job = session.job("sh", "-c", "echo ran >> ran; exit 5", options=options)
            session.submit(job)
            session.wait_for(job, "requeue")
            cluster.start_slurmd("n4")
            wait_until(lambda: cluster.run("sinfo", "-hnn4", "-o%T").split()[0] == "idle")
            # Otherwise Slurm waits for two minutes.
            cluster.run("scontrol", "update", f"jobid={session.queue_id(job)}", "starttime=now+3")
            session.wait_clean(job)
            assert session.context(job, "finish")["status"] == 5 << 8
            assert "exception" not in session.names(job)
            assert (tmp_path / "ran").read_text() == "ran\n"
    finally:
        if "n4" not in cluster._processes:
            cluster.start_slurmd("n4")
        cluster.run("scontrol", "update", "nodename=n4", "state=resume", check=False)
    session.check_ended_once()


def test_with_the_sites_completion_script_a_killed_shell_is_noticed_at_once(
    site_cluster: Cluster,
    shell_of: Callable[[str], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    executor = SlurmExecutor(look=600.0, rate=50, jobcomp=str(site_cluster.ended))
    with Session(executor, tmp_path, 90.0, tidy=True) as session:
        job = session.job("sleep", "1002.5")
        session.submit(job)
        session.wait_for(job, "start")
        os.kill(shell_of("1002.5"), signal.SIGKILL)
        session.wait_clean(job)  # long before the next poll of the queue
        assert session.context(job, "finish")["status"] & 0x7F == signal.SIGKILL
