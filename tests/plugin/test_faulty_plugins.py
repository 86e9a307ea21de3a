"""Faulty plugins: they do not affect runs that do not use them. Otherwise, the message names the
plugin and says how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import Story

from ensemble_core import (
    ActionPlugin,
    GeneratorPlugin,
    Observer,
    ObserverPlugin,
    StatisticPlugin,
    Trigger,
    TriggerPlugin,
)
from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.display.summary import rule_lines
from ensemble_core.display.text_style import TextStyle
from ensemble_core.errors import EnsembleError, FileErrors, PluginError
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.record_validation import CORE_EVENTS, check_record
from ensemble_core.plugin.registry import LoadedPlugin, Named, Registry

INSTALLED = discover()
PLAIN = TextStyle(unicode=True)

BELOW = """
from ensemble_core import StatisticPlugin, hookimpl


class Below:
    def __init__(self, target):
        self.target, self.number = target, 0

    def update(self, value):
        self.number += value < self.target

    def get(self):
        return self.number


@hookimpl
def ensemble_statistics():
    target = {"description": "What counts is below it.", "type": "number"}
    return [
        StatisticPlugin(
            name="below",
            summary="how many values were below a target",
            build=lambda options: Below(options["target"]),
            options={"type": "object", "properties": {"target": target}, "required": ["target"]},
        )
    ]
"""

#: A run with a function, which may read any metric, so that every statistic is computed.
WITH_FUNCTION = """
jobs: [{name: a, command: "true"}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-finish, name: a, action: {name: custom, label: look}}
custom: |
  def look(**kwargs):
      pass
