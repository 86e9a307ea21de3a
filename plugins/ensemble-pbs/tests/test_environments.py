"""Test of jobs that start in an environment (``within``) on a real PBS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_testing.environment import check_environments

if TYPE_CHECKING:
    from conftest import Complex


@pytest.mark.checkout
@pytest.mark.timeout(300)
def test_jobs_start_in_modules_and_virtual_environments(pbs: Complex, tmp_path: Path) -> None:
    check_environments("pbs", ["-o", "poll=1", "-o", f"queue={pbs.queue}"], tmp_path)
