"""Kills and resumes controllers, and compares their runs with undisturbed ones.

Each controller is forked from this process, which saves the imports, and runs the usual command
line. Prints one line of JSON for each round; the exit code is 1 if one had an error:

    python rounds.py --seed 7 --rounds 3 retry chain
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import disk_queue
from ensemble_testing.crash.rounds import (
    Kill,
    Outcome,
    Round,
    compare,
    plan,
    play,
    replay_journal,
)
from ensembles import ENSEMBLES, LOOSE

PLUGIN = Path(disk_queue.__file__)


def arguments(folder: Path, seed: int, options: Sequence[str] = ()) -> list[str]:
    return [
        "run", "e.yaml", "--plugin", str(PLUGIN), "--executor", "disk", "--state", "state",
        "-o", f"folder={folder}", "-o", f"seed={seed}", *options,
    ]  # fmt: skip


# -- checks ----------------------------------------------------------------------------------------


@dataclass
class Facts(Outcome):
    """Outcome of a run, and facts from its queue: ends and run times of jobs by group."""

    truth: dict[str, Counter[str]]
    durations: dict[str, list[float]]


def facts(folder: Path, seed: int, code: int, round_: Round) -> Facts:
    """Read the facts from the queue's file and the journal."""
    record = replay_journal(folder, code, round_)
    lines = disk_queue.lines_of(folder)
    submits = Counter(line["submit"] for line in lines if "submit" in line)
    cancels: dict[str, float] = {}
    for line in lines:
        if "cancel" in line:
            cancels.setdefault(line["cancel"], line["time"])
        elif "asked for" in line:
            round_.other.append(f"{line['asked for']} was asked for although it was forgotten")
    truth: dict[str, Counter[str]] = {}
    durations: dict[str, list[float]] = {}
    for line in lines:
        if "submit" in line:
            judge(seed, line, cancels, truth, durations)
    surplus = submits.keys() - record.decided
    round_.other += [f"{job} was submitted, but never decided" for job in surplus]
    return Facts(code, record, submits, truth, durations)


def judge(
    seed: int,
    line: dict[str, Any],
    cancels: dict[str, float],
    truth: dict[str, Counter[str]],
    durations: dict[str, list[float]],
) -> None:
    """Add one job to the expected counts of its group."""
    name = line["submit"]
    group = name.rpartition(".")[0]
    life = {event.name: event for event in disk_queue.timeline(seed, line, cancels.get(name))}
    counts = truth.setdefault(group, Counter())
    if life["clean"].time > disk_queue.now():
        counts["active"] += 1
        return
    if "exception" in life and life["exception"].context["type"] == "cancel":
        counts["cancelled"] += 1
        return
    good = "exception" not in life and life["finish"].context["status"] == 0
    counts["success" if good else "failed"] += 1
    if "finish" in life:
        durations.setdefault(group, []).append(life["finish"].time - life["start"].time)


def check(found: Facts, reference: Facts | None, round_: Round) -> None:
    """Compare a run with its queue and, if given, with an undisturbed run."""
    round_.jobs += len(found.submits)
    round_.doubled += [job for job, count in found.submits.items() if count > 1]
    for group in found.record.report["groups"]:
        name = group["name"]
        truth = found.truth.get(name, Counter())
        never = group["submitted"] - sum(truth.values())
        for key in ("success", "failed"):
            if group[key] != truth[key]:
                round_.other.append(f"{name}: {group[key]} {key}, in the queue {truth[key]}")
        # Jobs that were cancelled before the queue got them count as cancelled.
        if never < 0 or group["cancelled"] != truth["cancelled"] + never:
            round_.other.append(f"{name}: counted {group}, in the queue {dict(truth)}")
        times = found.durations.get(name, [])
        told = group["mean_duration"]
        if times and not math.isclose(told or 0.0, sum(times) / len(times), rel_tol=1e-6):
            round_.other.append(f"{name}: mean duration {told}, in the queue {times}")
    if reference is None:
        return
    compare(found.code, found.record, found.submits, reference, round_)
    for path, value in reference.record.metrics.items():
        if path.endswith((".open", ".done", ".lost")):
            continue  # a run that ends with active jobs does not wait for their last events
        if path.startswith(("count.", "sum.watched", "min.watched", "mean.watched-x")):
            other = found.record.metrics.get(path)
            if other is None or not math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12):
                round_.other.append(f"metric {path}: {other}, undisturbed {value}")


def calls(folder: Path) -> Counter[tuple[str, str | None]]:
    """Count the first attempts of calls by function and job."""
    try:
        text = (folder / "calls.jsonl").read_text()
    except FileNotFoundError:
        return Counter()
    found = [json.loads(line) for line in text.splitlines()]
    return Counter((call["call"], call["job"]) for call in found if call["attempt"] == 1)


