"""Mutation tests of the executor suite: each mutant is the local executor with one bug.

Each mutant must fail the intended test. The executor without bugs must pass all tests.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ensemble_testing import ExecutorContract, StatisticContract

from ensemble_core import (
    Emit,
    Event,
    Executor,
    ExecutorError,
    ExecutorPlugin,
    Job,
    JobEvent,
    Run,
    StatisticPlugin,
    executor_record,
)
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.events import ResizeOutcome

FAILED = (AssertionError, Exception, pytest.fail.Exception)


class Sound(LocalExecutor):
    """The local executor with hooks for bugs."""

    def __init__(self) -> None:
        super().__init__(slots=2, grace=0.3)
        self.run_: Run | None = None
        self.seen: list[Job] = []
        self.tell: Emit = lambda events: None

    def open(self, run: Run, emit: Emit) -> None:
        self.run_, self.tell = run, emit
        super().open(run, lambda events: emit(self.told(events)))

    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events to emit instead of ``events``."""
        return events

    def given(self, job: Job) -> Job:
        """Return the job to submit instead of ``job``."""
        return job

    def submit(self, jobs: Sequence[Job]) -> None:
        self.seen += jobs
        super().submit([self.given(job) for job in jobs])


def takes(change: Callable[[Job], Job]) -> type[Sound]:
    """Return a mutant that changes submitted jobs."""

    class Mutant(Sound):
        def given(self, job: Job) -> Job:
            return change(job)

    return Mutant


def tells(change: Callable[[JobEvent], Iterable[JobEvent]], of: str = "") -> type[Sound]:
    """Return a mutant that changes all job events, or those named ``of``."""

    class Mutant(Sound):
        def told(self, events: Sequence[Event]) -> Sequence[Event]:
            told: list[Event] = []
            for event in events:
                concerned = isinstance(event, JobEvent) and of in ("", event.name)
                told += change(event) if concerned else [event]  # type: ignore[arg-type]  # a job's
            return told

    return Mutant


def says(of: str, **context: Any) -> type[Sound]:
    """Return a mutant that changes the context of events named ``of``. ``None`` removes a key."""

    def change(event: JobEvent) -> list[JobEvent]:
        said = {**event.context, **context}
        kept = {name: value for name, value in said.items() if value is not None}
        return [replace(event, context=kept)]

    return tells(change, of)


def after_its_end(of: str) -> Callable[[JobEvent], list[JobEvent]]:
    """Return a change that emits the event ``of`` after ``finish``."""

    def change(event: JobEvent) -> list[JobEvent]:
        late = replace(event, name=of, context={"type": "cancel", "severity": 0})
        return {of: [], "finish": [event, late]}.get(event.name, [event])

    return change


def later_by(seconds: float) -> Callable[[JobEvent], list[JobEvent]]:
    """Return a change that delays the timestamp of each event."""
    return lambda event: [replace(event, timestamp=event.timestamp + seconds)]


def as_of(mark: str) -> Callable[[JobEvent], list[JobEvent]]:
    """Return a change that attributes an event to the job whose id precedes ``mark``."""
    return lambda event: [replace(event, job=event.job.partition(mark)[0])]


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


class TellsOtherTimesAgain(Sound):
    later = 0.0

    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        return [replace(event, timestamp=event.timestamp + self.later) for event in events]

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        self.later = 0.001
        return super().reattach(jobs)


class TellsAgainWhatIsKnown(Sound):
    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return super().reattach(dict.fromkeys(jobs, 0.0))


class KnowsEverybody(Sound):
    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        super().reattach(jobs)
        return dict.fromkeys(jobs, True)


class KillsWhatItClaimsToDetach(Sound):
    def close(self) -> None:
        self.cancel([job.id for job in self.seen])
        super().close()


class NeedsAStateFolder(Sound):
    def open(self, run: Run, emit: Emit) -> None:
        assert str(run.state / "jobs")  # type: ignore[operator]  # the bug
        super().open(run, emit)


class LeavesAThreadBehind(Sound):
    def open(self, run: Run, emit: Emit) -> None:
        threading.Thread(target=threading.Event().wait, args=(300,), daemon=True).start()
        super().open(run, emit)


