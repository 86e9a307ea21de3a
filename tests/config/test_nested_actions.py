"""Nested actions: checked when the file is loaded, carried out by the outer action."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from click.testing import CliRunner
from ensemble_testing import ActionContract, FakeFiring, Story

from ensemble_core import Action, ActionPlugin, Decision, Firing, JobGroup
from ensemble_core.cli.main import main
from ensemble_core.config import load_text, schema
from ensemble_core.errors import EnsembleError, FileErrors, PluginError
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Call, Cancel, Log, Submit
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import CallReturned
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.record_validation import check_record
from ensemble_core.plugin.registry import Registry

PLUGIN = """
import time
from pathlib import Path

from ensemble_core import Action, ActionPlugin, hookimpl

KNOWN = ["outcome", "steps"]
THEN = {"description": "What then.", "x-ensemble": "action", "x-ensemble-fields": KNOWN}
CASES = {
    "type": "object",
    "properties": {
        "good": THEN,
        "otherwise": THEN,
        "by-code": {
            "description": "By exit code.",
            "type": "object",
            "additionalProperties": {"x-ensemble": "action"},
        },
    },
}


def judge(firing, options):
    code = firing.fields.get("exit_code")
    found = {"outcome": "good" if code == 0 else f"bad ({code})", "steps": 7}
    yield from firing.act(options.get("by-code", {}).get(str(code), []), found)
    yield from firing.act(options.get("good" if code == 0 else "otherwise", []), found)


def judge_slowly(context):
    written = Path(context.job["workdir"], "result").read_text().strip()
    found = {"outcome": written, "steps": len(context.job["command"])}
    chosen = context.options.get("good" if context.job["outcome"] == "success" else "otherwise", [])
    several = chosen if isinstance(chosen, list) else [chosen]
    return [Action(one).knowing(found) for one in several]


@hookimpl
def ensemble_actions():
    return [
        ActionPlugin(name="judge", summary="by exit code", plan=judge, options=CASES),
        ActionPlugin(
            name="judge-slowly",
            summary="by a file",
            run=judge_slowly,
            options=CASES,
            by_outcome=True,
        ),
    ]
"""

JOBS = """
jobs:
  - {name: sim, command: "run {T}", parameters: {T: [1, 2]}, workdir: /data/sim}
  - {name: next, command: next}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plugin") / "judging.py"
    file.write_text(PLUGIN, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def registry(plugin: Path) -> Registry:
    return discover([plugin])


def ensemble(registry: Registry, rule: str) -> Ensemble:
    return load_text(f"{JOBS}  - {rule}\n", registry)


def complaints(registry: Registry, rule: str) -> dict[str, tuple[str, str | None]]:
    """Return the errors of a rule by place, without the line."""
    with pytest.raises(FileErrors) as caught:
        ensemble(registry, rule)
    found = {}
    for error in caught.value.errors:
        assert error.where is not None
        column = error.where.column
        found[rule[column - 5 :].partition("}")[0].partition(",")[0]] = (error.what, error.hint)
    return found


JUDGE = (
    "{trigger: job-finish, name: sim, repetitions: 9, action: {name: judge, "
    "good: {name: submit, label: next, with: {command: [next, 1.50]}}, "
    "otherwise: [{name: log, message: '{job} {outcome} after {steps}'}, {name: cancel, label: sim}]"
    "}}"
)


def test_selected_nested_action_is_carried_out(registry: Registry) -> None:
    told = Story(ensemble(registry, JUDGE))
    told.start()
    told.begin("sim.0")
    told.begin("sim.1")

    good = told.end("sim.0")
    bad = told.end("sim.1", status=3 << 8)

    (submitted,) = [one for one in good if isinstance(one, Submit)]
    assert submitted.jobs[0].command == ("next", "1.50"), "not as the file spells it"
    assert [one.message for one in bad if isinstance(one, Log)] == ["sim.1 bad (3) after 7"]


def test_mistake_in_a_nested_action_is_reported_with_its_place(registry: Registry) -> None:
    found = complaints(
        registry,
        "{trigger: job-finish, name: sim, action: {name: judge, "
        "good: {name: submit, label: nxt}, "
        "otherwise: [{name: lgo, message: x}, {name: log, mesage: y}, "
        "{name: log, message: '{outcom}'}, {name: submit, label: next, with: {nodes: none}}], "
        "by-code: {3: {name: enable, rules: later}}}}",
    )

    assert found["nxt"] == ("there is no job group 'nxt'", "did you mean 'next'?")
    assert found["lgo"] == ("there is no action 'lgo'", "did you mean 'log'?")
    assert found["mesage: y"] == (
        "unknown key 'mesage' in the action 'log'",
        "did you mean 'message'?",
    )
    assert found["{outcom"][0] == "the event of trigger 'job-finish' has no field 'outcom'"
    assert "did you mean {outcome}?" in (found["{outcom"][1] or "")
    assert found["none"][0] == "'nodes' is the string 'none', expected a whole number"
    assert found["later"][0] == "there is no rule 'later'"


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        ("{name: judge, good: {name: cancel}}", "the trigger 'start' has no job"),
        ("{name: judge, good: {name: judge, good: [{name: cancel}]}}", "the trigger 'start'"),
        ("{name: judge, good: []}", "'good' is empty"),
        ("{name: judge, good: {label: sim}}", "has no 'name'"),
        ("{name: judge, good: sim}", "'good' is the string 'sim', expected a list or a mapping$"),
        ("{name: judge, good: {name: submit, label: next, backoff: 2}}", "not allowed here"),
        ("{name: judge, good: {name: log, message: x, repetitions: 2}}", "not allowed here"),
    ],
)
def test_impossible_nested_action_is_rejected(
    registry: Registry, action: str, complaint: str
) -> None:
    with pytest.raises(FileErrors) as caught:
        ensemble(registry, f"{{trigger: start, action: {action}}}")
    (error,) = caught.value.errors
    assert re.search(complaint, error.what)


