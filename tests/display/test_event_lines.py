"""Output of a run: event lines, JSON, and the summary."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.cli.error_format import format_error
from ensemble_core.cli.json_output import to_json
from ensemble_core.display.event_lines import FAILURES_SHOWN, Narrator, OutputLine, describe_status
from ensemble_core.display.summary import (
    cost_text,
    group_table,
    progress_text,
    report_lines,
    rule_lines,
    summary,
)
from ensemble_core.display.text_style import TextStyle, format_duration, printable, style_of
from ensemble_core.engine.report import GroupReport, Report, RuleReport
from ensemble_core.errors import EnsembleError, Location
from ensemble_core.model.decisions import (
    AddRule,
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Fired,
    Log,
    Resize,
    Retry,
    SetGroup,
    Submit,
    Terminate,
)
from ensemble_core.model.ensemble import Binder, Ensemble, Limits
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    JobEvent,
    Problem,
    ResizeOutcome,
    TimerElapsed,
)
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import BoundRule, Trigger

PLAIN = TextStyle(unicode=True)
SLEEP = JobGroup(name="sleep", command=("sleep", "10"), text="sleep 10", count=5)
MELT = JobGroup(name="melt", command=("lmp", "{T}"), text="lmp {T}", parameters={"T": (0.5, 1.0)})


def ensemble(*groups: JobGroup, limits: Limits | None = None) -> Ensemble:
    def refuse(*args: Any) -> Any:
        raise AssertionError("nothing is bound here")

    return Ensemble(
        name="study",
        groups={group.name: group for group in groups or (SLEEP,)},
        rules=(
            BoundRule(id="again", trigger=Trigger(events=("start",)), actions=(), repetitions=3),
        ),
        statistics={},
        binder=Binder(rule=refuse, action=refuse, group=refuse),
        limits=limits or Limits(),
    )


def told(*items: Event | Decision, narrator: Narrator | None = None) -> list[OutputLine]:
    teller = narrator or Narrator(ensemble(), PLAIN)
    return [line for item in items for line in teller.tell(item)]


def texts(*items: Event | Decision, narrator: Narrator | None = None) -> list[str]:
    return [line.text for line in told(*items, narrator=narrator)]


def submit(group: JobGroup = SLEEP, firing: int = 1) -> Submit:
    return Submit(rule="r", firing=firing, group=group.name, jobs=tuple(group.jobs(0)))


def fired(**fields: Any) -> Fired:
    return Fired(**{"rule": "r", "firing": 1, "label": "start", **fields})


def job(name: str, which: str = "sleep.0", at: float = 1.0, **context: Any) -> JobEvent:
    return JobEvent(at, which, name, context)


def test_start_rule_is_printed_as_in_ensemble_python() -> None:
    assert texts(fired(), submit()) == [
        " => trigger start",
        "   submit sleep (name:sleep),(command:sleep 10),(count:5),(nodes:1)",
    ]


def test_on_a_terminal_triggers_are_blue_actions_cyan_and_fields_purple() -> None:
    teller = Narrator(ensemble(), TextStyle(color=True, unicode=True))
    assert texts(fired(), submit(), narrator=teller) == [
        "\x1b[94m => trigger start\x1b[0m",
        (
            "\x1b[96m   submit sleep \x1b[0m"
            "\x1b[95m(name:sleep),(command:sleep 10),(count:5),(nodes:1)\x1b[0m"
        ),
    ]


def test_message_of_the_executor_is_no_log_of_a_rule() -> None:
    said = Problem(1.0, "pilot 1 ready after 42 s", "info")
    assert texts(said, Log(message=said.message)) == ["   pilot 1 ready after 42 s"]


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (Cancel(jobs=("lammps.3",)), "   cancel lammps.3"),
        (
            Cancel(jobs=tuple(f"a.{number}" for number in range(12))),
            "   cancel a.0, a.1, a.2, … (12 jobs)",
        ),
        (Resize(request="1", delta=2), "   grow 2"),
        (Resize(request="1", delta=-1), "   shrink 1"),
        (
            SetGroup(group="sleep", fields={"nodes": 2, "count": 1}),
            "   set sleep: nodes=2, count=1",
        ),
        (
            # Expressions may give floats.
            SetGroup(group="sleep", fields={"tasks": 2.0, "duration": 0.5}),
            "   set sleep: tasks=2, duration=0.5",
        ),
        (EnableRule(rules=("a", "b")), "   enable a, b"),
        (DisableRule(rules=("a",)), "   disable a"),
        (Call(call="1", kind="custom", name="echo_again"), "   custom echo_again"),
        (Call(call="1", kind="action", name="mail", options={"to": "me"}), "   mail to=me"),
        (
            Call(
                call="1",
                kind="action",
                name="check",
                options={
                    "log": "md.log",
                    "completed": {"name": "log", "message": "{job}"},
                    "otherwise": [{"name": "log", "message": "{job}"}, {"name": "cancel"}],
                },
            ),
            "   check log=md.log, completed=log, otherwise=[log, cancel]",
        ),
        (AddRule(id="x", spec={"trigger": "job-fail", "name": "a"}), "   add rule x: job-fail a"),
        (Log(message="half way"), "   log half way"),
        (Terminate(firing=1), "   terminate ensemble session"),
        (
            Terminate(firing=1, exit_code=2, cancel=("a.0",)),
            "   terminate ensemble session  (exit code 2, cancelling 1 job)",
        ),
    ],
)
def test_each_action_prints_a_line(decision: Decision, line: str) -> None:
    assert told(decision) == [OutputLine(line)]


def test_natural_end_of_the_run_prints_no_line() -> None:
    assert told(Terminate(natural=True), Terminate(exit_code=130)) == []


def test_repeated_firing_shows_its_number_job_and_value() -> None:
    again = fired(rule="again", count=2, job="sleep.3", value=0.25)
    assert texts(again) == [" => trigger start  (2 of 3, value 0.25, sleep.3)"]


def test_submit_shows_non_default_fields_and_the_sweep() -> None:
    group = replace(MELT, tasks=4)
    (line,) = texts(submit(group), narrator=Narrator(ensemble(group), PLAIN))
    assert line.endswith("(command:lmp {T}),(count:2),(nodes:1),(tasks:4),(T:0.5, 1.0)")


def test_sweep_changed_by_the_rule_is_shown() -> None:
    finer = replace(MELT, parameters={"T": (0.7, 0.8, 0.9)})
    other = replace(finer, command=("gmx", "{T}"), text="gmx {T}")
    lines = texts(submit(finer), submit(other), narrator=Narrator(ensemble(MELT), PLAIN))
    assert lines[0].endswith("(command:lmp {T}),(count:3),(nodes:1),(T:0.7, 0.8, 0.9)")
    assert "(command:gmx 0.7)" in lines[1]


def test_calculated_number_is_shown_with_six_digits() -> None:
    group = replace(MELT, parameters={"T": (0.3**0.5, 1.25)})
    (line,) = texts(submit(group), narrator=Narrator(ensemble(group), PLAIN))
    assert line.endswith("(T:0.547723, 1.25)")


def test_rate_limited_sweep_shows_all_its_values_at_once() -> None:
    teller = Narrator(ensemble(MELT, limits=Limits(submits_per_second=1)), PLAIN)
    first = Submit(firing=1, group="melt", jobs=tuple(MELT.jobs(0))[:1])
    assert texts(fired(), first, narrator=teller)[1].endswith("(nodes:1),(T:0.5, 1.0)")


def test_rules_with_an_id_are_shown_with_it() -> None:
    named = {"id": "retry", "trigger": "job-fail", "repetitions": 2}
    lines = texts(
        AddRule(id="retry", spec=named),
        fired(rule="retry", label="job-fail", job="a.0"),
        fired(rule="rule-1", label="job-fail", job="a.0"),
    )
    assert lines[1:] == [
        " => trigger job-fail  (retry, 1 of 2, a.0)",
        " => trigger job-fail  (a.0)",
    ]


def test_command_changed_by_the_rule_is_shown() -> None:
    other = JobGroup(name="sleep", command=("sleep", "1 2"), text="sleep 10")
    (line,) = texts(fired(), submit(other))[1:]
    assert "(command:sleep '1 2')" in line


def test_rest_of_a_rate_limited_submit_is_not_printed() -> None:
    teller = Narrator(ensemble(limits=Limits(submits_per_second=1)), PLAIN)
    jobs = tuple(SLEEP.jobs(0))
    first = Submit(firing=1, group="sleep", jobs=jobs[:2])
    assert "(count:5, 2 now)" in texts(fired(), first, narrator=teller)[1]
    later = Submit(firing=1, group="sleep", jobs=jobs[2:])
    assert texts(TimerElapsed(2.0, "pace"), later, narrator=teller) == []
    assert texts(fired(firing=2), submit(firing=2), narrator=teller)[1:] != []


def test_decisions_of_a_function_are_shown_below_a_heading() -> None:
    lines = texts(
        fired(firing=1),
        Call(firing=1, call="c", kind="custom", name="decide"),
        fired(firing=2, label="job-fail"),
        CallReturned(2.0, "c", ({"action": {"name": "submit", "label": "sleep"}},)),
        submit(firing=1),
        Cancel(firing=1, jobs=("sleep.0",)),
    )
    assert lines[2:4] == [" => trigger job-fail", " => decide returned"]
    assert lines[4].startswith("   submit sleep ")
    assert lines[5] == "   cancel sleep.0"
    assert len(lines) == 6


def test_failed_job_is_printed_on_stderr_with_the_last_line_of_its_output(tmp_path: Path) -> None:
    kept = tmp_path / "sleep.0.err"
    kept.write_text("Traceback\n  ...\nFileNotFoundError: in.melt\n\n")
    lines = told(submit(), job("start", stderr=str(kept)), job("finish", status=3 << 8))
    assert lines[-1] == OutputLine(
        f"   failed sleep.0: exit code 3: FileNotFoundError: in.melt  ({kept})", error=True
    )


def test_job_with_a_fatal_exception_is_printed_once() -> None:
    note = "sleeep: not found"
    exception = job("exception", type="exec", severity=0, note=note)
    lines = told(submit(), exception, job("finish", status=127 << 8), job("clean"))[1:]
    assert lines == [OutputLine(f"   failed sleep.0: submit: {note}", error=True)]


def test_failure_is_printed_with_the_executors_cause() -> None:
    lines = texts(submit(), job("finish", status=9, cause="memory"))
    assert lines[-1] == "   failed sleep.0: memory: killed by SIGKILL (exit code 137)"
    broken = {"type": "exec", "severity": 0, "note": "node failure on n3", "cause": "node-failure"}
    lines = texts(submit(), job("exception", **broken))
    assert lines[-1] == "   failed sleep.0: node-failure: node failure on n3"


def test_empty_output_file_is_not_mentioned(tmp_path: Path) -> None:
    kept = tmp_path / "sleep.0.err"
    kept.write_text("")
    late = job("exception", type="timeout", severity=0, note="too late")
    lines = told(submit(), job("start", stderr=str(kept)), late)
    assert lines[-1] == OutputLine("   failed sleep.0: timeout: too late", error=True)
    kept.write_text("step 5\n")
    lines = told(submit(), job("start", stderr=str(kept)), late)
    assert lines[-1] == OutputLine(f"   failed sleep.0: timeout: too late  ({kept})", error=True)


def test_success_cancellation_and_warnings_are_not_failures() -> None:
    lines = told(
        submit(),
        job("finish", status=0),
        Cancel(jobs=("sleep.1",), rule="hot", firing=1),
        job("exception", "sleep.1", type="cancel", severity=0),
        job("finish", "sleep.1", status=15),
        job("exception", "sleep.2", type="note", severity=5),
        JobEvent(1.0, "f123", "finish", {"status": 256}, ours=False),
    )
    assert [line.text.split()[0] for line in lines] == ["submit", "cancel"]


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"note": "by hand"}, "cancelled by others: by hand"),
        ({"by": "root"}, "cancelled by root"),
    ],
)
def test_a_cancel_that_the_run_did_not_ask_for_is_a_failure(
    context: dict[str, Any], said: str
) -> None:
    cancelled = job("exception", type="cancel", severity=0, **context)
    lines = told(submit(), cancelled, job("finish", status=15))
    assert lines[-1] == OutputLine(f"   failed sleep.0: {said}", error=True)
    teller = Narrator(ensemble(), PLAIN)
    teller.know(Job(id="sleep.0", group="sleep", index=0, command=("true",)), None, asked=True)
    assert list(teller.tell(cancelled)) == []


def test_interrupted_jobs_are_printed_and_collapsed_per_group() -> None:
    lines = texts(
        submit(),
        job("start"),
        job("suspend", note="gang scheduling"),
        job("unsuspend"),
        job("requeue"),
    )
    assert lines[-3:] == [
        "   suspended sleep.0 (by the queue): gang scheduling",
        "   continued sleep.0 (by the queue)",
        "   requeued sleep.0 (by the queue)",
    ]
    lines = texts(submit(), *[job("suspend", f"sleep.{number}") for number in range(100)])
    assert len(lines) < 30
    assert lines[-1] == "   … more interruptions of sleep are not shown"


def test_suspended_jobs_have_a_column_if_there_are_any() -> None:
    groups = [GroupReport(name="a", submitted=3, running=1, suspended=2)]
    head, row = (line.split() for line in group_table(groups, PLAIN))
    assert row[head.index("suspended")] == "2"
    assert "suspended" not in group_table([replace(groups[0], suspended=0)], PLAIN)[0]


def test_many_failures_are_collapsed_per_group() -> None:
    teller = Narrator(ensemble(), PLAIN)
    lines = [
        line
        for number in range(50)
        for line in told(job("finish", f"sleep.{number}", status=256), narrator=teller)
    ]
    assert len(lines) == FAILURES_SHOWN + 1
    assert lines[-1].text == "   … more failures of sleep are counted in the summary"
    assert len(told(job("finish", "other.0", status=256), narrator=teller)) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3 << 8, "exit code 3"),
        (9, "killed by SIGKILL (exit code 137)"),
        (11 | 128, "killed by SIGSEGV (exit code 139, core dumped)"),
        ("odd", "failed"),
    ],
)
def test_wait_status_is_described_as_by_a_shell(status: object, words: str) -> None:
    assert describe_status(status) == words


def test_error_is_one_line_and_debug_adds_the_traceback() -> None:
    raised = (
        Call(call="1", kind="custom", name="decide"),
        CallFailed(2.0, "1", "KeyError: 'x'", "Traceback:\n  line 3\nKeyError: 'x'"),
        Log(rule="rule-1", message="rule-1: decide raised KeyError: 'x'", level="error"),
        Log(rule="rule-1", message="slow", level="warning"),
    )
    lines = told(*raised)[1:]
    assert all(line.error for line in lines)
    assert lines[0].text == "error: rule-1: decide raised KeyError: 'x'"
    assert lines[1].text == "warning: slow (rule rule-1)"
    debugged = texts(*raised, narrator=Narrator(ensemble(), PLAIN, debug=True))
    assert "   decide raised:\n  Traceback:\n    line 3\n  KeyError: 'x'" in debugged


def test_denied_resize_is_a_warning_and_a_granted_one_a_line() -> None:
    teller = Narrator(ensemble(), PLAIN)
    asked = Resize(request="7", delta=2)
    lines = told(
        asked,
        ResizeOutcome(1.0, "7", "undelivered", reason="no route"),
        ResizeOutcome(2.0, "7", "denied", reason="at the limit"),
        narrator=teller,
    )[1:]
    assert [line.text for line in lines] == [
        "warning: grow 2 undelivered: no route; the request will be repeated",
        "warning: grow 2 denied: at the limit",
    ]
    granted = ResizeOutcome(3.0, "8", "granted", size=4)
    assert told(Resize(request="8", delta=-1), granted)[1] == OutputLine(
        "   shrink 1 granted: size 4"
    )


def test_debug_prints_every_event_with_its_time_since_the_start() -> None:
    teller = Narrator(ensemble(), PLAIN, debug=True)
    lines = texts(
        TimerElapsed(100.0, "heartbeat"),
        job("start", at=101.5, workdir=MappingProxyType({"a": 1}), note=""),
        narrator=teller,
    )
    assert lines == [
        "[     0.000] 💗 HEARTBEAT",
        '[     1.500] job start sleep.0 {"workdir": {"a": 1}}',
    ]
    ascii_only = Narrator(ensemble(), TextStyle(), debug=True)
    assert texts(TimerElapsed(1.0, "heartbeat"), narrator=ascii_only)[0].isascii()


def test_control_characters_are_escaped() -> None:
    lines = texts(
        Log(message="\x1b[2Jgone\r\u202e"),
        job("exception", type="exec", severity=0, note="\x07\x1b]0;title\x07"),
    )
    assert not any(character in line for line in lines for character in "\x1b\x07\r\u202e")
    assert printable("plain é 日本") == "plain é 日本"


def test_finished_jobs_are_forgotten() -> None:
    teller = Narrator(ensemble(), PLAIN)
    for round_ in range(100):
        told(submit(firing=round_), narrator=teller)
        for number in range(5):
            told(job("finish", f"sleep.{number}", status=0), narrator=teller)
            told(job("clean", f"sleep.{number}"), narrator=teller)
    assert not teller._active


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "color"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_color_depends_on_the_terminal_and_the_environment(
    environ: Mapping[str, str], color: bool
) -> None:
    assert style_of(Terminal(), environ).color is color


def test_a_pipe_has_no_color_unless_forced() -> None:
    assert style_of(io.StringIO(), {"TERM": "xterm"}).color is False
    assert style_of(io.StringIO(), {"FORCE_COLOR": "1"}).color is True


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
        (0.0, "0.00 s"),
        (9.994, "9.99 s"),
        (9.999, "10.0 s"),
        (59.96, "1m 00s"),
        (99.96, "1m 40s"),
        (119.7, "2m 00s"),
        (3599.9, "1h 00m"),
        (90000, "1d 01h"),
    ],
)
def test_durations_are_readable(seconds: float | None, words: str) -> None:
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, {"a": [-math.inf]}, {1, 2}, MappingProxyType({"x": (1, 2)}), b"x", 1j],
)
def test_every_json_line_is_valid_json_on_one_line(value: object) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = to_json({"type": "x", "value": value, "text": "a\nb\u2028"})
    assert len(line.splitlines()) == 1
    assert json.loads(line, parse_constant=refuse)["text"] == "a\nb\u2028"


def test_json_of_a_recursive_structure_terminates() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    assert json.loads(to_json({"type": "x", "loop": loop}))["type"] == "x"


GROUPS = (
    GroupReport(name="sleep", submitted=5, success=4, failed=1, mean_duration=1.25),
    GroupReport(name="a-group-with-a-very-long-name-indeed", submitted=70, waiting=60, running=10),
)


@pytest.mark.parametrize("width", [None, 200, 100, 79, 60, 40, 30, 20, 10])
def test_group_table_fits_and_keeps_the_most_important_columns(width: int | None) -> None:
    lines = group_table(GROUPS, PLAIN, width, GROUPS)
    assert len(lines) == 4
    if width is not None:
        assert max(map(len, lines)) <= width
    if width is None or width >= 30:
        assert lines[1].split()[0].startswith("sleep"[:5])
        assert "60" in lines[2]
        assert lines[3].split()[0] == "all"


def test_rules_that_never_fired_have_a_reason() -> None:
    rules = [
        RuleReport(id="a", label="start", fired=2, state="fired", triggered=2),
        RuleReport(id="b", label="job-fail", state="never triggered"),
        RuleReport(
            id="c", label="mean.x", triggered=7, when="> 5", last_value=3.2, state="condition false"
        ),
        RuleReport(
            id="d", label="job-x", triggered=1, last_seen="exit_code=2", state="condition false"
        ),
        RuleReport(id="e", label="job-y", enabled=False, state="disabled"),
        RuleReport(id="g", label="job-w", state="cut"),
        RuleReport(id="h", label="n", triggered=2, when="4", last_value=2, state="condition false"),
    ]
    text = "\n".join(rule_lines(rules, PLAIN))
    assert "fired 2  a  start" in text
    assert "never triggered: it saw no matching event" in text
    assert "triggered 7 times, but '> 5' was false; the last value was 3.2" in text
    assert "triggered 1 time, but its condition was false; it last saw exit_code=2" in text
    assert "e  job-y     disabled" in text
    assert "triggered 2 times, but the value was never 4; the last value was 2" in text
    assert "chain of firings" in text
    assert len(text.splitlines()) == len(rules)


@pytest.mark.parametrize(
    ("triggered", "refused", "when", "said"),
    [
        (42, 40, "tol > 1", "40 times, and 'tol > 1' was false twice; it last saw tol=0.5"),
        (42, 42, "tol > 1", "but its trigger did not match"),
        (2, 2, "", "triggered 2 times, but its trigger did not match"),
        (3, 0, "tol > 1", "triggered 3 times, but 'tol > 1' was false; it last saw tol=0.5"),
    ],
)
def test_reason_distinguishes_trigger_mismatch_from_false_condition(
    triggered: int, refused: int, when: str, said: str
) -> None:
    seen = "tol=0.5" if triggered > refused else ""
    rule = RuleReport(
        id="a", label="b", triggered=triggered, refused=refused, when=when, last_seen=seen,
        state="condition false",
    )  # fmt: skip
    (line,) = rule_lines([rule], PLAIN)
    assert line.endswith(said)


def test_events_rejected_by_a_triggers_match_are_counted() -> None:
    story = Story("""
