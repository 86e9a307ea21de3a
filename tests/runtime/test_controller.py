"""The runtime: its threads, users' functions, and executors that misbehave."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import FakeExecutor

from ensemble_core.config import load_text
from ensemble_core.errors import ExecutorError, UsageError
from ensemble_core.journal import writer
from ensemble_core.journal.reader import NAME
from ensemble_core.model.decisions import Decision, Fired, Log, Submit, WhenBusy
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    JobEvent,
    Observed,
    Problem,
    ResizeOutcome,
)
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import Action, Rule
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Executor
from ensemble_core.plugin.hookspecs import ActionPlugin, CallContext
from ensemble_core.runtime.controller import Outcome, Runtime, Watcher

REGISTRY = discover()


class Recorder(Watcher):
    """Watcher that records events and decisions."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.threads: set[str] = set()

    def event(self, event: Event) -> None:
        self.threads.add(threading.current_thread().name)
        self.events.append(event)

    def decision(self, decision: Decision) -> None:
        self.decisions.append(decision)

    @property
    def submitted(self) -> list[str]:
        return [job.id for one in self.decisions if isinstance(one, Submit) for job in one.jobs]

    @property
    def messages(self) -> list[str]:
        return [one.message for one in self.decisions if isinstance(one, Log)]


class Bench:
    """A runtime on a thread, with a time limit."""

    def __init__(
        self,
        text: str,
        folder: Path,
        executor: Executor | None = None,
        actions: dict[str, ActionPlugin] | None = None,
    ) -> None:
        self.executor = executor or FakeExecutor(instant=True)
        self.seen = Recorder()
        self.runtime = Runtime(
            load_text(text, REGISTRY),
            self.executor,
            actions={**REGISTRY.actions, **(actions or {})},
            observers=REGISTRY.observers,
            watchers=[self.seen],
            folder=folder / "output",
        )
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="engine thread", daemon=True)

    def _run(self) -> None:
        try:
            self.outcome = self.runtime.run()
        except BaseException as error:
            self.error = error

    def begin(self) -> Bench:
        self.thread.start()
        return self

    def until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not true():
            assert time.monotonic() < deadline, "it did not come to pass in 120 s"
            time.sleep(0.005)

    def end(self) -> Outcome:
        if not self.thread.is_alive() and self.outcome is None and self.error is None:
            self.begin()
        self.thread.join(120)
        assert not self.thread.is_alive(), "the run did not end in 120 s"
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome


def custom(function: str, rules: str = "") -> str:
    body = "\n".join("  " + line for line in function.strip().splitlines())
    return f"""
jobs: [{{name: sim, command: sim, count: 2}}, {{name: echo, command: echo}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{id: ask, trigger: job-success, name: sim, when: index == 0, action: {{name: custom, label: f}}}}
{rules}
custom: |
{body}
"""


def test_a_returned_action_is_carried_out(tmp_path: Path) -> None:
    bench = Bench(
        custom('def f(**kwargs):\n    return Action({"name": "submit", "label": "echo"})'), tmp_path
    )
    outcome = bench.end()
    assert bench.seen.submitted == ["sim.0", "sim.1", "echo.0"]
    assert [one.rule for one in bench.seen.decisions if isinstance(one, Fired)].count("ask") == 1
    assert outcome.exit_code == 0


def test_a_returned_rule_is_added_and_none_does_nothing(tmp_path: Path) -> None:
    text = custom(
        """
def f(**kwargs):
    return [None, Rule({"id": "new", "trigger": "job-success", "name": "echo",
                        "action": {"name": "log", "message": "it joined"}}),
            Action({"name": "submit", "label": "echo"})]
"""
    )
    bench = Bench(text, tmp_path)
    assert bench.end().exit_code == 0
    assert bench.seen.messages == ["it joined"]


def test_a_function_gets_all_documented_arguments(tmp_path: Path) -> None:
    text = custom(
        """
seen = []
def f(metrics, event, rule, action, handle, job, ensemble, tables, **rest):
    assert not rest, rest
    assert metrics["count.sim.success"] >= 1
    assert metrics.models["count"]["sim"]["success"].get() >= 1
    assert metrics["mean.sim-duration"] >= 0
    assert event["name"] == "finish" and event["job"] == "sim.0", event
    # What ensemble-python 0.0.16 hands over, as far as this queue has it.
    assert event["id"] == job["queue_id"] and "jobspec" not in event and "R" not in event, event
    (entry,) = event["events"]
    assert entry == {"timestamp": event["timestamp"], "name": "finish", "context": {"status": 0}}
    assert rule.id == "ask" and rule.trigger == "job-success" and rule.action.label == "f"
    assert action.name == "custom" and action.label == "f"
    assert handle is None
    assert job["group"] == "sim" and job["index"] == 0 and job["exit_code"] == 0, job
    assert ensemble == "ensemble", ensemble
    return Action(name="log", message="all there")
"""
    )
    bench = Bench(text, tmp_path)
    bench.end()
    failures = [one.traceback for one in bench.seen.events if isinstance(one, CallFailed)]
    assert failures == []
    assert bench.seen.messages == ["all there"]


