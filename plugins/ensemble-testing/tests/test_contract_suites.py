"""Tests of the published contract suites and fakes: every faulty plugin fails the intended test."""

from __future__ import annotations

import doctest
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import (
    ActionContract,
    EnvironmentContract,
    FakeExecutor,
    FakeFiring,
    GeneratorContract,
    ObserverContract,
    StatisticContract,
    TriggerContract,
    fakes,
)

from ensemble_core import (
    ENVIRONMENT_FAILED,
    Action,
    ActionPlugin,
    EnvironmentPlugin,
    Exchange,
    ExecutorError,
    Generator,
    GeneratorPlugin,
    Job,
    JobEvent,
    JobGroup,
    Observer,
    ObserverPlugin,
    PluginEvent,
    Point,
    Row,
    Run,
    StatisticPlugin,
    Trigger,
    TriggerPlugin,
    Variable,
    Vocs,
)


def failures(contract: type, **attributes: Any) -> set[str]:
    """Return the names of a suite's tests that fail for this plugin."""
    suite = type("Suite", (contract,), attributes)()
    failed = set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except pytest.skip.Exception:
                continue
            except Exception:  # a faulty plugin may raise any exception
                failed.add(name)
    return failed


class Sum:
    total: float

    def __init__(self) -> None:
        self.total = 0.0

    def update(self, value: float) -> None:
        self.total += value

    def get(self) -> float | None:
        return self.total


class Shared(Sum):
    sums: list[float] = [0.0]  # noqa: RUF012  # the fault

    def update(self, value: float) -> None:
        self.sums[0] += value

    def get(self) -> float | None:
        return self.sums[0]


class Clocked(Sum):
    def get(self) -> float | None:
        return self.total + time.perf_counter()


class Resetting(Sum):
    def get(self) -> float | None:
        value, self.total = self.total, 0.0
        return value


class Hoarding(Sum):
    def __init__(self) -> None:
        self.values: list[float] = []

    def update(self, value: float) -> None:
        self.values.append(value)

    def get(self) -> float | None:
        return sum(self.values)


class Uncopied(Sum):
    def __deepcopy__(self, memo: object) -> Uncopied:
        return self


class Unpicklable(Sum):
    def __init__(self) -> None:
        super().__init__()
        self.add = lambda value: value


class Infinite(Sum):
    def get(self) -> float | None:
        return float("inf")


class Empty(Sum):
    def get(self) -> float | None:
        return None


@pytest.mark.parametrize(
    ("statistic", "test"),
    [
        (Shared, "test_each_build_returns_a_new_statistic"),
        (Clocked, "test_same_values_give_the_same_result"),
        (Resetting, "test_reading_does_not_change_the_value"),
        (Hoarding, "test_memory_is_bounded"),
        (Uncopied, "test_copy_is_independent"),
        (Unpicklable, "test_state_survives_a_resume"),
        (Infinite, "test_value_is_a_number_or_none"),
        (Empty, "test_value_is_a_number_or_none"),
        (Empty, "test_value_is_as_expected"),
    ],
)
def test_wrong_statistic_fails(statistic: type[Sum], test: str) -> None:
    def record(cls: type[Sum]) -> StatisticPlugin:
        return StatisticPlugin(name="total", summary="x", build=lambda options: cls())

    expected = [([1.0, 2.0], 3.0)]
    assert failures(StatisticContract, plugin=record(Sum), expected=expected) == set()
    Shared.sums[0] = 0.0
    assert test in failures(StatisticContract, plugin=record(statistic), expected=expected)


class Lines(Observer):
    """Correct observer: reads one number per line."""

    longest = 100

    def __init__(self) -> None:
        self.rest = b""

    @property
    def path(self) -> str | None:
        return None

    def feed(self, data: bytes) -> list[Row]:
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest[: self.longest]
        return [row for line in lines for row in self.row(line[: self.longest])]

    def row(self, line: bytes) -> list[Row]:
        try:
            value = float(line)
        except ValueError:
            return []
        return [Row({"x": value})] if abs(value) < 1e300 else []

    def truncated(self) -> None:
        self.rest = b""


class Impatient(Lines):
    def feed(self, data: bytes) -> list[Row]:
        return [row for line in data.split(b"\n") for row in self.row(line)]


class Raising(Lines):
    def row(self, line: bytes) -> list[Row]:
        return [Row({"x": float(line)})] if line else []


class Poisoned(Lines):
    def row(self, line: bytes) -> list[Row]:
        try:
            return [Row({"x": float(line)}, clock=float(line))]
        except ValueError:
            return []


class Endless(Lines):
    longest = 1 << 40


class Clinging(Lines):
    def truncated(self) -> None:
        pass


