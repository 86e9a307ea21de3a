"""Rules mean the same on each queue: examples with figures have them on Slurm, Grid Engine, PBS and
Flux.

Each queue runs a part of a sample: an example that branches on results, one that chooses parameters
from them, one that changes the cores of its jobs, and a study that handles failures by their output.
``make soak`` runs all examples on each queue, undisturbed and killed. By hand:
``scripts/soak.py --executor use-cases-gridengine --rounds 0``. The plugins' decision suites compare
the files ``examples/*.yaml`` decision by decision. ``ELSEWHERE`` lists the files that run on no
queue, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from ensemble_testing.decisions import ensemble_files

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = [
    ("slurm", "use-cases", "branches", "shape/shape"),
    ("gridengine", "use-cases", "parameters/bisect"),
    ("gridengine", "studies", "errors"),
    ("pbs", "use-cases", "branches", "parameters/bisect"),
    ("flux", "use-cases", "branches", "parameters/bisect", "shape/shape"),
]
#: Ensemble files that do not run on each queue, and why. Further reasons are in ``Study.here`` of the
#: use cases.
ELSEWHERE = {
    "minicluster.yaml": "is of a MiniCluster: the stand-in for one, or Kubernetes",
    "two-members.yaml": "is of two queues at once, behind a service: tests of ensemble-service",
    "lammps-melt.yaml": "watches LAMMPS' output, as lammps-sweep does",
    "lammps-sweep.yaml": "on Slurm and Flux: their suites of decisions, where LAMMPS is",
    "lammps-bisect.yaml": "cancels by the rows that were seen by then, which is chance",
    "lammps-converge.yaml": "cancels by the rows that were seen by then, which is chance",
    "lammps-restart.yaml": "has as many jobs as the machine's speed and a time limit make of it",
    "lammps-shape.yaml": "decides by how fast LAMMPS was on one core and on two",
    "chain/ensemble.yaml": "is begun by a queue's script: test_chain.py of the three plugins",
    "studies/peaks/fixed.yaml": "is a whole sweep, which peaks/ensemble.yaml is compared with",
    "shape/rate.yaml": "grows, which a queue of a fixed size refuses before anything runs",
}
NOT_THERE = 77


@pytest.mark.checkout
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("queue", "kind", "names"), [(q, k, names) for q, k, *names in SAMPLE])
def test_an_example_has_the_same_figures_on_a_queue(
    queue: str, kind: str, names: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "soak.py"), "--executor", f"{kind}-{queue}",
         "--rounds", "0", "--base", str(tmp_path), "--names", *names],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == NOT_THERE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(names)} rounds" in done.stdout


def test_each_example_runs_on_the_queues_or_has_a_reason_not_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from studies import STUDIES
    from use_cases import USE_CASES

    compared = ensemble_files(ROOT / "examples", "lammps-", "minicluster", "two-members")
    played = Counter(file.name for file in compared)
    for name, study in {**USE_CASES, **STUDIES}.items():
        if not study.here:
            played[study.file or f"studies/{name}/ensemble.yaml"] += 1
    files = {
        str(file.relative_to(ROOT / "examples"))
        for file in (ROOT / "examples").rglob("*.yaml")
        if not file.name.endswith(".ensemble-test.yaml")
    }
    assert files == played.keys() | ELSEWHERE.keys()
    assert not played.keys() & ELSEWHERE.keys()
    assert set(played.values()) == {1}