def test_a_function_gets_the_queues_record_of_its_event(tmp_path: Path) -> None:
    class Keeping(FakeExecutor):
        def journal_record(self, queue_id: str, event: str) -> dict[str, Any]:
            return {"id": 7, "R": {"version": 1}} if event == "alloc" else {"id": 7}

    text = custom(
        "def f(event, **rest):\n    return Action(name=\"log\", message=f\"{event['id']} {event.get('R')}\")",
        "  - {trigger: job-alloc, action: {name: custom, label: f}}",
    )
    bench = Bench(text, tmp_path, Keeping(instant=True))
    bench.end()
    assert sorted(bench.seen.messages) == ["7 None", "7 {'version': 1}"]


def test_a_function_gets_a_handle_for_its_thread(tmp_path: Path) -> None:
    """A queue's handle may belong to one thread, like Flux's."""

    class Threaded(FakeExecutor):
        @property
        def handle(self) -> object:
            return threading.current_thread()

    text = custom(
        """
import threading
def f(handle, **rest):
    assert handle is threading.current_thread()
    return Action({"name": "log", "message": "mine"})
"""
    )
    bench = Bench(text, tmp_path, Threaded(instant=True))
    bench.end()
    assert bench.seen.messages == ["mine"]


STRANGER = """
jobs: [{{name: a, command: "true"}}]
rules:
  - {{trigger: start, action: {{name: submit, label: a}}}}
  - {{trigger: job-finish, {scope}repetitions: 9, action: {{name: log, message: "{{job}}"}}}}
  - {{trigger: job-clean, name: a, action: {{name: terminate}}}}
"""


@pytest.mark.parametrize("scope", ["scope: queue, ", ""])
def test_events_of_foreign_jobs_are_ignored_without_a_rule_on_the_queue(
    tmp_path: Path, scope: str
) -> None:
    executor = FakeExecutor()
    bench = Bench(STRANGER.format(scope=scope), tmp_path, executor).begin()
    bench.until(lambda: executor.submitted)
    finish = JobEvent(time.time(), "f1", "finish", {"status": 0}, ours=False)
    bench.runtime.emit([finish])
    executor.finish("a.0")
    bench.end()
    assert (finish in bench.seen.events) == bool(scope)
    assert bench.seen.messages == (["f1", "a.0"] if scope else ["a.0"])


@pytest.mark.parametrize("sees", [True, False])
def test_a_queue_rule_that_cannot_see_foreign_jobs_causes_a_warning(
    tmp_path: Path, sees: bool
) -> None:
    class Guest(FakeExecutor):
        @property
        def sees_foreign_jobs(self) -> bool:
            return sees

    text = STRANGER.format(scope="scope: queue, ")
    bench = Bench(text, tmp_path, Guest(instant=True))
    bench.end()
    warned = [e.message for e in bench.seen.events if isinstance(e, Problem)]
    assert len(warned) == (0 if sees else 1)
    assert sees or "scope: queue" in warned[0]


def test_a_function_under_a_metric_rule_gets_the_event(tmp_path: Path) -> None:
    text = """
jobs: [{name: sim, command: sim}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: metric, name: count.sim.success, when: 1, action: {name: custom, label: f}}
custom: |
  def f(event, job, **kwargs):
      return Action(name="log", message=f"{event['name']} {job['job']}")
"""
    bench = Bench(text, tmp_path)
    bench.end()
    assert bench.seen.messages == ["finish sim.0"]