@pytest.mark.parametrize(
    ("observer", "test"),
    [
        (Impatient, "test_rows_do_not_depend_on_where_input_is_split"),
        (Impatient, "test_rows_are_the_same_byte_by_byte"),
        (Raising, "test_damaged_input_raises_no_exception"),
        (Poisoned, "test_values_are_numbers_and_the_clock_is_finite"),
        (Endless, "test_endless_line_uses_bounded_memory"),
        (Clinging, "test_truncated_file_is_read_from_the_start"),
    ],
)
def test_wrong_observer_fails(observer: type[Lines], test: str) -> None:
    def record(cls: type[Lines]) -> ObserverPlugin:
        return ObserverPlugin(name="x", summary="x", build=lambda job, options: cls())

    given: dict[str, Any] = {
        "sample": b"12.5\nhello\n13\nnan\n",
        "rows": [Row({"x": 12.5}), Row({"x": 13.0})],
    }
    assert failures(ObserverContract, plugin=record(Lines), **given) == set()
    assert test in failures(ObserverContract, plugin=record(observer), **given)


def test_observer_that_yields_undeclared_names_fails() -> None:
    record = ObserverPlugin(
        name="x",
        summary="x",
        build=lambda job, options: Lines(),
        variables=lambda options: frozenset({"y"}),
    )
    assert failures(ObserverContract, plugin=record, sample=b"1\n", rows=[Row({"x": 1.0})]) == {
        "test_only_declared_variables_are_yielded"
    }


def test_observer_that_yields_excluded_names_fails() -> None:
    record = ObserverPlugin(
        name="x",
        summary="x",
        build=lambda job, options: Lines(),
        unasked=lambda options: {"x": "add columns: [x]"},
    )
    assert failures(ObserverContract, plugin=record, sample=b"1\n", rows=[Row({"x": 1.0})]) == {
        "test_columns_declared_absent_are_not_yielded"
    }


def test_rows_with_nan_are_compared_by_value() -> None:
    class Told(Lines):
        def row(self, line: bytes) -> list[Row]:
            return [Row({"x": float(line)})] if line in (b"nan", b"1") else []

    record = ObserverPlugin(name="x", summary="x", build=lambda job, options: Told())
    given: dict[str, Any] = {"plugin": record, "sample": b"nan\n1\n"}
    rows = [Row({"x": float("nan")}), Row({"x": 1.0})]
    assert failures(ObserverContract, **given, rows=rows) == set()
    assert "test_reads_the_sample" in failures(ObserverContract, **given, rows=rows[::-1])


def test_trigger_with_invalid_needs_fails() -> None:
    record = TriggerPlugin(
        name="x",
        summary="x",
        build=lambda name, options: Trigger(events=("observed",), group=name),
        name_means="group",
        needs_variables=lambda options: "Converged",
    )
    assert failures(TriggerContract, plugin=record, name="sim") == {
        "test_needed_variables_are_names"
    }


def test_trigger_that_waits_for_its_plugins_own_event_passes() -> None:
    record = TriggerPlugin(
        name="nightly", summary="x", build=lambda name, options: Trigger(events=("nightly", "dusk"))
    )
    assert failures(TriggerContract, plugin=record) == {"test_events_that_it_waits_for_exist"}
    dusk = PluginEvent(1.0, "dusk")
    assert failures(TriggerContract, plugin=record, matching=[dusk]) == set()


def test_statistic_whose_schema_does_not_require_needed_options_fails() -> None:
    target = {"description": "x", "type": "number"}
    schema: dict[str, Any] = {"type": "object", "properties": {"target": target}}

    def build(options: Any) -> Sum:
        assert options["target"]
        return Sum()

    record = StatisticPlugin(name="x", summary="x", build=build, options=schema)
    assert failures(StatisticContract, plugin=record, options={"target": 1}) == {
        "test_builds_without_options_unless_some_are_required"
    }
    record = StatisticPlugin(
        name="x", summary="x", build=build, options={**schema, "required": ["target"]}
    )
    assert failures(StatisticContract, plugin=record, options={"target": 1}) == set()


class Sweep(Generator):
    """Correct generator: suggests points in sequence."""

    def __init__(self) -> None:
        self.at = 0

    def suggest(self, count: int) -> list[dict[str, Any]]:
        self.at += count
        return [{"x": at % 7} for at in range(self.at - count, self.at)]

    def ingest(self, points: Sequence[Point]) -> None:
        self.told = [point.values["yield"] for point in points if point.state == "done"]

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        self.at = sum(len(exchange.suggested) for exchange in exchanges)