@pytest.mark.checkout
def test_nested_action_needs_the_executors_capability(registry: Registry) -> None:
    rule = "{trigger: start, action: {name: judge, good: {name: grow}}}"
    cannot = [
        record for record in registry.executors.values() if "resize" not in record.capabilities
    ]
    assert ensemble(registry, rule).heartbeat == 60, "a grow inside turns the heartbeat on"
    with pytest.raises(FileErrors, match="needs an executor that can resize"):
        load_text(f"{JOBS}  - {rule}\n", registry, executor=cannot[0])


def test_group_submitted_by_a_nested_action_causes_no_warning(registry: Registry) -> None:
    assert ensemble(registry, JUDGE).warnings == ()


@pytest.mark.parametrize(
    ("rule", "concerned"),
    [
        ("trigger: job-finish, name: sim, action: {name: judge-slowly}", "sim"),
        ("trigger: job-clean, action: {name: judge, good: {name: judge-slowly}}", None),
        ("trigger: job-success, name: sim, action: {name: judge-slowly}", False),
        ("trigger: job-start, name: sim, action: {name: judge-slowly}", False),
        ("trigger: job-finish, name: sim, action: {name: judge}", False),
    ],
)
def test_rule_with_an_action_by_outcome_handles_failures(
    registry: Registry, rule: str, concerned: str | bool | None
) -> None:
    bound = ensemble(registry, f"{{{rule}}}").rules[-1]
    assert bound.concerns_failure is (concerned is not False)
    if concerned is not False:
        assert bound.failure_group == concerned


def test_schema_covers_nested_actions(registry: Registry) -> None:
    validator = jsonschema_rs.validator_for(schema(registry))
    data: dict[str, Any] = {
        "jobs": [{"name": "sim", "command": "x"}],
        "rules": [
            {
                "trigger": "job-fail",
                "action": {"name": "judge", "good": [{"name": "submit", "label": "sim"}]},
            }
        ],
    }
    assert validator.is_valid(data)
    for wrong in (
        {"name": "terminate", "exit_code": "x"},
        {"name": "sbmit"},
        {"name": "log", "label": "x"},
    ):
        data["rules"][0]["action"]["good"] = [wrong]
        assert not validator.is_valid(data), wrong


SLOWLY = (
    "{id: slowly, trigger: job-finish, name: sim, repetitions: 9, action: {name: judge-slowly, "
    "good: {name: judge, good: {name: log, message: 'in the end {outcome}'}}, "
    "otherwise: {name: log, message: 'no: {outcome}'}}}"
)