def test_an_exception_in_a_function_becomes_an_event_with_its_traceback(tmp_path: Path) -> None:
    bench = Bench(custom("def f(**kwargs):\n    return 1 / 0"), tmp_path)
    outcome = bench.end()
    (failed,) = (one for one in bench.seen.events if isinstance(one, CallFailed))
    assert "ZeroDivisionError" in failed.error
    assert "return 1 / 0" in failed.traceback
    assert "calling.py" not in failed.traceback
    assert outcome.report.groups[0].success == 2
    assert outcome.exit_code == 1


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ('"submit"', "returned a str"),
        ("42", "returned an int"),
        ('{"name": "submit"}', "returned a dict"),
        ('Action({"name": "submit", "label": "nobody"})', "nobody"),
        ('Action({"name": "submti", "label": "sim"})', "submit"),
        ('Rule({"trigger": "job-cnacel", "action": {"name": "terminate"}})', "job-cancel"),
        ('Rule({"trigger": "start", "action": {"name": "terminate"}})', "start"),
    ],
)
def test_an_invalid_result_is_one_error(tmp_path: Path, returned: str, complaint: str) -> None:
    bench = Bench(custom(f"def f(**kwargs):\n    return {returned}"), tmp_path)
    outcome = bench.end()
    assert any(complaint in message for message in bench.seen.messages), bench.seen.messages
    assert outcome.exit_code == 1
    assert outcome.report.groups[0].success == 2


def test_sys_exit_in_a_function_does_not_end_the_run(tmp_path: Path) -> None:
    bench = Bench(custom("def f(**kwargs):\n    raise SystemExit(0)"), tmp_path)
    assert bench.end().exit_code == 1
    assert bench.seen.submitted == ["sim.0", "sim.1"]


