"""Misbehaving executors, clocks and functions: the run must end regardless."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_testing import FakeExecutor, wait_until

from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import ExecutorError
from ensemble_core.model.decisions import WhenBusy
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Observed, Problem, Started
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Run
from ensemble_core.runtime.controller import Outcome, Runtime, Watcher
from ensemble_core.runtime.event_check import OrderCheck
from ensemble_core.runtime.executor_guard import ExecutorGuard
from ensemble_core.runtime.output_tracking import OutputTracker

REGISTRY = discover()


class Bench:
    """Run in a separate thread, so that a hanging run fails the test."""

    def __init__(
        self, source: str | Ensemble, folder: Path, executor: FakeExecutor, *watchers: Watcher
    ) -> None:
        self.runtime = Runtime(
            load_text(source, REGISTRY) if isinstance(source, str) else source,
            executor,
            actions=REGISTRY.actions,
            observers=REGISTRY.observers,
            watchers=watchers,
            folder=folder / "output",
        )
        self.outcome: Outcome | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.outcome = self.runtime.run()

    def end(self, seconds: float = 120) -> Outcome:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the run hangs"
        assert self.outcome is not None, "the run crashed"
        return self.outcome


ONE_JOB = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


def test_a_timer_in_the_far_future_does_not_end_the_run(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: interval, seconds: 60, action: {name: log, message: later}}
"""
    checked = load_text(text, REGISTRY)
    first, last = checked.rules
    last = replace(last, trigger=replace(last.trigger, every=1e14))  # as a plugin's trigger may
    ensemble = replace(checked, rules=(first, last))
    bench = Bench(ensemble, tmp_path, FakeExecutor(instant=True))
    wait_until(lambda: bench.runtime.engine.state.metric("count.a.success") == 1)
    bench.runtime.stop()
    assert bench.end().exit_code == 130


def test_an_exception_with_a_broken_repr_ends_its_call(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: {name: custom, label: f}}]
custom: |
  class Odd(Exception):
      def __str__(self):
          raise ValueError("no text")
  def f(**kwargs):
      raise Odd
"""
    assert Bench(text, tmp_path, FakeExecutor(instant=True)).end().exit_code == 1


class Exits(FakeExecutor):
    def submit(self, jobs: Sequence[Job]) -> None:
        raise SystemExit("the queue's library is not there")


def test_an_executor_that_calls_sys_exit_fails_its_jobs(tmp_path: Path) -> None:
    outcome = Bench(ONE_JOB, tmp_path, Exits()).end()
    assert outcome.exit_code == 1
    assert outcome.report.groups[0].failed == 1


def test_an_executor_is_called_only_while_it_is_open(tmp_path: Path) -> None:
    executor, run = FakeExecutor(), Run("t", tmp_path, time.time)

    def guard() -> ExecutorGuard:
        return ExecutorGuard(executor, "fake", lambda events: None, time.time)

    one, other = guard(), guard()
    for call in (lambda: one.reattach({}), lambda: other.reattach({})):
        with pytest.raises(ExecutorError, match="the executor fake is not open"):
            call()
    one.open(run, lambda events: None)
    for again in (one, other):
        with pytest.raises(ExecutorError, match="the executor fake is already open"):
            again.open(run, lambda events: None)
    assert one.reattach({}) == {}
    assert one.close(lambda: False) is None
    with pytest.raises(ExecutorError, match="not open"):
        one.reattach({})
    other.open(run, lambda events: None)
    assert other.reattach({}) == {}
    assert other.close(lambda: False) is None


class BadResize(FakeExecutor):
    capabilities: ClassVar[frozenset[str]] = FakeExecutor.capabilities | {"resize"}

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        raise KeyError("nodes")


def test_a_resize_that_raises_is_denied(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: grow}}
  - {trigger: resize-granted, action: {name: submit, label: a}}
  - {trigger: resize-denied, action: {name: terminate, exit_code: 7}}
"""
    assert Bench(text, tmp_path, BadResize()).end().exit_code == 7


