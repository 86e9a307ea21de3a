"""Tables with filters and pivots, and filtered statistics: acceptance tests.

The expected numbers are computed by hand: ``U`` of the jobs ``g.0`` to ``g.7`` is 1 3 5 5 4 8 2 2.
The jobs have two sizes ``L``, two temperatures ``T`` and two replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from ensemble_testing import Story
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.grouped_table import GroupedTable
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Submit
from ensemble_core.model.events import JobEvent, Observed
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
U = (1, 3, 5, 5, 4, 8, 2, 2)
JOBS = """
jobs:
  - name: g
    command: "./x {L} {T} {replica}"
    parameters: {L: [16, 32], T: [1, 2]}
    replicas: 2
    observe: {json-lines: {fields: [u, step]}}
    result: {U: mean.u}
"""
RULES = """
rules:
  - {trigger: start, action: {name: submit, label: g}}
"""
BINDER = """
  t:
    of: g
    by: [T]
    pivot: L
    columns:
      U: mean.U
      e: error.U
      gap: U[32] - U[16]
      err: sqrt(e[32]**2 + e[16]**2)
"""


def told(*, table: str = BINDER, rules: str = "", jobs: str = JOBS) -> Story:
    """Return a started run with these jobs, rules and tables."""
    story = Story(jobs + RULES + rules + (f"results:\n{table}" if table else ""))
    story.start()
    return story


def done(story: Story, numbers: Iterable[int], values: Iterable[float] = U) -> None:
    """Let these jobs print their value and succeed."""
    known = tuple(values)
    for number in numbers:
        story.begin(f"g.{number}")
        story.observe(f"g.{number}", u=known[number], observer="json-lines")
        story.end(f"g.{number}")


def rows(story: Story, name: str = "t") -> list[Mapping[str, Any]]:
    return list(story.engine.tables()[name])


def approximately(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: None if value is None else pytest.approx(value) for name, value in row.items()}


FIRST = {"T": 1, "U[16]": 2, "U[32]": 6, "e[16]": 1, "e[32]": 2, "gap": 4, "err": 5**0.5}
SECOND = {"T": 2, "U[16]": 5, "U[32]": 2, "e[16]": 0, "e[32]": 0, "gap": -3, "err": 0}


def test_a_pivot_table_has_columns_for_values_and_columns_that_use_them() -> None:
    story = told()
    done(story, reversed(range(8)))
    first, second = rows(story)
    assert {name: first[name] for name in FIRST} == approximately(FIRST)
    assert {name: second[name] for name in SECOND} == approximately(SECOND)
    assert first["err"] == 5**0.5


def test_columns_that_use_a_missing_value_are_missing() -> None:
    story = told()
    done(story, (0, 1, 2, 3, 6, 7))
    for number in (4, 5):
        story.play(f"g.{number}", status=256)
    first, second = rows(story)
    without = {"U[32]": None, "e[32]": None, "gap": None, "err": None}
    assert {name: first[name] for name in FIRST} == approximately({**FIRST, **without})
    assert {name: second[name] for name in SECOND} == approximately(SECOND)


def test_a_filtered_statistic_covers_only_passing_jobs() -> None:
    story = told(table="  t: {of: g, by: [T], columns: {a: 'mean.U(L == 16 and replica == 0)'}}\n")
    done(story, reversed(range(8)))
    assert [row["a"] for row in rows(story)] == [1, 5]


def test_a_table_without_passing_jobs_has_no_rows() -> None:
    story = told(table="  t: {of: g(L == 32), by: [T]}\n")
    done(story, range(4))
    assert rows(story) == []
    tables = story.engine.tables()
    assert tables.statistic("count.t.n") == 0
    assert tables.statistic("max.t.n") is None
    done(story, (4,))
    assert rows(story) == [{"T": 1, "n": 1, "reused": 0}]


def test_rows_are_sorted_by_their_parameters_numbers_before_texts() -> None:
    story = told(jobs=JOBS.replace("T: [1, 2]", "T: [10, 9, a]"), table="  t: {of: g, by: [T]}\n")
    done(story, range(12), [1.0] * 12)
    assert [row["T"] for row in rows(story)] == [9, 10, "a"]


def test_a_column_that_is_defined_later_is_an_error_with_its_place() -> None:
    text = JOBS + RULES + "results:\n  t: {of: g, by: [T], columns: {b: 2 * a, a: mean.U}}\n"
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY, file="study.yaml")
    (error,) = caught.value.errors
    assert error.what == "'b' uses 'a', which is below it"
    assert error.hint == "move 'a' above it"
    line = text.splitlines().index(text.splitlines()[-1]) + 1
    assert str(error.where) == f"study.yaml:{line}:{text.splitlines()[-1].index('2 * a') + 5}"


def test_a_row_field_overrides_a_column_of_the_same_name_with_a_warning() -> None:
    story = told(table="  t: {of: g, columns: {U: 2 * U, v: U + 1}}\n")
    done(story, (0,))
    (row,) = rows(story)
    assert (row["U"], row["v"]) == (2, 2)
    (warning,) = story.ensemble.warnings
    assert "'U'" in warning
    assert "'v'" in warning


def test_a_filter_may_use_columns_of_the_row() -> None:
    story = told(
        table="",
        rules="  - {id: far, trigger: observed, name: g, when: mean.u(step > 10) > 2,"
        " action: {name: log, message: 'mean {mean.u(step > 10):.1f}'}}\n",
    )
    story.begin("g.0")
    for row in ({"step": 5, "u": 100}, {"step": 20, "u": 1}, {"u": 90}):
        story.observe("g.0", row, observer="json-lines")
        assert "far" not in story.fired()
    story.observe("g.0", {"step": 30, "u": 5}, observer="json-lines")
    assert story.fired()[-1] == "far"
    assert story.messages() == ["mean 3.0"]


def test_filters_use_the_parameters_of_each_attempt() -> None:
    story = told(
        table="",
        jobs=JOBS.replace("[16, 32]", "16").replace("T: [1, 2]", "T: 1").replace("cas: 2", "cas: 1")
        + "    retry: {times: 1, with: {parameters: {T: 3}}}\n",
        rules="  - {trigger: idle, name: g, action: {name: log, message: '{mean.u(T == 1)}'}}\n",
    )
    story.begin("g.0")
    story.observe("g.0", u=10, observer="json-lines")
    story.end("g.0", status=256)
    story.begin("g.0-1")
    story.observe("g.0-1", u=20, observer="json-lines")
    story.end("g.0-1")
    assert story.messages()[-1] == "10"


def test_all_covers_the_whole_table_in_a_rule_with_each() -> None:
    rule = "  - {{id: top, trigger: idle, name: g, each: [T], when: {}max.t.T > T,"
    rule += " action: {{name: log, message: 'T {{T}}'}}}}\n"
    order = (2, 3, 6, 7, 0, 1, 4, 5)
    story = told(rules=rule.format("all."))
    done(story, order)
    assert story.messages() == ["T 1"]
    story = told(rules=rule.format(""))
    done(story, order)
    assert story.messages() == []
    (warning,) = story.ensemble.warnings
    assert "within a slice, 'max.t.T' is just T" in warning
    assert "all.max.t.T" in warning


def test_a_statistic_that_can_have_no_value_in_a_slice_is_an_error() -> None:
    rule = "  - {trigger: idle, name: g, each: [T], when: error.t.gap < 1,"
    rule += " action: {name: log, message: x}}\n"
    text = JOBS + RULES + rule + "results:" + BINDER
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY, file="study.yaml")
    (error,) = caught.value.errors
    why = "within a slice ('each'), the table has too few rows"
    assert error.what == f"'error.t.gap' can never have a value: {why}"
    assert error.hint == "write all.error.t.gap"
    assert error.where is not None
    assert error.where.line == text.splitlines().index(rule.rstrip("\n")) + 1


def test_a_table_of_a_group_without_the_parameter_of_the_slice_is_an_error() -> None:
    other = "  - {name: h, command: 'y {M}', parameters: {M: [1, 2]}}\n"
    rule = "  - {trigger: idle, name: g, each: [T], when: max.t.M > 1,"
    rule += " action: {name: log, message: x}}\n"
    text = JOBS + other + RULES + rule + "results:\n  t: {of: h, by: [M]}\n"
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY, file="study.yaml")
    (error,) = caught.value.errors
    why = "'each' has the parameter 'T', which jobs of 'h' do not have"
    assert error.what == f"'max.t.M' can never have a value: {why}"
    assert error.hint == "write all.max.t.M"
    load_text(text.replace("max.t.M", "all.max.t.M"), REGISTRY, file="study.yaml")


# -- laws --------------------------------------------------------------------------------------

STUDY = """
jobs:
  - name: g
    command: "x {L} {T} {replica}"
    parameters: {L: [16, 32], T: [1, 2]}
    replicas: 2
    observe: {json-lines: {fields: [u, step]}}
    result: {U: mean.u(step > 0)}
    retry: {times: 1, with: {parameters: {T: 3}}}
