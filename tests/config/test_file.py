"""Meaning of valid ensemble files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ensemble_core.config import load, load_text, schema
from ensemble_core.errors import EnsembleError, FileErrors
from ensemble_core.model.durations import seconds
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.rules import Action, Rule, Trigger
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.hookspecs import ActionPlugin, StatisticPlugin, TriggerPlugin
from ensemble_core.plugin.registry import LoadedPlugin, Registry

START = "rules:\n  - {trigger: start, action: {name: submit, label: a}}\n"


@pytest.fixture(scope="module")
def registry() -> Registry:
    return discover()


def group_of(fields: str, registry: Registry) -> Any:
    ensemble = load_text(f"jobs:\n  - name: a\n    {fields}\n" + START, registry)
    return ensemble.groups["a"]


def rule_of(rule: str, registry: Registry) -> Any:
    jobs = "jobs:\n  - {name: a, command: 'run {T}', parameters: {T: [1, 2]}}\n"
    return load_text(f"{jobs}rules:\n  - {rule}\n", registry).rules[0]


# -- job groups --------------------------------------------------------------------------------


def test_numbers_for_jobs_keep_their_spelling(registry: Registry) -> None:
    group = group_of(
        "command: [run, 1.10, 1e3, 007]\n    environment: {V: 1.20, N: 0x1F}", registry
    )

    assert group.command == ("run", "1.10", "1e3", "007")
    assert group.environment == {"V": "1.20", "N": "0x1F"}


def test_command_is_split_like_in_a_shell(registry: Registry) -> None:
    group = group_of("""command: echo 'a b' "c d" e\\ f""", registry)

    assert group.command == ("echo", "a b", "c d", "e f")


def test_shell_operators_in_a_command_cause_a_warning(registry: Registry) -> None:
    ensemble = load_text("jobs:\n  - {name: a, command: echo hi > out.txt}\n" + START, registry)

    assert len(ensemble.warnings) == 1
    assert "'>'" in ensemble.warnings[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (90, 90.0), ("90", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("1.5h", 5400.0),
        ("2d", 172800.0), ("500ms", 0.5), ("1h 30m 5s", 5405.0), (0, 0.0), ("1e3", 1000.0),
    ],
)  # fmt: skip
def test_durations_are_parsed(text: object, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "inf", "", "1:30", "m", 10**400])
def test_invalid_duration_is_rejected(value: object) -> None:
    with pytest.raises(EnsembleError):
        seconds(value)


def test_sweep_fills_placeholders_and_keeps_doubled_braces(registry: Registry) -> None:
    group = group_of(
        "command: run {T} {{T}} {index}\n    count: 2\n    parameters: {T: [0.5, hot]}", registry
    )

    jobs = list(group.jobs(0))
    assert [job.command[1] for job in jobs] == ["0.5", "0.5", "hot", "hot"]
    assert jobs[3].command[2:] == ("{T}", "3")


def test_here_is_the_folder_of_the_file(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("jobs:\n  - {name: a, command: 'run {here}/x'}\n" + START)

    ensemble = load(file, registry)

    assert ensemble.name == "study"
    assert next(iter(ensemble.groups["a"].jobs(0))).command == ("run", f"{tmp_path}/x")


def test_merge_keys_provide_missing_fields(registry: Registry) -> None:
    ensemble = load_text(
        "x-base: &base {nodes: 2, tasks: 8}\n"
        "jobs:\n  - {name: a, command: run, <<: *base, tasks: 4}\n" + START,
        registry,
    )

    assert (ensemble.groups["a"].nodes, ensemble.groups["a"].tasks) == (2, 4)


# -- rules -------------------------------------------------------------------------------------


def test_rules_have_readable_labels(registry: Registry) -> None:
    labels = [
        rule_of(f"{{{text}, action: {{name: terminate}}}}", registry).label
        for text in (
            "trigger: start",
            "trigger: metric, name: queue.sched",
            "trigger: interval, seconds: 1m",
            "trigger: job-fail",
        )
    ]

    assert labels == ["start", "queue.sched", "interval 60s", "job-fail"]


@pytest.mark.parametrize(
    ("backoff", "matches", "wait"), [("2", 2, 0.0), ("30s", 0, 30.0), ("1m30s", 0, 90.0)]
)
def test_backoff_is_a_number_of_matches_or_a_duration(
    registry: Registry, backoff: str, matches: int, wait: float
) -> None:
    for text in (
        f"{{trigger: job-fail, backoff: {backoff}, action: {{name: cancel}}}}",
        f"{{trigger: job-fail, action: {{name: cancel, backoff: {backoff}}}}}",
    ):
        rule = rule_of(text, registry)
        assert (rule.backoff, rule.backoff_seconds) == (matches, wait)


@pytest.mark.parametrize(
    ("text", "concerns", "group"),
    [
        ("trigger: job-fail, name: a", True, "a"),
        ("trigger: job-exception", True, None),
        ("trigger: metric, name: count.a.failed", True, "a"),
        ("trigger: metric, name: mean.a-duration.failed", True, "a"),
        ("trigger: job-finish, name: a, when: exit_code == 3", True, "a"),
        ("trigger: heartbeat, when: metric('count.a.failed') > 2", True, "a"),
        ("trigger: metric, name: count.a.success", False, None),
        ("trigger: job-finish", False, None),
    ],
)
def test_rules_that_handle_failures_are_recognized(
    registry: Registry, text: str, concerns: bool, group: str | None
) -> None:
    rule = rule_of(f"{{{text}, action: {{name: terminate}}}}", registry)

    assert (rule.concerns_failure, rule.failure_group) == (concerns, group)


@pytest.mark.parametrize("logging", ["", "logging: {heartbeat: 0}\n"])
@pytest.mark.parametrize("action", ["grow", "shrink"])
def test_grow_and_shrink_enable_the_heartbeat(
    registry: Registry, logging: str, action: str
) -> None:
    text = "jobs:\n  - {name: a, command: run}\n" + logging + START
    assert load_text(text, registry).heartbeat == 0

    more = text + f"  - {{trigger: job-depend, action: {{name: {action}, value: '3'}}}}\n"
    assert load_text(more, registry).heartbeat == 60


def test_heartbeat_rule_is_rejected_if_the_heartbeat_is_off(registry: Registry) -> None:
    text = "jobs:\n  - {name: a, command: run}\n" + START
    text += "  - {trigger: heartbeat, action: {name: terminate}}\n"

    assert load_text(text, registry).heartbeat == 60
    with pytest.raises(FileErrors, match="heartbeat"):
        load_text(text + "logging: {heartbeat: 0}\n", registry)


def test_statistic_of_the_file_can_be_used_in_paths(registry: Registry) -> None:
    ensemble = load_text(
        "jobs:\n  - {name: a, command: run}\n"
        "statistics: {p75: {statistic: quantile, q: 0.75}}\n"
        "rules:\n  - {trigger: metric, name: p75.a-duration, action: {name: terminate}}\n",
        registry,
    )

    statistic: Any = ensemble.statistics["p75"].build()
    for value in range(101):
        statistic.update(float(value))
    assert statistic.get() == pytest.approx(75, abs=1)


def test_metrics_of_unknown_columns_are_rejected(
    registry: Registry,
) -> None:
    def text(variable: str) -> str:
        return (
            "jobs:\n  - {name: a, command: run, observe: {watch: {}}}\n"
            f"rules:\n  - {{trigger: metric, name: mean.a-{variable}, action: {{name: cancel}}}}\n"
        )

    from ensemble_core.plugin.hookspecs import ObserverPlugin

    def build(job: object, options: Mapping[str, Any]) -> Any:
        raise AssertionError("checking a file builds no observer")

    def variables(options: Mapping[str, Any]) -> frozenset[str]:
        return frozenset({"temperature"})

    watch = ObserverPlugin(name="watch", summary="watches", build=build, variables=variables)
    mine = with_plugin(registry, observer=(watch,))

    load_text(text("temperature"), mine)
    with pytest.raises(FileErrors) as caught:
        load_text(text("temprature"), mine)
    assert caught.value.errors[0].hint == "did you mean 'mean.a-temperature'?"


# -- plugins -----------------------------------------------------------------------------------


def with_plugin(registry: Registry, **records: tuple[Any, ...]) -> Registry:
    plugin = LoadedPlugin(
        name="mine",
        distribution="mine",
        version="1",
        module="mine",
        records=records,  # type: ignore[arg-type]  # the keys are kinds
    )
    return Registry([*registry.plugins, plugin])


PING = ActionPlugin(
    name="ping",
    summary="tell somebody",
    run=lambda context: None,
    options={
        "type": "object",
        "required": ["to"],
        "properties": {
            "to": {"$ref": "#/$defs/person"},
            "about": {"type": "array", "items": {"type": "string"}, "x-ensemble": "group"},
            "every": {"type": ["string", "number"], "x-ensemble": "duration", "default": 5},
        },
        "$defs": {"person": {"type": "string", "minLength": 3}},
    },
)


def test_action_of_a_plugin_is_checked_by_its_schema(registry: Registry) -> None:
    mine = with_plugin(registry, action=(PING,))
    text = "jobs:\n  - {name: a, command: run}\nrules:\n  - {trigger: start, action: {name: ping"

    rule = load_text(f"{text}, to: ann, about: [a], every: 2m}}}}\n", mine).rules[0]
    assert rule.actions[0].options == {"to": "ann", "about": ["a"], "every": 120.0}
    assert rule.actions[0].plan is None
    assert load_text(f"{text}, to: ann}}}}\n", mine).rules[0].actions[0].options["every"] == 5
    for wrong, code in [
        ("to: x", "bad-value"),
        ("too: ann, to: ann", "unknown-key"),
        ("about: [b], to: ann", "no-such-group"),
        ("about: [a]", "missing-key"),
    ]:
        with pytest.raises(FileErrors) as caught:
            load_text(f"{text}, {wrong}}}}}\n", mine)
        assert [error.code for error in caught.value.errors] == [code]


def test_qualified_name_works_like_the_bare_one(registry: Registry) -> None:
    mine = with_plugin(registry, action=(PING,))

    rule = load_text(
        "jobs:\n  - {name: a, command: run}\n"
        "rules:\n  - {trigger: start, action: {name: 'mine:ping', to: ann}}\n",
        mine,
    ).rules[0]

    assert rule.actions[0].options["to"] == "ann"


def test_trigger_that_cannot_be_built_is_an_error_of_the_file(registry: Registry) -> None:
    def build(name: str | None, options: Mapping[str, Any]) -> Trigger:
        raise RuntimeError("out of order")

    broken = TriggerPlugin(name="broken", summary="fails", build=build)
    mine = with_plugin(registry, trigger=(broken,))

    with pytest.raises(FileErrors) as caught:
        load_text(
            "jobs:\n  - {name: a, command: run}\n"
            "rules:\n  - {trigger: broken, action: {name: terminate}}\n",
            mine,
        )

    (error,) = caught.value.errors
    assert error.where is not None
    assert (error.where.line, error.where.column) == (4, 15)
    assert "out of order" in (error.cause or "")


def test_invalid_option_of_a_statistic_is_an_error_of_the_file(registry: Registry) -> None:
    def build(options: Mapping[str, Any]) -> Any:
        raise ValueError("needs a prime number")

    picky = StatisticPlugin(name="picky", summary="picky", build=build)
    mine = with_plugin(registry, statistic=(picky,))

    with pytest.raises(FileErrors) as caught:
        load_text(
            "jobs:\n  - {name: a, command: run}\n"
            + START
            + "statistics: {p: {statistic: picky}}\n",
            mine,
        )

    assert "prime" in (caught.value.errors[0].cause or "")


# -- the schema --------------------------------------------------------------------------------


def test_schema_is_valid_and_describes_every_property(registry: Registry) -> None:
    made = schema(registry)

    jsonschema_rs.meta.validate(made)
    json.dumps(made)
    assert "$id" in made
    bare = [
        (name, key)
        for name, part in {"": made, **made["$defs"]}.items()
        for key, value in part.get("properties", {}).items()
        if not isinstance(value, bool) and "description" not in value
    ]
    assert bare == []


# -- during a run ------------------------------------------------------------------------------


@pytest.fixture
def ensemble(registry: Registry) -> Ensemble:
    return load_text("jobs:\n  - {name: a, command: run, count: 3}\n" + START, registry)


def test_rule_that_arrives_during_a_run_is_bound_like_the_files(ensemble: Ensemble) -> None:
    rule = Rule(trigger="job-fail", name="a", action=Action(name="submit", label="a"))

    bound = ensemble.binder.rule(rule.spec, "late-1")

    assert (bound.id, bound.trigger.group, bound.location) == ("late-1", "a", None)
    assert bound.actions[0].options == {"label": "a"}
    with pytest.raises(EnsembleError, match="job group 'b'"):
        ensemble.binder.rule({**rule.spec, "name": "b"}, "late-2")


def test_change_of_a_group_keeps_other_fields(ensemble: Ensemble) -> None:
    group = ensemble.groups["a"]

    changed = ensemble.binder.group(group, {"nodes": 2, "environment": {"A": 1}})

    assert (changed.nodes, changed.count, changed.environment) == (2, 3, {"A": "1"})
    assert group.nodes == 1
    for wrong in ({"name": "b"}, {"count": 0}, {"command": "run {T}"}, {"nodse": 1}):
        with pytest.raises(EnsembleError):
            ensemble.binder.group(group, wrong)


@pytest.mark.parametrize("command", ["run {p} {T:.2f}", "run {p} {T}"])
def test_parameters_given_during_a_run_are_checked(command: str) -> None:
    text = f"jobs: [{{name: a, command: '{command}', parameters: {{p: x, T: 2}}}}]\n"
    text += "rules: [{trigger: start, action: {name: submit, label: a}}]\n"
    ensemble = load_text(text, discover())
    group = ensemble.groups["a"]

    changed = ensemble.binder.group(group, {"parameters": {"p": "y", "T": 3}})

    assert next(changed.jobs(0)).parameters == {"p": "y", "T": 3}
    with pytest.raises(EnsembleError, match="'U' is not used"):
        ensemble.binder.group(group, {"parameters": {"p": "y", "T": 3, "U": 1}})
    if ":" in command:
        with pytest.raises(EnsembleError, match=r"invalid format in \{T:"):
            ensemble.binder.group(group, {"parameters": {"p": "y", "T": "hot"}})
    else:
        changed = ensemble.binder.group(group, {"parameters": {"p": "y"}})
        assert next(changed.jobs(0)).parameters == {"p": "y", "T": 2}
        with pytest.raises(EnsembleError, match=r"placeholder \{T"):
            ensemble.binder.group(group, {"parameters": {"T": None}})


@pytest.mark.parametrize(
    "entry",
    [
        "stdout: 'x-{T:.2f}'",
        "environment: {A: '{T:.2f}'}",
        "outputs: ['{T:.2f}.dat']",
    ],
)
def test_formats_of_values_given_during_a_run_are_checked_in_all_texts(entry: str) -> None:
    text = f"jobs: [{{name: a, command: run, parameters: {{T: 2}}, {entry}}}]\n"
    text += "rules: [{trigger: start, action: {name: submit, label: a}}]\n"
    ensemble = load_text(text, discover())
    group = ensemble.groups["a"]
    assert ensemble.binder.group(group, {"parameters": {"T": 3}}).parameters == {"T": (3,)}
    with pytest.raises(EnsembleError, match=r"invalid format in \{T:"):
        ensemble.binder.group(group, {"parameters": {"T": "hot"}})


def test_values_that_are_equal_but_not_the_same_are_told_apart() -> None:
    text = "jobs: [{name: a, command: 'run {p}', parameters: {p: 1}}]\n"
    text += "rules: [{trigger: start, action: {name: submit, label: a}}]\n"
    ensemble = load_text(text, discover())
    group, one = ensemble.groups["a"], {"parameters": {"p": 1}}
    for value, shown in ((1, "1"), ("1", "1"), (1, "1")):
        changed = ensemble.binder.group(group, {"parameters": {"p": value}})
        job = next(changed.jobs(0))
        assert (job.command, repr(job.parameters["p"])) == (("run", shown), repr(value))
    assert ensemble.binder.group(group, one) is ensemble.binder.group(group, one)
    larger = ensemble.binder.group(group, {"nodes": 2})
    assert ensemble.binder.group(larger, one).nodes == 2


def test_specification_that_is_not_plain_data_is_rejected(ensemble: Ensemble) -> None:
    with pytest.raises(EnsembleError, match="expected plain data"):
        ensemble.binder.action({"name": print})
    with pytest.raises(EnsembleError):
        ensemble.binder.rule([], "late-1")  # type: ignore[arg-type]  # on purpose


# -- overrides ---------------------------------------------------------------------------------


def test_set_changes_values_of_groups_and_rules(registry: Registry) -> None:
    ensemble = load_text(
        "jobs:\n  - {name: a, command: run}\n" + START,
        registry,
        overrides=["jobs.a.count=3", "rules.rule-1.repetitions=2", "logging.heartbeat=5s",
                   "name=other", "jobs.a.environment.A=1.10"],
    )  # fmt: skip

    assert ensemble.groups["a"].count == 3
    assert ensemble.groups["a"].environment == {"A": "1.10"}
    assert ensemble.rules[0].repetitions == 2
    assert (ensemble.heartbeat, ensemble.name) == (5.0, "other")


# -- import cost -------------------------------------------------------------------------------


def test_import_of_config_imports_nothing_heavy() -> None:
    code = (
        "import sys, ensemble_core.config\n"
        "heavy = {'river', 'numpy', 'rich', 'jsonschema_rs', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )

    assert done.stdout.strip() == "[]"


def test_loading_a_file_imports_no_statistics_library() -> None:
    code = (
        "import sys\n"
        "from ensemble_core.config import load_text\n"
        "from ensemble_core.plugin.discovery import discover\n"
        "load_text('jobs: [{name: a, command: b}]\\n'\n"
        "          'rules: [{trigger: start, action: {name: submit, label: a}}]', discover())\n"
        "print(sorted({'river', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )

    assert done.stdout.strip() == "[]"


def test_rule_on_waiting_times_without_heartbeat_causes_a_warning() -> None:
    rule = '{trigger: metric, name: mean.a-pending, when: "> 300", action: {name: log, message: x}}'
    start = "{trigger: start, action: {name: submit, label: a}}"
    text = f"jobs: [{{name: a, command: a}}]\nrules: [{start}, {rule}]\n"
    registry = discover()
    (warning,) = load_text(text, registry).warnings
    assert "mean.a-pending" in warning
    assert "logging.heartbeat" in warning
    assert load_text(f"logging: {{heartbeat: 5}}\n{text}", registry).warnings == ()
