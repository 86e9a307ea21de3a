"""Tests of batches and their sbatch options."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from click.testing import CliRunner
from ensemble_slurm import JOB_OPTIONS, OPTIONS
from ensemble_slurm.commands import query_environment, submit_environment
from ensemble_slurm.executor import SCRIPT_LIMIT, SlurmExecutor
from ensemble_slurm.job_names import COMMENT_LIMIT, Label, format_indices, parse_indices
from ensemble_slurm.sbatch import launcher, sbatch_options

from ensemble_core import Job
from ensemble_core.cli.main import main

#: Identities of two runs with the same tag.
RUN, OTHER = "3f9c2a1100000001", "07e5d04400000002"


def job(index: int, *command: str, group: str = "sim", **fields: Any) -> Job:
    return Job(
        id=f"{group}.{index}", group=group, index=index, command=command or ("true",), **fields
    )


def options(given: Job, *others: Job, **site: str) -> list[str]:
    jobs = [given, *others]
    return sbatch_options(jobs, Label.of(jobs, "melt-1", RUN, "k1_1"), site)


# -- names ---------------------------------------------------------------------------------------


def test_a_batch_is_recognized_by_its_comment() -> None:
    label = Label("my run: 1", RUN, "ens_a1b2_3", "sim", (0, 1, 2, 7))
    assert Label.from_comment(label.comment, RUN) == label
    assert Label.from_comment(label.comment, OTHER) is None
    assert Label.from_comment("somebody else's", RUN) is None
    assert [label.job(task) for task in (0, 3, 4, -1)] == ["sim.0", "sim.7", None, None]


def test_a_contiguous_batch_is_recognized_by_its_name() -> None:
    label = Label("r", RUN, "k_1", "sim-a", tuple(range(5000, 6000)))
    assert label.name.startswith("sim-a.5000-5999@")
    found = Label.from_name(label.name, RUN)
    assert found is not None
    assert found.indices == label.indices
    assert Label.from_name(label.name, OTHER) is None
    assert Label.from_name("bash", RUN) is None


def test_a_truncated_name_does_not_identify_jobs() -> None:
    label = Label("r", RUN, "k_1", "sim", tuple(range(0, 100, 2)))
    assert label.name.startswith("sim.0..98@")
    assert Label.from_name(label.name, RUN) is None


@pytest.mark.parametrize("suffix", ["-3", "~2", "-3~2"])
def test_retried_and_resubmitted_jobs_are_recognized_by_comment_and_name(
    suffix: str,
) -> None:
    label = Label("r", RUN, "k_1", "sim-a", (5, 6, 7), suffix)
    assert [label.job(task) for task in range(3)] == [
        f"sim-a.{index}{suffix}" for index in (5, 6, 7)
    ]
    assert label.name.startswith(f"sim-a.5-7{suffix.replace('-', '+')}@")
    assert Label.from_comment(label.comment, RUN) == label
    by_name = Label.from_name(label.name, RUN)
    assert by_name is not None
    assert (by_name.indices, by_name.suffix) == (label.indices, suffix)


@pytest.mark.parametrize("suffix", ["", "-3~2"])
@pytest.mark.parametrize("form", ["{} cost=3", "project:x {}", "a {} 7", "{}; checked", "({})"])
def test_a_site_may_add_to_the_comment(form: str, suffix: str) -> None:
    label = Label("r", RUN, "k_1", "sim-a", (5, 6, 7), suffix)
    assert Label.from_comment(form.format(label.comment), RUN) == label
    assert Label.from_comment(form.format(label.comment), OTHER) is None


@pytest.mark.parametrize(
    "indices", [[0], [0, 1], [3, 5, 6, 7, 9], [7, 3, 4], list(range(0, 50, 2))]
)
def test_formatted_indices_are_parsed_back(indices: list[int]) -> None:
    assert parse_indices(format_indices(indices)) == indices


# -- batches -------------------------------------------------------------------------------------


def test_retries_and_resubmissions_are_not_in_the_array_of_the_first() -> None:
    retried = replace(job(1), id="sim.1-1", attempt=1)
    requeued = replace(job(2), id="sim.2~1", requeued=1)
    executor = SlurmExecutor()
    assert len({executor.shape(each) for each in (job(0), retried, requeued)}) == 3


def test_jobs_of_a_batch_have_equal_requests_but_any_commands() -> None:
    shape = SlurmExecutor().shape
    first = job(0)
    assert shape(first) == shape(job(1, "run", "1", workdir="d1", environment={"A": "1"}))
    for other in (job(1, nodes=2, tasks=2), job(0, group="b"), job(3, duration=60.0)):
        assert shape(first) != shape(other)


def test_a_batch_with_many_gaps_is_described_in_its_comment() -> None:
    jobs = [job(index) for index in range(100_000, 104_000, 2)]
    tag, size = "a-run-with-a-name-20261121T074954-e9d91d", len(jobs)
    while not SlurmExecutor().fits(jobs[:size], tag):
        size //= 2
    assert size > 50
    label = Label.of(jobs[:size], tag, RUN, "ens_0123abcd_0123456789_1")
    assert len(label.comment) <= COMMENT_LIMIT


def test_a_script_stays_within_slurms_limit() -> None:
    jobs = [job(index, "run", "x" * 100_000) for index in range(40)]
    fits = SlurmExecutor().fits
    assert not fits(jobs, "r")
    assert fits(jobs[: SCRIPT_LIMIT // 101_000], "r")


# -- options of sbatch ---------------------------------------------------------------------------


def test_every_field_of_a_job_becomes_an_option_of_sbatch() -> None:
    said = options(job(0, nodes=2, tasks=8, cores_per_task=4, gpus_per_task=1, duration=90.0))
    for word in ("--nodes=2", "--ntasks=8", "--cpus-per-task=4", "--gpus-per-task=1", "--time=2"):
        assert word in said
    assert "--no-requeue" in said
    assert not [word for word in said if word.startswith(("--array", "--nice", "--hold"))]


def test_an_array_has_a_task_for_each_job() -> None:
    assert "--array=0-2" in options(job(5), job(6), job(9))


def test_a_groups_options_override_the_runs() -> None:
    given = job(
        0,
        options={
            "slurm": {
                "partition": "gpu",
                "mem": "4G",
                "exclusive": True,
                "requeue": True,
                "extra": ["--switches=1"],
            }
        },
    )
    said = options(given, partition="batch", account="physics")
    for word in (
        "--partition=gpu",
        "--account=physics",
        "--mem=4G",
        "--exclusive",
        "--requeue",
        "--switches=1",
    ):
        assert word in said
    assert "--partition=batch" not in said


def test_urgency_becomes_hold_and_nice() -> None:
    assert "--hold" in options(job(0, urgency=0))
    assert "--nice=200" in options(job(0, urgency=14))
    assert not [word for word in options(job(0, urgency=31)) if "nice" in word]


@pytest.mark.parametrize(
    ("extra", "good"),
    [("--switches=1", True), ("--comment-like=1", True), ("--comment=x", False), ("--array=0-9", False),
     ("--output=/x", False), ("--wait", False), ("-W", False), ("--requeue", False), ("rm -rf", False),
     ("--signal=B:USR1@120", True), ("--comment-like=a b", True), ("--mail-type END", False), ("-N2", False)],
)  # fmt: skip
def test_options_that_would_lose_jobs_are_rejected(extra: str, good: bool) -> None:
    assert jsonschema_rs.is_valid(dict(JOB_OPTIONS), {"extra": [extra]}) is good


def test_unknown_options_and_invalid_values_are_rejected() -> None:
    assert jsonschema_rs.is_valid(
        dict(OPTIONS), {"partition": "a", "look": 5, "rate": 2, "listen": "none"}
    )
    for wrong in ({"partitoin": "a"}, {"look": 0}, {"rate": 0}):
        assert not jsonschema_rs.is_valid(dict(OPTIONS), wrong)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ("memory_per_task: 1G, options: {slurm: {mem: 2G}}", 1),
        ("memory_per_task: 1G, options: {slurm: {mem_per_cpu: '{M}G'}}", 1),
        ("memory_per_task: 1G, retry: {times: 1, with: {options: {slurm: {mem: 2G}}}}", 1),
        ("options: {slurm: {mem: 1G}}, retry: {times: 1, with: {memory_per_task: 2G}}", 1),
        ("memory_per_task: 1G, options: {slurm: {extra: ['--mem-per-gpu=4G']}}", 1),
        ("options: {slurm: {mem: 4G, mem_per_cpu: 1G}}", 1),
        ("options: {slurm: {mem: 4G, extra: [--mem-per-gpu=4G]}}", 1),
        ("memory_per_task: 1G, options: {slurm: {mem: null, nice: 1}}", 0),
        ("memory_per_task: 1G, options: {slurm: {extra: [--mem-bind=local]}}", 0),
        ("options: {slurm: {extra: [--mem=0]}}", 0),
        ("memory_per_task: 1G", 0),
    ],
)
def test_memory_that_is_requested_in_two_ways_is_refused_before_the_start(
    tmp_path: Path, fields: str, line: int
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        f"jobs: [{{name: a, command: 'x {{M}}', parameters: {{M: [1]}}, {fields}}}]\n"
        "rules: [{trigger: start, action: {name: submit}}]\n"
    )
    done = CliRunner().invoke(main, ["validate", "--executor", "slurm", str(file)])
    assert done.exit_code == (2 if line else 0), done.output
    if line:
        assert done.output.startswith(f"{file}:{line}:")
        named = "'(memory_per_task|mem)' and '(mem|mem_per_cpu|--mem-per-gpu)' both request memory"
        assert re.search(named, done.output)
        assert "hint: remove one of them" in done.output
        assert ("'memory_per_task: null'" in done.output) is ("memory_per_task" in fields)


def test_several_tasks_are_started_by_srun_unless_the_command_does_it() -> None:
    for launch, expected in (("auto", True), ("srun", True), ("none", False)):
        given = job(0, nodes=2, tasks=4, options={"slurm": {"launch": launch}})
        words = ["srun", "--input=none", "--nodes=2", "--ntasks=4"]
        assert (launcher(given)[:4] == words) is expected
    assert launcher(job(0)) == []


# -- environments --------------------------------------------------------------------------------


def test_an_outer_jobs_variables_affect_neither_jobs_nor_commands() -> None:
    outer = {
        "HOME": "/h", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "9", "SLURM_CONF": "/c", "PMI_RANK": "0",
        "SQUEUE_FORMAT": "%i", "SBATCH_ACCOUNT": "a", "SBATCH_WAIT": "1", "SCANCEL_INTERACTIVE": "1",
    }  # fmt: skip
    assert submit_environment(outer) == {"HOME": "/h", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a"}
    asked = query_environment(outer)
    assert "SQUEUE_FORMAT" not in asked
    assert asked["SLURM_TIME_FORMAT"] == "%s"


def test_jobs_are_looked_for_on_the_cluster_of_sbatch() -> None:
    assert query_environment({"SBATCH_CLUSTERS": "b"})["SLURM_CLUSTERS"] == "b"
    assert query_environment({"SLURM_CLUSTERS": "a"})["SLURM_CLUSTERS"] == "a"
