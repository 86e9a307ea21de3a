"""Rounds of runs that are stopped and killed at random moments and resumed until they are over.

A round is one study whose controllers get SIGTERM, SIGHUP, SIGINT or SIGKILL, sometimes twice, while
functions are under way, retries wait, jobs are held, and instances of ``each`` and ``for`` count.
Its tables (``ensemble results``) must be those of a run that nobody disturbed. Prints a line of JSON
for each round, as ``scripts/soak.py`` reads them; used by a test as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["main", "played", "undisturbed"]

COMMAND = [sys.executable, "-m", "ensemble_core.cli"]
#: A controller that hears of Ctrl-C from its first line on: while Python itself begins, that ends it
#: in many ways, none of which is ours.
BEGIN = """
import signal
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
from ensemble_core.cli.main import main
main()
"""
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
STUDY = """
name: stops
on_stop: {on_stop}
limits: {{submits_per_second: 200, jobs: 1000}}
logging: {{heartbeat: 0.3}}
jobs:
  - name: sim
    command: '{{here}}/sim.sh {{T}} {{replica}} {{attempt}}'
    parameters: {{T: [1, 2, 3]}}
    replicas: 2
    at_once: 4
    observe: {{json-lines: {{}}}}
    result: {{e: mean.e, m: max.e}}
    retry: {{times: 2, wait: 0.2s, when: exit_code == 3}}
  - name: post
    command: '{{here}}/sim.sh {{T}} 9 1'
    parameters: {{T: null}}
    observe: {{json-lines: {{}}}}
    result: {{e: last.e}}
  - {{name: more, command: '{{here}}/sim.sh {{x}} 8 1', parameters: {{x: null}},
     observe: {{json-lines: {{}}}}, result: {{e: last.e}}}}
custom: |
  import time
  def more(**kwargs):
      time.sleep(0.2)
      return Action({{"name": "submit", "label": "more", "with": {{"parameters": {{"x": 7}}}}}})
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{id: each-T, trigger: idle, name: sim, each: [T], action: {{name: vary, label: post}}}}
  - {{id: ask, trigger: idle, name: sim, action: {{name: custom, label: more}}}}
  - {{id: held, trigger: heartbeat, for: 2, when: metric("count.sim.done") >= 1,
     action: {{name: log, message: looked}}}}
results:
  sim: {{of: sim, by: [T], columns: {{e: mean.e, m: max.m, tried: max.attempt, n: n}}}}
  post: {{of: post, by: [T], columns: {{e: mean.e, n: n}}}}
  more: {{of: more, by: [x], columns: {{e: mean.e, n: n}}}}
"""
#: Two of the six fail at first; each prints rows over half a second.
SIM = """#!/bin/sh
for row in 1 2 3; do
    echo "{\\"e\\": $(($1 * 100 + $2 * 10 + row))}"
    sleep 0.1
done
if [ "$1" = 2 ] && [ "$3" = 0 ]; then exit 3; fi
"""
TABLES = ("sim", "post", "more")


#: Exit codes of controllers that a signal ended.
INTERRUPTED = frozenset(code for n in SIGNALS for code in (-n, 128 + n))


def prepared(folder: Path, on_stop: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "ensemble.yaml").write_text(STUDY.format(on_stop=on_stop))
    (folder / "sim.sh").write_text(SIM)
    (folder / "sim.sh").chmod(0o755)
    return folder


def tables(folder: Path) -> dict[str, Any]:
    """The run's tables, as users see them; which value came first is chance."""
    found = {}
    for name in TABLES:
        words = [*COMMAND, "results", "last", name, "--json", "--state", "state"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        found[name] = sorted(json.loads(done.stdout), key=json.dumps)
    return found


def words_of(folder: Path, executor: str, options: Sequence[str]) -> list[str]:
    # The tag is what a queue knows a run by: one of each round's own, also in other processes.
    tag = f"stops-{zlib.crc32(bytes(folder)):08x}"
    same = ["--tag", tag, "--or-resume", "--state", "state", "--quiet"]
    return [
        sys.executable,
        "-c",
        BEGIN,
        "run",
        "ensemble.yaml",
        "--executor",
        executor,
        *options,
        *same,
    ]


def undisturbed(folder: Path, executor: str, options: Sequence[str]) -> dict[str, Any]:
    """The tables of a run that nobody disturbs."""
    prepared(folder, "keep")
    subprocess.run(words_of(folder, executor, options), cwd=folder, check=True, capture_output=True)
    return tables(folder)


def disturb(process: subprocess.Popen[bytes], chance: random.Random) -> list[str]:
    """Wait for a moment, and end a controller; what was sent."""
    try:
        process.wait(chance.uniform(0.2, 2.5))
    except subprocess.TimeoutExpired:
        pass
    else:
        return []
    sent = [chance.choice(SIGNALS)]
    if chance.random() < 0.2:
        sent.append(chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL)))
    for at, number in enumerate(sent):
        if at:
            time.sleep(chance.uniform(0.3, 0.8))
        if process.poll() is None:
            process.send_signal(number)
    process.wait(300)
    return [number.name for number in sent]


def played(
    folder: Path, seed: int, executor: str, options: Sequence[str], expected: dict[str, Any]
) -> dict[str, Any]:
    """One round; what was wrong with it, by kind."""
    chance = random.Random(seed)
    prepared(folder, chance.choice(("keep", "cancel")))
    killed: list[str] = []
    code = 0
    other: list[str] = []
    for number in range(40):
        with (folder / f"said-{number}").open("wb") as said:
            process = subprocess.Popen(
                words_of(folder, executor, options),
                cwd=folder,
                stdout=said,
                stderr=said,
                preexec_fn=partial(signal.pthread_sigmask, signal.SIG_BLOCK, [signal.SIGINT]),
            )
            try:
                if number < 8:
                    killed += disturb(process, chance)
                code = process.wait(300)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                other.append(f"controller {number} did not end within 300 s")
                break
        if code not in INTERRUPTED:
            break
    if code and not other:
        other.append(f"the last controller ended with {code}")
    try:
        found = tables(folder)
        wrong = [name for name in TABLES if found[name] != expected[name]]
        other += [f"table {name}: {found[name]} and not {expected[name]}" for name in wrong]
        words = [*COMMAND, "replay", "last", "--state", "state"]
        replay = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        differences = [replay.stdout + replay.stderr] if replay.returncode else []
    except RuntimeError as error:
        other.append(str(error))
        differences = []
    good = not other and not differences
    if good:
        shutil.rmtree(folder)
    return {
        "seed": seed, "good": good, "killed": killed, "jobs": 10, "lost": [], "doubled": [],
        "fired_again": [], "replay_differences": differences, "other": other,
    }  # fmt: skip


def rounds(
    base: Path, seed: int, count: int, executor: str, options: Sequence[str]
) -> Iterator[dict[str, Any]]:
    expected = undisturbed(base / f"undisturbed-{seed}", executor, options)
    for each in range(seed, seed + count):
        yield played(base / f"round-{each}", each, executor, options, expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--on", default="local", help="the executor")
    parser.add_argument("options", nargs="*", help="of ensemble run, after --")
    chosen = parser.parse_args()
    # Of a session of their own: what the terminal sends is for us.
    os.environ.pop("ENSEMBLE_STATE", None)
    good = True
    given = chosen.base.absolute(), chosen.seed, chosen.rounds, chosen.on, chosen.options
    for found in rounds(*given):
        good = good and found["good"]
        print(json.dumps(found), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
