"""Controller of pilots: one thread that owns the fleet, the ledger and the link.

Other threads only post calls to it. Requests to the outer queue block, so a second thread
(:class:`Outer`) makes them, and also reads the ledgers of pilots that are over.

**No job runs twice.** A job is sent to a node only after the ledger says so. It is placed again
only after the fence of its pilot is in place and the node's ledger, read after that, shows that it
never started. What the outer queue says about a pilot only triggers this.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
)
from ensemble_core.local.ledger_reader import LedgerReading, read_ledger, set_fence
from ensemble_core.local.protocol import JOB_FIELDS, VERSION, encode_job, line, to_event
from ensemble_pilot import credentials
from ensemble_pilot.fleet import FAILURES, Fleet, Kind, Node, Pilot
from ensemble_pilot.ledger import STEP, Entry, PilotLedger
from ensemble_pilot.link import Link, Peer

__all__ = ["Controller", "Outer", "Settings"]

_T = TypeVar("_T")

#: How many jobs a message to a node has at most.
_BATCH = 500
#: Seconds after which something that failed is tried again.
_AGAIN = 1.0
#: How many seconds the controller waits, when it exits, until the outer queue has ended its pilots,
#: and until nodes have read the last messages.
_GIVING_BACK, _LAST_WORDS = 30.0, 5.0
#: Seconds after which a warning says that the nodes of a running pilot have not connected.
_CONNECTING = 60.0
#: Events that the controller emits itself at the submission.
_FIRST = frozenset({"submit", "validate", "depend", "priority"})
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


class Outer:
    """Makes calls one after the other in a thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ensemble-pilot-outer", daemon=True)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()


class _Tracked:
    """A job that the run waits for. Times are in seconds since the epoch.

    - ``since``: the time of the last event that the run has
    - ``last``: the time of the last event that was emitted, or would have been
    - ``newest``: the time of the last event of the node, by its clock
    """

    __slots__ = ("cancelled", "entry", "last", "names", "newest", "since")

    def __init__(self, entry: Entry, since: float) -> None:
        self.entry = entry
        self.since = since
        self.last = entry.first_events()[-1].timestamp
        self.newest = 0.0
        self.names: set[str] = set()
        self.cancelled = False


