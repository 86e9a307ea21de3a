"""Life of the pilots: requests them from the outer queue, gives them back, settles their ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ensemble_core import (
    EnsembleError,
    Event,
    Executor,
    ExecutorLost,
    Job,
    JobEvent,
    Problem,
    Run,
    private_folder,
    shared_storage,
)
from ensemble_core.cli.toolkit import count_of, format_duration
from ensemble_core.local.ledger_reader import LedgerReading, read_ledger, set_fence
from ensemble_pilot import credentials
from ensemble_pilot.connections import Connections
from ensemble_pilot.fleet import AT_END, FAILURES, Fleet, Node, Pilot
from ensemble_pilot.status import nodes_text
from ensemble_pilot.tracking import Tracking
from ensemble_pilot.turn import NotYet, Turn

__all__ = ["Pilots", "Settings"]

#: Seconds after which a warning says that the nodes of a running pilot have not connected.
_CONNECTING = 60.0
#: How many seconds a supervisor whose pilot has ended may take to end its jobs and say so. After
#: that, jobs that had started end without its word.
_LAST_LINE = 6.0
#: How many bytes of a pilot's stderr a message shows.
_TAIL = 600


@dataclass(frozen=True)
class Settings:
    """Settings of a run's pilots, apart from their kind."""

    queue: str
    grace: float
    orphan: float
    requeue: bool
    start: str
    job: Callable[[int, Path], Job]
    address: tuple[str, int]


