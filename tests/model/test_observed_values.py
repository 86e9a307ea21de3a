"""Observed values in rules: nan and infinity, columns with odd names, missing rows, expressions."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ensemble_testing import Story

from ensemble_core import EnsembleError, Expression, expression
from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.engine.rule_trace import RuleTracer
from ensemble_core.errors import FileErrors
from ensemble_core.journal.event_encoding import decisions_text, event_text, list_text, rows_of
from ensemble_core.model.conditions import parse
from ensemble_core.model.decisions import Cancel, Log
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Observed, Problem
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry

NAN, INF = math.nan, math.inf


def nothing(path: str) -> float | None:
    """No metric has a value."""
    return None


PLUGIN = """
from ensemble_core import (
    ActionPlugin, Observer, ObserverPlugin, Trigger, TriggerPlugin, expression, hookimpl,
)


class Silent(Observer):
    path = None

    def feed(self, data):
        return ()


def variables(options):
    columns = options.get("columns")
    means = unasked({}) if options.get("mean") else ()
    return None if columns is None else frozenset([*columns, *means])


def unasked(options):
    found = {name: "add 'mean: true' to the observer" for name in ("Converged", "Temp.mean")}
    return {} if options.get("mean") else found


@hookimpl
def ensemble_observers():
    columns = {"description": "Columns.", "type": "array"}
    mean = {"description": "Means as well.", "type": "boolean", "default": False}
    return [
        ObserverPlugin(
            name="md",
            summary="rows",
            build=lambda job, options: Silent(),
            options={"type": "object", "properties": {"columns": columns, "mean": mean}},
            variables=variables,
            unasked=unasked,
        )
    ]


@hookimpl
def ensemble_triggers():
    def above(name, options):
        return Trigger(metric=name, match=lambda event, fields: fields["value"] > 3)

    def of_md(name, options):
        return Trigger(
            events=("observed",),
            group=name,
            match=lambda event, fields: fields["observer"] == "md",
        )

    return [
        TriggerPlugin(
            name="converged",
            summary="it has converged",
            build=lambda name, options: Trigger(events=("observed",), group=name),
            name_means="group",
            needs_variables=lambda options: frozenset({"Converged"}),
        ),
        TriggerPlugin(
            name="enough",
            summary="so many have converged",
            build=lambda name, options: Trigger(
                metric=f"sum.{name}-Converged",
                group=name,
                match=lambda event, fields: fields["value"] >= options["jobs"],
            ),
            name_means="group",
            options={
                "type": "object",
                "properties": {"jobs": {"description": "How many.", "type": "integer"}},
                "required": ["jobs"],
            },
        ),
        TriggerPlugin(name="above", summary="above 3", build=above, name_means="metric"),
        TriggerPlugin(
            name="md-row",
            summary="a row of md",
            build=of_md,
            name_means="group",
            needs_observer="md",
        ),
    ]


def vary(firing, options):
    for name, text in options["variables"].items():
        number = text
        if isinstance(text, str) and text.startswith("="):
            number = expression(text).value(firing.fields, firing.metric)
        yield firing.log(f"{name} is {number}")


@hookimpl
def ensemble_actions():
    variables = {"description": "Numbers.", "type": "object", "x-ensemble": "expression"}
    return [
        ActionPlugin(
            name="change",
            summary="numbers that are worked out",
            plan=vary,
            options={"type": "object", "properties": {"variables": variables}},
        )
    ]
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    file = tmp_path_factory.mktemp("plugin") / "md.py"
    file.write_text(PLUGIN, encoding="utf-8")
    return discover([file])


def ensemble(registry: Registry, rule: str, observe: str = "{}") -> Ensemble:
    return load_text(
        f"""
jobs:
  - {{name: sim, command: "run {{T}}", parameters: {{T: [1, 2]}}, observe: {{md: {observe}}}}}
  - {{name: blind, command: run}}
rules:
  - {{trigger: start, action: [{{name: submit, label: sim}}, {{name: submit, label: blind}}]}}
  - {rule}
""",
        registry,
    )


def begun(registry: Registry, rule: str, observe: str = "{}") -> Story:
    told = Story(ensemble(registry, rule, observe))
    told.start()
    for job in ("sim.0", "sim.1"):
        told.begin(job)
    return told


