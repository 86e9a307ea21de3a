"""An attempt that continues repeats steps after its checkpoint; with a clock, each counts once."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.model.decisions import Log


def study(carry: bool = True) -> Story:
    return Story(
        f"""
jobs:
  - name: sim
    command: run
    observe: {{key-value: {{fields: [e], clock: step}}}}
    retry: {{times: 3, continue: {str(carry).lower()}}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{id: row, trigger: observed, name: sim, when: e >= 30, repetitions: 99,
     action: {{name: log, message: "{{clock}}"}}}}
  - {{id: end, trigger: job-success, name: sim,
     action: {{name: log, message: "sum {{sum.e}}, max {{max.e}}, mean {{mean.e}}"}}}}
"""
    )


def play(told: Story, job: str, *rows: tuple[float | None, float], status: int = 0) -> None:
    told.begin(job)
    for clock, value in rows:
        told.observe(job, observer="key-value", clock=clock, e=value)
    told.end(job, status=status)


def at_the_end(told: Story) -> str:
    """Return the statistics of the job's rows."""
    (message,) = logged(told, "end")
    return message


def logged(told: Story, rule: str | None) -> list[str]:
    return [each.message for each in told.decisions if isinstance(each, Log) and each.rule == rule]


def test_a_step_that_an_attempt_repeats_counts_once() -> None:
    told = study()
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 30), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30), (4, 40), (5, 50))

    assert at_the_end(told) == "sum 150, max 50, mean 30"
    assert logged(told, "row") == ["3", "4", "5"]


def test_an_attempt_that_dies_before_the_old_end_leaves_it_in_place() -> None:
    told = study()
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 30), status=256)
    play(told, "sim.0-1", (1, 10), (2, 20), status=256)
    play(told, "sim.0-2", (2, 20), (3, 30), (4, 40))

    assert at_the_end(told) == "sum 100, max 40, mean 25"


def test_what_is_skipped_is_said_once() -> None:
    told = study()
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 30), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30), (4, 40), status=256)
    play(told, "sim.0-2", (4, 40), (5, 50))

    (message,) = logged(told, None)
    assert "had printed rows up to 3" in message
    assert "skipped as repetitions" in message


def test_a_restart_that_does_not_repeat_its_steps_is_a_warning() -> None:
    told = study()
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 90), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30), (4, 40), (5, 50))

    said, warning = logged(told, None)
    assert "skipped as repetitions" in said
    assert warning.startswith("sim.0-1 printed e=30 at 3, where the earlier attempt had printed 90")
    assert "max and mean have the earlier values" in warning


def test_steps_that_are_repeated_as_they_were_cause_no_warning() -> None:
    told = study()
    told.start()
    play(told, "sim.0", (1, 10), (2, float("nan")), status=256)
    play(told, "sim.0-1", (1, 10), (2, float("nan")), (3, 30), status=256)
    play(told, "sim.0-2", (2, float("nan")), (3, 30), (4, 40))

    assert len(logged(told, None)) == 1


def test_a_clock_that_goes_back_within_an_attempt_skips_nothing() -> None:
    told = study()
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (1, 30), (2, 40), status=256)
    play(told, "sim.0-1", (2, 40), (3, 50))

    assert at_the_end(told) == "sum 150, max 50, mean 30"


@pytest.mark.parametrize("carry", [True, False])
def test_rows_without_a_clock_always_count(carry: bool) -> None:
    told = study(carry)
    told.start()
    play(told, "sim.0", (None, 10), (None, 20), status=256)
    play(told, "sim.0-1", (None, 20), (None, 30))

    expected = "sum 80, max 30, mean 20" if carry else "sum 50, max 30, mean 25"
    assert at_the_end(told) == expected


def test_an_attempt_from_the_beginning_skips_nothing() -> None:
    told = study(carry=False)
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), status=256)
    play(told, "sim.0-1", (1, 10), (2, 20), (3, 30))

    assert at_the_end(told) == "sum 60, max 30, mean 20"