jobs: [{name: sim, command: sim, observe: {json-lines: {fields: [tol]}}}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: observed, name: sim, when: tol > 1, action: {name: log, message: high}}
""")
    state = story.engine.state.rules.states["rule-2"]
    trigger = replace(state.rule.trigger, match=lambda event, fields: fields["tol"] > 0.1)
    state.rule = replace(state.rule, trigger=trigger)
    story.start()
    story.begin("sim.0")
    for tol in (0.0, 0.05, 0.5):
        story.observe("sim.0", tol=tol, observer="json-lines")
    rule = story.engine.report().rules[1]
    assert (rule.triggered, rule.refused, rule.last_seen) == (3, 2, "tol=0.5")


def test_reasons_get_separate_lines_on_a_narrow_terminal() -> None:
    rules = [RuleReport(id="rule-1", label="job-fail (sleep)", state="never triggered")]
    lines = "\n".join(rule_lines(rules, PLAIN, 40)).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40


def test_causes_of_failures_are_shown_unless_all_are_exit() -> None:
    causes = {"exit": 1, "timeout": 3, "memory": 1}
    groups = (
        GroupReport(name="sim", submitted=5, failed=5, causes=causes),
        GroupReport(name="fit", submitted=5, failed=5, causes={"exit": 5}),
    )
    lines = report_lines(Report(groups=groups), PLAIN)
    assert lines[-1] == " failed of sim: 3 by timeout, 1 by exit, 1 by memory"


def test_summary_ends_with_the_exit_code_and_its_reason() -> None:
    lines = summary(
        Report(groups=GROUPS),
        name="study",
        reason="1 job failed and no rule concerns itself with failure",
        exit_code=1,
        seconds=75,
        look=PLAIN,
        kept="/runs/x",
    )
    assert lines[1] == "study: ended after 1m 15s"
    assert lines[-2] == " output of jobs: /runs/x"
    assert lines[-1] == " exit code 1: 1 job failed and no rule concerns itself with failure"


def test_error_shows_its_line_with_a_caret_below_the_column(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("jobs:\n\t- name: é\x1b\n")
    error = EnsembleError("odd", where=Location(str(file), 2, 10), hint="mend\nit", cause="why")
    assert format_error(error, PLAIN).splitlines() == [
        f"{file}:2:10: odd",
        "  2 |  - name: é\\x1b",
        "    |          ^",
        "  because: why",
        "  hint: mend",
        "        it",
    ]


def test_long_line_is_shown_around_its_column(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("x" * 5000 + "!" + "y" * 5000)
    shown = format_error(
        EnsembleError("odd", where=Location(str(file), 1, 5001)), PLAIN
    ).splitlines()
    assert max(map(len, shown[1:])) < 120
    assert shown[1][shown[2].index("^")] == "!"


@pytest.mark.parametrize("place", [Location("nowhere.yaml", 3, 1), Location("--set a=b"), None])
def test_error_without_a_readable_line_is_shown_without_it(place: Location | None) -> None:
    assert "|" not in format_error(EnsembleError("odd", where=place), PLAIN)


# -- changes and times ---------------------------------------------------------------------------


def test_repeated_submit_shows_only_changes() -> None:
    group = JobGroup(
        name="sim",
        command=("sim", "{T}", "{U}"),
        text="sim {T} {U}",
        parameters={"T": (1, 2), "U": (5,)},
    )
    hotter = replace(group, parameters={"T": (3,), "U": (5,)}, duration=60.0)
    lines = texts(
        *(submit(group), submit(group), submit(hotter), submit(group)),
        narrator=Narrator(ensemble(group), PLAIN),
    )
    assert lines == [
        "   submit sim (name:sim),(command:sim {T} {U}),(count:2),(nodes:1),(T:1, 2),(U:5)",
        "   submit sim (count:2)",
        "   submit sim (count:1),(duration:60),(T:3)",
        "   submit sim (count:2),(T:1, 2),(duration:-)",
    ]


def test_more_replicas_and_retries_do_not_repeat_the_command() -> None:
    group = JobGroup(
        name="sim",
        command=("sim", "{replica}", "{attempt}"),
        text="sim {replica} {attempt}",
        replicated=True,
    )
    more = Submit(group="sim", jobs=(group.job(1, {}, replica=1), group.job(2, {}, replica=2)))
    again = Submit(group="sim", jobs=(group.job(2, {}, replica=2, attempt=1),))
    lines = texts(submit(group), more, again, narrator=Narrator(ensemble(group), PLAIN))
    assert lines == [
        "   submit sim (name:sim),(command:sim {replica} {attempt}),(count:1),(nodes:1)",
        "   submit sim (count:2)",
        "   retry sim.2 (attempt 2)",
    ]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (("finish", {"status": 3 << 8}), "exit 3"),
        (("finish", {"status": 9}), "SIGKILL (exit code 137)"),
        (("finish", {"status": 9, "cause": "memory"}), "memory"),
        (("exception", {"type": "timeout", "severity": 0}), "timeout"),
    ],
)
@pytest.mark.parametrize("by_rule", [True, False], ids=["by a rule", "by the group's retry"])
def test_retry_is_shown_with_its_attempt_and_the_last_failure(
    end: tuple[str, dict[str, Any]], why: str, by_rule: bool
) -> None:
    group = JobGroup(name="ising", command=("ising", "{T}"), text="ising {T}", parameters={"T": 2})
    group = replace(group, count=8, parameters={"T": (1, 2)})
    (first,) = (each for each in group.jobs(0) if each.index == 7)
    again = group.job(7, first.parameters, first.replica, 1)
    nodes = replace(group, nodes=4).job(7, first.parameters, first.replica, 2)
    name, context = end
    items: list[Event | Decision] = [submit(group)]
    for attempt, following in ((first, again), (again, nodes)):
        decided: list[Event | Decision] = [Retry(job=attempt.id), job("clean", attempt.id)]
        items += [
            job(name, attempt.id, **context),
            *(decided if by_rule else reversed(decided)),
            Submit(group="ising", jobs=(following,)),
        ]
    lines = texts(*items, submit(group), narrator=Narrator(ensemble(group), PLAIN))
    assert [line for line in lines if "failed" not in line][1:] == [
        f"   retry ising.7 (attempt 2, {why}) (T:1)",
        f"   retry ising.7 (attempt 3, {why}) (nodes:4),(T:1)",
        "   submit ising (count:16)",
    ]


@pytest.fixture
def greenwich() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("greenwich")
def test_time_of_day_is_shown_after_a_minute() -> None:
    noon = 43200.0
    teller = Narrator(ensemble(), PLAIN)
    lines = [
        *texts(job("start", at=noon), fired(rule="a"), narrator=teller),
        *texts(job("start", at=noon + 59), fired(rule="b"), narrator=teller),
        *texts(job("start", at=noon + 61.5), fired(rule="c"), fired(rule="d"), narrator=teller),
        *texts(job("start", at=noon + 86400), fired(rule="e", value=1), narrator=teller),
    ]
    assert lines == [
        *[" => trigger start"] * 2,
        " => trigger start  (12:01:01)",
        " => trigger start",
        " => trigger start  (value 1, 2 Jan 12:00:00)",
    ]


# -- progress and costs --------------------------------------------------------------------------

PROGRESS = """
jobs:
  - {name: a, command: x, count: 4, tasks: 2}
  - {name: b, command: x}