class Stuck(FakeExecutor):
    """Queue that is lost during a submit, which never returns."""

    def open(self, run: Run, emit: Callable[[Sequence[Event]], None]) -> None:
        super().open(run, emit)
        self.tell, self.time = emit, run.clock
        self.released = threading.Event()

    def submit(self, jobs: Sequence[Job]) -> None:
        self.tell((ExecutorLost(self.time(), "fake", "gone"),))
        self.released.wait(60)


def test_a_hanging_call_to_a_lost_queue_does_not_block_the_run(tmp_path: Path) -> None:
    executor = Stuck()
    outcome = Bench(ONE_JOB, tmp_path, executor).end()
    executor.released.set()
    assert outcome.exit_code == 1


class Slow(FakeExecutor):
    """Queue with a slow resize."""

    capabilities: ClassVar[frozenset[str]] = FakeExecutor.capabilities | {"resize"}
    entered = threading.Event()
    released = threading.Event()

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        self.entered.set()
        self.released.wait(60)


def test_a_second_stop_does_not_wait_for_a_slow_queue(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: [{name: grow}, {name: terminate}]}]
"""
    bench = Bench(text, tmp_path, Slow())
    assert Slow.entered.wait(60)
    wait_until(lambda: bench.runtime.engine.state.ended)
    bench.runtime.stop()
    assert bench.end().exit_code == 0
    Slow.released.set()


def test_a_repeated_start_does_not_read_the_output_twice(tmp_path: Path) -> None:
    seen: list[Event] = []
    tracker = OutputTracker(seen.extend, time.time, REGISTRY.observers, lambda: 0)
    log = tmp_path / "out"
    job = Job(
        id="a.0", group="a", index=0, command=("x",), stdout=str(log), observe={"json-lines": {}}
    )
    tracker.expect([job])
    log.write_text('{"T": 1}\n')
    start = JobEvent(time.time(), "a.0", "start", {"workdir": str(tmp_path)})
    tracker.emit([start])
    tracker.emit([start])
    tracker.emit([JobEvent(time.time(), "a.0", "finish", {"status": 0})])
    wait_until(lambda: any(isinstance(one, JobEvent) and one.name == "finish" for one in seen))
    tracker.close()
    assert len([one for one in seen if isinstance(one, Observed)]) == 1


@pytest.mark.parametrize(
    ("options", "file", "said"),
    [
        ({}, "out", "the standard output of a.0 is not read"),
        ({"stream": "stderr"}, "err", "the standard error of a.0 is not read"),
        ({"path": "log"}, "log", "the log of a.0 is not read"),
    ],
)
def test_output_that_only_a_member_sees_causes_a_warning_once_for_its_group(
    tmp_path: Path, options: dict[str, str], file: str, said: str
) -> None:
    (tmp_path / file).write_text('{"loss": 1}\n')
    observe = {"json-lines": {"fields": ["loss"], **options}}
    places = {
        "workdir": str(tmp_path),
        "stdout": str(tmp_path / "out"),
        "stderr": str(tmp_path / "err"),
    }
    problem, rows = track(observe, {"at_member": places})
    assert not rows
    assert said in problem
    assert str(tmp_path / file) in problem
    assert "--option shared=FOLDER" in problem


def test_streams_that_the_queue_stores_in_one_file_cause_a_warning(tmp_path: Path) -> None:
    """A pod of Kubernetes has one log."""
    (tmp_path / "log").write_text("loss=1\n")
    start = dict.fromkeys(("stdout", "stderr"), str(tmp_path / "log"))
    problem, rows = track({"key-value": {"stream": "stderr"}}, start)
    assert rows == [1, 1]
    assert "'key-value' reads standard output, too" in problem


def track(observe: dict[str, Any], start: dict[str, Any]) -> tuple[str, list[float]]:
    """Return the only problem of two jobs with these observers and starts, and their values."""
    events: list[Event] = []
    tracker = OutputTracker(events.extend, time.time, REGISTRY.observers, lambda: 0)
    for number in range(2):
        job = Job(id=f"a.{number}", group="a", index=number, command=("x",), observe=observe)
        tracker.expect([job])
        tracker.emit([JobEvent(time.time(), job.id, "start", start)])
        tracker.emit([JobEvent(time.time(), job.id, "finish", {"status": 0})])
        wait_until(lambda: getattr(events[-1], "name", "") == "finish")
    tracker.close()
    (problem,) = [event.message for event in events if isinstance(event, Problem)]
    return problem, [event.values["loss"] for event in events if isinstance(event, Observed)]


class Faulty(FakeExecutor):
    """Executor with an error in one of its methods."""

    def __init__(self, method: str, *, instant: bool = True) -> None:
        super().__init__(instant=instant)
        self.method = method

    def _slip(self, method: str) -> None:
        if method == self.method:
            raise KeyError(method)

    def open(self, run: Run, emit: Callable[[Sequence[Event]], None]) -> None:
        self._slip("open")
        super().open(run, emit)

    def submit(self, jobs: Sequence[Job]) -> None:
        self._slip("submit")
        super().submit(jobs)

    def resources(self) -> Mapping[str, float]:
        self._slip("resources")
        return super().resources()

    def close(self) -> None:
        self._slip("close")
        super().close()


class Told(Watcher):
    """Watcher that records the errors and warnings for the user."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.lost: list[ExecutorLost] = []
        self.notes: list[str] = []

    def event(self, event: Event) -> None:
        if isinstance(event, Problem):
            self.problems.append(event)
        elif isinstance(event, ExecutorLost):
            self.lost.append(event)
        elif isinstance(event, JobEvent) and event.name == "exception":
            self.notes.append(event.context["note"])