def test_nothing_starts_if_the_custom_part_raises(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the code under 'custom' raised ValueError: not today"):
        Bench(custom('raise ValueError("not today")\ndef f(**kwargs): pass'), tmp_path)


def test_a_slow_function_does_not_block_the_engine(tmp_path: Path) -> None:
    text = custom(
        """
import threading
gate = threading.Event()
def f(**kwargs):
    assert gate.wait(60)
def g(**kwargs):
    pass
""",
        "  - {trigger: job-success, name: echo, action: {name: log, message: went on}}\n"
        "  - {trigger: job-success, name: sim, when: index == 1, action: {name: submit, label: echo}}\n",
    )
    bench = Bench(text, tmp_path).begin()
    bench.until(lambda: "went on" in bench.seen.messages)
    assert not any(isinstance(one, CallReturned) for one in bench.seen.events)
    assert bench.thread.is_alive(), "the run waits for the function"
    gate = bench.runtime._caller._functions["f"].__globals__["gate"]
    gate.set()
    assert bench.end().exit_code == 0


def test_a_hanging_function_does_not_keep_a_stopped_run_alive(tmp_path: Path) -> None:
    text = custom("import threading\ndef f(**kwargs):\n    threading.Event().wait()")
    bench = Bench(text, tmp_path).begin()
    bench.until(lambda: any(one.type == "call" for one in bench.seen.decisions))
    bench.runtime.stop()
    assert bench.end().exit_code == 130


def test_a_plugins_slow_action_runs_off_the_engines_thread(tmp_path: Path) -> None:
    ran: list[tuple[str, CallContext]] = []

    def run(context: CallContext) -> Action:
        ran.append((threading.current_thread().name, context))
        return Action(name="submit", label="echo")

    text = """
jobs: [{name: sim, command: sim}, {name: echo, command: echo}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-success, name: sim, action: {name: log, message: x}}
"""
    bench = Bench(text, tmp_path, actions={"log": ActionPlugin(name="log", summary="x", run=run)})
    # Without a plan, the action counts as slow.
    rule = bench.runtime.engine.state.rules.states["rule-2"].rule
    object.__setattr__(rule.actions[0], "plan", None)
    bench.end()
    ((thread, context),) = ran
    assert thread != "engine thread"
    assert context.options["message"] == "x"
    assert context.job is not None
    assert context.job["job"] == "sim.0"
    assert bench.seen.submitted == ["sim.0", "echo.0"]
    assert bench.seen.threads == {"engine thread"}


def test_a_submit_that_raises_fails_each_job(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.refuse = ExecutorError("the queue is full")
    text = """
jobs: [{name: sim, command: sim, count: 3}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-exception, repetitions: 3, action: {name: log, message: "{type}: {note}"}}
"""
    bench = Bench(text, tmp_path, executor)
    outcome = bench.end()
    assert bench.seen.messages == ["submit: the queue is full"] * 3
    assert outcome.report.groups[0].failed == 3


def test_a_contract_violation_of_an_executor_is_an_error(tmp_path: Path) -> None:
    class Careless(FakeExecutor):
        def cancel(self, jobs: Sequence[str]) -> None:
            super().cancel(jobs)
            raise KeyError("oops")

    text = """
jobs: [{name: sim, command: sim}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-submit, action: {name: cancel}}
"""
    bench = Bench(text, tmp_path, Careless())
    assert bench.end().exit_code in (0, 1)
    assert bench.outcome is not None
    assert bench.outcome.report.groups[0].cancelled == 1


def test_an_undelivered_resize_is_repeated(tmp_path: Path) -> None:
    class Deaf(FakeExecutor):
        deaf = 1

        def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
            if self.deaf:
                self.deaf -= 1
                raise ExecutorError("no route to host", transient=True)
            super().resize(request, delta, when_busy=when_busy)

    text = """
jobs: [{name: sim, command: sim}]
rules:
  - {trigger: start, action: [{name: submit, label: sim}, {name: grow, value: 2}]}
  - {trigger: resize-granted, action: {name: terminate}}
"""
    executor = Deaf()
    bench = Bench(text, tmp_path, executor)
    assert bench.end().exit_code == 0
    outcomes = [one.outcome for one in bench.seen.events if isinstance(one, ResizeOutcome)]
    assert outcomes == ["undelivered", "granted"]
    assert executor.nodes == 3
    assert executor.cancelled == ["sim.0"]


def test_nothing_is_submitted_if_the_executor_cannot_open(tmp_path: Path) -> None:
    class Closed(FakeExecutor):
        def open(self, run: Any, emit: Any) -> None:
            raise ExecutorError("no broker", hint="start one")

    executor = Closed()
    bench = Bench(custom("def f(**kwargs): pass"), tmp_path, executor)
    with pytest.raises(ExecutorError, match="no broker"):
        bench.end()
    assert executor.submitted == []
    assert not (tmp_path / "output").exists()


def test_stop_cancels_active_jobs_and_waits_for_them(tmp_path: Path) -> None:
    executor = FakeExecutor()
    bench = Bench(custom("def f(**kwargs): pass"), tmp_path, executor).begin()
    bench.until(lambda: len(executor.submitted) == 2)
    bench.runtime.stop()
    outcome = bench.end()
    assert outcome.exit_code == 130
    assert executor.cancelled == ["sim.0", "sim.1"]
    assert outcome.report.groups[0].cancelled == 2
    assert executor.closed


def test_a_second_stop_exits_at_once(tmp_path: Path) -> None:
    class Stubborn(FakeExecutor):
        def cancel(self, jobs: Sequence[str]) -> None:
            self.cancelled += jobs

    executor = Stubborn()
    bench = Bench(custom("def f(**kwargs): pass"), tmp_path, executor).begin()
    bench.until(lambda: len(executor.submitted) == 2)
    bench.runtime.stop()
    bench.until(lambda: executor.cancelled)
    assert bench.thread.is_alive()
    bench.runtime.stop()
    assert bench.end().exit_code == 130
    assert executor.closed


def test_a_lost_queue_ends_the_run_with_that_reason(tmp_path: Path) -> None:
    executor = FakeExecutor()
    bench = Bench(custom("def f(**kwargs): pass"), tmp_path, executor).begin()
    bench.until(lambda: len(executor.submitted) == 2)
    executor.lose("the broker went away")
    outcome = bench.end()
    assert outcome.exit_code == 1
    assert "the broker went away" in outcome.reason


def test_terminate_without_cancel_waits_for_jobs_that_cannot_outlive_the_run(
    tmp_path: Path,
) -> None:
    text = """
jobs: [{name: sim, command: sim, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-success, action: {name: terminate, cancel: false, exit_code: 4}}
"""
    executor = FakeExecutor()
    bench = Bench(text, tmp_path, executor).begin()
    bench.until(lambda: len(executor.submitted) == 2)
    executor.finish("sim.0")
    bench.until(lambda: bench.runtime.engine.state.ended)
    time.sleep(0.1)
    assert bench.thread.is_alive()
    executor.finish("sim.1")
    outcome = bench.end()
    assert outcome.exit_code == 4
    assert outcome.report.groups[0].success == 2
    assert executor.cancelled == []


@pytest.mark.parametrize("outlives", [True, False])
def test_the_folder_stays_for_jobs_that_outlive_the_run(tmp_path: Path, outlives: bool) -> None:
    """They may not have opened their output files yet."""

    class Keeping(FakeExecutor):
        capabilities = FakeExecutor.capabilities | {"detach"}

    bench = Bench(
        "jobs: [{name: a, command: a}]\n"
        "rules:\n"
        "  - {trigger: start, action: {name: submit, label: a}}\n"
        f"  - {{trigger: job-submit, action: {{name: terminate, cancel: {str(not outlives).lower()}}}}}\n",
        tmp_path,
        Keeping(),
    )
    bench.end()
    assert (tmp_path / "output").is_dir() == outlives


def test_a_jobs_last_row_reaches_the_engine_before_its_end(tmp_path: Path) -> None:
    log = tmp_path / "values.jsonl"
    text = """
jobs: [{name: sim, command: sim, observe: {json-lines: {path: values.jsonl}}}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - trigger: job-success
    when: metric("last.sim-energy") == -7
    action: {name: log, message: saw the last row}
"""

    class Writing(FakeExecutor):
        def submit(self, jobs: Sequence[Job]) -> None:
            super().submit(jobs)
            for job in jobs:
                self.start(job.id, workdir=str(tmp_path), stdout=str(tmp_path / "out"))
                log.write_text("".join(f'{{"energy": {n}}}\n' for n in range(-5000, -6)))
                self.finish(job.id)

    bench = Bench(text, tmp_path, Writing())
    assert bench.end().exit_code == 0
    assert bench.seen.messages == ["saw the last row"]
    names = [
        "row" if isinstance(one, Observed) else one.name
        for one in bench.seen.events
        if isinstance(one, (Observed, JobEvent))
    ]
    assert names.index("start") < names.index("row")
    assert names.count("row") == 4994
    assert len(names) - 1 - names[::-1].index("row") < names.index("finish")


class Early(FakeExecutor):
    """Executor that backdates a job's output and writes it before it reports the job's start."""

    def __init__(self, out: Path, behind: float) -> None:
        super().__init__()
        self.out, self.behind = out, behind

    def submit(self, jobs: Sequence[Job]) -> None:
        super().submit(jobs)
        self.out.write_text('{"energy": 1}\n')
        os.utime(self.out, (time.time() - self.behind,) * 2)
        for job in jobs:
            self.start(job.id, workdir=str(self.out.parent), stdout=str(self.out))
            self.finish(job.id)


def output_messages(folder: Path, behind: float, stdout: str) -> list[str]:
    """Return log messages of a run with a job whose output is ``behind`` seconds older than its start."""
    text = f"""
jobs: [{{name: sim, command: sim, {stdout} observe: {{json-lines: {{}}}}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{trigger: observed, name: sim, action: {{name: log, message: saw a row}}}}
"""
    bench = Bench(text, folder, Early(folder / "out.txt", behind))
    bench.end()
    return bench.seen.messages


@pytest.mark.parametrize("behind", [0.05, 2.0, 3600.0])
def test_output_of_a_short_job_is_read_although_the_nodes_clock_is_behind(
    behind: float, tmp_path: Path
) -> None:
    assert output_messages(tmp_path, behind, "") == ["saw a row"]


def test_output_of_another_job_in_a_named_file_is_not_read(tmp_path: Path) -> None:
    (message,) = output_messages(tmp_path, 60.0, "stdout: out.txt,")
    assert "is older than the job, which did not write to it" in message


def test_ten_thousand_jobs_each_exactly_once(tmp_path: Path) -> None:
    text = """
jobs: [{name: sim, command: sim, count: 5000}, {name: echo, command: echo, count: 5}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-success, name: sim, repetitions: 1000, action: {name: submit, label: echo}}
"""
    executor = FakeExecutor(instant=True)
    bench = Bench(text, tmp_path, executor)
    outcome = bench.end()
    ids = [job.id for job in executor.submitted]
    assert len(ids) == len(set(ids)) == 10_000
    assert sum(group.success for group in outcome.report.groups) == 10_000


def test_the_clock_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(custom("def f(**kwargs): pass"), tmp_path)
    before = bench.runtime.clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert bench.runtime.clock() >= before


def test_rules_as_objects_read_like_the_file() -> None:
    rule = Rule(trigger="metric", name="count.a.success", action={"name": "submit", "label": "b"})
    assert (rule.trigger, rule.name, rule.action) == (
        "metric",
        "count.a.success",
        Action(name="submit", label="b"),
    )


def test_a_failed_journal_writer_ends_the_run_so_that_it_can_be_resumed(tmp_path: Path) -> None:
    text = """
jobs: [{name: work, command: x}]
rules: [{trigger: start, action: {name: submit, label: work}}]
"""
    executor = FakeExecutor()
    journal = writer.JournalWriter(tmp_path / NAME)

    def broken(*_: object) -> None:
        raise ValueError("no such thing")

    journal._write = broken  # type: ignore[method-assign]
    journal.begin(0.0, {})
    runtime = Runtime(
        load_text(text, REGISTRY),
        executor,
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=tmp_path / "out",
        journal=journal,
    )
    outcome = runtime.run()
    journal.close()
    assert not outcome.over
    assert outcome.exit_code == 1
    assert "writer has failed" in outcome.reason
    assert executor.submitted == []
