"""Test of jobs that start in an environment (``within``) on a real Grid Engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_testing.environment import check_environments

if TYPE_CHECKING:
    from conftest import Cluster


@pytest.mark.checkout
@pytest.mark.timeout(300)
def test_jobs_start_in_modules_and_virtual_environments(cluster: Cluster, tmp_path: Path) -> None:
    check_environments("gridengine", ["-o", "poll=1"], tmp_path)
