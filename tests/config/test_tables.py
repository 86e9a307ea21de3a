"""Checks of ``results:``."""

from __future__ import annotations

import pytest
from marked_places import the_error, unmarked

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
_JOBS = """
jobs:
  - {name: sim, command: 'x {T} {d}', parameters: {T: [1, 2], d: 5}, observe: {json-lines: {fields: [E]}}}
rules: [{trigger: start, action: {name: submit, label: sim}}]
results:
"""


def error_of(tables: str) -> EnsembleError:
    return the_error(_JOBS + tables, REGISTRY)


@pytest.mark.parametrize(
    ("table", "said", "hint", "code"),
    [
        ("a: {of: «simm}", "no job group 'simm'", "'sim'", "no-such-group"),
        ("a: {of: sim, by: [«Tt]}", "no parameter 'Tt'", "'T'", "no-such-parameter"),
        ("a: {of: sim, by: «q}", "no parameter 'q'", "known: T, d", "no-such-parameter"),
        ("«job: {of: sim}", "cannot be named 'job'", "rename", "bad-name"),
        ("a: {of: sim, «tops: 3}", "unknown key 'tops'", "'top'", "unknown-key"),
        (
            "a: {of: sim, by: [T], columns: {x: «rate.d}}",
            "depends on when its values arrived",
            "time",
            "bad-value",
        ),
        ("a: {of: sim, where: «'> 5'}", "does not say what '> 5' comp", "columns", "bad-condition"),
        ("a: {of: sim, where: «T >}", "'where' does not parse", "columns", "bad-condition"),
        ("a: {of: sim, order: «-TT}", "no column 'TT'", "'T'", "no-such-column"),
        ("a: {of: sim, top: «5.5}", "'top' is the number 5.5", "write 5 or 6", "wrong-type"),
        ("a: {of: sim, top: «0}", "'top'", "", "out-of-range"),
        ("a: {of: sim, top: «0%}", "more than 0%", "", "out-of-range"),
        ("a: {of: sim, top: «101%}", "at most 100%", "", "out-of-range"),
        ("a: {of: sim, top: «few}", "'top'", "", "bad-value"),
        ("«a: {of: sim, where: T > mean.a.T}", "in a circle: a -> a", "", "circle"),
        ("a: {of: sim, plot: {x: «TT}}", "no column 'TT'", "'T'", "no-such-column"),
        ("a: {of: sim, plot: {y: [d], errors: {d: «dd}}}", "column 'dd'", "'d'", "no-such-column"),
        ("a: «[]", "'a' is a list", "", "wrong-type"),
    ],
)
def test_wrong_table_is_one_error_with_its_place(
    table: str, said: str, hint: str, code: str
) -> None:
    error = error_of(f"  {table}")
    assert said in error.what
    assert hint in (error.hint or "")
    assert error.code == code


@pytest.mark.parametrize(
    ("table", "name", "hint"),
    [
        ("columns: {x: 2 * «TT}", "TT", "'T'"),
        ("columns: {x: «E}", "E", "last.E"),
        ("columns: {x: «mean.duration}", "mean.duration", "write duration, or add 'by'"),
        ("by: [T], columns: {x: «duration}", "duration", "mean.duration"),
        ("by: [T], columns: {x: «avg.duration}", "avg.duration", "did you mean 'mean.duration'?"),
        ("by: [T], columns: {x: «mean.energy}", "mean.energy", "known: "),
        ("by: [T], columns: {x: «maen.duration}", "maen.duration", "'mean.duration'"),
        ("where: T > «mean.bast.T", "mean.bast.T", "'mean.best.T'"),
    ],
)
def test_unknown_name_in_a_table_is_an_error_with_a_suggestion(
    table: str, name: str, hint: str
) -> None:
    error = error_of(f"  best: {{of: sim}}\n  a: {{of: sim, {table}}}")
    assert f"unknown name '{name}'" in error.what
    assert hint in (error.hint or "")
    assert error.code == "no-such-column"


def test_circular_tables_are_an_error() -> None:
    tables = "  «a: {of: sim, columns: {x: sum.b.y}}\n  b: {of: sim, columns: {y: sum.a.x}}"
    error = error_of(tables)
    assert error.what.endswith("in a circle: a -> b -> a")
    assert "remove one of the references" in (error.hint or "")


def test_unknown_column_of_another_table_is_an_error_with_a_suggestion() -> None:
    error = error_of("  a: {of: sim}\n  b: {of: sim, where: T > «mean.a.durations}")
    assert "the table 'a' has no column 'durations'" in error.what
    assert "'mean.a.duration'" in (error.hint or "")
    assert error.code == "no-such-column"


def test_metric_in_a_table_is_an_error_with_a_hint() -> None:
    error = error_of("  a: {of: sim, where: «'metric(\"count.sim.done\") > 1'}")
    assert "a table can use only its rows" in error.what
    assert "STAT.TABLE.COLUMN" in (error.hint or "")
    assert error.code == "bad-condition"


