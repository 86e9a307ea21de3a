"""An attempt that continues repeats steps after its checkpoint; with a clock, each counts once."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.engine.repeated_rows import KEPT_ROWS
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.metrics.series import UNREADABLE
from ensemble_core.model.decisions import Log, Submit
from ensemble_core.model.events import Observed, Resumed, StopRequested


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
    assert "printed rows up to clock 3" in message
    assert "rules and the group's statistics skip them" in message


def test_a_restart_that_does_not_repeat_its_steps_is_a_warning() -> None:
    told = study()
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 90), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30), (4, 40), (5, 50))

    said, warning = logged(told, None)
    assert "replace the earlier ones in the job's statistics" in said
    assert warning.startswith("sim.0-1 printed e=30 at 3, where the earlier attempt had printed 90")
    assert "over the group such as max and mean have the earlier values" in warning
    assert at_the_end(told) == "sum 150, max 50, mean 30"


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


# -- restarts that print other values for the same steps -------------------------------------------


def statistics(*names: str, retry: str = "retry: {times: 3, continue: true}") -> Story:
    """Return a study whose jobs have these statistics as results."""
    result = ", ".join(f"r{place}: {name}" for place, name in enumerate(names))
    message = " ".join(f"{{r{place}}}" for place in range(len(names)))
    return Story(
        f"""
jobs:
  - name: sim
    command: run
    observe: {{key-value: {{fields: [e, T], clock: step, rows: true}}}}
    result: {{{result}}}
    {retry}
  - {{name: point, command: run, parameters: {{e: 0}}}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{id: end, trigger: job-done, name: sim, action: {{name: log, message: "{message}"}}}}
"""
    )


def test_last_value_of_a_restart_that_ends_at_the_old_end_is_the_new_one() -> None:
    told = statistics("last.e", "count.rows", "change.e")
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 90), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30))

    assert at_the_end(told) == "30 3 10"


def test_all_statistics_of_a_job_withdraw_discarded_steps() -> None:
    names = ("sum.e", "median.e", "min.e", "sum.e(T > 1)", "unreadable.e", "max.rows.e")
    told = statistics(*names)
    told.start()
    told.begin("sim.0")
    for clock, e, hot in ((1, 10, 1), (2, 20, 2), (3, -90, 2), (4, 99, 2)):
        told.observe("sim.0", observer="key-value", clock=clock, e=e, T=hot)
    told.tell(Observed(told.now, "sim.0", "key-value", {"e": UNREADABLE}, 5.0, False, ("e",)))
    told.end("sim.0", status=256)
    told.begin("sim.0-1")
    for clock, e, hot in ((3, 30, 2), (4, 40, 1), (5, 50, 2)):
        told.observe("sim.0-1", observer="key-value", clock=clock, e=e, T=hot)
    told.end("sim.0-1")

    assert at_the_end(told) == "150 30 10 100 0 50"


def test_a_snapshot_keeps_what_is_needed_to_withdraw_steps() -> None:
    told = statistics("sum.e", "max.e", "unreadable.e")
    told.start()
    told.begin("sim.0")
    told.tell(Observed(told.now, "sim.0", "key-value", {"e": UNREADABLE}, 0.0, False, ("e",)))
    for clock, value in ((1, 10), (2, 20), (3, 90)):
        told.observe("sim.0", observer="key-value", clock=clock, e=value)
    reload(told)
    told.end("sim.0", status=256)
    reload(told)
    told.begin("sim.0-1")
    told.observe("sim.0-1", observer="key-value", clock=2, e=20)
    reload(told)
    told.observe("sim.0-1", observer="key-value", clock=3, e=30)
    told.end("sim.0-1")

    assert at_the_end(told) == "60 30 1"


def test_statistics_of_the_group_keep_the_first_value_of_each_step() -> None:
    told = Story(
        """
jobs:
  - name: sim
    command: run
    observe: {key-value: {fields: [e], clock: step}}
    retry: {times: 3, continue: true}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: idle, name: sim, action: {name: log, message: "{sum.e}"}}
"""
    )
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 90), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30), (4, 40))

    assert told.metric("sum.sim-e") == 160


def reload(told: Story) -> None:
    """Continue from a snapshot, as a later controller does."""
    engine = load(dump(told.engine), told.engine.state.ensemble)
    assert engine is not None
    told.engine = engine


def test_long_logs_withdraw_at_least_their_newest_rows() -> None:
    rows = 3 * KEPT_ROWS + 10
    told = statistics("sum.e", "max.e", "count.rows")
    told.start()
    play(told, "sim.0", *((float(step), 100.0) for step in range(rows)), status=256)
    restart = rows - KEPT_ROWS
    play(told, "sim.0-1", *((float(step), 1.0) for step in range(restart, rows)))

    assert at_the_end(told) == f"{100 * restart + KEPT_ROWS} 100 {rows}"


def test_rows_that_are_too_old_to_be_withdrawn_stay_and_the_warning_says_so() -> None:
    rows = 3 * KEPT_ROWS
    told = statistics("sum.e", "count.rows")
    told.start()
    play(told, "sim.0", *((float(step), 100.0) for step in range(rows)), status=256)
    play(told, "sim.0-1", *((float(step), 1.0) for step in range(10)), status=256)
    play(told, "sim.0-2", (float(rows - 1), 1.0), (float(rows), 1.0))

    said, warning = logged(told, None)[:2]
    assert "Repeated rows are skipped" in said
    assert "statistics over the group such as max and mean have the earlier values" in warning
    assert at_the_end(told) == f"{100 * (rows - 1) + 2} {rows + 1}"


def test_a_retry_by_a_rule_withdraws_steps() -> None:
    told = Story(
        """
jobs:
  - {name: sim, command: run, observe: {key-value: {fields: [e], clock: step}}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-fail, name: sim, action: {name: retry, continue: true}}
  - {id: end, trigger: job-success, name: sim, action: {name: log, message: "{sum.e} {max.e}"}}
"""
    )
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 90), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30))

    assert at_the_end(told) == "60 30"


def test_a_stopped_attempt_withdraws_steps_again() -> None:
    told = statistics("sum.e", "max.e")
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 90), status=256)
    told.begin("sim.0-1")
    told.observe("sim.0-1", observer="key-value", clock=2, e=70)
    told.tell(StopRequested(told.now, "SIGTERM", 143, "cancel"))
    told.cancel("sim.0-1")
    told.tell(Resumed(told.now))
    play(told, "sim.0-1", (2, 20), (3, 30))

    assert at_the_end(told) == "60 30"


def test_rows_that_become_jobs_are_those_of_the_attempt_that_went_on() -> None:
    told = Story(
        """
jobs:
  - name: sim
    command: run
    observe: {key-value: {fields: [e], clock: step, rows: true}}
    retry: {times: 3, continue: true}
  - {name: point, command: "run {e}", parameters: {e: 0}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-done, name: sim, action: {name: submit, label: point, rows: job}}
"""
    )
    told.start()
    play(told, "sim.0", (1, 10), (2, 20), (3, 90), status=256)
    play(told, "sim.0-1", (2, 20), (3, 30))

    points = [job for each in told.decisions if isinstance(each, Submit) for job in each.jobs]
    assert [job.parameters["e"] for job in points if job.group == "point"] == [10, 20, 30]
