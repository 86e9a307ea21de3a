"""Tests of submissions that PBS rejects: the executor retries, waits for room, or fails."""

from __future__ import annotations

import pytest
from ensemble_batch import Batch, CannotTake, InvalidJob
from ensemble_pbs import ensemble_executors
from ensemble_pbs.executor import PBSExecutor

from ensemble_core import ExecutorError, Job


def error_of(said: str) -> ExecutorError:
    """Return the error of a submission for which ``qsub`` prints this."""
    executor = PBSExecutor()
    executor.command = lambda words, given=b"": (1, "", said)  # type: ignore[method-assign]
    job = Job(id="t.0", group="t", index=0, command=("true",))
    with pytest.raises(ExecutorError) as raised:
        executor.submit_batch(Batch("ens_t", (job,), "script"))
    return raised.value


def test_an_unreachable_server_is_retried() -> None:
    error = error_of("qsub: cannot connect to server head (errno=111)")
    assert isinstance(error, CannotTake)
    assert (error.code, error.transient) == ("no-answer", True)
    assert "qstat -B" in str(error)


@pytest.mark.parametrize(
    "said",
    [
        "qsub: would exceed queue generic's per-user limit of jobs in 'Q' state",
        "qsub: Maximum number of jobs already in complex",
        "qsub: would exceed limit on resource ncpus in queue workq",  # max_queued_res
        "qsub: would exceed per-user limit on resource ncpus in complex",
        # The queue of a job group may have a lower max_array_size; a smaller array is tried.
        "qsub: Array job exceeds server or queue size limit",
    ],
)
def test_a_limit_on_all_jobs_causes_a_wait(said: str) -> None:
    error = error_of(said)
    assert isinstance(error, CannotTake)
    assert error.code == "full"


@pytest.mark.parametrize(
    "said",
    ["qsub: Unknown queue", "qsub: Job violates queue and/or server resource limits"],
)
def test_a_job_that_pbs_rejects_for_good_fails_with_its_message(said: str) -> None:
    error = error_of(said)
    assert isinstance(error, InvalidJob)
    assert not error.transient
    assert said in str(error)


def test_a_job_that_was_over_before_its_cancel_is_not_reported_as_running() -> None:
    """Otherwise a lost job would be cancelled again and again, and never be over."""
    executor = PBSExecutor()
    said = {"qdel": (1, "", "qdel: Unknown Job Id 7.head\nqdel: Job has finished 8.head\n")}
    gone = (153, "", "qstat: Unknown Job Id 7.head")
    executor.command = lambda words, given=b"": said.get(words[0], gone)  # type: ignore[method-assign]
    executor.end_jobs(["7.head", "8.head", "9.head"])
    assert [(job.id, job.state) for job in executor.ask(["7.head"])] == [("9.head", "running")]


def test_the_summary_names_the_tested_pbs() -> None:
    (plugin,) = ensemble_executors()
    assert "23.06.06" in plugin.summary
    assert "PBS Pro (not tested)" in plugin.summary
