"""A name that is both a printed column and a result means the result, over jobs.

This holds in rules as in tables. ``rows.NAME`` means the rows.
"""

from __future__ import annotations

import pytest
from ensemble_testing import Story
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.plugin.discovery import discover

STATISTICS = ("mean", "error", "variance", "min", "max", "sum", "median")
TOLD = "|".join(f"{{{name}.E:.12g}}" for name in STATISTICS)
OF_TABLE = "|".join(f"{{last.t.{name}:.12g}}" for name in STATISTICS)
COLUMNS = ", ".join(f"{name}: {name}.E" for name in STATISTICS)


def study(
    rules: str,
    *,
    result: str = "{E: last.E}",
    more: str = "",
    by: str = "T",
    columns: str = COLUMNS,
) -> str:
    return f"""
jobs:
  - name: sim
    command: sim {{T}}
    parameters: {{T: [1, 2]}}
    replicas: 3
    observe: {{key-value: {{fields: [E, step]}}}}
    result: {result}
{more}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
{rules}
results:
  t: {{of: sim, by: [{by}], columns: {{{columns}}}}}
"""


def rule(trigger: str, message: str, *, when: str = "") -> str:
    condition = f" when: '{when}'," if when else ""
    says = f"action: {{name: log, message: '{message}'}}"
    return f"  - {{trigger: {trigger}, name: sim, repetitions: 99,{condition} {says}}}\n"


def run(story: Story, rows: dict[str, list[float]]) -> list[str]:
    """Run each job with these values of E. Return the messages of the rules."""
    story.start()
    for job in rows:
        story.begin(job)
    for job, values in rows.items():
        for number, value in enumerate(values):
            story.observe(job, E=value, step=float(number))
    for job in rows:
        story.end(job)
    return story.messages()


def numbers(text: str) -> list[float | None]:
    return [float(each) if each not in ("", "None", "?") else None for each in text.split("|")]


RELAX = {f"sim.{index}": [-1.0, -2.0, -(90.0 + index)] for index in range(6)}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=4), min_size=6, max_size=6
    ),
    st.sampled_from(["last.E", "mean.E", "max.E - 1", "mean.rows.E", "count.submitted + last.E"]),
    st.permutations(range(6)),
)
def test_expression_in_a_rule_has_the_value_of_the_same_expression_in_a_table(
    rows: list[list[float]], result: str, order: list[int]
) -> None:
    story = Story(
        study(
            rule("idle, each: [T]", f"{TOLD}#{OF_TABLE}"),
            result=f"{{E: {result}}}",
        )
    )
    said = run(story, {f"sim.{index}": rows[index] for index in order})
    assert len(said) == 2
    for text in said:
        in_rule, in_table = (numbers(part) for part in text.split("#"))
        assert in_rule == pytest.approx(in_table, rel=1e-9, abs=1e-9, nan_ok=True)


def test_rows_of_a_name_that_is_a_result_are_a_statistic_of_their_own() -> None:
    asked = "{mean.E}|{mean.rows.E}|{min.rows.E}|{max.rows.E}|{last.rows.E}"
    said = run(Story(study(rule("idle", asked))), RELAX)
    assert said == ["-92.5|-31.8333|-95|-1|-95"]


def test_slices_have_the_results_and_the_rows() -> None:
    said = run(Story(study(rule("idle, each: [T]", "{mean.E}|{mean.rows.E}"))), RELAX)
    assert said == ["-91|-31.3333", "-94|-32.3333"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("mean.sim-E", -92.5),
        ("mean.sim-rows.E", -191 / 6),
        ("max.sim-E", -90.0),
        ("max.sim-rows.E", -1.0),
        ("max.sim-step", 2.0),
        ("max.sim-rows.step", 2.0),
    ],
)
def test_metric_has_the_results_unless_it_says_rows(path: str, value: float) -> None:
    said = run(Story(study(rule("idle", f"{{{path}:.9f}}"))), RELAX)
    assert [float(each) for each in said] == [pytest.approx(value)]


def test_rows_of_a_name_without_a_result_are_the_same_as_the_name() -> None:
    said = run(Story(study(rule("idle", "{mean.step}|{mean.rows.step}"))), RELAX)
    assert said == ["1|1"]


