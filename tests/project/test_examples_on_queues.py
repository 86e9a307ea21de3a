"""Rules mean the same on each queue: examples with figures have them on Slurm, Grid Engine and Flux.

A sample, since all of them take many minutes: one that branches on results, one that chooses
parameters by them, and a study that mends what failed by its output. ``make soak`` runs all on
each queue, undisturbed and killed. Those of ``examples/*.yaml`` are compared decision by decision in
the plugins' suites of decisions, all that need neither LAMMPS nor a cluster that grows.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    "use-cases": ("branches", "parameters/bisect"),
    "studies": ("errors",),
}
NOT_THERE = 77


@pytest.mark.checkout
@pytest.mark.timeout(900)
@pytest.mark.parametrize("queue", ["slurm", "gridengine", "flux"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_has_the_same_figures_on_each_queue(
    queue: str, kind: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "soak.py"), "--executor", f"{kind}-{queue}",
         "--rounds", "0", "--processes", "1", "--base", str(tmp_path), "--names", *EXAMPLES[kind]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == NOT_THERE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(EXAMPLES[kind])} rounds" in done.stdout
