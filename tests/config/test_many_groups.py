"""The work of reading a file and beginning a run grows with its job groups, not with their square."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.plugin.discovery import discover


def calls(groups: int) -> int:
    """Python calls that it takes to read so many groups with two rules each, and to begin."""
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
def test_twice_as_many_job_groups_and_rules_take_twice_the_work() -> None:
    calls(5)  # what is imported or cached at the first time
    assert calls(240) < 2.5 * calls(120)
