"""The cluster that most tests use, and the path of the modules beside them."""

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
    # On a busy machine, the test's own process may not run for ten seconds. An operator then loses
    # its Lease and exits, and here nobody starts it again.
    slow = partial(Lease, duration=600.0, renew=600.0)
    monkeypatch.setattr("ensemble_operator.watch.Lease", slow)
    stand = Stand()
    yield stand
    stand.close()
