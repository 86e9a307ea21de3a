"""Format specifications in messages, such as ``{T:.2f}``."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.model.decisions import Log
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
START = "\nrules: [{trigger: start, action: {name: submit, label: md}}]\n"
FILE = """
jobs: [{name: md, command: lmp, observe: {json-lines: {fields: [Temp]}}}]
rules:
  - {trigger: start, action: {name: submit, label: md}}
  - {trigger: observed, name: md, action: {name: log, message: "MESSAGE"}}
"""


@pytest.mark.parametrize(
    ("placeholder", "shown"),
    [("{Temp:.2f}", "300.12"), ("{Temp:8.3}", "   3e+02"), ("{index:03d}", "000")],
)
def test_message_formats_a_field(placeholder: str, shown: str) -> None:
    story = Story(FILE.replace("MESSAGE", f"it is {placeholder} now"))
    story.start()
    decisions = story.observe("md.0", Temp=300.125)
    assert [d.message for d in decisions if isinstance(d, Log)] == [f"it is {shown} now"]


@pytest.mark.parametrize("text", ["{Temp", "Temp:.2f}", "{mean.md-Temp", "{mean.md-Temp {Temp}"])
def test_a_field_with_one_brace_is_rejected(text: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(FILE.replace("MESSAGE", f"it is {text} now"), REGISTRY)
    (error,) = caught.value.errors
    assert "lacks a brace" in error.what


def test_single_braces_of_other_texts_stay() -> None:
    story = Story(FILE.replace("MESSAGE", "{ {it is} {Tem {{Temp}} :-} {"))
    story.start()
    decisions = story.observe("md.0", Temp=300.125)
    shown = [d.message for d in decisions if isinstance(d, Log)]
    assert shown == ["{ {it is} {Tem {Temp} :-} {"]


@pytest.mark.parametrize("placeholder", ["{Temp:.2q}", "{Temp:d.2}", "{index:99999d}"])
def test_invalid_format_is_rejected(placeholder: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(FILE.replace("MESSAGE", f"it is {placeholder} now"), REGISTRY)
    (error,) = caught.value.errors
    assert error.code == "bad-format"
    assert placeholder in error.what


@pytest.mark.parametrize(
    "text", ["{Temp}: 1", "{{Temp:.2f}}", "{{Temp + 1}}", "${Temp:1}", "{a: 1}", "{{x.y}}"]
)
def test_other_braces_are_plain_text(text: str) -> None:
    load_text(FILE.replace("MESSAGE", text), REGISTRY)


@pytest.mark.parametrize(
    "braces",
    [
        "{Temp!r}", "{Temp + 1}", "{ Temp }", "{round(mean.Temp, 2)}", "{mean.md-Temp :.2f}",
        "{other:.2f}", "{x.y:.2f}", "{x.y}", "{foo.bar_baz}", "{host.name-x}", "{foo.bar[2]}",
        "{queue.pending}", "{mean.mdd-Temp}", "{queue.shced}", "{count.mdd.failed}",
    ],
)  # fmt: skip
def test_braces_that_would_be_printed_as_they_stand_are_refused(braces: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(FILE.replace("MESSAGE", f"it is {braces} now"), REGISTRY)
    (error,) = caught.value.errors
    assert error.where is not None
    assert error.hint
    if error.code == "bad-format":
        assert f"{{{braces}}} for literal braces" in error.hint


@pytest.mark.parametrize("braces", ["{T!r}", "{T+1}", "{ T }", "{T * 2:.1f}", "{index-1}"])
def test_braces_in_a_path_are_filled_in_or_refused(braces: str) -> None:
    text = (
        "jobs: [{name: md, command: 'lmp {T}', parameters: {T: [1]}, workdir: 'a/WORKDIR'}]" + START
    )
    load_text(text.replace("WORKDIR", f"{{{braces}}}"), REGISTRY)
    with pytest.raises(FileErrors) as caught:
        load_text(text.replace("WORKDIR", braces), REGISTRY)
    (error,) = caught.value.errors
    assert error.code == "bad-format"


def test_braces_in_a_command_may_be_code_of_another_language() -> None:
    text = "jobs: [{name: md, command: [awk, 'BRACES', '{T}'], parameters: {T: [1]}}]" + START
    for code in ("{print T}", "{T+1}", "{T;}"):
        load_text(text.replace("BRACES", code), REGISTRY)
    with pytest.raises(FileErrors, match="T!r"):
        load_text(text.replace("BRACES", "{T!r}"), REGISTRY)


@pytest.mark.parametrize("place", ["group", "with"])
def test_a_metric_in_the_text_of_a_job_is_refused_with_a_form_that_is_accepted(place: str) -> None:
    file = (
        "jobs: [{name: md, command: 'lmp {T} GROUP', parameters: {T: [1]}}]\nrules:\n"
        "  - {trigger: start, action: {name: submit, label: md, with: {WITH}}}"
    )

    def check(of_group: str, of_rule: str) -> None:
        load_text(file.replace("GROUP", of_group).replace("WITH", of_rule), REGISTRY)

    environment = "environment: {N: '{queue.active}'}"
    with pytest.raises(FileErrors) as caught:
        check("{queue.active}", "") if place == "group" else check("", environment)
    (error,) = caught.value.errors
    assert error.what.startswith("{queue.active} is a metric")
    assert "parameters: {NAME: '= queue.active'}}; write {{queue.active}}" in str(error.hint)
    check("{{queue.active}}", "parameters: {T: '= queue.active'}")
