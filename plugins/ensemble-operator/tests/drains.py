"""Soak rounds that drain the first pod of a member at random moments.

Each round has one Ensemble with one member of one or three nodes. The run is in the member's first
pod, and its journal is in a claim. Pods are processes, on the stand-in or, with ``--kubeconfig
FILE``, on a control plane without nodes. The pod is deleted, as in a drain, during its setup or
while its jobs run. In the end, the Ensemble must have succeeded, and every job must have ended
once. Prints a line of JSON for each round, for ``scripts/soak.py``. A test plays rounds, too.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for kills

from operator_kills import Scene, arguments, free_ports, on_real, place_of, rounds, verdict

__all__ = ["played"]

#: Time limit of a round, in seconds.
_LONGEST = 900.0
JOBS = 12
#: The last job waits for the drain. A job ignores SIGTERM while it records its end.
JOB = """\
echo "$*" >> {folder}/started
sleep 1
[ "$2" = {last} ] && until [ -e {folder}/drained ]; do sleep 0.1; done
trap '' TERM
echo "$*" >> {folder}/ended
"""
FILE = """\
name: drains
jobs:
  - {{name: sim, command: '/bin/sh {folder}/job.sh sim {{replica}}', replicas: {jobs}, at_once: 3}}
rules: [{{trigger: start, action: {{name: submit, label: sim}}}}]
"""


def played(folder: Path, seed: int, drains: int = 1, *, place: Any = None) -> dict[str, Any]:
    """Play a round with this many drains; return its verdict."""
    chance = random.Random(seed)
    size = chance.choice([1, 3])
    job = JOB.format(folder=folder, last=JOBS - 1)
    scene = Scene(folder, job, outlived=False, place=place)
    try:
        scene.stand.apply(_ensemble(folder, size))
        done = _drain(scene, folder, chance, drains)
        return _judged(scene, folder, done)
    finally:
        scene.close()


def _drain(scene: Scene, folder: Path, chance: random.Random, drains: int) -> list[str]:
    end = time.monotonic() + _LONGEST

    def wait(holds: Callable[[], object]) -> None:
        while not holds() and time.monotonic() < end:
            time.sleep(0.1)

    done = []
    for _ in range(drains):
        before = _started(folder)
        # If ``more`` is 0, drain as soon as one of its containers runs.
        more, pause = chance.randint(0, JOBS - 3), chance.uniform(0, 2)
        wait(lambda: _started(folder) >= min(before + more, JOBS))  # noqa: B023
        time.sleep(pause)
        wait(lambda: scene.node.drain("study-0"))
        done.append(f"drain after {_started(folder)} started jobs")
    (folder / "drained").touch()
    wait(lambda: scene.stand.condition("study", "Finished")[0] == "True")
    return done


def _started(folder: Path) -> int:
    file = folder / "started"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _judged(scene: Scene, folder: Path, done: list[str]) -> dict[str, Any]:
    other = []
    if scene.stand.condition("study", "Finished") != ("True", "Succeeded"):
        other.append(f"it did not succeed: {json.dumps(scene.stand.status('study'))}")
    return verdict(folder, done, [f"sim {index}" for index in range(JOBS)], other)


def _ensemble(folder: Path, size: int) -> dict[str, Any]:
    ports = free_ports(2)
    spec = {"size": size, "containers": [{"image": "any"}]}
    member = {"minicluster": {"spec": spec}, "options": {"compose": "local"}}
    member["ensemble"] = FILE.format(folder=folder, jobs=JOBS)
    return {
        "apiVersion": "ensemble.flux-framework.org/v1alpha1",
        "kind": "Ensemble",
        "metadata": {"name": "study"},
        "spec": {
            "members": [member],
            "sidecar": {"port": ports[0], "metricsPort": ports[1]},
            "state": {"claim": "journals"},
        },
    }


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--drains", type=int, default=1, help="in each round (1)")
    on_real(parser)
    chosen = parser.parse_args()

    def play(folder: Path, seed: int) -> dict[str, Any]:
        with place_of(chosen) as place:
            return played(folder, seed, chosen.drains, place=place)

    return rounds(chosen, play)


if __name__ == "__main__":
    sys.exit(main())
