"""``submit … rows``: a job for each row of a table, or of the output of the event's job."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.model.decisions import Decision, Log, Submit
from ensemble_core.plugin.discovery import discover

_FILE = """
jobs:
  - {{name: sim, command: 'x {{T}}', parameters: {{T: [1, 2, 3, 4]}}, observe: {{json-lines: {{rows: {kept}}}}}}}
  - {{name: next, command: 'x {{T}} {{d}}', parameters: {{T: 0, d: [5, 6]}}}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{trigger: {trigger}, name: sim, repetitions: 9, action: {{name: submit, label: next, {options}}}}}
results:
  best: {{of: sim, order: -duration, top: 2}}
"""


def _file(options: str, trigger: str = "idle", kept: str = "true") -> str:
    return _FILE.format(options=options, trigger=trigger, kept=kept)


def _submitted(decisions: list[Decision]) -> list[dict[str, object]]:
    found = [each for each in decisions if isinstance(each, Submit)]
    return [dict(job.parameters) for each in found for job in each.jobs]


def _played(story: Story) -> list[Decision]:
    story.start()
    decided = []
    for index, duration in enumerate((3, 1, 4, 2)):
        decided += story.play(f"sim.{index}", duration=duration)
    return decided


def test_columns_give_parameters_and_the_group_gives_the_rest() -> None:
    assert _submitted(_played(Story(_file("rows: best")))) == [
        {"T": 3, "d": 5},
        {"T": 3, "d": 6},
        {"T": 1, "d": 5},
        {"T": 1, "d": 6},
    ]


def test_with_may_use_all_columns_and_overrides_them() -> None:
    story = Story(_file("rows: best, with: {parameters: {d: '= 10 * duration + T'}}"))
    assert _submitted(_played(story)) == [{"T": 3, "d": 43}, {"T": 1, "d": 31}]


def test_a_share_of_zero_rows_is_reported() -> None:
    decided = _played(Story(_file("rows: best").replace("top: 2", "top: 10%")))
    assert _submitted(decided) == []
    assert [each.message for each in decided if isinstance(each, Log)] == [
        "best has no rows (top: 10%, rounded down): no jobs of next submitted"
    ]


def test_repeated_combinations_are_skipped_with_one_message() -> None:
    decided = _played(Story(_file("rows: best, with: {parameters: {T: 7, d: 1}}")))
    assert _submitted(decided) == [{"T": 7, "d": 1}]
    assert [each.message for each in decided if isinstance(each, Log)] == [
        "1 of 2 combinations of next were submitted before: not repeated"
    ]


def test_again_submits_them_as_further_replicas() -> None:
    story = Story(_file("rows: best, again: true, with: {parameters: {T: 7, d: 1}}"))
    assert _submitted(_played(story)) == [{"T": 7, "d": 1}] * 2


def test_a_row_with_count_zero_submits_nothing() -> None:
    story = Story(_file("rows: best, with: {parameters: {d: 1}, replicas: '= duration - 3'}"))
    assert _submitted(_played(story)) == [{"T": 3, "d": 1}]


def test_rows_printed_by_a_job_are_submitted_when_it_is_done() -> None:
    story = Story(_file("rows: job, with: {parameters: {d: 0}}", "job-done"))
    story.start()
    story.begin("sim.0")
    story.observe("sim.0", T=1.5, observer="json-lines")
    story.observe("sim.0", T=2.5, observer="json-lines")
    story.observe("sim.0", T=9.0, observer="another")
    assert _submitted(story.end("sim.0")) == [{"T": 1.5, "d": 0}, {"T": 2.5, "d": 0}]
    decided = story.play("sim.1")
    assert _submitted(decided) == []
    assert any("printed no rows" in each.message for each in decided if isinstance(each, Log))


@pytest.mark.parametrize("values", [[1.0, float("nan")], [1.0] * 10_001])
def test_all_rows_are_submitted_or_none(values: list[float]) -> None:
    story = Story(_file("rows: job", "job-done"))
    story.start()
    story.begin("sim.0")
    for value in values:
        story.observe("sim.0", T=value, observer="json-lines")
    decided = story.end("sim.0")
    assert _submitted(decided) == []
    (told,) = [each for each in decided if isinstance(each, Log)]
    assert told.level == "error"
    assert "nothing was submitted" in told.message


@pytest.mark.parametrize(
    ("options", "trigger", "kept", "said", "hint"),
    [
        ("rows: bset", "idle", "true", "no table 'bset'", "'best'"),
        ("rows: job", "idle", "true", "the trigger 'idle' has no job", "job-done"),
        ("rows: job", "job-done", "false", "no observer of 'sim' stores them", "rows: true"),
        ("rows: 5", "idle", "true", "'rows' is the number 5", ""),
    ],
)
def test_invalid_rows_are_rejected(
    options: str, trigger: str, kept: str, said: str, hint: str
) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(_file(options, trigger, kept), discover(), file="study.yaml")
    (error,) = caught.value.errors
    assert said in error.what
    assert hint in (error.hint or "")
    assert error.where is not None


_SEEDS = """
jobs:
  - {{name: mc, command: 'pi {{n}} {{replica}}', parameters: {{n: [10, 20]}}, {number}}}
rules:
  - {{trigger: start, action: {{name: submit, label: mc}}}}
  - {{trigger: idle, name: mc, repetitions: 3, action: {{name: submit, label: mc, rows: all, again: true{changed}}}}}
results:
  all: {{of: mc, by: [n], columns: {{seeds: count.done}}}}
"""


@pytest.mark.parametrize(
    ("number", "changed", "count"),
    [
        ("replicas: 2", "", 16),
        ("count: 2", "", 16),
        ("replicas: 2", ", with: {count: 1}", 10),
        ("replicas: 2", ", with: {replicas: 1}", 10),
        ("count: 2", ", with: {count: 1}", 10),
    ],
)
def test_no_two_jobs_get_the_same_seed(number: str, changed: str, count: int) -> None:
    story = Story(_SEEDS.format(number=number, changed=changed))
    commands = [job.command for each in story.start() for job in getattr(each, "jobs", ())]
    for place in range(count):
        decided = story.play(f"mc.{place}", duration=1)
        commands += [
            job.command for each in decided if isinstance(each, Submit) for job in each.jobs
        ]
    assert len(commands) == len(set(commands)) == count


def test_a_retry_keeps_the_seed_of_its_job() -> None:
    text = "jobs: [{name: mc, command: 'pi {replica}', count: 2, retry: {times: 2}}]\n"
    story = Story(text + "rules: [{trigger: start, action: {name: submit, label: mc}}]")
    story.start()
    decided = story.play("mc.1", status=256)
    assert [job.command for each in decided for job in getattr(each, "jobs", ())] == [("pi", "1")]