class LeavesADescriptorOpen(Sound):
    def open(self, run: Run, emit: Emit) -> None:
        os.open("/dev/null", os.O_RDONLY)
        super().open(run, emit)


class NeedsAJobToClose(Sound):
    def close(self) -> None:
        super().close()
        assert self.seen, "nothing was submitted"


class SpeaksAfterItsClose(Sound):
    def close(self) -> None:
        late = [JobEvent(time.time(), job.id, "finish", {"status": 0}) for job in self.seen[-1:]]
        super().close()
        threading.Timer(0.2, lambda: self.tell(late)).start()


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
        self.over.wait(300)  # shorter than the lasting job

    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        if any(isinstance(event, JobEvent) and event.name == "clean" for event in events):
            self.over.set()
        return events


class ForgetsTheLastOfABulk(Sound):
    def submit(self, jobs: Sequence[Job]) -> None:
        super().submit(jobs[: max(1, len(jobs) - 1)])


class RefusesAllForOne(Sound):
    def submit(self, jobs: Sequence[Job]) -> None:
        if any(job.command[0].startswith("there-is-no") for job in jobs):
            raise ExecutorError("no such command")
        super().submit(jobs)


class CancelsOnPaper(Sound):
    def cancel(self, jobs: Sequence[str]) -> None:
        now = time.time()
        for job in jobs:
            kill = {"type": "cancel", "severity": 0}
            self.tell([JobEvent(now, job, "exception", kill), JobEvent(now, job, "clean")])


class HearsNoFirstCancel(Sound):
    deaf = True

    def cancel(self, jobs: Sequence[str]) -> None:
        if not self.deaf:  # a test's remaining jobs must end
            super().cancel(jobs)
        self.deaf = False


class StumblesOverTheUnknown(Sound):
    def cancel(self, jobs: Sequence[str]) -> None:
        known = {job.id for job in self.seen}
        super().cancel([job for job in jobs if job in known])
        assert known.issuperset(jobs)


class CancelsWhatIsOver(Sound):
    def cancel(self, jobs: Sequence[str]) -> None:
        super().cancel(jobs)
        self.tell([JobEvent(time.time(), job, "exception", {"type": "cancel"}) for job in jobs])


class AnnouncesWhatNobodyKnows(Sound):
    capabilities = Sound.capabilities | {"teleport"}


class AnswersEachResizeTwice(Sound):
    def told(self, events: Sequence[Event]) -> Sequence[Event]:
        return [*events, *(event for event in events if isinstance(event, ResizeOutcome))]


class AnswersNoResize(Sound):
    def resize(self, request: str, delta: int, **how: Any) -> None: ...


class ThinksAgainOfAResize(Sound):
    asked: str = ""

    def resize(self, request: str, delta: int, **how: Any) -> None:
        outcome = "granted" if request == self.asked else "denied"
        self.asked = request
        self.tell([ResizeOutcome(time.time(), request, outcome, 3)])  # type: ignore[arg-type]  # of two


class HasMoreFreeThanThereAre(Sound):
    def resources(self) -> Mapping[str, float]:
        return {"cores.up": 2.0, "cores.free": 3.0}


class HasGaugesWithoutAPath(Sound):
    def resources(self) -> Mapping[str, float]:
        return {"slots": 2.0}


class TellsNothingFree(Sound):
    def resources(self) -> Mapping[str, float]:
        return {"nodes.up": 2.0}


class IgnoresItsSlots(Sound):
    """Runs all submitted jobs at once, but its gauges show two slots."""

    def __init__(self) -> None:
        super().__init__()
        LocalExecutor.__init__(self, slots=100, grace=0.3)

    def resources(self) -> Mapping[str, float]:
        return {"cores.up": 2.0, "cores.free": 0.0}


def inherits(job: Job, *names: str) -> Job:
    given = {name: os.environ[name] for name in names if name in os.environ}
    return replace(job, environment={**job.environment, **given})


LOCAL = executor_record("local")
BAD_DEFAULT = {
    "type": "object",
    "properties": {"poll": {"type": "number", "description": "x", "default": "5"}},
}
NOT_DESCRIBED = {"type": "object", "properties": {"poll": {"type": "number"}}}

