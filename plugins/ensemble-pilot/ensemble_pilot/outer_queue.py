"""Pilots as jobs of the outer queue: submits and cancels them, and settles their ends."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ensemble_core import (
    EnsembleError,
    Event,
    Executor,
    ExecutorError,
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
from ensemble_pilot import credentials, node_connections
from ensemble_pilot.demand import FAILURES
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.job_tracking import Tracking
from ensemble_pilot.ledger import NotYet, Transaction
from ensemble_pilot.node import RANKS
from ensemble_pilot.node_connections import Connections
from ensemble_pilot.options import KindOptions
from ensemble_pilot.pilot import AT_END, Kind, Node, Pilot
from ensemble_pilot.status import nodes_text

#: Seconds after which a warning says that nodes of a running pilot are not connected.
_CONNECTING = 60.0
#: How many seconds a supervisor whose pilot has ended may take to end its jobs and say so. After
#: that, jobs that had started end without its word.
_LAST_LINE = 6.0
#: Why a pilot has ended that this run did not need any more.
GIVEN_BACK = "given back"
#: How many bytes of a pilot's stderr a message shows.
_TAIL = 600


@dataclass(frozen=True)
class Settings:
    """Settings of a run's pilots.

    ``outers`` has the executor of the outer queue for each kind, and ``job`` makes a pilot's job of
    its kind, number and folder.
    """

    kinds: Mapping[str, KindOptions]
    outers: Mapping[str, Executor]
    start: str
    job: Callable[[str, int, Path], Job]
    address: tuple[str, int]


class Pilots:
    """The pilots of a run, as jobs of the outer queue."""

    def __init__(
        self,
        run: Run,
        transaction: Transaction,
        fleet: Fleet,
        jobs: Tracking,
        folder: Path,
        settings: Settings,
        nodes: Connections,
    ) -> None:
        self._run, self._transaction, self._fleet, self._jobs = run, transaction, fleet, jobs
        self._folder, self._settings, self._nodes = folder, settings, nodes
        #: The executors of the outer queue, by kind.
        self.outers = settings.outers
        self.addresses = ""
        #: Remarks for the message about a pilot's end.
        self._notes: dict[int, str] = {}
        #: Since when running pilots have had a node that is not connected.
        self._incomplete: dict[int, float] = {}
        self._given_back: set[int] = set()
        self._load()

    def _load(self) -> None:
        """Restore pilots and placements from the ledger of an earlier controller."""
        fleet, ledger, now = self._fleet, self._transaction.ledger, self._transaction.clock()
        for record in ledger.past.values():
            fleet.past_given += record.given
            fleet.past_used += record.used
            demand = fleet.demands[record.kind]
            if record.began is not None:
                demand.waited(record.began - record.requested)
            if record.why == GIVEN_BACK and record.ended is not None:
                demand.rest(record.ended)
        for number, record in ledger.pilots.items():
            pilot = fleet.add_pilot(number, fleet.demands[record.kind].kind, record.requested)
            pilot.idle_since, pilot.was_ready = now, record.ready is not None
            pilot.used, pilot.counted = record.used, record.counted
            if record.began is not None:
                self._begin(pilot, record.began, now)
        for entry in ledger.jobs.values():
            if entry.place is not None and not entry.ended:
                node = fleet.node(*entry.place)
                if node is not None:
                    others = [node.pilot.nodes[rank] for rank in entry.others]
                    fleet.bind(entry.job, node, entry.number, *others)
        for node in {*fleet.placed.values()}:
            self._count_ended(node)

    def _count_ended(self, node: Node) -> None:
        """Record what a node's ledger says of jobs that have ended there.

        The run may know some of these ends already, and not ask for the jobs. Without the ledger,
        what they have used since the earlier controller has counted is lost.
        """
        names = [name for name in node.jobs if self._fleet.placed[name] is node]
        times: dict[tuple[str, str], float] = {}
        with contextlib.suppress(EnsembleError, OSError):
            reading = read_ledger(self.node_folder(*node.key), dict.fromkeys(names, 0.0))
            times = {(event.job, event.name): event.timestamp for event in reading.events}
        for name in names:
            if (name, "start") in times and (name, "clean") in times:
                self._fleet.started(name, times[name, "start"], times[name, "clean"])

    def _begin(self, pilot: Pilot, began: float, now: float) -> None:
        self._fleet.begin(pilot, began)
        self._incomplete[pilot.number] = now
        if pilot.kind.duration and pilot.ends is None:
            pilot.ends = began + pilot.kind.duration

    def note(self, number: int, text: str) -> None:
        """Add a remark to the message about a pilot's end."""
        self._notes[number] = text

    # Begin.

    def request(self, kind: Kind, now: float) -> None:
        """Request another pilot, once the ledger says so."""
        number = max(self._transaction.ledger.last_pilot, *self._fleet.pilots, 0) + 1
        self._fleet.add_pilot(number, kind, now)
        self._transaction.record("n", number, now, kind.nodes * kind.cores, kind.name)
        self._transaction.then(
            lambda: self._transaction.worker.post(lambda: self._submit(number, kind))
        )

    def _submit(self, number: int, kind: Kind) -> None:
        """Submit a pilot to the outer queue. The worker calls this."""
        options, folder = self._settings.kinds[kind.name], self.folder(number)
        plan = {
            "number": number,
            "rank": options.here.rank if options.here else RANKS[options.queue],
            "nodes": kind.nodes,
            "cores": kind.cores,
            "allocated": options.here.cores if options.here else 0,
            "gpus": kind.gpus,
            "flux": kind.flux,
            "duration": kind.duration,
            "at_end": AT_END * kind.margin,
            "orphan": options.orphan,
            "heartbeat": node_connections.HEARTBEAT,
            "grace": options.grace,
            "tag": self._run.tag,
            "id": self._transaction.ledger.run_id,
            "start": self._settings.start,
            "output": os.path.join(self._settings.start, self._run.folder),
        }
        try:
            private_folder(folder)
            credentials.write_private(folder / "pilot.json", json.dumps(plan).encode())
            job = self._settings.job(kind.name, number, folder)
            self.outers[kind.name].submit([job])
        except (EnsembleError, OSError) as error:
            why = str(error)
            self._transaction.post(lambda: self._on_refused(number, why))

    def _on_refused(self, number: int, why: str) -> None:
        self._notes[number] = f"the queue refused it: {why}"
        self.on_ended(number)

    def on_node(self, node: Node, became_ready: bool) -> None:
        """Record that a node has connected, and say so once all nodes of its pilot have."""
        pilot, now = node.pilot, self._transaction.clock()
        record = self._transaction.ledger.pilots.get(pilot.number)
        if became_ready and record is not None and record.ready is None:
            hosts = [*dict.fromkeys(host for host in map(self._nodes.host, pilot.nodes) if host)]
            self._transaction.record("r", pilot.number, now, hosts)
            cores = sum(each.cores for each in pilot.nodes)
            where = f" on {nodes_text(hosts)}" if hosts else ""
            waited = format_duration(now - pilot.requested)
            self._transaction.say(
                f"{pilot.title} ready after {waited}{where}: {count_of(cores, 'core')}"
            )

    def check(self, now: float) -> None:
        """Warn if a pilot runs, but some of its nodes are not connected."""
        while self._nodes.lost:
            self._incomplete.setdefault(self._nodes.lost.pop().pilot.number, now)
        for number, since in list(self._incomplete.items()):
            pilot = self._fleet.pilots.get(number)
            running = pilot is not None and pilot.state in ("starting", "ready")
            nodes = pilot.nodes if pilot is not None and running else ()
            missing = [str(node.rank) for node in nodes if not node.connected]
            if not missing:
                del self._incomplete[number]
            elif now >= since + _CONNECTING:
                del self._incomplete[number]
                self._transaction.problem(
                    f"pilot {number} runs, but its nodes {', '.join(missing[:5])} have not been "
                    f"connected to {self.addresses} for {_CONNECTING:g} s; jobs that run there go "
                    "on, and what they report arrives later. If nodes cannot reach this machine "
                    "there, name another address with -o listen=ADDRESS; their words are in "
                    f"{self.folder(number) / 'err'}",
                    once="connecting",
                )

    def wake_times(self) -> list[float]:
        return [since + _CONNECTING for since in self._incomplete.values()]

    # The outer queue.

    def on_outer(self, events: Sequence[Event]) -> None:
        """Handle events of the outer queue."""
        for event in events:
            if isinstance(event, JobEvent):
                self._on_event(event)
            elif isinstance(event, Problem):
                self._transaction.problem(f"pilots: {event.message}")
            elif isinstance(event, ExecutorLost):
                self._transaction.emit([event])

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
                self._begin(pilot, event.timestamp, self._transaction.clock())
            self._transaction.record("b", number, event.timestamp)
        elif event.name == "exception":
            kind, note = event.context.get("type"), event.context.get("note", "")
            self._notes[number] = f"{kind}: {note}" if note else f"{kind}"
        elif event.name in ("suspend", "unsuspend"):
            for name in {name: None for node in pilot.nodes for name in node.jobs}:
                since = event.timestamp
                if event.name == "suspend":
                    # The queue reports a suspension later than it happens. The node stopped between
                    # its last heartbeat and the one that was missed: take the middle.
                    silence = self._nodes.silence(self._fleet.placed[name])
                    heard = self._transaction.clock() - silence
                    since = min(since, heard + node_connections.HEARTBEAT / 2)
                self._jobs.suspend(name, event, since)
        elif event.name == "finish":
            pilot.ends = min(event.timestamp, pilot.until(self._transaction.clock()))
        elif event.name == "clean":
            self.on_ended(number)

    def _on_submitted(self, pilot: Pilot, queue_id: str) -> None:
        record = self._transaction.ledger.pilots.get(pilot.number)
        if record is None or record.queue_id is not None:
            return  # an earlier controller has said it
        self._transaction.record("s", pilot.number, queue_id)
        kind = pilot.kind
        queue = self._settings.kinds[kind.name].queue
        parts = [f"{queue} job {queue_id}"] if queue_id else []
        parts.append(f"{count_of(kind.nodes, 'node')} of {count_of(kind.cores, 'core')}")
        if kind.duration:
            parts.append(format_duration(kind.duration))
        elif queue == "here":
            parts.append("its time limit is not known: give it with -o duration=TIME")
        self._transaction.say(f"{pilot.title} requested ({', '.join(parts)})")

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
        """End a pilot that has no jobs, or that a rule ends by force."""
        self.record_drain(pilot)
        self._fleet.drain(pilot)
        self._fleet.demands[pilot.kind.name].rest(self._transaction.clock())
        self._given_back.add(pilot.number)

        def work() -> None:
            try:
                self.outers[pilot.kind.name].cancel([pilot.job])
            except EnsembleError:
                # The task ends by itself when it connects again.
                self._transaction.post(lambda: self._nodes.drop(pilot))

        self._transaction.worker.post(work)

    def record_drain(self, pilot: Pilot) -> None:
        """Write that a pilot drains to the ledger, for ``ensemble status``."""
        record = self._transaction.ledger.pilots.get(pilot.number)
        if record is not None and record.draining is None:
            self._transaction.record("d", pilot.number, self._transaction.clock())

    def requeues(self, number: int) -> bool:
        """Return True if jobs that had started in this pilot run again after its end."""
        ledger = self._transaction.ledger
        record = ledger.pilots.get(number) or ledger.past[number]
        return self._settings.kinds[record.kind].requeue

    def fence_off(self, number: int) -> None:
        """Forbid every start in a pilot that the run, which is over, leaves behind."""
        set_fence(self.folder(number) / "fence")

    def on_ended(self, number: int) -> None:
        """Handle the end of a pilot, as far as the outer queue knows: set its fence, and read."""
        pilot = self._fleet.pilots.get(number)
        if pilot is None or pilot.state in ("ended", "fenced"):
            return
        pilot.ends = pilot.until(self._transaction.clock())
        self._fleet.drain(pilot, "ended")
        self._nodes.drop(pilot)
        placed = self._fleet.placed
        wanted = [
            # What happens to the other parts of a job are no events of the job.
            (self.node_folder(*n.key), {j: 0.0 if placed[j] is n else math.inf for j in n.jobs})
            for n in pilot.nodes
        ]
        folder, sent = self.folder(number), any(jobs for _, jobs in wanted)
        deadline = time.monotonic() + _LAST_LINE

        def read() -> tuple[list[LedgerReading], str]:
            if not sent:  # it may never have had a folder, but may still start
                private_folder(folder)
            set_fence(folder / "fence")
            readings = [read_node(state, jobs) for state, jobs in wanted]
            alive = any(reading.unfinished and reading.quit is None for reading in readings)
            if alive and time.monotonic() < deadline:
                raise NotYet("jobs are being ended")
            return readings, _tail(folder / "err")

        self._transaction.retry(
            read,
            lambda result: self._settle(pilot, *result),
            f"pilot {number} has ended, but its jobs wait until this works",
        )

    def _settle(self, pilot: Pilot, readings: Sequence[LedgerReading], tail: str) -> None:
        """Decide what becomes of the jobs of a pilot whose fence is in place."""
        number, now = pilot.number, self._transaction.clock()
        ended = pilot.until(now)
        pilot.to("fenced")
        note, wanted = self._notes.pop(number, ""), number in self._given_back
        self._given_back.discard(number)
        why = f"pilot {number} ended" + (f" ({note})" if note else "")
        again: list[str] = []
        requeue = self.requeues(number)
        if pilot.kind.flux:  # a process of a job may be left on any of its nodes
            requeue = requeue and all(reading.quit is not None for reading in readings)
        for node, reading in zip(pilot.nodes, readings, strict=True):
            if reading.problem:
                self._transaction.problem(reading.problem)
            names = [name for name in node.jobs if self._fleet.placed[name] is node]
            waiting = self._jobs.settle(names, reading, why, requeue=requeue, ended=ended)
            for name in waiting:
                self._fleet.give_back(name, now)
            again += waiting
            for name in list(node.jobs):  # the run has not asked for it yet, or never will
                self._fleet.release(name, now)
        if again:
            self._transaction.record("w", again)
        record = self._transaction.ledger.pilots.get(number)
        reason = GIVEN_BACK if wanted else note or tail.rpartition(" / ")[2]
        self._transaction.record("u", number, pilot.used, ended)
        self._transaction.record("o", number, ended, reason)
        outer = self.outers[pilot.kind.name]
        self._transaction.then(
            lambda: self._transaction.worker.post(lambda: outer.forget([pilot.job]))
        )
        began = None if record is None else record.began
        lasted = "before it began"
        if began is not None:
            lasted = f"after {format_duration(max(0.0, ended - began))}"
        said = f": {reason}" if reason else ""
        said += f"; {count_of(len(again), 'job')} that had not started wait again" if again else ""
        self._transaction.say(f"{pilot.title} ended {lasted}{said}")
        if self._fleet.end(pilot, now, wanted=wanted):
            said = f": {note}" if note else ""
            said += f"; its last words: {tail}" if tail else ""
            queue = self._settings.kinds[pilot.kind.name].queue
            said += _advice(note, tail, self._folder if queue != "local" else None)
            self._transaction.problem(
                f"{FAILURES} pilots in a row ended before they were ready, so the next ones are "
                f"requested later and later{said}"
            )