SWEEP = GeneratorPlugin(name="sweep", summary="x", build=lambda vocs, options: Sweep())
YIELD = Vocs(
    variables=(Variable(name="x", low=0, high=6, step=1),),
    objectives={"yield": "maximize", "cost.total": "minimize"},
)


def test_generator_of_outputs_with_any_names_passes() -> None:
    assert failures(GeneratorContract, plugin=SWEEP, vocs=YIELD) == set()


def test_an_evaluate_without_an_output_has_a_clear_error() -> None:
    class Suite(GeneratorContract):
        plugin = SWEEP
        vocs = YIELD

        @staticmethod
        def evaluate(parameters: Mapping[str, Any]) -> Mapping[str, float]:
            return {"yield": 1.0}

    with pytest.raises(AssertionError, match=r"'evaluate' returns no value for cost\.total"):
        Suite().test_suggestions_are_valid_and_not_too_many()


COUNTER = itertools.count()


@pytest.mark.parametrize(
    ("plan", "test"),
    [
        (lambda firing, options: ["submit"], "test_plan_returns_decisions"),
        (
            lambda firing, options: [firing.log(f"{next(COUNTER)}")],
            "test_same_firing_gives_the_same_decisions",
        ),
        (
            lambda firing, options: [firing.log(options.pop("text"))],
            "test_plan_does_not_change_its_options",
        ),
        (
            lambda firing, options: [firing.log(options["text"]), firing.log("lost")][:1],
            "test_plan_returns_every_decision_it_creates",
        ),
        (
            lambda firing, options: firing.act({"name": "cancel"}) and [],
            "test_plan_returns_every_decision_it_creates",
        ),
    ],
)
def test_wrong_action_fails(plan: Any, test: str) -> None:
    options = {"type": "object", "properties": {"text": {"type": "string", "description": "x"}}}

    def failed(chosen: Any) -> set[str]:
        record = ActionPlugin(name="x", summary="x", plan=chosen, options=options)
        return failures(ActionContract, plugin=record, options={"text": "x"})

    assert failed(lambda firing, given: [firing.log(given["text"])]) == set()
    assert test in failed(plan)


@pytest.mark.parametrize("outcome", ["submit", {"name": "submit"}, [{"name": "submit"}], 3])
def test_action_that_returns_something_else_fails(outcome: Any) -> None:
    record = ActionPlugin(name="x", summary="x", run=lambda context: outcome)
    assert "test_run_returns_actions_or_rules" in failures(ActionContract, plugin=record)
    good = ActionPlugin(name="x", summary="x", run=lambda context: [Action(name="submit")])
    assert failures(ActionContract, plugin=good) == set()


@pytest.mark.parametrize(
    ("build", "test"),
    [
        (lambda name, options: Trigger(), "test_builds_a_trigger"),
        (lambda name, options: Trigger(events=("start",), every=3.0), "test_builds_a_trigger"),
        (lambda name, options: Trigger(events=name), "test_builds_a_trigger"),
        (
            lambda name, options: Trigger(events=("observe",), group=name),
            "test_events_that_it_waits_for_exist",
        ),
        (
            lambda name, options: Trigger(events=("job-finish",)),
            "test_name_is_used_as_declared",
        ),
        (
            lambda name, options: Trigger(
                events=("job-finish",),
                group=name,
                match=lambda event, fields: next(COUNTER) % 2 > 0,
            ),
            "test_match_is_pure",
        ),
        (
            lambda name, options: Trigger(
                events=("job-finish",), group=name, match=lambda event, fields: fields["status"] > 0
            ),
            "test_match_is_pure",
        ),
    ],
)
def test_wrong_trigger_fails(build: Any, test: str) -> None:
    def failed(chosen: Any) -> set[str]:
        record = TriggerPlugin(name="x", summary="x", build=chosen, name_means="group")
        return failures(TriggerContract, plugin=record, name="sim")

    assert failed(lambda name, options: Trigger(events=("job-finish",), group=name)) == set()
    assert test in failed(build)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": True},
        {"properties": {}, "patternProperties": {".*": {}}},
    ],
)
def test_open_option_schema_fails(schema: Any) -> None:
    record = ActionPlugin(name="x", summary="x", run=lambda context: None, options=schema)
    assert failures(ActionContract, plugin=record) == {"test_option_schema_rejects_unknown_options"}


def test_examples_of_the_fakes_hold() -> None:
    result = doctest.testmod(fakes)
    assert result.attempted
    assert not result.failed


def job(name: str) -> Job:
    return Job(id=name, group="sim", index=0, command=("true",))


