"""Test with kills of the operator, the service and the first pod, as processes: one short round.

``scripts/soak.py --executor operator`` plays more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for kills

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")

from kills import WHAT, played


@pytest.mark.checkout  # the service needs the Kubernetes client, which the operator does not
def test_a_run_loses_and_repeats_nothing_whoever_is_killed(tmp_path: Path) -> None:
    found = played(tmp_path / "round", 1, len(WHAT))
    assert sorted(found["killed"]) == sorted(WHAT)
    assert found["good"], found