def complaint(registry: Registry, rule: str, observe: str = "{}") -> EnsembleError:
    with pytest.raises(FileErrors) as caught:
        ensemble(registry, rule, observe)
    (error,) = caught.value.errors
    return error


# -- nan and infinity --------------------------------------------------------------------------


def test_a_rule_fires_on_the_row_whose_energy_is_nan(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: blown, trigger: observed, name: sim, when: isnan(PotEng), action: {name: cancel}}",
    )

    assert told.fired(told.observe("sim.0", PotEng=-5.0)) == []
    decided = told.observe("sim.1", PotEng=NAN)

    assert told.fired(decided) == ["blown"]
    assert [one.jobs for one in decided if one.type == "cancel"] == [("sim.1",)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("when", "value", "holds"),
    [
        ("x > 1", NAN, False),
        ("x < 1", NAN, False),
        ("x == x", NAN, False),
        ("x != 1", NAN, True),
        ("isnan(x) or x > 5", NAN, True),
        ("isnan(2 * x + 1)", NAN, True),
        ("isinf(x) and x < 0", -INF, True),
        ("x > 1e300", INF, True),
        ("isnan(y)", NAN, False),
        ("round(x) == 1", NAN, False),
    ],
)
def test_conditions_with_nan_and_infinity(when: str, value: float, holds: bool) -> None:
    assert parse(when).holds(None, {"x": value}, nothing) is holds


def test_a_comparison_with_nan_fires_no_rule_and_the_mean_skips_it(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: hot, trigger: metric, name: last.sim-Temp, when: '> 3', repetitions: 9, "
        "action: {name: log, message: hot}}",
    )

    fired = [told.fired(told.observe("sim.0", Temp=temp)) for temp in (4.0, NAN, INF, 5.0)]

    assert fired == [["hot"], [], ["hot"], ["hot"]], "nan is not above 3, but infinity is"
    assert told.metric("last.sim-Temp") == 5.0
    assert told.metric("mean.sim-Temp") == 4.5


@pytest.mark.parametrize("values", [{"E": NAN, "T": 1.5}, {"E": INF}, {"E": -INF, "F": NAN}])
def test_the_journal_keeps_nan_in_rows(registry: Registry, values: dict[str, float]) -> None:
    """A replay triggers the same rules with the same decisions."""
    rule = (
        "{trigger: observed, name: sim, when: isnan(E) or isinf(E), "
        "action: {name: log, message: '{E} {observer}'}}"
    )
    told = begun(registry, rule)
    event = Observed(told.now, "sim.0", "md", values, 20.0)
    decided = told.tell(event)
    (row,) = rows_of(1, 1, list_text([event_text(event, decided)]))

    again = begun(registry, rule).tell(row.event())

    assert decided
    assert row.decisions == decisions_text(decided) == decisions_text(again)


