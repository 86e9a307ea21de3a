"""Tables of results: what is wrong with them is said when the file is checked."""

from __future__ import annotations

import pytest

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.plugin.discovery import discover

_JOBS = """
jobs:
  - {name: sim, command: 'x {T} {d}', parameters: {T: [1, 2], d: 5}, observe: {json-lines: {fields: [E]}}}
rules: [{trigger: start, action: {name: submit, label: sim}}]
"""


def load(results: str) -> Ensemble:
    return load_text(f"{_JOBS}results:\n{results}", discover(), file="study.yaml")


@pytest.mark.parametrize(
    ("results", "said", "hint", "code", "place"),
    [
        ("  a: {of: simm}", "no job group 'simm'", "'sim'", "no-such-group", "6:11"),
        ("  a: {of: sim, by: [Tt]}", "no parameter 'Tt'", "'T'", "no-such-parameter", "6:21"),
        (
            "  a: {of: sim, by: q}",
            "no parameter 'q'",
            "known are T, d",
            "no-such-parameter",
            "6:20",
        ),
        ("  job: {of: sim}", "cannot be called 'job'", "another name", "bad-name", "6:3"),
        ("  a: {of: sim, tops: 3}", "unknown key 'tops'", "'top'", "unknown-key", "6:16"),
        (
            "  a: {of: sim, columns: {x: 2 * TT}}",
            "'TT' is not known",
            "'T'",
            "no-such-column",
            "6:33",
        ),
        ("  a: {of: sim, columns: {x: E}}", "'E' is not known", "last.E", "no-such-column", "6:29"),
        (
            "  a: {of: sim, columns: {x: mean.duration}}",
            "'mean.duration' is not known",
            "write duration, or give 'by'",
            "no-such-column",
            "6:29",
        ),
        (
            "  a: {of: sim, by: [T], columns: {x: duration}}",
            "'duration' is not known",
            "mean.duration",
            "no-such-column",
            "6:38",
        ),
        (
            "  a: {of: sim, by: [T], columns: {x: avg.duration}}",
            "'avg.duration' is not known",
            "did you mean 'mean.duration'?",
            "no-such-column",
            "6:38",
        ),
        (
            "  a: {of: sim, by: [T], columns: {x: mean.energy}}",
            "'mean.energy' is not known",
            "known are ",
            "no-such-column",
            "6:38",
        ),
        (
            "  a: {of: sim, by: [T], columns: {x: maen.duration}}",
            "'maen.duration' is not known",
            "'mean.duration'",
            "no-such-column",
            "6:38",
        ),
        (
            "  a: {of: sim, by: [T], columns: {x: rate.duration}}",
            "depends on when values came",
            "without a time",
            "bad-value",
            "6:38",
        ),
        (
            "  a: {of: sim, columns: {x: T, y: x + 1}}",
            "'x' is not known",
            "do not see one another",
            "no-such-column",
            "6:35",
        ),
        (
            "  a: {of: sim, where: 'metric(\"count.sim.done\") > 1'}",
            "a table is over its rows alone",
            "STAT.TABLE.COLUMN",
            "bad-condition",
            "6:23",
        ),
        (
            "  a: {of: sim, where: '> 5'}",
            "'where' does not say what '> 5' compares",
            "columns",
            "bad-condition",
            "6:23",
        ),
        (
            "  a: {of: sim, where: T >}",
            "'where' does not parse",
            "columns",
            "bad-condition",
            "6:23",
        ),
        ("  a: {of: sim, order: -TT}", "no column 'TT'", "'T'", "no-such-column", "6:23"),
        ("  a: {of: sim, top: 5.5}", "'top' is the number 5.5", "", "wrong-type", "6:21"),
        ("  a: {of: sim, top: 0}", "'top'", "", "out-of-range", "6:21"),
        ("  a: {of: sim, top: 0%}", "more than 0%", "", "out-of-range", "6:21"),
        ("  a: {of: sim, top: 101%}", "at most 100%", "", "out-of-range", "6:21"),
        ("  a: {of: sim, top: few}", "'top'", "", "bad-value", "6:21"),
        (
            "  a: {of: sim, columns: {x: sum.b.y}}\n  b: {of: sim, columns: {y: sum.a.x}}",
            "in a circle: a -> b -> a",
            "without the other",
            "circle",
            "6:3",
        ),
        ("  a: {of: sim, where: T > mean.a.T}", "in a circle: a -> a", "", "circle", "6:3"),
        (
            "  a: {of: sim}\n  b: {of: sim, where: T > mean.a.durations}",
            "the table 'a' has no column 'durations'",
            "'mean.a.duration'",
            "no-such-column",
            "7:27",
        ),
        (
            "  best: {of: sim}\n  b: {of: sim, where: T > mean.bast.T}",
            "'mean.bast.T' is not known",
            "'mean.best.T'",
            "no-such-column",
            "7:27",
        ),
        ("  a: {of: sim, plot: {x: TT}}", "no column 'TT'", "'T'", "no-such-column", "6:26"),
        (
            "  a: {of: sim, plot: {x: T, y: [d], errors: {d: dd}}}",
            "no column 'dd'",
            "'d'",
            "no-such-column",
            "6:49",
        ),
        ("  a: []", "'a' is a list", "", "wrong-type", "6:6"),
    ],
)
def test_a_wrong_table_is_one_error_with_its_place(
    results: str, said: str, hint: str, code: str, place: str
) -> None:
    with pytest.raises(FileErrors) as caught:
        load(results)
    (error,) = caught.value.errors
    assert said in error.what
    assert hint in (error.hint or "")
    assert error.code == code
    assert str(error.where) == f"study.yaml:{place}"


def test_a_table_knows_what_it_shows() -> None:
    tables = load(
        "  all: {of: sim}\n"
        "  some: {of: sim, columns: {x: T * d}, order: -x, top: 5%}\n"
        "  each: {of: sim, by: [T], columns: {m: mean.duration, share: 'n / count.all.T'}}\n"
        "  plain: {of: sim, by: d}\n"
    ).tables
    assert tables["all"].shown == ("index", "T", "d", "duration", "attempt")
    assert tables["some"].shown == ("index", "x")
    assert (tables["some"].order, tables["some"].descending) == ("x", True)
    assert (tables["some"].top, tables["some"].percent) == (None, 5.0)
    assert tables["each"].shown == ("T", "m", "share")
    assert tables["plain"].shown == ("d", "n")
