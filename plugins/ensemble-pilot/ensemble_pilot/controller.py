"""Controller of pilots: one thread that owns the fleet, the ledger and the connections.

Other threads only post calls to it. Calls that block, such as requests to the outer queue, have a
second thread (:class:`~ensemble_pilot.turn.Worker`). ``fleet`` says why no job runs twice.

| part | knows |
|---|---|
| ``Fleet`` | which job is where |
| ``Turn`` | what was decided, but is not carried out yet |
| ``Tracking`` | what the run has heard of its jobs |
| ``Connections`` | the nodes |
| ``Pilots`` | the outer queue |
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ensemble_core import Event, Executor, ExecutorError, Job, Run
from ensemble_core.cli.toolkit import count_of
from ensemble_core.local.ledger_reader import LedgerReading, read_ledger
from ensemble_pilot import credentials
from ensemble_pilot.connections import Connections
from ensemble_pilot.fleet import Fleet, Kind, Node
from ensemble_pilot.ledger import Entry, PilotLedger
from ensemble_pilot.pilots import Pilots, Settings
from ensemble_pilot.tracking import Tracking
from ensemble_pilot.turn import Turn

__all__ = ["Controller"]

_T = TypeVar("_T")

#: How many seconds the controller waits, when it exits, until the outer queue has ended its pilots,
#: and until nodes have read the last messages.
_GIVING_BACK, _LAST_WORDS = 30.0, 5.0


class Controller:
    """The pilots and jobs of a run. Only :meth:`post` and :meth:`request` are for other threads."""

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
        self._folder, self._settings, self._ledger = folder, settings, ledger
        self._clock = run.clock
        self.outer = outer
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closing = False
        self.fleet = Fleet(kind)
        self.turn = Turn(ledger, run.clock, emit, self.post)
        self.jobs = Tracking(self.turn, self.fleet, requeue=settings.requeue)
        credentials.make(folder / "link")
        try:
            self.nodes = Connections(
                self.turn,
                self.fleet,
                self.jobs,
                folder / "link",
                settings.address,
                self._on_node,
                lambda number, text: self.pilots.note(number, text),
            )
        except OSError as error:
            self.turn.worker.close()
            raise ExecutorError(
                f"cannot listen on {settings.address[0] or 'any address'}, port "
                f"{settings.address[1]}",
                cause=error.strerror,
                hint="choose another address with -o listen=ADDRESS:PORT",
                code="cannot-listen",
            ) from None
        self.pilots = Pilots(
            run, self.turn, self.fleet, self.jobs, folder, settings, outer, self.nodes
        )
        self.gauges: Mapping[str, float] = self.fleet.gauges()
        self._thread = threading.Thread(target=self._loop, name="ensemble-pilot", daemon=True)

    def begin(self, known: Mapping[str, bool]) -> None:
        """Start to work. ``known``: which jobs of pilots the outer queue knows."""
        port = self.nodes.link.port
        addresses = [[host, port] for host in _hosts(self._settings.address[0])]
        self.pilots.addresses = ", ".join(f"{host}:{port}" for host, port in addresses)
        text = json.dumps({"epoch": os.urandom(8).hex(), "addresses": addresses})
        credentials.write_private(self._folder / "link" / "address.json", text.encode())
        self.pilots.begin(known)
        self._thread.start()
        self.nodes.link.wake()

    def abandon(self) -> None:
        """Release everything without having begun."""
        self.nodes.link.close(0.0)
        self.turn.worker.close()

    def post(self, call: Callable[[], None]) -> None:
        """Let the controller's thread make a call. Safe from any thread."""
        self._inbox.put(call)
        self.nodes.link.wake()

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
        while True:
            self.nodes.link.poll(self._timeout())
            self._take_calls()
            if self._closing:
                break
            if not self.turn.is_stuck:
                self._plan(self._clock())
                if self.turn.wait is not None:
                    self.turn.end()
                self.gauges = self.fleet.gauges()
            self.nodes.link.flush()
        self._leave()

    def _take_calls(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _timeout(self) -> float | None:
        wait = self.turn.wait
        if wait is not None:
            return wait
        now = self._clock()
        times = self.pilots.wake_times()
        wake = self.fleet.wake_time(now)
        times += [] if wake is None else [wake]
        return max(0.0, min(times) - now) + 0.001 if times else None

    def _plan(self, now: float) -> None:
        """Place jobs, and decide which pilots come and go."""
        by_node: dict[Node, list[Job]] = {}
        for job, node in self.fleet.place(now):
            by_node.setdefault(node, []).append(job)
        self._send(by_node)
        for _ in range(self.fleet.requests(now)):
            self.pilots.request(now)
        for pilot in self.fleet.surplus(now):
            self.pilots.give_back(pilot)
        self.pilots.check(now)

    def _send(self, by_node: Mapping[Node, list[Job]]) -> None:
        for node, jobs in by_node.items():
            self.turn.record("p", *node.key, [job.id for job in jobs])
            self.turn.then(lambda node=node, jobs=jobs: self.nodes.submit(node, jobs))  # type: ignore[misc]

    def _on_node(self, node: Node, became_ready: bool) -> None:
        self.pilots.on_node(node, became_ready)
        for job, reason in self.fleet.impossible():
            self.fleet.remove(job.id)
            tracked = self.jobs.get(job.id)
            assert tracked is not None
            self.jobs.finish(tracked, "alloc", reason)

    # Requests of the run.

    def submitted(self, entries: Sequence[Entry]) -> None:
        """Take over jobs that are in the ledger, and whose first events have been emitted."""
        for entry in entries:
            tracked = self.jobs.add(entry)
            if self.fleet.kind.duration and not entry.job.duration:
                self.turn.problem(
                    f"jobs without 'duration', such as {entry.job.id}, may be placed in a pilot "
                    "that ends before they do: give their group one",
                    once="duration",
                )
            reason = self.fleet.never(entry.job) or _wrong_sizes(entry.job)
            if reason is not None:
                self.jobs.finish(tracked, "alloc", reason)
            else:
                self.fleet.add(entry.job, entry.number)

    def cancel(self, names: Iterable[str]) -> None:
        for name in names:
            tracked = self.jobs.get(name)
            if tracked is None or tracked.cancelled:
                continue
            tracked.cancelled = True
            node = self.fleet.placed.get(name)
            if node is not None:  # if it is not connected, it is told when it connects
                self.nodes.tell(node, ["cancel", [name]])
            elif self.fleet.waits(name):
                self.fleet.remove(name)
                self.jobs.finish(tracked, "cancel", "cancelled while it waited for a pilot")

    def signal(self, names: Iterable[str], signal: str) -> None:
        for name in names:
            node = self.fleet.placed.get(name)
            if node is not None:
                self.nodes.tell(node, ["signal", [name], signal], later=True)

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
            self.nodes.tell(node, ["forget", some])
        self.turn.record("f", list(names))

    def reattach(self, jobs: Mapping[str, float]) -> dict[str, bool]:
        """Track jobs of an earlier controller. Return which are known; their events follow."""
        known = {name: name in self._ledger.jobs for name in jobs}
        asked: dict[Node, list[str]] = {}
        over: dict[tuple[int, int], list[str]] = {}
        for name, since in jobs.items():
            if not known[name] or name in self.jobs:
                continue
            entry = self._ledger.jobs[name]
            tracked = self.jobs.add(entry, since)
            node = self.fleet.placed.get(name)
            if node is not None:
                asked.setdefault(node, []).append(name)
            elif entry.place is not None:  # in a pilot that is over: its ledger is still there
                over.setdefault(entry.place, []).append(name)
            elif entry.ended:
                self.jobs.replay_end(tracked)
            elif (reason := self.fleet.never(entry.job)) is not None:
                self.jobs.finish(tracked, "alloc", reason)
            else:
                self.fleet.add(entry.job, entry.number)
        for node, names in asked.items():
            self.nodes.ask(node, names)
        for place, names in over.items():
            self._take_over(place, names)
        lost = [n for n, e in self._ledger.jobs.items() if n not in self.jobs and e.place is None]
        if lost:  # the run has never heard of these jobs, or has forgotten them
            self.turn.record("f", lost)
        return known

    def _take_over(self, place: tuple[int, int], names: Sequence[str]) -> None:
        """Read the events of jobs that were sent to a pilot that is over by now.

        The ledger says so, thus the pilot's fence is in place.
        """
        state = self.pilots.node_folder(*place)

        def settle(reading: LedgerReading) -> None:
            for name in self.jobs.settle(names, reading, f"pilot {place[0]} ended"):
                self.turn.record("w", [name])
                entry = self._ledger.jobs[name]
                self.fleet.add(entry.job, entry.number)

        self.turn.retry(
            lambda: read_ledger(state, dict.fromkeys(names, 0.0)),
            settle,
            f"the end of {count_of(len(names), 'job')} of pilot {place[0]} is not known until this "
            "works",
        )

    # The end.

    def close(self) -> None:
        """Hand over waiting jobs, give pilots back that nothing needs, and stop the thread."""

        def stop() -> None:
            self._closing = True

        self.post(stop)
        self._thread.join()

    def _leave(self) -> None:
        if self.jobs:
            self._hand_over()
        else:
            for pilot in list(self.fleet.pilots.values()):
                if pilot.state in ("requested", "starting", "ready"):
                    self.pilots.give_back(pilot)
        self.turn.end()
        if not self.jobs:
            self._wait_for_pilots()
        self.turn.worker.close()
        self.nodes.link.close(_LAST_WORDS)

    def _hand_over(self) -> None:
        """Send waiting jobs to the pilots that are ready, because the controller leaves."""
        by_node: dict[Node, list[Job]] = {}
        for job, node in self.fleet.hand_over(self._clock()):
            by_node.setdefault(node, []).append(job)
        self._send(by_node)
        if self.fleet.waiting:
            self.turn.problem(
                f"{count_of(self.fleet.waiting, 'job')} wait for room in a pilot: they start after "
                "a resume"
            )

    def _wait_for_pilots(self) -> None:
        """Wait until the outer queue has ended the pilots; then fence off those that are left."""
        deadline = time.monotonic() + _GIVING_BACK
        while self.fleet.pilots and time.monotonic() < deadline:
            self.nodes.link.poll(0.1)
            self._take_calls()
            self.turn.end()
            self.nodes.link.flush()
        left = sorted(self.fleet.pilots)
        for number in left:
            with contextlib.suppress(OSError):  # then it ends after 'orphan'
                self.pilots.fence_off(number)
        if left:
            names = ", ".join(map(str, left))
            self.turn.problem(
                f"pilots {names} were given back, but the queue has not ended them within "
                f"{_GIVING_BACK:g} s: if it starts them, they end at once. Its own commands, such "
                "as squeue, show them"
            )


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


def _wrong_sizes(job: Job) -> str | None:
    if not 0 <= job.urgency <= 31 or job.tasks < 1 or job.cores_per_task < 1:
        return (
            f"urgency {job.urgency} (0 to 31), tasks {job.tasks} (1 or more) or cores_per_task "
            f"{job.cores_per_task} (1 or more) is out of range"
        )
    return None