def test_json_output_with_nan_is_valid_json(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(
        """
jobs:
  - name: train
    command: printf '{"loss":0.5}\\n{"loss":NaN}\\n'
    observe: {json-lines: {}}
rules:
  - {trigger: start, action: {name: submit, label: train}}
  - id: diverged
    trigger: observed
    name: train
    when: isnan(loss)
    action: {name: log, message: "{job} has loss {loss}"}
""",
        encoding="utf-8",
    )

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    ran = CliRunner().invoke(main, ["run", "--executor", "local", "--json", str(file)])
    lines = [json.loads(line, parse_constant=refuse) for line in ran.stdout.splitlines()]
    assert ran.exit_code == 0, ran.output
    assert "train.0 has loss nan" in [line.get("message") for line in lines]
    rows = [line["values"] for line in lines if line.get("type") == "observed"]
    assert rows == [{"loss": 0.5}, {"loss": None}]

    replayed = CliRunner().invoke(main, ["replay", "last"])
    assert replayed.exit_code == 0, replayed.output
    shown = CliRunner().invoke(main, ["events", "last", "--json"])
    told = [json.loads(line, parse_constant=refuse) for line in shown.stdout.splitlines()]
    assert {"loss": None} in [line.get("values") for line in told]
    why = CliRunner().invoke(main, ["why", "last", "diverged"])
    assert "loss=nan" in why.output


@pytest.mark.parametrize(
    "when", ["isnan(value)", "isinf(value) and T > 1", 'isnan(metric("max.sim-Temp"))']
)
def test_a_condition_on_a_nan_metric_is_rejected(registry: Registry, when: str) -> None:
    error = complaint(
        registry,
        f"{{trigger: metric, name: mean.sim-Temp, when: '{when}', "
        "action: {name: cancel, label: sim}}",
    )

    assert error.code == "never-holds"
    assert "observed" in (error.hint or "")


# -- names -------------------------------------------------------------------------------------


def test_conditions_use_column_names_of_the_log(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: molten, trigger: observed, name: sim, repetitions: 9, "
        "when: 'c_msd[4] > 0.5 * T and f_ave[1][2] < 2 and Temp.mean > 1 and "
        'metric("max.sim-c_msd[4]") == 0.7 and metric("last.sim-Temp.mean") == 2\', '
        "action: {name: log, message: molten}}",
        "{columns: [Temp, 'c_msd[4]', 'f_ave[1][2]'], mean: true}",
    )
    row = {"c_msd[4]": 0.7, "f_ave[1][2]": 1.0, "Temp.mean": 2.0}

    assert told.fired(told.observe("sim.0", row)) == ["molten"]
    assert told.fired(told.observe("sim.1", row)) == [], "its T is 2"
    assert told.fired(told.observe("sim.0", {**row, "c_msd[4]": 0.4})) == []


@pytest.mark.parametrize(
    "when", ["c_msd[x] > 1", "c_msd[1:2] > 1", "(c, d)[0] > 1",
             "value[0] > 1", "job.upper == 1", "Temp.__class__ > 1", "Temp._mean > 1",
             "Temp.mean() > 1", "().mean > 1", "'a'.mean > 1"],
)  # fmt: skip
def test_invalid_column_names_are_rejected(when: str) -> None:
    with pytest.raises(EnsembleError):
        parse(when)


def test_a_misspelt_column_has_a_suggestion(registry: Registry) -> None:
    error = complaint(
        registry,
        "{trigger: observed, name: sim, when: 'c_msd[3] > 1', action: {name: cancel}}",
        "{columns: ['c_msd[4]', Temp]}",
    )
    assert error.hint == "did you mean 'c_msd[4]'?"


@pytest.mark.parametrize("when", ["c_msd[4] > 2", "Temp > 1 and c_msd[4] < 2", "c_msd[4]"])
def test_a_column_with_brackets_in_a_flow_mapping_must_be_quoted(
    registry: Registry, when: str
) -> None:
    error = complaint(registry, f"{{trigger: observed, when: {when}, action: {{name: cancel}}}}")

    assert error.hint is not None
    assert error.hint.startswith('quote text that contains brackets: "c_msd[4]')
    ensemble(registry, f'{{trigger: observed, when: "{when}", action: {{name: cancel}}}}')


def test_a_message_may_name_any_column(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: r, trigger: observed, name: sim, action: {name: log, "
        "message: '{job}: {c_msd[4]} {Temp.mean} {{Temp.mean}}'}}",
        "{columns: [Temp, 'c_msd[4]'], mean: true}",
    )
    decided = told.observe("sim.0", {"c_msd[4]": 0.7, "Temp.mean": 2.0})
    assert [one.message for one in decided if isinstance(one, Log)] == ["sim.0: 0.7 2 {Temp.mean}"]
    error = complaint(
        registry,
        "{trigger: observed, name: sim, action: {name: log, message: 'at {Temp.maen}'}}",
        "{columns: [Temp], mean: true}",
    )
    assert "did you mean {Temp.mean}?" in (error.hint or "")


def test_rows_of_a_cancelled_job_trigger_no_rule(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: hot, trigger: observed, name: sim, repetitions: 9, "
        "when: 'Temp > 1 and metric(\"max.sim-Temp\") > 1', action: {name: cancel}}",
        "{columns: [Temp]}",
    )
    assert told.fired(told.observe("sim.0", Temp=2.0)) == ["hot"]
    assert told.fired(told.observe("sim.0", Temp=4.0)) == [], "it was about to stop"
    assert told.fired(told.observe("sim.1", Temp=3.0)) == ["hot"]
    assert told.engine.state.metric("max.sim-Temp") == 4.0


def test_rows_trigger_rules_again_if_the_cancel_failed(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: hot, trigger: observed, name: sim, repetitions: 9, when: Temp > 1, "
        "action: {name: cancel}}",
        "{columns: [Temp]}",
    )
    assert told.fired(told.observe("sim.0", Temp=2.0)) == ["hot"]
    told.tell(Problem(told.now, "1 jobs could not be cancelled", "error", ("sim.0", "gone.7")))
    decided = told.observe("sim.0", Temp=3.0)
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("sim.0",)]
    assert told.fired(told.observe("sim.0", Temp=4.0)) == []


def test_a_condition_may_use_the_observer_of_a_row(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: own, trigger: observed, name: sim, when: 'observer == \"md\"', repetitions: 9, "
        "action: {name: log, message: '{observer}'}}",
        "{columns: [Temp]}",
    )
    assert told.fired(told.observe("sim.0", Temp=1.0, observer="json-lines")) == []
    decided = told.observe("sim.0", Temp=1.0, observer="md")
    assert [one.message for one in decided if isinstance(one, Log)] == ["md"]


def test_match_of_a_trigger_gets_the_observer_and_the_value(registry: Registry) -> None:
    of_md = "{id: r, trigger: md-row, name: sim, action: {name: log, message: x}}"
    told = begun(registry, of_md)
    assert told.fired(told.observe("sim.0", Temp=9.0, observer="other")) == []
    assert told.fired(told.observe("sim.0", Temp=9.0, observer="md")) == ["r"]

    above = "{id: r, trigger: above, name: last.sim-Temp, action: {name: log, message: x}}"
    told = begun(registry, above)
    tracer = RuleTracer(told.engine, "r")
    for temp, kind in ((2.0, "trigger"), (4.0, "fired")):
        assert told.fired(told.observe("sim.0", Temp=temp)) == ["r"] * (kind == "fired")
        assert [verdict.kind for verdict in tracer.verdicts] == [kind]


# -- missing rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("observe", ["{}", "{columns: [Temp]}"])
@pytest.mark.parametrize(
    "rule",
    [
        "{trigger: metric, name: sum.sim-Converged, when: 2, action: {name: cancel, label: sim}}",
        "{trigger: metric, name: last.sim-Temp.mean, action: {name: cancel, label: sim}}",
        "{trigger: observed, name: sim, when: Converged == 1, action: {name: cancel}}",
        "{trigger: observed, when: Temp.mean > 1, action: {name: cancel}}",
        "{trigger: start, when: 'metric(\"sum.sim-Converged\") > 1', action: {name: terminate}}",
        "{trigger: observed, name: sim, action: {name: change, variables: {x: '=2 * Temp.mean'}}}",
        "{trigger: observed, name: sim, action: {name: log, message: '{job}: {Temp.mean}'}}",
        "{trigger: converged, name: sim, action: {name: cancel}}",
        "{trigger: converged, action: {name: cancel}}",
        "{trigger: enough, name: sim, jobs: 2, action: {name: cancel}}",
    ],
)
def test_a_rule_on_missing_rows_is_rejected_with_a_hint(
    registry: Registry, rule: str, observe: str
) -> None:
    error = complaint(registry, rule, observe)

    assert error.hint == "add 'mean: true' to the observer"
    assert error.where is not None
    assert error.where.line == 7
    ensemble(registry, rule, "{columns: [Temp], mean: true}")  # with the hint's change, it is valid


def test_a_trigger_on_a_group_without_observers_is_rejected(registry: Registry) -> None:
    error = complaint(registry, "{trigger: converged, name: blind, action: {name: cancel}}")

    assert error.what == (
        "'converged' needs 'Converged', but no observer of the job group 'blind' yields it"
    )
    assert "observe" in (error.hint or "")


def test_a_trigger_may_use_a_metric_of_its_group(registry: Registry) -> None:
    told = begun(
        registry,
        "{id: both, trigger: enough, name: sim, jobs: 2, when: '< 5', "
        "action: {name: log, message: '{job} {value}'}}",
        "{mean: true}",
    )
    assert told.ensemble.rules[-1].label == "enough (sim)"
    assert told.fired(told.observe("sim.0", Converged=1.0)) == []
    decided = told.observe("sim.1", Converged=1.0)
    assert [one.message for one in decided if isinstance(one, Log)] == ["sim.1 2"]


@pytest.mark.parametrize("name", ["name: blind, ", "name: other, "])
def test_a_trigger_on_another_observers_rows_is_rejected(registry: Registry, name: str) -> None:
    text = f"""
jobs:
  - {{name: blind, command: run}}
  - {{name: other, command: run, observe: {{json-lines: {{}}}}}}
rules:
  - {{trigger: md-row, {name}action: {{name: cancel}}}}
"""
    with pytest.raises(FileErrors, match="does not have") as caught:
        load_text(text, registry)
    assert caught.value.errors[0].hint == "add 'observe: {md: {}}' to the job group"


def test_a_rule_on_rows_without_an_observer_causes_a_warning(registry: Registry) -> None:
    found = ensemble(registry, "{id: x, trigger: observed, name: blind, action: {name: cancel}}")

    (warning,) = found.warnings
    assert warning.startswith("rule 'x' waits for observed rows, but the job group 'blind'")


# -- expressions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("= 2 * T", 6),
        ("=T / 2", 1.5),
        ("T ** 2 + max(1, Temp)", 12.25),
        ('= metric("mean.sim-Temp") * 10', 40.0),
        ("= c_msd[4]", 0.5),
        ("= 1 if T > 2 else 0", 1),
        ("= Press", None),
        ('= metric("mean.sim-Press")', None),
        ("= nothing + 1", None),
        ("= T / 0", None),
        ("= name", None),
        ("= 1e308 * 10", None),
    ],
)
def test_an_expression_is_a_number_or_none(text: str, number: float | None) -> None:
    fields: dict[str, Any] = {"T": 3, "Temp": 3.25, "c_msd[4]": 0.5, "Press": NAN, "name": "finish"}
    found = expression(text).value(fields, {"mean.sim-Temp": 4.0, "mean.sim-Press": None}.get)

    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("=", "empty"),
        ("= 1 +", "does not parse"),
        ("= T > 1", "is a condition"),
        ("= not T", "is a condition"),
        ("= isnan(T)", "is a condition"),
        ("= 'a'", "is a text"),
        ("= 1 if T else 'a'", "is a text"),
        ("= (1, 2)", "is a list"),
        ("= open('x')", "calls open"),
        ("= T.__class__", "attribute"),
        ("= [x for x in T]", "comprehension"),
        ("= " + "-" * 1990 + "1", "too deep"),
        ("= " + "1 + " * 600 + "1", "longer"),
    ],
)
def test_expressions_that_are_never_numbers_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(EnsembleError, match=reason):
        expression(text)


