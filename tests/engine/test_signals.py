"""The action ``signal`` and the key ``warn``: which jobs get a signal, resume, and bad input."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_testing import FakeExecutor, Story

from ensemble_core import ExecutorPlugin, FileErrors
from ensemble_core.config import load_text
from ensemble_core.errors import ExecutorError
from ensemble_core.model.decisions import Decision, Log, Signal, Submit, Terminate
from ensemble_core.model.events import Event, Problem, Resumed, Signalled
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Run
from ensemble_core.runtime.executor_guard import ExecutorGuard
from ensemble_core.runtime.function_calls import Caller
from ensemble_core.runtime.orders import Performer

FILE = """
jobs: [{name: md, command: x, count: 4, at_once: 3}]
rules:
  - {trigger: start, action: {name: submit}}
  - {id: tell, trigger: start, action: {name: notify, to: bell, message: x}}
  - {id: ask, trigger: job-start, repetitions: 9, action: {name: signal, label: md, signal: INT}}
"""


@pytest.fixture
def story() -> Story:
    told = Story(FILE)
    told.start()
    return told


def signals(decided: list[Decision]) -> list[tuple[str, tuple[str, ...], int]]:
    return [(d.signal, d.jobs, d.attempt) for d in decided if isinstance(d, Signal)]


def logs(decided: list[Decision]) -> list[str]:
    return [each.message for each in decided if isinstance(each, Log)]


def test_only_running_jobs_get_a_signal_and_the_others_are_named(story: Story) -> None:
    """Waiting, held, ended and cancelled jobs have no processes. A suspended job has."""
    decided = story.begin("md.0")
    assert signals(decided) == [("INT", ("md.0",), 1)]
    assert logs(decided) == ["md.1, md.2, md.3 do not run: SIGINT not sent"]
    story.suspend("md.0")
    assert signals(story.begin("md.1")) == [("INT", ("md.0", "md.1"), 1)]
    story.unsuspend("md.0")
    story.end("md.0")
    assert signals(story.begin("md.2")) == [("INT", ("md.1", "md.2"), 1)]
    assert story.metric("count.md.failed") == 0


def test_an_unconfirmed_signal_is_sent_again_after_a_resume(story: Story) -> None:
    (first,) = [d for d in story.begin("md.0") if isinstance(d, Signal)]
    (second,) = [d for d in story.begin("md.1") if isinstance(d, Signal)]
    story.tell(Signalled(story.now, first.request))
    story.end("md.0")
    decided = story.tell(Resumed(story.now, {}))
    assert signals(decided) == [("INT", ("md.1",), 2)]
    story.tell(Signalled(story.now, second.request))
    assert not signals(story.tell(Resumed(story.now, {})))


def test_a_signal_that_cannot_be_sent_is_an_error_of_the_run(story: Story) -> None:
    (sent,) = [d for d in story.begin("md.0") if isinstance(d, Signal)]
    decided = story.tell(Signalled(story.now, sent.request, "no permission"))
    assert logs(decided) == ["cannot send SIGINT to 1 job: no permission"]
    for job in ("md.0", "md.1", "md.2", "md.3"):
        story.play(job) if job != "md.0" else story.end(job)
    (end,) = [d for d in story.decisions if isinstance(d, Terminate)]
    assert end.exit_code == 1


def test_the_event_s_job_gets_the_signal() -> None:
    text = FILE.replace("label: md, signal", "signal")
    told = Story(text.replace("job-start", "job-suspend"))
    told.start()
    told.begin("md.0")
    assert signals(told.suspend("md.0")) == [("INT", ("md.0",), 1)]
    over = Story(text.replace("job-start", "job-done"))
    over.start()
    over.begin("md.0")
    assert "md.0 does not run: SIGINT not sent" in logs(over.end("md.0"))


class Deaf(FakeExecutor):
    """An executor that refuses the first signal for now, and perhaps the second one for good."""

    def __init__(self, *, final: bool) -> None:
        super().__init__()
        self._final, self._tries = final, 0

    def signal(self, jobs: Any, signal: str) -> None:
        self._tries += 1
        if self._tries == 1 or self._final:
            raise ExecutorError("cannot send", hint="wait", transient=self._tries == 1)
        super().signal(jobs, signal)


@pytest.mark.parametrize("final", [False, True])
def test_a_signal_is_retried_if_the_queue_does_not_answer(final: bool) -> None:
    told: list[Event] = []
    executor = Deaf(final=final)
    guard = ExecutorGuard(executor, "fake", told.extend, float)
    guard.open(Run("t", None, float), lambda events: None)
    executor.submit([Job(id="md.0", group="md", index=0, command=("x",))])
    executor.start("md.0")
    performer = Performer(guard, Caller, told.extend, float, lambda notice: None)  # type: ignore[arg-type]
    performer.start()
    performer.perform(Signal(request="signal-1", signal="INT", jobs=("md.0",)))
    performer.close()
    assert performer.join(60)
    guard.close(lambda: False)
    (problem,) = [each for each in told if isinstance(each, Problem)]
    assert problem.message.startswith("cannot send a signal to 1 job: retrying")
    (done,) = [each for each in told if isinstance(each, Signalled)]
    assert done.error == ("cannot send\n  hint: wait" if final else "")
    assert executor.signalled == ([] if final else [("md.0", "INT")])


GROUP = "jobs: [{name: md, command: x, %s}]\nrules: [%s]\n"
START = "{trigger: start, action: {name: submit}}"


def test_a_job_has_the_default_signal_and_a_change_keeps_the_other_key() -> None:
    change = "{trigger: job-fail, name: md, action: {name: retry, with: {warn: %s}}}"
    for given, expected in {
        "{before: 5m}": {"signal": "INT", "before": 300.0},
        "null": {},
    }.items():
        warn = "duration: 1h, warn: {signal: INT, before: 2m}"
        told = Story(GROUP % (warn, f"{START}, {change % given}"))
        told.start()
        told.play("md.0", status=256)
        first, second = (d.jobs[0] for d in told.decisions if isinstance(d, Submit))
        assert (dict(first.warn), dict(second.warn)) == (
            {"signal": "INT", "before": 120.0},
            expected,
        )
    told = Story(GROUP % ("duration: 1h, warn: {before: 2m}", START))
    told.start()
    (submit,) = (d for d in told.decisions if isinstance(d, Submit))
    assert dict(submit.jobs[0].warn) == {"signal": "USR1", "before": 120.0}


@pytest.mark.parametrize(
    ("fields", "rule", "place", "what"),
    [
        ("warn: {before: 2m}", "", "1:31", "'warn' needs a time limit"),
        ("duration: 1m, warn: {before: 2m}", "", "1:60", "comes 120 s before the time limit"),
        ("duration: 2m, warn: {before: 2m}", "", "1:60", "comes 120 s before the time limit"),
        ("duration: 1h, warn: {before: 0}", "", "1:60", "it must be more than 0"),
        ("duration: 1h, warn: {before: 2x}", "", "1:60", "'2x' is not a duration"),
        ("duration: 1h, warn: {signal: INT}", "", "1:51", "'warn' has no 'before'"),
        ("duration: 1h, warn: 2m", "", "1:51", "expected a mapping"),
        ("duration: 1h, warn: {before: 2m, signal: KILL}", "", "1:72", "'KILL'"),
        ("duration: 1h, warn: {before: 2m, signal: SIGUSR1}", "", "1:72", "'USR1'"),
        ("count: 1", "{trigger: job-start, action: {name: signal}}", "2:", "has no 'signal'"),
        (
            "count: 1",
            "{trigger: start, action: {name: signal, signal: INT}}",
            "2:",
            "acts on the event's job",
        ),
        (
            "duration: 1h, warn: {before: 2m}",
            "{trigger: job-fail, name: md, action: {name: retry, with: {duration: 1m}}}",
            "2:",
            "comes 120 s before the time limit",
        ),
    ],
)
def test_bad_input_gives_one_error_with_its_place(
    fields: str, rule: str, place: str, what: str
) -> None:
    rules = ", ".join(filter(None, (START, rule)))
    with pytest.raises(FileErrors) as raised:
        load_text(GROUP % (fields, rules), discover(), file="e.yaml")
    (error,) = raised.value.errors
    assert str(error.where).startswith(f"e.yaml:{place}"), str(error)
    assert what in str(error)


def test_an_executor_that_cannot_signal_is_refused_with_one_error() -> None:
    record = ExecutorPlugin(
        name="q", summary="a queue", build=lambda options: FakeExecutor(), warn="q has no signals"
    )
    action = "{trigger: job-start, action: {name: signal, signal: INT}}"
    for fields, rule, what in (
        ("count: 1", action, "'signal' needs an executor that can signal; 'q' cannot"),
        ("duration: 1h, warn: {before: 2m}", START, "does not work with the executor q: q has no"),
    ):
        with pytest.raises(FileErrors) as raised:
            load_text(GROUP % (fields, f"{START}, {rule}"), discover(), executor=record)
        (error,) = raised.value.errors
        assert what in error.what
        assert error.hint