def check_calls(folder: Path, undisturbed: Path, found: Facts, round_: Round) -> None:
    """Check that only calls without a recorded result were repeated, as further attempts."""
    here, there = calls(folder), calls(undisturbed)
    for call, count in here.items():
        # Two first attempts: the recorded result was not used.
        if call[0] == "decide" and count > 1:
            round_.other.append(f"{call} was called {count} times as if for the first time")
    returned = Counter(
        row.data["call"] for row in found.record.rows if row.type == "call-returned" and row.data
    )
    for call_id, count in returned.items():
        if count > 1:
            round_.other.append(f"{call_id} returned {count} times")
    missing = {call[0] for call in there} - {call[0] for call in all_calls(folder)}
    if missing:
        round_.other.append(f"never called: {missing}")


def all_calls(folder: Path) -> list[tuple[str, int]]:
    try:
        text = (folder / "calls.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [(call["call"], call["attempt"]) for call in map(json.loads, text.splitlines())]


# -- rounds ----------------------------------------------------------------------------------------


class Undisturbed:
    """Cache of undisturbed runs, by ensemble and seed."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._kept: dict[tuple[str, int], tuple[Facts, Counter[str], Path]] = {}

    def get(self, name: str, seed: int) -> tuple[Facts, Counter[str], Path]:
        key = name, seed
        if key not in self._kept:
            round_ = Round(name, seed)
            folder = self._base / f"{name}-{seed}-undisturbed"
            text, args = ENSEMBLES[name], arguments(folder, seed)
            code, reached = play(folder, text, args, (), round_)
            found = facts(folder, seed, code, round_)
            check(found, None, round_)
            if not round_.good:
                raise AssertionError(f"undisturbed: {round_}")
            self._kept[key] = found, reached, folder
        return self._kept[key]


def one_round(
    base: Path, name: str, seed: int, undisturbed: Undisturbed, kills: Sequence[Kill] | None = None
) -> Round:
    """Play and check a run with kills. In case of an error, its folder is kept."""
    round_ = Round(name, seed)
    folder = base / f"{name}-{seed}-{'-'.join(map(str, kills)) if kills else 'killed'}".replace(
        " ", "_"
    )
    queue_seed = seed % 16
    try:
        reference, reached, where = undisturbed.get(name, queue_seed)
        chosen = kills if kills is not None else plan(random.Random(f"{name} {seed}"), reached)
        text, args = ENSEMBLES[name], arguments(folder, queue_seed)
        code, _ = play(folder, text, args, chosen, round_)
        found = facts(folder, queue_seed, code, round_)
        check(found, None if name in LOOSE else reference, round_)
        if name not in LOOSE:
            check_calls(folder, where, found, round_)
    except Exception as error:  # the round must be reported with its seed
        round_.other.append("".join(traceback.format_exception(error)))
    if round_.good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        round_.other.append(f"see {folder}")
    return round_


def rounds(base: Path, names: Sequence[str], seed: int, count: int) -> Iterator[Round]:
    undisturbed = Undisturbed(base)
    for number in range(count):
        for name in names:
            yield one_round(base, name, seed + number, undisturbed)


def every_place(base: Path, name: str, seed: int, step: int, start: int) -> Iterator[Round]:
    """Play one round with a kill at each place of an undisturbed run, or at each ``step``-th."""
    undisturbed = Undisturbed(base)
    _, reached, _ = undisturbed.get(name, seed % 16)
    for number in range(1 + start, reached.total() + 1, step):
        yield one_round(base, name, seed, undisturbed, [Kill(None, number)])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--every", type=int, metavar="STEP", help="kill once at every place")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--base", type=Path)
    parser.add_argument("names", nargs="*", default=[*ENSEMBLES])
    chosen = parser.parse_args()
    os.environ["ENSEMBLE_DEBUG"] = "1"
    if chosen.base:
        base = chosen.base.absolute()
        base.mkdir(parents=True, exist_ok=True)
    else:
        base = Path(tempfile.mkdtemp(prefix="crash-"))
    assert threading.active_count() == 1, "a process with threads must not be forked"
    good = True
    if chosen.every:
        found: Iterator[Round] = (
            each
            for name in chosen.names
            for each in every_place(base, name, chosen.seed, chosen.every, chosen.start)
        )
    else:
        found = rounds(base, chosen.names, chosen.seed, chosen.rounds)
    for each in found:
        good = good and each.good
        print(json.dumps({**asdict(each), "good": each.good}), flush=True)
    if good and not chosen.base:
        shutil.rmtree(base)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
