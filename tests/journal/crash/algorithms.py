"""Kills controllers of studies with algorithms at random times, and resumes them until the end.

In each round, a plugin's algorithm submits random jobs, and a rule switches to an algorithm of the
core, which ends the run. After the first kill, the plugin's file is replaced by another version.
The run must keep its original rules, submit no job twice, switch once, and reach the required
successes. Its replay must make the same decisions. Prints one line of JSON for each round, for
``scripts/soak.py``. A test uses this module, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from ensemble_core.cli.main import main as ensemble

COMMAND = [sys.executable, "-m", "ensemble_core.cli"]
STUDY = """
name: drawn
jobs:
  - {name: try, command: sleep 0.3, replicas: 30}
  - name: refine
    command: sh -c 'sleep 0.2; exit $(({index} % 2))'
use:
  - {algorithm: draw, as: explore, with: {group: try, at_once: 2}}
  - algorithm: workload-success
    as: enough
    enabled: false
    with: {group: refine, successes: 5, at_once: 2, most: 40}
rules:
  - {trigger: metric, name: count.try.success, when: 8, action: {name: switch, to: enough}}
"""
PLUGIN = """
from ensemble_core import AlgorithmPlugin, Fragment, hookimpl

def build(options, view):
    group = options["group"]
    next_ = {"name": "submit-next", "groups": group, "order": "random", "seed": SEED}
    again = {"trigger": "job-clean", "name": group, "repetitions": "unlimited"}
    begin = {"id": "begin", "trigger": "start"}
    return Fragment(rules=[
        {**begin, "action": {**next_, "count": options["at_once"]}},
        {**again, "id": "next", "action": next_},
    ])

@hookimpl
def ensemble_algorithms():
    options = {"group": {"type": "string", "x-ensemble": "group"}, "at_once": {"type": "integer"}}
    schema = {"type": "object", "properties": options, "required": ["group", "at_once"]}
    return [AlgorithmPlugin(name="draw", summary="draws jobs", build=build, options=schema)]
"""


def play_round(folder: Path, seed: int) -> dict[str, Any]:
    """Play one round, and return its errors by kind."""
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "ensemble.yaml").write_text(STUDY)
    (folder / "draw.py").write_text(PLUGIN.replace("SEED", str(seed)))
    words = [*COMMAND, "run", "ensemble.yaml", "--executor", "local", "--slots", "4"]
    words += ["--plugin", "draw.py", "--tag", f"drawn-{seed}", "--or-resume", "--state", "state"]
    killed, code, other = list[str](), 0, list[str]()
    for number in range(30):
        with (folder / f"said-{number}").open("wb") as said:
            process = subprocess.Popen(words, cwd=folder, stdout=said, stderr=said)
            try:
                if number < 8:
                    process.wait(chance.uniform(0.3, 3))
                code = process.wait(300)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
                killed.append(f"controller {number}")
        if code != -9:
            break
        if (folder / "state").exists() and len(killed) == 1:
            # The run must keep the rules of the first version.
            changed = PLUGIN.replace("SEED", "0").replace(
                '"count": options["at_once"]', '"count": 30'
            )
            (folder / "draw.py").write_text(changed)
    if code:
        other.append(f"the last controller ended with {code}")
    other += _errors(folder, begun_late=bool(killed))
    replay = invoke(folder, "replay", "last")
    differences = [replay.output] if replay.exit_code else []
    good = not other and not differences
    if good:
        shutil.rmtree(folder)
    return {
        "round": seed, "good": good, "killed": killed, "jobs": 20, "lost": [], "doubled": [],
        "fired_again": [], "replay_differences": differences, "other": other,
    }  # fmt: skip


def invoke(folder: Path, *words: str) -> Result:
    """Run a command on the run in this folder, in this process."""
    return CliRunner().invoke(ensemble, [*words, "--state", f"{folder}/state"])


def _errors(folder: Path, *, begun_late: bool) -> list[str]:
    """Return the errors in the run's decisions."""
    told = invoke(folder, "events", "last", "--json").stdout
    lines = [json.loads(line) for line in told.splitlines()]
    decided = [line for line in lines if line["kind"] == "decision"]
    found = []
    submits = [each for each in decided if each["type"] == "submit" and each["rule"]]
    places = Counter(
        (job["group"], job.get("replica"))
        for each in submits
        for job in each["jobs"]
        if job["group"] == "try"
    )
    if any(number > 1 for number in places.values()):
        found.append(f"drawn twice: {places}")
    if not 8 <= sum(places.values()) <= 11 and not begun_late:
        found.append(f"{sum(places.values())} were drawn")
    switches = [each for each in decided if each["type"] == "switch"]
    if len(switches) != 1:
        found.append(f"switched {len(switches)} times")
    status = json.loads(invoke(folder, "status", "last", "--json").stdout)
    groups = {each["name"]: each for each in status["report"]["groups"]}
    if groups["refine"]["success"] != 5:
        found.append(f"{groups['refine']['success']} of 5 successes")
    return found


def rounds(base: Path, seed: int, count: int) -> Iterator[dict[str, Any]]:
    for each in range(seed, seed + count):
        yield play_round(base / f"round-{each}", each)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--base", type=Path, required=True)
    chosen = parser.parse_args()
    os.environ.pop("ENSEMBLE_STATE", None)
    good = True
    for found in rounds(chosen.base.absolute(), chosen.seed, chosen.rounds):
        good = good and found["good"]
        print(json.dumps(found), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
