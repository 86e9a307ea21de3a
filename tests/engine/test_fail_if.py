"""``fail_if``: a job's own values decide whether exit code 0 is a success."""

from __future__ import annotations

import math

import pytest
from ensemble_testing import Story
from ensemble_testing.story import CLEARING

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Fail, Retry
from ensemble_core.model.events import Resumed, StopRequested

GROUP = "{name: sim, command: x, observe: {key-value: {fields: [E]}}, result: {U: last.E}, MORE}"
START = "  - {trigger: start, action: {name: submit, label: sim}}\n"


def story(more: str, *rules: str) -> Story:
    text = f"jobs: [{GROUP.replace('MORE', more)}]\nrules:\n{START}"
    told = Story(text + "".join(f"  - {{{rule}}}\n" for rule in rules))
    told.start()
    return told


def play(told: Story, job: str, *values: float, status: int = 0, duration: float = 1.0) -> None:
    told.begin(job)
    for value in values:
        told.observe(job, {"E": value}, observer="key-value")
    told.end(job, status=status, duration=duration)


def count(told: Story, outcome: str) -> float | None:
    return told.metric(f"count.sim.{outcome}")


LOG = (
    "trigger: job-fail, name: sim, repetitions: 9, action: {name: log, "
    "message: '{cause} {type} {exit_code} {note}'}"
)


def test_a_job_whose_condition_is_true_has_failed_with_the_cause_result() -> None:
    told = story("fail_if: last.E > 0", LOG)
    play(told, "sim.0", -1, 2)
    assert (count(told, "failed"), count(told, "success"), count(told, "lost")) == (1, 0, 1)
    assert told.messages() == ["result result 0 fail_if: last.E > 0"]
    (fail,) = [one for one in told.decisions if isinstance(one, Fail)]
    assert (fail.job, fail.condition, fail.outcome) == ("sim.0", "last.E > 0", "failed")
    assert told.exit_code == 0  # the rule has handled it


def test_without_a_rule_the_run_has_exit_code_1() -> None:
    told = story("fail_if: last.E > 0")
    play(told, "sim.0", 2)
    assert told.exit_code == 1


def test_a_job_whose_condition_is_false_has_succeeded() -> None:
    told = story("fail_if: last.E > 0", LOG)
    play(told, "sim.0", 2, -1)
    assert (count(told, "failed"), count(told, "success")) == (0, 1)
    assert not told.messages()


@pytest.mark.parametrize(
    ("condition", "fails"),
    [
        ("count.rows < 3", True),
        ("count.rows < 2", False),
        ("duration < 5", False),
        ("duration < 50", True),
        ("exit_code == 0 and max.E > 1", True),
        ("mean.E > 2 * limit", False),
        ("attempt > 0", False),
        ("metric('count.sim.rows') == 2", True),
        ("index == 0", True),
    ],
)
def test_the_condition_knows_the_whole_job(condition: str, fails: bool) -> None:
    told = story(f'duration: 60, fail_if: "{condition}"')
    play(told, "sim.0", 1, 2, duration=20)
    assert count(told, "failed") == int(fails)


def test_a_job_that_failed_anyway_keeps_its_cause() -> None:
    told = story("fail_if: last.E > 0", LOG)
    play(told, "sim.0", 2, status=3 << 8)
    assert told.messages()[0].startswith("exit ")
    assert not [one for one in told.decisions if isinstance(one, Fail)]


def test_a_retry_on_the_cause_result_runs_the_job_again_and_counts_its_rows_anew() -> None:
    told = story('fail_if: count.rows < 2, retry: {times: 3, when: cause == "result"}')
    play(told, "sim.0", 1)
    assert [one.job for one in told.decisions if isinstance(one, Retry)] == ["sim.0"]
    play(told, "sim.0-1", 1)
    play(told, "sim.0-2", 1, 2)
    assert (count(told, "failed"), count(told, "success"), count(told, "done")) == (2, 1, 1)
    assert count(told, "rows") == 4
    assert told.exit_code == 0


def test_rows_of_an_attempt_that_continues_are_added() -> None:
    told = story(
        'fail_if: count.rows < 2, retry: {times: 3, when: cause == "result", continue: true}'
    )
    play(told, "sim.0", 1)
    play(told, "sim.0-1", 1)
    assert (count(told, "failed"), count(told, "success")) == (1, 1)


