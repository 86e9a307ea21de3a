"""Test of the command line that submits a job to Grid Engine."""

from __future__ import annotations

from dataclasses import replace

import jsonschema_rs
import pytest
from ensemble_batch import Batch
from ensemble_gridengine import JOB_OPTIONS, ensemble_executors
from ensemble_gridengine.executor import GridEngineExecutor

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


def test_memory_is_requested_for_each_slot() -> None:
    job = Job(
        id="a.3", group="a", index=3, command=("sim",), tasks=2, cores_per_task=2,
        memory_per_task=1 << 30,
    )  # fmt: skip
    batch = Batch("ens_t", (job,), "script")
    assert "h_vmem=512M" in GridEngineExecutor(environment="smp").words(batch)
    words = GridEngineExecutor(environment="smp", memory="h_vmem,mem_free").words(batch)
    assert {"h_vmem=512M", "mem_free=512M"} <= {*words}
    both = replace(job, options={"gridengine": {"resources": {"h_vmem": "4G"}}})
    wrong = GridEngineExecutor(environment="smp").wrong(both)
    assert "'memory_per_task' and the resource 'h_vmem'" in (wrong or "")


def test_the_job_around_this_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = ensemble_executors()
    assert record.inside is not None
    for name in ("JOB_ID", "SGE_JOB_SPOOL_DIR", "NHOSTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JOB_ID", "7")
    assert record.inside() == ""  # other programs have such a variable
    monkeypatch.setenv("SGE_JOB_SPOOL_DIR", "/spool")
    assert record.inside() == "Grid Engine job 7 with 1 node"
    monkeypatch.setenv("RESTARTED", "1")  # after 'qmod -rj'
    assert "started again ('--tag TAG --or-resume' continues a run)" in record.inside()


def test_further_options_of_qsub_come_before_the_script() -> None:
    options = {"gridengine": {"extra": ["-m e", "-hold_jid 17", "-soft"]}}
    job = Job(id="a.3", group="a", index=3, command=("sim",), options=options)
    words = GridEngineExecutor().words(Batch("ens_t", (job,), "script"))
    assert " ".join(words).endswith(" -m e -hold_jid 17 -soft script")


@pytest.mark.parametrize("extra", ["-t 1-3", "-sync y", "-pe smp 2", "m e"])
def test_options_of_qsub_that_the_run_sets_are_rejected(extra: str) -> None:
    assert not jsonschema_rs.is_valid(dict(JOB_OPTIONS), {"extra": [extra]})
