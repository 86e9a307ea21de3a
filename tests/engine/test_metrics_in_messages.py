"""Messages contain the values of metrics, and hints about them are forms that work."""

from __future__ import annotations

import re

import pytest
from ensemble_testing import Story

from ensemble_core import FileErrors
from ensemble_core.model.decisions import Log

HEAD = """
jobs:
  - {name: sim, command: x, observe: {key-value: {fields: [T]}}}
  - {name: other, command: x}
  - {name: long-name, command: x, observe: {key-value: {fields: [E]}}}
rules:
  - {trigger: start, action: {name: submit}}
"""
RULE = "  - {{trigger: {trigger}, action: {{name: log, message: {message!r}}}}}\n"
OF_JOB, OF_RUN = "job-done, name: sim", "idle"


def said(message: str, trigger: str = OF_JOB) -> str:
    story = Story(HEAD + RULE.format(trigger=trigger, message=message))
    story.start()
    story.play("other.0", duration=2.5)
    story.begin("long-name.0")
    story.observe("long-name.0", {"E": 3})
    story.end("long-name.0")
    story.begin("sim.0")
    story.observe("sim.0", {"T": 60})
    story.end("sim.0")
    logs = story.messages()
    return logs[0] if logs else ""


@pytest.mark.parametrize("trigger", [OF_JOB, OF_RUN])
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("{mean.other-duration} s", "2.5 s"),
        ("{mean.other-duration:.2f} s", "2.50 s"),
        ("{last.sim-T}", "60"),
        ("{count.other.success}", "1"),
        ("{count.long-name.done}", "1"),
        ("{max.long-name-E}", "3"),
        ("{mean.other-duration.success:.1f}", "2.5"),
        ("{metric('count.other.success')} of 1", "1 of 1"),
        ('{metric("mean.other-duration"):.1f}', "2.5"),
        ("{metric( 'last.sim-T' )}", "60"),
        ("{{mean.other-duration}}", "{mean.other-duration}"),
        ("{{x.y}} a-b", "{x.y} a-b"),
    ],
)
def test_a_message_has_the_value_of_a_metric(message: str, expected: str, trigger: str) -> None:
    assert said(message, trigger) == expected


@pytest.mark.parametrize("path", ["error.long-name-E", "max.queue.active"])
@pytest.mark.parametrize("form", ["{}", "metric('{}')"])
def test_a_metric_without_a_value_is_a_question_mark(path: str, form: str) -> None:
    assert said(f"v={{{form.format(path)}}}") == f"v=? ({path} has no value)"


@pytest.mark.parametrize(
    "name",
    [
        "mean.other-durations",
        "count.other.succes",
        "metric('mean.nobody-duration')",
        "metric('count.other')",
        "mean.long-name-F",
    ],
)
def test_an_unknown_metric_in_a_message_is_refused(name: str) -> None:
    with pytest.raises(FileErrors) as refused:
        said(f"{{{name}}}")
    assert "ensemble.yaml" in str(refused.value)


def _errors(trigger: str, message: str) -> str:
    try:
        Story(HEAD + RULE.format(trigger=trigger, message=message))
    except FileErrors as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("trigger", [OF_JOB, OF_RUN, "heartbeat", "start"])
@pytest.mark.parametrize(
    "name",
    ["mean.duration", "mean.T", "count.done", "meen.T", "mean.U", "count.sim", "count.other.succes",
     "mean.other-duratoin", "all.mean.T", "T", "jobb", "metric('mean.sim-U')", "mean.sim"],
)  # fmt: skip
def test_a_form_that_a_hint_proposes_works_in_a_message(trigger: str, name: str) -> None:
    """Follow the hint of each refused message: the proposed form is accepted and filled in."""
    text = _errors(trigger, f"{{{name}}}")
    hints = re.findall(r"hint: (.*)", text)
    for form in re.findall(
        r"metric\('[^'…]+'\)|\{[^{} ]+\}(?!\})|'(?:\w+\.[\w.-]+)'", "\n".join(hints)
    ):
        proposed = form.strip("'{}") if not form.startswith("metric") else form
        proposed = proposed.replace("GROUP", "sim")
        if "…" in form or "." not in proposed:
            continue
        assert _errors(trigger, f"{{{proposed}}}") == "", (text, form)
        assert "{" not in said(f"{{{proposed}}}", trigger)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1234567.0, "1234567"),
        (2.0**53, "9007199254740992"),
        (-0.0, "0"),
        (1234567.5, "1.23457e+06"),
    ],
)
def test_a_whole_number_in_a_message_has_all_its_digits(value: float, shown: str) -> None:
    """A step or a seed is a count, whose last digits matter."""
    story = Story(
        HEAD + RULE.format(trigger="observed, name: sim", message="{T} {last.T} {last.sim-T}")
    )
    story.start()
    decisions = story.observe("sim.0", T=value)
    assert [one.message for one in decisions if isinstance(one, Log)] == [
        f"{shown} {shown} {shown}"
    ]
