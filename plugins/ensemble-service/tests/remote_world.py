"""Runs, members and queues around one service, for tests of what breaks between them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_service.agent import Agent
from ensemble_service.client import open_channel
from ensemble_service.remote_executor import RemoteExecutor
from ensemble_service.server import Service

from ensemble_core import (
    Emit,
    Event,
    Executor,
    ExecutorError,
    ExecutorLost,
    Job,
    JobEvent,
    Problem,
    ResizeOutcome,
    Run,
    WhenBusy,
)

#: The identity of each run.
RUN_ID = "0123456789abcdef"
LIFE = ["submit", "depend", "priority", "alloc", "start", "finish", "clean"]


class Queue:
    """A queue that outlives its executors and accepts each job once. ``pace`` is in seconds."""

    def __init__(self, pace: float = 0.002) -> None:
        self.lock = threading.RLock()
        self.pace = pace
        self.submits: list[str] = []
        self.events: dict[str, list[JobEvent]] = {}
        self.calls: list[str] = []
        self.cancelled: set[str] = set()
        self.held = False
        #: Number of failures before it answers which jobs it knows.
        self.mute = 0
        self.refuse: ExecutorError | None = None
        self.cannot_close: ExecutorError | None = None
        #: How many submissions find that the queue has just ended.
        self.ends = 0
        self.forgotten: list[str] = []
        self.listeners: list[QueueExecutor] = []
        self._last = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(self.pace):
            with self.lock:
                if self.held:
                    continue
                for job, events in self.events.items():
                    if len(events) < len(LIFE) and events[-1].name != "clean":
                        self.happen(job, LIFE[len(events)])

    def happen(self, job: str, name: str, said: Mapping[str, Any] | None = None) -> None:
        with self.lock:
            self._last = max(self._last + 1e-5, time.time())
            context: dict[str, Any] = {"status": 0} if name == "finish" else {}
            if name == "exception":
                context = {"type": "cancel", "severity": 0}
            context.update(said or {})
            event = JobEvent(self._last, job, name, context)
            self.events[job].append(event)
            for listener in self.listeners:
                listener.hear(event)

    #: Whether an earlier queue has ended with its allocation, and which of its jobs had begun.
    new = False
    unsure: Collection[str] = ()

    def forget_all(self) -> None:
        """Make the queue forget its jobs."""
        with self.lock:
            self.events.clear()

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class QueueExecutor(Executor):
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "resize", "reattach", "detach"}
    )

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.told: set[str] = set()
        self._emit: Emit | None = None
        self.size = 1

    def open(self, run: Run, emit: Emit) -> None:
        if self.queue.refuse is not None:
            raise self.queue.refuse
        self._emit = emit
        with self.queue.lock:
            self.queue.listeners.append(self)

    def hear(self, event: JobEvent) -> None:
        if event.job in self.told and self._emit is not None:
            self._emit([event])

    def say(self, *events: Event) -> None:
        assert self._emit is not None
        self._emit(events)

    def submit(self, jobs: Sequence[Job]) -> None:
        with self.queue.lock:
            if self.queue.ends:
                self.queue.ends -= 1
                self.say(ExecutorLost(time.time(), "local", "got SIGTERM", drained=True))
                raise ExecutorError("the local executor has stopped", code="lost")
            for job in jobs:
                self.queue.submits.append(job.id)
                assert job.id not in self.queue.events, "submitted twice"
            for job in jobs:
                self.told.add(job.id)
                self.queue.events[job.id] = []
                self.queue.happen(job.id, "submit")

    def cancel(self, jobs: Sequence[str]) -> None:
        with self.queue.lock:
            self.queue.calls.append("cancel")
            for job in jobs:
                events = self.queue.events.get(job)
                if events and events[-1].name != "clean":
                    self.queue.happen(job, "exception")
                    self.queue.happen(job, "clean")

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        self.size += delta
        self.say(ResizeOutcome(time.time(), request, "granted", self.size))

    def resources(self) -> Mapping[str, float]:
        return {"nodes.up": float(self.size), "nodes.free": 1.0}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        with self.queue.lock:
            self.queue.calls.append("reattach")
            if self.queue.mute:
                self.queue.mute -= 1
                raise ExecutorError("ask me later")
            for job, since in jobs.items():
                events = self.queue.events.get(job)
                if events is not None:
                    self.told.add(job)
                    assert self._emit is not None
                    self._emit([event for event in events if event.timestamp > since])
            return {j: j in self.queue.events for j in jobs if j not in self.queue.unsure}

    @property
    def queue_is_new(self) -> bool:
        return self.queue.new

    def forget(self, jobs: Sequence[str]) -> None:
        self.queue.forgotten.extend(jobs)

    def close(self) -> None:
        with self.queue.lock:
            self.queue.listeners.remove(self)
            self._emit = None
        if self.queue.cannot_close is not None:
            raise self.queue.cannot_close


class World:
    """A service, with members and controllers on demand."""

    def __init__(self, folder: Path, service: Service, tokens: Mapping[str, str]) -> None:
        self.folder = folder
        self.service = service
        self.port = service.port
        self.controller = tokens["controller"]
        self.queues: dict[str, Queue] = {}
        self.agents: dict[str, Agent] = {}
        self.executors: list[RemoteExecutor] = []
        self.members = tokens

    def agent(self, name: str = "a") -> Agent:
        queue = self.queues.setdefault(name, Queue())
        agent = self.agents[name] = Agent(
            f"default/{name}",
            partial(QueueExecutor, queue),
            self.folder / name,
            partial(open_channel, "127.0.0.1", self.port, token=self.members[name]),
            "service",
        )
        agent.start()
        assert agent.wait_connected(60)
        return agent

    def leave(self, name: str = "a") -> None:
        self.agents.pop(name).stop()

    def kill(self, name: str = "a") -> None:
        """Kill an agent. Its unsent messages are lost."""
        agent = self.agents.pop(name)
        agent._ended.set()
        agent._news.set()
        agent._connection.close()
        agent._sender.join()
        os.close(agent._lock_file)

    def run(self, tag: str = "run-1", **options: Any) -> Controller:
        controller = Controller(self, tag, **options)
        self.executors.append(controller.executor)
        return controller

    def held(self, tag: str, *numbers: int) -> Controller:
        """Start member ``a`` with a queue that holds jobs, and submit these jobs in a new run."""
        self.agent()
        self.queues["a"].held = True
        controller = self.run(tag)
        controller.executor.submit(jobs(*numbers))
        controller.wait(lambda: controller.names(f"t.{numbers[-1]}"), "the submits")
        return controller

    def close(self) -> None:
        for executor in self.executors:
            executor.close()
        for agent in self.agents.values():
            agent.stop()
        for queue in self.queues.values():
            queue.close()


class Controller:
    """An open ``remote`` executor and the events that it emitted."""

    def __init__(self, world: World, tag: str, *, open_now: bool = True, **options: Any) -> None:
        self.world = world
        self.events: list[Event] = []
        self._news = threading.Condition()
        self.executor = RemoteExecutor(
            channel=partial(open_channel, "127.0.0.1", world.port, token=world.controller),
            **options,
        )
        state = world.folder / "runs" / tag
        self.at = Run(tag, world.folder / "output", time.time, state, RUN_ID)
        if open_now:
            self.executor.open(self.at, self.emit)

    def emit(self, events: Sequence[Event]) -> None:
        with self._news:
            self.events.extend(events)
            self._news.notify_all()

    def wait(self, done: Callable[[], object], what: str = "it", seconds: float = 120.0) -> None:
        with self._news:
            if not self._news.wait_for(done, seconds):
                pytest.fail(f"{what}: not within {seconds:g} s; {self.events[-20:]}")

    def names(self, job: str) -> list[str]:
        return [e.name for e in list(self.events) if isinstance(e, JobEvent) and e.job == job]

    def over(self, *jobs: str) -> None:
        left = set(jobs)
        seen = 0

        def done() -> bool:
            nonlocal seen
            for event in self.events[seen:]:
                if isinstance(event, JobEvent) and event.name == "clean":
                    left.discard(event.job)
            seen = len(self.events)
            return not left

        self.wait(done, f"the end of {len(jobs)} jobs")

    def die(self) -> None:
        """Stop without closing, as if the process were killed."""
        self.executor._over.set()
        self.executor._connection.close()

    def problems(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Problem)]


def jobs(*numbers: int, member: str | None = None) -> list[Job]:
    return [Job(id=f"t.{n}", group="t", index=n, command=("x",), executor=member) for n in numbers]


def ids(*numbers: int) -> list[str]:
    return [f"t.{n}" for n in numbers]