def test_fake_executor_plays_a_job_as_scripted(tmp_path: Path) -> None:
    executor, seen = FakeExecutor(), list[Any]()
    executor.open(Run("run", tmp_path, itertools.count(1.0).__next__), seen.extend)
    executor.submit([job("sim.0"), job("sim.1"), job("sim.2")])
    executor.start("sim.0")
    executor.finish("sim.0", status=256)
    executor.reject("sim.1", "no such queue")
    executor.cancel(["sim.2", "sim.0", "stranger"])
    assert seen == executor.events

    def life(name: str) -> list[str]:
        return [event.name for event in seen if event.job == name]

    assert life("sim.0")[-4:] == ["finish", "release", "free", "clean"]
    assert life("sim.1") == ["submit", "depend", "priority", "exception", "clean"]
    assert life("sim.2") == ["submit", "depend", "priority", "exception", "clean"]
    stamps = [event.timestamp for event in seen]
    assert stamps == sorted(stamps)
    for again in (executor.start, executor.finish, executor.reject):
        with pytest.raises(AssertionError):
            again("sim.0")
    with pytest.raises(AssertionError, match="twice"):
        executor.submit([job("sim.0")])
    executor.close()


def test_fake_executor_rejects_a_submit_as_scripted() -> None:
    executor = FakeExecutor()
    executor.refuse = ExecutorError("queue is full", transient=True)
    with pytest.raises(ExecutorError, match="queue is full"):
        executor.submit([job("sim.0")])
    assert executor.submitted == []
    assert executor.events == []
    executor.submit([job("sim.0")])
    assert [item.id for item in executor.submitted] == ["sim.0"]


def test_fake_executor_grants_and_denies() -> None:
    executor = FakeExecutor(nodes=2, max_nodes=3)
    executor.resize("a", 1)
    executor.resize("b", 1)
    executor.resize("c", -3)
    assert [event.to_dict()["outcome"] for event in executor.events] == [
        "granted",
        "denied",
        "denied",
    ]
    assert executor.resources()["nodes.up"] == 3


def test_fake_firing_numbers_jobs_after_the_existing_ones() -> None:
    group = JobGroup(name="sim", command=("run", "{index}"), count=2)
    firing = FakeFiring(groups=[group], active=["sim.4"], event=JobEvent(1.0, "sim.4", "start"))
    first, second = firing.submit("sim"), firing.submit("sim", {"count": 1})
    assert [item["id"] for item in first.to_dict()["jobs"]] == ["sim.5", "sim.6"]
    assert [item["id"] for item in second.to_dict()["jobs"]] == ["sim.7"]
    assert firing.decided == [first, second]


_SET_UP = f'[ "$1" = good ] || {{ echo none >&2; exit {ENVIRONMENT_FAILED}; }}; shift; exec "$@"'


def _environment(script: str) -> EnvironmentPlugin:
    name = {"description": "The name.", "type": "string"}
    return EnvironmentPlugin(
        name="e",
        summary="an environment",
        options={"type": "object", "required": ["e"], "properties": {"e": name}},
        wrap=lambda job, options: [
            *("sh", "-c", script.replace("OPTION", options["e"]), "e"),
            *(options["e"], *job.command),
        ],
    )


@pytest.mark.parametrize(
    ("old", "new", "fails"),
    [
        ("", "", set()),
        ('exec "$@"', "exec $@", {"test_the_command_keeps_its_words_folder_and_variables"}),
        ('"$1" =', "OPTION =", {"test_the_shell_runs_no_part_of_an_option"}),
        ('exec "$@"', '"$@"; true', {"test_the_command_keeps_its_exit_code"}),
        ("echo none >&2;", "", {"test_a_missing_environment_is_the_job_s_cause_with_words"}),
        ("exec", "cd /; exec", {"test_the_command_keeps_its_words_folder_and_variables"}),
    ],
    ids=["good", "splits words", "runs options", "loses the code", "silent", "moves"],
)
def test_a_faulty_environment_fails_the_suite(
    old: str, new: str, fails: set[str], tmp_path: Path
) -> None:
    plugin, options, missing = _environment(_SET_UP.replace(old, new)), {"e": "good"}, {"e": "bad"}
    attributes = {"plugin": plugin, "options": options, "missing": missing}
    suite = type("Suite", (EnvironmentContract,), attributes)()
    machine, failed = {**os.environ, "COLOR": "red"}, set()
    for name, more in (
        ("test_the_command_keeps_its_words_folder_and_variables", ()),
        ("test_the_command_keeps_its_exit_code", (7,)),
        ("test_a_missing_environment_is_the_job_s_cause_with_words", ()),
        ("test_the_shell_runs_no_part_of_an_option", ("$(touch made)",)),
    ):
        try:
            getattr(suite, name)(machine, tmp_path, *more)
        except AssertionError:
            failed.add(name)
    assert failed >= fails
    assert bool(failed) == bool(fails)