rules:
  - {trigger: start, action: {name: submit, label: a}}
"""


def test_progress_shows_done_and_planned_jobs_and_the_remaining_time() -> None:
    told = Story(PROGRESS)
    assert progress_text(told.engine.report().progress) == "no jobs yet"
    told.start()
    told.begin("a.0")
    assert progress_text(told.engine.report().progress) == "jobs 0 of 4"
    told.end("a.0", duration=100)
    for each in ("a.1", "a.2"):
        told.begin(each)
    told.wait(40)
    told.job("a.1", "memo")
    # Three jobs of 100 s, two at a time; the first two have run for 40 s.
    assert told.engine.report().progress.to_go == (300 - 80) / 2
    assert progress_text(told.engine.report().progress) == "jobs 1 of 4, about 1m 50s to go"
    told.end("a.1", duration=60)
    told.end("a.2", duration=0)
    told.play("a.3", duration=100)
    assert progress_text(told.engine.report().progress) == "jobs 4 of 4"


def test_progress_without_total_if_rules_may_add_jobs() -> None:
    rule = "  - {trigger: job-fail, action: {name: submit, label: b}}\n"
    told = Story(PROGRESS + rule)
    told.start()
    told.play("a.0", duration=100)
    told.begin("a.1")
    assert progress_text(told.engine.report().progress) == "jobs 1 of 4 so far"
    told.end("a.1", status=256)  # the rule has fired now
    assert progress_text(told.engine.report().progress) == "jobs 2 of 5"


def test_retries_do_not_make_the_total_unknown() -> None:
    told = Story(PROGRESS + "  - {trigger: job-fail, each: job, action: {name: retry}}\n")
    told.start()
    told.play("a.0", status=256)
    assert progress_text(told.engine.report().progress) == "jobs 0 of 4"


def test_cost_is_shown_with_its_limit_and_held_jobs() -> None:
    told = Story(
        "limits: {core_hours: 2}" + PROGRESS.replace("tasks: 2", "tasks: 2, duration: 30m")
    )
    told.start()
    told.begin("a.0")
    told.wait(360)
    told.job("a.0", "memo")
    assert cost_text(told.engine.report().progress) == "core-hours 0.2 + 1.8 of 2, 2 held"
    free = Story(PROGRESS)
    free.start()
    assert cost_text(free.engine.report().progress) == ""
    free.play("a.0", duration=3600)
    assert cost_text(free.engine.report().progress) == "core-hours 2"
