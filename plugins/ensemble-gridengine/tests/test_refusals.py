"""Submissions to Grid Engine: ids of accepted jobs; rejected ones are retried, wait or fail."""

from __future__ import annotations

import pytest
from ensemble_batch import Batch, CannotTake, InvalidJob
from ensemble_gridengine.executor import GridEngineExecutor

from ensemble_core import ExecutorError, Job


@pytest.mark.parametrize(
    ("code", "said", "kind", "means"),
    [
        (1, "error: commlib error: got select error", CannotTake, "no-answer"),
        (25, "only 2 jobs are allowed per user", CannotTake, "full"),
        (1, "Unable to run job: unknown resource", InvalidJob, "refused"),
    ],
)
def test_a_failed_submission_is_retried_waits_or_fails(
    code: int, said: str, kind: type[ExecutorError], means: str
) -> None:
    executor = GridEngineExecutor()
    executor.command = lambda words, given=b"": (code, "", said)  # type: ignore[method-assign]
    job = Job(id="t.0", group="t", index=0, command=("true",))
    with pytest.raises(kind) as raised:
        executor.submit_batch(Batch("ens_t", (job,), "script"))
    assert raised.value.code == means
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("said", "ids"), [("7\n", ["7"]), ("7.1-3:1\n", ["7.1", "7.2", "7.3"])], ids=["job", "array"]
)
def test_jobs_of_a_batch_have_the_ids_of_its_tasks(said: str, ids: list[str]) -> None:
    executor = GridEngineExecutor()
    executor.command = lambda words, given=b"": (0, said, "")  # type: ignore[method-assign]
    jobs = [Job(id=f"t.{n}", group="t", index=n, command=("true",)) for n in range(len(ids))]
    assert executor.submit_batch(Batch("ens_t", tuple(jobs), "script")) == ids
