"""Tables of results: their rows do not depend on the order in which jobs end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ensemble_testing import Story

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.model.decisions import Log
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import JobEvent, StopRequested
from ensemble_core.model.expressions import expression
from ensemble_core.plugin.discovery import discover

_FILE = """
jobs:
  - {name: sim, command: 'x {T}', parameters: {T: [1, 2, 3]}, count: 2}
  - {name: other, command: x}
rules: [{trigger: start, action: {name: submit, label: sim}}]
results:
"""


def _ensemble(results: str, **result: str) -> Ensemble:
    """Return the ensemble with these tables, and with this ``result`` in its group."""
    file = _FILE
    known = load_text(file + "  all: {of: sim}\n", discover())
    group = replace(
        known.groups["sim"],
        result={name: expression(text, texts=True) for name, text in result.items()},
    )
    # For the checks of tables, results are parameters.
    extra = "".join(f", {name}: 0" for name in result)
    spoken = "".join(f" {{{name}}}" for name in result)
    file = file.replace("[1, 2, 3]", f"[1, 2, 3]{extra}").replace("{T}'", f"{{T}}{spoken}'")
    checked = load_text(file + results, discover())
    return replace(known, tables=checked.tables, groups={**known.groups, "sim": group})


def _tables(story: Story) -> dict[str, list[dict[str, object]]]:
    return dict(story.engine.tables())


def test_a_table_has_a_row_for_each_done_job_by_index() -> None:
    story = Story(_ensemble("  all: {of: sim}\n"))
    story.start()
    story.play("sim.3", duration=4)
    story.play("sim.0", duration=2)
    story.play("sim.1", status=256)  # it fails
    assert _tables(story)["all"] == [
        {"index": 0, "duration": 2.0, "attempt": 0, "replica": 0, "T": 1},
        {"index": 3, "duration": 4.0, "attempt": 0, "replica": 0, "T": 2},
    ]


def test_by_gives_a_row_for_each_combination_with_statistics_over_its_jobs() -> None:
    story = Story(
        _ensemble(
            "  each: {of: sim, by: [T], columns:"
            " {m: mean.duration, least: min.duration, count: n, done: count.done, T2: T * 2}}\n"
        )
    )
    story.start()
    for job, duration in (("sim.4", 1), ("sim.1", 2), ("sim.0", 4)):
        story.play(job, duration=duration)
    assert _tables(story)["each"] == [
        {"n": 2, "reused": 0, "T": 1, "m": 3.0, "least": 2.0, "count": 2, "done": 2, "T2": 2},
        {"n": 1, "reused": 0, "T": 3, "m": 1.0, "least": 1.0, "count": 1, "done": 1, "T2": 6},
    ]


@pytest.mark.parametrize(
    ("said", "indices"),
    [
        ("order: E", [2, 0, 4, 1, 3, 5]),  # 1 has no E; ties are sorted by index
        ("order: -E", [5, 3, 0, 4, 2, 1]),
        ("order: E, top: 3", [2, 0, 4]),
        ("order: E, top: 10", [2, 0, 4, 3, 5]),  # a row without a value is never in the top
        ("order: -E, top: 50%", [5, 3, 0]),
        ("order: E, top: 16%", []),  # 0.96 of a row
        ("top: 2", [0, 1]),
        ("where: E > 1", [3, 5]),
        ("where: T == 2, order: -index", [3, 2]),
    ],
)
def test_rows_are_filtered_sorted_and_limited(said: str, indices: list[int]) -> None:
    story = Story(_ensemble(f"  best: {{of: sim, {said}}}\n", E="energy"))
    story.start()
    energies = {0: 1.0, 1: None, 2: -1.0, 3: 2.0, 4: 1.0, 5: 3.0}
    for index in (5, 4, 3, 2, 1, 0):
        story.begin(f"sim.{index}")
        context = {} if energies[index] is None else {"energy": energies[index]}
        story.job(f"sim.{index}", "finish", status=0, **context)
        story.job(f"sim.{index}", "clean")
    rows = _tables(story)["best"]
    if said == "order: E":
        indices = [2, 0, 4, 3, 5, 1]
    assert [row["index"] for row in rows] == indices


def test_a_column_without_a_value_is_missing_and_a_text_is_kept() -> None:
    columns = '{half: 1 / (T - 2), word: \'"low" if T < 2 else "high"\'}'
    story = Story(_ensemble(f"  all: {{of: sim, columns: {columns}}}\n"))
    story.start()
    for index in range(6):
        story.play(f"sim.{index}")
    rows = _tables(story)["all"]
    assert [row["half"] for row in rows] == [-1.0, -1.0, None, None, 1.0, 1.0]
    assert [row["word"] for row in rows] == ["low"] * 2 + ["high"] * 4


def test_a_table_may_use_another_table() -> None:
    story = Story(
        _ensemble(
            "  near: {of: sim, where: duration < 2 * min.all.duration}\n  all: {of: sim}\n"
            "  share: {of: sim, by: [T], columns: {of_all: n / count.all.T}}\n"
        )
    )
    story.start()
    for index in range(6):
        story.play(f"sim.{index}", duration=index + 2)
    assert [row["index"] for row in _tables(story)["near"]] == [0, 1]
    assert [row["of_all"] for row in _tables(story)["share"]] == [1 / 3] * 3


def test_a_job_that_succeeds_after_the_end_is_in_the_table() -> None:
    story = Story(_ensemble("  all: {of: sim}\n", E="2 * index"))
    story.start()
    story.begin("sim.1")
    story.tell(StopRequested(story.now))
    for name, context in (("finish", {"status": 0}), ("clean", {})):
        story.engine.handle(JobEvent(story.now, "sim.1", name, context))
    (row,) = story.engine.tables()["all"]
    assert (row["index"], row["E"]) == (1, 2)


def test_done_jobs_of_groups_without_tables_are_not_kept() -> None:
    story = Story(_ensemble("  all: {of: other}\n"))
    story.start()
    story.play("sim.0")
    assert "sim" not in story.engine.state.table.done


_RESULTS = (
    "  all: {of: sim, order: -E}\n"
    "  each: {of: sim, by: [T], columns: {m: mean.E, e: variance.E, p: p90.duration, n: n}}\n"
    "  best: {of: sim, where: E > mean.all.E, order: E, top: 50%}\n"
)


def test_rules_and_messages_may_use_a_tables_column() -> None:
    file = """
jobs: [{name: sim, command: 'x {T}', parameters: {T: [1, 2, 3]}}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - id: told
    trigger: job-done
    name: sim
    when: sum.all.T >= 4
    action: {name: log, message: 'sum {sum.all.T}, {count.all.duration} jobs'}
results: {all: {of: sim}}
"""
    story = Story(file)
    story.start()
    assert story.play("sim.2") == []  # 3
    decided = story.play("sim.0")  # includes the job of the event
    assert [each.message for each in decided if isinstance(each, Log)] == ["sum 4, 2 jobs"]


def test_an_unknown_column_has_a_suggestion() -> None:
    file = (
        "jobs: [{name: sim, command: 'x {T}', parameters: {T: [1, 2]}}]\n"
        "rules: [{trigger: job-done, when: sum.all.durration > 4, action: {name: submit, label: sim}}]\n"
        "results: {all: {of: sim}}\n"
    )
    with pytest.raises(FileErrors) as caught:
        load_text(file, discover(), file="study.yaml")
    (error,) = caught.value.errors
    assert (str(error.where), error.code) == ("study.yaml:2:35", "no-such-column")
    assert error.hint == "did you mean 'sum.all.duration'?"
