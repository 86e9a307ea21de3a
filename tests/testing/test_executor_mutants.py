"""The executor suite finds what is wrong with an executor: each mutant here is the local executor
with one bug, and fails the test that is meant for it. The executor without a bug passes them all."""

from __future__ import annotations

import inspect
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ensemble_core import (
    Emit,
    Event,
    Executor,
    ExecutorPlugin,
    Job,
    JobEvent,
    Run,
    StatisticPlugin,
    executor_record,
)
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.testing import ExecutorContract, StatisticContract

FAILED = (AssertionError, Exception, pytest.fail.Exception)


class Sound(LocalExecutor):
    """The local executor, with places for a bug."""

    def __init__(self) -> None:
        super().__init__(slots=2, grace=0.3)
        self.run_: Run | None = None
        self.seen: list[Job] = []
        self.tell: Emit = lambda events: None

    def open(self, run: Run, emit: Emit) -> None:
        self.run_, self.tell = run, emit
        super().open(run, lambda events: emit(self.told(events)))

    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        """What of these events is emitted."""
        return events

    def given(self, job: Job) -> Job:
        """What is made of a job."""
        return job

    def submit(self, jobs: Sequence[Job]) -> None:
        self.seen += jobs
        super().submit([self.given(job) for job in jobs])


class LosesFinishes(Sound):
    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        return [
            event
            for event in events
            if not (
                isinstance(event, JobEvent) and event.name == "finish" and event.job.endswith("7")
            )
        ]


class ForgetsTheStatus(Sound):
    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        return [
            replace(event, context={})
            if isinstance(event, JobEvent) and event.name == "finish"
            else event
            for event in events
        ]


class FindsJobsOnlyAfterAClose(Sound):
    @property
    def _mark(self) -> Path:
        assert self.run_ is not None
        assert self.run_.state is not None
        return self.run_.state / "closed"

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return super().reattach(jobs) if self._mark.exists() else dict.fromkeys(jobs, False)

    def close(self) -> None:
        self._mark.touch()
        super().close()


class KillsWhatItClaimsToDetach(Sound):
    def close(self) -> None:
        self.cancel([job.id for job in self.seen])
        super().close()


class NeedsAStateFolder(Sound):
    def open(self, run: Run, emit: Emit) -> None:
        assert str(run.state / "jobs")  # type: ignore[operator]  # the bug
        super().open(run, emit)


class SleepsForEachCall(Sound):
    def submit(self, jobs: Sequence[Job]) -> None:
        time.sleep(3)
        super().submit(jobs)


class SleepsForEachJob(Sound):
    def given(self, job: Job) -> Job:
        time.sleep(0.3)
        return job


class StartsACommandForEachJob(Sound):
    def given(self, job: Job) -> Job:
        subprocess.run(["true"], check=True)
        return job


