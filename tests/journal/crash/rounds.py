"""Runs ensembles with controllers that are killed and resumed, and compares with undisturbed runs.

Each controller is a child of this process, forked so that nothing has to be imported anew, and runs
the very command line that a user would. Prints one line of JSON for each round, exit code 1 if any
was not as it should be:

    python rounds.py --seed 7 --rounds 3 retry chain
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import disk_queue
import doomed
import points
from ensembles import ENSEMBLES, LOOSE

from ensemble_core.cli import (  # noqa: F401  (so that children need not)
    console,
    discovery,
    error_format,
    executor_choice,
    interrupts,
    json_lines,
    output,
    run_control,
    run_session,
    summary,
)
from ensemble_core.cli.commands import cancel, resume, run  # noqa: F401  (the same)
from ensemble_core.cli.kept_run import Past
from ensemble_core.cli.main import main as ensemble
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.codec import Row
from ensemble_core.journal.replay import Replay
from ensemble_core.model.decisions import Fired, Submit

PLUGIN = Path(disk_queue.__file__)
#: Seconds after which a controller counts as stuck.
_PATIENCE = float(os.environ.get("ENSEMBLE_CRASH_PATIENCE", "30"))


@dataclass
class Round:
    """What came of one run, and what was wrong with it."""

    name: str
    seed: int
    killed: list[str] = field(default_factory=list)
    jobs: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    fired_again: list[str] = field(default_factory=list)
    replay_differences: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (
            self.lost or self.doubled or self.fired_again or self.replay_differences or self.other
        )


# -- controllers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kill:
    """When a controller is killed: at a place, or after some seconds."""

    kind: str | None = None
    number: int = 0
    after: float | None = None

    def __str__(self) -> str:
        if self.after is not None:
            return f"after {self.after:.4f} s"
        return f"{self.kind or 'place'} {self.number}"


def controller(
    folder: Path, args: Sequence[str], kill: Kill, seed: str
) -> tuple[int, Counter[str]]:
    """Run one controller; its exit code (negative: the signal that ended it) and the places that it
    reached, if it lived to tell."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        code = 70
        try:
            os.chdir(folder)
            said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(said, stream)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            print(f"== {' '.join(args)}  [{kill}]", flush=True)
            doomed.arm(random.Random(seed))
            points.doom(kill.kind, kill.number)
            ensemble(list(args))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(writing, json.dumps(points.reached).encode())
            os._exit(code)
    os.close(writing)
    began = time.monotonic()
    try:
        if kill.after is not None:
            time.sleep(kill.after)
            os.kill(child, signal.SIGKILL)
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - began > _PATIENCE:
                os.kill(child, signal.SIGABRT)
                os.waitpid(child, 0)
                raise TimeoutError(f"a controller did not end within {_PATIENCE:.0f} s")
            time.sleep(0.001)
        told = b"".join(iter(lambda: os.read(reading, 65536), b""))
    finally:
        os.close(reading)
    return os.waitstatus_to_exitcode(status), Counter(json.loads(told or b"{}"))


def arguments(folder: Path, seed: int, options: Sequence[str] = ()) -> list[str]:
    return [
        "run", "e.yaml", "--plugin", str(PLUGIN), "--executor", "disk", "--state", "state",
        "-o", f"folder={folder}", "-o", f"seed={seed}", *options,
    ]  # fmt: skip


def tag_of(folder: Path) -> str | None:
    """The tag of the one run in this folder, if it came so far."""
    with contextlib.suppress(FileNotFoundError):
        for found in sorted((folder / "state" / "runs").iterdir()):
            return found.name
    return None


def play(
    folder: Path, text: str, args: Sequence[str], kills: Sequence[Kill], round_: Round
) -> tuple[int, Counter[str]]:
    """Run to the end, being killed on the way; the exit code and the places that were reached."""
    folder.mkdir(parents=True)
    (folder / "e.yaml").write_text(text.lstrip())
    command = args
    for number, kill in enumerate([*kills, Kill()]):
        code, reached = controller(folder, command, kill, f"{round_.seed} {number}")
        if code != -signal.SIGKILL:
            break
        round_.killed.append(str(kill))
        tag = tag_of(folder)
        if tag is not None:
            command = ["resume", tag, "--state", "state"]
    said = last_words(folder)
    if (
        code == 2
        and round_.killed
        and ("nothing happened in it" in said or "there is no run" in said)
    ):
        # Killed before anything happened: there is nothing to resume, it is started anew.
        shutil.rmtree(folder / "state")
        return controller(folder, args, Kill(), f"{round_.seed} again")
    ended = re.search(r"has ended, with exit code (\d+)", said)
    if code == 2 and round_.killed and ended:
        code = int(ended.group(1))  # killed after its end was on record
    return code, reached


def last_words(folder: Path) -> str:
    """What the newest controller said."""
    return (folder / "said.txt").read_text().rpartition("== ")[2]


# -- what came of it -------------------------------------------------------------------------------


@dataclass
class Record:
    """What the journal has of a run, and what deciding it anew comes to."""

    report: dict[str, Any]
    metrics: dict[str, float]
    fired: Counter[str]
    rows: list[Row]
    #: Our ids of the jobs whose submission was decided.
    decided: set[str]


