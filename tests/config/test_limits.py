"""Checks of ``limits:``."""

from __future__ import annotations

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.plugin.discovery import discover

JOBS = """
jobs: [{name: a, command: x, tasks: 4, duration: 1h, gpus_per_task: 1}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("core_hours: 0", ["1:22", "'core_hours' is 0, it must be more than 0"]),
        ("core_hours: -3", ["1:22", "it must be more than 0"]),
        ("node_hours: 200h", ["the string '200h'", "alone: node_hours: 200"]),
        ("gpu_hours: 8 GPU-hours", ["write the number of gpu-hours alone: gpu_hours: 8"]),
        ("core_hours: many", ["write a number of core-hours, such as core_hours: 200"]),
        ("core_hours: .inf", ["the number .inf, expected a finite number"]),
        ("cpu_hours: 3", ["1:10", "did you mean 'core_hours'?"]),
        ("core-hours: 3", ["did you mean 'core_hours'?"]),
        ("max_jobs: 3", ["did you mean 'jobs'?"]),
        ("jobs: 0", ["1:16", "it must be at least 1"]),
        (
            "core_hours: 3.9",
            ["1:22", "no job of 'a' could ever run: 4 cores for 3600 s are 4 core-hours"],
        ),
        ("gpu_hours: 3", ["4 GPUs for 3600 s are 4 GPU-hours"]),
        ("node_hours: 0.5", ["1 node for 3600 s are 1 node-hours", "lower the duration of 'a'"]),
    ],
)
def test_wrong_limit_is_reported_with_its_place_and_a_hint(limit: str, told: list[str]) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(f"limits: {{{limit}}}" + JOBS, discover(), file="f.yaml")
    (error,) = caught.value.errors
    for words in told:
        assert words in str(error)


def test_job_as_large_as_the_limit_is_accepted() -> None:
    text = "limits: {core_hours: 4, node_hours: 1, gpu_hours: 4.0, jobs: 1}" + JOBS
    limits = load_text(text, discover()).limits
    assert (limits.core_hours, limits.node_hours, limits.gpu_hours) == (4, 1, 4)