def test_metric_rule_on_a_result_is_considered_when_a_job_is_done() -> None:
    rules = (
        "  - {trigger: metric, name: max.sim-E, when: '> -100', action: {name: log, message: hi}}\n"
    )
    story = Story(study(rules))
    story.start()
    story.begin("sim.0")
    assert story.fired(story.observe("sim.0", E=-1.0)) == []
    assert story.fired(story.end("sim.0")) == ["rule-2"]


def test_metric_rule_on_rows_is_considered_at_each_row() -> None:
    rules = "  - {trigger: metric, name: max.sim-rows.E, when: '> -100', action: {name: log, message: hi}}\n"
    story = Story(study(rules))
    story.start()
    story.begin("sim.0")
    assert story.fired(story.observe("sim.0", E=-1.0)) == ["rule-2"]


@pytest.mark.parametrize("name", ["mean.E", "mean.rows.E"])
def test_names_of_one_job_are_its_rows(name: str) -> None:
    story = Story(
        study(
            rule("observed", f"row {{{name}}}", when=f"{name} < -1")
            + rule("job-done", f"done {{{name}}} {{all.mean.E}} {{all.mean.rows.E}}"),
            result=f"{{E: min.E, M: {name}, double: 2 * {name}}}",
            columns="M: mean.M, D: mean.double",
        )
    )
    said = run(story, {"sim.0": [-1.0, -3.0], "sim.1": [-5.0]})
    assert said == ["row -2", "row -5", "done -2 -3 -3", "done -5 -4 -3"]
    assert story.engine.tables()["t"] == [{"T": 1, "n": 2, "reused": 0, "M": -3.5, "D": -7.0}]


def test_retry_reads_the_rows_of_its_job() -> None:
    more = "    retry: {times: 1, when: mean.E < -2}"
    story = Story(study("", more=more))
    story.start()
    for job, value in (("sim.0", -1.0), ("sim.1", -9.0)):
        story.begin(job)
        story.observe(job, E=value)
        story.end(job, status=256)
    assert story.submitted()[6:] == ["sim.1-1"]


def test_filter_of_a_result_sees_results_and_that_of_rows_sees_columns() -> None:
    asked = "{mean.E(E < -92)}|{mean.rows.E(step == 1)}|{mean.E(T == 1)}|{count.done(T == 1)}"
    assert run(Story(study(rule("idle", asked))), RELAX) == ["-94|-2|-91|3"]


def test_filter_of_one_jobs_rows_sees_columns() -> None:
    said = run(
        Story(study(rule("job-done", "{mean.E(step > 0)}|{mean.rows.E(step > 0)}"))),
        {"sim.0": [5.0, 1.0, 2.0]},
    )
    assert said == ["1.5|1.5"]


def test_filter_with_a_column_of_rows_names_the_statistic_of_the_rows() -> None:
    with pytest.raises(FileErrors, match=r"write mean\.rows\.E\(step > 1\)"):
        load_text(study(rule("idle", "{mean.E(step > 1)}")), discover())


def test_failed_jobs_count_in_the_rows_only() -> None:
    story = Story(study(rule("idle", "{mean.E}|{mean.rows.E}")))
    story.start()
    for job, status in (("sim.0", 0), ("sim.1", 256)):
        story.begin(job)
        story.observe(job, E=float(job[-1]))
        story.end(job, status=status)
    for index in range(2, 6):
        story.play(f"sim.{index}", status=256)
    assert story.messages()[-1] == "0|0.5"


def test_snapshot_keeps_both() -> None:
    story = Story(study(rule("idle", "{mean.E}|{mean.rows.E}")))
    story.start()
    for job in RELAX:
        story.begin(job)
        story.observe(job, E=float(job[-1]))
        story.observe(job, E=10.0 * float(job[-1]))
    for job in list(RELAX)[:3]:
        story.end(job)
    story.engine = load(dump(story.engine), story.ensemble)
    for job in list(RELAX)[3:]:
        story.end(job)
    assert story.messages() == ["25|13.75"]


