"""Kills and resumes runs with an executor that sends events of all types with random content.

Each controller is forked from this process; some get a SIGKILL. Errors are: a journal that cannot
be read or resumed, or whose replay makes other decisions; a job without an end; a run that does not
end. Prints one line of JSON for each round: ``hostile.py --seed N --rounds N --base FOLDER``.
"""

from __future__ import annotations

import argparse
import decimal
import json
import math
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

from ensemble_testing import wait_until
from ensemble_testing.crash.rounds import Round

from ensemble_core.config import load_text
from ensemble_core.journal import writer as writer_module
from ensemble_core.journal.database import complete
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.replay import recover
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, StopRequested
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Emit, Executor, Run
from ensemble_core.runtime.controller import Runtime

TEXT = """
jobs:
  - {name: a, command: x, count: 5, observe: {json-lines: {}}}
  - {name: b, command: x}
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-finish, name: a, repetitions: 12, when: "status == 0", action: {name: submit, label: b}}
  - {trigger: job-exception, when: 'type == "odd"', action: {name: log, message: "{note}"}}
  - {trigger: metric, name: mean.a-T, when: "> 3", action: {name: log, message: warm}}
  - {trigger: metric, name: nodes.up, when: "> 3", action: {name: log, message: "up {value}"}}
  - {trigger: resize-granted, action: {name: log, message: "{size} {reason}"}}
"""
REGISTRY = discover(())
#: Seconds after which a controller counts as stuck.
_PATIENCE = 120.0


def inside_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


class Unshown:
    def __repr__(self) -> str:
        raise ValueError("no text")


class Text(str):
    """Subclass of ``str``."""


class Number(float):
    """Subclass of ``float``."""


def odd(chance: random.Random) -> Any:
    """Return a random value that a plugin could put into a field."""
    return chance.choice((
        None, True, False, 0, 1, -1, 5.0, math.nan, math.inf, -math.inf, 1e300, 1e12, -5e11,
        10**30, 10**400, 10**5000, "", "now", "a.0", "0", "\0", "\ud800", "\n\x1b[2J", "x" * 70_000,
        "y" * (5 << 20), b"\xff", (), (1, "a"), [], [[]], {}, {"T": 4.5}, {"status": 0},
        {"status": decimal.Decimal(0)}, {"type": "odd", "severity": 0, "note": {1, 2}},
        {"type": "odd", "severity": 1, "note": "n"}, {1: 2}, {None: 1}, {(1, 2): 3}, {math.nan: 1},
        {"T": "hot", "nodes.up": math.nan}, {"nodes.up": 10**400}, {"nodes.up": True}, {"T": (1,)},
        {1, 2}, object(), Unshown(), {"u": Unshown()}, Text("a.0"), Number(5.0), 3 + 4j,
        decimal.Decimal("1.5"), inside_itself(), {"in": inside_itself()}, nested(10), nested(50),
        nested(2000), range(3), iter("ab"), len, JobEvent(1.0, "a.0", "memo"),
    ))  # fmt: skip


