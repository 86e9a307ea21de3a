"""Short soak rounds that kill the processes of the operator, the service and the run.

``scripts/soak.py --executor operator`` and ``--executor suspends`` play more.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")

import operator_kills
import suspends

# The service needs the Kubernetes client, which the operator does not.
pytestmark = pytest.mark.checkout


def test_a_run_loses_and_repeats_nothing_whoever_is_killed(tmp_path: Path) -> None:
    found = operator_kills.played(tmp_path / "round", 1, len(operator_kills.WHAT))
    assert sorted(found["killed"]) == sorted(operator_kills.WHAT)
    assert found["good"], json.dumps(found, indent=1)


def test_a_service_killed_before_it_answers_a_request_for_a_node_adds_one_node(
    tmp_path: Path,
) -> None:
    killed: list[bool] = []

    def prepare(scene: operator_kills.Scene) -> None:
        def after(method: str, path: str) -> None:
            if method == "PATCH" and path.endswith("/scale") and not killed:
                killed.append(scene.node.kill_service("study"))

        scene.stand.cluster.afterwards = after

    found = operator_kills.played(tmp_path / "round", 1, 0, prepare)
    assert killed == [True]
    assert found["good"], json.dumps(found, indent=1)


def test_a_suspended_ensemble_loses_and_repeats_nothing_whoever_was_killed(
    tmp_path: Path,
) -> None:
    found = suspends.played(tmp_path / "round", 624, 1, outside=True, held=True)
    assert found["killed"][:2] == ["run", "suspend"], found
    assert found["again"], "jobs were under way"
    assert found["good"], json.dumps(found, indent=1)
