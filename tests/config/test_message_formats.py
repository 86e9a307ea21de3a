"""A message that asks for a format is refused before it is shown as it stands."""

from __future__ import annotations

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
FILE = """
jobs: [{name: md, command: lmp, observe: {json-lines: {fields: [Temp]}}}]
rules:
  - {trigger: start, action: {name: submit, label: md}}
  - {trigger: observed, name: md, action: {name: log, message: "MESSAGE"}}
"""


@pytest.mark.parametrize("placeholder", ["{Temp:.2f}", "{Temp:8.3}", "{index:03d}"])
def test_a_format_is_refused_with_what_to_write(placeholder: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(FILE.replace("MESSAGE", f"it is {placeholder} now"), REGISTRY)
    (error,) = caught.value.errors
    assert error.what == f"{placeholder} has a format, and messages have none"
    assert error.hint is not None
    assert f"write {placeholder.partition(':')[0]}}}" in error.hint


@pytest.mark.parametrize(
    "text", ["{Temp}: 1", "{{Temp:.2f}}", "${Temp:1}", "{other:.2f}", "{a: 1}"]
)
def test_other_braces_are_text(text: str) -> None:
    load_text(FILE.replace("MESSAGE", text), REGISTRY)