"""


def with_records(**records: tuple[Named, ...]) -> Registry:
    plugin = LoadedPlugin(
        name="odd",
        distribution="ensemble-odd",
        version="1.0",
        module="odd",
        records=records,
    )
    return Registry([*INSTALLED.plugins, plugin])


def refused(text: str, registry: Registry) -> EnsembleError:
    with pytest.raises(FileErrors) as caught:
        load_text(text, registry)
    (error,) = caught.value.errors
    return error


def run(tmp_path: Path, plugin: str, text: str) -> Result:
    (tmp_path / "odd.py").write_text(plugin, encoding="utf-8")
    (tmp_path / "study.yaml").write_text(text, encoding="utf-8")
    given = ["run", "--no-progress", "--executor", "local", "--plugin", str(tmp_path / "odd.py")]
    return CliRunner().invoke(main, [*given, str(tmp_path / "study.yaml")])


# -- statistics that need options --------------------------------------------------------------


def asking(path: str, statistics: str = "{}") -> str:
    return (
        "jobs: [{name: a, command: run}]\n"
        f"statistics: {statistics}\n"
        "rules:\n"
        "  - {trigger: start, action: {name: submit, label: a}}\n"
        f"  - {{id: seen, trigger: metric, name: {path}, action: {{name: log, message: x}}}}\n"
    )


def test_unused_statistic_with_required_options_does_not_affect_a_run(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, BELOW, WITH_FUNCTION)

    assert done.exit_code == 0, done.output
    assert "below" not in done.output


def test_path_of_a_statistic_without_its_options_gets_a_hint(
    tmp_path: Path,
) -> None:
    (tmp_path / "odd.py").write_text(BELOW, encoding="utf-8")
    registry = discover([tmp_path / "odd.py"])

    error = refused(asking("below.a-duration"), registry)

    assert error.where is not None
    assert error.where.line == 5
    assert "statistic 'below' (plugin 'odd' of odd) needs the option 'target'" in error.what
    assert error.hint is not None
    assert "statistics: {below: {statistic: below, target: …}}" in error.hint
    assert "'below.a-duration'" in error.hint
    # As the hint says, under the same name or another.
    for name in ("below", "short"):
        text = asking(f"{name}.a-duration", f"{{{name}: {{statistic: below, target: 3}}}}")
        story = Story(load_text(text, registry))
        story.start()
        story.play("a.0", duration=2)
        assert story.metric(f"{name}.a-duration") == 1
        assert "seen" in story.fired()


def test_misspelt_group_is_reported_before_a_missing_option(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(BELOW, encoding="utf-8")

    error = refused(asking("below.b-duration"), discover([tmp_path / "odd.py"]))

    assert "unknown metric 'below.b-duration'" in error.what


def test_missing_option_in_a_returned_rule_is_reported(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(BELOW, encoding="utf-8")
    ensemble = load_text(WITH_FUNCTION, discover([tmp_path / "odd.py"]))
    spec = {"trigger": "metric", "name": "below.a-duration", "action": {"name": "terminate"}}

    with pytest.raises(EnsembleError, match="needs the option 'target'"):
        ensemble.binder.rule(spec, "late")


def test_default_statistic_with_a_required_option_is_rejected_on_loading() -> None:
    target: dict[str, Any] = {"description": "Below it.", "type": "number"}
    schema: dict[str, Any] = {"type": "object", "properties": {"target": target}}
    schema["required"] = ["target"]
    record = StatisticPlugin(
        name="below", summary="x", build=lambda options: Mean(), default=True, options=schema
    )

    with pytest.raises(PluginError, match=r"'default'.*option 'target' is required"):
        check_record(record)
    target["default"] = 3
    check_record(record)


# -- statistics that raise ---------------------------------------------------------------------


class Mean:
    def update(self, value: float) -> None:
        pass

    def get(self) -> Any:
        return 1.0


class Raises(Mean):
    def update(self, value: float) -> None:
        raise ValueError("math domain error")


class Speaks(Mean):
    def get(self) -> Any:
        return "a lot"


def no_build(options: Mapping[str, Any]) -> Any:
    raise RuntimeError("no licence")


def of_statistic(build: Callable[[Mapping[str, Any]], Any], **more: Any) -> Registry:
    record = StatisticPlugin(name="odd", summary="x", build=build, **more)
    return with_records(statistic=(record,))


def test_unused_statistic_that_cannot_be_built_does_not_affect_a_run() -> None:
    story = Story(load_text(WITH_FUNCTION, of_statistic(no_build)))
    story.start()
    story.play("a.0")

    (said,) = story.messages("warning")
    assert "statistic 'odd' (plugin 'odd' of ensemble-odd 1.0) cannot be built" in said
    assert "no licence" in said
    assert "test_faulty_plugins.py:" in said
    assert story.metric("mean.a-duration") == 1
    assert not story.messages("error")


def test_rule_on_a_statistic_that_cannot_be_built_is_rejected() -> None:
    error = refused(asking("odd.a-duration"), of_statistic(no_build))

    assert "statistic 'odd' (plugin 'odd' of ensemble-odd 1.0) cannot be built" in error.what
    assert "no licence" in (error.cause or "")


def test_unused_statistic_whose_timed_when_raises_does_not_affect_a_run() -> None:
    registry = of_statistic(
        lambda options: Mean(), timed_when=lambda options: options["window"] > 0
    )

    assert load_text(WITH_FUNCTION, registry).warnings == ()
    assert "KeyError" in (refused(asking("odd.a-duration"), registry).cause or "")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Raises, "raised ValueError('math domain error') (tests/plugin/test_faulty_plugins.py:"),
        (Speaks, "is faulty: get() returned 'a lot', expected a number or None"),
    ],
)
def test_faulty_statistic_is_reported_once_and_other_rules_continue(
    kind: type[Mean], reason: str
) -> None:
    text = asking("odd.a-duration") + (
        "  - {id: row, trigger: observed, action: {name: log, message: y}, repetitions: 9}\n"
        "  - {id: wait, trigger: metric, name: mean.a-pending, action: {name: log, message: z}}\n"
        "  - {id: ask, trigger: job-fail, action: {name: custom, label: look}}\n"
        "custom: |\n  def look(**kwargs):\n      pass\n"
    )
    story = Story(load_text(text, of_statistic(lambda options: kind(), default=True)))
    story.start()
    story.begin("a.0", pending=1)
    story.observe("a.0", x=1.0)
    story.observe("a.0", x=2.0)
    story.end("a.0")
    story.engine.snapshot()
    story.wait(1)

    (said,) = story.messages("error")
    assert said.startswith("statistic 'odd' (plugin 'odd' of ensemble-odd 1.0) ")
    assert reason in said
    assert "odd.a-duration has no value from now on" in said
    assert story.fired() == ["rule-1", "wait", "row", "row"]
    assert story.metric("odd.a-duration") is None
    assert story.engine.state.metrics.reports == []


def test_unused_faulty_statistic_does_not_change_the_exit_code() -> None:
    ensemble = load_text(
        "jobs: [{name: a, command: run}]\n"
        "rules: [{trigger: start, action: {name: submit, label: a}}]\n",
        of_statistic(lambda options: Speaks(), default=True),
    )
    story = Story(ensemble)
    story.start()
    story.begin("a.0")
    story.engine.snapshot()
    story.end("a.0")

    assert story.exit_code == 0
    assert len(story.messages("warning")) == 1


def test_state_with_a_faulty_statistic_is_saved_and_restored() -> None:
    ensemble = load_text(asking("odd.a-duration"), of_statistic(lambda options: Speaks()))
    story = Story(ensemble)
    story.start()
    story.play("a.0")

    state = dump(story.engine)
    assert state is not None
    again = load(state, ensemble)
    assert again is not None
    assert again.state.metrics._reported == {("plugin 'odd' of ensemble-odd 1.0", "odd")}
    assert again.state.metric("odd.a-duration") is None


def test_run_with_a_faulty_statistic_can_be_replayed(tmp_path: Path) -> None:
    speaks = BELOW.replace("return self.number", 'return "a lot"').replace(
        ', "required": ["target"]', ""
    )
    speaks = speaks.replace('Below(options["target"])', "Below(3)")

    done = run(tmp_path, speaks, WITH_FUNCTION)
    replayed = CliRunner().invoke(main, ["replay", "last"])

    assert done.exit_code == 0, done.output
    assert done.output.count("statistic 'below' (plugin 'odd' of odd) is faulty") == 1
    assert replayed.exit_code == 0, replayed.output


# -- triggers ----------------------------------------------------------------------------------


def of_trigger(build: Callable[[], Any], *others: str) -> Registry:
    records = [
        TriggerPlugin(
            name=name,
            summary="x",
            build=lambda group, options: build(),
            name_means="group",
            fields=frozenset({"*"}),
        )
        for name in ("odd", *others)
    ]
    return with_records(trigger=tuple(records))


ODD = """
jobs: [{name: a, command: run}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: odd, trigger: odd, action: {name: log, message: x}}
  - {id: fine, trigger: job-finish, action: {name: log, message: y}}
