"""Tests of a job's batch script."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_slurm import ensemble_executors
from ensemble_slurm.executor import SlurmExecutor
from ensemble_slurm.job_names import Label
from ensemble_slurm.sbatch import sbatch_options

from ensemble_core import Job


def test_a_job_is_rendered_as_a_batch_script() -> None:
    (record,) = ensemble_executors()
    assert record.render is not None
    options = {"slurm": {"mem": "4G"}}
    job = Job(
        id="a.3",
        group="a",
        index=3,
        command=("sim", "x y"),
        tasks=4,
        duration=90.0,
        options=options,
    )
    made = record.render(job, {"partition": "batch", "look": 30})
    lines = made.text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH --ntasks=4", "#SBATCH --time=2", "#SBATCH --partition=batch"} <= {*lines}
    assert "#SBATCH --mem=4G" in lines
    assert "#SBATCH --comment='ensemble RUN ID BATCH a 3'" in lines  # sbatch splits at spaces
    assert lines[-1].startswith("srun ")
    assert lines[-1].endswith("sim 'x y'")


def test_memory_per_task_is_requested_for_each_core_or_node() -> None:
    def memory(size: int, **fields: Any) -> list[str]:
        job = Job(id="a.3", group="a", index=3, command=("sim",), memory_per_task=size, **fields)
        words = sbatch_options([job], Label.of([job], "RUN", "ID", "BATCH"), {})
        return [word for word in words if word.startswith("--mem")]

    mebi = 1 << 20
    assert memory(300 * mebi) == ["--mem=300M"]
    assert memory(300 * mebi + 1, nodes=2, tasks=2) == ["--mem=301M"]
    assert memory(100 * mebi, tasks=2, cores_per_task=3) == ["--mem-per-cpu=34M"]
    assert memory(0) == []


def test_two_requests_of_memory_are_rejected() -> None:
    options = {"slurm": {"mem": "4G"}}
    job = Job(
        id="a.3", group="a", index=3, command=("sim",), memory_per_task=1 << 30, options=options
    )
    assert "'memory_per_task' and 'mem' both request memory" in (SlurmExecutor().wrong(job) or "")


def test_the_job_around_this_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = ensemble_executors()
    assert record.inside is not None
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert record.inside() == ""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert record.inside() == "Slurm job 7 with 2 nodes"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # after 'scontrol requeue'
    assert "started again ('--tag TAG --or-resume' continues a run)" in record.inside()
