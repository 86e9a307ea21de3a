"""Tests of ensembles as mappings: objects for groups and rules, callables instead of names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ensemble_core as ensemble
from ensemble_core.api.mapping_source import source_of
from ensemble_core.plugin.python_callables import Program

START = {"trigger": "start", "action": {"name": "submit", "label": "sim"}}


def group(**fields: Any) -> ensemble.JobGroup:
    given: dict[str, Any] = {
        "name": "sim",
        "command": ("echo", "x={x}"),
        "parameters": {"x": range(1, 4)},
        "observe": {"key-value": {}},
    }
    return ensemble.JobGroup(**{**given, **fields})


def run(*rules: Any, **given: Any) -> ensemble.EnsembleRun:
    parts = {key: given.pop(key) for key in ("statistics", "custom", "results") if key in given}
    return ensemble.run(
        {"jobs": [group()], "rules": [START, *rules], **parts}, executor="local", **given
    )


def test_groups_and_rules_are_objects_and_plain_data() -> None:
    done = run(
        ensemble.Rule(
            trigger="job-done", name="sim", action=ensemble.Action(name="log", message="{job}")
        ),
        results={"all": {"of": "sim", "columns": {"x": "x"}}},
    )
    assert done.exit_code == 0
    assert done.results("all") == [{"index": i, "x": i + 1} for i in range(3)]


def test_job_group_is_converted_with_its_non_default_fields() -> None:
    made = source_of(
        {
            "jobs": [
                group(
                    nodes=2,
                    duration=60.0,
                    replicated=True,
                    count=3,
                    at_once=1,
                    result={"E": ensemble.expression("last.x")},
                    workdir=Path("runs") / "{index}",
                ),
            ],
            "rules": [START],
        },
        Program(),
    )
    (checked,) = ensemble.load(__import__("yaml").safe_load(made.text)).groups.values()
    assert (checked.nodes, checked.duration, checked.count, checked.replicated) == (2, 60, 3, True)
    assert (checked.at_once, checked.workdir) == (1, "runs/{index}")
    assert list(checked.result) == ["E"]
    assert checked.size == 9


def test_strings_that_look_like_numbers_stay_strings() -> None:
    values = ["1e3", "010", "yes", "null", "~", "1:30", "ü ‑ \u2028 \x7f", "a: b", "{x}", "= 1"]
    text = source_of({"jobs": [group(parameters={"x": values})], "rules": []}, Program()).text
    checked = ensemble.load({"jobs": [group(parameters={"x": values[:-1]})], "rules": [START]})
    assert list(checked.groups["sim"].parameters["x"]) == values[:-1]
    assert "= 1" in text


def test_function_may_be_an_action_or_a_label() -> None:
    heard: list[Any] = []

    def look(metrics: Any, event: Any, rule: Any, **_: Any) -> ensemble.Action:
        heard.append((event["job"], metrics["count.sim.success"], rule.trigger))
        return ensemble.Action(name="log", message="looked at {job}")

    done = run(
        {"trigger": "job-success", "name": "sim", "repetitions": 2, "action": look},
        {"trigger": "job-done", "name": "sim", "action": [{"name": "custom", "label": look}]},
    )
    assert done.exit_code == 0
    assert sorted(rule for _, _, rule in heard) == ["job-done", "job-success", "job-success"]


def test_functions_may_be_given_under_custom_or_as_an_argument() -> None:
    heard: list[str] = []
    rules = [
        {"trigger": "start", "action": {"name": "custom", "label": name}} for name in ("one", "two")
    ]
    done = run(
        *rules,
        custom={"one": lambda **_: heard.append("one")},
        functions={"two": lambda **_: heard.append("two")},
    )
    assert (done.exit_code, heard) == (0, ["one", "two"])


def test_functions_given_with_a_file_are_available_like_its_custom_ones(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "jobs: [{name: a, command: 'true'}]\n"
        "rules:\n"
        "  - {trigger: start, action: {name: custom, label: mine}}\n"
        "  - {trigger: start, action: {name: custom, label: its}}\n"
        "  - {trigger: start, action: {name: submit}}\n"
        "custom: |\n  def its(**_): ...\n"
    )
    heard: list[str] = []
    given = {"mine": lambda **_: heard.append("mine")}
    assert ensemble.run(file, executor="local", functions=given).exit_code == 0
    assert heard == ["mine"]
    with pytest.raises(ensemble.FileErrors, match="no function 'mine'"):
        ensemble.load(file)


def test_action_is_called_with_its_options_and_may_be_slow() -> None:
    heard: list[Any] = []

    def write_down(context: ensemble.CallContext) -> None:
        heard.append((context.options["text"], context.event["job"]))

    done = run(
        {
            "trigger": "job-success",
            "name": "sim",
            "action": {"name": write_down, "text": "hello"},
        },
    )
    assert (done.exit_code, heard) == (0, [("hello", heard[0][1])])


def test_trigger_is_called_with_events_and_decides_about_the_rule() -> None:
    def large(event: ensemble.Event, fields: Any) -> bool:
        return bool(fields.get("x", 0) > 2)

    def short(event: ensemble.Event, fields: Any) -> bool:
        return bool(fields["duration"] < 600)

    heard: list[str] = []
    done = run(
        {
            "trigger": large,
            "name": "sim",
            "repetitions": 9,
            "action": {"name": "custom", "label": "a"},
        },
        {"trigger": "short", "on": "job-finish", "action": {"name": "custom", "label": "b"}},
        functions={"a": lambda **_: heard.append("a"), "b": lambda **_: heard.append("b")},
        triggers={"short": short},
    )
    assert (done.exit_code, sorted(heard)) == (0, ["a", "b"])


class Largest:
    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self.value = factor, None

    def update(self, value: float) -> None:
        self.value = max(value, value if self.value is None else self.value)  # type: ignore[call-overload]

    def get(self) -> float | None:
        return None if self.value is None else self.factor * self.value


def test_statistic_is_a_class_with_update_and_get() -> None:
    done = run(
        {
            "trigger": "metric",
            "name": "ten.sim-x",
            "when": ">= 30",
            "action": {"name": "log", "message": "there"},
        },
        statistics={"ten": {"statistic": Largest, "factor": 10}},
    )
    assert done.exit_code == 0
    assert done.metric("Largest.sim-x") == 3
    assert done.metric("ten.sim-x") == 30


def test_names_of_a_programs_callables_are_known_to_later_readers(
    tmp_path: Path,
) -> None:
    done = run(
        {"trigger": "job-done", "name": "sim", "action": {"name": "write-down", "text": "hello"}},
        {"trigger": "metric", "name": "ten.sim-x", "when": ">= 30", "action": {"name": "log", "message": "x"}},
        actions={"write-down": lambda context: None},
        functions={"spare": lambda **_: None},
        statistics={"ten": {"statistic": Largest, "factor": 10}},
        state=tmp_path,
        results={"all": {"of": "sim", "columns": {"x": "x"}}},
    )  # fmt: skip
    assert done.exit_code == 0
    for command in ("status", "results", "jobs", "metrics", "events"):
        shown = subprocess.run(
            [sys.executable, "-m", "ensemble_core.cli", command, "last", "--state", str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert shown.returncode == 0, shown.stderr
    again = ensemble.open_run(state=tmp_path)
    assert again.results("all") == done.results("all")


def test_wrong_key_of_a_mapping_is_reported_with_its_path() -> None:
    with pytest.raises(ensemble.FileErrors) as raised:
        ensemble.load(
            {
                "jobs": [{"name": "sim", "comand": "echo"}],
                "rules": [START, {"trigger": "job-fial", "action": "x"}],
            }
        )
    told = str(raised.value)
    assert "jobs[0].comand: unknown key 'comand'" in told
    assert "rules[1].trigger" in told
    assert "did you mean" in told


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"jobs": [{"name": "a", "command": object()}]},
            r"jobs\[0\]\.command: object is not plain",
        ),
        (
            {"jobs": [{"name": "a", "command": print}]},
            r"jobs\[0\]\.command: a function is not allowed",
        ),
        (
            {"jobs": [group(parameters={"x": [float("nan")]})]},
            r"jobs\[0\]\.parameters\.x\[0\]: expected a finite number, got nan",
        ),
        (
            {"jobs": [group(points={"x": [1]})]},
            r"jobs\[0\]\.points: the field 'points' of a JobGroup cannot be converted",
        ),
        ({"rules": [{"trigger": "start", "action": lambda **_: 0}]}, "the function has no name"),
        ({1: 2}, "the key 1"),
        ({"custom": 3}, "custom: expected a function, got int"),
    ],
)
def test_value_that_is_not_plain_data_is_reported_with_its_path(parts: Any, said: str) -> None:
    with pytest.raises(ensemble.UsageError, match=said):
        ensemble.load({"jobs": [group()], "rules": [START], **parts})


def test_source_of_a_wrong_type_is_rejected() -> None:
    with pytest.raises(ensemble.UsageError, match="a file or a mapping, got list"):
        ensemble.load([1])  # type: ignore[arg-type]


def test_callable_with_an_existing_name_is_rejected() -> None:
    with pytest.raises(ensemble.UsageError, match="action 'submit' already exists"):
        ensemble.load({"jobs": [group()], "rules": [START]}, actions={"submit": print})
    with pytest.raises(ensemble.UsageError, match="not callable"):
        ensemble.load({"jobs": [group()], "rules": [START]}, actions={"mine": 3})  # type: ignore[dict-item]


def test_here_of_a_mapping_is_the_folder_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "values.csv").write_text("x\n7\n")
    done = ensemble.run(
        {
            "jobs": [
                {
                    "name": "sim",
                    "command": "echo here={here} x={x}",
                    "points": "values.csv",
                    "stdout": "{cwd}/out",
                }
            ],
            "rules": [START],
        },
        executor="local",
    )
    assert (tmp_path / "out").read_text() == f"here={tmp_path} x=7\n"
    monkeypatch.chdir(os.sep)
    assert ensemble.open_run(done.tag).jobs()[0]["x"] == 7
