"""Soak rounds that suspend an Ensemble and recreate its members at random moments.

Each round has one Ensemble in the stand-in. The operator, the service and the two members are
processes; jobs end with their member's pod. In half of the rounds the run is outside of the
members; in the others each member has its own run. ``kill -9`` hits the operator, the service or an
outside run, before a suspend or while it takes effect. In the end, every job must have succeeded
once. Prints a line of JSON for each round, for ``scripts/soak.py``. A test plays rounds, too.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for kills and stand
sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "shared"))

from kubernetes_stand_in.node import python
from operator_kills import Scene, arguments, free_ports, on_real, place_of, rounds, verdict

__all__ = ["played"]

#: Time limits of a round and of one wait, in seconds.
_LONGEST, _PATIENCE = 1200.0, 900.0
JOBS = {"sim": 14, "post": 10}
#: A job ignores SIGTERM while it records its end.
JOB = """\
echo "$*" >> {folder}/started
until [ -e {folder}/free ]; do sleep 0.1; done
sleep 2
trap '' TERM
echo "$*" >> {folder}/ended
"""


def played(
    folder: Path,
    seed: int,
    times: int,
    *,
    outside: bool | None = None,
    held: bool = False,
    place: Any = None,
) -> dict[str, Any]:
    """Play a round with this many suspends; return its verdict.

    ``outside``: the run is outside of the members (default: random). ``held``: no job ends before
    the first resume, so that the first suspend finds running jobs.
    """
    chance = random.Random(seed)
    scene = Scene(folder, JOB.format(folder=folder), place=place)
    if not held:
        (folder / "free").touch()
    try:
        return _Round(scene, folder, chance, times, outside).play()
    finally:
        scene.close()


class _Round:
    def __init__(
        self, scene: Scene, folder: Path, chance: random.Random, times: int, outside: bool | None
    ) -> None:
        self._scene, self._stand, self._folder = scene, scene.stand, folder
        self._chance, self._times = chance, times
        by_chance = chance.random() < 0.5
        self._outside = by_chance if outside is None else outside
        self._found = _ensemble(folder, outside=self._outside)
        self._end = time.monotonic() + _LONGEST
        self._begun = 0
        self.done: list[str] = []

    def play(self) -> dict[str, Any]:
        self._stand.apply(self._found)
        for _ in range(self._times):
            # Usually, disturb it while jobs run.
            self._begun = len(self._lines("started"))
            longest = _PATIENCE if self._chance.random() < 0.8 else self._chance.uniform(0, 4)
            self._wait(lambda: len(self._lines("started")) > self._begun or self._over(), longest)
            self._wait(self._over, self._chance.uniform(0, 2.5))
            if self._over():
                break
            self._disturb()
        self._wait(self._over, _LONGEST)
        return self._judged()

    def _disturb(self) -> None:
        if self._chance.random() < 0.7:
            self._kill(self._victim())
            time.sleep(self._chance.choice([0, 0, 0.05, 0.3, 1.5]))
        if self._chance.random() < 0.25:
            member = self._chance.choice(self._found["spec"]["members"])
            container = member["minicluster"]["spec"]["containers"][0]
            container["image"] = f"image-{len(self.done)}"
            self._edit("recreate")
            self._wait(self._over, self._chance.uniform(0, 4))
            return
        self._found["spec"]["suspend"] = True
        self._edit("suspend")
        for _ in range(2):
            # Draw even unused values, so that a seed does the same on a slow machine.
            one_more, pause = self._chance.random() < 0.5, self._chance.uniform(0, 3)
            what = self._victim()
            if one_more and not self._wait(self._suspended, pause):
                self._kill(what)
        early = self._chance.random() < 0.2
        self._wait(self._suspended, self._chance.uniform(0, 2) if early else _PATIENCE)
        if not early and not self._suspended() and not self._over():
            self.done.append("never suspended")
        self._found["spec"]["suspend"] = False
        (self._folder / "free").touch()
        self._edit("early resume" if early else "resume")

    def _victim(self) -> str:
        return self._chance.choice(["operator", "service"] + ["run"] * 2 * self._outside)

    def _kill(self, what: str) -> None:
        node = self._scene.node
        kill = {
            "operator": self._scene.operator.kill,
            "service": lambda: node.kill_service("study"),
            "run": lambda: node.kill_run("study-run"),
        }[what]
        if kill():
            self.done.append(what)

    def _edit(self, what: str) -> None:
        self._stand.apply(copy.deepcopy(self._found))
        self.done.append(what)

    def _over(self) -> bool:
        return self._stand.condition("study", "Finished")[0] == "True"

    def _suspended(self) -> bool:
        """Return whether all members are deleted, except those whose run is over."""
        entries = self._stand.status("study").get("members", ())
        over = {f"study-{each['name']}" for each in entries if each.get("finishedAt")}
        there = {*self._stand.names("MiniCluster"), *self._stand.names("Job")}
        return there <= over

    def _wait(self, holds: Any, seconds: float) -> bool:
        end = min(self._end, time.monotonic() + seconds)
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def _judged(self) -> dict[str, Any]:
        wanted = {f"{name} {index}" for name, count in JOBS.items() for index in range(count)}
        other = []
        if self._stand.condition("study", "Finished") != ("True", "Succeeded"):
            other.append(f"it did not succeed: {json.dumps(self._stand.status('study'))}")
        if "NotWithdrawn" in self._stand.events() or "never suspended" in self.done:
            other.append("its jobs could not be cancelled")
        told = Counter(f"{e['group']} {e['index']} {e['outcome']}" for e in self._jobs())
        if told != Counter(f"{each} success" for each in wanted):
            other.append(f"its journal has {dict(told)}")
        return verdict(self._folder, self.done, wanted, other)

    def _lines(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

    def _jobs(self) -> list[dict[str, Any]]:
        """Return the jobs in the journals of all runs, with their outcomes."""
        found: list[dict[str, Any]] = []
        for entry in self._stand.status("study").get("members", ()):
            name = f"study-{entry['name']}"
            state = self._folder / "node" / "claims" / "journals" / name
            words = ["jobs", entry.get("run", ""), "--json", "--state", str(state)]
            if state.exists() and self._outside == (entry["name"] == "run"):
                done = subprocess.run(
                    [*python("ensemble_core.cli.main"), *words], capture_output=True, check=False
                )
                found += json.loads(done.stdout or b"[]")
        return found


def _file(folder: Path, members: dict[str, str]) -> str:
    """Return an ensemble file with one group of jobs for each member."""
    jobs = [
        {
            "name": name,
            "command": f"/bin/sh {folder}/job.sh {name} {{replica}}",
            "replicas": JOBS[name],
            "at_once": 3,
            **({"executor": f"study-{member}"} if len(members) > 1 else {}),
        }
        for member, name in members.items()
    ]
    rules = [{"trigger": "start", "action": {"name": "submit", "label": e["name"]}} for e in jobs]
    return json.dumps({"name": "suspends", "jobs": jobs, "rules": rules})


def _ensemble(folder: Path, *, outside: bool) -> dict[str, Any]:
    ports = free_ports(2)
    groups = dict(zip("ab", JOBS, strict=True))
    members: list[dict[str, Any]] = []
    for name, group in groups.items():
        spec = {"size": 1, "backoffLimit": 1000, "containers": [{"image": "any"}]}
        found = {"name": name, "minicluster": {"spec": spec}, "options": {"compose": "local"}}
        members.append(found | ({} if outside else {"ensemble": _file(folder, {name: group})}))
    return {
        "apiVersion": "ensemble.flux-framework.org/v1alpha1",
        "kind": "Ensemble",
        "metadata": {"name": "study"},
        "spec": {
            "members": members,
            **({"ensemble": _file(folder, groups)} if outside else {}),
            "sidecar": {"port": ports[0], "metricsPort": ports[1]},
            "state": {"claim": "journals"},
            "install": {"method": "Image"},
            "updatePolicy": "Recreate",
            "suspend": False,
        },
    }


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--times", type=int, default=3, help="in each round (3)")
    on_real(parser)
    chosen = parser.parse_args()

    def play(folder: Path, seed: int) -> dict[str, Any]:
        with place_of(chosen) as place:
            return played(folder, seed, chosen.times, place=place)

    return rounds(chosen, play)


if __name__ == "__main__":
    sys.exit(main())
