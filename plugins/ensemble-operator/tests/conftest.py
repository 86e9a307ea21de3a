"""Cluster fixture of most tests, and the import path of their shared modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from ensemble_operator.lease import Lease

sys.path.insert(0, str(Path(__file__).parent))

from operator_cluster import Stand


@pytest.fixture
def slow_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an operator keep its Lease on a busy machine, where its process may stall for ten seconds.

    It would then exit, and no Deployment restarts it here.
    """
    slow = partial(Lease, duration=600.0, renew=600.0)
    monkeypatch.setattr("ensemble_operator.kopf_watch.Lease", slow)


@pytest.fixture
def stand(slow_lease: None) -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.close()