class Hostile(Executor):
    """Queue that sends invalid events among the valid ones of each job."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "reattach", "resize"})

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._over = threading.Event()

    def open(self, run: Run, emit: Emit) -> None:
        self._emit, self._clock = emit, run.clock

    def resources(self) -> Mapping[str, float]:
        return {"nodes.up": 2.0}

    def rubbish(self, job: str) -> Event:
        chance = self._chance
        if chance.random() < 0.02:
            return object()  # type: ignore[return-value]
        classes = [one for one in Event.kinds.values() if one not in (StopRequested, ExecutorLost)]
        cls = chance.choice((JobEvent, *classes))
        usual: dict[str, Any] = {
            "timestamp": self._clock(), "job": job, "name": chance.choice(("memo", "exception")),
            "values": {"T": 2.0, "nodes.up": 4.0}, "observer": "o", "timer": "pace", "call": "c",
            "request": "r", "outcome": "granted", "message": "m", "error": "e",
            "by": "x", "notices": ("n",), "to": "bell", "action": {"name": "cancel", "label": "a"},
        }  # fmt: skip
        given = {field.name: usual[field.name] for field in fields(cls) if field.name in usual}
        for field in fields(cls):
            if chance.random() < 0.3:
                given[field.name] = odd(chance)
        # With these names, the event could be valid and end the job.
        if cls.type in ("job", "plugin") and given.get("name") in ("clean", "finish"):
            given["name"] = "memo"
        return cls(**given)

    def tell(self, events: Sequence[Event]) -> None:
        try:
            self._emit(events)
        except Exception as error:  # in a plugin, it would end the thread
            sys.stderr.write("".join(traceback.format_exception(error)))
            os._exit(3)

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            threading.Thread(target=self.live, args=(job.id,), daemon=True).start()

    def live(self, job: str) -> None:
        for name in ("submit", "alloc", "start", "finish", "clean"):
            time.sleep(self._chance.random() * 0.02)
            more = [self.rubbish(job) for _ in range(self._chance.randrange(4))]
            context = {"status": self._chance.choice((0, 256))} if name == "finish" else {}
            self.tell([*more, JobEvent(self._clock(), job, name, context)])

    def cancel(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self.tell([JobEvent(self._clock(), job, "clean")])

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        for job in jobs:
            threading.Thread(target=self.live, args=(job,), daemon=True).start()
        return dict.fromkeys(jobs, True)

    def close(self) -> None:
        return


def control(folder: Path, chance: random.Random) -> int:
    """Run or resume the run in a folder to its end; return 0 if it ended."""
    path = folder / NAME
    engine = None
    if path.exists():
        complete(path)  # the kill may have interrupted its creation
        with Journal(path) as journal:
            if journal.texts():
                engine = recover(journal, lambda text: load_text(text.text, REGISTRY), None).engine
    writer = JournalWriter(path)
    if engine is None:
        writer.describe({"tag": "run"})
        writer.store_file_version("e.yaml", TEXT, ())
    writer.begin(time.time(), {})
    Runtime(
        load_text(TEXT, REGISTRY),
        Hostile(chance),
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=folder / "output",
        journal=writer,
        maker="hostile",
        engine=engine,
    ).run()
    flushed = writer.flush(_PATIENCE)
    writer.close()
    return 0 if flushed else 4


def forked(work: Callable[[], int], errors: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 5
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int, seconds: float) -> int | None:
    """Return the wait status of a child, or ``None`` if it does not end in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := os.waitpid(pid, os.WNOHANG))[0]:
            return found[1]
        time.sleep(0.002)
    return None


def one_round(base: Path, seed: int) -> Round:
    found = Round("hostile", seed)
    chance = random.Random(f"hostile {seed}")
    folder = base / f"hostile-{seed}"
    folder.mkdir(parents=True)
    errors = folder / "errors"
    for _ in range(20):
        killing = len(found.killed) < 3
        inner = random.Random(chance.random())
        pid = forked(lambda inner=inner: control(folder, inner), errors)  # type: ignore[misc]
        status = ended(pid, chance.random() * 0.2 if killing else _PATIENCE)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if not killing:
                found.other.append(f"{folder} hangs")
                break
            found.killed.append("by time")
        elif status:
            found.other.append(f"{folder} ended with {status}: {errors.read_text()[-2000:]}")
            break
        else:
            break
    if not found.good:
        return found
    submitted, over = set(), set()
    try:
        with Journal(folder / NAME) as journal:
            journal.check()
            for row in journal.rows():
                event = row.event()
                if isinstance(event, JobEvent) and event.name == "clean":
                    over.add(event.job)
                for decision in json.loads(row.decisions or "[]"):
                    if decision["type"] == "submit":
                        submitted |= {job["id"] for job in decision["jobs"]}
            recover(journal, lambda text: load_text(text.text, REGISTRY), None)
    except Exception as error:
        found.replay_differences.append("".join(traceback.format_exception(error)))
    found.jobs = len(submitted)
    found.lost += sorted(submitted - over)
    if found.good:
        shutil.rmtree(folder)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--base", type=Path, required=True)
    chosen = parser.parse_args()
    writer_module._PAUSE = 0.002
    # A process with threads must not be forked. The thread of the plugin discovery ends soon.
    wait_until(lambda: threading.active_count() == 1)
    good = True
    for number in range(chosen.rounds):
        found = one_round(chosen.base.absolute(), chosen.seed + number)
        good = good and found.good
        print(json.dumps({**asdict(found), "good": found.good}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