@pytest.mark.parametrize("method", ["submit", "resources", "close"])
def test_an_executors_error_is_reported_with_its_name_type_and_place(
    method: str, tmp_path: Path
) -> None:
    told = Told()
    outcome = Bench(ONE_JOB, tmp_path, Faulty(method), told).end()
    assert outcome.exit_code == 1
    (message,) = [problem.message for problem in told.problems if problem.level == "error"]
    assert f"executor local raised KeyError({method!r}) in {method} (" in message
    assert "test_odd_executors.py:" in message
    assert "hint: fix your plugin: " in message
    assert outcome.report.groups[0].failed == (1 if method == "submit" else 0)


def test_an_exception_in_open_names_the_executor(tmp_path: Path) -> None:
    runtime = Runtime(
        load_text(ONE_JOB, REGISTRY),
        Faulty("open"),
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=tmp_path / "output",
        name="odd",
    )
    with pytest.raises(
        ExecutorError, match=r"executor odd raised KeyError\('open'\) in open"
    ) as it:
        runtime.run()
    assert it.value.code == "executor-fault"


class Watched(FakeExecutor):
    """Queue whose watcher thread has an error."""

    def submit(self, jobs: Sequence[Job]) -> None:
        super().submit(jobs)
        threading.Thread(target=self._watch, name="watcher").start()

    def _watch(self) -> None:
        raise ValueError("what squeue said")


def test_a_dead_thread_of_an_executor_ends_the_run_with_an_error(tmp_path: Path) -> None:
    told, hook = Told(), threading.excepthook
    outcome = Bench(ONE_JOB, tmp_path, Watched(), told).end()
    assert outcome.exit_code == 1
    (lost,) = told.lost
    assert "its thread 'watcher' died of ValueError('what squeue said') (" in lost.reason
    assert "test_odd_executors.py:" in lost.reason
    assert threading.excepthook is hook