def test_resumed_run_carries_out_nested_actions_of_an_interrupted_call(registry: Registry) -> None:
    """The snapshot is taken during the call."""
    checked = ensemble(registry, SLOWLY)
    told = Story(checked)
    told.start()
    told.begin("sim.0")
    (call,) = [one for one in told.end("sim.0") if isinstance(one, Call)]
    state = dump(told.engine)
    assert state is not None, "the state cannot be kept"
    later = load(state, checked)
    assert later is not None
    again = Decision.from_dict(json.loads(decisions_text([call]) or "")[0])
    assert isinstance(again, Call)
    assert again.options == call.options

    result = ({"action": again.options["good"], "fields": {"outcome": "fine"}},)
    decided = later.handle(CallReturned(told.now, call.call, result))

    assert [one.message for one in decided if isinstance(one, Log)] == ["in the end good"]
    assert decisions_text(decided) == decisions_text(
        told.engine.handle(CallReturned(told.now, call.call, result))
    )


def test_slow_action_gets_the_jobs_command_and_folder(tmp_path: Path, plugin: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(
        f"""
jobs:
  - name: sim
    command: sh -c 'echo melted-{{T}} > result; exit {{T}}'
    workdir: {tmp_path}/runs/{{index}}
    parameters: {{T: [0, 3]}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - trigger: job-fail
    repetitions: 2
    action: {{name: judge-slowly, otherwise: {{name: log, message: "{{job}}: {{outcome}}, {{steps}}"}}}}
  - trigger: job-success
    action: {{name: judge-slowly, good: {{name: log, message: "{{job}}: {{outcome}}"}}}}
""",
        encoding="utf-8",
    )
    ran = CliRunner().invoke(
        main, ["run", "--plugin", str(plugin), "--executor", "local", "--json", str(file)]
    )

    assert ran.exit_code == 0, ran.output
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    said = {line["message"] for line in lines if line.get("type") == "log"}
    assert said == {"sim.0: melted-0", "sim.1: melted-3, 3"}


def test_firing_has_the_job_and_the_current_group() -> None:
    seen: dict[str, Any] = {}

    def look(firing: Firing, options: Mapping[str, Any]) -> Iterator[Decision]:
        yield firing.set_group("sim", {"nodes": 4})
        job, group = firing.job_spec, firing.group("sim")
        assert job is not None
        assert group is not None
        seen.update(job=job, nodes=group.nodes, nothing=firing.group("other"))

    firing = FakeFiring(groups=[JobGroup(name="sim", command=("x",))], job="sim.1")
    list(look(firing, {}))
    assert (seen["job"].id, seen["nodes"], seen["nothing"]) == ("sim.1", 4, None)


def test_firing_sees_groups_as_changed_by_rules(registry: Registry) -> None:
    told = Story(
        """
jobs: [{name: sim, command: x, tasks: 2}]
rules:
  - {trigger: start, action: [{name: set, label: sim, with: {tasks: 3}}, {name: submit, label: sim}]}
"""
    )
    (one,) = told.submitted(told.start())
    record = told.engine.state.table.records[one]
    assert record.job.tasks == 3
    group = told.engine.state.table.groups["sim"].group
    assert group is not None
    assert group.tasks == 3


def test_nested_action_may_be_qualified_by_its_package(registry: Registry) -> None:
    rule = (
        "{trigger: job-finish, name: sim, action: {name: judging:judge, "
        "good: {name: judging:judge, good: {name: 'judging:judge-slowly'}}}}"
    )
    (_, bound) = ensemble(registry, rule).rules

    assert [each.name for each in bound.actions[0].flat()] == ["judge", "judge", "judge-slowly"]


def test_function_may_return_nested_actions(registry: Registry) -> None:
    binder = ensemble(registry, JUDGE).binder
    inner = {"name": "submit", "label": "next"}

    assert [each.name for each in binder.action({"name": "judge", "good": inner}).flat()] == [
        "judge",
        "submit",
    ]
    with pytest.raises(EnsembleError, match="no job group 'nxt'"):
        binder.action({"name": "judge", "good": {**inner, "label": "nxt"}})
    with pytest.raises(EnsembleError, match="no action 'sumbit'") as caught:
        binder.action({"name": "judge", "good": [{**inner, "name": "sumbit"}]})
    assert caught.value.hint == "did you mean 'submit'?"


def test_too_deeply_nested_actions_are_rejected(registry: Registry) -> None:
    deep = "{name: cancel, label: sim}"
    for _ in range(400):
        deep = f"{{name: judge, good: {deep}}}"
    with pytest.raises(EnsembleError):
        ensemble(registry, f"{{trigger: start, action: {deep}}}")


def test_nested_cancel_cancels_only_the_events_job(registry: Registry) -> None:
    told = Story(
        ensemble(
            registry,
            "{trigger: job-start, name: sim, action: {name: judge, otherwise: {name: cancel}}}",
        )
    )
    told.start()
    (decided,) = [one for one in told.begin("sim.1") if isinstance(one, Cancel)]
    assert decided.jobs == ("sim.1",)


def _outer(firing: Firing, options: Mapping[str, Any]) -> Iterator[Decision]:
    yield from firing.act(options["then"], {"found": 3})


class TestAnActionThatHoldsOthers(ActionContract):
    """Public contract suite for an action with nested actions."""

    plugin = ActionPlugin(
        name="outer",
        summary="does what it holds",
        plan=_outer,
        options={
            "type": "object",
            "required": ["then"],
            "properties": {"then": {"description": "What.", "x-ensemble": "action"}},
        },
    )
    options = {"then": [{"name": "log", "message": "{found}"}, {"name": "cancel"}]}  # noqa: RUF012

    def test_it_does_them_in_order(self) -> None:
        log, cancel = self._plan(self.options)
        assert isinstance(log, Log)
        assert log.message == "3"
        assert isinstance(cancel, Cancel)
        assert cancel.jobs == ("sim.0",)


def test_actions_with_different_fields_are_not_equal() -> None:
    plain = Action(name="log", message="{x}")
    assert plain.knowing({"x": 1}) == plain.knowing({"x": 1})
    assert plain.knowing({"x": 1}) != plain


def test_default_nested_actions_are_checked_and_carried_out(tmp_path: Path) -> None:
    file = tmp_path / "fallback.py"
    file.write_text(
        """
from ensemble_core import ActionPlugin, hookimpl

OTHERWISE = {
    "description": "What else.",
    "x-ensemble": "action",
    "default": {"name": "cancel"},
}


@hookimpl
def ensemble_actions():
    return [
        ActionPlugin(
            name="fallback",
            summary="what else",
            plan=lambda firing, options: firing.act(options["otherwise"]),
            options={"type": "object", "properties": {"otherwise": OTHERWISE}},
        )
    ]
""",
        encoding="utf-8",
    )
    registry = discover([file])
    told = Story(ensemble(registry, "{trigger: job-start, name: sim, action: {name: fallback}}"))
    told.start()
    (decided,) = [one for one in told.begin("sim.0") if isinstance(one, Cancel)]
    assert decided.jobs == ("sim.0",)
    with pytest.raises(FileErrors, match="the trigger 'start' has no job"):
        ensemble(registry, "{trigger: start, action: {name: fallback}}")


def test_schema_may_annotate_nested_actions_by_reference(
    tmp_path: Path,
) -> None:
    file = tmp_path / "refer.py"
    file.write_text(
        """
from ensemble_core import ActionPlugin, hookimpl

THEN = {"description": "What then.", "$ref": "#/$defs/then"}


@hookimpl
def ensemble_actions():
    return [
        ActionPlugin(
            name="refer",
            summary="by reference",
            plan=lambda firing, options: firing.act(options["then"]),
            options={
                "type": "object",
                "properties": {"then": THEN},
                "$defs": {"then": {"x-ensemble": "action"}},
            },
        )
    ]
""",
        encoding="utf-8",
    )
    registry = discover([file])
    rule = "{trigger: start, action: {name: refer, then: {name: submit, label: %s}}}"
    told = Story(ensemble(registry, rule % "next"))
    assert told.submitted(told.start()) == ["sim.0", "sim.1", "next.0"]
    with pytest.raises(FileErrors, match="no job group 'nxt'"):
        ensemble(registry, rule % "nxt")


def test_unknown_annotation_breaks_the_plugin() -> None:
    record = ActionPlugin(
        name="x",
        summary="x",
        plan=lambda firing, options: (),
        options={
            "type": "object",
            "properties": {"then": {"description": "x", "x-ensemble": "actions"}},
        },
    )
    with pytest.raises(PluginError, match=r"the unknown value 'actions'; known values: action,"):
        check_record(record)
