"""Rejected submissions of Grid Engine: retry, wait for room, or fail."""

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
