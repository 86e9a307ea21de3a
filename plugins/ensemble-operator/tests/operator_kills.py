"""Soak rounds that kill the operator, the service and the first pod at random moments.

Each round has one Ensemble in the stand-in. The operator, the service and the run in the first pod
are processes; the run's journal is in a claim. ``kill -9`` hits one of the three at a time, which
is then restarted. In the end, every job must have started and ended once, and the MiniCluster must
have grown once. Prints a line of JSON for each round, for ``scripts/soak.py``. A test plays rounds,
too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for stand
sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "shared"))

from ensemble_testing.processes import free_ports
from kubernetes_stand_in.node import Node, Proxy, python
from operator_cluster import Stand

__all__ = [
    "WHAT",
    "Scene",
    "arguments",
    "free_ports",
    "on_real",
    "place_of",
    "played",
    "rounds",
    "verdict",
]

WHAT = ("operator", "service", "pod")
#: Time limit of a round, in seconds.
_LONGEST = 1200.0
JOBS, LATER = 24, 6
FILE = """\
name: kills
jobs:
  - {{name: sim, command: '/bin/sh {folder}/job.sh sim {{replica}}', replicas: {jobs}, at_once: 3}}
  - {{name: post, command: '/bin/sh {folder}/job.sh post {{replica}}', replicas: {later}, at_once: 3}}
  - {{name: grown, command: '/bin/sh {folder}/job.sh grown {{replica}}'}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{trigger: start, action: {{name: grow, value: 1}}}}
  - {{trigger: resize-timeout, action: {{name: submit, label: grown}}}}
  - {{trigger: metric, name: count.sim.success, when: {jobs},
     action: {{name: submit, label: post}}}}