class Away(FakeExecutor):
    """Queue that is unreachable for the first few calls."""

    def __init__(self, times: int, *, transient: bool = True) -> None:
        super().__init__(instant=True)
        self.times = times
        self.transient = transient
        self.asked = threading.Event()

    def submit(self, jobs: Sequence[Job]) -> None:
        self.asked.set()
        if self.times:
            self.times -= 1
            raise ExecutorError("the queue is away", hint="wait", transient=self.transient)
        super().submit(jobs)


def test_a_transient_failure_loses_no_job_and_is_reported_once(tmp_path: Path) -> None:
    told = Told()
    outcome = Bench(ONE_JOB, tmp_path, Away(3), told).end()
    assert outcome.exit_code == 0
    assert outcome.report.groups[0].success == 1
    (problem,) = told.problems
    assert problem.level == "warning"
    assert "cannot submit 1 job: retrying for 300 s" in problem.message
    assert "the queue is away" in problem.message


def test_a_permanent_failure_fails_the_job_at_once(tmp_path: Path) -> None:
    outcome = Bench(ONE_JOB, tmp_path, Away(1, transient=False)).end()
    assert outcome.exit_code == 1
    assert outcome.report.groups[0].failed == 1


def test_a_stop_does_not_wait_for_an_unreachable_queue(tmp_path: Path) -> None:
    executor = Away(10**9)
    bench = Bench(ONE_JOB, tmp_path, executor)
    assert executor.asked.wait(60)
    bench.runtime.stop()
    outcome = bench.end()
    assert outcome.exit_code == 130
    assert outcome.report.groups[0].cancelled == 1
    assert executor.submitted == []


class Mute(FakeExecutor):
    """Executor that reports that a job has ended, but not how."""

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            for name in ("submit", "start", "finish", "clean"):
                self._send_event(job.id, name)


def test_a_finish_without_a_status_is_a_failure_and_names_the_executor(tmp_path: Path) -> None:
    told = Told()
    outcome = Bench(ONE_JOB, tmp_path, Mute(), told).end()
    assert outcome.exit_code == 1
    assert outcome.report.groups[0].failed == 1
    assert dict(outcome.report.groups[0].causes) == {"unknown": 1}
    (problem,) = told.problems
    assert problem.level == "error"
    assert "executor local" in problem.message
    assert "finish without a 'status'" in problem.message


class Scripted(FakeExecutor):
    """Executor that sends batches of events of ``a.0``: ``(name, seconds from now, context)``."""

    def __init__(self, *bulks: Sequence[tuple[str, float, dict[str, object]]]) -> None:
        super().__init__()
        self.bulks = bulks

    def open(self, run: Run, emit: Callable[[Sequence[Event]], None]) -> None:
        super().open(run, emit)
        self.tell, self.time = emit, run.clock

    def submit(self, jobs: Sequence[Job]) -> None:
        begun = self.time()
        for bulk in self.bulks:
            self.tell([JobEvent(begun + at, "a.0", name, context) for name, at, context in bulk])


