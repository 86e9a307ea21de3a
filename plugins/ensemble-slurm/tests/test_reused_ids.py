"""Test of reused ids: a slurmctld that has lost its state gives our jobs' ids to other jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing.executor import Session

if TYPE_CHECKING:
    from conftest import Cluster


def forget_jobs(cluster: Cluster) -> None:
    cluster.kill("slurmctld")
    for file in (cluster.base / "state").glob("job_state*"):
        file.unlink()
    cluster.start_slurmctld()


def submit_other(cluster: Cluster, used: str, *words: str) -> str:
    """Submit foreign jobs until one gets the id of ours; return that id."""
    options = ("--parsable", "--job-name=other", "--output=/dev/null", *words)
    other = ""
    while other != used:
        cluster.run("scancel", other, check=False)
        other = cluster.run("sbatch", *options, "--wrap=sleep 1000").strip()
        assert int(other) <= int(used)
    return other


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
def test_a_job_with_the_id_of_a_lost_one_is_not_ours(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 90.0) as first:
        job = first.job("true", urgency=0)  # held
        first.submit(job)
        first.wait_for(job, "priority")
        used = first.queue_id(job)
    forget_jobs(cluster)
    other = submit_other(cluster, used)
    second = Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 90.0)
    second.resume(first)
    with second:
        second.executor.reattach({job.id: 0.0})
        if cancelled:
            second.cancel(job)
        second.wait_clean(job)
        assert second.exception(job) == ("cancel" if cancelled else "lost")
        assert other in [id_ for id_, *_ in cluster.active()]
        cluster.run("scancel", other)


@pytest.mark.parametrize("array", [False, True], ids=["job", "array"])
@pytest.mark.parametrize("call", ["cancel", "signal"])
def test_no_foreign_job_that_got_the_id_since_the_last_query_is_cancelled_or_signalled(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, array: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1000.0, rate=50), tmp_path, 90.0) as session:
        job = session.job("sleep", "1000")
        session.submit(job)
        session.wait_for(job, "start")
        used = session.queue_id(job)
        forget_jobs(cluster)
        words = ["--array=0-1"] if array else []
        other = submit_other(cluster, used, "--hold", *words)
        ended: list[object] = []
        end = session.executor._cancel
        monkeypatch.setattr(
            session.executor, "_cancel", lambda ids, *more: (ended.append(ids), end(ids, *more))
        )
        if call == "signal":
            session.executor.signal([job.id], "USR1")
            assert ended == []
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
        assert ended == []
        assert other in [id_.partition("_")[0] for id_, *_ in cluster.active()]
        cluster.run("scancel", other)


def test_a_job_whose_name_and_comment_were_changed_is_still_ours(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    executor = SlurmExecutor(look=0.5, rate=50)
    with Session(executor, tmp_path, 90.0) as session:
        job = session.job("sleep", "1000")
        session.submit(job)
        session.wait_for(job, "start")
        id_ = session.queue_id(job)
        asked: list[object] = []
        ask = executor.ask
        monkeypatch.setattr(executor, "ask", lambda ids: (asked.append(ids), ask(ids))[1])
        cluster.run("scontrol", "update", f"JobId={id_}", "JobName=another", "Comment=mine")
        session.wait(lambda: len(asked) > 6, "queries")
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
        assert id_ not in [active for active, *_ in cluster.active()]
