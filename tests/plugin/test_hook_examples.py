"""The examples in ``hookspecs``: each is saved to a file, loaded and used."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from ensemble_testing import (
    ActionContract,
    FakeFiring,
    GeneratorContract,
    ObserverContract,
    PlayedGenerator,
    StatisticContract,
    Story,
    TriggerContract,
)

from ensemble_core import (
    CallContext,
    Event,
    Job,
    JobEvent,
    MetricsView,
    ObserverPlugin,
    Row,
    Rule,
    Run,
    StatisticPlugin,
    Variable,
    Vocs,
)
from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.model.decisions import Log
from ensemble_core.model.rules import Action
from ensemble_core.plugin import hookspecs
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.record_validation import HOOKS
from ensemble_core.plugin.registry import Registry


def examples(hook: str) -> list[str]:
    text = inspect.getdoc(getattr(hookspecs, hook)) or ""
    return [inspect.cleandoc(found) for found in re.findall(r"```python\n(.*?)```", text, re.S)]


def install(hook: str, folder: Path, number: int = 0) -> Registry:
    file = folder / f"{hook}_{number}.py"
    file.write_text(examples(hook)[number], encoding="utf-8")
    return discover([file])


def check(suite: object) -> None:
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except pytest.skip.Exception:
                continue


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_complete_example(hook: str, tmp_path: Path) -> None:
    assert examples(hook)
    for number in range(len(examples(hook))):
        plugin = install(hook, tmp_path, number).plugins[-1]
        assert plugin.error is None
        assert {kind: len(found) for kind, found in plugin.records.items()} == {HOOKS[hook][0]: 1}


def test_every_hookspec_is_known_to_the_loader() -> None:
    specs = {name for name, value in vars(hookspecs).items() if hasattr(value, "ensemble_spec")}
    assert specs == set(HOOKS)


def test_executor_example_runs_jobs(tmp_path: Path) -> None:
    record = install("ensemble_executors", tmp_path).lookup("executor", "rehearse")
    executor, seen = record.build({}), list[Event]()
    executor.open(Run("r", tmp_path, lambda: 1.0), lambda events: seen.extend(events))
    executor.submit([Job(id="sim.0", group="sim", index=0, command=("true",))])
    executor.close()
    names = [event.name for event in seen if isinstance(event, JobEvent)]
    assert names[0] == "submit"
    assert names[-2:] == ["finish", "clean"]
    assert executor.capabilities == record.capabilities


def test_an_option_of_the_executor_example_is_a_flag_of_run(tmp_path: Path) -> None:
    install("ensemble_executors", tmp_path)
    (plugin,) = tmp_path.glob("*.py")
    study = tmp_path / "study.yaml"
    study.write_text(
        "jobs: [{name: sim, command: 'true'}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    words = ["run", str(study), "--plugin", str(plugin), "--no-journal", "--executor", "rehearse"]
    for status in (0, 1):
        result = CliRunner().invoke(main, [*words, "--status", str(status)])
        assert result.exit_code == status, result.output


def test_source_example_imports_tasks_and_reports_mistakes_with_their_place(tmp_path: Path) -> None:
    registry, tasks = install("ensemble_sources", tmp_path), tmp_path / "tasks.yaml"
    file = str(tmp_path / "study.yaml")
    text = "jobs: [{task-list: tasks.yaml, prefix: night-}]"
    tasks.write_text("prepare: ./prepare\nsolve: {run: ./solve, after: prepare}\n")
    story = Story(load_text(text, registry, file=file))
    story.start()
    story.play("night-prepare.0")
    assert story.submitted() == ["night-prepare.0", "night-solve.0"]
    for wrong, told in (
        ("solve: {run: ./solve, after: prepar}", "tasks.yaml:1:30: there is no task 'prepar'"),
        (
            "solve: {runs: ./solve}",
            "tasks.yaml:1:8: 'command' is empty, expected a string or a list",
        ),
        ("[solve]", "tasks.yaml:1:1: expected a mapping"),
        ("solve: {}\nsolve: {}", "tasks.yaml:2:1: duplicate key 'solve'"),
    ):
        tasks.write_text(wrong)
        with pytest.raises(FileErrors) as caught:
            load_text(text, registry, file=file)
        error = caught.value.errors[0]
        assert f"{error.where}: {error.what}".removeprefix(f"{tmp_path}/").startswith(told)


def test_trigger_example_matches_short_jobs(tmp_path: Path) -> None:
    record = install("ensemble_triggers", tmp_path).lookup("trigger", "job-quick")
    end = JobEvent(9.0, "sim.0", "finish", {"status": 0})

    class Suite(TriggerContract):
        plugin = record
        name = "sim"
        options: ClassVar = {"below": 5}
        matching = ((end, {"duration": 2.0}),)
        rejected = ((end, {"duration": 5.0}), (end, {}))
        bad_options = ({}, {"below": 0}, {"bellow": 5})

    check(Suite())


def test_slow_action_example_writes_and_submits(tmp_path: Path) -> None:
    record = install("ensemble_actions", tmp_path).lookup("action", "note")
    target = tmp_path / "notes.txt"

    class Suite(ActionContract):
        plugin = record
        options: ClassVar = {"text": "half done", "file": str(target), "submit": "analysis"}
        bad_options = ({}, {"text": "", "file": "x"})

    check(Suite())
    context = CallContext(
        options=Suite.options,
        event={},
        rule=Rule({"trigger": "start"}),
        action=Action({"name": "note"}),
        metrics=MetricsView({}),
    )
    assert record.run is not None
    assert record.run(context) == Action(name="submit", label="analysis")
    assert target.read_text("utf-8").endswith("start: half done\n")


def test_plan_example_submits_only_if_few_jobs_wait(tmp_path: Path) -> None:
    record = install("ensemble_actions", tmp_path, 1).lookup("action", "submit-politely")

    class Suite(ActionContract):
        plugin = record
        options: ClassVar = {"label": "sim"}

    check(Suite())
    assert record.plan is not None
    for waiting, decision in ((3, "submit"), (30, "log")):
        firing = FakeFiring(groups=["sim"], metrics={"queue.sched": waiting})
        assert [item.type for item in record.plan(firing, Suite.options)] == [decision]


def test_statistic_example_is_a_geometric_mean(tmp_path: Path) -> None:
    found: StatisticPlugin = install("ensemble_statistics", tmp_path).lookup("statistic", "geomean")

    class Suite(StatisticContract):
        plugin = found
        expected = (([2.0, 8.0], 4.0), ([0.0], None))

    check(Suite())


def test_nested_action_example_depends_on_the_jobs_duration(tmp_path: Path) -> None:
    registry = install("ensemble_actions", tmp_path, 2)
    told = Story(
        load_text(
            """
