"""Incremental tables: identical to tables that are computed from all jobs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core.builtin.statistic_arithmetic import ExactMoments, Extreme, Moment
from ensemble_core.config import load_text
from ensemble_core.engine.done_jobs import DoneJobs
from ensemble_core.engine.grouped_table import GroupedTable
from ensemble_core.engine.result_tables import Tables
from ensemble_core.model.filters import Filter
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover

STUDY = """
jobs:
  - name: g
    command: x {L} {T}
    parameters: {L: [16, 32], T: [1, 2]}
    result: {U: duration}
rules: [{trigger: start, action: {name: submit, label: g}}]
results:
  t:
    of: g
    by: [T]
    pivot: L
    columns:
      U: mean.U
      e: error.U(replica > 0)
      m: median.U
      k: count.done
      scaled: U * L / n
      top: max.U(U < 5)
      rel: U - U[16]
      gap: U[32] - U[16]
      err: sqrt(e[32]**2 + e[16]**2)
    where: n > 1
  sorted: {of: g(L == 16), by: [L, T], columns: {U: last.U, V: variance.U, S: sum.U}, order: -U}
  best: {of: g, by: [T], columns: {U: mean.U}, order: U, top: 2}
  near: {of: g, by: [T], columns: {d: mean.U - mean.t.gap, lo: min.t.T(gap < 0)}}
  jobs: {of: g, columns: {V: 2 * U, W: V - mean.t.gap}, where: V > 0}
  first: {of: g, order: -U, top: 3}
