"""Crash rounds: kills the controllers of a run with SIGKILL, resumes the run until it is over, and
compares its journal with that of an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ensemble_core.cli import (  # noqa: F401  (so that children need not)
    error_format,
    json_output,
    run_session,
)
from ensemble_core.cli.commands import cancel, resume, run  # noqa: F401  (the same)
from ensemble_core.cli.main import main as ensemble
from ensemble_core.cli.options import KeptRun
from ensemble_core.display import event_lines, output_thread, summary  # noqa: F401  (the same)
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.event_encoding import JournalRow
from ensemble_core.journal.replay import Replay
from ensemble_core.model.decisions import Fired, Submit
from ensemble_core.model.events import Problem
from ensemble_core.session import controlled_run, executor_choice, interrupts  # noqa: F401  (the same)
from ensemble_testing.crash.kill_points import instrument, kill_at, reached

#: Words of the message about an executor whose events are wrong, which the controller corrects.
BROKEN = "violates its contract"
#: Seconds after which a controller counts as stuck. On a machine with a load of 60 and two cores,
#: rounds on real queues took more than 100 s.
_PATIENCE = float(os.environ.get("ENSEMBLE_CRASH_PATIENCE", "300"))


@dataclass
class Round:
    """Result of a crash round: the kills, and the faults found."""

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
    """The time of a kill: at a kill point, or after some seconds."""

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
    """Run one controller. Return its exit code and the places reached.

    A negative exit code is the signal that ended the controller. The places are known only if the
    controller survived.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()  # saves the imports of a new process
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
            faulthandler.enable(2)  # a stuck controller gets SIGABRT, and shows what its threads do
            instrument(random.Random(seed))
            kill_at(kill.kind, kill.number)
            ensemble(list(args))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(writing, json.dumps(reached).encode())
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
                last = "\n".join(last_output(folder).splitlines()[-60:])
                raise TimeoutError(f"a controller did not end within {_PATIENCE:.0f} s:\n{last}")
            time.sleep(0.001)
        told = b"".join(iter(lambda: os.read(reading, 65536), b""))
    finally:
        os.close(reading)
    return os.waitstatus_to_exitcode(status), Counter(json.loads(told or b"{}"))


def tag_of(folder: Path) -> str | None:
    """Return the tag of the only run in this folder, if it has started."""
    with contextlib.suppress(FileNotFoundError):
        for found in sorted((folder / "state" / "runs").iterdir()):
            return found.name
    return None


def play(
    folder: Path, text: str, args: Sequence[str], kills: Sequence[Kill], round_: Round
) -> tuple[int, Counter[str]]:
    """Run an ensemble to its end with these kills. Return the exit code and the places reached."""
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
    said = last_output(folder)
    if (
        code == 2
        and round_.killed
        and ("was killed before its first event" in said or "there is no run" in said)
    ):
        # killed before its first event: start it again
        shutil.rmtree(folder / "state")
        return controller(folder, args, Kill(), f"{round_.seed} again")
    ended = re.search(r"has ended, with exit code (\d+)", said)
    if code == 2 and round_.killed and ended:
        code = int(ended.group(1))  # killed after its end was recorded
    return code, reached


def last_output(folder: Path) -> str:
    """Return the last output of the newest controller."""
    return (folder / "said.txt").read_text().rpartition("== ")[2]


# -- results ---------------------------------------------------------------------------------------


@dataclass
class Record:
    """The journal of a run, and the result of its replay."""

    report: dict[str, Any]
    metrics: dict[str, float]
    fired: Counter[str]
    rows: list[JournalRow]
    #: Ids of the jobs whose submission was decided.
    decided: set[str]


def replay_journal(folder: Path, code: int, round_: Round) -> Record:
    """Read a run's journal and replay it."""
    tag = tag_of(folder)
    assert tag is not None, last_output(folder)
    rows: list[JournalRow] = []
    fired: Counter[str] = Counter()
    decided: set[str] = set()
    with KeptRun(str(folder / "state"), tag) as past:
        past.journal.check()
        replay = Replay(past.journal, past.loading, compare=True)
        try:
            for row, _, decisions in replay.steps():
                rows.append(row)
                event = row.event()
                if isinstance(event, Problem) and BROKEN in event.message:
                    round_.other.append(event.message)
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
            round_.replay_differences.append("the report differs when it starts from the snapshot")
        if repr(dict(kept.snapshot())) != repr(dict(replay.engine.snapshot())):
            round_.replay_differences.append("the metrics differ when they start from the snapshot")
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
class Outcome:
    """The result of a finished run. ``submits`` counts the submissions of each job."""

    code: int
    record: Record
    submits: Counter[str]


def compare(
    code: int, record: Record, submits: Counter[str], reference: Outcome, round_: Round
) -> None:
    """Compare jobs, rules and counts with those of the uninterrupted run."""
    round_.lost += sorted(reference.submits.keys() - submits.keys())
    surplus = sorted(submits.keys() - reference.submits.keys())
    if surplus:
        round_.other.append(f"submitted {surplus}, unlike the undisturbed run")
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


# -- kills -----------------------------------------------------------------------------------------


#: Kill points between a decision and its effect.
_BETWEEN = (
    "after a write", "before an order", "after an order", "before a submit", "before a cancel",
    "before a resize", "before a call", "after a call", "submit a job", "resized", "told",
)  # fmt: skip


def plan(chance: random.Random, reached: Counter[str]) -> list[Kill]:
    """Choose a few kills, most at places that the uninterrupted run reached, some at random
    times.
    """
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