"""


def test_core_events_are_those_of_the_built_in_triggers() -> None:
    own = {name for name in INSTALLED.triggers if INSTALLED.triggers[name].name == name}
    built_in = {
        r.name for p in INSTALLED.plugins if p.builtin for r in p.records.get("trigger", ())
    }
    assert built_in - {"metric", "interval"} == CORE_EVENTS
    assert built_in <= own


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("observe", "did you mean 'observed'?"),
        ("finish", "did you mean 'job-finish'?"),
        ("job_finish", "did you mean 'job-finish'?"),
        ("job-finished", "did you mean 'job-finish'?"),
        ("granted", "did you mean 'resize-granted'?"),
        ("metric", "metric=PATH"),
        ("interval", "every=SECONDS"),
    ],
)
def test_trigger_on_an_event_that_is_never_reported_is_rejected(name: str, meant: str) -> None:
    error = refused(ODD, of_trigger(lambda: Trigger(events=(name,))))

    assert error.what == (
        f"trigger 'odd' (plugin 'odd' of ensemble-odd 1.0) waits for {name!r}, but no event "
        "has this name"
    )
    assert error.where is not None
    assert error.where.line == 5
    assert meant in (error.hint or "")


@pytest.mark.parametrize("name", ["odd", "alarm", "observed", "job-memo"])
def test_trigger_may_wait_for_its_own_name_another_trigger_and_core_events(
    name: str,
) -> None:
    loaded = load_text(ODD, of_trigger(lambda: Trigger(events=(name,)), "alarm"))

    assert not [warning for warning in loaded.warnings if "waits for '" in warning]


def test_event_that_no_installed_plugin_reports_causes_a_warning() -> None:
    loaded = load_text(ODD, of_trigger(lambda: Trigger(events=("sunrise",))))

    (said,) = [warning for warning in loaded.warnings if "sunrise" in warning]
    assert "plugin 'odd' of ensemble-odd 1.0" in said


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Trigger(events="observed"), "events=('observed',)"),  # type: ignore[arg-type]
        (lambda: Trigger(events=("observed", 3)), "'events' contains 3"),  # type: ignore[arg-type]
        (lambda: Trigger(events=None), "expected a tuple of names"),  # type: ignore[arg-type]
        (lambda: Trigger(), "names no event"),
        (lambda: Trigger(events=("start",), every=3.0), "events=('start',) and every=3.0"),
        (lambda: "observed", "built a str, expected a Trigger"),
    ],
)
def test_invalid_trigger_object_is_rejected_with_a_message(
    build: Callable[[], Any], said: str
) -> None:
    error = refused(ODD, of_trigger(build))

    assert "plugin 'odd' of ensemble-odd 1.0" in error.what
    assert said in f"{error.what} {error.cause}"


def test_wakes_may_be_a_list() -> None:
    events: Any = ["job-finish", "observed"]
    assert Trigger(events=events).events == ("job-finish", "observed")


def raises(event: Any, fields: Mapping[str, Any]) -> bool:
    return bool(fields["no_such_field"])


def test_summary_mentions_an_error_in_a_rules_match() -> None:
    story = Story(load_text(ODD, of_trigger(lambda: Trigger(events=("job-finish",), match=raises))))
    story.start()
    story.play("a.0")

    report = story.engine.report()
    (rule,) = [rule for rule in report.rules if rule.id == "odd"]
    assert rule.state == "cut"
    told = "\n".join(rule_lines(report.rules, PLAIN))
    assert "switched off: its trigger 'odd' raised KeyError('no_such_field')" in told
    assert "test_faulty_plugins.py:" in told
    assert "chain" not in told
    (said,) = story.messages("error")
    assert said.startswith("rule odd is switched off: its trigger 'odd' raised")
    assert story.fired() == ["rule-1", "fine"]


def test_summary_mentions_firings_before_an_error_in_match() -> None:
    def at_second(event: Any, fields: Mapping[str, Any]) -> bool:
        return bool(fields["index"] == 0 or raises(event, fields))

    text = ODD.replace("command: run", "command: run, count: 2").replace(
        "message: x}", "message: x}, repetitions: 5"
    )
    story = Story(
        load_text(text, of_trigger(lambda: Trigger(events=("job-finish",), match=at_second)))
    )
    story.start()
    story.play("a.0")
    story.play("a.1")

    told = "\n".join(rule_lines(story.engine.report().rules, PLAIN))
    assert "fired 1" in told
    assert "then switched off: its trigger 'odd' raised KeyError" in told


# -- observers ---------------------------------------------------------------------------------


class Silent(Observer):
    @property
    def path(self) -> str | None:
        return None

    def feed(self, data: bytes) -> tuple[()]:
        return ()


def observed(variables: Callable[[Mapping[str, Any]], Any], path: str) -> Ensemble:
    record = ObserverPlugin(
        name="odd", summary="x", build=lambda job, options: Silent(), variables=variables
    )
    return load_text(
        "jobs: [{name: a, command: run, observe: {odd: {}}}]\n"
        "rules:\n"
        "  - {trigger: start, action: {name: submit, label: a}}\n"
        f"  - {{trigger: metric, name: {path}, action: {{name: log, message: x}}}}\n"
        "  - {trigger: observed, name: a, when: loss > 1, action: {name: log, message: y}}\n",
        with_records(observer=(record,)),
    )


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys])
def test_observer_may_return_its_variables_in_any_collection(kind: Callable[[Any], Any]) -> None:
    assert observed(lambda options: kind(["loss"]), "mean.a-loss").warnings == ()
    with pytest.raises(FileErrors, match="no column or result 'lose'"):
        observed(lambda options: kind(["loss"]), "mean.a-lose")


@pytest.mark.parametrize(
    ("said", "reason"),
    [("loss", "'loss', expected a set of names"), ([3], "3, which is not"), (7, "7, expected")],
)
def test_observer_with_invalid_variables_is_reported_by_name(said: Any, reason: str) -> None:
    (warning,) = observed(lambda options: said, "mean.a-loss").warnings

    assert warning.startswith("observer 'odd' (plugin 'odd' of ensemble-odd 1.0): its 'variables'")
    assert reason in warning


def test_observer_whose_variables_raise_is_reported() -> None:
    (warning,) = observed(lambda options: options["columns"], "mean.a-loss").warnings

    assert "KeyError('columns') (tests/plugin/test_faulty_plugins.py:" in warning


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"a": {"type": "string", "x-ensemble": "class"}},
            "'x-ensemble-base' does not give the required base class",
        ),
        (
            {"a": {"items": {"type": "string", "x-ensemble": "class"}}},
            "only a top-level option of type 'string'",
        ),
    ],
)
def test_an_option_that_names_a_class_needs_its_base_class(
    options: dict[str, Any], said: str
) -> None:
    schema = {"type": "object", "properties": options}
    record = GeneratorPlugin(name="g", summary="s", build=lambda vocs, given: None, options=schema)
    with pytest.raises(PluginError, match=said):
        check_record(record)


def test_only_options_of_generators_may_name_a_class() -> None:
    named = {"type": "string", "x-ensemble": "class", "x-ensemble-base": "a.B"}
    schema = {"type": "object", "properties": {"a": named}}
    record = ActionPlugin(name="a", summary="s", run=lambda context: None, options=schema)
    with pytest.raises(PluginError, match="only generators may have an option"):
        check_record(record)
