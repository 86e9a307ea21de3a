"""Table of jobs in memory: pages, filters and order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ensemble_core.journal.job_history import Batch, Jobs
from ensemble_core.session.jobs_in_memory import JobColumns

ROWS: list[dict[str, Any]] = [
    {"group": "sim", "index": 0, "outcome": "success", "T": 0.5, "s": "One", "duration": 3.0},
    {"group": "sim", "index": 1, "outcome": "failed", "T": 1.0, "s": None, "duration": None},
    {"group": "sim", "index": 2, "outcome": "success", "T": None, "s": "two", "duration": 1.0},
    {"group": "post", "index": 0, "outcome": "active", "T": 1.0, "s": 7, "duration": None},
]


class Kept(Jobs):
    def __init__(self) -> None:
        super().__init__(("sim", "post"), (("T", "s"), (), ()))
        self.kinds = {"T": {"f", "n"}, "duration": {"f", "n"}, "outcome": {"s"}}

    def batches(self) -> Iterator[Batch]:
        for rows in (ROWS[:2], ROWS[2:3], ROWS[3:]):
            yield [[row.get(name) for row in rows] for name in self.names]


class Later(Kept):
    """Later state of the run, in which the rows ``changed`` are new or different."""

    def __init__(self, *changed: dict[str, Any]) -> None:
        super().__init__()
        self._changed = changed

    def active(self) -> Iterator[Batch]:
        for row in self._changed:
            yield [[row.get(name)] for name in self.names]


def names(where: dict[str, object], text: str = "", sort: str | None = None, **how: Any) -> Any:
    jobs = JobColumns(Kept())
    found, total = jobs.select(where, text, sort, how.get("descending", False), how.get("until"))
    assert total >= len(found)
    return [f"{row[0]}.{row[1]}" for row in map(jobs.row, found)]


def test_missing_values_are_none() -> None:
    jobs = JobColumns(Kept())
    row = jobs.find("sim", 2)
    assert row is not None
    assert (row["T"], row["s"], row["duration"]) == (None, "two", 1.0)
    assert jobs.find("sim", 3) is None
    assert jobs.find("none", 0) is None


def test_a_group_of_several_batches_is_one_range() -> None:
    jobs = JobColumns(Kept())
    assert jobs.ranges == {"sim": range(3), "post": range(3, 4)}
    assert list(jobs.column("T", "sim")) == [0.5, 1.0, None]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"group": "sim", "outcome": "success"}, ["sim.0", "sim.2"]),
        ({"outcome": "success", "group": "sim"}, ["sim.0", "sim.2"]),
        ({"T": 1, "group": "post"}, ["post.0"]),
        ({"T": "1.0"}, ["sim.1", "post.0"]),
        ({"T": 1}, ["sim.1", "post.0"]),
        ({"s": "7"}, ["post.0"]),
        ({"group": "none"}, []),
    ],
)
def test_jobs_are_selected_by_value_even_if_given_as_text(
    where: dict[str, object], found: list[str]
) -> None:
    assert names(where) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("sim.1", ["sim.1"]),
        ("ONE", ["sim.0"]),
        ("0.5", ["sim.0"]),
        ("fail", ["sim.1"]),
        ("nan", []),
    ],
)
def test_text_is_found_in_names_and_values(text: str, found: list[str]) -> None:
    assert names({}, text) == found


def test_jobs_without_a_value_come_last_in_both_orders() -> None:
    assert names({}, sort="duration") == ["sim.2", "sim.0", "sim.1", "post.0"]
    assert names({}, sort="duration", descending=True) == ["sim.0", "sim.2", "sim.1", "post.0"]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", ["T", "s", "duration", "outcome"])
def test_the_first_sorted_jobs_are_those_of_the_full_order(sort: str, descending: bool) -> None:
    whole = names({}, sort=sort, descending=descending)
    for until in range(1, 5):
        first = names({}, sort=sort, descending=descending, until=until)
        assert first[:until] == whole[:until]


@pytest.mark.parametrize("text", ["1", "sim.1", "o", "0.5", "t", "7"])
def test_text_is_found_among_few_and_many_distinct_values(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = names({}, text)
    monkeypatch.setattr("ensemble_core.session.jobs_in_memory._FEW", 0)
    assert names({}, text) == few


def test_numbers_come_before_texts() -> None:
    assert names({}, sort="s")[:3] == ["post.0", "sim.0", "sim.2"]


def test_selected_jobs_are_sorted() -> None:
    assert names({"outcome": "success"}, sort="T", descending=True) == ["sim.0", "sim.2"]


def test_changed_and_new_rows_are_inserted_into_their_groups() -> None:
    jobs = JobColumns(Kept())
    jobs.select({}, "two", None, False)
    changed = {**ROWS[1], "outcome": "success", "duration": 2.0}
    new = {"group": "sim", "index": 5, "outcome": "active", "T": 2.0, "s": "four"}
    assert jobs.update(Later(changed, new, {**ROWS[3], "outcome": "failed"}))  # type: ignore[arg-type]
    assert jobs.ranges == {"sim": range(4), "post": range(4, 5)}
    assert list(jobs.column("outcome", "sim")) == ["success", "success", "success", "active"]
    assert list(jobs.column("duration", "sim")) == [3.0, 2.0, 1.0, None]
    assert list(jobs.column("outcome", "post")) == ["failed"]
    assert jobs.select({}, "four", None, False) == ([3], 1)


@pytest.mark.parametrize(
    "row", [{"group": "new", "index": 0}, {"group": "sim", "index": -1}], ids=["group", "before"]
)
def test_a_new_group_or_earlier_job_needs_a_new_table(row: dict[str, Any]) -> None:
    assert not JobColumns(Kept()).update(Later({**row, "outcome": "active"}))  # type: ignore[arg-type]


def test_new_columns_or_texts_among_numbers_need_a_new_table() -> None:
    jobs, later = JobColumns(Kept()), Later()
    later.kinds["T"] = {"f", "s"}
    assert not jobs.update(later)  # type: ignore[arg-type]
    later = Later()
    later.names = (*later.names, "energy")
    assert not jobs.update(later)  # type: ignore[arg-type]
