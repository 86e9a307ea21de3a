"""Tests of a job's batch script."""

from __future__ import annotations

from ensemble_slurm import ensemble_executors

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
