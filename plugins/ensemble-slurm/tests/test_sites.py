"""Tests of site settings that a run must handle, on a real Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing.executor import Session

if TYPE_CHECKING:
    from conftest import Cluster


def test_a_site_may_limit_arrays_and_requeue_by_exit_code(
    site_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
        many = [session.job("printf", f"{n}\r\n") for n in range(5)]
        again = session.job("sh", "-c", f"echo ran >>{tmp_path}/ran; exit 99")
        session.submit(*many, again)
        for job in (*many, again):
            session.wait_clean(job)
            assert session.names(job).count("clean") == 1
        assert {session.context(job, "finish")["status"] for job in many} == {0}
        assert session.context(again, "finish")["status"] == 99 << 8
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.parametrize(("code", "held"), [(99, False), (98, True)])
def test_a_job_that_may_be_requeued_by_its_exit_code_waits_again_and_ends_once(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, held: bool
) -> None:
    """It did not count as failed while Slurm ran it a second time."""
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
        script = f"echo ran >> ran; [ $SLURM_RESTART_COUNT ] || exit {code}"
        job = session.job("sh", "-c", script, options={"slurm": {"requeue": True}})
        session.submit(job)
        session.wait_for(job, "requeue")
        assert "exception" not in session.names(job)
        id_ = session.queue_id(job)
        if held:
            session.wait(session.problems, "a warning")
            assert f"scontrol release {id_}" in session.problems()[0]
            cluster.run("scontrol", "release", id_)
        # Not in two minutes, but later than in the second of the end: a node refuses to start a job
        # whose credential is as old ("Job credential revoked", exit code 1).
        cluster.run("scontrol", "update", f"jobid={id_}", "starttime=now+3")
        session.wait_clean(job)
        assert session.context(job, "finish")["status"] == 0
        assert session.names(job).count("finish") == 1
        assert (tmp_path / "ran").read_text() == "ran\n" * 2


def test_a_job_whose_prolog_fails_is_not_cancelled_by_others(
    site_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm cancels it, since it may not be requeued, and drains the node."""
    monkeypatch.chdir(tmp_path)
    bad = site_cluster.ended / "bad-n3"
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
        bad.touch()
        try:
            session.run(job := session.job("true", options={"slurm": {"extra": ["--nodelist=n3"]}}))
        finally:
            bad.unlink()
            site_cluster.run("scontrol", "update", "node=n3", "state=resume")
        assert session.cause(job) == "node-failure"
        note = session.context(job, "exception")["note"]
        assert "n3" in note
        assert "Prolog error" in note


def test_a_cluster_that_is_full_takes_as_many_jobs_as_fit(
    full_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sbatch`` retries for two minutes, so it seemed not to answer, and no job ran."""
    monkeypatch.chdir(tmp_path)
    for _ in range(5):
        full_cluster.run("sbatch", "--hold", "--output=/dev/null", "--wrap=true")
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
        jobs = [session.job("true") for _ in range(4)]
        session.submit(*jobs)
        session.wait_clean(*jobs[:2])
        assert "accepts no more jobs for now; 4 wait here" in session.problems()[0]
        for job in jobs[2:]:
            session.cancel(job)
        session.wait_clean(*jobs[2:])
        assert not any("does not answer" in text for text in session.problems())
