"""Controller of pilots: one thread that owns the fleet, the ledger and the connections.

Other threads only post calls to it. Calls that block, such as requests to the outer queue, have a
second thread (:class:`~ensemble_pilot.ledger.Worker`). ``fleet`` says why no job runs twice.

| part | knows |
|---|---|
| ``Fleet`` | which job is where |
| ``Resizes`` | which requests of rules have no answer yet |
| ``Transaction`` | what was decided, but is not carried out yet |
| ``Tracking`` | what the run has heard of its jobs |
| ``Connections`` | the nodes |
| ``Pilots`` | the outer queue |
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from ensemble_core import Event, ExecutorError, Job, ResizeOutcome, Resources, Run, WhenBusy
from ensemble_core.cli.toolkit import count_of
from ensemble_core.local.ledger_reader import LedgerReading
from ensemble_pilot import credentials
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.grow_and_shrink import Answer, Resize, Resizes
from ensemble_pilot.job_tracking import Tracking
from ensemble_pilot.ledger import Entry, PilotLedger, Transaction
from ensemble_pilot.node_connections import Connections
from ensemble_pilot.outer_queue import Pilots, Settings, read_node
from ensemble_pilot.pilot import Node, Pilot
from ensemble_pilot.status import use_text

_T = TypeVar("_T")

#: How many seconds the controller waits, when it exits, until the outer queue has ended its pilots,
#: and until nodes have read the last messages.
_GIVING_BACK, _LAST_WORDS = 30.0, 5.0


#: Seconds between two lines about why no pilot is requested.
_SAYING = 1.0
#: Seconds between two lines about how much of each pilot was used: at first, and later at least,
#: and for each pilot.
_USE_FIRST, _USE_LEAST, _USE_PER_PILOT = 0.5, 5.0, 0.5
#: Seconds between two events about free nodes and cores, and about hours. Events about pilots that
#: come and go are not delayed.
_FREE, _HOURS = 1.0, 5.0
#: Gauges of which each change is emitted at once.
_PROMPT = ("nodes.up", "pilots.ready", "pilots.waiting", "pilots.draining")


class Controller:
    """The pilots and jobs of a run. Only :meth:`post` and :meth:`request` are for other threads."""

    def __init__(
        self,
        run: Run,
        emit: Callable[[Sequence[Event]], None],
        folder: Path,
        settings: Settings,
        ledger: PilotLedger,
    ) -> None:
        self._folder, self._settings, self._ledger = folder, settings, ledger
        self._clock = run.clock
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closing = False
        self.fleet = Fleet(*(each.kind for each in settings.kinds.values()))
        self.fleet.steered = run.resizes
        self.resizes = Resizes(self.fleet)
        self.transaction = Transaction(ledger, run.clock, emit, self.post)
        self.jobs = Tracking(self.transaction, self.fleet)
        credentials.make(folder / "link")
        try:
            self.nodes = Connections(
                self.transaction,
                self.fleet,
                self.jobs,
                folder / "link",
                settings.address,
                self._on_node,
                lambda number, text: self.pilots.note(number, text),
            )
        except OSError as error:
            self.transaction.worker.close()
            raise ExecutorError(
                f"cannot listen on {settings.address[0] or 'any address'}, port "
                f"{settings.address[1]}",
                cause=error.strerror,
                hint="choose another address with -o listen=ADDRESS:PORT",
                code="cannot-listen",
            ) from None
        self.pilots = Pilots(
            run, self.transaction, self.fleet, self.jobs, folder, settings, self.nodes
        )
        for request, (_, *rest) in ledger.resizes.items():
            self.resizes.begin(request, Resize(*rest))
        for name, target in ledger.targets.items():
            self.fleet.demands[name].target = target
        #: The gauges that the run knows.
        self.gauges: Mapping[str, float] = self.fleet.gauges(self._clock())
        #: Whether others than hours have changed since, and when the run may hear of that, and of
        #: hours.
        self._is_news, self._free_after, self._hours_after = False, 0.0, 0.0
        #: Whether there were jobs that were not over.
        self._busy = False
        #: What the ledger says about why no pilot is requested, and when it may say something else;
        #: when it says again how much of the pilots was used, and how many seconds after that.
        self._why, self._why_after, self._use_after = "", 0.0, 0.0
        self._use_pause = _USE_FIRST
        self._targets = self._targets_now()
        #: When to decide about pilots again, on the monotonic clock: at the earliest, if something
        #: has happened since then, and at the latest.
        self._decide_after, self._undecided, self._decide_at = 0.0, True, math.inf
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
        self.transaction.worker.close()

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
            if not self.transaction.is_stuck:
                self._plan(self._clock())
                if self.transaction.wait is not None:
                    self.transaction.end()
            self.transaction.flush()
            self.nodes.link.flush()
        self._leave()

    def _take_calls(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _timeout(self) -> float | None:
        wait = self.transaction.wait
        if wait is not None:
            return wait
        when = self._decide_after if self._undecided else self._decide_at
        return None if when == math.inf else max(0.0, when - time.monotonic()) + 0.001

    def _plan(self, now: float) -> None:
        """Place jobs, and decide which pilots come and go."""
        by_node: dict[Node, list[Job]] = {}
        for job, node in (*self.fleet.place(now), *self.fleet.prefetch(now)):
            by_node.setdefault(node, []).append(job)
        self._send(by_node)
        for node, names in self.fleet.take_late(now).items():
            recall: list[object] = ["recall", names]
            self.transaction.then(lambda node=node, recall=recall: self.nodes.tell(node, recall))  # type: ignore[misc]
        moment = time.monotonic()
        self._undecided = moment < self._decide_after
        if not self._undecided:
            self._decide_after = moment + self.fleet.pause
            self._decide(now)
            times = self._wake_times(now)
            self._decide_at = moment + min(times) - now if times else math.inf
        was_busy, self._busy = self._busy, bool(self.fleet.placed or self.fleet.loads)
        if was_busy and not self._busy:  # rules that fire now may show the hours
            self._tell_gauges(now, at_once=True)

    def _wake_times(self, now: float) -> list[float]:
        """Return when something has to be decided or written although nothing happens."""
        wake = self.fleet.wake_time(now)
        return [
            *self.pilots.wake_times(),
            *([] if wake is None else [wake]),
            *([self._why_after] if self.fleet.why != self._why else []),
            *([self._free_after] if self._is_news else []),
            *([self._use_after, self._hours_after] if self.fleet.hours_grow else []),
        ]

    def _decide(self, now: float) -> None:
        """Decide which pilots come and go."""
        for kind in self.fleet.requests(now):
            self.pilots.request(kind, now)
        for pilot in self.fleet.surplus(now):
            self.pilots.give_back(pilot)
        self._tell_gauges(now)  # before the answers: rules that these trigger read them
        for answer in self.resizes.answers():
            self._answer(answer)
        before, self._targets = self._targets, self._targets_now()
        for name, target in self._targets.items():
            if before[name] != target:
                self.transaction.record("t", target, name)
        self._record_state(now)
        self.pilots.check(now)

    def _tell_gauges(self, now: float, *, at_once: bool = False) -> None:
        """Emit the gauges that have changed: ``at_once``, or when it is time for them."""
        new = self.fleet.gauges(now)
        changed = {name: value for name, value in new.items() if self.gauges[name] != value}
        self._is_news = any(not name.endswith("_hours") for name in changed)
        at_once = at_once or not changed.keys().isdisjoint(_PROMPT)
        if at_once or now >= (self._free_after if self._is_news else self._hours_after):
            self.gauges, self._is_news = new, False
            self._free_after, self._hours_after = now + _FREE, now + _HOURS
            if changed:
                self.transaction.emit_before(Resources(now, changed))

    def _targets_now(self) -> dict[str, int]:
        return {name: demand.target for name, demand in self.fleet.demands.items()}

    def _record_state(self, now: float) -> None:
        """Write what only ``ensemble status`` needs to the ledger, from time to time."""
        if self.fleet.why != self._why and now >= self._why_after:
            self._why, self._why_after = self.fleet.why, now + _SAYING
            self.transaction.record("y", self._why)
        if self.fleet.hours_grow and now >= self._use_after:
            most = max(_USE_LEAST, _USE_PER_PILOT * len(self.fleet.pilots))
            self._use_after = now + self._use_pause
            self._use_pause = min(most, 2 * self._use_pause)
            self._record_use(self.fleet.pilots.values(), now)

    def _record_use(self, pilots: Iterable[Pilot], now: float) -> None:
        """Write how much jobs have used of these pilots to the ledger."""
        for pilot in pilots:
            if pilot.began is not None:
                self.transaction.record("u", pilot.number, pilot.used_until(now), pilot.until(now))

    def _send(self, by_node: Mapping[Node, list[Job]]) -> None:
        members = self.fleet.members
        for node, every in by_node.items():
            large = [job for job in every if job.id in members]
            jobs = [job for job in every if job.id not in members] if large else every
            if jobs:
                self.transaction.record("p", *node.key, [job.id for job in jobs])
                self.transaction.then(lambda node=node, jobs=jobs: self.nodes.submit(node, jobs))  # type: ignore[misc]
            for job in large:
                others = members[job.id][1:]
                self.transaction.record("p", *node.key, [job.id], [each.rank for each in others])
                for each in (node, *others):
                    self.transaction.then(lambda each=each, job=job: self.nodes.submit(each, [job]))  # type: ignore[misc]

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
        ends = any(each.kind.duration for each in self.fleet.demands.values())
        reasons: dict[tuple[object, ...], str | None] = {}
        for entry in entries:
            tracked = self.jobs.add(entry)
            if ends and not entry.job.duration:
                self.transaction.problem(
                    f"jobs without 'duration', such as {entry.job.id}, may be placed in a pilot "
                    "that ends before they do: give their group one",
                    once="duration",
                )
            size = _size(entry.job)
            if size not in reasons:
                reasons[size] = self.fleet.never(entry.job) or _wrong_sizes(entry.job)
            reason = reasons[size]
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

    def resize(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        """Grow or shrink the fleet. The answer follows once the pilots are ready, or over."""
        given = self._ledger.answers.get(request)
        if given is not None:  # an earlier controller has answered it
            now, outcome, size, reason = given
            self.transaction.emit([ResizeOutcome(now, request, outcome, size, reason)])
        elif request not in self.resizes.pending:
            resize = self.resizes.plan(delta, when_busy)
            if isinstance(resize, str):
                self._answer(Answer(request, "denied", self.fleet.size, resize))
                return
            self.resizes.begin(request, resize)
            for number in resize.leaving:
                self.pilots.record_drain(self.fleet.pilots[number])
            self.transaction.record(
                *("g", request, self._clock(), delta, resize.target),
                *(list(resize.leaving), resize.forced, resize.note, resize.kind),
            )

    def _answer(self, answer: Answer) -> None:
        event = ResizeOutcome(
            self._clock(), answer.request, answer.outcome, answer.size, answer.reason
        )
        self.transaction.record(
            "a", event.request, event.timestamp, event.outcome, event.size, event.reason
        )
        self.transaction.then(lambda: self.transaction.emit([event]))

    def forget(self, names: Sequence[str]) -> None:
        """Drop jobs that are over from all ledgers."""
        by_node: dict[Node, list[str]] = {}
        for name in names:
            entry = self._ledger.jobs.get(name)
            if entry is not None and entry.place is not None:
                pilot, rank = entry.place
                for each in (rank, *entry.others):
                    node = self.fleet.node(pilot, each)
                    if node is not None:
                        by_node.setdefault(node, []).append(name)
        # A later controller counts what jobs have used that nodes have not forgotten.
        self._record_use({node.pilot: None for node in by_node}, self._clock())
        self.transaction.record("f", list(names))
        for node, some in by_node.items():
            self.transaction.then(partial(self.nodes.tell, node, ["forget", some]))

    def reattach(self, jobs: Mapping[str, float]) -> dict[str, bool]:
        """Track jobs of an earlier controller. Return which are known; their events follow.

        All other jobs of that controller are forgotten: the run does not wait for them.
        """
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
                for each in self.fleet.members.get(name, (node,)):
                    if name in each.jobs:
                        asked.setdefault(each, []).append(name)
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
        unknown = [name for name in self._ledger.jobs if name not in self.jobs]
        if unknown:  # they are over, or the run has never heard of them
            for name in self.fleet.placed.keys() & unknown:
                self.fleet.release(name, self._clock())
            self.forget(unknown)
        return known

    def _take_over(self, place: tuple[int, int], names: Sequence[str]) -> None:
        """Read the events of jobs that were sent to a pilot that is over by now.

        The ledger says so, thus the pilot's fence is in place.
        """
        number, rank = place
        others = {other for name in names for other in self._ledger.jobs[name].others}

        def read() -> list[LedgerReading]:
            jobs = {rank: dict.fromkeys(names, 0.0), **{other: {} for other in others}}
            return [read_node(self.pilots.node_folder(number, r), jobs[r]) for r in (rank, *others)]

        def settle(readings: Sequence[LedgerReading]) -> None:
            reading, why = readings[0], f"pilot {number} ended"
            requeue = self.pilots.requeues(number)
            requeue = requeue and all(each.quit is not None for each in readings)
            for name in self.jobs.settle(names, reading, why, requeue=requeue):
                self.transaction.record("w", [name])
                entry = self._ledger.jobs[name]
                self.fleet.add(entry.job, entry.number)

        self.transaction.retry(
            read,
            settle,
            f"the end of {count_of(len(names), 'job')} of pilot {number} is not known until this "
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
        self._record_use(self.fleet.pilots.values(), self._clock())
        if self.jobs:
            self._hand_over()
        else:
            for pilot in list(self.fleet.pilots.values()):
                if pilot.state in ("requested", "starting", "ready"):
                    self.pilots.give_back(pilot)
        self.transaction.end()
        if not self.jobs:
            self._wait_for_pilots()
        given, used = self.fleet.core_seconds(self._clock())
        if given:
            self.transaction.say(use_text(given, used))
        self.transaction.flush()
        self.transaction.worker.close()
        self.nodes.link.close(_LAST_WORDS)

    def _hand_over(self) -> None:
        """Send waiting jobs to the pilots that are ready, because the controller leaves."""
        by_node: dict[Node, list[Job]] = {}
        for job, node in self.fleet.hand_over(self._clock()):
            by_node.setdefault(node, []).append(job)
        self._send(by_node)
        if self.fleet.waiting:
            self.transaction.problem(
                f"{count_of(self.fleet.waiting, 'job')} wait for room in a pilot: they start after "
                "a resume"
            )

    def _wait_for_pilots(self) -> None:
        """Wait until the outer queue has ended the pilots; then fence off those that are left."""
        deadline = time.monotonic() + _GIVING_BACK
        while self.fleet.pilots and time.monotonic() < deadline:
            self.nodes.link.poll(0.1)
            self._take_calls()
            self.transaction.end()
            self.nodes.link.flush()
        left = sorted(self.fleet.pilots)
        for number in left:
            with contextlib.suppress(OSError):  # then it ends after 'orphan'
                self.pilots.fence_off(number)
        if left:
            names = ", ".join(map(str, left))
            self.transaction.problem(
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


def _size(job: Job) -> tuple[object, ...]:
    """Return what decides whether a pilot can run a job."""
    return (
        *(job.nodes, job.tasks, job.cores_per_task, job.gpus_per_task, job.memory_per_task),
        *(job.urgency, job.duration, job.executor),
    )


def _wrong_sizes(job: Job) -> str | None:
    if not 0 <= job.urgency <= 31 or job.tasks < 1 or job.cores_per_task < 1:
        return (
            f"urgency {job.urgency} (0 to 31), tasks {job.tasks} (1 or more) or cores_per_task "
            f"{job.cores_per_task} (1 or more) is out of range"
        )
    return None
