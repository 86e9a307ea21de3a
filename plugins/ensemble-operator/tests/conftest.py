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
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    # On a busy machine, the test's process may stall for ten seconds. The operator would then lose
    # its Lease and exit, and no Deployment restarts it here.
    slow = partial(Lease, duration=600.0, renew=600.0)
    monkeypatch.setattr("ensemble_operator.kopf_watch.Lease", slow)
    stand = Stand()
    yield stand
    stand.close()