class Pilots:
    """The pilots of a run, as jobs of the outer queue."""

    def __init__(
        self,
        run: Run,
        turn: Turn,
        fleet: Fleet,
        jobs: Tracking,
        folder: Path,
        settings: Settings,
        outer: Executor,
        nodes: Connections,
    ) -> None:
        self._run, self._turn, self._fleet, self._jobs = run, turn, fleet, jobs
        self._folder, self._settings, self._outer, self._nodes = folder, settings, outer, nodes
        self.addresses = ""
        #: Remarks for the message about a pilot's end.
        self._notes: dict[int, str] = {}
        #: When pilots have begun whose nodes are not all connected.
        self._begun: dict[int, float] = {}
        self._given_back: set[int] = set()
        self._load()

    def _load(self) -> None:
        """Restore pilots and placements from the ledger of an earlier controller."""
        fleet, ledger, now = self._fleet, self._turn.ledger, self._turn.clock()
        for number, record in ledger.pilots.items():
            pilot = fleet.add_pilot(number, record.requested)
            pilot.idle_since, pilot.was_ready = now, record.ready is not None
            if record.began is not None:
                self._begin(pilot, record.began)
        for entry in ledger.jobs.values():
            if entry.place is not None and not entry.ended:
                node = fleet.node(*entry.place)
                if node is not None:
                    fleet.bind(entry.job, node, entry.number)

    def _begin(self, pilot: Pilot, began: float) -> None:
        pilot.to("starting")
        if self._fleet.kind.duration and pilot.ends is None:
            pilot.ends = began + self._fleet.kind.duration

    def note(self, number: int, text: str) -> None:
        """Add a remark to the message about a pilot's end."""
        self._notes[number] = text

    # Begin.

    def request(self, now: float) -> None:
        """Request another pilot, once the ledger says so."""
        number = max(self._turn.ledger.last_pilot, *self._fleet.pilots, 0) + 1
        self._fleet.add_pilot(number, now)
        self._turn.record("n", number, now)
        self._turn.then(lambda: self._turn.worker.post(lambda: self._submit(number)))

    def _submit(self, number: int) -> None:
        """Submit a pilot to the outer queue. The worker calls this."""
        kind, settings, folder = self._fleet.kind, self._settings, self.folder(number)
        plan = {
            "number": number,
            "queue": settings.queue,
            "nodes": kind.nodes,
            "cores": kind.cores,
            "gpus": kind.gpus,
            "duration": kind.duration,
            "at_end": AT_END * kind.margin,
            "orphan": settings.orphan,
            "grace": settings.grace,
            "tag": self._run.tag,
            "id": self._turn.ledger.run_id,
            "start": settings.start,
            "output": os.path.join(settings.start, self._run.folder),
        }
        try:
            private_folder(folder)
            credentials.write_private(folder / "pilot.json", json.dumps(plan).encode())
            self._outer.submit([settings.job(number, folder)])
        except (EnsembleError, OSError) as error:
            why = str(error)
            self._turn.post(lambda: self._on_refused(number, why))

    def _on_refused(self, number: int, why: str) -> None:
        self._notes[number] = f"the queue refused it: {why}"
        self.on_ended(number)

    def on_node(self, node: Node, became_ready: bool) -> None:
        """Record that a node has connected, and say so once all nodes of its pilot have."""
        pilot, now = node.pilot, self._turn.clock()
        record = self._turn.ledger.pilots.get(pilot.number)
        if became_ready and record is not None and record.ready is None:
            hosts = [*dict.fromkeys(host for host in map(self._nodes.host, pilot.nodes) if host)]
            self._turn.record("r", pilot.number, now, hosts)
            cores = sum(each.cores for each in pilot.nodes)
            where = f" on {nodes_text(hosts)}" if hosts else ""
            waited = format_duration(now - pilot.requested)
            self._turn.say(
                f"pilot {pilot.number} ready after {waited}{where}: {count_of(cores, 'core')}"
            )

    def check(self, now: float) -> None:
        """Warn if a pilot runs, but its nodes do not connect."""
        for number, began in list(self._begun.items()):
            pilot = self._fleet.pilots.get(number)
            if pilot is None or pilot.state != "starting":
                del self._begun[number]
            elif now >= began + _CONNECTING:
                del self._begun[number]
                missing = [str(node.rank) for node in pilot.nodes if not node.connected]
                self._turn.problem(
                    f"pilot {number} runs, but its nodes {', '.join(missing[:5])} have not "
                    f"connected to {self.addresses} for {_CONNECTING:g} s: if nodes cannot reach "
                    "this machine there, name another address with -o listen=ADDRESS; their words "
                    f"are in {self.folder(number) / 'err'}",
                    once="connecting",
                )

    def wake_times(self) -> list[float]:
        return [began + _CONNECTING for began in self._begun.values()]

    # The outer queue.

    def on_outer(self, events: Sequence[Event]) -> None:
        """Handle events of the outer queue."""
        for event in events:
            if isinstance(event, JobEvent):
                self._on_event(event)
            elif isinstance(event, Problem):
                self._turn.problem(f"pilots: {event.message}")
            elif isinstance(event, ExecutorLost):
                self._turn.emit([event])

    def _on_event(self, event: JobEvent) -> None:
        what, _, text = event.job.partition(".")
        number = int(text) if what == "pilot" and text.isdigit() else 0
        pilot = self._fleet.pilots.get(number)
        if pilot is None:
            return
        if event.name == "submit":
            self._on_submitted(pilot, str(event.context.get("queue_id", "")))
        elif event.name == "start":
            if pilot.state == "requested":
                self._begin(pilot, event.timestamp)
                self._begun[number] = self._turn.clock()
            self._turn.record("b", number, event.timestamp)
        elif event.name == "exception":
            kind, note = event.context.get("type"), event.context.get("note", "")
            self._notes[number] = f"{kind}: {note}" if note else f"{kind}"
        elif event.name == "clean":
            self.on_ended(number)

    def _on_submitted(self, pilot: Pilot, queue_id: str) -> None:
        record = self._turn.ledger.pilots.get(pilot.number)
        if record is None or record.queue_id is not None:
            return  # an earlier controller has said it
        self._turn.record("s", pilot.number, queue_id)
        kind = self._fleet.kind
        parts = [f"{self._settings.queue} job {queue_id}"] if queue_id else []
        parts.append(f"{count_of(kind.nodes, 'node')} of {count_of(kind.cores, 'core')}")
        parts += [format_duration(kind.duration)] if kind.duration else []
        self._turn.say(f"pilot {pilot.number} requested ({', '.join(parts)})")

    # End.

    def folder(self, number: int) -> Path:
        return self._folder / f"pilot-{number}"

    def node_folder(self, number: int, rank: int) -> Path:
        return self.folder(number) / f"node-{rank}"

    def begin(self, known: Mapping[str, bool]) -> None:
        """Settle the pilots that the outer queue does not know (any more)."""
        for number, pilot in list(self._fleet.pilots.items()):
            if not known.get(pilot.job):
                self._notes[number] = "the queue does not know it"
                self.on_ended(number)

    def give_back(self, pilot: Pilot) -> None:
        """End a pilot without jobs."""
        self._fleet.drain(pilot)
        self._given_back.add(pilot.number)

        def work() -> None:
            try:
                self._outer.cancel([pilot.job])
            except EnsembleError:
                # The task ends by itself when it connects again.
                self._turn.post(lambda: self._nodes.drop(pilot))

        self._turn.worker.post(work)

    def fence_off(self, number: int) -> None:
        """Forbid every start in a pilot that the run, which is over, leaves behind."""
        set_fence(self.folder(number) / "fence")

    def on_ended(self, number: int) -> None:
        """Handle the end of a pilot, as far as the outer queue knows: set its fence, and read."""
        pilot = self._fleet.pilots.get(number)
        if pilot is None or pilot.state in ("ended", "fenced"):
            return
        self._fleet.drain(pilot, "ended")
        self._nodes.drop(pilot)
        wanted = [(self.node_folder(*n.key), dict.fromkeys(n.jobs, 0.0)) for n in pilot.nodes]
        folder, deadline = self.folder(number), time.monotonic() + _LAST_LINE

        def read() -> tuple[list[LedgerReading], str]:
            private_folder(folder)
            set_fence(folder / "fence")
            readings = [read_ledger(state, jobs) for state, jobs in wanted]
            alive = any(reading.unfinished and reading.quit is None for reading in readings)
            if alive and time.monotonic() < deadline:
                raise NotYet("jobs are being ended")
            return readings, _tail(folder / "err")

        self._turn.retry(
            read,
            lambda result: self._settle(pilot, *result),
            f"pilot {number} has ended, but its jobs wait until this works",
        )

    def _settle(self, pilot: Pilot, readings: Sequence[LedgerReading], tail: str) -> None:
        """Decide what becomes of the jobs of a pilot whose fence is in place."""
        number, now = pilot.number, self._turn.clock()
        pilot.to("fenced")
        note, wanted = self._notes.pop(number, ""), number in self._given_back
        self._given_back.discard(number)
        why = f"pilot {number} ended" + (f" ({note})" if note else "")
        again: list[str] = []
        for node, reading in zip(pilot.nodes, readings, strict=True):
            if reading.problem:
                self._turn.problem(reading.problem)
            names = list(node.jobs)
            waiting = self._jobs.settle(names, reading, why)
            for name in waiting:
                self._fleet.give_back(name, now)
            again += waiting
            for name in list(node.jobs):  # the run has not asked for it yet, or never will
                self._fleet.release(name, now)
        if again:
            self._turn.record("w", again)
        record = self._turn.ledger.pilots.get(number)
        reason = "given back" if wanted else note or tail.rpartition(" / ")[2]
        self._turn.record("o", number, now, reason)
        self._turn.then(lambda: self._turn.worker.post(lambda: self._outer.forget([pilot.job])))
        began = None if record is None else record.began
        lasted = "before it began" if began is None else f"after {format_duration(now - began)}"
        said = f": {reason}" if reason else ""
        said += f"; {count_of(len(again), 'job')} that had not started wait again" if again else ""
        self._turn.say(f"pilot {number} ended {lasted}{said}")
        if self._fleet.end(pilot, now, wanted=wanted):
            said = f": {note}" if note else ""
            said += f"; its last words: {tail}" if tail else ""
            if self._settings.queue != "local" and shared_storage(self._folder) is None:
                said += (
                    f". Its nodes may not see {self._folder}, which is on no network file system: "
                    "choose another folder with --state"
                )
            self._turn.problem(
                f"{FAILURES} pilots in a row ended before they were ready, so the next ones are "
                f"requested later and later{said}"
            )


def _tail(path: Path) -> str:
    """Return the end of a file as one line."""
    try:
        data = path.read_bytes()[-_TAIL:]
    except OSError:
        return ""
    return " / ".join(data.decode("utf-8", "replace").strip().splitlines()[-5:])