"""
JOB = """\
echo "$*" >> {folder}/started
sleep {seconds}
[ "$1" = grown ] && until [ -e {folder}/enough ]; do sleep 0.1; done
echo "$*" >> {folder}/ended
"""


class OperatorProcess:
    """Process of the operator, restarted whenever it ends."""

    def __init__(
        self, folder: Path, config: Path, environment: dict[str, str], namespace: str = "default"
    ) -> None:
        self._words = [*python("ensemble_operator.main"), "run", "--namespace", namespace]
        self._words += ["--kubeconfig", str(config), "--health", ""]
        self._environment, self._said = environment, folder / "operator"
        self.begin()

    def begin(self) -> None:
        self.process = subprocess.Popen(
            self._words, env=self._environment, stdout=self._said.open("ab"),
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def kill(self) -> bool:
        was = self.process.poll() is None
        self.process.kill()
        self.process.wait()
        self.begin()
        return was

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Scene:
    """Processes of a round, around the stand-in: the ``operator``, and a ``node`` with its pods.

    ``job`` is the script that jobs run. ``outlived``: the queue survives its container.
    """

    def __init__(self, folder: Path, job: str, *, outlived: bool = True, place: Any = None) -> None:
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text(job)
        (folder / "bin").mkdir()
        program = folder / "bin" / "ensemble"
        begin = " ".join(f"'{each}'" for each in python("ensemble_core.cli.main"))
        program.write_text(f'#!/bin/sh\nexec {begin} "$@"\n')
        program.chmod(0o755)
        tree = folder / "view" / "bin"  # the content of the view's image
        tree.mkdir(parents=True)
        shutil.copy(program, tree)
        self.stand: Any = place or Stand(delay=0.1, plays_pods=False)
        self._proxy = Proxy()
        environment = {
            key: each
            for key, each in os.environ.items()
            if not key.startswith("ENSEMBLE_") and not key.lower().endswith("_proxy")
        }
        environment |= {"HOME": str(folder), "PATH": f"{folder / 'bin'}:{environment['PATH']}"}
        environment |= {"grpc_proxy": self._proxy.url}
        namespace = "default" if place is None else place.namespace
        config = place.config if place else self.stand.cluster.kubeconfig(folder / "config")
        self.operator = OperatorProcess(folder, config, environment, namespace)
        self.node = Node(
            config,
            folder / "node",
            environment,
            namespace=namespace,
            outlived=outlived,
            images={"/opt/ensemble": tree.parent},
        )

    def close(self) -> None:
        self.operator.close()
        self.node.close()
        self.stand.close()
        self._proxy.close()


def played(
    folder: Path, seed: int, kills: int, prepare: Callable[[Scene], object] | None = None
) -> dict[str, Any]:
    """Play a round; return its verdict. ``prepare`` is called before the Ensemble is created."""
    chance = random.Random(seed)
    # Jobs take about as long as the kills, so that kills hit running jobs.
    scene = Scene(folder, JOB.format(folder=folder, seconds=0.15 * kills))
    try:
        if prepare is not None:
            prepare(scene)
        scene.stand.apply(_ensemble(folder))
        killed = _disturb(scene, chance, kills, folder / "enough")
        return _judged(scene.stand, folder, killed)
    finally:
        scene.close()


def _ensemble(folder: Path) -> dict[str, Any]:
    ports = free_ports(2)
    spec = {"size": 1, "maxSize": 8, "backoffLimit": 1000, "containers": [{"image": "any"}]}
    text = FILE.format(folder=folder, jobs=JOBS, later=LATER)
    member = {"minicluster": {"spec": spec}, "ensemble": text}
    # Without Flux, jobs run on this machine, and granted nodes never arrive. This triggers the rule
    # for 'resize-timeout'.
    member["options"] = {"compose": "local", "arrival_timeout": "1"}
    return {
        "apiVersion": "ensemble.flux-framework.org/v1alpha1",
        "kind": "Ensemble",
        "metadata": {"name": "study"},
        "spec": {
            "members": [member],
            "sidecar": {"port": ports[0], "metricsPort": ports[1]},
            "state": {"claim": "journals"},
            "install": {"method": "Image"},
        },
    }


def _over(stand: Stand) -> bool:
    return stand.condition("study", "Finished")[0] == "True"


def _disturb(
    scene: Scene,
    chance: random.Random,
    kills: int,
    enough: Path,
) -> list[str]:
    """Kill processes in random order until the Ensemble is finished; return the killed ones.

    After the last kill, create the file ``enough``, for which the last job waits.
    """
    killed: list[str] = []
    plan = [WHAT[index % 3] for index in range(kills)]
    chance.shuffle(plan)
    end = time.monotonic() + _LONGEST
    due = time.monotonic() + chance.uniform(0, 2)
    while not _over(scene.stand) and time.monotonic() < end:
        time.sleep(0.1)
        if plan and time.monotonic() >= due:
            what = plan[-1]
            kill = {
                "operator": scene.operator.kill,
                "service": lambda: scene.node.kill_service("study"),
                "pod": lambda: scene.node.kill_pod("study-0"),
            }[what]
            if kill():  # false while it is not running yet
                killed.append(plan.pop())
                due = time.monotonic() + chance.uniform(0, 2)
        if not plan:
            enough.touch()
    return killed


def _judged(stand: Stand, folder: Path, killed: list[str]) -> dict[str, Any]:
    wanted = {f"sim {index}" for index in range(JOBS)} | {f"post {i}" for i in range(LATER)}
    wanted.add("grown 0")
    other = []
    if stand.condition("study", "Finished") != ("True", "Succeeded"):
        other.append(f"it did not succeed: {json.dumps(stand.status('study'))}")
    size = (stand.get("MiniCluster", "study-0") or {}).get("spec", {}).get("size")
    if size != 2:
        other.append(f"its size is {size}, and was asked to be 2 once")
    made = [
        key[3]
        for _, what, key, _, _ in stand.cluster.store.history
        if what == "ADDED" and key[1] == "miniclusters"
    ]
    if made != ["study-0"]:
        other.append(f"its MiniCluster was made {len(made)} times")
    return verdict(folder, killed, wanted, other, once=("started", "ended"))


def verdict(
    folder: Path,
    killed: list[str],
    wanted: Collection[str],
    other: list[str],
    *,
    once: Collection[str] = ("ended",),
) -> dict[str, Any]:
    """Return the verdict on a round: the ``wanted`` jobs, compared with ``started`` and ``ended``.

    In the files ``once``, each job may occur only once.
    """
    counts = {
        each: Counter((folder / each).read_text().splitlines() if (folder / each).exists() else ())
        for each in ("started", "ended")
    }
    found = {
        "killed": killed,
        "jobs": sum(counts["ended"].values()),
        "again": sum(counts["started"].values()) - len(counts["started"]),
        "lost": sorted(set(wanted) - set(counts["ended"])),
        "doubled": sorted(job for each in once for job, n in counts[each].items() if n > 1),
        "fired_again": [],
        "replay_differences": [],
        "other": other,
    }
    return {**found, "good": not any(found[each] for each in ("lost", "doubled", "other"))}


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of a program that plays rounds."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--base", type=Path, required=True)
    return parser


def on_real(parser: argparse.ArgumentParser) -> None:
    """Add the option to play rounds on a real control plane."""
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE",
        help="of a control plane with the Flux Operator and without nodes, instead of the stand-in",
    )  # fmt: skip


@contextmanager
def place_of(chosen: argparse.Namespace) -> Iterator[Any]:
    """Yield a new namespace of the control plane of ``--kubeconfig``; ``None`` without it."""
    if chosen.kubeconfig is None:
        yield None
        return
    from story_cluster import real  # needs pytest

    with real(chosen.kubeconfig) as place:
        yield place


def rounds(chosen: argparse.Namespace, play: Callable[[Path, int], dict[str, Any]]) -> int:
    """Play the rounds, each in its own folder; return the exit code."""
    good = True
    for seed in range(chosen.seed, chosen.seed + chosen.rounds):
        folder = chosen.base.absolute() / str(seed)
        try:
            found = play(folder, seed)
        except Exception:
            nothing: dict[str, Any] = {"killed": [], "jobs": 0, "lost": [], "doubled": []}
            nothing |= {"fired_again": [], "replay_differences": [], "good": False}
            found = {**nothing, "other": [traceback.format_exc()]}
        good = good and found["good"]
        if found["good"]:
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps({"seed": seed, **found}), flush=True)
    return 0 if good else 1


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=10, help="in each round (10)")
    chosen = parser.parse_args()
    return rounds(chosen, lambda folder, seed: played(folder, seed, chosen.kills))


if __name__ == "__main__":
    sys.exit(main())
