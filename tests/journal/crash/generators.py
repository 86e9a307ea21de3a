"""Kills controllers of studies with generators at random lines of output, and resumes them.

In each round, a Latin hypercube switches to a simplex that starts from its points. A second
generator (Optuna's TPE, if installed, otherwise random points) runs in parallel. The run must have
the same points and results, in the same order, as an undisturbed run. Each point must have one job,
and be ingested once by its own generator and once by the one that replaces it. The replay must have
the same decisions. Prints one line of JSON for each round, for ``scripts/soak.py``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ensemble_core.cli.main import main as ensemble

COMMAND = [sys.executable, "-m", "ensemble_core.cli"]
BOWL = "import sys; x, y = map(float, sys.argv[1:]); print((x - .3) ** 2 + (y - .1) ** 2)"
BESIDE = "use: random"
if find_spec("ensemble_optuna") is not None:
    BESIDE = "use: optuna"
STUDY = f"""
name: searched
jobs:
  - &sim
    name: sim
    command: [{json.dumps(sys.executable)}, -S, -c, {json.dumps(BOWL)}, "{{x}}", "{{y}}"]
    observe: {{regex: {{fields: {{E: '(.+)'}}}}}}
    result: {{E: last.E}}
  - {{<<: *sim, name: other}}
generators:
  - &first
    name: explore
    use: latin-hypercube
    group: sim
    variables: {{x: [-1.0, 2.0], y: [-1.0, 2.0]}}
    objectives: {{E: minimize}}
    at_once: 3
    with: {{points: 6, seed: 5}}
  - {{<<: *first, name: downhill, use: nelder-mead, enabled: false, with: {{tolerance: 0.02}}}}
  - {{<<: *first, name: beside, {BESIDE}, group: other, at_once: 1, with: {{seed: 5}},
     until: generator.beside.suggested >= 14}}
rules:
  - {{trigger: generator-exhausted, name: explore, action: {{name: switch, to: downhill,
     from: explore}}}}
"""
NAMES = ("explore", "downhill", "beside")
#: Maximum number of kills in a round, and last line of output at which one may happen.
MOST_KILLS, MOST_LINES = 10, 90


def output_of(folder: Path, *words: str) -> str:
    """Return the output of a command on the run in this folder."""
    return CliRunner().invoke(ensemble, [*words, "--state", f"{folder}/state"]).stdout


def points(folder: Path) -> dict[str, list[Any]]:
    """Return each generator's points, with their results, in the order of suggestion."""
    found = {}
    for name in NAMES:
        rows = json.loads(output_of(folder, "results", "last", name, "--json") or "[]")
        found[name] = sorted(rows, key=lambda row: row["point"])
    return found


def play(folder: Path, seed: int | None) -> tuple[list[str], int]:
    """Play a run to its end. Return the places of the kills, and the last exit code."""
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "ensemble.yaml").write_text(STUDY)
    words = [*COMMAND, "run", "ensemble.yaml", "--executor", "local", "--slots", "4", "--json"]
    words += ["--tag", "searched", "--or-resume", "--state", "state"]
    killed: list[str] = []
    with (folder / "said").open("wb") as said:
        while True:
            with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=said) as run:
                assert run.stdout is not None
                if seed is not None and len(killed) < MOST_KILLS:
                    enough = chance.randint(1, MOST_LINES)
                    seen = sum(1 for _ in itertools.islice(run.stdout, enough))
                    time.sleep(chance.choice((0, 0.01, 0.1)))
                    run.kill()
                    if seen == enough:
                        killed.append(f"after {enough} lines")
                for _ in run.stdout:
                    pass
            if run.returncode != -9:
                return killed, run.returncode


def ingest_errors(folder: Path, found: dict[str, list[Any]]) -> dict[str, list[str]]:
    """Return the points and jobs that were lost or repeated."""
    lines = [
        json.loads(line) for line in output_of(folder, "events", "last", "--json").splitlines()
    ]
    answered = {line["call"] for line in lines if line["type"] == "call-returned"}
    calls = {
        line["call"]: line
        for line in lines
        if line["type"] == "call" and line["kind"] in ("decision", "generator")
    }
    told: dict[str, Counter[tuple[str, int]]] = {name: Counter() for name in NAMES}
    for name, call in calls.items():
        if name in answered:
            for each in call["options"]["ingest"]:
                told[call["name"]][each.get("of", call["name"]), each["point"]] += 1
    wrong: dict[str, list[str]] = {"lost": [], "doubled": []}
    for name in NAMES:
        due = {(name, row["point"]) for row in found[name]}
        if name == "downhill":
            due |= {("explore", row["point"]) for row in found["explore"]}
        wrong["lost"] += [f"{name} did not ingest {each}" for each in due - told[name].keys()]
        wrong["doubled"] += [
            f"{name} ingested {each} {count} times"
            for each, count in told[name].items()
            if count > 1 or each not in due
        ]
    starts = Counter(line["job"] for line in lines if line.get("name") == "start")
    wrong["doubled"] += [f"{job} ran {count} times" for job, count in starts.items() if count > 1]
    jobs = sum(map(len, found.values()))
    if len(starts) != jobs:
        wrong["lost"].append(f"{len(starts)} jobs ran, and there are {jobs} points")
    return wrong


def one_round(folder: Path, seed: int, undisturbed: dict[str, list[Any]]) -> dict[str, Any]:
    """Play and check one round."""
    killed, code = play(folder, seed)
    found = points(folder)
    other = [] if code == 0 else [f"the last controller ended with {code}"]
    other += [
        f"{name}: {found[name]} are not {undisturbed[name]}"
        for name in NAMES
        if found[name] != undisturbed[name]
    ]
    wrong = ingest_errors(folder, found)
    replay = CliRunner().invoke(ensemble, ["replay", "last", "--state", f"{folder}/state"])
    differences = [replay.output] if replay.exit_code else []
    good = not (other or differences or wrong["lost"] or wrong["doubled"])
    if good:
        shutil.rmtree(folder)
    return {
        "round": seed, "good": good, "killed": killed, "jobs": sum(map(len, found.values())),
        **wrong, "fired_again": [], "replay_differences": differences, "other": other,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--base", type=Path, required=True)
    chosen = parser.parse_args()
    os.environ.pop("ENSEMBLE_STATE", None)
    base = chosen.base.absolute()
    play(base / "undisturbed", None)
    undisturbed = points(base / "undisturbed")
    good = all(len(undisturbed[name]) >= 6 for name in NAMES)
    for seed in range(chosen.seed, chosen.seed + chosen.rounds):
        found = one_round(base / f"round-{seed}", seed, undisturbed)
        good = good and found["good"]
        print(json.dumps(found), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
