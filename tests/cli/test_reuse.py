"""Reuse of earlier runs (``--reuse``): matching jobs, counts, bad input, and kills."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import ensemble_core
from ensemble_core.api.notebook import as_html
from ensemble_core.cli.main import main
from ensemble_core.runtime.identities import Identities
from ensemble_core.runtime.input_files import FileDigests

#: Ensemble A of the docs page: eight jobs, whose U is 1 3 5 5 4 8 2 2.
FILE = """
name: study
jobs:
  - name: g
    command: "{here}/x {L} {T} {replica}"
    parameters: {L: [16, 32], T: [1, 2]}
    replicas: 2
    observe: {json-lines: {fields: [u]}}
    result: {U: mean.u}
rules:
  - {trigger: start, action: {name: submit, label: g}}
"""
PROGRAM = """#!/bin/sh
echo "$*" >> DONE
case "$1 $2 $3" in
  "16 1 0") u=1;; "16 1 1") u=3;; "16 2 0") u=5;; "16 2 1") u=5;;
  "32 1 0") u=4;; "32 1 1") u=8;; "32 2 0") u=2;; "32 2 1") u=2;; *) u=9;;
esac
echo "{\\"u\\": $u}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reuse")


@pytest.fixture(autouse=True)
def study(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study, in the same folder for all tests, so that they can share its first run."""
    folder = home / "study"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ENSEMBLE_STATE", str(folder / "state"))
    Path("e.yaml").write_text(FILE)
    program = Path("x")
    program.write_text(PROGRAM.replace("DONE", str(folder / "done")))
    program.chmod(0o755)
    return folder


def change(old: str, new: str) -> None:
    text = Path("e.yaml").read_text()
    assert old in text
    Path("e.yaml").write_text(text.replace(old, new))


def ensemble(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == code, result.output
    return result


def run(tag: str, *more: str, code: int = 0) -> Result:
    return ensemble("run", "e.yaml", "--executor", "local", "--tag", tag, *more, code=code)


def first_run() -> None:
    """Run the unchanged study as r1, or copy such a run of an earlier test."""
    kept = Path("../first")
    if kept.exists():
        shutil.copytree(kept, ".", dirs_exist_ok=True)
    else:
        run("r1")
        shutil.copytree(".", kept)


def jobs(tag: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(ensemble("jobs", tag, "--csv").output)))


def metrics(tag: str) -> dict[str, float]:
    found = json.loads(ensemble("metrics", tag, "--json").output)
    return {row["metric"]: row["value"] for row in found}


def results(tag: str) -> list[float]:
    return [float(row["U"]) for row in jobs(tag)]


def executed() -> list[str]:
    """Return the arguments of the program's calls, in order of their ends."""
    return Path("done").read_text().splitlines() if Path("done").exists() else []


def test_jobs_of_an_earlier_run_are_reused_and_the_others_run() -> None:
    first_run()
    change("T: [1, 2]", "T: [1, 2, 3]")
    run("r2", "--reuse", "r1")
    found = metrics("r2")
    assert found["count.g.reused"] == 8
    assert found["used.jobs"] == 4
    assert sorted(executed()[8:]) == ["16 3 0", "16 3 1", "32 3 0", "32 3 1"]
    rows = jobs("r2")
    assert [row["T"] for row in rows if not row["reused"]] == [*"3333"]
    assert sorted(row["reused"] for row in rows if row["reused"]) == [f"r1/g.{n}" for n in range(8)]
    assert results("r2") == [1, 3, 5, 5, 9, 9, 4, 8, 2, 2, 9, 9]


def test_touched_program_is_unchanged_and_an_edited_one_is_not() -> None:
    first_run()
    os.utime("x", (1, 1))
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 8
    Path("x").write_text(Path("x").read_text() + "# edited\n")
    run("r3", "--reuse", "r1", "--reuse", "r2")
    assert metrics("r3")["count.g.reused"] == 0
    assert len(executed()) == 16


def test_touched_file_compared_by_time_counts_as_changed() -> None:
    Path("big.h5").write_text("data")
    change("    replicas: 2", '    replicas: 2\n    inputs: [{path: "{here}/big.h5", by: mtime}]')
    run("r1")
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 8
    os.utime("big.h5", (1, 1))
    run("r3", "--reuse", "r1")
    assert metrics("r3")["count.g.reused"] == 0


def test_large_file_compared_by_time_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    content = FileDigests._content

    def noted(self: FileDigests, path: str, status: os.stat_result) -> str:
        read.append(path)
        return content(self, path, status)

    monkeypatch.setattr(FileDigests, "_content", noted)
    Path("big.h5").write_text("data")
    change('{replica}"', '{replica} {here}/big.h5"')
    change("    replicas: 2", '    replicas: 2\n    inputs: [{path: "{here}/big.h5", by: mtime}]')
    run("r1")
    assert {Path(path).name for path in read} == {"x"}


def test_added_or_removed_file_of_a_pattern_counts_as_a_change() -> None:
    change("    replicas: 2", '    replicas: 2\n    inputs: ["{here}/conf/*.dat", "{here}/one"]')
    Path("conf").mkdir()
    Path("conf/a.dat").write_text("a")
    run("r1")
    Path("conf/b.dat").write_text("b")
    run("r2", "--reuse", "r1")
    Path("conf/b.dat").unlink()
    Path("one").write_text("1")
    run("r3", "--reuse", "r1")
    run("r4", "--reuse", "r3")
    counted = [metrics(tag)["count.g.reused"] for tag in ("r2", "r3", "r4")]
    assert counted == [0, 0, 8]


def test_missing_input_equals_no_missing_input() -> None:
    change("    replicas: 2", '    replicas: 2\n    inputs: ["{here}/conf/*.dat"]')
    run("r1")
    shown = ensemble("validate", "e.yaml", "--reuse", "r1").output
    assert "  g: 0 of 8 reused; not: 8 {here}/conf/*.dat (missing)\n" in shown
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 0
    why = ensemble("why", "r2", "--reuse", "g.0").output
    assert why == "g.0: not reused: {here}/conf/*.dat: missing\n"


def test_warning_names_groups_none_of_whose_files_is_compared() -> None:
    first_run()
    text = Path("e.yaml").read_text()
    Path("e.yaml").write_text(
        text.replace('"{here}/x {L} {T} {replica}"', "[sh, -c, 'echo {L} {T} {replica}']")
    )
    shown = ensemble("validate", "e.yaml", "--reuse", "r1").stderr
    assert "some files of 'g' may not be compared, because the command is a shell script" in shown
    Path("e.yaml").write_text(text.replace("{here}/x ", "echo "))
    result = ensemble("validate", "e.yaml", "--reuse", "r1")
    assert "no file of 'g' is compared, because the command names no file" in result.stderr
    assert "    compares no file\n" in result.stdout
    assert result.stderr.count("--reuse:") == 1
    change("    replicas: 2", '    replicas: 2\n    inputs: ["{here}/x"]')
    result = ensemble("validate", "e.yaml", "--reuse", "r1")
    assert "--reuse:" not in result.stderr
    assert "    compares {here}/x\n" in result.stdout


def test_job_whose_input_changed_during_the_job_is_not_reused() -> None:
    Path("x").write_text(
        PROGRAM.replace("DONE", str(Path("done").absolute())) + 'echo >> "$0.in"\n'
    )
    change("    replicas: 2", '    replicas: 2\n    inputs: ["{here}/x.in"]')
    Path("x.in").write_text("")
    run("r1")
    Path("x.in").write_text("")
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 0


def test_input_deleted_during_the_job_does_not_fail_the_run() -> None:
    Path("x").write_text(PROGRAM.replace("DONE", str(Path("done").absolute())) + 'rm -f "$0.in"\n')
    change("    replicas: 2", '    replicas: 2\n    inputs: ["{here}/x.in"]')
    Path("x.in").write_text("")
    run("r1")
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 0


def test_each_earlier_job_is_reused_once_from_the_first_run() -> None:
    change("parameters: {L: [16, 32], T: [1, 2]}", "parameters: {L: [16], T: [1]}")
    change("{replica}", "0")
    change("replicas: 2", "count: 2")
    run("r1")
    run("r2")
    change("count: 2", "count: 5")
    run("r3", "--reuse", "r2", "--reuse", "r1")
    assert [row["reused"].partition("/")[0] for row in jobs("r3")] == ["r2", "r2", "r1", "r1", ""]


def test_moved_study_is_reused(study: Path) -> None:
    first_run()
    moved = study / "moved"
    moved.mkdir()
    for name in ("e.yaml", "x"):
        shutil.move(name, moved / name)
    os.chdir(moved)
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 8


def test_reused_run_can_be_reused() -> None:
    first_run()
    run("r2", "--reuse", "r1")
    ensemble("clean", "r1", "--yes")
    run("r3", "--reuse", "r2")
    assert metrics("r3")["count.g.reused"] == 8
    assert len(executed()) == 8


def test_group_can_be_excluded_from_reuse() -> None:
    first_run()
    change("    replicas: 2", "    replicas: 2\n    reuse: false")
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 0
    assert len(executed()) == 16


def test_resources_and_result_are_ignored_but_the_environment_counts() -> None:
    first_run()
    change("result: {U: mean.u}", "result: {U: 2 * mean.u}\n    duration: 1h\n    workdir: other")
    run("r2", "--reuse", "r1")
    assert results("r2") == [2, 6, 10, 10, 8, 16, 4, 4]
    change("    duration: 1h", '    environment: {OMP_NUM_THREADS: "1"}')
    run("r3", "--reuse", "r1")
    assert metrics("r3")["count.g.reused"] == 0


def test_failed_jobs_are_not_reused() -> None:
    Path("x").write_text(PROGRAM.replace("DONE", str(Path("done").absolute())) + "exit $3\n")
    run("r1", code=1)
    run("r2", "--reuse", "r1", code=1)
    assert metrics("r2")["count.g.reused"] == 4
    assert len(executed()) == 12


def test_retry_is_reused_unless_it_continued() -> None:
    Path("x").write_text(
        PROGRAM.replace("DONE", str(Path("done").absolute()))
        + '[ -e "$0.$1$2$3" ] || { touch "$0.$1$2$3"; exit 1; }\n'
    )
    change("    replicas: 2", "    replicas: 2\n    retry: {times: 1}")
    run("r1")
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 8
    for mark in Path().glob("x.*"):
        mark.unlink()
    change("retry: {times: 1}", "retry: {times: 1, continue: true}")
    run("r3")
    run("r4", "--reuse", "r3")
    assert metrics("r4")["count.g.reused"] == 0


def test_limits_and_at_once_ignore_reused_jobs_and_the_duration_is_the_original() -> None:
    first_run()
    change("    replicas: 2", "    replicas: 2\n    at_once: 1")
    Path("e.yaml").write_text(
        "limits: {jobs: 1, core_hours: 0.0001}\n" + Path("e.yaml").read_text()
    )
    run("r2", "--reuse", "r1")
    first, second = jobs("r1"), jobs("r2")
    for before, after in zip(first, second, strict=True):
        assert float(after["duration"]) == pytest.approx(float(before["duration"]), abs=1e-5)
        assert float(after["core_hours"]) == 0
    found = metrics("r2")
    assert (found["used.jobs"], found["used.core_hours"]) == (0, 0)


RULES = """
  - trigger: observed
    name: g
    repetitions: 100
    when: u > 4
    action: {name: log, message: "{job} u={u}"}
  - {trigger: job-success, name: g, repetitions: 100, action: {name: log, message: "{job} ended"}}
  - trigger: job-done
    name: g
    each: [L]
    repetitions: 100
    action: {name: log, message: "{job} {mean.U:.2f} {count.success}"}
  - {trigger: idle, name: g, action: {name: log, message: "idle {mean.U:.2f}"}}
  - {trigger: metric, name: count.g.success, when: value >= 8, action: {name: log, message: all}}
"""


def told(tag: str, *more: str) -> list[str]:
    """Return the messages that the run's rules logged, sorted."""
    found = map(json.loads, run(tag, *more, "--json").output.splitlines())
    return sorted(each["message"] for each in found if each.get("type") == "log")


def test_reused_job_triggers_the_same_rules_as_a_real_one() -> None:
    change("replicas: 2", "replicas: 2\n    at_once: 1")  # so that jobs end in order
    Path("e.yaml").write_text(Path("e.yaml").read_text() + RULES)
    first = told("r1")
    assert len(first) == 3 + 8 + 8 + 2
    assert told("r2", "--reuse", "r1") == first
    assert metrics("r2")["count.g.reused"] == 8


def test_why_shows_reused_jobs_and_the_differences_of_others() -> None:
    first_run()
    change("T: [1, 2]", "T: [2, 3]")
    run("r2", "--reuse", "r1")
    lines = ensemble("why", "r2", "--reuse").output.splitlines()
    assert "g.0: reused: r1/g.2" in lines
    assert "g.2: not reused: no job with L=16, T=3, replica 0" in lines
    assert ensemble("why", "r2", "--reuse", "g.0").output == "g.0: reused: r1/g.2\n"
    change("{replica}", "{replica} --fast")
    run("r3", "--reuse", "r1")
    shown = ensemble("why", "r3", "--reuse", "g.0").output
    assert "'{here}/x' 16 2 0 --fast' (r1/g.2)" in shown


def test_why_names_a_changed_option_and_a_changed_file() -> None:
    change("{T} {replica}", "{T} {replica} --sweeps 2000")
    run("r1")
    change("--sweeps 2000", "--sweeps 4000")
    run("r2", "--reuse", "r1")
    shown = ensemble("why", "r2", "--reuse", "g.3").output
    assert shown == "g.3: not reused: '--sweeps 2000' → '--sweeps 4000' (r1/g.3)\n"
    Path("x").write_text(Path("x").read_text() + "# edited\n")
    run("r3", "--reuse", "r2")
    shown = ensemble("why", "r3", "--reuse", "g.3").output
    assert shown == "g.3: not reused: {here}/x changed (r2/g.3)\n"
    refusal = ensemble("why", "r1", "--reuse", code=2).output
    assert "was started without --reuse" in refusal
    assert "no job 'g.99'" in ensemble("why", "r3", "--reuse", "g.99", code=2).output


def test_validate_counts_jobs_that_would_be_reused() -> None:
    first_run()
    change("T: [1, 2]", "T: [2, 3]")
    shown = ensemble("validate", "e.yaml", "--reuse", "r1").output
    assert "  g: 4 of 8 reused; not: 4 parameters\n" in shown
    Path("x").write_text(Path("x").read_text() + "# edited\n")
    shown = ensemble("validate", "e.yaml", "--reuse", "r1").output
    assert "  g: 0 of 8 reused; not: 4 {here}/x, 4 parameters\n" in shown
    assert "r7" in ensemble("validate", "e.yaml", "--reuse", "r7", code=2).output


#: An executor with an option that says what runs, and one that says where.
BOXES = """
from ensemble_core import ExecutorPlugin, hookimpl
from ensemble_core.local.executor import LocalExecutor

TEXT = {"type": "string"}
OPTIONS = {"properties": {"image": {**TEXT, "x-ensemble-compared": True}, "queue": TEXT}}

@hookimpl
def ensemble_executors():
    record = ExecutorPlugin(
        name="boxes", summary="Boxes", build=lambda options: LocalExecutor(), options=OPTIONS,
        job_options=OPTIONS, capabilities=LocalExecutor.capabilities,
    )
    return [record]
"""


def test_jobs_with_another_image_are_not_reused() -> None:
    Path("boxes.py").write_text(BOXES)
    change("replicas: 2", "replicas: 2\n    options: {boxes: {image: 'sim:1', queue: a}}")
    words = ("--executor", "boxes", "--plugin", "boxes.py")
    run("r1", *words)
    change("queue: a", "queue: b")
    run("r2", *words, "--reuse", "r1")
    assert len(executed()) == 8
    change("sim:1", "sim:2")
    shown = ensemble("validate", "e.yaml", "--plugin", "boxes.py", "--reuse", "r1").output
    assert "  g: 0 of 8 reused; not: 8 options\n" in shown
    run("r3", *words, "--reuse", "r1")
    assert len(executed()) == 16
    shown = ensemble("why", "r3", "--reuse", "g.3").output
    assert "options boxes: {'image': 'sim:1'} → {'image': 'sim:2'} (r1/g.3)" in shown


def test_jobs_with_another_image_for_the_whole_run_are_not_reused() -> None:
    Path("boxes.py").write_text(BOXES)
    words = ("--executor", "boxes", "--plugin", "boxes.py")
    run("r1", *words, "-o", "image=sim:1", "-o", "queue=a")
    run("r2", *words, "-o", "image=sim:1", "-o", "queue=b", "--reuse", "r1")
    assert len(executed()) == 8
    shown = ensemble("validate", "e.yaml", "--plugin", "boxes.py", "--reuse", "r1").output
    assert "  g: 8 of 8 reused\n" in shown
    run("r3", *words, "-o", "image=sim:2", "--reuse", "r1")
    assert len(executed()) == 16


def test_validate_compares_a_job_with_one_of_its_own_group() -> None:
    Path("in.dat").write_text("before")
    Path("two.yaml").write_text(
        "jobs: [{name: a, command: echo}, {name: b, command: cat in.dat},"
        " {name: c, command: echo, inputs: [pipe]}]\n"
        "rules: [{trigger: start, action: [{name: submit, label: a}, {name: submit, label: b},"
        " {name: submit, label: c}]}]\n"
    )
    os.mkfifo("pipe")
    ensemble("run", "two.yaml", "--executor", "local", "--tag", "r1")
    Path("in.dat").write_text("after")
    shown = ensemble("validate", "two.yaml", "--reuse", "r1").output
    assert "  a: 1 of 1 reused\n" in shown
    assert "  b: 0 of 1 reused; not: 1 in.dat\n" in shown
    assert "  c: 0 of 1 reused; not: 1 pipe (neither a file nor a folder)\n" in shown


def test_rule_can_cancel_a_reused_job() -> None:
    first_run()
    with Path("e.yaml").open("a") as file:
        file.write(
            "  - {trigger: observed, name: g, each: job, when: u == 8, action: {name: cancel}}\n"
        )
    run("r2", "--reuse", "r1", code=0)
    assert [row["outcome"] for row in jobs("r2")].count("cancelled") == 1
    assert metrics("r2")["count.g.reused"] == 7
    ensemble("replay", "r2")


def test_run_that_ends_during_reuse_cancels_the_rest() -> None:
    first_run()
    with Path("e.yaml").open("a") as file:
        file.write(
            "  - {trigger: observed, name: g, when: u == 5, action: {name: terminate, exit_code: 7}}\n"
        )
    run("r2", "--reuse", "r1", code=7)
    outcomes = [row["outcome"] for row in jobs("r2")]
    assert outcomes.count("success") == 2
    assert outcomes.count("cancelled") == 6
    ensemble("replay", "r2")


def test_replay_with_reused_jobs_gives_identical_decisions() -> None:
    first_run()
    change("T: [1, 2]", "T: [1, 2, 3]")
    run("r2", "--reuse", "r1")
    assert "byte for byte" in ensemble("replay", "r2").output


def test_reused_job_must_have_the_files_that_rules_use() -> None:
    first_run()
    with Path("e.yaml").open("a") as file:
        file.write(
            '  - {trigger: job-success, name: g, action: {name: log, message: "{job.stdout}"}}\n'
        )
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 8
    shutil.rmtree("state/runs/r1/output")
    run("r3", "--reuse", "r1")
    assert metrics("r3")["count.g.reused"] == 0


def test_python_api_reuses_a_run() -> None:
    first_run()
    again = ensemble_core.run("e.yaml", executor="local", tag="r2", reuse=["r1"])
    assert again.exit_code == 0
    assert {row["reused"].partition("/")[0] for row in again.jobs()} == {"r1"}
    assert "<th>reused</th>" in as_html(again)
    assert "<th>reused</th>" not in as_html(ensemble_core.open_run("r1"))
    assert len(executed()) == 8


# -- bad input -------------------------------------------------------------------------------------


def refused(words: str, *more: str) -> None:
    """Check that a run is rejected with this message and exit code 2, and leaves nothing."""
    before = executed()
    result = run("new", *more, code=2)
    assert words in result.output
    assert result.output.lower().count("error") == 1
    assert executed() == before
    assert not Path("state/runs/new").exists()


def test_unknown_run_for_reuse_is_rejected() -> None:
    first_run()
    refused("r7", "--reuse", "r7")


def test_dry_run_with_reuse_points_to_validate() -> None:
    refused("ensemble validate FILE --reuse RUN", "--reuse", "r1", "--dry-run")


def test_damaged_run_for_reuse_is_rejected() -> None:
    first_run()
    journal = Path("state/runs/r1/journal.db")
    content = bytearray(journal.read_bytes())
    at = content.rindex(b"identified")
    content[at : at + 4] = b"XXXX"
    journal.write_bytes(content)
    refused("damaged", "--reuse", "r1")


def test_run_that_others_can_write_is_not_reused() -> None:
    first_run()
    Path("state/runs/r1").chmod(0o777)
    refused("others can write", "--reuse", "r1")


def test_run_of_another_version_is_not_reused() -> None:
    import sqlite3

    run("r1")
    with sqlite3.connect("state/runs/r1/journal.db") as journal:
        journal.execute("PRAGMA user_version=99")
    refused("another version of Ensemble", "--reuse", "r1")


def test_live_run_is_not_reused(study: Path) -> None:
    slow = study / "slow.yaml"
    slow.write_text(
        "jobs: [{name: s, command: sleep 60}]\nrules: [{trigger: start, action: {name: submit, label: s}}]\n"
    )
    words = [sys.executable, "-m", "ensemble_core.cli", "run", str(slow), "--executor", "local"]
    process = subprocess.Popen([*words, "--tag", "r1"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        refused("is live", "--reuse", "r1")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_run_without_job_identities_causes_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(Identities, "identify", lambda self, jobs: None)
        run("r1")
    assert "no job identities" in run("r2", "--reuse", "r1").output
    assert metrics("r2")["count.g.reused"] == 0


# -- kills -----------------------------------------------------------------------------------------


def start(tag: str, *more: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-c",
        KILLED,
        "run",
        "e.yaml",
        "--executor",
        "local",
        "--tag",
        tag,
        *more,
    ]
    return subprocess.Popen(words, env={**os.environ, **env})


#: Controller that is killed just before or after it journals an answer.
KILLED = """
import os, signal, sys
from ensemble_core.journal import writer
from ensemble_core.cli.main import main

write = writer.JournalWriter._write
def killed(self, first, batch, snapshot):
    answered = any(entry[0].type == "looked-up" for entry in batch)
    if answered and os.environ["WHEN"] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, first, batch, snapshot)
    if answered:
        os.kill(os.getpid(), signal.SIGKILL)
writer.JournalWriter._write = killed
main()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_during_reuse_neither_loses_nor_duplicates_a_job(when: str) -> None:
    first_run()
    change("replicas: 2", "replicas: 3")
    assert start("r2", "--reuse", "r1", env={"WHEN": when}).wait(60) == -signal.SIGKILL
    ensemble("resume", "r2")
    found = metrics("r2")
    assert (found["count.g.reused"], found["count.g.success"]) == (8, 12)
    assert found["used.jobs"] == 4
    assert len(executed()) == 12
    ensemble("replay", "r2")


def test_recorded_answers_do_not_need_the_earlier_run() -> None:
    first_run()
    change("replicas: 2", "replicas: 3")
    start("r2", "--reuse", "r1", env={"WHEN": "after"}).wait(60)
    ensemble("clean", "r1", "--yes")
    ensemble("resume", "r2")
    assert metrics("r2")["count.g.reused"] == 8
    reused = sorted(float(row["U"]) for row in jobs("r2") if row["reused"])
    assert reused == [1, 2, 2, 3, 4, 5, 5, 8]
    assert len(executed()) == 12


def test_jobs_run_with_a_warning_if_the_earlier_run_is_deleted() -> None:
    first_run()
    start("r2", "--reuse", "r1", env={"WHEN": "before"}).wait(60)
    ensemble("clean", "r1", "--yes")
    result = ensemble("resume", "r2")
    assert "no more jobs of r1 are reused" in result.output
    assert metrics("r2")["count.g.reused"] == 0
    assert len(executed()) == 16


def test_simulated_reused_jobs_take_no_time() -> None:
    first_run()
    change("T: [1, 2]", "T: [1, 2, 3]")
    with Path("e.yaml").open("a") as file:
        file.write("simulate: {jobs: {g: {duration: 10m, rows: {every: 5m, columns: {u: 1}}}}}\n")
    words = ("e.yaml", "--cores-per-node", "4", "--reuse", "r1", "--tag", "s1")
    ensemble("simulate", *words)
    assert metrics("s1")["count.g.reused"] == 8
    assert metrics("s1")["used.core_hours"] == pytest.approx(4 / 6, rel=1e-3)
    refused("was simulated", "--reuse", "s1")


# -- tables ----------------------------------------------------------------------------------------

TABLES = """
results:
  all: {of: g, columns: {U: U}, where: T < 9}
  old: {of: 'g(reused != "")', columns: {U: U}}
  t: {of: g, by: [T], columns: {U: mean.U, new: n - reused, old: 'mean.U(reused != "")', k: 'count.done(reused != "")'}}
  wide: {of: g, by: [L], pivot: T, columns: {U: mean.U, r: reused}, where: reused > 1, order: -reused}
"""


def table(tag: str, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(ensemble("results", tag, name, "--csv").output)))


def test_tables_show_and_use_the_number_of_reused_jobs() -> None:
    with Path("e.yaml").open("a") as file:
        file.write(TABLES)
    run("r1")
    assert "reused" not in table("r1", "all")[0]
    assert table("r1", "old") == []
    assert [row["k"] for row in table("r1", "t")] == ["0", "0"]
    change("T: [1, 2]", "T: [1, 2, 3]")
    run("r2", "--reuse", "r1")
    rows = table("r2", "all")
    assert [row["reused"] for row in rows[:4]] == [f"r1/g.{n}" for n in range(4)]
    assert [row["reused"] for row in rows[4:6]] == ["", ""]
    assert [row["reused"] for row in table("r2", "old")] == [f"r1/g.{n}" for n in range(8)]
    found = [(row["T"], row["new"], row["k"], row["reused"]) for row in table("r2", "t")]
    assert found == [("1", "0", "4", "4"), ("2", "0", "4", "4"), ("3", "4", "0", "0")]
    assert [row["old"] for row in table("r2", "t")] == ["4", "3.5", ""]
    assert [(row["L"], row["reused"]) for row in table("r2", "wide")] == [("16", "4"), ("32", "4")]
    assert [(row["r[2]"], row["r[3]"]) for row in table("r2", "wide")] == [("2", "0")] * 2
    opened = ensemble_core.open_run("r2", state="state")
    assert [row["reused"] for row in opened.results("t")] == [4, 4, 0]


def test_parameter_named_reused_takes_precedence_in_tables() -> None:
    change("T: [1, 2]}", "T: [1, 2], reused: [7]}")
    with Path("e.yaml").open("a") as file:
        file.write("results: {t: {of: g, by: [reused], columns: {U: mean.U}}, all: {of: g}}\n")
    run("r1")
    run("r2", "--reuse", "r1")
    assert metrics("r2")["count.g.reused"] == 8
    assert table("r2", "t") == [{"reused": "7", "U": "3.75"}]
    assert {row["reused"] for row in table("r2", "all")} == {"7"}


def test_recorded_run_with_reused_jobs_passes_as_a_rule_test(study: Path) -> None:
    with Path("e.yaml").open("a") as file:
        file.write(
            "  - {trigger: observed, name: g, each: job, repetitions: 9, when: u > 4,"
            " action: {name: log, message: 'much {job}'}}\n"
            "  - {trigger: job-done, name: g, repetitions: 99, when: max.t.U > 4,"
            " action: {name: log, message: 'done {job}'}}\n"
            "results: {t: {of: g, by: [T], columns: {U: mean.U, new: n - reused}}}\n"
        )
    run("r1")
    change("T: [1, 2]", "T: [1, 2, 3]")
    run("r2", "--reuse", "r1")
    text = ensemble("test", "--record", "r2").stdout
    Path("r2.ensemble-test.yaml").write_text(text)
    assert text.count("reused: {job:") == 8
    assert "rows: [{u: 1.0}], duration:" in text or "rows: [{u: 1}], duration:" in text
    ensemble("test", "r2.ensemble-test.yaml")