jobs: [{name: sim, command: x, count: 3}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - trigger: job-finish
    name: sim
    repetitions: 3
    action:
      name: by-length
      limit: '= 2 * metric("median.sim-duration")'
      longer: {name: log, message: "{job} took more than {limit} s"}
""",
            registry,
        )
    )
    told.start()
    said = [
        one.message
        for job, seconds in (("sim.0", 2.0), ("sim.1", 2.0), ("sim.2", 9.0))
        for one in told.play(job, duration=seconds)
        if isinstance(one, Log)
    ]
    assert said == ["sim.2 took more than 4 s"]

    class Suite(ActionContract):
        plugin = registry.lookup("action", "by-length")
        options: ClassVar = {"limit": 5, "shorter": {"name": "cancel"}}
        bad_options = ({}, {"limit": "5"}, {"limit": 5, "longr": {}})

    check(Suite())


def test_observer_example_reads_energies(tmp_path: Path) -> None:
    found: ObserverPlugin = install("ensemble_observers", tmp_path).lookup("observer", "energies")

    class Suite(ObserverContract):
        plugin = found
        options: ClassVar = {"log": "md.log"}
        sample = b"starting\nenergy -1.5\nenergy nan\nenergy\nenergy -1.75\n"
        rows = (Row({"energy": -1.5}), Row({"energy": math.nan}), Row({"energy": -1.75}))

    check(Suite())


def test_generator_example_converges(tmp_path: Path) -> None:
    plugin = install("ensemble_generators", tmp_path).generators["halving"]
    vocs = Vocs(variables=(Variable(name="x", low=-8.0, high=8.0),), objectives={"E": "minimize"})
    suite = type("Suite", (GeneratorContract,), {"plugin": plugin, "vocs": vocs, "repeats": False})
    check(suite())
    played = PlayedGenerator(lambda: plugin.build(vocs, {}), vocs)
    points = played.play(20, lambda point: {"E": abs(point["x"] - 2.3)})
    assert points[0] == {"x": 0.0}
    assert min(abs(point["x"] - 2.3) for point in points) < 0.1
