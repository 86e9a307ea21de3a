"""Warnings about jobs that would overwrite each other's observed files."""

from __future__ import annotations

import pytest

from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
FILE = """
jobs:
  - {name: md, command: "lmp {T}", parameters: {T: [1, 2]}, GROUP}
rules: [{trigger: start, action: {name: submit, label: md}}]
"""


def warnings(group: str) -> list[str]:
    return list(load_text(FILE.replace("GROUP", group), REGISTRY).warnings)


@pytest.mark.parametrize("workdir", ["workdir: runs", "workdir: 'runs/{group}/.'", "urgency: 16"])
def test_jobs_that_share_an_observed_file_cause_a_warning(workdir: str) -> None:
    (warning,) = warnings(f"{workdir}, observe: {{json-lines: {{path: out.json}}}}")
    assert warning.startswith("md.0 and md.1 would both write ")
    assert "out.json, which the observer 'json-lines' reads" in warning
    assert "workdir: runs/{run}/{group}/{index}" in warning


def test_replicas_in_the_same_folder_cause_a_warning() -> None:
    (warning,) = warnings("count: 2, workdir: 'runs/{T}', observe: {json-lines: {path: out.json}}")
    assert warning.startswith("md.0 and md.1 would both write runs/1/out.json")


@pytest.mark.parametrize(
    "group",
    [
        "workdir: 'runs/{index}', observe: {json-lines: {path: out.json}}",
        "workdir: 'runs/{T}', observe: {json-lines: {path: out.json}}",
        "workdir: runs, observe: {json-lines: {}}",
        "workdir: runs",
    ],
)
def test_jobs_with_separate_files_cause_no_warning(group: str) -> None:
    assert warnings(group) == []


def test_jobs_that_share_an_observed_standard_output_cause_a_warning() -> None:
    (warning,) = warnings("workdir: runs, stdout: out.txt, observe: {key-value: {fields: [a]}}")
    assert warning.startswith("md.0 and md.1 would both write runs/out.txt")
    assert warnings("workdir: runs, stdout: 'out.{T}', observe: {key-value: {fields: [a]}}") == []