class Controller:
    """The state of all pilots and jobs of a run. Only :meth:`post` may be called from outside."""

    def __init__(
        self,
        run: Run,
        emit: Callable[[Sequence[Event]], None],
        folder: Path,
        kind: Kind,
        settings: Settings,
        ledger: PilotLedger,
        outer: Executor,
    ) -> None:
        self._run, self._emit, self._folder = run, emit, folder
        self._settings, self._ledger, self._outer = settings, ledger, outer
        self.fleet = Fleet(kind)
        self.worker = Outer()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: dict[str, _Tracked] = {}
        self._peers: dict[tuple[int, int], Peer] = {}
        #: Names in the requests to find jobs that a node has not answered yet.
        self._asked: dict[Peer, list[list[str]]] = {}
        #: Signals to jobs of nodes that are not connected now.
        self._late: dict[Node, list[list[object]]] = {}
        self._hellos: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._notes: dict[int, str] = {}
        #: When pilots have begun whose nodes are not all connected.
        self._begun: dict[int, float] = {}
        self._addresses = ""
        self._ended: set[int] = set()
        self._given_back: set[int] = set()
        #: Lines that are not in the ledger yet, and what to do once they are synced.
        self._lines: list[list[object]] = []
        self._effects: list[Callable[[], None]] = []
        self._stuck = 0.0
        self._said: set[str] = set()
        self._closing: queue.SimpleQueue[None] | None = None
        self.gauges: Mapping[str, float] = {}
        credentials.make(folder / "link")
        try:
            self.link = Link(
                settings.address,
                credentials.server_context(folder / "link"),
                self._on_message,
                self._on_lost,
            )
        except OSError as error:
            raise ExecutorError(
                f"cannot listen on {settings.address[0] or 'any address'}, port "
                f"{settings.address[1]}",
                cause=error.strerror,
                hint="choose another address with -o listen=ADDRESS:PORT",
                code="cannot-listen",
            ) from None
        self._load()
        self._update_gauges()
        self._thread = threading.Thread(target=self._loop, name="ensemble-pilot", daemon=True)

    def _load(self) -> None:
        """Restore pilots and placements from the ledger of an earlier controller."""
        kind = self.fleet.kind
        for number, (requested, began) in self._ledger.pilots.items():
            pilot = self.fleet.add_pilot(number, requested)
            pilot.idle_since = self._run.clock()
            if began is not None:
                pilot.to("starting")
                pilot.ends = began + kind.duration if kind.duration else None
        for entry in self._ledger.jobs.values():
            if entry.place is not None and not entry.ended:
                node = self.fleet.node(*entry.place)
                if node is not None:
                    self.fleet.bind(entry.job, node, entry.number)

    def begin(self, known: Mapping[str, bool]) -> None:
        """Start to work. ``known``: which jobs of pilots the outer queue knows."""
        addresses = [[host, self.link.port] for host in _hosts(self._settings.address[0])]
        self._addresses = ", ".join(f"{host}:{port}" for host, port in addresses)
        text = json.dumps({"epoch": os.urandom(8).hex(), "addresses": addresses})
        credentials.write_private(self._folder / "link" / "address.json", text.encode())
        for number in list(self.fleet.pilots):
            if not known.get(self.fleet.pilots[number].job):
                self._on_ended(number)
        self._thread.start()
        self.link.wake()

    def post(self, call: Callable[[], None]) -> None:
        """Let the controller's thread make a call. Safe from any thread."""
        self._inbox.put(call)
        self.link.wake()

    def request(self, call: Callable[[Controller], _T]) -> _T:
        """Let the controller's thread make a call, and return its result."""
        answers: queue.SimpleQueue[_T] = queue.SimpleQueue()
        self.post(lambda: answers.put(call(self)))
        while True:
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=1.0)
            if not self._thread.is_alive():
                raise ExecutorError("the executor pilot has stopped", code="lost")

    def _loop(self) -> None:
        while self._closing is None:
            self.link.poll(self._timeout())
            while not self._inbox.empty():
                self._inbox.get()()
            if self._closing is None:
                self._turn(self._run.clock())
            self.link.flush()
        self._leave()

    def _timeout(self) -> float | None:
        if self._lines or self._effects:
            return max(0.0, self._stuck - time.monotonic()) + 0.001
        now = self._run.clock()
        times = [began + _CONNECTING for began in self._begun.values()]
        wake = self.fleet.wake_time(now)
        times += [] if wake is None else [wake]
        return max(0.0, min(times) - now) + 0.001 if times else None

    def _problem(self, text: str, *, once: str = "") -> None:
        """Show a warning. With ``once``, show only the first one with this key."""
        if once not in self._said:
            self._said.update({once} if once else ())
            self._emit([Problem(self._run.clock(), text)])

    # Planning.

    def _turn(self, now: float) -> None:
        """Decide, write the decisions to the ledger, sync it, and only then carry them out."""
        if self._stuck > time.monotonic():
            return
        self._plan(now)
        self._check_connections(now)
        if not self._lines and not self._effects:
            return
        try:
            self._ledger.add(*self._lines)
            self._lines.clear()
            self._ledger.sync()
        except ExecutorError as error:
            self._stuck = time.monotonic() + _AGAIN
            self._problem(f"no job is placed until this works: {error}", once="ledger")
            return
        self._said.discard("ledger")
        effects, self._effects = self._effects, []
        for effect in effects:
            effect()
        self._update_gauges()

    def _plan(self, now: float) -> None:
        fleet = self.fleet
        by_node: dict[Node, list[Job]] = {}
        for job, node in fleet.place(now):
            by_node.setdefault(node, []).append(job)
        self._send_placed(by_node)
        for _ in range(fleet.requests(now)):
            number = max(self._ledger.last_pilot, *fleet.pilots, 0) + 1
            fleet.add_pilot(number, now)
            self._lines.append(["n", number, now])
            self._effects.append(lambda number=number: self._request(number))  # type: ignore[misc]
        for pilot in fleet.surplus(now):
            fleet.drain(pilot)
            self._give_back(pilot)

    def _check_connections(self, now: float) -> None:
        """Warn if a pilot runs, but its nodes do not connect."""
        for number, began in list(self._begun.items()):
            pilot = self.fleet.pilots.get(number)
            if pilot is None or pilot.state != "starting":
                del self._begun[number]
            elif now >= began + _CONNECTING:
                del self._begun[number]
                missing = [str(node.rank) for node in pilot.nodes if not node.connected]
                self._problem(
                    f"pilot {number} runs, but its nodes {', '.join(missing[:5])} have not "
                    f"connected to {self._addresses} for {_CONNECTING:g} s: if nodes cannot reach "
                    "this machine there, name another address with -o listen=ADDRESS; their words "
                    f"are in {self._pilot_folder(number) / 'err'}",
                    once="connecting",
                )

    def _send_placed(self, by_node: Mapping[Node, list[Job]]) -> None:
        for node, jobs in by_node.items():
            self._lines.append(["p", *node.key, [job.id for job in jobs]])
            self._effects.append(lambda node=node, jobs=jobs: self._submit(node, jobs))  # type: ignore[misc]

    def _submit(self, node: Node, jobs: Sequence[Job]) -> None:
        """Send jobs to a node. If its connection ends before, they are sent at the next one."""
        for begin in range(0, len(jobs), _BATCH):
            batch = jobs[begin : begin + _BATCH]
            self._tell(node, ["submit", [encode_job(job) for job in batch]])

    def _tell(self, node: Node, message: list[object]) -> None:
        peer = self._peers.get(node.key)
        if peer in self._asked:
            self.link.send(peer, line(message))

    def _update_gauges(self) -> None:
        self.gauges = self.fleet.gauges()

    # Requests of the run.

    def submitted(self, entries: Sequence[Entry]) -> None:
        """Take over jobs that are in the ledger, and whose first events have been emitted."""
        for entry in entries:
            tracked = self._jobs[entry.job.id] = _Tracked(entry, 0.0)
            tracked.since = tracked.last
            if self.fleet.kind.duration and not entry.job.duration:
                self._problem(
                    f"jobs without 'duration', such as {entry.job.id}, may be placed in a pilot "
                    "that ends before they do: give their group one",
                    once="duration",
                )
            reason = self.fleet.never(entry.job) or _wrong_sizes(entry.job)
            if reason is not None:
                self._finish(tracked, "alloc", reason)
            else:
                self.fleet.add(entry.job, entry.number)

    def cancel(self, names: Iterable[str]) -> None:
        for name in names:
            tracked = self._jobs.get(name)
            if tracked is None or tracked.cancelled:
                continue
            tracked.cancelled = True
            node = self.fleet.placed.get(name)
            if node is not None:
                self._tell(node, ["cancel", [name]])
            elif self.fleet.waits(name):
                self.fleet.remove(name)
                self._finish(tracked, "cancel", "cancelled while it waited for a pilot")

    def signal(self, names: Iterable[str], signal: str) -> None:
        for name in names:
            node = self.fleet.placed.get(name)
            if node is None:
                continue
            if node.connected:
                self._tell(node, ["signal", [name], signal])
            else:
                self._late.setdefault(node, []).append(["signal", [name], signal])

    def forget(self, names: Sequence[str]) -> None:
        """Drop jobs that are over from all ledgers."""
        by_node: dict[Node, list[str]] = {}
        for name in names:
            entry = self._ledger.jobs.get(name)
            if entry is not None and entry.place is not None:
                node = self.fleet.node(*entry.place)
                if node is not None:
                    by_node.setdefault(node, []).append(name)
        for node, some in by_node.items():
            self._tell(node, ["forget", some])
        self._lines.append(["f", list(names)])

    def reattach(self, jobs: Mapping[str, float]) -> dict[str, bool]:
        """Track jobs of an earlier controller. Return which are known; their events follow."""
        known = {name: name in self._ledger.jobs for name in jobs}
        asked: dict[Node, list[str]] = {}
        over: dict[tuple[int, int], list[str]] = {}
        for name, since in jobs.items():
            if not known[name] or name in self._jobs:
                continue
            entry = self._ledger.jobs[name]
            tracked = self._jobs[name] = _Tracked(entry, since)
            self._emit_later(tracked, entry.first_events())
            node = self.fleet.placed.get(name)
            if node is not None:
                asked.setdefault(node, []).append(name)
            elif entry.place is not None:  # in a pilot that is over: its ledger is still there
                over.setdefault(entry.place, []).append(name)
            elif entry.ended:
                self._replay_end(tracked)
            elif (reason := self.fleet.never(entry.job)) is not None:
                self._finish(tracked, "alloc", reason)
            else:
                self.fleet.add(entry.job, entry.number)
        for node, names in asked.items():
            peer = self._peers.get(node.key)
            if peer in self._asked:  # otherwise, it is asked when it connects
                self._ask(peer, names)
        for place, names in over.items():
            self._take_over(place, names)
        lost = [n for n, e in self._ledger.jobs.items() if n not in self._jobs and e.place is None]
        if lost:  # the run has never heard of these jobs, or has forgotten them
            self._lines.append(["f", lost])
        return known

    def _take_over(self, place: tuple[int, int], names: Sequence[str]) -> None:
        """Read the events of jobs that were sent to a pilot that is over by now."""
        state = self._node_folder(*place)

        def settle(reading: LedgerReading) -> None:
            for event in reading.events:
                self._deliver(event)
            for name in names:
                tracked = self._jobs.get(name)
                if tracked is None:
                    continue
                if tracked.entry.ended:
                    self._replay_end(tracked)
                elif self._resolve(tracked, reading, f"pilot {place[0]} ended"):
                    self._lines.append(["w", [name]])
                    self.fleet.add(tracked.entry.job, tracked.entry.number)

        self._with_retries(
            lambda: read_ledger(state, dict.fromkeys(names, 0.0)),
            settle,
            f"the end of {len(names)} jobs of pilot {place[0]} is not known until this works",
        )

    def _with_retries(
        self, work: Callable[[], _T], then: Callable[[_T], None], trouble: str
    ) -> None:
        """Let the worker do something until it succeeds; then handle the result here."""

        def attempt() -> None:
            try:
                result = work()
            except (EnsembleError, OSError) as error:
                self._problem(f"{trouble}: {error}", once=trouble)
                timer = threading.Timer(_AGAIN, lambda: self.worker.post(attempt))
                timer.daemon = True
                timer.start()
            else:
                self.post(lambda: then(result))

        self.worker.post(attempt)

    # Events of jobs.

    def _emit_later(self, tracked: _Tracked, events: Iterable[JobEvent]) -> None:
        """Emit those events that the run does not have yet."""
        new = [event for event in events if event.timestamp > tracked.since]
        if new:
            self._emit(new)

    def _deliver(self, event: JobEvent) -> None:
        """Emit an event of a node, and release the job if it is the last one."""
        tracked = self._jobs.get(event.job)
        if tracked is None:
            if event.name == "clean" and event.job in self.fleet.placed:
                # The run does not wait for this job.
                self.fleet.release(event.job, self._run.clock())
                self._lines.append(["f", [event.job]])
            return
        if event.timestamp <= tracked.newest:
            return
        tracked.newest = event.timestamp
        if event.name in _FIRST:
            return
        tracked.names.add(event.name)
        if event.timestamp <= tracked.last:
            event = JobEvent(tracked.last + STEP, event.job, event.name, event.context)
        tracked.last = event.timestamp
        self._emit_later(tracked, [event])
        if event.name == "clean":
            self._over(tracked)

    def _over(self, tracked: _Tracked) -> None:
        name = tracked.entry.job.id
        del self._jobs[name]
        if name in self.fleet.placed:
            self.fleet.release(name, self._run.clock())

    def _finish(self, tracked: _Tracked, kind: str, note: str) -> None:
        """End a job here: its events are in the ledger before they are emitted."""
        name = tracked.entry.job.id
        now = max(self._run.clock(), tracked.last + STEP)
        events = []
        if "finish" not in tracked.names:
            context = {"type": kind, "severity": 0, "note": note}
            events.append(JobEvent(now, name, "exception", context))
            if "start" in tracked.names:
                events.append(JobEvent(now + STEP, name, "finish", {"status": 9}))
        events.append(JobEvent(now + 2 * STEP, name, "clean"))
        for event in events:
            self._lines.append(["e", name, event.timestamp, event.name, dict(event.context)])
        self._effects.append(lambda: self._emit_later(tracked, events))
        self._over(tracked)

    def _replay_end(self, tracked: _Tracked) -> None:
        self._emit_later(tracked, tracked.entry.ended)
        self._over(tracked)

    # Nodes.

    def _on_message(self, peer: Peer, message: Any) -> None:
        what = message[0]
        node: Node | None = peer.node
        if what == "node" and node is None:
            self._greet(peer, message[1])
        elif node is None:
            self.link.drop(peer)
        elif what == "e":
            event = to_event(message)
            if isinstance(event, JobEvent) and self.fleet.placed.get(event.job) is node:
                self._deliver(event)
        elif what == "hello":
            self._asked[peer] = []
            self._ask(peer, [name for name in node.jobs if name in self._jobs])
        elif what == "known":
            self._on_known(peer, node, message[1])
        elif what == "refused":
            if message[1]["code"] != "keeper-there":  # the supervisor is about to exit
                where = f"node {node.rank} of pilot {node.pilot.number}"
                self._problem(f"{where}: {message[1]['what']}")
            self.link.drop(peer)
        elif what == "o":
            event = to_event(message)
            if isinstance(event, Problem):
                where = f"node {node.rank} of pilot {node.pilot.number}"
                self._problem(f"{where}: {event.message}")

    def _greet(self, peer: Peer, hello: Mapping[str, Any]) -> None:
        number, rank = int(hello["pilot"]), int(hello["rank"])
        right = credentials.token(self._folder / "link", number, rank)
        if not hmac.compare_digest(right, str(hello["token"])):
            self.link.drop(peer)
            return
        node = self.fleet.node(number, rank)
        reason = ""
        if node is None or number in self._ended:
            reason = "it counts as ended"
        elif node.pilot.state == "draining":
            reason = "it is given back"
        elif hello["version"] != VERSION or {*JOB_FIELDS}.difference(hello["job_fields"]):
            reason = "it has another version of Ensemble"
            self._notes[number] = f"node {rank} has another version of Ensemble than this machine"
        if node is None or reason:
            self.link.send(peer, line(["leave", reason]))
            return
        old = self._peers.pop(node.key, None)
        if old is not None:
            self.link.drop(old)
        self.link.accept(peer, node)
        self._peers[node.key] = peer
        # Nothing else is sent until the supervisor has answered, and no job until the node has said
        # which jobs it knows.
        self._hellos[node.key] = hello
        self.link.send(peer, line(["welcome", {"clock": self._run.clock()}]))

    def _ask(self, peer: Peer, names: list[str]) -> None:
        """Ask a node for jobs. It answers which of them it knows, and sends their newer events."""
        self._asked[peer].append(names)
        since = {name: self._jobs[name].newest for name in names}
        self.link.send(peer, line(["reattach", since]))

    def _on_known(self, peer: Peer, node: Node, known: Mapping[str, bool]) -> None:
        names = self._asked[peer].pop(0)
        bound = [name for name in names if self.fleet.placed.get(name) is node]
        # They have never arrived. The node ignores a job that it has had.
        self._submit(node, [node.jobs[name] for name in bound if not known.get(name)])
        cancelled = [name for name in bound if name in self._jobs and self._jobs[name].cancelled]
        if cancelled:
            self._tell(node, ["cancel", cancelled])
        for message in self._late.pop(node, ()):
            self._tell(node, message)
        if not node.connected:
            size, now = self._hellos[node.key], self._run.clock()
            duration = self.fleet.kind.duration
            if duration and node.pilot.ends is None:  # until the outer queue says when it began
                node.pilot.ends = now - size["age"] + duration
            self.fleet.connect(node, size["cores"], size["gpus"], size["memory"], now)
            for job, reason in self.fleet.impossible():
                self.fleet.remove(job.id)
                self._finish(self._jobs[job.id], "alloc", reason)
            self._update_gauges()

    def _on_lost(self, peer: Peer) -> None:
        node: Node = peer.node
        self._asked.pop(peer, None)
        if self._peers.get(node.key) is peer:
            del self._peers[node.key]
            self.fleet.disconnect(node)
            self._update_gauges()

    # Pilots.

    def _pilot_folder(self, number: int) -> Path:
        return self._folder / f"pilot-{number}"

    def _node_folder(self, number: int, rank: int) -> Path:
        return self._pilot_folder(number) / f"node-{rank}"

    def _request(self, number: int) -> None:
        """Submit a pilot to the outer queue."""
        kind, settings, folder = self.fleet.kind, self._settings, self._pilot_folder(number)
        plan = {
            "number": number,
            "queue": settings.queue,
            "nodes": kind.nodes,
            "cores": kind.cores,
            "gpus": kind.gpus,
            "duration": kind.duration,
            "margin": kind.margin,
            "orphan": settings.orphan,
            "grace": settings.grace,
            "tag": self._run.tag,
            "id": self._ledger.run_id,
            "start": settings.start,
            "output": os.path.join(settings.start, self._run.folder),
        }

        def work() -> None:
            try:
                private_folder(folder)
                credentials.write_private(folder / "pilot.json", json.dumps(plan).encode())
                self._outer.submit([settings.job(number, folder)])
            except (EnsembleError, OSError) as error:
                why = str(error)
                self.post(lambda: self._on_refused(number, why))

        self.worker.post(work)

    def _on_refused(self, number: int, why: str) -> None:
        self._notes[number] = why
        self._on_ended(number)

    def _give_back(self, pilot: Pilot) -> None:
        number = pilot.number
        self._given_back.add(number)

        def work() -> None:
            try:
                self._outer.cancel([pilot.job])
            except EnsembleError:
                # The task ends by itself when it connects again.
                self.post(lambda: self._disconnect(pilot))

        self.worker.post(work)

    def _disconnect(self, pilot: Pilot) -> None:
        for node in pilot.nodes:
            peer = self._peers.get(node.key)
            if peer is not None:
                self.link.drop(peer)

    def on_outer(self, events: Sequence[Event]) -> None:
        """Handle events of the outer queue."""
        for event in events:
            if isinstance(event, JobEvent):
                self._on_pilot_event(event)
            elif isinstance(event, Problem):
                self._problem(f"pilots: {event.message}")
            elif isinstance(event, ExecutorLost):
                self._emit([event])

    def _on_pilot_event(self, event: JobEvent) -> None:
        what, _, text = event.job.partition(".")
        number = int(text) if what == "pilot" and text.isdigit() else 0
        pilot = self.fleet.pilots.get(number)
        if pilot is None:
            return
        if event.name == "start":
            if pilot.state == "requested":
                pilot.to("starting")
                self._begun[number] = self._run.clock()
            duration = self.fleet.kind.duration
            pilot.ends = event.timestamp + duration if duration else None
            self._lines.append(["b", number, event.timestamp])
        elif event.name == "exception":
            kind, note = event.context.get("type"), event.context.get("note", "")
            self._notes[number] = f"{kind}: {note}" if note else f"{kind}"
        elif event.name == "clean":
            self._on_ended(number)

    def _on_ended(self, number: int) -> None:
        """Handle the end of a pilot, as far as the outer queue knows: set its fence, and read."""
        pilot = self.fleet.pilots.get(number)
        if pilot is None or number in self._ended:
            return
        self._ended.add(number)
        if pilot.state != "draining":
            self.fleet.drain(pilot)
        self._disconnect(pilot)
        for node in pilot.nodes:
            self._late.pop(node, None)
        wanted = [(self._node_folder(*n.key), dict.fromkeys(n.jobs, 0.0)) for n in pilot.nodes]
        folder = self._pilot_folder(number)

        def read() -> tuple[list[LedgerReading], str]:
            private_folder(folder)
            set_fence(folder / "fence")
            return [read_ledger(state, jobs) for state, jobs in wanted], _tail(folder / "err")

        self._with_retries(
            read,
            lambda result: self._settle(pilot, *result),
            f"pilot {number} has ended, but its jobs wait until this works",
        )

    def _settle(self, pilot: Pilot, readings: Sequence[LedgerReading], tail: str) -> None:
        """Decide what becomes of the jobs of a pilot whose fence is in place."""
        number, now = pilot.number, self._run.clock()
        note = self._notes.pop(number, "")
        why = f"pilot {number} ended" + (f" ({note})" if note else "")
        again: list[str] = []
        for node, reading in zip(pilot.nodes, readings, strict=True):
            if reading.problem:
                self._problem(reading.problem)
            for event in reading.events:
                self._deliver(event)
            for name in list(node.jobs):
                tracked = self._jobs.get(name)
                if tracked is None:  # the run has not asked for it yet, or never will
                    self.fleet.release(name, now)
                elif self._resolve(tracked, reading, why):
                    again.append(name)
                    self.fleet.give_back(name, now)
        if again:
            self._lines.append(["w", again])
        self._lines.append(["o", number])
        self._effects.append(lambda: self.worker.post(lambda: self._outer.forget([pilot.job])))
        wanted = number in self._given_back
        self._given_back.discard(number)
        if self.fleet.end(pilot, now, wanted=wanted):
            said = f": {note}" if note else ""
            said += f"; its last words: {tail}" if tail else ""
            self._problem(
                f"{FAILURES} pilots in a row ended before they were ready, so the next ones are "
                f"requested later and later{said}"
            )

    def _resolve(self, tracked: _Tracked, reading: LedgerReading, why: str) -> bool:
        """Return True if a job of a fenced pilot has never started. If it has, end it."""
        if tracked.cancelled:
            self._finish(tracked, "cancel", f"cancelled; {why}")
            return False
        if reading.state(tracked.entry.job.id) == "waiting":
            tracked.newest = 0.0  # the clock of the next node may be behind
            return True
        safe = self._settings.requeue and reading.quit is not None
        self._finish(tracked, "interrupted" if safe else "preempted", why)
        return False

    # The end.

    def close(self) -> None:
        """Hand over waiting jobs, give pilots back that nothing needs, and stop the thread."""
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def stop() -> None:
            self._closing = done

        self.post(stop)
        self._thread.join()

    def _leave(self) -> None:
        now = self._run.clock()
        live = [p for p in self.fleet.pilots.values() if p.number not in self._ended]
        if self._jobs:
            by_node: dict[Node, list[Job]] = {}
            for job, node in self.fleet.hand_over(now):
                by_node.setdefault(node, []).append(job)
            self._send_placed(by_node)
            if self.fleet.waiting:
                self._problem(
                    f"{self.fleet.waiting} jobs wait for room in a pilot: they start after a resume"
                )
        else:
            for pilot in live:
                if pilot.state != "draining":
                    self.fleet.drain(pilot)
                    self._give_back(pilot)
        with contextlib.suppress(ExecutorError):
            self._ledger.add(*self._lines)
            self._ledger.sync()
            for effect in self._effects:
                effect()
        if not self._jobs:
            deadline = time.monotonic() + _GIVING_BACK
            while any(p.number not in self._ended for p in live) and time.monotonic() < deadline:
                self.link.poll(0.1)
                while not self._inbox.empty():
                    self._inbox.get()()
        self.worker.close()
        self.link.close(_LAST_WORDS)


def _hosts(address: str) -> list[str]:
    """Return the addresses at which nodes look for the controller."""
    if address not in ("", "::", "0.0.0.0"):
        return [address]
    found: dict[str, None] = {}
    for name in (socket.gethostname(), socket.getfqdn()):
        with contextlib.suppress(OSError):
            for *_, where in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM):
                found[str(where[0])] = None
        found[name] = None
    return sorted(found, key=lambda host: host.startswith("127."))


def _tail(path: Path) -> str:
    """Return the end of a file as one line."""
    try:
        data = path.read_bytes()[-_TAIL:]
    except OSError:
        return ""
    return " / ".join(data.decode("utf-8", "replace").strip().splitlines()[-5:])


def _wrong_sizes(job: Job) -> str | None:
    if not 0 <= job.urgency <= 31 or job.tasks < 1 or job.cores_per_task < 1:
        return (
            f"urgency {job.urgency} (0 to 31), tasks {job.tasks} (1 or more) or cores_per_task "
            f"{job.cores_per_task} (1 or more) is out of range"
        )
    return None