class WaitsForItsJobs(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def submit(self, jobs: Sequence[Job]) -> None:
        super().submit(jobs)
        self.over.wait(300)  # sooner than the job that lasts

    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        if any(isinstance(event, JobEvent) and event.name == "clean" for event in events):
            self.over.set()
        return events


class SpeaksAfterItsClose(Sound):
    def close(self) -> None:
        late = [JobEvent(time.time(), job.id, "finish", {"status": 0}) for job in self.seen[-1:]]
        super().close()
        threading.Timer(0.8, lambda: self.tell(late)).start()


class RunsOneTask(Sound):
    def given(self, job: Job) -> Job:
        return replace(job, tasks=1)


class HasNoIdeaOfCores(Sound):
    def given(self, job: Job) -> Job:
        return replace(job, cores_per_task=1)


class HasNoIdeaOfGpus(Sound):
    def given(self, job: Job) -> Job:
        return replace(job, gpus_per_task=0)


class ThrowsErrorsAway(Sound):
    def given(self, job: Job) -> Job:
        return replace(job, stderr="/dev/null")


class ThrowsErrorsAwayThatGoWithTheOutput(Sound):
    def given(self, job: Job) -> Job:
        return replace(job, stderr="/dev/null") if job.stderr == job.stdout else job


class HoldsNothing(Sound):
    def given(self, job: Job) -> Job:
        return replace(job, urgency=job.urgency or 16)


class TakesAnAttemptForTheFirst(Sound):
    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        return [
            replace(event, job=event.job.partition("-")[0])
            if isinstance(event, JobEvent)
            else event
            for event in events
        ]


LOCAL = executor_record("local")
BAD_DEFAULT = {
    "type": "object",
    "properties": {"poll": {"type": "number", "description": "x", "default": "5"}},
}
NOT_DESCRIBED = {"type": "object", "properties": {"poll": {"type": "number"}}}

#: The mutant, the test that is to notice, and further arguments of that test.
MUTANTS: list[tuple[type[Sound], str, dict[str, Any]]] = [
    (LosesFinishes, "test_jobs_submitted_in_bulk_each_end_exactly_once", {}),
    (ForgetsTheStatus, "test_jobs_submitted_in_bulk_each_end_exactly_once", {}),
    (
        FindsJobsOnlyAfterAClose,
        "test_jobs_are_found_again_after_their_controller_was_killed",
        {},
    ),
    (
        KillsWhatItClaimsToDetach,
        "test_jobs_outlive_the_controller_where_the_executor_says_so",
        {},
    ),
    (NeedsAStateFolder, "test_a_run_of_which_nothing_is_kept_works_as_well", {}),
    (SleepsForEachCall, "test_the_cost_of_a_submit_does_not_grow_with_its_jobs", {}),
    (SleepsForEachJob, "test_the_cost_of_a_submit_does_not_grow_with_its_jobs", {}),
    (StartsACommandForEachJob, "test_the_cost_of_a_submit_does_not_grow_with_its_jobs", {}),
    (WaitsForItsJobs, "test_cancelling_a_running_job_ends_it", {}),
    (SpeaksAfterItsClose, "test_nothing_is_emitted_after_close", {}),
    (RunsOneTask, "test_each_task_of_a_job_runs", {}),
    (
        HasNoIdeaOfCores,
        "test_a_job_that_asks_for_what_nobody_has_does_not_run",
        {"what": "cores_per_task"},
    ),
    (
        HasNoIdeaOfGpus,
        "test_a_job_that_asks_for_what_nobody_has_does_not_run",
        {"what": "gpus_per_task"},
    ),
    (ThrowsErrorsAway, "test_output_and_errors_go_where_they_are_to", {"same": False}),
    (
        ThrowsErrorsAwayThatGoWithTheOutput,
        "test_output_and_errors_go_where_they_are_to",
        {"same": True},
    ),
    (HoldsNothing, "test_a_job_of_urgency_0_is_held", {}),
    (TakesAnAttemptForTheFirst, "test_another_attempt_is_a_job_of_its_own", {}),
]


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BaseException | None]:
    """Runs one test of the suite for an executor; what it fails with."""
    count = 0

    def examine(
        make: Callable[[], Executor],
        test: str,
        arguments: Mapping[str, Any] = {},
        **knobs: Any,
    ) -> BaseException | None:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        suite = type("Suite", (ExecutorContract,), {"many": 20, **knobs})()
        suite.make_executor = make
        method = getattr(suite, test)
        wanted = inspect.signature(method).parameters
        given = {**arguments, "tmp_path": folder, "monkeypatch": monkeypatch}
        try:
            if "session" in wanted:
                with suite.new_session(folder, tidy=True) as given["session"]:
                    method(**{name: given[name] for name in wanted})
            else:
                method(**{name: given[name] for name in wanted})
        except FAILED as error:
            return error
        return None

    return examine


@pytest.mark.parametrize(
    ("mutant", "test", "arguments"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS]
)
def test_a_mutant_is_found_out(
    examine: Callable[..., BaseException | None],
    mutant: type[Sound],
    test: str,
    arguments: dict[str, Any],
) -> None:
    # These are found out when the time is up, which may be soon: the sound one never waits so long.
    waits = (WaitsForItsJobs, TakesAnAttemptForTheFirst, KillsWhatItClaimsToDetach)
    short = {"timeout": 3.0} if mutant in waits else {}
    assert examine(mutant, test, arguments, **short) is not None


@pytest.mark.parametrize(
    ("test", "arguments"), [(test, arguments) for _, test, arguments in MUTANTS]
)
def test_the_executor_without_a_bug_passes(
    examine: Callable[..., BaseException | None], test: str, arguments: dict[str, Any]
) -> None:
    assert examine(Sound, test, arguments) is None


@pytest.mark.parametrize(
    "record",
    [
        replace(LOCAL, capabilities=frozenset({"submit"})),
        replace(LOCAL, shared=True),
        replace(LOCAL, options=BAD_DEFAULT, build=lambda options: Sound()),
        replace(LOCAL, options=NOT_DESCRIBED, build=lambda options: Sound()),
        replace(LOCAL, build=lambda options: None),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_record_that_does_not_fit_its_executor_is_found_out(
    examine: Callable[..., BaseException | None], record: ExecutorPlugin
) -> None:
    test = "test_record_says_what_the_executor_can_do"
    assert examine(Sound, test, plugin=LOCAL) is None
    assert isinstance(examine(Sound, test, plugin=record), Exception)


def test_a_statistic_may_be_expected_to_say_nothing_of_nothing() -> None:
    class Largest:
        def __init__(self) -> None:
            self.value: float | None = None

        def update(self, value: float) -> None:
            self.value = value if self.value is None else max(self.value, value)

        def get(self) -> float | None:
            return self.value

    record = StatisticPlugin(name="largest", summary="x", build=lambda options: Largest())
    suite = type(
        "Suite", (StatisticContract,), {"plugin": record, "expected": [([], None), ([1.0], 1.0)]}
    )()
    suite.test_gives_what_is_expected()