"""
ASKED = (
    *(f"{statistic}.{column}" for statistic in ("max", "min", "mean", "sum", "error", "median")
      for column in ("t.gap(err < 2)", "t.U[16]", "sorted.U", "best.U", "jobs.W(T > 1)", "first.U")),
    *("min.t.T(gap < 0)", "max.t.T(gap >= 0)", "last.sorted.U", "count.jobs.W", "count.t.gap"),
    *("variance.near.d", "mean.near.lo", "max.jobs.L", "min.t.scaled[32]", "last.t.m[32](n > 3)"),
)  # fmt: skip
CHECKED = load_text(STUDY, discover()).begun("work", "/work")

JOBS = st.lists(
    st.tuples(
        st.sampled_from([16, 32, 16.0, 8]),
        st.sampled_from([1, 2, 2.0, 3, "a"]),
        st.one_of(
            st.floats(-1e3, 1e3).filter(lambda number: abs(number) > 1e-6 or not number),
            st.integers(-5, 5),
            st.sampled_from([1e300, -1e300, 1e-300, 0.1, -0.0, 10**400, "text"]),
        ),
    ),
    min_size=1,
    max_size=24,
)


def given_job(number: int, drawn: Sequence[Any]) -> tuple[Job, dict[str, Any]]:
    size, temperature, value = drawn
    job = Job(
        id=f"g.{number}",
        group="g",
        index=number,
        command=("x",),
        parameters={"L": size, "T": temperature},
        replica=number % 3,
    )
    return job, {"U": value}


def tables_of(done: DoneJobs) -> Tables:
    return Tables(CHECKED.tables, {"g": done}, CHECKED.statistics)


def written(tables: Tables) -> str:
    """Return all rows, columns and statistics of tables, as JSON."""
    rows = {name: tables[name] for name in tables}
    columns = {name: tables.columns(name) for name in tables}
    return json.dumps([rows, columns, {name: tables.statistic(name) for name in ASKED}])


@given(JOBS, st.randoms(use_true_random=False), st.sets(st.integers(0, 24)))
@settings(deadline=None, max_examples=60)
def test_incremental_tables_equal_full_ones_in_any_order(
    drawn: list[Any], random: Any, asked: set[int]
) -> None:
    jobs = [given_job(number, each) for number, each in enumerate(drawn)]
    order = list(range(len(jobs)))
    random.shuffle(order)
    done = DoneJobs()
    kept = tables_of(done)
    for place, number in enumerate(order):
        job, result = jobs[number]
        done.add(job, result, 1.0)
        for name in random.sample(ASKED, 5):
            kept.statistic(name)
        if place in asked:
            assert written(kept) == written(tables_of(done.copy()))
    at_once = DoneJobs()
    for job, result in jobs:
        at_once.add(job, result, 1.0)
    assert written(kept) == written(tables_of(at_once))


@pytest.mark.parametrize("rows", [10, 400])
def test_an_event_computes_one_row_regardless_of_table_size(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = DoneJobs()
    for number in range(2 * rows):
        done.add(*given_job(number, (16 * (1 + number % 2), number // 2, number / 7)), 1.0)
    tables = tables_of(done)
    names = ("max.t.gap(err < 2)", "min.t.T(gap < 0)", "mean.t.gap", "sum.t.U[16](n > 1)")
    for name in (*names, "max.jobs.V(T > 1)"):
        tables.statistic(name)
    counted: list[str] = []
    row, passes, known = GroupedTable._row, Filter.passes, DoneJobs.known

    monkeypatch.setattr(
        GroupedTable, "_row", lambda self, at: counted.append("row") or row(self, at)
    )
    monkeypatch.setattr(
        Filter, "passes", lambda self, of: counted.append("filter") or passes(self, of)
    )
    monkeypatch.setattr(
        DoneJobs, "known", lambda self, of: counted.append("job") or known(self, of)
    )
    done.add(*given_job(2 * rows, (32, 3, 5.0)), 1.0)
    for name in names:
        tables.statistic(name)
    # Reads one job, for one row, and evaluates five filters: two of statistics, three of columns.
    assert sorted(counted) == ["filter"] * 5 + ["job", "row"]


def test_a_table_of_jobs_computes_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = STUDY.replace("W: V - mean.t.gap", "W: V + 1")
    checked = load_text(text, discover()).begun("work", "/work")
    done = DoneJobs()
    tables = Tables(checked.tables, {"g": done}, checked.statistics)
    read: list[int] = []
    known = DoneJobs.known
    monkeypatch.setattr(DoneJobs, "known", lambda self, of: read.append(of[0]) or known(self, of))
    for number in range(50):
        done.add(*given_job(number, (16, number, float(number))), 1.0)
        assert tables.statistic("max.jobs.W") == 2 * number + 1 or not number
        assert tables.statistic("mean.jobs.V(T > 5)") is not None or number < 6
    assert len(read) < 200  # two per job, and one per new statistic


# -- reducers and the order of values ----------------------------------------------------------

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**20), 10**20),
    st.sampled_from([0.0, -0.0, 1, 1.0, 2**53 + 1, 5e-324, 1.7e308]),
)


@pytest.mark.parametrize("grows", [True, False])
@given(st.lists(NUMBERS, max_size=40), st.integers(0, 2**32))
def test_an_order_free_reducer_ignores_order_and_removed_values(
    grows: bool, values: list[float], seed: int
) -> None:
    random = Random(seed)
    back = [] if grows else [0.5, -7, 1e250] * 30
    makers: list[Any] = [lambda: Extreme(1, grows=grows), lambda: Extreme(-1, grows=grows)]
    moments: tuple[Moment, ...] = ("sum", "mean", "variance", "error")
    makers += [lambda each=each: ExactMoments(each) for each in moments]
    for make in makers:
        straight, shuffled = make(), make()
        for value in values:
            straight.add(value)
        mixed = [*values, *back]
        random.shuffle(mixed)
        for value in mixed:
            shuffled.add(value)
            if random.random() < 0.3:
                shuffled.get()
        for value in back:
            shuffled.remove(value)
        assert repr(shuffled.get()) == repr(straight.get())


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_moments_are_rounded_once(values: list[float]) -> None:
    def reduced(moment: Moment, numbers: Iterable[float]) -> float | None:
        reducer = ExactMoments(moment)
        for number in numbers:
            reducer.add(number)
        return reducer.get()

    assert reduced("sum", values) == math.fsum(values)
    assert reduced("mean", values) == statistics.mean(values)
    assert reduced("variance", values) == statistics.variance(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert reduced("error", values) == pytest.approx(error)
    assert reduced("variance", values[:1]) is None
    assert reduced("mean", ()) is None
    assert reduced("sum", (1.7e308, 1.7e308)) is None
