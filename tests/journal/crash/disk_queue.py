"""Simulated queue that records all requests in one file, so that tests can count submits.

Each submit, cancel and resize appends a line. The events of a job depend on the queue's seed, the
job's ID and the times in these lines alone. So they are the same in each process that opens the
file, and jobs continue without a controller, as in a real queue. Use it as a plugin:
``ensemble run --plugin disk_queue.py --executor disk``.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ensemble_testing.crash.kill_points import reach

from ensemble_core import (
    Event,
    Executor,
    ExecutorPlugin,
    Job,
    JobEvent,
    ResizeOutcome,
    Run,
    WhenBusy,
    hookimpl,
)
from ensemble_core.plugin.executor import Emit

__all__ = ["NAME", "DiskQueue", "Told", "ensemble_executors", "lines_of", "timeline"]

NAME = "queue.jsonl"
_SIZE = 4


class Told(NamedTuple):
    """One event of a job."""

    time: float
    name: str
    context: Mapping[str, Any]


def now() -> float:
    """Return the time of the queue's own clock, which tests do not change."""
    return time.clock_gettime(time.CLOCK_REALTIME)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the requests to the queue in this folder."""
    try:
        text = (folder / NAME).read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]


def timeline(seed: int, line: Mapping[str, Any], cancelled: float | None) -> list[Told]:
    """Return all events of a job, from the line of its submit and the time of its cancel."""
    name, begun = line["submit"], line["time"]
    # Seconds between successive events: almost none, or enough for a kill between them.
    step = (1e-5, 1.5e-3)[seed % 2]
    chance = random.Random(f"{seed} {name}")
    waits, runs = chance.uniform(0.0, 0.01), chance.uniform(0.001, line["lasts"])
    if line["lasts"] >= 60.0:
        runs = line["lasts"]
    fails = chance.random() < line["fails"]
    rejected = fails and chance.random() < 0.3
    events = [
        Told(begun, "submit", {"queue_id": f"q-{name}"}),
        Told(begun + step, "depend", {}),
        Told(begun + 2 * step, "priority", {"priority": 16}),
    ]
    at = begun + 3 * step + waits
    if rejected:
        note = "no node fits"
        events.append(Told(at, "exception", {"type": "exec", "severity": 0, "note": note}))
        events.append(Told(at + step, "clean", {}))
    else:
        events.append(Told(at, "alloc", {}))
        where = {"stdout": line["output"]} if line.get("output") else {}
        events.append(Told(at + step, "start", where))
        at += step + runs
        events.append(Told(at, "finish", {"status": 256 if fails else 0}))
        events += [
            Told(at + step * n, e, {}) for n, e in enumerate(("release", "free", "clean"), 1)
        ]
    if cancelled is None:
        return events
    kept = [event for event in events if event.time <= cancelled]
    names = [event.name for event in kept]
    if "finish" in names or "exception" in names:
        return events
    at = max(cancelled, kept[-1].time) + step
    kept.append(Told(at, "exception", {"type": "cancel", "severity": 0, "note": ""}))
    if "start" in names:
        kept.append(Told(at + step, "finish", {"status": 15}))
    if "alloc" in names:
        kept.append(Told(at + 2 * step, "free", {}))
    kept.append(Told(at + 3 * step, "clean", {}))
    return kept


class DiskQueue(Executor):
    """Executor of the queue in ``folder``. With ``forgets``, the queue forgets jobs that are over."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "resize", "reattach", "detach"}
    )

    def __init__(self, folder: str, seed: int = 0, forgets: bool = False) -> None:
        self._folder = Path(folder)
        self._seed = seed
        self._forgets = forgets
        self._changed = threading.Condition()
        self._submits: dict[str, dict[str, Any]] = {}
        self._cancels: dict[str, float] = {}
        self._resizes: dict[str, dict[str, Any]] = {}
        self._forgotten: set[str] = set()
        self._lives: dict[str, list[Told]] = {}
        self._next: dict[str, int] = {}
        self._due: list[tuple[float, str]] = []
        self._closing = False

    def open(self, run: Run, emit: Emit) -> None:
        self._emit = emit
        self._file = os.open(self._folder / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for line in lines_of(self._folder):
            if "submit" in line:
                self._submits.setdefault(line["submit"], line)
            elif "cancel" in line:
                self._cancels.setdefault(line["cancel"], line["time"])
            elif "resize" in line:
                self._resizes.setdefault(line["resize"], line)
            elif "forget" in line:
                self._forgotten.update(line["forget"])
        for name, line in self._submits.items():
            self._lives[name] = timeline(self._seed, line, self._cancels.get(name))
        self._thread = threading.Thread(target=self._live, name="disk queue", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            reach("submit a job")
            options = job.options.get("disk", {})
            line: dict[str, Any] = {
                "submit": job.id,
                "lasts": options.get("lasts", 0.03),
                "fails": options.get("fails", 0.0),
            }
            if job.observe:
                line["output"] = str(self._folder / "printed" / f"{job.id}.jsonl")
            with self._changed:
                line["time"] = now()
                if job.observe:
                    self._print(job.id, line)
                self._write(line)
                if job.id not in self._submits:
                    self._submits[job.id] = line
                    self._lives[job.id] = timeline(self._seed, line, None)
                    self._follow(job.id, 0)
        reach("submitted")

    def cancel(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            with self._changed:
                if job not in self._submits or job in self._cancels:
                    continue
                self._cancels[job] = now()
                self._write({"cancel": job, "time": self._cancels[job]})
                told = self._next.get(job)
                self._lives[job] = timeline(self._seed, self._submits[job], self._cancels[job])
                if told is not None and told < len(self._lives[job]):
                    self._follow(job, told)
            reach("cancelled a job")

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        done = self._resizes.get(request)
        if done is None:
            size = _SIZE + sum(line["delta"] for line in self._resizes.values() if line["granted"])
            granted = 1 <= size + delta <= 2 * _SIZE
            size += delta if granted else 0
            done = {"resize": request, "delta": delta, "granted": granted, "size": size}
            self._resizes[request] = done
        self._write(done)
        reach("resized")
        outcome = ResizeOutcome(
            now(), request, "granted" if done["granted"] else "denied", done["size"]
        )
        self._emit([outcome])

    def resources(self) -> Mapping[str, float]:
        return {"nodes.up": float(_SIZE)}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        found = {}
        with self._changed:
            for job, newest in jobs.items():
                reach("found a job")
                if job in self._forgotten:
                    self._write({"asked for": job})
                life = self._lives.get(job)
                found[job] = life is not None and not (
                    self._forgets and life[-1].name == "clean" and life[-1].time <= now()
                )
                if life is not None and found[job]:
                    told = sum(event.time <= newest for event in life)
                    if told < len(life):
                        self._follow(job, told)
        return found

    def forget(self, jobs: Sequence[str]) -> None:
        self._write({"forget": list(jobs)})

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        os.close(self._file)

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _print(self, job: str, line: Mapping[str, Any]) -> None:
        """Write all output of an observed job at once, with its end as the file's time.

        Observers do not read a file that is older than the start of the job.
        """
        path = Path(line["output"])
        path.parent.mkdir(exist_ok=True)
        chance = random.Random(f"{self._seed} {job} rows")
        rows = [{"step": step, "x": chance.uniform(-1, 1)} for step in range(20)]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        end = timeline(self._seed, line, None)[-1].time
        os.utime(path, (end, end))

    def _follow(self, job: str, told: int) -> None:
        """Schedule a job's events from number ``told`` on. The caller holds the lock."""
        self._next[job] = told
        heapq.heappush(self._due, (self._lives[job][told].time, job))
        self._changed.notify()

    def _live(self) -> None:
        while True:
            with self._changed:
                if self._closing:
                    return
                events = self._happened()
                if not events:
                    left = self._due[0][0] - now() if self._due else 60.0
                    self._changed.wait(min(60.0, max(left, 0.0005)))
                    continue
            reach("told")
            self._emit(events)

    def _happened(self) -> list[Event]:
        events: list[Event] = []
        time = now()
        while self._due and self._due[0][0] <= time:
            at, job = heapq.heappop(self._due)
            told, life = self._next[job], self._lives[job]
            if told >= len(life) or life[told].time != at:
                continue  # outdated by a cancel
            events.append(JobEvent(at, job, life[told].name, life[told].context))
            self._next[job] = told + 1
            if told + 1 < len(life):
                heapq.heappush(self._due, (life[told + 1].time, job))
        return events


class BlindQueue(DiskQueue):
    """Executor of the same queue that does not support reattach."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "resize"})

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return Executor.reattach(self, jobs)


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executors ``disk`` and ``blind``."""
    return [
        ExecutorPlugin(
            name=name,
            summary="Pretends to run jobs, and keeps a record of what it was told",
            build=lambda options, kind=kind: kind(**options),  # type: ignore[misc]
            capabilities=kind.capabilities,
            shared=kind.shared,
            options={
                "type": "object",
                "additionalProperties": False,
                "required": ["folder"],
                "properties": {
                    "folder": {"type": "string"},
                    "seed": {"type": "integer"},
                    "forgets": {"type": "boolean"},
                },
            },
            job_options={
                "type": "object",
                "additionalProperties": False,
                "properties": {"lasts": {"type": "number"}, "fails": {"type": "number"}},
            },
        )
        for name, kind in (("disk", DiskQueue), ("blind", BlindQueue))
    ]
