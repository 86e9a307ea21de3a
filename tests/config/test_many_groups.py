"""Loading a file and starting a run take linear time in the number of job groups."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.plugin.discovery import discover


def calls(groups: int) -> int:
    """Return the number of Python calls to load and start groups with two rules each."""
    lines = ["jobs:"]
    lines += [
        f"  - {{name: g{n}, command: 'x {{T}}', parameters: {{T: [1]}}}}" for n in range(groups)
    ]
    lines += ["rules:"]
    for n in range(groups):
        lines += [
            f"  - {{trigger: start, action: {{name: submit, label: g{n}}}}}",
            f"  - {{trigger: metric, name: count.g{n}.success, when: 1, action: {{name: terminate}}}}",
        ]
    text, registry, count = "\n".join(lines), discover(), 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        Engine(load_text(text, registry))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is counting calls itself")
def test_work_is_linear_in_job_groups_and_rules() -> None:
    calls(5)  # warm up imports and caches
    assert calls(240) < 2.5 * calls(120)
