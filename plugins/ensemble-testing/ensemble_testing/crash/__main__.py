"""Program that kills and resumes runs on an executor, and prints a line of JSON for each run.

    python -m ensemble_testing.crash local --seed 7 --rounds 3 -- --slots 8

Arguments after ``--`` are options of ``ensemble run``. The queue must be reachable: for ``flux``,
start it in a Flux instance. The exit code is 1 if a check failed.
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

from ensemble_testing.crash.rounds import (
    Kill,
    Outcome,
    Round,
    compare,
    plan,
    play,
    replay_journal,
    tag_of,
)
from ensemble_testing.run_process import cancel_runs, held_jobs, slots_at_once

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


#: Changes for a queue with one slot, where all jobs would wait for the server job: this job is
#: submitted last and cancelled once it runs.
_ONE_SLOT = (
    (
        '; exec sleep 600"]',
        '; echo \'{\\"up\\": 1}\'; exec sleep 600"], observe: {json-lines: {}}',
    ),
    ("[{name: submit, label: server}, {name: submit, label: work}]", "{name: submit, label: work}"),
    (
        "action: {name: cancel, label: server}\n",
        """action: {name: submit, label: server}
  - {id: up, trigger: observed, name: server, action: {name: cancel, label: server}}
""",
    ),
)
#: Number of jobs in ``TEXT``.
JOBS = 10


def text_for(slots: int | None) -> str:
    """Return the ensemble file for a queue with this number of slots (``None``: unknown)."""
    text = TEXT
    for usual, alone in _ONE_SLOT if (slots or 1) == 1 else ():
        assert usual in text
        text = text.replace(usual, alone)
    return text


def ran(folder: Path) -> Counter[str]:
    """Return how often each job ran, from a file to which every job appends its id."""
    path = folder / "ran"
    return Counter(path.read_text().split() if path.exists() else ())


def leftover_processes(folder: Path, tag: str, patience: float = 120) -> list[str]:
    """Return processes that still work in this folder or belong to its run, after a short wait."""
    deadline = time.monotonic() + patience
    mark = f"ENSEMBLE_RUN={tag}\0".encode()
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    inside = os.readlink(entry / "cwd") == str(folder)
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    ours = mark in (entry / "environ").read_bytes()
                except OSError:
                    continue
                if inside or ours or str(folder) in command:
                    found.append(f"{entry.name}: {command}")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def one(
    folder: Path,
    text: str,
    executor: str,
    options: Sequence[str],
    kills: Sequence[Kill],
    round_: Round,
) -> tuple[Outcome, Counter[str]]:
    """Run one ensemble with these kills and check the run. Return its outcome and the kill points
    reached.
    """
    command = ["run", "e.yaml", "--executor", executor, "--state", "state", *options]
    code, reached = play(folder, text, command, kills, round_)
    record = replay_journal(folder, code, round_)
    counts = ran(folder)
    round_.jobs += len(counts)
    round_.doubled += [job for job, count in counts.items() if count > 1]
    round_.lost += sorted(record.decided - counts.keys())
    round_.other += [
        f"left behind: {each}" for each in leftover_processes(folder, tag_of(folder) or "")
    ]
    return Outcome(code, record, counts), reached


def rounds(
    base: Path, text: str, executor: str, options: Sequence[str], seed: int, count: int
) -> Iterator[Round]:
    """Run one uninterrupted run, then ``count`` killed ones, and compare these with the first."""
    reference: tuple[Outcome, Counter[str]] | None = None
    for number in range(seed - 1, seed + count):
        first = reference is None
        round_ = Round(f"{executor}, undisturbed" if first else executor, max(number, seed))
        folder = base / ("undisturbed" if first else f"{executor}-{number}")
        try:
            if reference is None:
                reference = one(folder, text, executor, options, (), round_)
            else:
                outcome, reached = reference
                kills = plan(random.Random(f"{executor} {number}"), reached)
                found, _ = one(folder, text, executor, options, kills, round_)
                compare(found.code, found.record, found.submits, outcome, round_)
        except TimeoutError as error:
            round_.other.append(str(error))
        except Exception as error:  # print the seed even if the round fails
            round_.other.append("".join(traceback.format_exception(error)))
        if round_.good:
            if not first:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            round_.other += [held_jobs(folder / "state"), f"see {folder}"]
            cancel_runs(folder / "state")
        yield round_
        if reference is None:
            return


def main() -> int:
    """Run the rounds that the command line requests."""
    parser = argparse.ArgumentParser(
        prog="python -m ensemble_testing.crash", epilog="After --: options of ensemble run."
    )
    parser.add_argument("executor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--slots", type=int, help="concurrent jobs, if no gauge reports them")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen, options = parser.parse_args(words[:end]), words[end + 1 :]
    os.environ["ENSEMBLE_DEBUG"] = "1"
    base = (chosen.base or Path(tempfile.mkdtemp(prefix="crash-"))).absolute()
    assert threading.active_count() == 1, "a process with threads must not be forked"
    text = text_for(chosen.slots or slots_at_once(chosen.executor, options))
    good = True
    for each in rounds(base, text, chosen.executor, options, chosen.seed, chosen.rounds):
        good = good and each.good
        print(json.dumps({**asdict(each), "good": each.good}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