class Taken(Told):
    """Watcher that also records the handled job events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[JobEvent] = []

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, JobEvent):
            self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    @property
    def times(self) -> list[float]:
        return [event.timestamp for event in self.events]


def taken(
    folder: Path, *bulks: Sequence[tuple[str, float, dict[str, object]]]
) -> tuple[Outcome, Taken]:
    told = Taken()
    return Bench(ONE_JOB, folder, Scripted(*bulks), told).end(), told


GOOD: dict[str, object] = {"status": 0}


def life(**at: float) -> list[tuple[str, float, dict[str, object]]]:
    """Return the events of a job at these times; by default, one right after the other."""
    names = ("submit", "alloc", "start", "finish", "clean")
    return [
        (name, at.get(name, place * 1e-5), GOOD if name == "finish" else {})
        for place, name in enumerate(names)
    ]


def test_valid_events_are_not_changed(tmp_path: Path) -> None:
    outcome, told = taken(tmp_path, life(submit=-0.5, start=5.0, finish=6.0, clean=7.0))
    assert outcome.exit_code == 0
    assert told.problems == []
    assert told.names == ["submit", "alloc", "start", "finish", "clean"]
    assert all("reported_at" not in event.context for event in told.events)


def test_events_in_the_future_get_the_current_time_and_name_the_executor_once(
    tmp_path: Path,
) -> None:
    before = time.time()
    outcome, told = taken(
        tmp_path, life(submit=3600.0, alloc=3601.0, start=3602.0, finish=3603.0, clean=3604.0)
    )
    assert outcome.exit_code == 0
    assert told.times == sorted(told.times)
    assert before <= told.times[0]
    assert told.times[-1] < before + 1800
    (problem,) = told.problems
    assert problem.level == "warning"
    assert (
        "executor local violates its contract: submit of a.0 is 3600 s in the future"
        in problem.message
    )
    assert "fix your plugin: " in problem.message
    assert "test_odd_executors.py:" in problem.message
    (group,) = outcome.report.groups
    assert group.success == 1


class Behind(FakeExecutor):
    """Executor of a queue whose clock is an hour behind ours."""

    def open(self, run: Run, emit: Callable[[Sequence[Event]], None]) -> None:
        self.tell, self.time = emit, run.clock

    def submit(self, jobs: Sequence[Job]) -> None:
        threading.Thread(target=self.play, args=([job.id for job in jobs],), daemon=True).start()

    def play(self, jobs: Sequence[str]) -> None:
        for name in ("submit", "alloc", "start", "finish", "clean"):
            context = GOOD if name == "finish" else {}
            self.tell([JobEvent(self.time() - 3600, job, name, context) for job in jobs])
            time.sleep(0.5 if name == "start" else 0.0)


def test_a_queue_whose_clock_is_an_hour_behind_is_reported_and_its_times_are_corrected(
    tmp_path: Path,
) -> None:
    """Otherwise running jobs cost an hour too much, and what happens now happened long ago."""
    text = """
