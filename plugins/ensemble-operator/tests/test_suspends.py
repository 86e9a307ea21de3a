"""Test of an Ensemble that is suspended just after a kill of its run, as processes: one short
round.

``scripts/soak.py --executor suspends`` plays more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for suspends

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")

from suspends import played


@pytest.mark.checkout  # the service needs the Kubernetes client, which the operator does not
def test_a_suspended_ensemble_loses_and_repeats_nothing_whoever_was_killed(
    tmp_path: Path,
) -> None:
    found = played(tmp_path / "round", 624, 1, outside=True, held=True)
    assert found["killed"][:2] == ["run", "suspend"], found
    assert found["again"], "jobs were under way"
    assert found["good"], found
