"""Tables of results: what is wrong with them is said when the file is checked."""

from __future__ import annotations

import pytest
from marked_places import unmarked

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


def the_error(tables: str) -> EnsembleError:
    """Return the one error of these tables, which is where the sign « stands."""
    text, place = unmarked(_JOBS + tables)
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY, file="study.yaml")
    (error,) = caught.value.errors
    assert str(error.where) == f"study.yaml:{place}"
    return error


@pytest.mark.parametrize(
    ("table", "said", "hint", "code"),
    [
        ("a: {of: «simm}", "no job group 'simm'", "'sim'", "no-such-group"),
        ("a: {of: sim, by: [«Tt]}", "no parameter 'Tt'", "'T'", "no-such-parameter"),
        ("a: {of: sim, by: «q}", "no parameter 'q'", "known are T, d", "no-such-parameter"),
        ("«job: {of: sim}", "cannot be called 'job'", "another name", "bad-name"),
        ("a: {of: sim, «tops: 3}", "unknown key 'tops'", "'top'", "unknown-key"),
        ("a: {of: sim, by: [T], columns: {x: «rate.d}}", "when values came", "time", "bad-value"),
        ("a: {of: sim, where: «'> 5'}", "does not say what '> 5' comp", "columns", "bad-condition"),
        ("a: {of: sim, where: «T >}", "'where' does not parse", "columns", "bad-condition"),
        ("a: {of: sim, order: «-TT}", "no column 'TT'", "'T'", "no-such-column"),
        ("a: {of: sim, top: «5.5}", "'top' is the number 5.5", "", "wrong-type"),
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
def test_a_wrong_table_is_one_error_with_its_place(
    table: str, said: str, hint: str, code: str
) -> None:
    error = the_error(f"  {table}")
    assert said in error.what
    assert hint in (error.hint or "")
    assert error.code == code


@pytest.mark.parametrize(
    ("table", "name", "hint"),
    [
        ("columns: {x: 2 * «TT}", "TT", "'T'"),
        ("columns: {x: «E}", "E", "last.E"),
        ("columns: {x: «mean.duration}", "mean.duration", "write duration, or give 'by'"),
        ("columns: {x: T, y: «x + 1}", "x", "do not see one another"),
        ("by: [T], columns: {x: «duration}", "duration", "mean.duration"),
        ("by: [T], columns: {x: «avg.duration}", "avg.duration", "did you mean 'mean.duration'?"),
        ("by: [T], columns: {x: «mean.energy}", "mean.energy", "known are "),
        ("by: [T], columns: {x: «maen.duration}", "maen.duration", "'mean.duration'"),
        ("where: T > «mean.bast.T", "mean.bast.T", "'mean.best.T'"),
    ],
)
def test_an_unknown_name_in_a_table_is_an_error_with_the_nearest(
    table: str, name: str, hint: str
) -> None:
    error = the_error(f"  best: {{of: sim}}\n  a: {{of: sim, {table}}}")
    assert f"'{name}' is not known" in error.what
    assert hint in (error.hint or "")
    assert error.code == "no-such-column"


def test_tables_that_refer_to_one_another_in_a_circle_are_an_error() -> None:
    tables = "  «a: {of: sim, columns: {x: sum.b.y}}\n  b: {of: sim, columns: {y: sum.a.x}}"
    error = the_error(tables)
    assert error.what.endswith("in a circle: a -> b -> a")
    assert "without the other" in (error.hint or "")


def test_an_unknown_column_of_another_table_is_an_error_with_the_nearest() -> None:
    error = the_error("  a: {of: sim}\n  b: {of: sim, where: T > «mean.a.durations}")
    assert "the table 'a' has no column 'durations'" in error.what
    assert "'mean.a.duration'" in (error.hint or "")
    assert error.code == "no-such-column"


def test_a_table_over_a_metric_is_an_error_that_says_what_to_write() -> None:
    error = the_error("  a: {of: sim, where: «'metric(\"count.sim.done\") > 1'}")
    assert "a table is over its rows alone" in error.what
    assert "STAT.TABLE.COLUMN" in (error.hint or "")
    assert error.code == "bad-condition"


def test_a_table_knows_what_it_shows() -> None:
    tables = load_text(
        f"{_JOBS}  all: {{of: sim}}\n"
        "  some: {of: sim, columns: {x: T * d}, order: -x, top: 5%}\n"
        "  each: {of: sim, by: [T], columns: {m: mean.duration, share: 'n / count.all.T'}}\n"
        "  plain: {of: sim, by: d}\n",
        REGISTRY,
    ).tables
    assert tables["all"].shown == ("index", "T", "d", "duration", "attempt")
    assert tables["some"].shown == ("index", "x")
    assert (tables["some"].order, tables["some"].descending) == ("x", True)
    assert (tables["some"].top, tables["some"].percent) == (None, 5.0)
    assert tables["each"].shown == ("T", "m", "share")
    assert tables["plain"].shown == ("d", "n")
