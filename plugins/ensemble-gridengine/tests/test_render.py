"""Test of the command line that submits a job to Grid Engine."""

from __future__ import annotations

from ensemble_gridengine import ensemble_executors

from ensemble_core import Job


def test_a_job_is_rendered_as_the_command_that_submits_it() -> None:
    (record,) = ensemble_executors()
    assert record.render is not None
    options = {"gridengine": {"resources": {"h_vmem": "4G"}, "queue": "long.q"}}
    job = Job(
        id="a.3", group="a", index=3, command=("sim", "x y"), tasks=4, duration=90.0, urgency=10,
        options=options,
    )  # fmt: skip
    made = record.render(job, {"environment": "smp", "project": "physics"})
    command, line = made.text.splitlines()
    for words in ("-pe smp 4", "-l h_vmem=4G", "-l h_rt=155", "-q long.q", "-P physics", "-p -300"):
        assert f" {words} " in command
    assert line == "sim 'x y'"
