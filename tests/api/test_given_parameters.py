"""Tests of parameters from functions called at each submit.

In the file: ``parameters: {x: {function: next_x}}``.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ensemble_core as ensemble
from ensemble_core.cli.main import main

COMMAND = [sys.executable, "-m", "ensemble_core.cli"]
FILE = """\
jobs:
  - name: sim
    command: echo y={x} {k}
    parameters: {x: {function: next_x}, k: [1, 2]}
    observe: {key-value: {fields: [y]}}
    result: {y: last.y}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: more, trigger: idle, name: sim, repetitions: 9, action: {name: submit, label: sim}}
custom: next_x.py
"""


def run(function: Any, *rules: Any, **fields: Any) -> ensemble.EnsembleRun:
    group = {
        "name": "sim",
        "command": "echo y={x}",
        "environment": {"K": "{k}"},
        "parameters": {"x": {"function": function}, "k": [1, 2]},
        "observe": {"key-value": {"fields": ["y"]}},
        "result": {"y": "last.y"},
    }
    start = {"trigger": "start", "action": {"name": "submit", "label": "sim"}}
    done = ensemble.run({"jobs": [{**group, **fields}], "rules": [start, *rules]}, executor="local")
    assert done is not None
    return done


def happened(done: ensemble.EnsembleRun) -> str:
    return CliRunner().invoke(main, ["events", done.tag]).output


def values(done: ensemble.EnsembleRun) -> list[tuple[Any, Any]]:
    return [(row["x"], row["k"]) for row in done.results()]


def test_function_gives_the_values_of_a_sweep_until_it_returns_none() -> None:
    asked = []

    def next_x(group: str, index: int, metrics: Any, results: list[dict[str, Any]]) -> Any:
        done = metrics["count.sim.success"]
        asked.append((group, index, done, threading.current_thread().name))
        asked.append([(row["index"], row["x"], row["k"], row["y"]) for row in results])
        return [None, [0.5, 2], "1.5"][(index // 2 + 1) % 3] if index else "7"

    more = {"trigger": "idle", "name": "sim", "repetitions": 9}
    done = run(next_x, {**more, "action": {"name": "submit", "label": "sim"}})
    assert done.exit_code == 0
    assert values(done) == [("7", 1), ("7", 2), ("1.5", 1), ("1.5", 2)]
    first = [(0, "7", 1, 7), (1, "7", 2, 7)]
    assert asked[::2] == [("sim", i, i, "custom functions") for i in (0, 2, 4)]
    assert asked[1::2] == [[], first, [*first, (2, "1.5", 1, 1.5), (3, "1.5", 2, 1.5)]]
    assert "no value for x: no jobs of sim submitted" in happened(done)


def test_lists_and_numpy_arrays_from_functions_are_combined() -> None:
    class Array:
        def tolist(self) -> list[float]:
            return [0.1 + 0.2, 3]

    def next_x(**kwargs: Any) -> Array:
        return Array()

    done = run(next_x)
    assert values(done) == [(0.3, 1), (0.3, 2), (3, 1), (3, 2)]


def test_concurrent_calls_get_different_indices() -> None:
    submit = {"name": "submit", "label": "sim"}
    again = {"trigger": "start", "action": [submit, submit]}

    def next_x(index: int, **kwargs: Any) -> int:
        return index

    done = run(next_x, again, parameters={"x": {"function": next_x}}, environment={})
    assert [row["x"] for row in done.results()] == [0, 1, 2]


def test_function_is_not_called_if_the_value_is_given_or_copied() -> None:
    asked = []

    def next_x(results: list[dict[str, Any]], **kwargs: Any) -> float:
        asked.append(len(results))
        return 5

    given = {"name": "submit", "label": "sim", "with": {"parameters": {"x": 4, "k": 9}}}
    vary = {"name": "vary", "parameters": {"k": 8}}
    like = {"trigger": "job-done", "name": "sim", "each": "job", "when": "k == 9", "action": vary}
    done = run(next_x, {"trigger": "idle", "name": "sim", "action": given}, like)
    assert values(done) == [(5, 1), (5, 2), (4, 9), (4, 8)]
    assert asked == [0]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (dict, "next_x: returned a dict for the parameter 'x' of 'sim'"),
        (lambda: [1, True], "returned a bool in a list"),
        (lambda: [[1]], "returned a list in a list"),
        (object, "returned a object"),
        (lambda: float("nan"), "returned nan"),
        (lambda: [1, -math.inf], "returned -inf"),
        (lambda: "a\0b", "a text with a NUL character"),
        (lambda: range(10**9), "returned a range"),
        (lambda: [1] * 1000001, "returned 1000001 values"),
        (lambda: 1 / 0, "next_x raised ZeroDivisionError: division by zero"),
    ],
)
def test_wrong_return_value_is_an_error_and_nothing_is_submitted(
    returned: Callable[[], object], told: str
) -> None:
    def next_x(group: str, index: int, metrics: Any, results: Any) -> Any:
        return returned()

    done = run(next_x)
    assert done.exit_code == 1
    assert values(done) == []
    assert told in happened(done)


def test_unknown_function_of_a_parameter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "next_x.py").write_text("def next_x(group, index, metrics, results): return 1\n")
    submit = "action: {name: submit, label: sim}}"
    asked = "{x: {function: next_x}}"
    wrongs = [
        ("function: next_x", "function: nextx", "e.yaml:4:32", "did you mean 'next_x'?"),
        ("custom: next_x.py\n", "", "there is no function 'next_x'", "def next_x(group"),
        ("function: next_x", "function: 3", "'function'", "a string"),
        ("function: next_x", "function: next_x, step: 2", "unknown key 'step'"),
        (
            submit,
            submit.replace("}", ", with: {parameters: {x: {function: other}, k: 1}}}", 1),
            "there is no function 'other'",
        ),
        (
            "trigger: idle, name: sim, repetitions: 9, " + submit,
            f"trigger: job-done, name: sim, action: {{name: vary, parameters: {asked}}}}}",
            "this action cannot take the value of 'x' from a function",
        ),
    ]
    file = tmp_path / "e.yaml"
    for right, wrong, *words in wrongs:
        assert FILE.count(right), right
        file.write_text(wrong.join(FILE.rsplit(right, 1)))
        found = CliRunner().invoke(main, ["validate", str(file)])
        assert found.exit_code == 2, found.output
        assert all(word in found.output for word in words), found.output
    file.write_text(FILE)
    found = CliRunner().invoke(main, ["validate", str(file)])
    assert found.exit_code == 0, found.output


def test_replay_never_calls_the_function_and_a_resume_repeats_an_interrupted_call(
    tmp_path: Path,
) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    (tmp_path / "next_x.py").write_text(
        "import os\n"
        "def next_x(group, index, metrics, results):\n"
        "    with open('called', 'a') as file:\n"
        "        print(index, len(results), file=file)\n"
        "    if index == 2 and not os.path.exists('killed'):\n"
        "        open('killed', 'w').close()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return None if index == 6 else index + 0.5\n"
    )

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    killed = ask("run", "--executor", "local", "e.yaml")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = ask("resume", "last")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    called = (tmp_path / "called").read_text()
    assert called.splitlines() == ["0 0", "2 2", "2 2", "4 4", "6 6"]
    replayed = ask("replay", "last")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert (tmp_path / "called").read_text() == called
    table = ask("results", "last", "--csv").stdout
    assert [line.split(",")[3] for line in table.splitlines()[1:]] == [
        "0.5", "0.5", "2.5", "2.5", "4.5", "4.5",
    ]  # fmt: skip


def test_rule_may_set_another_function_and_the_snapshot_has_it() -> None:
    def next_x(**kwargs: Any) -> int:
        return 1

    def other(results: list[dict[str, Any]], **kwargs: Any) -> int:
        return 10 * len(results)

    change = {"name": "set", "label": "sim", "with": {"parameters": {"x": {"function": "other"}}}}
    submit = {"name": "submit", "label": "sim"}
    later = {"trigger": "idle", "name": "sim", "action": [change, submit]}
    sim = {"name": "sim", "command": "echo {x}", "parameters": {"x": {"function": "next_x"}}}
    fixed = {"name": "fixed", "command": "echo {x}", "parameters": {"x": 1}}
    start = {"trigger": "start", "action": {"name": "submit"}}
    twice = {"trigger": "idle", "name": "fixed", "repetitions": 2}
    twice["action"] = [{**change, "label": "fixed"}, {**submit, "label": "fixed"}]
    done = ensemble.run(
        {"jobs": [sim, fixed], "rules": [start, later, twice], "custom": [next_x, other]},
        executor="local",
    )
    assert values_of(done, "sim") == [1, 10]
    # The group has no stored state before its first call.
    assert values_of(done, "fixed") == [1, 0, 10]
    assert "the function does not receive the job that finished before" in happened(done)
    replay = CliRunner().invoke(main, ["replay", done.tag])
    assert replay.exit_code == 0, replay.output
    assert "snapshots after event" in replay.output


def test_manual_submit_must_give_the_value() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def next_x(index: int, **kwargs: Any) -> int | None:
        asked.set()
        go_on.wait(120)
        return None

    start = {"trigger": "start", "action": {"name": "submit", "label": "sim"}}
    sim = {"name": "sim", "command": "echo {x}", "parameters": {"x": {"function": next_x}}}
    under_way = ensemble.run({"jobs": [sim], "rules": [start]}, executor="local", wait=False)
    assert asked.wait(120)
    try:
        with pytest.raises(ensemble.UsageError, match="'x' of 'sim' is computed by a function"):
            under_way.submit("sim")
        under_way.submit("sim", {"x": 3})
    finally:
        go_on.set()
    assert values_of(under_way.wait(120)) == [3]


def values_of(done: ensemble.EnsembleRun, group: str = "sim") -> list[Any]:
    return [row["x"] for row in done.results() if row["group"] == group]