@pytest.mark.parametrize(
    ("by", "written"),
    [(", by: [T]", "mean.E_max"), (", by: [T], pivot: L", "mean.E_max"), ("", "E_max")],
)
def test_table_refuses_rows_and_says_what_to_write(by: str, written: str) -> None:
    file = study("", columns="x: max.rows.E").replace(", by: [T]", by)
    with pytest.raises(FileErrors) as told:
        load_text(
            file.replace("{T: [1, 2]}", "{T: [1, 2], L: [1]}").replace("{T}", "{T} {L}"), discover()
        )
    (error,) = told.value.errors
    assert error.hint is not None
    assert "'result: {E_max: max.E}'" in error.hint
    assert error.hint.endswith(f"write {written}")


def test_hint_of_a_table_without_the_rows_works() -> None:
    result, columns = "{E: last.E, E_max: max.E}", "x: mean.E_max"
    load_text(study("", result=result, columns=columns), discover())


@pytest.mark.parametrize("name", ["rows", "job"])
def test_table_cannot_have_a_name_with_another_meaning(name: str) -> None:
    with pytest.raises(FileErrors, match=f"cannot be named '{name}'"):
        load_text(study("").replace("  t: {of", f"  {name}: {{of"), discover())


@pytest.mark.parametrize(
    ("said", "error", "hint"),
    [
        ("mean.rows.Q", "yields 'Q'", "add 'Q' to the fields of key-value"),
        ("mean.sim-rows.Q", "has no column 'Q'", "add 'Q' to the fields of key-value"),
        ("mean.rows.G", "yields 'G'", ""),  # only a result
        ("mean.rows.duration", "has no column 'duration'", "known: E, step"),
        ("mean.rows.stp", "", "did you mean 'mean.rows.step'"),
        ("mean.row.step", "", "did you mean"),
    ],
)
def test_rows_of_a_name_that_is_no_column_are_refused(said: str, error: str, hint: str) -> None:
    file = study(rule("idle", f"{{{said}}}"), result="{E: last.E, G: last.E}")
    with pytest.raises(FileErrors) as told:
        load_text(file, discover())
    assert error in str(told.value)
    assert hint in str(told.value)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (rule("idle", "{NAME}"), "unreadable.E"),
        (rule("observed", "x", when="all.NAME > 0"), "unreadable.E"),
        (rule("idle", "{NAME}"), "unreadable.sim-E"),
    ],
)
def test_unreadable_values_are_those_of_rows(said: str, name: str) -> None:
    rows = name.replace("E", "rows.E")
    with pytest.raises(FileErrors, match="results are never unreadable") as told:
        load_text(study(said.replace("NAME", name)), discover())
    assert f"write {rows}" in str(told.value)
    load_text(study(said.replace("NAME", rows)), discover())


def test_unreadable_values_of_one_job_need_no_other_name() -> None:
    load_text(study(rule("observed", "{unreadable.E}")), discover())
    load_text(study("", more="    fail_if: unreadable.E > 0 or mean.E(step > 1) > 3"), discover())


def changed(before: str, after: str) -> Story:
    """Return a run in which the file changes after the first row."""
    story = Story(before)
    story.start()
    story.begin("sim.0")
    story.observe("sim.0", E=1.0)
    ensemble: Ensemble = load_text(after, discover()).begun("story", "/story")
    story.engine.reconfigure(ensemble)
    return story


def test_column_that_becomes_a_result_by_a_change_of_the_file_is_reported() -> None:
    message = rule("idle", "{mean.E}")
    story = changed(study(message, result="{G: last.E}", columns="n: n"), study(message))
    assert any(
        "'E' of the job group 'sim' has changed between column and result" in each
        for _, each in story.engine.state.metrics.reports
    )


def test_result_of_a_later_entry_of_a_group_is_computed() -> None:
    entry = "{name: g, command: 'x {T}', observe: {key-value: {fields: [E]}}, parameters: "
    story = Story(
        f"jobs: [{entry}{{T: [1]}}}}, {entry}{{T: [2]}}, result: {{R: last.E}}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: g}}]\n"
        "results: {t: {of: g, by: [T], columns: {R: mean.R}}}"
    )
    run(story, {"g.0": [3.0], "g.1": [4.0]})
    assert [row["R"] for row in story.engine.tables()["t"]] == [None, 4.0]
