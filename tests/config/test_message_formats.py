"""Format specifications in messages, such as ``{T:.2f}``."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.model.decisions import Log
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
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


@pytest.mark.parametrize("placeholder", ["{Temp:.2q}", "{Temp:d.2}", "{index:99999d}"])
def test_invalid_format_is_rejected(placeholder: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(FILE.replace("MESSAGE", f"it is {placeholder} now"), REGISTRY)
    (error,) = caught.value.errors
    assert error.code == "bad-format"
    assert placeholder in error.what


@pytest.mark.parametrize(
    "text", ["{Temp}: 1", "{{Temp:.2f}}", "${Temp:1}", "{other:.2f}", "{a: 1}"]
)
def test_other_braces_are_plain_text(text: str) -> None:
    load_text(FILE.replace("MESSAGE", text), REGISTRY)
