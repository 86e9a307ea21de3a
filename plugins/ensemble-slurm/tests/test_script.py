"""From jobs to batches, and from a batch to what sbatch is given."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from ensemble_batch import Place, Records, Sent, run_command
from ensemble_slurm.batches import SCRIPT_LIMIT, batches
from ensemble_slurm.commands import job_environment, query_environment
from ensemble_slurm.names import COMMENT_LIMIT, Batch, format_indices, parse_indices
from ensemble_slurm.options import JOB_OPTIONS, OPTIONS
from ensemble_slurm.script import Address, Scripts

from ensemble_core import Job


def job(index: int, *command: str, group: str = "sim", **fields: Any) -> Job:
    return Job(
        id=f"{group}.{index}", group=group, index=index, command=command or ("true",), **fields
    )


def scripts(folder: Path, **more: Any) -> Scripts:
    return Scripts("melt-1", "t0ken", str(folder), str(folder), **more)


def options(given: Job, *others: Job, **site: str) -> list[str]:
    batch = Batch("melt-1", "k1", given.group, tuple(each.index for each in (given, *others)))
    return Scripts("melt-1", "t", "/spool", "/here", site=site).options(batch, given)


# -- names ---------------------------------------------------------------------------------------


def test_a_batch_is_known_again_from_its_comment() -> None:
    batch = Batch("my run: 1", "a1b2", "sim", (0, 1, 2, 7), 3)
    assert Batch.from_comment(batch.comment, "my run: 1") == batch
    assert Batch.from_comment(batch.comment, "another") is None
    assert Batch.from_comment("somebody else's", "my run: 1") is None
    assert [batch.job(task) for task in (0, 3, 4, -1)] == ["sim.0", "sim.7", None, None]


def test_a_contiguous_batch_is_known_from_its_name_too() -> None:
    batch = Batch("r", "", "sim-a", tuple(range(5000, 6000)))
    assert batch.name.startswith("sim-a.5000-5999@")
    found = Batch.from_name(batch.name, "r")
    assert found is not None
    assert found.jobs() == batch.jobs()
    assert Batch.from_name(batch.name, "another") is None
    assert Batch.from_name("bash", "r") is None


@pytest.mark.parametrize("suffix", ["-3", "~2", "-3~2"])
def test_jobs_that_are_tried_again_or_handed_on_again_are_known_by_comment_name_and_record(
    suffix: str, tmp_path: Path
) -> None:
    batch = Batch("r", "k", "sim-a", (5, 6, 7), 2, suffix)
    assert batch.jobs() == [f"sim-a.5{suffix}", f"sim-a.6{suffix}", f"sim-a.7{suffix}"]
    assert batch.name.startswith(f"sim-a.5-7{suffix.replace('-', '+')}@")
    assert Batch.from_comment(batch.comment, "r") == batch
    by_name = Batch.from_name(batch.name, "r")
    assert by_name is not None
    assert by_name.jobs() == batch.jobs()
    before, jobs = Records(str(tmp_path)), {job: {} for job in batch.jobs()}
    before.send(Sent("k", jobs, [batch.comment], 1.0))
    after = Records(str(tmp_path))
    assert Batch.from_comment(after.sent["k"].names[-1], "r") == batch


def test_another_attempt_or_a_job_handed_on_again_is_no_task_of_the_array_of_the_first() -> None:
    retried = replace(job(1), id="sim.1-1", attempt=1)
    requeued = replace(job(2), id="sim.2~1", requeued=1)
    found = batches([job(0), retried, requeued], "r", largest=1001)
    assert [[each.id for each in batch] for batch in found] == [["sim.0"], ["sim.1-1"], ["sim.2~1"]]


@pytest.mark.parametrize("indices", [[0], [0, 1], [3, 5, 6, 7, 9], list(range(0, 50, 2))])
def test_numbers_in_slurms_notation_are_read_back(indices: list[int]) -> None:
    assert parse_indices(format_indices(indices)) == indices


# -- batches -------------------------------------------------------------------------------------


def test_equal_jobs_become_one_array_also_if_they_run_different_things() -> None:
    jobs = [job(index, "run", str(index), workdir=f"d{index}") for index in range(100)]
    assert [len(batch) for batch in batches(jobs, "r", largest=1001)] == [100]


def test_what_slurm_is_asked_for_must_be_equal() -> None:
    jobs = [job(0), job(1, nodes=2, tasks=2), job(2), job(0, group="b"), job(3, duration=60.0)]
    found = [[each.id for each in batch] for batch in batches(jobs, "r", largest=1001)]
    assert found == [["sim.0", "sim.2"], ["sim.1"], ["b.0"], ["sim.3"]]


def test_arrays_are_as_large_as_the_site_allows() -> None:
    jobs = [job(index) for index in range(2500)]
    assert [len(batch) for batch in batches(jobs, "r", largest=1001)] == [1001, 1001, 498]
    assert [len(batch) for batch in batches(jobs[:3], "r", largest=1)] == [1, 1, 1]
    assert [len(batch) for batch in batches(jobs[:2], "r", largest=0)] == [1, 1]


def test_a_batch_with_many_gaps_still_says_in_its_comment_what_it_is() -> None:
    jobs = [job(index) for index in range(100_000, 104_000, 2)]
    found = batches(jobs, "a-run-with-a-name-20261121T074954-e9d91d", largest=1001)
    assert sum(map(len, found)) == 2000
    for batch in found:
        indices = tuple(each.index for each in batch)
        assert (
            len(Batch("a-run-with-a-name-20261121T074954-e9d91d", "k" * 8, "sim", indices).comment)
            <= COMMENT_LIMIT
        )


def test_a_script_stays_smaller_than_slurm_takes() -> None:
    jobs = [job(index, "run", "x" * 100_000) for index in range(40)]
    found = batches(jobs, "r", largest=1001)
    assert len(found) > 1
    assert all(sum(len(each.command[1]) for each in batch) <= SCRIPT_LIMIT for batch in found)


def test_urgent_jobs_go_first() -> None:
    found = batches([job(0), job(1, urgency=31), job(2, urgency=0)], "r", largest=10)
    assert [batch[0].urgency for batch in found] == [31, 16, 0]


# -- options of sbatch ---------------------------------------------------------------------------


def test_every_field_of_a_job_is_an_option_of_sbatch() -> None:
    said = options(job(0, nodes=2, tasks=8, cores_per_task=4, gpus_per_task=1, duration=90.0))
    for word in ("--nodes=2", "--ntasks=8", "--cpus-per-task=4", "--gpus-per-task=1", "--time=2"):
        assert word in said
    assert "--no-requeue" in said
    assert not [word for word in said if word.startswith(("--array", "--nice", "--hold"))]


def test_an_array_has_a_task_for_each_job() -> None:
    assert "--array=0-2" in options(job(5), job(6), job(9))


def test_a_groups_options_go_before_the_runs() -> None:
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
     ("--output=/x", False), ("--wait", False), ("-W", False), ("--requeue", False), ("rm -rf", False)],
)  # fmt: skip
def test_options_that_would_lose_jobs_are_refused(extra: str, good: bool) -> None:
    assert jsonschema_rs.is_valid(dict(JOB_OPTIONS), {"extra": [extra]}) is good


def test_unknown_options_and_wrong_values_are_refused() -> None:
    assert jsonschema_rs.is_valid(
        dict(OPTIONS), {"partition": "a", "look": 5, "rate": 2, "listen": "none"}
    )
    for wrong in ({"partitoin": "a"}, {"look": 0}, {"rate": 0}):
        assert not jsonschema_rs.is_valid(dict(OPTIONS), wrong)


# -- the script, run by a bash of this machine ---------------------------------------------------


def play(
    tmp_path: Path, *given: Job, task: int | None = None, **environment: str
) -> tuple[int, list[list[str]]]:
    """Run the batch script as Slurm would; its exit code and the words of its reports, from files,
    for nobody listens."""
    for name in ("reports", "void"):
        (tmp_path / "spool" / name).mkdir(parents=True, exist_ok=True)
    writer = scripts(tmp_path / "spool", grace=0.3, address=Address(0, ()))
    batch = Batch("melt-1", "k1", given[0].group, tuple(each.index for each in given))
    placed = []
    for each in given:
        kept = (str(tmp_path / f"{each.id}.out"), str(tmp_path / f"{each.id}.err"))
        out, err = each.stdout or kept[0], each.stderr or kept[1]
        placed.append((each, Place(os.path.join(tmp_path, each.workdir or "."), out, err, kept)))
    slurm = {"SLURM_JOB_ID": "7"}
    if task is not None:
        slurm |= {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
    script = tmp_path / "slurm_script"
    script.write_bytes(writer.write(batch, placed))
    done = subprocess.run(
        ["bash", str(script)], cwd=tmp_path, timeout=150,
        env={"PATH": os.environ["PATH"], **slurm, **environment}, capture_output=True, check=False,
    )  # fmt: skip
    files = sorted((tmp_path / "spool" / "reports").iterdir())
    told = [line.split()[2:] for file in files for line in file.read_text().splitlines()]
    # The start is told beside the job, and may be written after its end.
    return done.returncode, sorted(told, key=lambda words: words[3] == "end")


def test_a_job_runs_with_exactly_the_words_it_was_given(tmp_path: Path) -> None:
    odd = ["", "a b", "it's", '"$HOME"', "`x`", "$(y)", "a\nb", "*", "\\", "é", "-n"]
    given = job(3, "python3", "-c", "import sys; print(sys.argv[1:])", *odd)
    code, reports = play(tmp_path, given)
    assert code == 0
    assert (tmp_path / "sim.3.out").read_text() == f"{odd}\n"
    assert not (tmp_path / "sim.3.err").exists()
    assert [(words[0], words[1], words[2], words[3]) for words in reports] == [
        ("sim.3", "7", "0", "start"),
        ("sim.3", "7", "0", "end"),
    ]


def test_a_task_of_an_array_runs_what_is_its_own(tmp_path: Path) -> None:
    given = [
        job(index, "sh", "-c", f"echo {index} $A $ENSEMBLE_INDEX $ENSEMBLE_JOB_ID; pwd; exit {index}",
            workdir=f"d{index}", environment={"A": f"a{index}"})
        for index in (4, 5, 9)
    ]  # fmt: skip
    code, reports = play(tmp_path, *given, task=2)
    assert code == 9
    assert (tmp_path / "sim.9.out").read_text() == f"9 a9 9 sim.9\n{tmp_path}/d9\n"
    assert reports[-1][:5] == ["sim.9", "7_2", "0", "end", "9"]


def test_a_jobs_own_environment_does_not_reach_the_wrapper(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere", "_ens_dir": "/x", "not-a-name": "1", "IFS": "x"}
    given = job(0, "/usr/bin/env", environment=environment)
    code, reports = play(tmp_path, given)
    assert code == 0
    lines = (tmp_path / "sim.0.out").read_text().splitlines()
    assert {f"{name}={value}" for name, value in environment.items()} <= set(lines)
    assert not [line for line in lines if "t0ken" in line]
    assert reports[-1][3] == "end"


def test_a_missing_command_is_told_and_named(tmp_path: Path) -> None:
    code, reports = play(tmp_path, job(0, "there-is-no-such-command"))
    assert code == 127
    assert "there-is-no-such-command" in (tmp_path / "sim.0.err").read_text()
    assert reports[-1][3:5] == ["end", "127"]


def test_a_time_limit_ends_also_what_the_job_put_into_the_background(tmp_path: Path) -> None:
    given = job(
        0, "sh", "-c", "sleep 1000 & echo $!; trap '' TERM; while :; do sleep 1; done", duration=0.5
    )
    code, reports = play(tmp_path, given)
    assert code == 137
    assert reports[-1][3:6] == ["end", "137", "timeout"]
    pid = int((tmp_path / "sim.0.out").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()


def test_output_is_appended_to_and_an_unwritable_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    play(tmp_path, job(0, "echo", "after", stdout=str(tmp_path / "log")))
    assert (tmp_path / "log").read_text() == "before\nafter\n"
    code, reports = play(tmp_path, job(1, stdout="/proc/none/x"))
    assert code == 1
    (failed,) = [words for words in reports if words[0] == "sim.1"]
    assert failed[3:5] == ["fail", "output"]
    assert "/proc/none/x" in failed


def test_an_attempt_that_was_given_up_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "spool" / "void").mkdir(parents=True)
    (tmp_path / "spool" / "void" / "k1.1").touch()
    assert play(tmp_path, job(0, "touch", "ran")) == (0, [])
    assert not (tmp_path / "ran").exists()


def test_several_tasks_are_started_by_srun_unless_the_command_does_that(tmp_path: Path) -> None:
    batch = Batch("melt-1", "k1", "sim", (0,))
    place = Place("/w", "/o", "/e")
    for launch, expected in (("auto", True), ("srun", True), ("none", False)):
        given = job(0, nodes=2, tasks=4, options={"slurm": {"launch": launch}})
        assert (
            b"srun --input=none --nodes=2 --ntasks=4"
            in scripts(tmp_path).write(batch, [(given, place)])
        ) is expected
    assert b"_ens_launch=()" in scripts(tmp_path).write(batch, [(job(0), place)])


# -- environments --------------------------------------------------------------------------------


def test_an_outer_jobs_variables_do_not_reach_jobs_nor_change_what_commands_print() -> None:
    outer = {
        "HOME": "/h", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "9", "SLURM_CONF": "/c", "PMI_RANK": "0",
        "SQUEUE_FORMAT": "%i", "SBATCH_ACCOUNT": "a", "SBATCH_WAIT": "1", "SCANCEL_INTERACTIVE": "1",
    }  # fmt: skip
    assert job_environment(outer) == {"HOME": "/h", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a"}
    asked = query_environment(outer)
    assert "SQUEUE_FORMAT" not in asked
    assert asked["SLURM_TIME_FORMAT"] == "%s"


def test_a_command_that_does_not_answer_is_given_up_in_time() -> None:
    done = run_command(["sh", "-c", "echo said >&2; sleep 30"], dict(os.environ), deadline=0.3)
    assert done.code is None
    assert "said" in done.err
    assert "no answer within 0.3 s" in done.err
    assert run_command(["/no/such/command"], {}).code is None


def test_jobs_are_looked_for_on_the_cluster_that_sbatch_is_told() -> None:
    assert query_environment({"SBATCH_CLUSTERS": "b"})["SLURM_CLUSTERS"] == "b"
    assert query_environment({"SLURM_CLUSTERS": "a"})["SLURM_CLUSTERS"] == "a"