limits: {core_hours: 1}
jobs: [{name: a, command: x, count: 2, at_once: 1, duration: 1m}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - trigger: metric
    name: count.a.success(within 10m)
    when: 2
    action: {name: log, message: both}
"""
    before, told = time.time(), Taken()
    outcome = Bench(text, tmp_path, Behind(), told).end()
    assert outcome.exit_code == 0
    assert outcome.report.rules[1].fired == 1
    assert before <= told.times[0]
    assert told.times == sorted(told.times)
    assert told.times[-1] <= time.time()
    (group,) = outcome.report.groups
    assert 0.4 < (group.mean_duration or 0.0) < 60
    (problem,) = told.problems
    assert "executor local is 3600 s behind ours" in problem.message


class SlowNode(FakeExecutor):
    """Executor that dates the start and finish of ``odd.0`` by the clock of its node, which is 25 s
    behind, and that reports other jobs after their end.
    """

    def open(self, run: Run, emit: Callable[[Sequence[Event]], None]) -> None:
        self.tell, self.time = emit, run.clock

    def submit(self, jobs: Sequence[Job]) -> None:
        threading.Thread(target=self.play, args=([job.id for job in jobs],), daemon=True).start()

    def play(self, jobs: Sequence[str]) -> None:
        begun = self.time()
        self.tell([JobEvent(begun, job, "submit") for job in jobs])
        for name in ("start", "finish", "clean"):
            if name == "clean" or "odd.0" not in jobs:
                time.sleep(0.3)
            at = self.time() - 25 if "odd.0" in jobs else begun + 0.5 * (name != "start")
            self.tell([JobEvent(at, job, name, GOOD if name == "finish" else {}) for job in jobs])


def test_a_node_whose_clock_is_behind_does_not_move_the_times_of_other_jobs(tmp_path: Path) -> None:
    text = """
jobs: [{name: odd, command: x}, {name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: odd}}
  - {trigger: job-done, name: odd, action: {name: submit, label: a}}
"""
    told = Taken()
    outcome = Bench(text, tmp_path, SlowNode(), told).end()
    assert outcome.exit_code == 0
    assert [one.message for one in told.problems if "behind ours" in one.message] == []
    durations = {group.name: group.mean_duration for group in outcome.report.groups}
    assert durations["a"] == pytest.approx(0.5, abs=0.01)


class LateSubmits(Behind):
    """Executor of a queue whose clock is 40 s behind ours, and whose first submit takes 25 s."""

    def play(self, jobs: Sequence[str]) -> None:
        for name in ("submit", "start", "finish", "clean"):
            behind = 15 if jobs == ["a.0"] else 40
            context = GOOD if name == "finish" else {}
            self.tell([JobEvent(self.time() - behind, job, name, context) for job in jobs])


def test_a_later_submit_shows_that_the_clock_of_a_queue_is_further_behind(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}, {name: b, command: x}, {name: c, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-done, name: a, action: {name: submit, label: b}}
  - {trigger: job-done, name: b, action: {name: submit, label: c}}
"""
    before, told = time.time(), Taken()
    assert Bench(text, tmp_path, LateSubmits(), told).end().exit_code == 0
    (problem,) = told.problems
    assert "is 15 s behind ours" in problem.message
    assert before <= told.times[0]
    assert told.times == sorted(told.times)


def run_kept_job(engine: Engine, start: float, reported_at: float) -> None:
    """Let job ``a.0`` of an earlier controller start at this time, with the queue's time of it."""
    engine.handle(Started(NOW - 100, {}))
    engine.handle(JobEvent(NOW - 100, "a.0", "submit"))
    engine.handle(JobEvent(start, "a.0", "start", {"reported_at": reported_at}))


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("start", "behind"), [(NOW - 90, 3600.0), (NOW - 100 + 1e-6, 0.0)], ids=["queue", "node"]
)
def test_a_resumed_run_learns_from_an_earlier_job_that_the_queues_clock_is_behind(
    start: float, behind: float
) -> None:
    """A time that was moved after the event before it says nothing about the queue's clock."""
    engine = Engine(load_text(ONE_JOB, REGISTRY))
    run_kept_job(engine, start, start - 3600)
    told: list[Event] = []
    order = OrderCheck(engine, FakeExecutor(), "local", told.append, lambda: NOW)
    record = engine.state.table.records["a.0"]
    finish = JobEvent(NOW - 3600, "a.0", "finish", GOOD)
    assert not order.keeps(finish, record)
    list(order.corrected(finish, record, []))
    assert order.behind == pytest.approx(behind, abs=0.1)
    assert ["behind ours" in str(one) for one in told] == ([True] if behind else [False])


def test_an_event_of_1970_gets_the_current_time(tmp_path: Path) -> None:
    before = time.time()
    outcome, told = taken(tmp_path, life(clean=-before))
    assert outcome.exit_code == 0
    assert outcome.report.groups[0].success == 1
    assert told.times[-1] >= before
    (problem,) = told.problems
    assert "clean of a.0 is dated" in problem.message


def test_a_finish_before_its_start_counts_right_after_it(tmp_path: Path) -> None:
    outcome, told = taken(tmp_path, life(start=2.0, finish=-5.0, clean=3.0))
    assert outcome.exit_code == 0
    start, finish = told.events[2:4]
    assert 0 < finish.timestamp - start.timestamp < 1e-3
    assert finish.context["reported_at"] < start.timestamp
    (problem,) = told.problems
    assert "finish of a.0 is 7 s older than the event before it" in problem.message


def test_a_clean_before_its_finish_in_one_batch_is_handled_in_order(tmp_path: Path) -> None:
    submit, alloc, start, finish, clean = life()
    outcome, told = taken(tmp_path, [submit], [clean, start, finish, alloc])
    assert outcome.exit_code == 0
    assert outcome.report.groups[0].success == 1
    assert told.names[:5] == ["submit", "alloc", "start", "finish", "clean"]
    (problem,) = told.problems
    assert "clean of a.0 came before alloc, start, finish" in problem.message