def test_only_expressions_in_options_are_evaluated(
    registry: Registry,
) -> None:
    """A metric that only an expression uses is computed, too."""
    told = begun(
        registry,
        "{trigger: observed, name: sim, when: clock == 30, action: {name: change, variables: "
        "{a: '= T * 10', b: '= metric(\"p99.sim-Temp\") - Temp', c: T * 10, d: 7}}}",
    )
    for clock, temp in ((10.0, 5.0), (20.0, 3.0)):
        told.observe("sim.1", Temp=temp, clock=clock)
    decided = told.observe("sim.1", Temp=4.0, clock=30.0)

    said = [one.message for one in decided if isinstance(one, Log)]
    assert (said[0], said[2], said[3]) == ("a is 20", "c is T * 10", "d is 7")
    assert float(said[1].removeprefix("b is ")) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("= 2 * TT", "unknown name 'TT' in '2 * TT'", "did you mean 'T'?"),
        ('= metric("mean.sim-Tmp")', "unknown metric 'mean.sim-Tmp'", "mean.sim-Temp"),
        ("= 2 *", "does not parse", "write arithmetic"),
    ],
)
def test_expressions_are_checked_with_the_file(
    registry: Registry, text: str, what: str, hint: str
) -> None:
    rule = f"{{trigger: observed, name: sim, action: {{name: change, variables: {{a: '{text}'}}}}}}"
    error = complaint(registry, rule, "{columns: [Temp]}")

    assert what in error.what
    assert hint in (error.hint or "")
    assert error.where is not None
    assert error.where.column == rule.index(f"'{text}'") + 5


def test_expressions_are_thread_safe() -> None:
    twice = expression("= 2 * x + x")
    assert isinstance(twice, Expression)
    wrong: list[float | None] = []

    def work(number: int) -> None:
        for _ in range(300):
            found = twice.value({"x": number}, nothing)
            if found != 3 * number:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