#: For each test of the suite: the mutants that it must detect.
MUTANTS: Mapping[str, Mapping[str, type[Sound]]] = {
    "capabilities_are_declared": {"AnnouncesWhatNobodyKnows": AnnouncesWhatNobodyKnows},
    "successful_job_emits_its_events_in_order": {
        "SaysNoSubmit": tells(lambda event: [], "submit"),
        "TellsTheEndTwice": tells(lambda event: [event, event], "clean"),
        "TellsTheStartAfterTheEnd": tells(after_its_end("start")),
        "TellsWhatNobodyKnows": tells(lambda event: [replace(event, name="begun")], "start"),
        "GoesBackInTime": tells(lambda event: [replace(event, timestamp=5.0)], "finish"),
        "IsAnHourAhead": tells(later_by(3600.0)),
        "IsAnHourBehind": tells(later_by(-3600.0)),
        "EndsAnHourAhead": tells(later_by(3600.0), "clean"),
    },
    "failed_job_reports_its_exit_code": {
        "TellsAnExitCodeForAStatus": says("finish", status=3),
        "TakesEachEndForASuccess": says("finish", status=0),
    },
    "missing_command_fails_only_its_job": {"RefusesAllForOne": RefusesAllForOne},
    "exceptions_have_type_severity_and_note": {
        "SaysNoSeverity": says("exception", severity=None),
        "SaysNoType": says("exception", type=None),
        "SaysANumberForANote": says("exception", note=7),
    },
    "jobs_submitted_in_bulk_each_end_exactly_once": {
        "LosesOneFinishInTen": tells(
            lambda event: [] if event.job.endswith("7") else [event], "finish"
        ),
        "ForgetsTheStatus": says("finish", status=None),
        "StartsTwice": tells(lambda event: [event, event], "start"),
        "ForgetsTheLastOfABulk": ForgetsTheLastOfABulk,
    },
    "submit_cost_is_independent_of_the_number_of_jobs": {
        "SleepsForEachCall": SleepsForEachCall,
        "SleepsForEachJob": SleepsForEachJob,
        "StartsACommandForEachJob": StartsACommandForEachJob,
    },
    "cancelling_a_running_job_ends_it": {
        "WaitsForItsJobs": WaitsForItsJobs,
        "HearsNoFirstCancel": HearsNoFirstCancel,
        "SaysNothingOfACancel": tells(lambda event: [], "exception"),
        "TellsWhyAfterTheEnd": tells(after_its_end("exception")),
        "TakesACancelForASuccess": says("finish", status=0),
    },
    "cancelled_waiting_jobs_never_start": {
        "CallsACancelAnError": says("exception", type="exec"),
    },
    "no_more_jobs_run_at_once_than_there_are_slots": {"IgnoresItsSlots": IgnoresItsSlots},
    "redundant_cancel_does_nothing": {
        "StumblesOverTheUnknown": StumblesOverTheUnknown,
        "CancelsWhatIsOver": CancelsWhatIsOver,
    },
    "cancelling_leaves_no_process_behind": {"CancelsOnPaper": CancelsOnPaper},
    "time_limit_ends_a_job": {
        "KnowsNoTimeLimit": takes(lambda job: replace(job, duration=0.0)),
        "CallsATimeLimitACancel": says("exception", type="cancel"),
    },
    "cause_of_each_end_is_reported[signal]": {
        "CallsASignalAnExitCode": says("finish", status=1 << 8)
    },
    "resize_is_answered_once": {
        "AnswersEachResizeTwice": AnswersEachResizeTwice,
        "AnswersNoResize": AnswersNoResize,
    },
    "repeated_resize_is_idempotent": {
        "ThinksAgainOfAResize": ThinksAgainOfAResize,
    },
    "gauges_are_numbers_by_metric_path": {
        "HasMoreFreeThanThereAre": HasMoreFreeThanThereAre,
        "HasGaugesWithoutAPath": HasGaugesWithoutAPath,
        "TellsNothingFree": TellsNothingFree,
    },
    "nothing_is_emitted_after_close": {"SpeaksAfterItsClose": SpeaksAfterItsClose},
    "jobs_outlive_the_controller_if_declared": {
        "KillsWhatItClaimsToDetach": KillsWhatItClaimsToDetach,
    },
    "run_without_stored_state_works": {"NeedsAStateFolder": NeedsAStateFolder},
    "jobs_are_reattached_after_a_kill": {
        "FindsJobsOnlyAfterAClose": FindsJobsOnlyAfterAClose,
        "KnowsEverybody": KnowsEverybody,
    },
    "jobs_are_reattached_after_a_close": {
        "TellsOtherTimesAgain": TellsOtherTimesAgain,
        "TellsAgainWhatIsKnown": TellsAgainWhatIsKnown,
    },
    "close_releases_threads_and_descriptors": {
        "LeavesAThreadBehind": LeavesAThreadBehind,
        "LeavesADescriptorOpen": LeavesADescriptorOpen,
    },
    "event_times_of_a_job_differ": {
        "KnowsNoFractions": tells(
            lambda event: [replace(event, timestamp=float(int(event.timestamp)))]
        ),
    },
    "executor_can_be_closed_at_once": {"NeedsAJobToClose": NeedsAJobToClose},
    "each_task_of_a_job_runs": {"RunsOneTask": takes(lambda job: replace(job, tasks=1))},
    "impossible_request_never_runs[cores_per_task]": {
        "HasNoIdeaOfCores": takes(lambda job: replace(job, cores_per_task=1)),
    },
    "impossible_request_never_runs[gpus_per_task]": {
        "HasNoIdeaOfGpus": takes(lambda job: replace(job, gpus_per_task=0)),
    },
    "output_and_errors_go_to_their_files[False]": {
        "ThrowsErrorsAway": takes(lambda job: replace(job, stderr="/dev/null")),
    },
    "output_and_errors_go_to_their_files[True]": {
        "ThrowsErrorsAwayThatGoWithTheOutput": takes(
            lambda job: replace(job, stderr="/dev/null") if job.stderr == job.stdout else job
        ),
    },
    "job_with_urgency_0_is_held": {
        "HoldsNothing": takes(lambda job: replace(job, urgency=job.urgency or 16)),
    },
    "another_attempt_is_a_separate_job": {"TakesAnAttemptForTheFirst": tells(as_of("-"))},
    "jobs_resubmitted_after_a_stop_are_separate_jobs": {
        "TakesAJobOfAResumeForTheFirst": tells(as_of("~")),
    },
    "environment_and_folder_are_as_requested": {
        "KnowsNoFolder": takes(lambda job: replace(job, workdir=None)),
        "KnowsNoEnvironment": takes(lambda job: replace(job, environment={})),
    },
    "jobs_do_not_inherit_the_service_token": {
        "GivesTheTokenAway": takes(lambda job: inherits(job, "ENSEMBLE_TOKEN")),
    },
    "jobs_inherit_the_environment_of_the_run": {
        "StartsFromNothing": takes(lambda job: replace(job, command=("env", "-i", *job.command))),
    },
}
ARGUMENTS: Mapping[str, Any] = {
    "[signal]": {"cause": "signal"},
    "[cores_per_task]": {"what": "cores_per_task"},
    "[gpus_per_task]": {"what": "gpus_per_task"},
    "[False]": {"same": False},
    "[True]": {"same": True},
}
#: Mutants that only a timeout detects. It can be short, because a correct executor is faster.
WAITED_FOR = (
    "WaitsForItsJobs", "HearsNoFirstCancel", "TakesAnAttemptForTheFirst", "KnowsNoTimeLimit",
    "TakesAJobOfAResumeForTheFirst", "KillsWhatItClaimsToDetach", "ForgetsTheLastOfABulk",
    "AnswersNoResize", "LeavesAThreadBehind", "LeavesADescriptorOpen",
)  # fmt: skip


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BaseException | None]:
    """Return a function that runs one test of the suite for an executor and returns its error."""
    count = 0

    def examine(
        make: Callable[[], Executor],
        test: str,
        **knobs: Any,
    ) -> BaseException | None:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        monkeypatch.chdir(folder)  # a mutant may write outside of its job's folder
        suite = type("Suite", (ExecutorContract,), {"many": 20, **knobs})()
        suite.make_executor = make
        name, bracket, value = test.partition("[")
        method = getattr(suite, f"test_{name}")
        wanted = inspect.signature(method).parameters
        given = {
            "tmp_path": folder,
            "monkeypatch": monkeypatch,
            **ARGUMENTS.get(bracket + value, {}),
        }
        try:
            if {"session", "request"} & set(wanted):
                with suite.new_session(folder, tidy=True) as given["session"]:
                    given["request"] = SimpleNamespace(getfixturevalue=given.get)
                    method(**{name: given[name] for name in wanted})
            else:
                method(**{name: given[name] for name in wanted})
        except FAILED as error:
            return error
        finally:
            suite.make_executor = Sound  # the mutant may be unable to clean up
            suite.sweep(folder)
        return None

    return examine


