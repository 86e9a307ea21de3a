"""A row of a table with ``by`` takes ``last`` values from one job, and says what it covers."""

from __future__ import annotations

import itertools

import pytest
from ensemble_testing import Story

HEAD = """
jobs:
  - {name: ana, command: 'x {T} {L}', parameters: {T: [300], L: [1, 2]}, count: 3,
     observe: {key-value: {fields: [U, e]}}, result: {U: last.U, err: last.e}}
rules: [{trigger: start, action: {name: submit, label: ana}}]
results:
  t: {of: ana, by: [T], columns: {U: last.U, err: last.err, both: last.U + last.err, m: mean.U, n: n}}
  large: {of: ana, by: [T], columns: {U: last.U(U > 20), err: last.err(U > 20), own: last.err}}
  wide: {of: ana, by: [T], pivot: L, columns: {U: last.U, err: last.err, em: mean.err}}
"""


def played(values: list[dict[str, float]], order: tuple[int, ...]) -> Story:
    story = Story(HEAD)
    story.start()
    for number in order:
        story.begin(f"ana.{number}")
        if values[number]:
            story.observe(f"ana.{number}", values[number])
        story.end(f"ana.{number}")
    return story


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_the_last_values_of_a_row_come_from_its_newest_job_in_any_order(
    order: tuple[int, ...],
) -> None:
    story = played([{"U": 11, "e": 1}, {"U": 50}, {}], order)
    tables = story.engine.tables()
    (row,) = tables["t"]
    assert (row["U"], row["err"], row["both"]) == (50, None, None)
    assert (row["m"], row["n"]) == (30.5, 3)
    (wide,) = tables["wide"]
    assert (wide["U[1]"], wide["err[1]"]) == (50, None)
    assert story.engine.tables().statistic("last.t.err") is None


def test_a_filter_chooses_the_newest_of_its_jobs() -> None:
    story = played([{"U": 30, "e": 1}, {"U": 5, "e": 7}, {"e": 9}], (0, 1, 2))
    (row,) = story.engine.tables()["large"]
    assert (row["U"], row["err"], row["own"]) == (30, 1, 9)


def test_a_job_without_any_of_the_values_is_not_the_newest() -> None:
    (row,) = played([{"U": 11, "e": 1}, {}, {}], (0, 1, 2)).engine.tables()["t"]
    assert (row["U"], row["err"]) == (11, 1)


def test_a_later_job_replaces_all_values_of_a_computed_row() -> None:
    story = played([{"U": 11, "e": 1}, {"U": 50}, {}], (0,))
    assert story.engine.state.all_tables["t"][0]["err"] == 1
    story.begin("ana.1")
    story.observe("ana.1", {"U": 50})
    story.end("ana.1")
    row = story.engine.state.all_tables["t"][0]
    assert (row["U"], row["err"]) == (50, None)


def test_a_statistic_over_fewer_jobs_than_the_row_says_so() -> None:
    tables = played([{"U": 11, "e": 1}, {"U": 50}, {}], (0, 1, 2)).engine.tables()
    assert tables.warnings("t") == [
        "the table 't': mean.U covers 2 of 3 jobs at T=300; the other jobs have no such value"
    ]
    assert "mean.err covers 1 of 3 jobs at T=300" in tables.warnings("wide")[0]
    full = played([{"U": 11, "e": 1}] * 3, (0, 1, 2)).engine.tables()
    assert full.warnings("t") == full.warnings("wide") == []