def test_table_has_its_columns_and_plot() -> None:
    tables = load_text(
        f"{_JOBS}  all: {{of: sim}}\n"
        "  some: {of: sim, columns: {x: T * d}, order: -x, top: 5%}\n"
        "  each: {of: sim, by: [T], columns: {m: mean.duration, share: 'n / count.all.T'}}\n"
        "  plain: {of: sim, by: d}\n",
        REGISTRY,
    ).tables
    assert tables["all"].shown(()) == ("index", "T", "d", "duration", "attempt")
    assert tables["some"].shown(()) == ("index", "x")
    assert (tables["some"].order, tables["some"].descending) == ("x", True)
    assert (tables["some"].top, tables["some"].percent) == (None, 5.0)
    assert tables["each"].shown(()) == ("T", "m", "share")
    assert tables["plain"].shown(()) == ("d", "n")


_PIVOT = "of: sim, by: [d], pivot: T, columns: {E: mean.duration"


def _ruled(rule: str) -> str:
    """Return the file with another rule and a table ``best``."""
    start, _, rest = _JOBS.partition("rules: [")
    first, _, _ = rest.partition("]\nresults")
    return f"{start}rules:\n  - {first}\n{rule}results:\n  best: {{of: sim}}\n"


@pytest.mark.parametrize(
    ("table", "said", "hint"),
    [
        ("of: sim, by: [T], where: «d == 5", "unknown name 'd' in the table 'a': its rows cover many jobs", "write of: sim(d == 5)"),
        ("of: sim, by: [T], where: «d == 5 and n > 1", "its rows cover many jobs", "write of: sim(CONDITION)"),
        ("of: sim, columns: {y: 2 * «x, x: T}", "'y' uses 'x', which is below it", "move 'x' above it"),
        ("of: sim, columns: {y: «y + 1}", "the column 'y' refers to itself", "columns above it"),
        ("of: sim, by: [T], columns: {x: «'mean.duration[d == 5]'}", "the expression has an invalid filter", "write mean.duration(d == 5)"),
        ("of: sim, by: [T], columns: {x: «mean.duration(d = 5)}", "the expression has an invalid filter", "write mean.duration(d == 5)"),
        ("of: sim, by: [T], columns: {x: «mean.duration where d == 5}", "the expression has an invalid filter", "write mean.duration(d == 5)"),
        ("of: sim, by: [T], columns: {x: mean.duration(«mean.d > 2)}", "a filter is checked for each job, so it cannot use the statistic 'mean.d'", "known:"),
        ("of: sim, by: [T], columns: {x: mean.duration(«dd > 2)}", "unknown name 'dd' in the filter of 'mean.duration'", "'d'"),
        ("of: sim, by: [T], columns: {x: «mean.duration(5)}", "compares nothing", "NAME == 5"),
        ("of: sim(T > «mean.d)", "a filter is checked for each job, so it cannot use the statistic 'mean.d'", "known:"),
        ("of: «'sim[T > 1]'", "'of' has an invalid filter", "write sim(T > 1)"),
        ("of: «sim where T > 1", "'of' has an invalid filter", "write sim(T > 1)"),
        ("of: «sim(T = 1)", "'of' does not parse", "T == 1"),
        ("of: «sim(T >", "'of' does not parse", "sim(CONDITION)"),
        ("of: sim, by: [T], pivot: «T", "'T' is in both 'by' and 'pivot'", "remove it"),
        ("of: sim, pivot: «T", "'pivot' cannot be used without 'by'", "by:"),
        ("of: sim, by: [T], pivot: «q", "no parameter 'q'", "known: T, d"),
        (_PIVOT + "}, order: «E", "'E' has one value per T", "write E[1]"),
        (_PIVOT + "}, where: «E > 1", "'E' has one value per T", "write E[1]"),
        (_PIVOT + "}, where: «mean.duration > 1", "'mean.duration' has one value per T", "define a column"),
        (_PIVOT + ", x: '«F[1]'}", "unknown name 'F[1]'", "known:"),
        ("of: sim, by: [T], columns: {E: mean.duration, x: '«E[1]'}", "unknown name 'E[1]'", "'pivot:'"),
    ],
)  # fmt: skip
def test_wrong_filter_pivot_or_column_is_one_error_with_a_hint(
    table: str, said: str, hint: str
) -> None:
    error = error_of(f"  a: {{{table}}}")
    assert said in error.what
    assert hint in (error.hint or "")


def test_pivot_with_too_many_values_is_an_error() -> None:
    jobs = _JOBS.replace("T: [1, 2]", "T: {from: 1, to: 201}")
    error = the_error(jobs + "  a: {of: sim, by: [d], pivot: «T}\n", REGISTRY)
    assert "'T' has 201 values; 'pivot' allows at most 200" in error.what
    few = load_text(jobs + "  a: {of: sim(T < 100), by: [d], pivot: T}\n", REGISTRY)
    assert len(few.tables["a"].values) == 99


