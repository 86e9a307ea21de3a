"""Sweeps: ``parameters``, ``points`` and ``replicas``, and the resulting jobs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Story
from hypothesis import given
from hypothesis import strategies as st

from ensemble_core.config import load, load_text
from ensemble_core.errors import EnsembleError, FileErrors
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.model.decisions import Log
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.sweep_values import by_count, by_step
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
RULES = "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"


def group(fields: str, **files: str) -> JobGroup:
    text = f"jobs:\n  - {{name: sim, {fields}}}\n{RULES}"
    attached = {name.replace("_", "."): body for name, body in files.items()}
    return load_text(text, REGISTRY, file="f.yaml", attached=attached).groups["sim"]


def errors(fields: str, **files: str) -> list[EnsembleError]:
    with pytest.raises(FileErrors) as caught:
        group(fields, **files)
    return list(caught.value.errors)


def commands(fields: str, **files: str) -> list[str]:
    return [" ".join(job.command) for job in group(fields, **files).jobs(0)]


# -- ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("{from: 1, to: 4}", [1, 2, 3, 4]),
        ("{from: 2.0, to: 2.6, step: 0.1}", [2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6]),
        ("{from: 0.1, to: 0.35, step: 0.1}", [0.1, 0.2, 0.3]),
        ("{from: 5, to: 1, step: -2}", [5, 3, 1]),
        ("{from: 0, to: 1, step: 0.5}", [0.0, 0.5, 1.0]),
        ("{from: -0.2, to: 0.2, step: 0.2}", [-0.2, 0.0, 0.2]),
        ("{from: 0, to: 1, count: 5}", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("{from: 0, to: 8, count: 5}", [0, 2, 4, 6, 8]),
        ("{from: 1, to: 1000, count: 4, log: true}", [1, 10, 100, 1000]),
        ("{from: 1e-3, to: 10, count: 5, log: true}", [0.001, 0.01, 0.1, 1.0, 10.0]),
        ("{from: 3, to: 3, count: 1}", [3]),
        ("{from: -0.3, to: 0.3, count: 7}", [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3]),
        (
            "{from: -1.0, to: 2, count: 10}",
            [
                -1.0,
                -0.666666666667,
                -0.333333333333,
                0.0,
                0.333333333333,
                0.666666666667,
                1.0,
                1.33333333333,
                1.66666666667,
                2.0,
            ],
        ),
        ("[1.5, 1.5]", [1.5, 1.5]),
        ("7", [7]),
        ("fast", ["fast"]),
    ],
)
def test_range_gives_the_expected_values(written: str, values: list[Any]) -> None:
    found = [job.parameters["T"] for job in group(f"command: 'x {{T}}', parameters: {{T: {written}}}").jobs(0)]  # fmt: skip
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]
    assert "-0" not in map(str, found)


@given(st.integers(-1000, 1000), st.integers(1, 50), st.integers(0, 200))
def test_decimal_steps_give_exact_decimal_numbers(first: int, step: int, steps: int) -> None:
    found = list(by_step(first / 100, (first + step * steps) / 100, step / 100))
    assert found == [(first + step * at) / 100 for at in range(steps + 1)]


@given(st.integers(-(10**20), 10**20), st.integers(1, 10**18), st.integers(0, 100))
def test_range_of_integers_is_exact(first: int, step: int, steps: int) -> None:
    values = by_step(first, first + step * steps, step)
    assert list(values) == list(range(first, first + step * steps + 1, step))


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(2, 100))
def test_range_with_a_count_includes_both_ends(first: float, last: float, count: int) -> None:
    values = by_count(first, last, count)
    assert len(values) == len(list(values)) == count
    assert (values[0], values[-1]) == (float(f"{first:.12g}"), float(f"{last:.12g}"))


@pytest.mark.parametrize(
    ("written", "code", "word"),
    [
        ("{from: 1, to: 5, step: 0}", "bad-range", "never ends"),
        ("{from: 1, to: 5, step: 1, count: 5}", "bad-range", "both 'step' and 'count'"),
        ("{from: 1, to: 5, log: true}", "bad-range", "needs 'count'"),
        ("{from: 0, to: 5, count: 3, log: true}", "bad-range", "of the same sign, not 0"),
        ("{from: -1, to: 5, count: 3, log: true}", "bad-range", "same sign"),
        ("{from: 1, to: 5, count: 1}", "bad-range", "cannot include both"),
        ("{from: 5, to: 1}", "empty", "empty"),
        ("{from: 1, to: .inf}", "wrong-type", ".inf"),
        ("{from: 1, to: 1e30}", "out-of-range", "1e+15"),
        ("{from: 1}", "missing-key", "'to'"),
        ("{from: a, to: 3}", "wrong-type", "'a'"),
        ("{from: 1, to: 5, count: 2.5}", "wrong-type", "whole number"),
        ("{from: 1, to: 5, count: 0}", "out-of-range", "at least 1"),
        ("{from: 1, to: 5, steps: 2}", "unknown-key", "'steps'"),
        ("[]", "empty", "empty"),
    ],
)
def test_invalid_range_is_rejected_at_its_line(written: str, code: str, word: str) -> None:
    (error,) = errors(f"command: 'x {{T}}', parameters: {{T: {written}}}")
    assert (error.code, error.where and error.where.line) == (code, 2)
    assert word in error.what


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("'range(1, 5)'", "{from: 1, to: 4}"),
        ("'range(0, 10, 3)'", "{from: 0, to: 9, step: 3}"),
        ("range(1,5)", "{from: 1, to: 4}"),
        ("[range(4)]", "{from: 0, to: 3}"),
        ("'np.arange(0, 1, 0.1)'", "{from: 1, to: 4}"),
    ],
)
def test_python_range_gets_our_notation_as_a_hint(written: str, hint: str) -> None:
    assert hint in str(errors(f"command: 'x {{T}}', parameters: {{T: {written}}}")[0].hint)


def test_sweep_of_ten_million_jobs_is_rejected_before_it_is_built() -> None:
    began = time.process_time()
    (error,) = errors("command: 'x {T}', parameters: {T: {from: 1, to: 10000000}}")
    spent = time.process_time() - began

    assert "10000000 jobs" in error.what
    began = time.process_time()
    list(by_step(1, 10_000_000, 1)[:1_000_000])
    assert spent < 10 * (time.process_time() - began) + 1


# -- order of the index ------------------------------------------------------------------------


def test_index_order_is_points_then_parameters_then_replicas() -> None:
    fields = "command: '{s} {T} {q} {replica} {index}', points: p.csv, parameters: {T: [1, 2], q: [a, b]}, replicas: 2"  # fmt: skip
    assert commands(fields, p_csv="s\nx\ny\n") == [
        f"{s} {T} {q} {replica} {index}"
        for index, (s, T, q, replica) in enumerate(
            (s, T, q, replica) for s in "xy" for T in (1, 2) for q in "ab" for replica in (0, 1)
        )
    ]


def test_replicas_and_count_mean_the_same() -> None:
    (error,) = errors("command: x, count: 2, replicas: 2")
    assert "'count' and 'replicas'" in error.what
    assert commands("command: 'x {replica}', count: 2") == ["x 0", "x 1"]
    assert [job.replica for job in group("command: x, replicas: 2").jobs(0)] == [0, 1]


def test_changed_group_keeps_its_sweep_in_a_snapshot() -> None:
    text = f"jobs: [{{name: sim, command: 'x {{T}}', parameters: {{T: {{from: 0, to: 1, count: 4}}}}}}]\n{RULES}"  # fmt: skip
    story = Story(
        text + "  - {trigger: start, action: {name: set, label: sim, with: {nodes: 2}}}\n"
    )
    story.start()
    state = snapshot.dump(story.engine)
    assert state is not None
    again = snapshot.load(state, story.ensemble)
    assert again is not None
    groups = (engine.state.table.groups["sim"].group for engine in (story.engine, again))
    first, second = (list(group.jobs(0)) for group in groups)
    assert first == second
    assert [job.nodes for job in first] == [2] * 4


def test_groups_with_the_same_name_are_submitted_together() -> None:
    text = f"jobs:\n  - {{name: sim, command: a}}\n  - {{name: sim, command: 'b {{T}}', parameters: {{T: [1, 2]}}, count: 2}}\n{RULES}"  # fmt: skip
    ensemble = load_text(text, REGISTRY)
    assert ["duplicate job group 'sim'" in text for text in ensemble.warnings] == [True]
    story = Story(ensemble)
    assert story.submitted(story.start()) == [f"sim.{index}" for index in range(5)]
    found = [job.command for job in ensemble.groups["sim"].jobs(0)]
    assert found == [("a",), ("b", "1"), ("b", "1"), ("b", "2"), ("b", "2")]


# -- points ------------------------------------------------------------------------------------


def test_column_of_points_is_numeric_if_all_cells_are() -> None:
    text = 'a,b,c,d,e\n1,2.50,007,x,"1,5"\n2,-3e2,8,1,\n'
    jobs = list(group("command: '{a} {b} {c} {d} {e}', points: p.csv", p_csv=text).jobs(0))
    assert jobs[0].parameters == {"a": 1, "b": 2.5, "c": "007", "d": "x", "e": "1,5"}
    assert jobs[1].parameters == {"a": 2, "b": -300.0, "c": "8", "d": "1", "e": ""}


def test_seed_of_64_bits_in_points_keeps_all_its_digits() -> None:
    text = "seed,T\n9007199254740993,1\n-18446744073709551615,1.5\n+7,2\n"
    assert commands("command: '{seed} {T}', points: p.csv", p_csv=text) == [
        "9007199254740993 1",
        "-18446744073709551615 1.5",
        "7 2",
    ]


def test_points_may_use_some_columns_of_a_file() -> None:
    text = "name,E (eV),n\nx,1,2\ny,3,4\n"
    fields = "command: '{name} {n}', points: {file: p.csv, columns: [n, name]}"
    assert commands(fields, p_csv=text) == ["x 2", "y 4"]


@pytest.mark.parametrize(
    ("points", "text", "where", "what"),
    [
        ("p.csv", "a,b\n1,2\n3\n", ("p.csv", 3), "the row has 1 cells, the header 2 columns"),
        ("p.csv", "a\n1\n3,4\n", ("p.csv", 3), "the row has 2 cells, the header 1 columns"),
        ("p.csv", "\na,b,a\n1,2,3\n", ("p.csv", 2), "columns 1 and 3 have the same name"),
        ("p.csv", "a,,\n1,2,3\n", ("p.csv", 1), "several columns have no name"),
        ("p.csv", "a\n", ("p.csv", 1), "no points"),
        ("p.csv", "", ("p.csv", 1), "no points"),
        ("p.csv", 'a\n"1\n2\n', ("p.csv", 3), "not CSV"),
        ("p.csv", "a,E (eV)\n1,2\n", ("p.csv", 1), "column 2 of "),
        ("p.csv", "a,index\n1,2\n", ("p.csv", 1), "{index} is built in"),
        ("{file: p.csv, columns: [aa]}", "a,b\n1,2\n", ("f.yaml", 2), "no column 'aa'"),
        ("p.csv", "T,a\n1,2\n", ("f.yaml", 2), "'T' is both a parameter and a column"),
    ],
)
def test_invalid_points_file_is_rejected_at_its_line(
    points: str, text: str, where: tuple[str, int], what: str
) -> None:
    fields = f"command: 'x {{a}} {{T}}', points: {points}, parameters: {{T: 1}}"
    error = errors(fields, p_csv=text)[0]
    assert what in error.what
    assert error.where is not None
    assert (error.where.file, error.where.line) == where


def test_points_file_is_found_next_to_the_ensemble_file_and_stored(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"jobs:\n  - {{name: sim, command: 'x {{a}}', points: p.csv}}\n{RULES}")
    (tmp_path / "p.csv").write_text("a\n1\n")
    ensemble = load(file, REGISTRY)
    assert ensemble.attached == {"p.csv": "a\n1\n"}
    (tmp_path / "p.csv").rename(tmp_path / "q.csv")
    with pytest.raises(FileErrors) as caught:
        load(file, REGISTRY)
    (error,) = caught.value.errors
    assert (error.code, error.where and error.where.line) == ("no-such-file", 2)
    assert "q.csv" in (error.hint or "")
    again = load_text(file.read_text(), REGISTRY, file=str(file), attached=ensemble.attached)
    assert again.groups["sim"].size == 1


# -- null --------------------------------------------------------------------------------------

NULL = "jobs:\n  - {name: sim, command: 'x {start}', parameters: {start: null}}\n"


def test_submit_without_a_value_for_a_null_parameter_is_rejected() -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(NULL + RULES, REGISTRY)
    (error,) = caught.value.errors
    assert (error.code, error.where and error.where.line) == ("no-value", 4)
    load_text(
        NULL + RULES.replace("label: sim", "label: sim, with: {parameters: {start: a}}"), REGISTRY
    )


def test_submit_without_a_value_during_a_run_is_an_error() -> None:
    rules = RULES + "  - {trigger: heartbeat, action: {name: set, label: sim, with: {parameters: {start: b}}}}\n"  # fmt: skip
    story = Story(NULL + rules)
    decisions = story.start()
    assert story.submitted(decisions) == []
    assert ["'start' of 'sim' is null" in d.message for d in decisions if isinstance(d, Log)] == [
        True
    ]


# -- placeholders ------------------------------------------------------------------------------


def test_placeholder_formats_are_those_of_python() -> None:
    fields = "command: '{T:.2f} {T:d} {index:03d} {s:>3} {{T:.2f}} {T}', parameters: {T: [2.0, 3], s: x}"  # fmt: skip
    assert commands(fields) == ["2.00 2 000   x {T:.2f} 2", "3.00 3 001   x {T:.2f} 3"]


@pytest.mark.parametrize(
    "command", ["{T:.2q}", "{T:d}", "{s:.2f}", "{index:s}", "{T:99999}", "{here:d}"]
)
def test_unsuitable_format_is_rejected_at_its_place(command: str) -> None:
    found = errors(f"command: 'x {{T}} {{s}} {command}', parameters: {{T: [1.5, 2.0], s: x}}")
    (error,) = found
    assert error.code == "bad-format"
    assert error.where is not None
    assert error.where.column == len("  - {name: sim, command: 'x {T} {s} ") + 1


def test_braces_of_other_languages_are_unchanged() -> None:
    command = """python -c 'd = {a:1}; f"{x:.2f}"; {{y:3}}'"""
    assert commands(f"command: {command!r}".replace("\\'", "''")) == [
        """python -c d = {a:1}; f"{x:.2f}"; {y:3}"""
    ]


def test_run_and_cwd_placeholders_are_filled() -> None:
    text = f"jobs: [{{name: sim, command: 'x {{cwd}} {{attempt}}', workdir: 'r/{{run}}'}}]\n{RULES}"
    (job,) = load_text(text, REGISTRY).begun("tag-1", "/home/me").groups["sim"].jobs(0)
    assert (job.workdir, job.command) == ("r/tag-1", ("x", "/home/me", "0"))


def test_parameter_overrides_a_newer_built_in_placeholder() -> None:
    assert commands("command: 'x {run}', parameters: {run: [a, b]}") == ["x a", "x b"]


def test_parameter_used_only_by_a_rule_counts_as_used() -> None:
    text = "jobs: [{name: sim, command: x, parameters: {T: [1, 2]}}]\n" + RULES
    with pytest.raises(FileErrors):
        load_text(text, REGISTRY)
    load_text(text + "  - {trigger: job-fail, when: T > 1, action: {name: terminate}}\n", REGISTRY)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("name;energy\na;1.5\nb;20\n", 'separator: ";"'),
        ("name;energy\na;1,5\nb;20\n", 'separator: ";", decimal: ","'),
        ("name\tenergy\na\t1.5D+00\nb\t2.0d+01\n", "separator: tab"),
        ("name|energy\na|1.5\nb|20\n", 'separator: "|"'),
        ("name   energy\n a     1.5\n b      20\n", "separator: blanks"),
        ('name,energy\na,"1,5"\nb,20\n', 'separator: ",", decimal: "."'),
    ],
)
def test_points_may_have_other_separators_and_a_decimal_comma(
    text: str, options: str, tmp_path: Path
) -> None:
    (tmp_path / "p.csv").write_text(text)
    source = (
        f'jobs: [{{name: sim, command: "x {{energy}}", points: {{file: p.csv, {options}}}}}]\n'
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    loaded = load_text(source, REGISTRY, file=str(tmp_path / "study.yaml"))
    values = loaded.groups["sim"].points["energy"]
    if '"1,5"' in text:
        assert values == ("1,5", "20")
    else:
        assert values == (1.5, 20)
        assert loaded.warnings == ()


def test_texts_with_a_decimal_comma_cause_a_warning(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("name;energy\na;1,5\nb;2,5\n")
    source = (
        'jobs: [{name: sim, command: "x {energy}", points: {file: p.csv, separator: ";"}}]\n'
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    (warning,) = load_text(source, REGISTRY, file=str(tmp_path / "study.yaml")).warnings
    assert "'energy' of" in warning
    assert "add decimal: ','" in warning


@pytest.mark.parametrize(
    ("cells", "values", "shown"),
    [
        (("1d5", "2D1"), ("1d5", "2D1"), "1.0D5"),  # may be names of structures
        (("1.5", "2q1"), ("1.5", "2q1"), "2.0D1"),
        (("1d5", "x"), ("1d5", "x"), None),
        (("1.d5", "2.5D-1"), (100000, 0.25), None),
        (("1D+05", "-2d-1"), (100000, -0.2), None),
    ],
)
def test_points_with_an_exponent_of_fortran_need_a_point_or_a_sign(
    tmp_path: Path, cells: tuple[str, ...], values: tuple[object, ...], shown: str | None
) -> None:
    (tmp_path / "p.csv").write_text("\n".join(["energy", *cells]))
    source = (
        'jobs: [{name: sim, command: "x {energy}", points: p.csv}]\n'
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    loaded = load_text(source, REGISTRY, file=str(tmp_path / "study.yaml"))
    assert loaded.groups["sim"].points["energy"] == values
    assert [shown in warning for warning in loaded.warnings if shown] == [True] * bool(shown)
    assert bool(loaded.warnings) == bool(shown)


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("a\n1\n2.5\nn.a.\n", "'n.a.'"),
        ("a,b\n1,x\n2,x\n,x\n", "empty cells"),
        ("a\n1\nx\n", None),
        ("a\n001\n002\n", None),
        ("a\nx\ny\n1\n", None),
    ],
)
def test_column_of_numbers_with_a_text_causes_a_warning(
    tmp_path: Path, text: str, odd: str | None
) -> None:
    (tmp_path / "p.csv").write_text(text)
    file = tmp_path / "study.yaml"
    file.write_text(
        "jobs:\n  - {name: a, command: 'x {a}', points: {file: p.csv, columns: [a]}}\n"
        "rules:\n  - {trigger: start, action: {name: submit, label: a}}\n"
    )
    told = [each for each in load(file, REGISTRY).warnings if "all are texts" in each]
    assert len(told) == (odd is not None)
    assert odd is None or f"has numbers, but also {odd}: all are texts" in told[0]


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ("{T: [1, 2, 1.0]}", "values 1 and 3 of 'T' are equal, so the same jobs run twice"),
        ("{T: [a, b, b, a]}", "values 2 and 3 of 'T' are equal"),
        ("{T: [1, '1', 2]}", None),
        ("{T: 1..5}", "'1..5' is one text; for several values, write a list or {from: 1, to: 5}"),
        ("{T: '1, 2,3'}", "'1, 2,3' is one text"),
        ("{T: '0:0.5:2'}", "'0:0.5:2' is one text"),
        ("{T: ['4,4,4', '6,6,6']}", None),
        ("{T: ['4,4,4']}", None),
        ("{T: '12:30'}", None),
        ("{T: '01:30:00'}", None),
        ("{T: 1.2.3}", None),
        ("{T: 'a,b'}", None),
    ],
)
def test_values_that_run_twice_or_are_one_text_cause_a_warning(
    parameters: str, told: str | None
) -> None:
    source = (
        f'jobs: [{{name: sim, command: "x {{T}}", parameters: {parameters}}}]\n'
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    warnings = load_text(source, REGISTRY).warnings
    assert len(warnings) == (told is not None)
    assert told is None or told in warnings[0]


def test_equal_rows_of_points_cause_a_warning(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("x,y,note\n1,2,a\n3,4,b\n1,2,c\n")
    source = (
        'jobs: [{name: sim, command: "x {x} {y}", points: {file: p.csv, columns: [x, y]}}]\n'
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    (warning,) = load_text(source, REGISTRY, file=str(tmp_path / "study.yaml")).warnings
    assert "rows 1 and 3 of the file are equal, so the same jobs run twice" in warning