@pytest.mark.parametrize(
    ("test", "mutant"), [(test, name) for test, mutants in MUTANTS.items() for name in mutants]
)
def test_a_mutant_is_detected(
    examine: Callable[..., BaseException | None],
    monkeypatch: pytest.MonkeyPatch,
    test: str,
    mutant: str,
) -> None:
    sleep = time.sleep  # shorter sleeps
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.05)))
    short = {"timeout": 1.5} if mutant in WAITED_FOR else {}
    assert examine(MUTANTS[test][mutant], test, **short) is not None


@pytest.mark.parametrize("time_", range(10))
@pytest.mark.parametrize(
    ("test", "mutant"),
    [
        ("successful_job_emits_its_events_in_order", "IsAnHourAhead"),
        ("no_more_jobs_run_at_once_than_there_are_slots", "IgnoresItsSlots"),
    ],
)
def test_wrong_times_and_ignored_slots_are_detected_each_time(
    examine: Callable[..., BaseException | None], test: str, mutant: str, time_: int
) -> None:
    found = examine(MUTANTS[test][mutant], test)
    assert isinstance(found, AssertionError), found
    assert ("in the future" if mutant == "IsAnHourAhead" else "at once in 2 slots") in str(found)


def test_ignored_slots_are_detected_without_a_gauge(
    examine: Callable[..., BaseException | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test = "no_more_jobs_run_at_once_than_there_are_slots"
    monkeypatch.setattr(Sound, "resources", lambda self: {})
    monkeypatch.setattr(IgnoresItsSlots, "resources", lambda self: {})
    assert examine(Sound, test) is None
    assert isinstance(examine(IgnoresItsSlots, test), AssertionError)


def test_an_up_gauge_without_a_free_gauge_has_a_clear_error(
    examine: Callable[..., BaseException | None],
) -> None:
    found = examine(TellsNothingFree, "gauges_are_numbers_by_metric_path")
    assert "gauge nodes.up without nodes.free: report both or neither" in str(found)


@pytest.mark.parametrize("test", MUTANTS)
def test_the_executor_without_a_bug_passes(
    examine: Callable[..., BaseException | None], test: str
) -> None:
    assert examine(Sound, test) is None


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
def test_a_record_that_does_not_fit_its_executor_is_detected(
    examine: Callable[..., BaseException | None], record: ExecutorPlugin
) -> None:
    test = "record_lists_the_capabilities"
    assert examine(Sound, test, plugin=LOCAL) is None
    assert isinstance(examine(Sound, test, plugin=record), Exception)


def test_executor_with_a_required_option_passes_with_that_option(
    examine: Callable[..., BaseException | None],
) -> None:
    queue = {"type": "string", "description": "Where jobs go."}
    record = replace(
        LOCAL,
        options={"type": "object", "properties": {"queue": queue}, "required": ["queue"]},
        build=lambda options: Sound() if options["queue"] == "debug" else None,  # type: ignore[arg-type,return-value]
    )
    test = "record_lists_the_capabilities"
    assert examine(Sound, test, plugin=record, build_options={"queue": "debug"}) is None
    found = examine(Sound, test, plugin=record)
    assert "the suite's attribute 'build_options'" in str(found)
    assert "queue" in str(found)


def test_a_statistic_may_have_no_value_at_first() -> None:
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
    suite.test_value_is_as_expected()
