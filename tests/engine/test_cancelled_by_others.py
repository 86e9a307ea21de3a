"""A cancel is wished only if the run asked for it. Any other cancel is a failure to handle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ensemble_testing import Story
from ensemble_testing.story import CLEARING

from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Cancel, Retry, Terminate
from ensemble_core.model.events import Requested, Resumed, StopRequested

HEAD = "jobs: [{name: sim, command: x, count: 3}]\nrules:\n"
START = "  - {trigger: start, action: {name: submit, label: sim}}\n"
LOG = "repetitions: 9, action: {name: log, message: '{job} {cancelled_by}'}"


def story(*rules: str, head: str = HEAD) -> Story:
    told = Story(head + START + "".join(f"  - {{{rule}}}\n" for rule in rules))
    told.start()
    return told


def reason(told: Story) -> str:
    ended = told.engine.state.ended
    assert ended is not None
    return ended.reason


def cancel(told: Story, *jobs: str, by: str = "") -> None:
    """Somebody cancels these jobs in the queue."""
    for job in jobs:
        more = {"by": by} if by else {}
        told.job(job, "exception", type="cancel", severity=0, note="", **more)
        if told.engine.state.table.records[job].started is not None:
            told.job(job, "finish", status=15)
        told.job(job, *CLEARING)


def stop(told: Story, then: str) -> None:
    told.tell(StopRequested(told.now, "stopped", 5, then))  # type: ignore[arg-type]


def resume(told: Story) -> None:
    told.tell(Resumed(told.now))


def reload(told: Story) -> None:
    """Continue from a snapshot, as a later controller does."""
    engine = load(dump(told.engine), told.engine.state.ensemble)
    assert engine is not None
    told.engine = engine


@pytest.mark.parametrize("running", [False, True])
def test_jobs_that_others_cancel_are_failures(running: bool) -> None:
    told = story()
    for job in ("sim.0", "sim.1", "sim.2"):
        if running:
            told.begin(job)
        cancel(told, job)
    assert told.exit_code == 1
    assert reason(told) == "3 jobs were cancelled by others and no rule handled them"
    assert told.metric("count.sim.cancelled") == 3
    assert told.metric("count.sim.failed") == 0
    report = told.engine.report()
    assert report.unhandled_failures == 3
    assert dict(report.groups[0].cancelled_by) == {"others": 3}


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (["root", "root", "root"], "3 jobs were cancelled by others (root)"),
        (["root", "ada", "root"], "3 jobs were cancelled by others (ada 1, root 2)"),
        (["root", "", "root"], "3 jobs were cancelled by others (root 2)"),
        (["run", "others", ""], "3 jobs were cancelled by others"),
    ],
)
def test_the_end_names_who_cancelled(users: list[str], said: str) -> None:
    told = story()
    for index, user in enumerate(users):
        cancel(told, f"sim.{index}", by=user)
    assert reason(told) == f"{said} and no rule handled them"


def test_failed_jobs_and_cancelled_ones_are_told_apart() -> None:
    told = story()
    told.play("sim.0", status=256)
    cancel(told, "sim.1")
    told.play("sim.2")
    assert told.exit_code == 1
    assert reason(told) == (
        "1 job failed and no rule handled it; 1 job was cancelled by others and no rule handled it"
    )


@pytest.mark.parametrize(
    "rule",
    [
        f"trigger: job-cancel, {LOG}",
        f"trigger: job-lost, {LOG}",
        f"trigger: job-exception, {LOG}",
        f"trigger: job-clean, when: cause == 'cancelled', {LOG}",
        f"trigger: job-clean, when: cancelled_by == 'others', {LOG}",
    ],
)
def test_rules_handle_them(rule: str) -> None:
    told = story(rule)
    cancel(told, "sim.0", "sim.1", "sim.2")
    assert (told.exit_code, reason(told)) == (0, "nothing more can happen")
    assert told.messages() == ["sim.0 others", "sim.1 others", "sim.2 others"]


@pytest.mark.parametrize(
    "rule",
    [
        f"trigger: job-fail, {LOG}",
        f"trigger: job-success, {LOG}",
        f"trigger: job-cancel, when: cancelled_by == 'ada', {LOG}",
        f"trigger: job-cancel, name: other, {LOG}",
        f"trigger: metric, name: count.sim.failed, when: '> 5', {LOG}",
    ],
)
def test_rules_that_do_not_match_do_not_handle_them(rule: str) -> None:
    told = story(
        rule, head="jobs: [{name: sim, command: x, count: 1}, {name: other, command: x}]\nrules:\n"
    )
    cancel(told, "sim.0")
    assert told.exit_code == 1


def test_a_rule_on_job_cancel_does_not_handle_failed_jobs() -> None:
    told = story(f"trigger: job-cancel, {LOG}")
    cancel(told, "sim.0", "sim.1")
    told.play("sim.2", status=256)
    assert reason(told) == "1 job failed and no rule handled it"


@pytest.mark.parametrize(("counter", "code"), [("cancelled", 0), ("lost", 0), ("failed", 1)])
def test_a_rule_may_tolerate_a_number_of_them(counter: str, code: int) -> None:
    told = story(
        f"trigger: metric, name: count.sim.{counter}, when: '> 3', action: {{name: terminate}}"
    )
    cancel(told, "sim.0", "sim.1", "sim.2")
    assert told.exit_code == code


def test_a_rule_on_their_number_does_not_tolerate_failed_jobs() -> None:
    told = story(
        "trigger: metric, name: count.sim.cancelled, when: '> 3', action: {name: terminate}"
    )
    cancel(told, "sim.0")
    told.play("sim.1")
    told.play("sim.2", status=256)
    assert reason(told) == "1 job failed and no rule handled it"


@pytest.mark.parametrize(
    ("retry", "again"),
    [
        ("{times: 1}", False),
        ("{times: 1, when: attempt == 0}", False),
        ("{times: 1, when: cause == 'cancelled'}", True),
        ('{times: 1, when: \'cause in ("node-failure", "cancelled")\'}', True),
        ("{times: 1, when: cause != 'exit'}", True),
        ("{times: 1, when: cancelled_by == 'others'}", True),
        ("{times: 1, when: cause == 'node-failure'}", False),
    ],
)
def test_retry_has_to_name_them(retry: str, again: bool) -> None:
    told = story(head=f"jobs: [{{name: sim, command: x, retry: {retry}}}]\nrules:\n")
    cancel(told, "sim.0")
    assert any(isinstance(one, Retry) for one in told.decisions) is again
    if again:
        told.play("sim.0-1")
    assert told.exit_code == (0 if again else 1)


def test_a_parameter_called_cause_does_not_name_them() -> None:
    told = story(
        head="jobs: [{name: sim, command: 'x {cause}', parameters: {cause: [cancelled]}, "
        "retry: {times: 1, when: cause == 'cancelled'}}]\nrules:\n"
    )
    cancel(told, "sim.0")
    assert told.exit_code == 1


def test_a_rule_may_retry_them() -> None:
    told = story("trigger: job-cancel, each: job, action: {name: retry}")
    cancel(told, "sim.0", "sim.1", "sim.2")
    for index in range(3):
        told.play(f"sim.{index}-1")
    assert told.exit_code == 0


def test_a_cancelled_retry_is_a_failure() -> None:
    told = story(head="jobs: [{name: sim, command: x, retry: {times: 1}}]\nrules:\n")
    told.play("sim.0", status=256)
    cancel(told, "sim.0-1")
    assert reason(told) == "1 job was cancelled by others and no rule handled it"


# -- cancels that the run asked for ------------------------------------------------------------------


def asked_by_rule(told: Story) -> None:
    told.play("sim.2")


def asked_by_command(told: Story) -> None:
    told.tell(Requested(told.now, "ada", {"name": "cancel", "label": "sim"}))


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("ask", [asked_by_rule, asked_by_command])
def test_cancels_that_the_run_asked_for_are_no_failures(
    ask: Callable[[Story], None], running: bool
) -> None:
    told = story(
        "trigger: job-success, action: {name: cancel, label: sim}",
        f"trigger: job-cancel, {LOG}",
    )
    for job in ("sim.0", "sim.1") if running else ():
        told.begin(job)
    ask(told)
    reload(told)  # a later controller knows what was asked for, too
    for job in [*told.engine.state.table.records]:
        cancel(told, job, by="ada")  # the queue's word: the run's owner
    assert told.exit_code == 0
    assert {one.split()[1] for one in told.messages()} == {"run"}
    assert told.engine.report().unhandled_failures == 0


def test_a_cancel_that_the_queue_answers_after_a_resume_was_asked_for() -> None:
    told = story("trigger: job-start, action: {name: cancel, label: sim}")
    told.begin("sim.0")
    stop(told, "keep")
    reload(told)
    resume(told)
    assert any(isinstance(one, Cancel) and "sim.0" in one.jobs for one in told.decisions[-2:])
    cancel(told, "sim.0", "sim.1", "sim.2")
    assert told.exit_code == 0


def test_a_cancel_by_others_while_the_run_was_stopped_is_a_failure() -> None:
    told = story()
    stop(told, "keep")
    cancel(told, "sim.0")
    resume(told)
    told.play("sim.1")
    told.play("sim.2")
    assert reason(told) == "1 job was cancelled by others and no rule handled it"


def test_jobs_that_a_stop_cancelled_are_submitted_again() -> None:
    told = story()
    told.begin("sim.0")
    stop(told, "cancel")
    cancel(told, "sim.0", "sim.1", "sim.2")
    resume(told)
    assert told.metric("count.sim.cancelled") == 0
    for index in range(3):
        told.play(f"sim.{index}")
    assert told.exit_code == 0


def test_an_end_after_a_stop_has_asked_for_its_cancels() -> None:
    told = story()
    told.begin("sim.0")
    stop(told, "cancel")
    cancel(told, "sim.0", "sim.1")
    told.tell(StopRequested(told.now, "cancelled by ada", 130, "end"))
    cancel(told, "sim.2")
    report = told.engine.report()
    assert (told.exit_code, report.groups[0].cancelled) == (130, 3)
    assert dict(report.groups[0].cancelled_by) == {}


def test_the_end_of_a_run_has_asked_for_its_cancels() -> None:
    told = story("trigger: job-success, action: {name: terminate, exit_code: 0}")
    told.begin("sim.1")
    told.play("sim.0")
    (end,) = [one for one in told.decisions if isinstance(one, Terminate)]
    assert set(end.cancel) == {"sim.1", "sim.2"}
    cancel(told, "sim.1", "sim.2")
    report = told.engine.report()
    assert (told.exit_code, report.unhandled_failures) == (0, 0)
    assert dict(report.groups[0].cancelled_by) == {}


@pytest.mark.parametrize("status", [0, 256])
def test_a_job_that_ends_before_its_cancel_arrives_keeps_its_outcome(status: int) -> None:
    told = story("trigger: job-start, action: {name: cancel, label: sim}")
    told.begin("sim.0")
    told.end("sim.0", status=status)
    cancel(told, "sim.1", "sim.2")
    assert told.exit_code == (1 if status else 0)


def test_others_that_cancel_while_the_runs_cancel_is_on_its_way_cause_no_failure() -> None:
    told = story("trigger: job-start, action: {name: cancel, label: sim}")
    told.begin("sim.0")
    cancel(told, "sim.0", "sim.1", "sim.2", by="root")
    assert told.exit_code == 0


def test_a_cancel_by_others_stays_one_if_the_run_asks_for_it_too_late() -> None:
    told = story()
    told.begin("sim.0")
    told.job("sim.0", "exception", type="cancel", severity=0, note="", by="root")
    asked_by_command(told)
    told.job("sim.0", "finish", status=15)
    told.job("sim.0", *CLEARING)
    cancel(told, "sim.1", "sim.2")
    assert reason(told) == "1 job was cancelled by others (root) and no rule handled it"


def test_a_jobs_first_exception_decides() -> None:
    told = story()
    told.begin("sim.0")
    told.job("sim.0", "exception", type="timeout", severity=0, note="")
    told.job("sim.0", "exception", type="cancel", severity=0, note="")
    told.job("sim.0", "finish", status=15)
    told.job("sim.0", *CLEARING)
    told.play("sim.1")
    told.play("sim.2")
    assert reason(told) == "1 job failed and no rule handled it"


def test_each_counts_them() -> None:
    told = story(
        "trigger: job-cancel, name: sim, each: [T], when: count.cancelled == 2, "
        "action: {name: log, message: 'T={T}'}",
        head="jobs: [{name: sim, command: 'x {T}', parameters: {T: [1, 2]}, count: 2}]\nrules:\n",
    )
    cancel(told, "sim.0", "sim.1")
    for job in [*told.engine.state.table.records]:
        told.play(job)
    assert len(told.messages()) == 1


def test_a_resumed_run_tells_of_earlier_cancels() -> None:
    told = story()
    cancel(told, "sim.0", by="root")
    reload(told)
    told.play("sim.1")
    told.play("sim.2")
    assert reason(told) == "1 job was cancelled by others (root) and no rule handled it"