rules:
  - {trigger: start, action: {name: submit, label: g}}
  - id: slices
    trigger: job-done
    name: g
    each: [T]
    repetitions: 9
    when: count.done(L == 16) > 0 or all.count.open(T == 3) > 0
    action: {name: log, message: '{T} {mean.u(L == 16)} {all.mean.u(T == 1)} {count.t.n} {all.count.t.n(T > 1)}'}
  - id: idle
    trigger: idle
    name: g
    when: max.t.gap(T > 1) > -9 or count.t.T > 0
    action: {name: log, message: '{mean.U(L == 32 and T == 2):.6f}'}
results:
  t:
    of: g(replica >= 0)
    by: [T]
    pivot: L
    columns: {U: mean.U, few: 'count.done(replica == 0)', e: error.U, gap: 'U[32] - U[16]', off: U - mean.all.U}
  all: {of: g, columns: {V: 2 * U, W: V + 1}, where: W > 0, order: -U}
  best: {of: g, by: [L, T], columns: {U: mean.U}, order: U, top: 50%, where: U > min.t.T(gap > -9)}
"""
CHECKED = load_text(STUDY, REGISTRY).begun("laws", "/laws")


def _played(story: Story, number: int, *, fails: bool = False) -> None:
    job = f"g.{number}"
    begun = story.now
    for name in ("submit", "start"):
        story.tell(JobEvent(begun, job, name))
    story.tell(Observed(begun, job, "json-lines", {"u": 0.1 * (number + 1) ** 3, "step": 1}))
    story.tell(Observed(begun, job, "json-lines", {"u": 99.0, "step": -1}))
    status = 256 if fails else 0
    story.tell(JobEvent(begun + 1.5, job, "finish", {"status": status}))
    story.job(job, "clean")


def _all_tables(story: Story) -> dict[str, list[Mapping[str, Any]]]:
    return dict(story.engine.tables())


@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=3))
@settings(deadline=None, max_examples=30)
def test_tables_do_not_depend_on_the_order_of_ends_or_on_resumes(
    order: list[int], stops: list[int]
) -> None:
    story = Story(CHECKED)
    story.start()
    for place, number in enumerate(order):
        if place in stops:
            story.engine = load(dump(story.engine), CHECKED)
        _played(story, number)
        # Incremental tables equal tables that are computed from all jobs.
        assert _all_tables(story) == dict(story.engine.tables().detached())
    expected = Story(CHECKED)
    expected.start()
    for number in range(8):
        _played(expected, number)
    assert _all_tables(story) == _all_tables(expected)
    for name in ("count.t.U[16]", "mean.t.gap(T > 1)", "max.all.W(replica == 0)", "error.best.U"):
        tables = story.engine.tables()
        assert tables.statistic(name) == expected.engine.tables().statistic(name)


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)), st.integers(0, 12))
@settings(deadline=None, max_examples=30)
def test_filtered_counts_add_up_and_are_replayed_exactly(
    order: list[int], failing: set[int], stop: int
) -> None:
    story = Story(CHECKED)
    story.start()

    def look() -> None:
        for condition in ("T == 3", "L == 16"):
            if condition not in story.engine.state.metrics.filtered["g"] and condition != "T == 3":
                continue
            count = {
                name: story.metric(f"count.g.{name}({condition})")
                for name in ("submitted", "finished", "cancelled", "active", "open", "done", "lost")
            }
            assert all(value is not None and value >= 0 for value in count.values()), count
            over = count["finished"] + count["cancelled"]  # type: ignore[operator]
            assert count["submitted"] == over + count["active"]  # type: ignore[operator]

    for number in order:
        _played(story, number, fails=number in failing)
        look()
    for number in sorted(failing):
        job = f"g.{number}-1"
        for name in ("submit", "start"):
            story.job(job, name)
        story.tell(Observed(story.now, job, "json-lines", {"u": 1.0, "step": 2}))
        story.job(job, "finish", status=0)
        story.job(job, "clean")
        look()
    assert story.metric("count.g.done(T == 3)") == len(failing)
    assert story.metric("count.g.open(T == 3)") == 0
    texts = [decisions_text([each]) for each in story.decisions]
    again = Engine(CHECKED)
    told: list[str | None] = []
    for place, event in enumerate(story.events):
        if place == stop:
            again = load(dump(again), CHECKED)
        told += [decisions_text([each]) for each in again.handle(event)]
    assert told == texts


def test_an_unchanged_table_is_not_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = told()
    worked: list[object] = []
    row = GroupedTable._row
    monkeypatch.setattr(GroupedTable, "_row", lambda self, at: worked.append(at) or row(self, at))
    done(story, range(8))
    tables = story.engine.tables
    assert tables().statistic("max.t.gap") == 4
    assert len(worked) == 2
    for _ in range(5):
        assert tables().statistic("max.t.gap") == 4
        assert tables().statistic("max.t.T(gap > 0)") == 1
    assert len(worked) == 2
    monkeypatch.undo()


def test_only_the_row_of_a_new_job_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    story = told()
    done(story, (0, 1, 2, 4, 5, 6, 7))
    assert len(rows(story)) == 2
    worked: list[Any] = []
    row = GroupedTable._row
    monkeypatch.setattr(GroupedTable, "_row", lambda self, at: worked.append(at) or row(self, at))
    done(story, (3,))
    assert [each["gap"] for each in rows(story)] == [4, -3]
    assert [each.key for each in worked] == [((0, 2),)]


# -- missing, nan or infinite values -----------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "condition", "expected"),
    [
        ({"u": 1.0}, "step > 10", None),  # it has no value
        ({"u": 1.0, "step": float("nan")}, "step > 10", None),
        ({"u": 1.0, "step": float("nan")}, "step != 10", None),
        ({"u": 1.0, "step": float("nan")}, "not step > 10", None),
        ({"u": 1.0, "step": float("nan")}, "isnan(step)", 1.0),
        ({"u": 1.0, "step": float("inf")}, "step > 10", 1.0),
        ({"u": 1.0, "step": 0.0}, "1 / step > 10", None),
        ({"u": 1.0, "step": 1.0}, "step > 10 or L == 16", 1.0),
        ({"u": 1.0}, "step > 10 or L == 16", 1.0),
        ({"u": 1.0}, "L == 16 and replica == 0 and attempt == 0 and index == 0", 1.0),
        ({"u": 1.0}, "T == 1 and L in (16, 64)", 1.0),
    ],
)
def test_values_are_skipped_if_the_filter_has_a_missing_value_or_nan(
    values: dict[str, float], condition: str, expected: float | None
) -> None:
    rule = "  - {{trigger: observed, name: g, when: 'mean.u({0}) > 9',"
    rule += " action: {{name: log, message: x}}}}\n"
    story = told(table="", rules=rule.format(condition))
    story.begin("g.0")
    story.observe("g.0", values, observer="json-lines")
    index = story.engine.state.table.records["g.0"].index
    (name,) = [name for name in index.series or {"": 0} if name != "u"] or [""]
    assert index.read("mean", name, story.now) == expected


def test_a_job_without_the_value_counts_in_the_row_but_not_in_its_statistic() -> None:
    story = told(
        table="  t: {of: g, by: [T], columns: {m: mean.U, c: count.done(L == 16), k: n}}\n"
    )
    story.play("g.0")
    story.play("g.4")
    assert [(row["m"], row["c"], row["k"]) for row in rows(story)] == [(None, 1, 2)]
    done(story, (1,))
    assert [(row["m"], row["c"], row["k"]) for row in rows(story)] == [(3, 2, 3)]


def test_a_column_that_divides_by_zero_is_missing() -> None:
    story = told(table="  t: {of: g, by: [T], columns: {x: 1 / (T - 1), y: x + 1, z: n}}\n")
    done(story, (0, 2))
    assert [(row["x"], row["y"], row["z"]) for row in rows(story)] == [(None, None, 1), (1, 2, 1)]


def test_a_pivot_has_columns_for_texts_fractions_and_late_values() -> None:
    jobs = JOBS.replace("L: [16, 32]", "L: [0.5, hex, -1]").replace("replicas: 2", "replicas: 1")
    table = """
  t: {of: g, by: [T], pivot: L, columns: {U: mean.U, s: 'U[0.5] + U["hex"] + U[-1]', k: n, d: 'U - U[-1]'}}
