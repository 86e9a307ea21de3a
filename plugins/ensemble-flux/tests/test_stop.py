"""Tests of a run's end: no job is left behind, and foreign jobs are not affected."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import wait_until

Ensemble = Callable[..., Any]

#: More jobs than the instance has cores: some run, the others wait.
LASTING = """
on_stop: cancel
jobs:
  - {name: work, command: sleep 1000, count: 20}
  - {name: quick, command: "true"}
rules:
  - {trigger: start, action: [{name: submit, label: quick}, {name: submit, label: work}]}
"""


@pytest.fixture
def stranger(instance: Any) -> Iterator[str]:
    """Submit a foreign job; check after the test that it still waits."""
    job = instance.flux("submit", "--urgency=0", "sleep", "1000").strip()
    yield job
    assert instance.flux("jobs", "-no", "{state}", job).strip() == "SCHED"
    instance.flux("cancel", job)
    instance.flux("job", "wait-event", job, "clean")


def ours(instance: Any) -> list[str]:
    """Return the names of unfinished jobs, except the foreign one."""
    names = instance.flux("jobs", "-A", "-no", "{name}", "-f", "pending,running", "-c0").split()
    return sorted(name for name in names if name != "sleep")


def running(run: Any) -> None:
    """Wait until the run has running and waiting jobs."""
    run.wait_for(2, type="job", name="start")
    run.wait_for(20, type="job", name="submit")


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_a_stopped_run_leaves_no_job_behind(
    instance: Any, ensemble: Ensemble, number: signal.Signals
) -> None:
    run = ensemble(LASTING)
    running(run)
    run.signal(number)
    assert run.ended() == 128 + number
    assert ours(instance) == []
    (summary,) = run.of(type="summary")
    (work,) = (group for group in summary["groups"] if group["name"] == "work")
    assert (work["running"], work["waiting"]) == (0, 20)  # for a resume


@pytest.mark.usefixtures("stranger")
def test_a_second_ctrl_c_ends_the_run_at_once_and_the_jobs_are_cancelled_anyway(
    instance: Any, ensemble: Ensemble, tmp_path: Path
) -> None:
    # These ignore SIGTERM, so they run until Flux kills them.
    lasting = f"trap : TERM; touch {tmp_path}/up-$ENSEMBLE_JOB_ID; while :; do sleep 1; done"
    run = ensemble(LASTING.replace("sleep 1000", f"[sh, -c, '{lasting}']"))
    running(run)
    wait_until(lambda: [*tmp_path.glob("up-*")], 90)
    run.signal(signal.SIGINT)
    run.wait_for(type="job", name="exception")
    time.sleep(0.5)  # within 0.3 s, two signals count as one
    run.signal(signal.SIGINT)
    assert run.ended() == 130
    started, over = (
        {line["job"] for line in run.of(type="job", name=name)} for name in ("start", "clean")
    )
    assert started - over  # the run did not wait for them
    wait_until(lambda: not ours(instance), 90)


@pytest.mark.usefixtures("stranger")
def test_a_rule_that_terminates_cancels_running_and_waiting_jobs(
    instance: Any, ensemble: Ensemble
) -> None:
    rule = "  - {trigger: job-success, name: quick, action: {name: terminate, exit_code: 3}}\n"
    run = ensemble(LASTING + rule)
    assert run.ended() == 3
    assert ours(instance) == []


@pytest.mark.usefixtures("stranger")
def test_jobs_outlive_the_run_if_they_should_not_be_cancelled(
    instance: Any, ensemble: Ensemble
) -> None:
    rule = "  - {trigger: job-start, name: work, action: {name: terminate, cancel: false}}\n"
    run = ensemble(LASTING.replace("count: 20", "count: 2") + rule)
    assert run.ended() == 0
    assert [name for name in ours(instance) if name.startswith("work")] == ["work.0", "work.1"]
    names = instance.flux("jobs", "-A", "-no", "{id.f58plain} {name}", "-f", "pending,running")
    for line in names.splitlines():
        job, name = line.split()
        if name.startswith(("work", "quick")):
            instance.flux("cancel", job)
            instance.flux("job", "wait-event", job, "clean")


@pytest.mark.usefixtures("stranger")
def test_ctrl_c_while_thousands_are_being_submitted_leaves_no_job(
    instance: Any, ensemble: Ensemble
) -> None:
    run = ensemble(LASTING.replace("count: 20", "count: 3000"))
    run.wait_for(100, type="job", name="submit")
    run.signal(signal.SIGINT)
    assert run.ended(60) == 130
    assert ours(instance) == []
    (summary,) = run.of(type="summary")
    (work,) = (group for group in summary["groups"] if group["name"] == "work")
    assert (work["submitted"], work["waiting"]) == (3000, 3000)