def on_record(folder: Path, code: int, round_: Round) -> Record:
    """Read a run's journal, and decide everything anew from that."""
    tag = tag_of(folder)
    assert tag is not None
    rows: list[Row] = []
    fired: Counter[str] = Counter()
    decided: set[str] = set()
    with Past(str(folder / "state"), tag) as past:
        past.journal.check()
        replay = Replay(past.journal, past.loading, compare=True)
        try:
            for row, _, decisions in replay.steps():
                rows.append(row)
                for decision in decisions:
                    if isinstance(decision, Fired):
                        fired[str(decision.rule)] += 1
                    elif isinstance(decision, Submit):
                        decided.update(job.id for job in decision.jobs)
        except EnsembleError as error:
            round_.replay_differences.append(f"{error}")
        report = replay.engine.report().to_dict()
        kept = past.recover().engine
        if kept.report().to_dict() != report:
            round_.replay_differences.append("from the snapshot the report is another")
        if repr(dict(kept.snapshot())) != repr(dict(replay.engine.snapshot())):
            round_.replay_differences.append("from the snapshot the metrics are others")
        sessions = past.journal.sessions()
        outcome = sessions[-1].outcome or {}
        if not outcome.get("over") or outcome.get("exit_code") != code:
            round_.other.append(f"exit code {code}, but the journal says {outcome}")
        metrics = dict(replay.engine.snapshot())
    for rule in report["rules"]:
        if rule["fired"] != fired[rule["id"]] or rule["fired"] > rule["repetitions"]:
            round_.fired_again.append(
                f"{rule['id']}: {fired[rule['id']]} decided, {rule['fired']} counted"
            )
    return Record(report, metrics, fired, rows, decided)


@dataclass
class Facts:
    """What is known of a run that is over."""

    code: int
    record: Record
    submits: Counter[str]
    truth: dict[str, Counter[str]]
    durations: dict[str, list[float]]


def facts(folder: Path, seed: int, code: int, round_: Round) -> Facts:
    """Read the queue's file and the journal."""
    record = on_record(folder, code, round_)
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
    """Count one job as its group's counts should have it."""
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
    """Hold a run to what must be so for any, and to the one that was not disturbed."""
    round_.jobs += len(found.submits)
    round_.doubled += [job for job, count in found.submits.items() if count > 1]
    for group in found.record.report["groups"]:
        name = group["name"]
        truth = found.truth.get(name, Counter())
        never = group["submitted"] - sum(truth.values())
        for key in ("success", "failed"):
            if group[key] != truth[key]:
                round_.other.append(f"{name}: {group[key]} {key}, in the queue {truth[key]}")
        # Jobs that were cancelled before they reached the queue are counted as cancelled.
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
        if path.startswith(("count.", "sum.watched", "min.watched", "mean.watched-x")):
            other = found.record.metrics.get(path)
            if other is None or not math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12):
                round_.other.append(f"metric {path}: {other}, undisturbed {value}")


def compare(
    code: int, record: Record, submits: Counter[str], reference: Facts, round_: Round
) -> None:
    """Hold jobs, rules and counts to those of the undisturbed run."""
    round_.lost += sorted(reference.submits.keys() - submits.keys())
    surplus = sorted(submits.keys() - reference.submits.keys())
    if surplus:
        round_.other.append(f"submitted {surplus}, which the undisturbed run did not")
    if code != reference.code:
        round_.other.append(f"exit code {code}, undisturbed {reference.code}")
    expected = reference.record.fired
    for rule in expected | record.fired:
        said = f"{rule} fired {record.fired[rule]} times, undisturbed {expected[rule]}"
        if record.fired[rule] > expected[rule]:
            round_.fired_again.append(said)
        elif record.fired[rule] < expected[rule]:
            round_.other.append(said)
    for here, there in zip(record.report["groups"], reference.record.report["groups"], strict=True):
        for key in ("submitted", "success", "failed", "cancelled"):
            if here[key] != there[key]:
                round_.other.append(f"{here['name']}: {here[key]} {key}, undisturbed {there[key]}")


def calls(folder: Path) -> Counter[tuple[str, str | None]]:
    """How often each function was called for each job: at least once."""
    try:
        text = (folder / "calls.jsonl").read_text()
    except FileNotFoundError:
        return Counter()
    found = [json.loads(line) for line in text.splitlines()]
    return Counter((call["call"], call["job"]) for call in found if call["attempt"] == 1)


def check_calls(folder: Path, undisturbed: Path, found: Facts, round_: Round) -> None:
    """A call is made again only where its result is not on record, and says so."""
    here, there = calls(folder), calls(undisturbed)
    for call, count in here.items():
        # The same first attempt twice: a result that was on record was not taken from there.
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


#: Between what is decided and what is done about it.
_BETWEEN = (
    "after a write", "before an order", "after an order", "before a submit", "before a cancel",
    "before a resize", "before a call", "after a call", "submit a job", "resized", "told",
)  # fmt: skip


class Undisturbed:
    """Runs that nobody killed, by ensemble and seed."""

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


def plan(chance: random.Random, reached: Counter[str]) -> list[Kill]:
    """A few kills: most at places that the undisturbed run reached, some at any moment."""
    kills = []
    for _ in range(chance.choice((1, 1, 2, 3, 5))):
        way = chance.random()
        if way < 0.3:
            kills.append(Kill(None, chance.randint(1, max(1, int(reached.total() * 1.1)))))
        elif way < 0.6:
            kind = chance.choice(_BETWEEN)
            kills.append(Kill(kind, chance.randint(1, max(1, reached[kind]))))
        elif way < 0.85:
            kind = chance.choice([*reached, "before Resumed", "after Resumed", "found a job"])
            kills.append(Kill(kind, chance.randint(1, max(1, reached[kind]))))
        else:
            kills.append(Kill(after=chance.uniform(0.0, 0.6)))
    return kills


def one_round(
    base: Path, name: str, seed: int, undisturbed: Undisturbed, kills: Sequence[Kill] | None = None
) -> Round:
    """One run that is killed and resumed, checked. Its folder stays where something was wrong."""
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
    except Exception as error:  # also of a round that broke off, the seed is to be told
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
    """One run for each place that an undisturbed run reaches, or each ``step``-th of them."""
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