"""
    story = told(jobs=jobs, table=table)
    assert story.engine.tables().columns("t")[:4] == ("T", "U[-1]", "U[0.5]", "U[hex]")
    done(story, (0, 2, 4))
    (row,) = rows(story)
    assert (row["U[0.5]"], row["U[hex]"], row["U[-1]"], row["s"]) == (1, 5, 4, 10)
    assert (row["k[hex]"], row["d[hex]"], row["n"]) == (1, 1, 3)


# -- all, slices and rows ----------------------------------------------------------------------


def test_all_covers_the_whole_group_in_statistics_counts_and_rows() -> None:
    rules = """
  - {id: said, trigger: idle, name: g, each: [T], action:
     {name: log, message: '{T} {mean.U(L == 16)} {all.mean.U(L == 16)} {count.done} {all.count.done} {all.count.done(T == 1)}'}}
  - {id: more, trigger: idle, name: g, each: [T], when: T == 2, action:
     {name: submit, label: g, rows: all.t(gap > 0), with: {parameters: {L: 64}}}}
"""
    story = told(rules=rules)
    done(story, (0, 1, 4, 5, 2, 3, 6))
    assert story.messages() == ["1 2 2 4 4 4"]
    before = len(story.decisions)
    done(story, (7,))
    assert story.messages()[1:] == ["2 5 3.5 4 8 4"]
    submitted = [one for one in story.decisions[before:] if isinstance(one, Submit)]
    assert [job.parameters for one in submitted for job in one.jobs] == [{"L": 64, "T": 1}] * 2


def test_rows_submit_nothing_if_none_passes() -> None:
    rule = "  - {id: more, trigger: idle, name: g, action: {name: submit, label: g, rows: t(gap > 5)}}\n"
    story = told(rules=rule)
    done(story, range(8))
    assert "more" in story.fired()
    assert len(story.submitted()) == 8


def test_a_pivot_with_too_many_values_keeps_the_lowest_with_a_warning() -> None:
    story = Story(
        "jobs: [{name: g, command: 'x {T} {L}', parameters: {T: 1, L: null}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: g, with:"
        " {parameters: {T: 1, L: [" + ", ".join(map(str, range(203, 0, -1))) + "]}}}}]\n"
        "results: {t: {of: g, by: [T], pivot: L, columns: {k: n}}}\n"
    )
    story.start()
    for number in range(203):
        story.job(f"g.{number}", "submit", "start")
        story.job(f"g.{number}", "finish", status=0)
        story.job(f"g.{number}", "clean")
    tables = story.engine.tables()
    assert tables.pivot_values("t") == [*range(1, 201)]
    (row,) = tables["t"]
    assert (row["k[200]"], row["n"]) == (1, 203)
    assert tables.left_out("t").endswith("lowest values of L; 3 more values have no column")