def read_node(state: Path, jobs: Mapping[str, float]) -> LedgerReading:
    """Return the ledger of a node to which these jobs were sent.

    Raises :class:`ExecutorError` if it cannot be read. A node that was sent jobs has a ledger, so
    without one, the file system is not the same: nothing is known.
    """
    reading = read_ledger(state, jobs)
    if jobs and reading.began is None:
        raise ExecutorError(
            f"{reading.path} is missing or empty",
            hint="make the run's folder on the shared file system available again",
            code="no-ledger",
        )
    return reading


def _advice(note: str, tail: str, shared: Path | None) -> str:
    """Return what the user can do about pilots that end at once, if their last words show it."""
    if not note + tail and shared is not None and shared_storage(shared) is None:
        return (
            f". Its nodes may not see {shared}, which is on no network file system: choose another "
            "folder with --state"
        )
    # Words of Python, not of the pilot: it cannot be started, or its modules cannot be imported.
    if any(name in note + tail for name in (sys.executable, "ensemble_core", "ensemble_pilot")):
        return (
            f". Nodes start {sys.executable}, which is Python {platform.python_version()} here: "
            "install ensemble-pilot in an environment that is the same on the nodes, such as one "
            "on the shared file system that contains its Python, and run ensemble from there"
        )
    return ""


def _tail(path: Path) -> str:
    """Return the end of a file as one line."""
    try:
        data = path.read_bytes()[-_TAIL:]
    except OSError:
        return ""
    return " / ".join(data.decode("utf-8", "replace").strip().splitlines()[-5:])
