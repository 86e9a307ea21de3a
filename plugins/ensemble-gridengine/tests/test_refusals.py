"""Tests of Grid Engine's replies: ids of accepted jobs, rejected submissions, renamed jobs."""

from __future__ import annotations

import pytest
from ensemble_batch import Batch, CannotTake, InvalidJob
from ensemble_gridengine import ensemble_executors
from ensemble_gridengine.executor import GridEngineExecutor

from ensemble_core import ExecutorError, Job, JobGroup


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


@pytest.mark.parametrize(
    ("size", "key", "word"),
    [
        ({"nodes": 2}, "nodes", "'tasks'"),
        ({"tasks": 2}, "tasks", "environment=NAME"),
        ({"cores_per_task": 2}, "cores_per_task", "environment=NAME"),
        ({"gpus_per_task": 1}, "gpus_per_task", "gpu=NAME"),
    ],
)
def test_group_that_can_never_run_is_refused_before_the_start(
    size: dict[str, int], key: str, word: str
) -> None:
    (record,) = ensemble_executors()
    assert record.never is not None
    group = JobGroup(name="t", command=("true",), **size)  # type: ignore[arg-type]
    found = record.never(group, {})
    assert found is not None
    assert found[0] == key
    assert word in found[2]
    options = {"environment": "smp", "gpu": "gpu"}
    assert (record.never(group, options) is None) == (key != "nodes")


QSTAT = """<job_info><queue_info><job_list><JB_job_number>7</JB_job_number>
<JB_name>another</JB_name><state>r</state></job_list></queue_info></job_info>"""
DETAILS = f"""{"=" * 62}
job_number:                 7
job_name:                   another
jobshare:                   0
env_list:
script_file:                /home/me/run/scripts/ab.sh
"""


def test_a_renamed_job_is_identified_by_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, said = GridEngineExecutor(), {"-xml": QSTAT, "-j": DETAILS}
    monkeypatch.setattr(executor, "command", lambda words: (0, said[words[1]], ""))
    (job,) = executor.ask(["7"])
    assert (job.id, job.state, job.batch) == ("7", "running", "/home/me/run/scripts/ab.sh")


def test_a_job_that_ends_between_two_queries_is_queried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, said = GridEngineExecutor(), {"-xml": QSTAT, "-j": "Following jobs do not exist: 7"}
    monkeypatch.setattr(executor, "command", lambda words: (0, said[words[1]], ""))
    with pytest.raises(CannotTake, match="job 7"):
        list(executor.ask(["7"]))
