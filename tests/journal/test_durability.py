"""Runs whose controller is killed at the worst moments: nothing is lost or repeated, and the run can
always be resumed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from ensemble_testing import FakeExecutor, Story, wait_until

from ensemble_core.builtin.observers import JsonLines
from ensemble_core.cli.commands import resume as resuming
from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.reader import NAME, FileVersion, Journal
from ensemble_core.journal.replay import recover
from ensemble_core.journal.request_files import end_requester, is_leave_requested
from ensemble_core.journal.run_folder import STOP
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.local.protocol import VERSION, encode_event, line
from ensemble_core.local.supervisor_client import SupervisorClient
from ensemble_core.model.decisions import Call, Cancel, Decision, Submit
from ensemble_core.model.events import (
    CallReturned,
    Event,
    ExecutorLost,
    Observed,
    Problem,
    Resources,
    Resumed,
    Started,
    StopRequested,
)
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Run
from ensemble_core.runtime.controller import Runtime
from ensemble_core.runtime.resumption import Resumption
from ensemble_core.runtime.tail import Follower

REGISTRY = discover()
START = "{trigger: start, action: {name: submit, label: work}}"


def resume(story: Story, *absent: str, **gauges: float) -> list[Decision]:
    named = {name.replace("_", "."): value for name, value in gauges.items()}
    return story.tell(Resumed(story.now, named, absent))


# -- decisions before the end ----------------------------------------------------------------------


def test_a_job_submitted_just_before_an_end_without_cancel_is_not_lost() -> None:
    story = Story(
        """
