"""Tests of Flux's options in an ensemble file, and of the errors for wrong ones."""

from __future__ import annotations

import os
from typing import Any

import jsonschema_rs
import pytest
from ensemble_flux import OPTIONS, ensemble_executors

from ensemble_core import FileErrors
from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover

FILE = """jobs:
  - name: a
    command: "true"
    options:
      flux:
        {option}
rules:
  - {{trigger: start, action: {{name: submit, label: a}}}}
"""


def loaded(option: str) -> Any:
    return load_text(FILE.format(option=option), discover(), file="night.yaml")


@pytest.mark.parametrize(
    "option",
    [
        "queue: batch",
        "bank: physics",
        "exclusive: true",
        "shell: {mpi: none, cpu-affinity: per-task}",
        "attributes: {system.constraints.properties: [fast]}",
    ],
)
def test_valid_options_are_accepted(option: str) -> None:
    assert "flux" in loaded(option).groups["a"].options


@pytest.mark.parametrize(
    ("option", "column"),
    [
        ("queue: 7", 16),
        ("bank: [a]", 15),
        ("exclusive: perhaps", 20),
        ("shell: fast", 16),
        ("attributes: 3", 21),
        ("exclusiv: true", 9),
    ],
)
def test_unknown_options_are_rejected_with_their_place(option: str, column: int) -> None:
    with pytest.raises(FileErrors) as caught:
        loaded(option)
    (error,) = caught.value.errors
    assert error.where is not None
    assert str(error.where).endswith(f"night.yaml:6:{column}")


@pytest.mark.parametrize(
    "options", [{"events": "sometimes"}, {"output": "tape"}, {"que": "batch"}, {"uri": 3}]
)
def test_invalid_executor_options_are_rejected(options: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(dict(OPTIONS), options)
    assert jsonschema_rs.is_valid(dict(OPTIONS), {"events": "auto", "output": "kvs"})


@pytest.mark.parametrize("uri", ["local:///run/flux", "", None])
def test_flux_is_chosen_automatically_only_inside_an_instance(
    monkeypatch: pytest.MonkeyPatch, uri: str | None
) -> None:
    monkeypatch.delenv("FLUX_URI", raising=False)
    if uri is not None:
        monkeypatch.setitem(os.environ, "FLUX_URI", uri)
    (record,) = ensemble_executors()
    assert record.available is not None
    there, why = record.available()
    assert there is bool(uri)
    assert "FLUX_URI" in why