def test_unknown_value_of_a_pivot_causes_a_warning() -> None:
    table = f"  a: {{{_PIVOT}, x: 'E[3] - E[1]'}}}}\n"
    assert "T has no value 3; known: 1, 2" in load_text(_JOBS + table, REGISTRY).warnings


def test_table_that_needs_much_memory_causes_a_warning() -> None:
    text = """
jobs:
  - name: g
    command: x {L} {T}
    parameters: {L: [16, 32], T: {from: 1, to: COUNT}}
rules:
  - {trigger: start, action: {name: submit, label: g}}
results:
  t:
    of: OF
    by: [T]
    pivot: L
    columns: {n: count.done}
"""
    many = text.replace("COUNT", "500000")
    (warning,) = load_text(many.replace("OF", "g"), REGISTRY, file="study.yaml").warnings
    assert warning == (
        "study.yaml:11:9: the table 't' can have 500,000 rows, which need at least 1.2 GB of "
        "memory; remove a parameter from 'by', or select jobs with of: g(CONDITION)"
    )
    for small in (many.replace("OF", "g(T < 1000)"), text.replace("COUNT", "1000")):
        assert load_text(small.replace("OF", "g"), REGISTRY, file="study.yaml").warnings == ()


@pytest.mark.parametrize(
    ("rule", "said", "hint"),
    [
        ("when: «mean.E where T == 1", "'when' has an invalid filter", "write mean.E(T == 1)"),
        ("when: «mean.E[T == 1] > 2", "'when' has an invalid filter", "write mean.E(T == 1)"),
        ("when: «mean.E(T = 1) > 2", "'when' has an invalid filter", "write mean.E(T == 1)"),
        ("when: mean.E(«mean.T > 1) > 2", "a filter is checked for each job, so it cannot use the statistic 'mean.T'", ""),
        ("when: mean.E(«dur > 1) > 2", "unknown name 'dur' in the filter of 'mean.E'", ""),
        ("when: count.done(«E > 1) > 2", "unknown name 'E' in the filter of 'count.done'", ""),
        ("when: max.best.T(«x > 1) > 2", "unknown name 'x' in the filter of 'max.best.T'", ""),
        ("when: «max.best.T(mean.d(T > 1) > 1) > 2", "a filter is checked for each job", ""),
        ("when: metric(«\"mean.sim-E(T == 1)\") > 2", "takes no filter", "mean.E(T == 1)"),
        ("when: metric(«\"count.sim.failed(last 10m)\") > 2", "takes no filter", "write 'count.sim.failed(within 10m)'"),
        ("when: metric(«\"count.sim.lost(90s)\") > 2", "takes no filter", "write 'count.sim.lost(within 90s)'"),
    ],
)  # fmt: skip
def test_wrong_filter_of_a_rule_is_one_error_with_a_hint(rule: str, said: str, hint: str) -> None:
    what, _, condition = rule.partition(": ")
    rule = f"  - {{trigger: idle, name: sim, {what}: '{condition}', action: {{name: log, message: x}}}}\n"
    if condition.startswith("«"):
        rule = rule.replace("'«", "«'")
    text, place = unmarked(_ruled(rule))
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY, file="study.yaml")
    (error,) = caught.value.errors
    assert said in error.what
    assert hint in (error.hint or "")
    assert str(error.where).startswith("study.yaml:")
    assert error.where is not None
    assert error.where.line == int(place.split(":")[0])


@pytest.mark.parametrize(
    ("rows", "said", "hint"),
    [
        ("best(«x > 1)", "unknown name 'x' in the filter of 'best'", ""),
        ("«best where T > 1", "'rows' has an invalid filter", "write best(T > 1)"),
        ("«bets(T > 1)", "no table 'bets'", "'best'"),
        ("«best(T >", "'rows' does not parse", "best(CONDITION)"),
    ],
)
def test_wrong_rows_are_one_error_with_a_hint(rows: str, said: str, hint: str) -> None:
    rule = f"  - {{trigger: idle, name: sim, action: {{name: submit, label: sim, rows: {rows}}}}}\n"
    error = the_error(_ruled(rule), REGISTRY)
    assert said in error.what
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("columns", "name"),
    [("{T: d, x: T}", "T"), ("{d: T + 1, x: d}", "d"), ("{T: T, d: d, x: T + d}", "")],
)
def test_column_with_the_name_of_a_row_value_causes_a_warning(columns: str, name: str) -> None:
    ensemble = load_text(f"{_JOBS}  a: {{of: sim, columns: {columns}}}", REGISTRY)
    said = [text for text in ensemble.warnings if "is both a column and the row's" in text]
    assert len(said) == bool(name)
    assert all(f"{name!r} in the table" in text and "rename the column" in text for text in said)
