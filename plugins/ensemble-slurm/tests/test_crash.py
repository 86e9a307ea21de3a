"""Controllers on a real Slurm that are killed with SIGKILL and resumed: each job runs once.

``ENSEMBLE_CRASH=SEED:COUNT`` chooses the first seed and the number of rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.once

REAL = Path(__file__).resolve().parents[3] / "tests" / "journal" / "crash" / "real.py"
SEED, COUNT = (
    int(part) for part in (os.environ.get("ENSEMBLE_CRASH", "") or "1:2").partition(":")[::2]
)


@pytest.mark.timeout(120 + 60 * COUNT)
def test_jobs_run_once_whenever_their_controller_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    if not REAL.exists():
        pytest.skip(f"{REAL} is not there: these tests are run in a checkout")
    cluster.wait_idle()
    before = len(cluster.jobs())
    done = subprocess.run(
        [sys.executable, str(REAL), "slurm", "--seed", str(SEED), "--rounds", str(COUNT),
         "--base", str(tmp_path)],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [each for each in found if not each["good"]]
    assert not wrong, "\n\n".join(json.dumps(each, indent=1) for each in wrong)
    assert done.returncode == 0, done.stderr
    assert len(found) == COUNT + 1
    assert {each["jobs"] for each in found} == {10}
    # What jobs wrote says that none ran twice; the queue says that none was submitted twice.
    assert len(cluster.jobs()) - before == 10 * len(found)
    cluster.wait_idle()