@pytest.mark.parametrize("first", ["end", "cancel"])
def test_a_job_that_the_run_cancels_has_the_same_outcome_if_it_ends_first(first: str) -> None:
    told = story(
        "fail_if: max.E > 100",
        "trigger: observed, name: sim, each: job, when: E > 100, action: {name: cancel}",
        LOG,
    )
    told.begin("sim.0")
    told.observe("sim.0", {"E": 500}, observer="key-value")
    if first == "end":
        told.end("sim.0")
    else:
        told.cancel("sim.0")
    assert (count(told, "failed"), count(told, "cancelled"), count(told, "success")) == (0, 1, 0)
    assert not told.messages()
    assert told.exit_code == 0


def test_a_missing_value_is_reported_once_and_is_no_failure() -> None:
    told = Story(
        f"jobs: [{GROUP.replace('MORE', 'count: 2, fail_if: last.E > 0')}]\nrules:\n{START}"
    )
    told.start()
    play(told, "sim.0")
    play(told, "sim.1")
    assert count(told, "success") == 2
    (said,) = [text for text in told.messages() if "fail_if" in text]
    assert said == "sim.0: fail_if: last.E > 0 cannot be checked, because last.E has no value"


def test_the_last_value_counts_also_if_it_is_nan() -> None:
    told = story("fail_if: isnan(last.E) or count.rows < 1")
    play(told, "sim.0", 1, math.nan)
    assert count(told, "failed") == 1


def test_a_reused_job_is_checked_too() -> None:
    told = story("fail_if: duration > 50 or last.E > 3")
    told.job("sim.0", "submit", reused="r1/sim.0")
    told.begin("sim.0")
    told.job("sim.0", "finish", status=0, duration=60.0)
    told.job("sim.0", *CLEARING)
    assert count(told, "failed") == 1


def test_a_snapshot_between_the_last_row_and_the_end_changes_nothing() -> None:
    told = story("fail_if: count.rows < 2 or last.E > 0")
    told.begin("sim.0")
    told.observe("sim.0", {"E": -2}, observer="key-value")
    engine = load(dump(told.engine), told.engine.state.ensemble)
    assert engine is not None
    told.engine = engine
    told.observe("sim.0", {"E": -1}, observer="key-value")
    told.end("sim.0")
    assert count(told, "success") == 1


def test_each_entry_of_a_group_has_its_own_condition() -> None:
    told = Story(
        f"jobs: [{GROUP.replace('MORE', 'fail_if: last.E > 0')}, "
        f"{GROUP.replace('MORE', 'fail_if: last.E > 9')}]\nrules:\n{START}"
    )
    told.start()
    play(told, "sim.0", 5)
    play(told, "sim.1", 5)
    assert (count(told, "failed"), count(told, "success")) == (1, 1)


@pytest.mark.parametrize(
    ("condition", "what", "hint"),
    [
        ("isnan(E)", "'E' is a column", "last.E"),
        ("last.F > 0", "yields 'F'", "add 'F' to the fields"),
        ("last.E == nan", "compares with nan", "isnan(last.E)"),
        ("U > 0", "'U' is a result", "last.E"),
        ("cause == 1", "'cause' has no value yet", "isnan(last.energy)"),
        ("count.row < 3", "there is no count 'row'", "count.rows"),
        ("> 5", "does not say what '> 5' compares", "isnan(last.energy)"),
        ("last.E >", "does not parse", "isnan(last.energy)"),
        ("metric('max.sim-F') > 1", "max.sim-F", "add 'F' to the fields"),
        ("dt > 1", "dt", ""),
    ],
)
def test_a_mistake_is_reported_before_anything_runs(condition: str, what: str, hint: str) -> None:
    with pytest.raises(EnsembleError) as caught:
        story(f'fail_if: "{condition}"')
    assert what in str(caught.value)
    assert hint in str(caught.value)


def test_a_job_that_a_stop_ends_early_is_submitted_again() -> None:
    """It may handle SIGTERM, write a checkpoint, and exit with code 0."""
    told = story("fail_if: count.rows < 2, retry: {times: 1}")
    told.begin("sim.0")
    told.observe("sim.0", {"E": 1}, observer="key-value")
    told.tell(StopRequested(told.now, then="cancel"))
    told.end("sim.0")
    again = told.tell(Resumed(told.now))
    assert told.submitted(again) == ["sim.0"]
    assert not any(isinstance(one, Retry) for one in again)
    play(told, "sim.0", 1, 2)
    assert (count(told, "failed"), count(told, "success")) == (0, 1)
    assert told.exit_code == 0
