"""Groups that are larger than this machine are refused before a run submits anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until

import ensemble_core
from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.local import executor
from ensemble_core.plugin.discovery import discover

STUDY = """\
jobs:
  - {{name: small, command: touch began}}
  - name: large
    command: "true"
    {field}
rules:
  - {{trigger: start, action: {{name: submit, label: small}}}}
  - {{trigger: idle, name: small, action: {{name: submit, label: large{change}}}}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "study.yaml"


def call(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def run(file: Path, *words: str) -> Result:
    return call("run", "-q", "--executor", "local", "--slots", 2, *words, "--state", "s", file)


@pytest.mark.parametrize(
    ("field", "change", "place", "said"),
    [
        (
            "tasks: 64",
            ", with: {workdir: x}",
            "5:12",
            "64 tasks need 64 cores, but there are 2 here",
        ),
        ("nodes: 4", "", "5:12", "4 tasks need 4 cores, but there are 2 here"),
        ("cores_per_task: 8", "", "5:21", "1 task of 8 cores needs 8 cores, but there are 2 here"),
        ("gpus_per_task: 1", "", "5:20", "the job needs 1 GPU, but 0 are configured"),
        ("memory_per_task: 9T", "", "5:22", "needs 9T of memory, but there are 4G here"),
        ("urgency: 16", ", with: {tasks: 3}", "8:85", "3 tasks need 3 cores, but there are 2"),
        ("retry: {times: 1, with: {memory_per_task: 5G}}", "", "5:47", "needs 5G of memory, but"),
    ],
)
def test_a_group_larger_than_this_machine_is_refused_before_anything_starts(
    file: Path, field: str, change: str, place: str, said: str
) -> None:
    file.write_text(STUDY.format(field=field, change=change))
    done = run(file, "-o", "memory=4G", "-o", "gpus=0")
    assert done.exit_code == 2, done.output
    assert f"study.yaml:{place}: large: " in done.output
    assert said in done.output
    assert done.output.count("study.yaml:") == 1
    assert not Path("began").exists()
    with pytest.raises(FileErrors, match="large: "):
        ensemble_core.run(file, executor="local", options={"slots": 2, "memory": "4G", "gpus": 0})


def test_a_submit_without_a_label_submits_every_group(file: Path) -> None:
    file.write_text(
        "jobs: [{name: small, command: touch began}, {name: large, command: x, tasks: 64}]\n"
        "rules: [{trigger: start, action: {name: submit}}]\n"
    )
    done = run(file)
    assert done.exit_code == 2, done.output
    assert "large: 64 tasks need 64 cores, but there are 2 here" in done.output
    assert not Path("began").exists()


def test_a_file_for_a_cluster_is_valid_on_a_laptop(file: Path) -> None:
    file.write_text(STUDY.format(field="tasks: 64\n    memory_per_task: 9T", change=""))
    for words in ([], ["--executor", "local"], ["--executor", "local", "-o", "slots=2"]):
        assert call("validate", *words, file).exit_code == 0
    assert call("validate", "--executor", "local", "--resolved", file).exit_code == 0
    assert run(file, "--dry-run").exit_code == 0
    assert ensemble_core.load(file, executor="local").groups["large"].tasks == 64


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("tasks: 3", ["--slots", "3"]),
        ("tasks: 3", ["--max-slots", "3"]),
        ("gpus_per_task: 2", ["-o", "gpus=2"]),
        ("memory_per_task: 1T", ["-o", "memory=2T"]),
        ('retry: {times: 1, with: {memory_per_task: "= 2 * memory_per_task"}}', []),
        ('retry: {times: 1, with: {cores_per_task: "= 2 ** (attempt + 1)"}}', []),
    ],
)
def test_what_options_make_room_for_or_a_retry_computes_runs(
    file: Path, field: str, words: list[str]
) -> None:
    never = STUDY.replace("trigger: idle", "trigger: job-fail")
    file.write_text(never.format(field=field, change=""))
    done = run(file, *words)
    assert done.exit_code == 0, done.output
    assert Path("began").exists()


def test_a_group_that_is_only_submitted_smaller_or_by_no_rule_is_accepted(file: Path) -> None:
    more = "  - {name: unused, command: x, tasks: 64}\nrules:"
    text = STUDY.format(field="tasks: 64", change=", with: {tasks: 1}").replace("rules:", more)
    file.write_text(text)
    done = run(file)
    assert done.exit_code == 0, done.output
    # One of its submits needs all tasks.
    again = (
        "  - {trigger: idle, name: large, action: {name: submit, label: large, with: {count: 2}}}\n"
    )
    file.write_text(text + again)
    done = run(file)
    assert done.exit_code == 2, done.output
    assert done.output.count("64 tasks need 64 cores, but there are 2 here") == 1


def test_a_node_that_is_avoided_cannot_be_this_one(file: Path) -> None:
    file.write_text(STUDY.format(field=f"avoid: [{os.uname().nodename}]", change=""))
    done = run(file)
    assert done.exit_code == 2
    assert "study.yaml:5:12: large: the job must avoid" in done.output


UNFINISHED = """\
jobs: [{name: large, command: "sh -c 'touch began; sleep 60'", tasks: 2, count: 2}]
rules: [{trigger: start, action: {name: submit, label: large}}]
"""


@pytest.mark.parametrize("words", [[], ["--accept-changes"]])
def test_a_resume_on_a_smaller_machine_is_refused_and_keeps_the_jobs(
    file: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(UNFINISHED)
    cores = {0, 1}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    begun = ensemble_core.run(
        file, executor="local", options={"bind": False}, state="s", tag="t", wait=False
    )
    wait_until(Path("began").exists)
    begun.stop()
    begun.wait(60)
    cores.remove(1)
    if words:
        file.write_text(UNFINISHED.replace("sleep 60", "sleep 61"))
    done = call("resume", "--state", "s", "t", *words)
    assert done.exit_code == 2, done.output
    assert "unfinished jobs of 'large' can never run here" in done.output
    assert "2 tasks need 2 cores, but there are 1 here" in done.output
    assert "--set jobs.large.tasks=" in done.output
    # A larger machine, or a smaller request, still runs all of them.
    file.write_text(UNFINISHED.replace("sleep 60", "true").replace("tasks: 2", "tasks: 1"))
    done = call("resume", "--state", "s", "t", "--accept-changes", "-q")
    assert done.exit_code == 0, done.output


def test_many_groups_measure_this_machine_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = "".join(f"  - {{name: g{n}, command: x}}\n" for n in range(50))
    rules = "".join(
        f"  - {{trigger: start, action: {{name: submit, label: g{n}}}}}\n" for n in range(50)
    )
    registry, measured = discover(), []
    measure = executor.machine_memory
    monkeypatch.setattr(executor, "machine_memory", lambda: measured.append(1) or measure())
    text = f"jobs:\n{groups}rules:\n{rules}"
    record = registry.lookup("executor", "local")
    load_text(text, registry, executor=record, options={"slots": 2}, purpose="run")
    assert len(measured) == 1
