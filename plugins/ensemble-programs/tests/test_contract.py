"""The contract of programs, kept by the plugin of the README."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import metadata
from pathlib import Path
from typing import ClassVar

import pytest
from ensemble_programs import Outcome, Program, checkpoints, outcome
from ensemble_programs.actions import fill_patterns, split_command
from ensemble_testing import ObserverContract, ProgramContract

from ensemble_core import Action, CallContext, EnsembleError, Row
from ensemble_core.model.rules import Rule

README = Path(__file__).parents[1] / "README.md"
TEXT = (
    README.read_text("utf-8")
    if README.is_file()
    else str(metadata("ensemble-programs").json["description"])
)
_PLUGIN, _SUITE = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)


def shown_plugin() -> Program:
    names: dict[str, object] = {}
    exec(compile(_PLUGIN, "README.md", "exec"), names)  # noqa: S102 - it is the page's code
    program = names["COOLING"]
    assert isinstance(program, Program)
    return program


class TestCooling(ProgramContract):
    program = shown_plugin()
    logs = Path(__file__).parent / "logs"
    ends: ClassVar = {
        "complete.log": ("complete", "done", 300),
        "killed.log": ("unfinished", "the log has no end", 200),
        "stopped.log": ("unfinished", "it stopped at 100 of 300", 100),
        "unbounded.log": ("diverged", "energy is not bounded", 100),
        "nan.log": ("diverged", "energy is not finite at 50", 50),
        "wrong.log": ("failed", "error: no such potential", None),
    }
    rows: ClassVar = {"complete.log": (7, Row({"step": 300, "energy": -1.3}, 300))}
    checkpoint = "last.restart"
    commands = (
        "cooling input.dat",
        "mpirun -n 4 cooling input.dat",
        "srun --exact /opt/bin/cooling --restart=old input.dat",
        "apptainer exec x.sif cooling input.dat",
        "sh wrap.sh cooling input.dat",
    )

    def test_the_suite_of_the_readme_is_this_one(self) -> None:
        shown = set(re.findall(r'"(\w+\.log)"', _SUITE))
        assert shown <= {*self.ends}


class TestObserver(ObserverContract):
    (plugin,) = TestCooling.program.observers()
    options: ClassVar = {"columns": ["energy"], "converged": {"energy": {"within": 9, "window": 1}}}
    sample = b"Cooling 1.2\nstep 0 energy -1\nstep 50 energy -1.5\nstep 100 energy -2\n"
    rows: ClassVar = [
        Row({"step": 0, "energy": -1, "energy.mean": -1}, 0),
        Row(
            {"step": 50, "energy": -1.5, "energy.mean": -1.25, "energy.drift": 0.25}
            | {"Converged": 1},
            50,
        ),
        Row({"step": 100, "energy": -2, "energy.mean": -1.5, "energy.drift": 0.25}, 100),
    ]
    bad_options: ClassVar = [{"log": ""}, {"columns": []}, {"columns": ["energie"]}]


def found(text: str, tmp_path: Path, status: int | None = 0, over: bool = True) -> Outcome:
    (tmp_path / "cooling.log").write_text(text)
    return outcome.read(TestCooling.program, str(tmp_path / "cooling.log"), status, over=over)


HEAD = "Cooling 1.2\nsteps = 300\nstep 50 energy -1\n"


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (0, "unfinished", "exited with 0, but the log has no end"),
        (9, "unfinished", "SIGKILL"),
        (15, "unfinished", "SIGTERM"),
        (11, "failed", "SIGSEGV"),
        ((128 + 11) << 8, "failed", "SIGSEGV"),
        ((128 + 15) << 8, "unfinished", "SIGTERM"),
        (1 << 8, "failed", "exited with 1"),
        (None, "unfinished", "no end"),
    ],
)
def test_a_log_without_an_end_is_explained_by_the_wait_status(
    status: int | None, kind: str, words: str, tmp_path: Path
) -> None:
    ended = found(HEAD, tmp_path, status)
    assert ended.kind == kind
    assert words in ended.message


def test_a_log_without_an_end_of_a_job_that_may_run_is_running(tmp_path: Path) -> None:
    assert found(HEAD, tmp_path, None, over=False).kind == "running"


def test_errors_in_standard_error_count(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("error: disk quota exceeded\n")
    (tmp_path / "cooling.log").write_text(HEAD)
    ended = outcome.read(
        TestCooling.program,
        str(tmp_path / "cooling.log"),
        0,
        accounts=[str(tmp_path / "err"), str(tmp_path / "missing")],
    )
    assert (ended.kind, ended.message) == ("failed", "error: disk quota exceeded")


def test_the_newest_part_of_a_log_decides(tmp_path: Path) -> None:
    for number, text in ((9, HEAD), (10, HEAD + "step 300 energy -2\ndone\n")):
        (tmp_path / f"cooling.part{number}.log").write_text(text)
    ended = outcome.read(TestCooling.program, str(tmp_path / "cooling.*log"), 0)
    assert ended.kind == "complete"


def test_of_two_checkpoints_the_preferred_one_is_found_although_it_is_older(tmp_path: Path) -> None:
    import os

    for name, time in (("state.cpt", 1000), ("state_prev.cpt", 2000), ("empty.cpt", 3000)):
        (tmp_path / name).write_text("" if name == "empty.cpt" else "x")
        os.utime(tmp_path / name, (time, time))
    patterns = ("*.cpt", "*_prev.cpt")
    search = checkpoints.find(str(tmp_path), patterns, lambda path: None)
    assert search.newest == str(tmp_path / "state.cpt")
    assert search.passed == ((str(tmp_path / "empty.cpt"), "it is empty"),)
    search = checkpoints.find(
        str(tmp_path), patterns, lambda path: None if "prev" in path else "it is truncated"
    )
    assert search.newest == str(tmp_path / "state_prev.cpt")


def test_the_programs_words_begin_with_its_name() -> None:
    program = TestCooling.program
    command = ["mpirun", "-n", "4", "/opt/cooling", "a"]
    assert split_command(program, command) == (["mpirun", "-n", "4"], ["/opt/cooling", "a"])
    with pytest.raises(EnsembleError, match="does not name cooling"):
        split_command(program, ["sh", "-c", "cooling a"])


def test_a_parameter_of_a_job_is_not_a_pattern() -> None:
    job = {"job": "a.0", "group": "a", "index": 0, "parameters": {"name": "x[1]*"}}
    assert fill_patterns("{name}-{index}.*", job) == ["x[[]1][*]-0.*"]
    assert fill_patterns(["a", "{name}"], job) == ["a", "x[[]1][*]"]


def continued(program: Program, folder: Path, attempt: int, **job: object) -> list[str]:
    """Return the messages of the action that continues an attempt."""
    name = f"md.0-{attempt}" if attempt else "md.0"
    (folder / "last.restart").write_text("x")
    fields = {
        "job": name, "group": "md", "index": 0, "attempt": attempt, "command": ["cooling"],
        "workdir": str(folder), "started": 1e9, "status": 9, "outcome": "fail", **job,
    }  # fmt: skip
    spec = Action({"name": "cooling-continue"})
    rule = Rule({"id": "rule-1", "trigger": "job-finish", "action": spec.spec})
    run = program.actions()[1].run
    assert run is not None
    told = run(CallContext({}, {"type": "job"}, rule, spec, {}, fields))
    return [
        each.spec["message"] for each in told if isinstance(each, Action) and each.name == "log"
    ]


@pytest.mark.parametrize(
    ("steps", "attempt", "stuck"),
    [([100, 200], 1, False), ([200, 200], 1, True), ([200, None], 1, True), ([200], 0, False),
     ([None, 200], 1, False), ([100, 200, 200], 2, True), ([200, 200, 300], 2, False)],
)  # fmt: skip
@pytest.mark.parametrize("kept", ["one log", "parts", "stdout"])
def test_a_job_that_continues_without_progress_is_reported(
    steps: list[int | None], attempt: int, stuck: bool, kept: str, tmp_path: Path
) -> None:
    program, job = TestCooling.program, dict[str, str]()
    log = tmp_path / "cooling.log"
    for number, step in enumerate(steps):
        text = "Cooling 1.0\nsteps = 300\n" + (f"step {step} energy -1\n" if step else "")
        if kept == "one log":
            log.write_text((log.read_text() if number else "") + text)
        elif kept == "parts":
            (tmp_path / f"cooling.part{number}.log").write_text(text)
        else:
            job["stdout"] = str(tmp_path / (f"md.0-{number}.out" if number else "md.0.out"))
            Path(job["stdout"]).write_text(text)
    name = {"one log": "cooling.log", "parts": "cooling.part*.log", "stdout": None}[kept]
    messages = continued(replace(program, log=name), tmp_path, attempt, **job)
    told = [each for each in messages if "progress" in each]
    assert bool(told) == stuck, told
    if stuck:
        assert "the attempt before at step 200" in told[0]