jobs: [{name: work, command: x}, {name: archive, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: job-success, name: work,
     action: [{name: submit, label: archive}, {name: terminate, cancel: false}]}
"""
    )
    story.start()
    story.play("work.0")
    assert story.submitted() == ["work.0", "archive.0"]
    # The controller was killed before the queue got it.
    (submit,) = [
        one
        for one in story.engine.handle(Resumed(story.now, {}, ("archive.0",)))
        if isinstance(one, Submit)
    ]
    assert [job.id for job in submit.jobs] == ["archive.0"]
    assert story.metric("count.archive.cancelled") == 0


def test_a_run_that_lost_its_queue_can_be_cancelled() -> None:
    story = Story(f"jobs: [{{name: work, command: x, count: 2}}]\nrules: [{START}]")
    story.start()
    story.begin("work.0")
    story.tell(ExecutorLost(story.now, "local", "gone"))
    story.tell(StopRequested(story.now, "cancelled by somebody", 130))
    decided = resume(story, "work.1")
    assert [one for one in decided if isinstance(one, Submit)] == []
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("work.0",)]
    assert story.exit_code == 130


# -- rules ----------------------------------------------------------------------------------------


def test_an_unchanged_gauge_triggers_no_rule_at_a_resume() -> None:
    story = Story(
        f"""
jobs: [{{name: work, command: x, count: 2}}]
rules:
  - {START}
  - {{id: idle, trigger: metric, name: nodes.free, when: ">= 1", repetitions: 9,
     action: {{name: submit, label: work}}}}
"""
    )
    story.start({"nodes.free": 2.0})
    assert story.fired().count("idle") == 1
    resume(story, nodes_free=2.0)
    assert story.fired().count("idle") == 1
    resume(story, nodes_free=3.0)
    assert story.fired().count("idle") == 2


def test_a_change_of_the_file_does_not_fire_unchanged_rules() -> None:
    text = f"""
jobs: [{{name: work, command: x, count: 3}}]
rules:
  - {START}
  - {{id: each, trigger: metric, name: count.work.success, when: ">= 1", repetitions: 9,
     action: {{name: log, message: one}}}}
"""
    story = Story(text)
    story.start()
    story.play("work.0")
    assert story.fired().count("each") == 1
    story.engine.reconfigure(
        load_text(text + "  - {trigger: job-fail, action: {name: terminate}}\n", REGISTRY)
    )
    resume(story)
    assert story.fired().count("each") == 1
    story.play("work.1")
    assert story.fired().count("each") == 2


CALLING = """
jobs: [{name: work, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: job-start, action: {name: custom, label: f}}
  - {trigger: job-finish, action: {name: log, message: another}}
custom: |
  def f(**kwargs):
      return None
"""


def test_an_added_rule_stays_after_a_change_of_the_file() -> None:
    story = Story(CALLING)
    story.start()
    (call,) = [one for one in story.begin("work.0") if isinstance(one, Call)]
    spec = {"trigger": "job-success", "action": {"name": "log", "message": "joined"}}
    story.tell(CallReturned(story.now, call.call, ({"rule": spec},)))
    more = "  - {trigger: job-fail, action: {name: terminate}}\ncustom:"
    story.engine.reconfigure(load_text(CALLING.replace("custom: |", more + " |", 1), REGISTRY))
    resume(story)
    messages = [getattr(one, "message", "") for one in story.end("work.0")]
    assert "joined" in messages


def test_a_pending_call_survives_the_removal_of_its_rule(tmp_path: Path) -> None:
    asking = "  - {id: asks, trigger: job-start, action: {name: custom, label: f}}\n"
    text = CALLING.replace("  - {trigger: job-start, action: {name: custom, label: f}}\n", "")
    assert text != CALLING
    story = Story(text.replace("rules:\n", "rules:\n" + asking))
    story.start()
    story.begin("work.0")
    story.engine.reconfigure(load_text(text, REGISTRY))
    executor = Again(("work.0",))
    runtime = runtime_of(story.ensemble, executor, tmp_path, engine=story.engine)
    assert ended(runtime).exit_code == 0
    assert executor.submitted == []


def test_a_repeated_call_gets_the_rule_that_requested_it(tmp_path: Path) -> None:
    text = CALLING.replace("return None", "print(kwargs['rule'].trigger, flush=True)")
    story = Story(text)
    story.start()
    story.begin("work.0")
    fewer = "  - {trigger: start, action: {name: submit, label: work}}\n"
    story.engine.reconfigure(load_text(text.replace(fewer, ""), REGISTRY))
    (call,) = [one for one in resume(story) if isinstance(one, Call)]
    assert story.engine.rule_of(call)["trigger"] == "job-start"
    assert story.engine.state.rules.states[call.rule or ""].rule.spec["trigger"] == "job-start"


# -- the controller -------------------------------------------------------------------------------


class Again(FakeExecutor):
    """Executor whose queue has these running jobs of an earlier controller."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "resize", "reattach"})

    def __init__(self, jobs: Sequence[str] = ()) -> None:
        super().__init__()
        for job in jobs:
            self._states[job] = "running"

    def reattach(self, jobs: Any) -> dict[str, bool]:
        found = {job: job in self._states for job in jobs}
        for job in [job for job, there in found.items() if there]:
            self.finish(job)
        return found


def runtime_of(
    ensemble: Any,
    executor: FakeExecutor,
    folder: Path,
    writer: JournalWriter | None = None,
    engine: Engine | None = None,
) -> Runtime:
    return Runtime(
        ensemble,
        executor,
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=folder / "output",
        journal=writer,
        maker="test",
        engine=engine,
    )


def ended(runtime: Runtime, seconds: float = 120) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(runtime.run())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the run hangs"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@contextlib.contextmanager
def recording(path: Path) -> Iterator[JournalWriter]:
    writer = JournalWriter(path)
    writer.begin(0.0, {})
    try:
        yield writer
    finally:
        writer.close()


def test_a_run_without_events_is_cancelled_without_being_started(tmp_path: Path) -> None:
    text = f"jobs: [{{name: work, command: x}}]\nrules: [{START}]"
    executor = FakeExecutor(instant=True)
    runtime = runtime_of(load_text(text, REGISTRY), executor, tmp_path)
    runtime.stop_first(StopRequested(0.0, "cancelled by somebody"))
    outcome = ended(runtime)
    assert executor.submitted == []
    assert outcome.exit_code == 130
    assert outcome.over


def test_a_cancel_after_a_kill_does_not_count_lost_jobs_as_cancelled(tmp_path: Path) -> None:
    """A lost job may have finished, so it must not run again.

    A job that never reached the queue is submitted by the resume, like any cancelled one.
    """
    story = Story(f"jobs: [{{name: work, command: x, count: 3}}]\nrules: [{START}]")
    story.start()
    story.begin("work.0")
    story.begin("work.1")

    class Left(Again):
        def reattach(self, jobs: Any) -> dict[str, bool]:
            return {job: job in self._states for job in jobs}

        def cancel(self, jobs: Any) -> None:
            self.finish("work.0", status=0)  # ends before it is cancelled

    executor = Left(["work.0"])
    runtime = runtime_of(story.ensemble, executor, tmp_path, engine=story.engine)
    runtime.stop_first(StopRequested(0.0, "stopped by somebody", 5, "cancel-left"))
    assert ended(runtime, 120).stopped
    assert executor.submitted == []
    assert story.engine.in_queue() == []
    decided = story.tell(Resumed(story.now))
    assert [job.queue_name for one in decided if isinstance(one, Submit) for job in one.jobs] == [
        "work.2~1"
    ]
    counts = {name: story.metric(f"count.work.{name}") for name in ("success", "lost", "active")}
    assert counts == {"success": 1, "lost": 1, "active": 1}


def test_a_signal_while_a_resume_begins_to_cancel_jobs_finds_them_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message said that the jobs are left to the queue."""
    story = Story(f"jobs: [{{name: work, command: x}}]\nrules: [{START}]")
    story.start()
    story.begin("work.0")
    runtime = runtime_of(story.ensemble, Again(["work.0"]), tmp_path, engine=story.engine)
    found = []
    unanswered = Resumption.unanswered
    monkeypatch.setattr(
        Resumption, "unanswered", lambda self: found.append(runtime.ended) or unanswered(self)
    )
    runtime.stop_first(StopRequested(0.0, "stopped by somebody", 5, "cancel-left"))
    assert ended(runtime, 120).stopped
    assert [each and each.cancel for each in found] == [("work.0",)]


@pytest.mark.parametrize("capable", [True, False], ids=["speaks of no job", "finds none again"])
def test_jobs_that_the_executor_does_not_mention_count_as_left(
    tmp_path: Path, capable: bool
) -> None:
    """An absent member may still run them."""
    story = Story(f"jobs: [{{name: work, command: x, count: 2}}]\nrules: [{START}]")
    story.start()
    story.begin("work.0")

    class Silent(Again):
        capabilities = Again.capabilities if capable else Again.capabilities - {"reattach"}

        def reattach(self, jobs: Any) -> dict[str, bool]:
            return {}

    runtime = runtime_of(story.ensemble, Silent([]), tmp_path, engine=story.engine)
    runtime.stop_first(StopRequested(0.0, "stopped by somebody", 5, "cancel-left"))
    outcome = ended(runtime, 120)
    assert outcome.stopped
    assert outcome.left == 2


def test_jobs_that_waited_for_a_full_disk_are_cancelled_once_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    write = JournalWriter._write

    def refuse(self: JournalWriter, *given: Any) -> None:
        if full.is_set():
            raise OSError(28, "No space left on device")
        write(self, *given)

    monkeypatch.setattr(JournalWriter, "_write", refuse)
    text = f"jobs: [{{name: work, command: x, count: 2}}]\nrules: [{START}]"
    executor = FakeExecutor()
    full.set()
    with recording(tmp_path / NAME) as writer:
        runtime = runtime_of(load_text(text, REGISTRY), executor, tmp_path, writer)
        thread = threading.Thread(target=runtime.run, daemon=True)
        thread.start()
        wait_until(lambda: writer.failure)
        runtime.stop()
        wait_until(lambda: runtime.engine.state.ended is not None)
        wait_until(lambda: executor.cancelled)
        full.clear()
        thread.join(120)
        assert not thread.is_alive(), "jobs that nobody cancelled are waited for"
        assert len(executor.submitted) == 2
        assert set(executor.cancelled) == {"work.0", "work.1"}


def test_a_second_stop_exits_even_if_the_first_was_not_handled(tmp_path: Path) -> None:
    class Slow(Again):
        """A queue with a slow reattach."""

        asked = threading.Event()
        answer = threading.Event()

        def reattach(self, jobs: Any) -> dict[str, bool]:
            self.asked.set()
            assert self.answer.wait(60)
            return dict.fromkeys(jobs, True)

    story = Story(f"jobs: [{{name: work, command: x}}]\nrules: [{START}]")
    story.start()
    story.begin("work.0")
    executor = Slow(("work.0",))
    runtime = runtime_of(story.ensemble, executor, tmp_path, engine=story.engine)
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(runtime.run()), daemon=True)
    thread.start()
    wait_until(executor.asked.is_set)
    runtime.stop()
    runtime.stop()
    executor.answer.set()
    thread.join(120)
    assert done, "who insisted on leaving is held"
    assert not done[0].over
    assert done[0].exit_code == 130


def test_a_call_fails_if_no_thread_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "custom functions":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    text = """
jobs: [{name: work, command: x}]
rules: [{trigger: start, action: [{name: custom, label: f}, {name: submit, label: work}]}]
custom: |
  def f(**kwargs):
      return None
"""
    executor = FakeExecutor(instant=True)
    with recording(tmp_path / NAME) as writer:
        outcome = ended(runtime_of(load_text(text, REGISTRY), executor, tmp_path, writer))
        assert outcome.exit_code == 1
        assert "call" not in outcome.reason
        assert len(executor.submitted) == 1
        assert writer.flush(5)


# -- snapshots ------------------------------------------------------------------------------------


def test_an_unrecorded_event_is_in_no_snapshot(tmp_path: Path) -> None:
    text = f"jobs: [{{name: work, command: x}}]\nrules: [{START}]"
    with recording(tmp_path / NAME) as writer:
        runtime = runtime_of(load_text(text, REGISTRY), FakeExecutor(), tmp_path, writer)

        def break_off(decisions: Any) -> Any:
            raise MemoryError

        runtime._orders_of = break_off  # type: ignore[method-assign]
        assert runtime._snapshots is not None
        runtime._snapshots._since = 1
        with pytest.raises(MemoryError):
            ended(runtime)
        assert writer.seq == 0
        assert writer.flush(5)
    with Journal(tmp_path / NAME) as journal:
        assert list(journal.snapshots()) == []


# -- local jobs -----------------------------------------------------------------------------------


def test_events_that_arrive_with_the_greeting_are_handled(tmp_path: Path) -> None:
    heard: list[Event] = []
    ours, its = socket.socketpair()
    run = Run("greeting", tmp_path, time.time)
    gauges = Resources(1.0, {"cores.free": 1.0})

    class Meeting(SupervisorClient):
        """Client of a supervisor that sends all its messages at once."""

        def _find(self) -> socket.socket:
            return ours

    hello = {"version": VERSION, "pid": 1, "gauges": {"cores.free": 2.0}, "jobs": []}
    its.sendall(line(["hello", hello]) + encode_event(gauges) + encode_event(Problem(2.0, "torn")))
    met = Meeting(run, heard.extend, {})
    met.open()
    try:
        wait_until(lambda: len(heard) == 2)
        assert [event.type for event in heard] == ["resources", "problem"]
        assert met.gauges == {"cores.free": 1.0}
    finally:
        its.close()
        met.close()


# -- job output -----------------------------------------------------------------------------------


def test_the_next_controller_reads_rows_of_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def write(count: int, mode: str) -> None:
        with path.open(mode) as file:
            file.writelines(f'{{"x": {number}}}\n' for number in range(count))

    def follow(taken: int, rows: int, then: Callable[[], None] = lambda: None) -> list[Observed]:
        got: list[Any] = []
        follower = Follower(got.extend, time.time)
        follower.watch("work.0", "json-lines", JsonLines(), path, taken=taken)
        wait_until(lambda: len(got) >= rows)
        then()
        read = threading.Event()
        follower.finish("work.0", read.set)
        assert read.wait(60)
        follower.close()
        return got

    story = Story(
        f"""
jobs: [{{name: work, command: x, observe: {{json-lines: {{fields: [x]}}}}}}]
rules: [{START}]
"""
    )
    story.start()
    story.begin("work.0")
    write(100, "w")
    for row in follow(0, 100, lambda: write(10, "w")):
        story.tell(Event.from_dict(row.to_dict()))
    record = story.engine.state.table.records["work.0"]
    assert record.rows == {"json-lines": 10}
    write(50, "a")
    assert len(follow(record.rows["json-lines"], 50)) == 50


# -- the file of a run ----------------------------------------------------------------------------


def test_a_change_of_the_file_without_later_events_is_ignored(tmp_path: Path) -> None:
    each = "  - {id: each, trigger: job-success, repetitions: 2, action: {name: log, message: x}}\n"
    text = f"jobs: [{{name: work, command: x, count: 3}}]\nrules:\n  - {START}\n{each}"
    story = Story(text)

    def loading(held: FileVersion) -> Any:
        return load_text(held.text, REGISTRY)

    with recording(tmp_path / NAME) as writer:
        writer.store_file_version("/e.yaml", text, ())
        story.start()
        story.play("work.0")
        story.play("work.1")
        engine = Engine(loading(FileVersion(0, "", text, ())))
        for event in story.events:
            writer.append(event, engine.handle(event))
        assert writer.flush(5)
    # Accepted, but the queue could not be opened.
    with recording(tmp_path / NAME) as writer:
        writer.store_file_version("/e.yaml", text.replace(each, ""), ())
    with Journal(tmp_path / NAME) as journal:
        engine = recover(journal, loading, "test", pending=False).engine
    another = text + "  - {trigger: job-fail, action: {name: terminate}}\n"
    engine.reconfigure(load_text(another, REGISTRY))
    with recording(tmp_path / NAME) as writer:
        writer.store_file_version("/e.yaml", another, ())
        event = Resumed(engine.state.now, {}, ())
        writer.append(event, engine.handle(event))
        assert writer.flush(5)
    assert engine.state.rules.states["each"].fired == 2
    with Journal(tmp_path / NAME) as journal:
        again = recover(journal, loading, "test").engine
    assert again.state.rules.states["each"].fired == 2
    assert again.report() == engine.report()


def test_a_file_with_an_undecodable_name_can_be_run_and_resumed(tmp_path: Path) -> None:
    name = "/caf\udce9.yaml"
    with recording(tmp_path / NAME) as writer:
        writer.store_file_version(name, "jobs: []", ())
    with Journal(tmp_path / NAME) as journal:
        (text,) = journal.texts()
    assert text.file == name


# -- stopping a run from elsewhere ----------------------------------------------------------------


def test_a_cancel_during_a_resume_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "jobs: [{name: work, command: sleep 60}]\nrules: [" + START + "]\n"
    file = tmp_path / "e.yaml"
    file.write_text(text)
    folder = tmp_path / "state" / "runs" / "run-20260101T120000-aaaaaa"
    folder.mkdir(parents=True)
    (folder / STOP).write_text("left from before\n")
    story = Story(text)
    with recording(folder / NAME) as writer:
        writer.describe(
            {
                "tag": folder.name,
                "executor": {"name": "local", "options": {"slots": 1, "grace": 0.2}},
                "cwd": str(tmp_path),
                "output": str(folder / "output"),
            }
        )
        writer.store_file_version(str(file), text, ())
        event = Started(story.now, {})
        writer.append(event, story.tell(event))
        assert writer.flush(5)
    changed = resuming._changed_text

    def meanwhile(*given: Any) -> Any:
        assert end_requester(folder) is None
        (folder / STOP).write_text("somebody elsewhere\n")
        return changed(*given)

    monkeypatch.setattr(resuming, "_changed_text", meanwhile)
    result = CliRunner().invoke(
        main, ["resume", folder.name, "--state", str(tmp_path / "state")], standalone_mode=False
    )
    assert "cancelled by somebody elsewhere" in result.output
    with Journal(folder / NAME) as journal:
        outcome = journal.sessions()[-1].outcome
    assert outcome is not None
    assert (outcome["over"], outcome["exit_code"]) == (True, 130)


def test_an_unreadable_folder_means_no_requests(tmp_path: Path) -> None:
    # As on a file system that fails for a moment: the folder is still watched.
    unfit = tmp_path / ("x" * 300)
    assert end_requester(unfit) is None
    assert not is_leave_requested(unfit)
