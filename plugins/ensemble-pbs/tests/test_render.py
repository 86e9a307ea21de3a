"""Tests of the command line that submits a job to PBS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest
from ensemble_batch import Batch
from ensemble_pbs import JOB_OPTIONS, ensemble_executors
from ensemble_pbs.executor import PBSExecutor

from ensemble_core import Job


def test_a_job_is_rendered_as_the_command_that_submits_it() -> None:
    (record,) = ensemble_executors()
    assert record.render is not None
    options = {"pbs": {"resources": {"mem": "4gb"}, "queue": "long"}}
    job = Job(
        id="a.3", group="a", index=3, command=("sim", "x y"), tasks=4, gpus_per_task=1,
        duration=90.0, urgency=10, options=options,
    )  # fmt: skip
    made = record.render(job, {"project": "physics", "account": "a1"})
    command, line = made.text.splitlines()
    for words in (
        "-l select=1:ncpus=4:mem=4gb:ngpus=4", "-l walltime=155", "-q long", "-P physics",
        "-A a1", "-p -300", "-r n", "-- /bin/bash SCRIPT",
    ):  # fmt: skip
        assert f" {words} " in f"{command} "
    assert line == "sim 'x y'"


def test_memory_of_all_tasks_is_in_the_chunk() -> None:
    job = Job(
        id="a.3", group="a", index=3, command=("sim",), tasks=2, memory_per_task=(1 << 30) + 1
    )
    words = PBSExecutor().words(Batch("ens_t", (job,), "script"))
    assert "select=1:ncpus=2:mem=2049mb" in words
    both = replace(job, options={"pbs": {"resources": {"mem": "4gb"}}})
    assert "'memory_per_task' and the resource 'mem'" in (PBSExecutor().wrong(both) or "")


def test_the_job_around_this_process_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (record,) = ensemble_executors()
    assert record.inside is not None
    monkeypatch.delenv("PBS_JOBID", raising=False)
    assert record.inside() == ""
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    monkeypatch.setenv("PBS_JOBID", "7.server")
    assert record.inside() == "PBS job 7.server with 1 node"
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    assert record.inside() == "PBS job 7.server with 2 nodes"


def test_further_options_of_qsub_come_before_the_script() -> None:
    options = {"pbs": {"extra": ["-l place=excl", "-W depend=afterok:17"]}}
    job = Job(id="a.3", group="a", index=3, command=("sim",), options=options)
    words = PBSExecutor().words(Batch("ens_t", (job,), "script"))
    assert " ".join(words).endswith(" -l place=excl -W depend=afterok:17 -- /bin/bash script")


@pytest.mark.parametrize(
    "extra", ["-J 1-3", "-l select=2", "-W block=true", "place=excl", "-lwalltime=1"]
)
def test_options_of_qsub_that_the_run_sets_are_rejected(extra: str) -> None:
    assert not jsonschema_rs.is_valid(dict(JOB_OPTIONS), {"extra": [extra]})
