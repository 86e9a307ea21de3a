"""Executors, clocks and functions at their worst: the run must come to its end all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ensemble_core.config import load_text
from ensemble_core.model.decisions import WhenBusy
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Observed, Problem
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Run
from ensemble_core.runtime.controller import Outcome, Runtime
from ensemble_core.runtime.output_tracking import OutputTracker
from ensemble_core.testing import FakeExecutor, wait_until

REGISTRY = discover()


class Bench:
    """A run on a thread of its own, so that one which hangs is a failure and not a hang."""

    def __init__(self, source: str | Ensemble, folder: Path, executor: FakeExecutor) -> None:
        self.runtime = Runtime(
            load_text(source, REGISTRY) if isinstance(source, str) else source,
            executor,
            actions=REGISTRY.actions,
            observers=REGISTRY.observers,
            folder=folder / "output",
        )
        self.outcome: Outcome | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.outcome = self.runtime.run()

    def end(self, seconds: float = 15) -> Outcome:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the run hangs"
        assert self.outcome is not None, "the run crashed"
        return self.outcome


ONE_JOB = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


def test_a_rule_for_the_far_future_does_not_end_the_run_today(tmp_path: Path) -> None:
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


def test_an_exception_that_cannot_be_shown_still_ends_its_call(tmp_path: Path) -> None:
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


def test_an_executor_that_exits_fails_its_jobs_and_the_run_ends(tmp_path: Path) -> None:
    outcome = Bench(ONE_JOB, tmp_path, Exits()).end()
    assert outcome.exit_code == 1
    assert outcome.report.groups[0].failed == 1


class BadResize(FakeExecutor):
    capabilities: ClassVar[frozenset[str]] = FakeExecutor.capabilities | {"resize"}

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        raise KeyError("nodes")


def test_a_resize_that_raises_is_denied_and_not_waited_for_ever(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: grow}}
  - {trigger: resize-granted, action: {name: submit, label: a}}
  - {trigger: resize-denied, action: {name: terminate, exit_code: 7}}
"""
    assert Bench(text, tmp_path, BadResize()).end().exit_code == 7


class Stuck(FakeExecutor):
    """A queue that goes away in the middle of a submit, which never returns."""

    def open(self, run: Run, emit: Callable[[Sequence[Event]], None]) -> None:
        super().open(run, emit)
        self.tell, self.time = emit, run.clock
        self.released = threading.Event()

    def submit(self, jobs: Sequence[Job]) -> None:
        self.tell((ExecutorLost(self.time(), "fake", "gone"),))
        self.released.wait(60)


def test_a_call_to_a_lost_queue_that_never_returns_does_not_hold_the_run(tmp_path: Path) -> None:
    executor = Stuck()
    outcome = Bench(ONE_JOB, tmp_path, executor).end()
    executor.released.set()
    assert outcome.exit_code == 1


class Slow(FakeExecutor):
    """A queue whose resize takes its time."""

    capabilities: ClassVar[frozenset[str]] = FakeExecutor.capabilities | {"resize"}
    entered = threading.Event()
    released = threading.Event()

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        self.entered.set()
        self.released.wait(60)


def test_who_insists_on_leaving_need_not_wait_for_a_slow_queue(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: [{name: grow}, {name: terminate}]}]
"""
    bench = Bench(text, tmp_path, Slow())
    assert Slow.entered.wait(60)
    wait_until(lambda: bench.runtime.engine.state.ended)
    bench.runtime.stop()
    assert bench.end(5).exit_code == 0
    Slow.released.set()


def test_a_start_that_is_told_twice_does_not_count_the_output_twice(tmp_path: Path) -> None:
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


def test_output_that_only_a_member_knows_of_is_not_read_and_the_user_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text('{"loss": 1}\n')
    events: list[Event] = []
    tracker = OutputTracker(events.extend, time.time, REGISTRY.observers, lambda: 0)
    observe = {"json-lines": {"fields": ["loss"]}}
    tracker.expect([Job(id="a.1", group="a", index=1, command=("x",), observe=observe)])
    places = {"stdout": str(tmp_path / "secret")}
    tracker.emit([JobEvent(time.time(), "a.1", "start", {"at_member": places})])
    tracker.emit([JobEvent(time.time(), "a.1", "finish", {"status": 0})])
    wait_until(lambda: any(getattr(event, "name", "") == "finish" for event in events))
    tracker.close()
    assert not [event for event in events if isinstance(event, Observed)]
    (problem,) = [event for event in events if isinstance(event, Problem)]
    assert "--option shared=FOLDER" in problem.message
