"""Tests of ``or_resume``: a restarted program resumes its run with its current functions."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ensemble_core as ensemble
from ensemble_core.api.mapping_source import source_of
from ensemble_core.api.start import _changed_text
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.plugin.python_callables import Program

PROGRAM = """
import os, signal, sys, time
import ensemble_core as ensemble
import yaml
from ensemble_core.journal.reader import Journal
from pathlib import Path

if sys.argv[1:] == ["kill"] and hasattr(yaml, "CSafeDumper"):
    del yaml.CSafeDumper  # another PyYAML, which writes long texts in other lines

def heard(event, **others):
    with open("heard", "a") as file:
        file.write(event["job"] + "\\n")

study = {
    "jobs": [
        {"name": "quick", "command": "sh -c 'echo {i} >> ran'", "parameters": {"i": [0, 1]}},
        {"name": "long", "command": "sh -c 'echo long >> ran; while [ ! -e go ]; do sleep 0.05; done'"},
    ],
    "rules": [
        {"trigger": "start", "action": {"name": "submit"}},
        {"trigger": "job-fail", "action": {"name": "log", "message": "a long message " * 9}},
        {"trigger": "job-done", "repetitions": 9, "action": heard},
    ],
}
run = ensemble.run(study, executor="local", state="state", tag="t", or_resume=True, wait=False)
if sys.argv[1:] == ["kill"]:
    returned = 0  # calls of the function, on record
    while returned < 2 or run.report().groups[1].running < 1:
        time.sleep(0.02)
        with Journal(Path("state/runs/t/journal.db")) as journal:
            returned = sum(row.type == "call-returned" for row in journal.rows())
    os.kill(os.getpid(), signal.SIGKILL)
open("go", "w").close()
run.wait()
print(run.state, run.exit_code, run.metric("count.quick.done"), run.metric("count.long.done"))
"""


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, "program.py", *arguments], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a killed program. Each test must leave its run resumable or ended."""
    folder = tmp_path_factory.mktemp("killed")
    assert program(folder, "kill").returncode == -9
    yield folder
    (folder / "go").touch()  # ends the program's job


def test_simulated_run_is_not_resumed_with_real_jobs(killed: Path) -> None:
    def describe(simulated: bool) -> None:
        with contextlib.closing(JournalWriter(killed / "state" / "runs" / "t" / NAME)) as journal:
            journal.describe({"simulated": simulated})

    describe(True)
    refused = program(killed)
    describe(False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "run t was simulated" in refused.stderr


def test_run_that_others_can_write_is_not_resumed(killed: Path) -> None:
    """A resume executes the functions in its journal."""
    folder = killed / "state" / "runs" / "t"
    folder.chmod(0o777)
    refused = program(killed)
    folder.chmod(0o700)
    assert refused.returncode == 1
    assert "run t belongs to another user, or others can write in its folder" in refused.stderr


def test_restarted_program_resumes_and_runs_no_job_twice(killed: Path) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", "resume", "t", "--state", "state"],
        cwd=killed,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert "or_resume=True" in refused.stderr
    for _ in range(2):  # the second time, the run has ended
        done = program(killed)
        assert (done.stdout, done.stderr) == ("ended 0 2 1\n", "")
    assert sorted((killed / "ran").read_text().split()) == ["0", "1", "long"]
    assert sorted((killed / "heard").read_text().split()) == ["long.0", "quick.0", "quick.1"]


def test_changed_mapping_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sources = [
        source_of({"jobs": [{"name": "a", "parameters": {"x": x}}]}, Program()) for x in (1, 1.0)
    ]
    text = SimpleNamespace(text=sources[0].text, overrides=())
    journal = SimpleNamespace(texts=lambda: [text], about={"cwd": str(tmp_path)})
    past: Any = SimpleNamespace(journal=journal, tag="t")
    assert _changed_text(past, sources[0], [], accept=False) is None
    with pytest.raises(ensemble.UsageError, match="the mapping has changed since run t read it"):
        _changed_text(past, sources[1], [], accept=False)


def test_tag_of_another_ensembles_run_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "jobs: [{name: a, command: 'true'}]\nrules: [{trigger: start, action: {name: submit}}]\n"
    for name in ("one.yaml", "other.yaml"):
        Path(name).write_text(text)
    given = {"executor": "local", "state": "state", "tag": "t", "or_resume": True}
    assert ensemble.run("one.yaml", **given).exit_code == 0  # type: ignore[arg-type]
    with pytest.raises(ensemble.UsageError, match=r"from .*one\.yaml, not from .*other\.yaml"):
        ensemble.run("other.yaml", **given)  # type: ignore[arg-type]
    with pytest.raises(ensemble.UsageError, match="not from a Python mapping"):
        ensemble.run({"jobs": [], "rules": []}, **given)  # type: ignore[arg-type]
    with pytest.raises(ensemble.UsageError, match="needs a tag"):
        ensemble.run("one.yaml", executor="local", or_resume=True)
    with pytest.raises(ensemble.EnsembleError, match=r"cannot be combined with keep=False") as got:
        ensemble.run("one.yaml", executor="local", tag="t", or_resume=True, keep=False)
    assert got.value.code == "bad-option"


def test_accept_changes_runs_added_values_also_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[int] = []

    def heard(event: dict[str, Any], **others: Any) -> None:
        seen.append(event["job"])

    def study(*values: int, times: int = 1) -> dict[str, Any]:
        command = "sh -c 'echo {x} >> ran; test {x} != 2 -o $(wc -l < ran) -gt 4'"
        jobs = [{"name": "sim", "command": command, "parameters": {"x": list(values)}}]
        rules = [
            {"trigger": "start", "action": {"name": "submit"}},
            {"trigger": "job-done", "repetitions": 9, "action": heard},
        ]
        return {"jobs": [{**jobs[0], "at_once": 1, "retry": {"times": times}}], "rules": rules}

    given: dict[str, Any] = {"executor": "local", "state": "state", "tag": "t", "or_resume": True}
    assert ensemble.run(study(1, 2), **given).exit_code == 1
    with pytest.raises(ensemble.UsageError, match="accept_changes needs or_resume"):
        ensemble.run(study(1, 2), accept_changes=True)
    assert ensemble.run(study(1, 2, 3), **given).metric("count.sim.done") == 1  # it is over
    same = ensemble.run(study(1, 2), **given, accept_changes=True)
    assert (same.exit_code, same.metric("count.sim.done")) == (1, 1)
    run = ensemble.run(study(1, 2, 3, times=3), **given, accept_changes=True)
    assert (run.state, run.exit_code, run.metric("count.sim.done")) == ("ended", 0, 3)
    assert sorted(seen) == ["sim.0", "sim.1-2", "sim.2"]
    assert sorted(Path("ran").read_text().split()) == ["1", "2", "2", "2", "3"]
