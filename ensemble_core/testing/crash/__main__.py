"""Crash rounds on an executor that runs real jobs; prints one line of JSON for each round.

    python -m ensemble_core.testing.crash local --seed 7 --rounds 3 -- --slots 8

What follows ``--`` are options of ``ensemble run``. Each job appends its id to a file when it runs:
each line must be there exactly once. The queue must be there: for ``flux`` an instance around it,
for ``slurm`` a cluster that this machine submits to. Exit code 1 if a round went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from ensemble_core.testing.crash.rounds import (
    Kill,
    Outcome,
    Round,
    compare,
    on_record,
    plan,
    play,
)

TEXT = """
jobs:
  - name: work
    command: [sh, -c, "echo {id} >> {here}/ran; sleep 0.0{index}; test {index} != 2"]
    count: 5
  - {name: again, command: [sh, -c, "echo {id} >> {here}/ran; sleep 0.02; test {index} != 0"]}
  - {name: server, command: [sh, -c, "echo {id} >> {here}/ran; exec sleep 600"]}
  - {name: tail, command: [sh, -c, "echo {id} >> {here}/ran"], count: 2}
rules:
  - id: begin
    trigger: start
    action: [{name: submit, label: server}, {name: submit, label: work}]
  - id: failed
    trigger: job-fail
    repetitions: 9
    action: {name: submit, label: again}
  - id: done
    trigger: metric
    name: count.work.finished
    when: 5
    action: {name: custom, label: more}
  - id: over
    trigger: job-success
    name: tail
    repetitions: 2
    action: {name: log, message: "{job}"}
  - id: stop
    trigger: metric
    name: count.tail.success
    when: 2
    action: {name: cancel, label: server}
  - id: told
    trigger: job-cancel
    repetitions: 9
    action: {name: log, message: "{job}"}
custom: |
  def more(**rest):
      return Action({"name": "submit", "label": "tail"})
"""


#: How many jobs ``TEXT`` leads to.
JOBS = 10


def ran(folder: Path) -> Counter[str]:
    """How often each job ran."""
    path = folder / "ran"
    return Counter(path.read_text().split() if path.exists() else ())


def left_behind(folder: Path) -> list[str]:
    """Processes that still work in this folder, after a moment."""
    deadline = time.monotonic() + 120
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    inside = os.readlink(entry / "cwd") == str(folder)
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                if inside or str(folder) in command:
                    found.append(f"{entry.name}: {command}")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def one(
    folder: Path, executor: str, options: Sequence[str], kills: Sequence[Kill], round_: Round
) -> tuple[Outcome, Counter[str]]:
    """Play one run and check it; its outcome, and the kill points that it reached."""
    command = ["run", "e.yaml", "--executor", executor, "--state", "state", *options]
    code, reached = play(folder, TEXT, command, kills, round_)
    record = on_record(folder, code, round_)
    counts = ran(folder)
    round_.jobs += len(counts)
    round_.doubled += [job for job, count in counts.items() if count > 1]
    round_.lost += sorted(record.decided - counts.keys())
    round_.other += [f"left behind: {each}" for each in left_behind(folder)]
    return Outcome(code, record, counts), reached


def rounds(
    base: Path, executor: str, options: Sequence[str], seed: int, count: int
) -> Iterator[Round]:
    """One run that nobody kills, then ``count`` that are killed and compared with it."""
    first = Round(f"{executor}, undisturbed", seed)
    reference, reached = one(base / "undisturbed", executor, options, (), first)
    yield first
    for number in range(seed, seed + count):
        round_ = Round(executor, number)
        folder = base / f"{executor}-{number}"
        try:
            kills = plan(random.Random(f"{executor} {number}"), reached)
            found, _ = one(folder, executor, options, kills, round_)
            compare(found.code, found.record, found.submits, reference, round_)
        except Exception as error:  # also of a round that broke off, the seed is to be told
            round_.other.append("".join(traceback.format_exception(error)))
        if round_.good:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            round_.other.append(f"see {folder}")
        yield round_


def main() -> int:
    """Play the rounds that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m ensemble_core.testing.crash", epilog="After --: options of ensemble run."
    )
    parser.add_argument("executor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--base", type=Path)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen, options = parser.parse_args(words[:end]), words[end + 1 :]
    os.environ["ENSEMBLE_DEBUG"] = "1"
    base = (chosen.base or Path(tempfile.mkdtemp(prefix="crash-"))).absolute()
    assert threading.active_count() == 1, "a process with threads must not be forked"
    good = True
    for each in rounds(base, chosen.executor, options, chosen.seed, chosen.rounds):
        good = good and each.good
        print(json.dumps({**asdict(each), "good": each.good}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