def test_a_missing_submit_is_implied(tmp_path: Path) -> None:
    outcome, told = taken(tmp_path, life()[1:])
    assert outcome.exit_code == 0
    assert told.names == ["submit", "alloc", "start", "finish", "clean"]
    assert told.times == sorted(told.times)
    (problem,) = told.problems
    assert "alloc of a.0 came without a submit" in problem.message


def test_an_end_without_a_finish_names_the_executor(tmp_path: Path) -> None:
    submit, alloc, start, finish, clean = life()
    outcome, told = taken(tmp_path, [submit, alloc, start, clean], [finish])
    assert outcome.exit_code == 1
    assert dict(outcome.report.groups[0].causes) == {"unknown": 1}
    (problem,) = told.problems
    assert problem.level == "error"
    assert "clean of a.0 came without a finish" in problem.message


@pytest.mark.parametrize("job", ["b.0", "a.7", "a.x", "a", "", "a." + "9" * 5000])
def test_events_of_jobs_that_were_never_submitted_are_dropped(job: str, tmp_path: Path) -> None:
    class Inventive(Scripted):
        def submit(self, jobs: Sequence[Job]) -> None:
            self.tell([JobEvent(self.time(), job, name) for name in ("submit", "clean")])
            super().submit(jobs)

    told = Taken()
    outcome = Bench(ONE_JOB, tmp_path, Inventive(life()), told).end()
    assert outcome.exit_code == 0
    assert {event.job for event in told.events} == {"a.0"}
    (problem,) = told.problems
    assert "concerns a job that this run never submitted" in problem.message


def test_reporting_a_job_end_twice_is_not_a_violation(tmp_path: Path) -> None:
    outcome, told = taken(tmp_path, life(), life())
    assert outcome.exit_code == 0
    assert told.problems == []


def interrupted() -> list[tuple[str, float, dict[str, object]]]:
    """Return the events of a job that is suspended, then requeued while it is suspended again."""
    names = ("submit", "alloc", "start", "suspend", "unsuspend", "suspend", "requeue")
    names += ("alloc", "start", "finish", "clean")
    return [
        (name, float(place), GOOD if name == "finish" else {}) for place, name in enumerate(names)
    ]


def test_an_interrupted_job_satisfies_the_contract(tmp_path: Path) -> None:
    events = interrupted()
    outcome, told = taken(tmp_path, events)
    assert outcome.exit_code == 0
    assert told.problems == []
    assert told.names == [name for name, _, _ in events]
    (group,) = outcome.report.groups
    assert group.mean_duration == pytest.approx(1 + 1 + 1)
    assert group.mean_pending == pytest.approx((2 + 2) / 2, abs=0.1)


def test_events_from_before_and_after_a_requeue_are_not_mixed(tmp_path: Path) -> None:
    submit, *events = interrupted()
    outcome, told = taken(tmp_path, events)  # without a submit, every event is suspicious
    assert outcome.exit_code == 0
    assert told.names == [submit[0], *(name for name, _, _ in events)]
    (tmp_path / "again").mkdir()
    later = [("requeue", 6.0, {}), ("alloc", 7.0, {}), ("finish", 9.0, GOOD), ("start", 8.0, {})]
    outcome, told = taken(tmp_path / "again", [submit, *events[:5]], [*later, ("clean", 9.5, {})])
    assert outcome.exit_code == 0
    assert told.names[6:10] == ["requeue", "alloc", "start", "finish"]


def test_a_job_that_is_requeued_after_its_finish_names_the_executor(tmp_path: Path) -> None:
    submit, alloc, start, finish, clean = life()
    requeue = ("requeue", 4e-5, {})
    outcome, told = taken(tmp_path, [submit, alloc, start, finish, requeue, clean])
    assert outcome.exit_code == 0
    (problem,) = told.problems
    assert "requeue of a.0 came after the end of the job; it has no effect" in problem.message
