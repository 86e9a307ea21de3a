"""Soak rounds in which service, agent and controller are killed at random moments.

A round is one run with a process for each of the three. One at a time is killed with SIGKILL and
restarted. At the end, every job must have run once, with each of its events once, and the replay
of the journal must make the same decisions. Prints a line of JSON for each round, for
``scripts/soak.py``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for test_member

from test_member import LIFE, World, ensemble

COUNT = 12
NAMES = {f"{group}.{index}" for group in ("first", "second") for index in range(COUNT)}
#: Time limit of a round on a slow machine, in seconds.
_LONGEST = 600.0


def played(folder: Path, seed: int, kills: int) -> dict[str, Any]:
    """Play a round; return what was wrong."""
    chance = random.Random(seed)
    (folder / "ran").mkdir(parents=True)
    world = World(folder)
    agent = ("left", "-o", "slots=2")
    killed: list[str] = []
    try:
        world.server()
        world.agent(*agent)
        world.connected("left")
        world.run(ensemble(world, COUNT, seconds=0.2))
        world.until(lambda: len(world.ran()) >= 1, "jobs run", _LONGEST)
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 1.0))
            which = chance.choice(("server", "left", "run"))
            if len(world.ran()) > len(NAMES) - 3 or world.processes["run"].poll() is not None:
                break
            killed.append(which)
            world.kill(which)
            if which == "server":
                world.server()
            elif which == "left":
                world.agent(*agent)
            else:
                world.resume(name="run")
        code, _ = world.finish()
        ran = world.ran()
        found = _wrong(world)
        found["lost"] += sorted(NAMES - set(ran))
        found["doubled"] += sorted(job for job, times in ran.items() if times > 1)
        if code:
            found["other"].append(f"exit code {code}\n{world.logs()}")
    finally:
        world.stop()
    good = not any(found.values())
    return {"seed": seed, "killed": killed, "jobs": len(NAMES), **found, "good": good}


def _wrong(world: World) -> dict[str, list[str]]:
    """Return the errors found in the journal."""
    lives: dict[str, list[str]] = {}
    for event in world.events():
        if event["name"] in LIFE:
            lives.setdefault(event["job"], []).append(event["name"])
    replay = world.command("replay", "last")
    return {
        "lost": [],
        "doubled": [],
        "fired_again": [],
        "replay_differences": [replay.output] if replay.exit_code else [],
        "other": [f"{job}: {life}" for job, life in lives.items() if life != LIFE],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=4, help="in each round, at most (4)")
    parser.add_argument("--base", type=Path, required=True)
    chosen = parser.parse_args()
    good = True
    for seed in range(chosen.seed, chosen.seed + chosen.rounds):
        folder = chosen.base.absolute() / str(seed)
        try:
            found = played(folder, seed, chosen.kills)
        except BaseException as error:  # pytest.fail raises one
            if not isinstance(error, Exception) and type(error).__name__ != "Failed":
                raise
            found = {"seed": seed, "killed": [], "jobs": 0, "lost": [], "doubled": []}
            found |= {"fired_again": [], "replay_differences": [], "good": False}
            found["other"] = [traceback.format_exc()]
        good = good and found["good"]
        if found["good"]:
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(found), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
