"""Reports why jobs of the run wait in Flux, if nothing will start them.

Flux sends no message about a stopped queue, or about nodes that were drained before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ensemble_flux.event_translation import EventTranslation
from ensemble_flux.node_usage import Nodes
from ensemble_flux.reactor import Reactor

#: Seconds from the first waiting job to the first check; longest interval between checks.
PATIENCE, RARELY = 10.0, 60.0


class IdleQueue:
    """Checks at intervals, while jobs of the run wait, whether their queue can start them."""

    def __init__(
        self,
        reactor: Reactor,
        journal: EventTranslation,
        nodes: Nodes,
        problem: Callable[[str], None],
    ) -> None:
        self._reactor, self._journal, self._nodes = reactor, journal, nodes
        self._problem = problem
        self._pause = 0.0  # until the next check; 0 while no check is due
        #: Reported queues, until they are started again, and jobs for which nodes are missing.
        self._told: set[str] = set()

    def expect(self) -> None:
        """A job waits from now on."""
        if not self._pause:
            self._pause = PATIENCE
            self._reactor.after(self._pause, self._check)

    def _check(self) -> None:
        waiting = self._journal.first_waiting()
        if not waiting:
            self._pause = 0.0
            return
        for job, (queue_id, nodes) in waiting.items():
            self._count_nodes(job, nodes)
            given = {"id": queue_id, "attrs": ["queue"]}
            self._ask("job-list.list-id", given, partial(self._ask_queue, job))
        self._pause = min(2 * self._pause, RARELY)
        self._reactor.after(self._pause, self._check)

    def _count_nodes(self, job: str, nodes: int) -> None:
        lacking = self._nodes.lacking(nodes)
        if lacking and f"{job.rpartition('.')[0]} {lacking}" not in self._told:
            self._told.add(f"{job.rpartition('.')[0]} {lacking}")
            self._problem(
                f"{job} waits in Flux: it needs {nodes} nodes, but only "
                f"{self._nodes.up} {'is' if self._nodes.up == 1 else 'are'} up; nodes are drained: "
                f"'flux resource undrain {lacking}' lets it start"
            )

    def _ask_queue(self, job: str, answer: Mapping[str, Any]) -> None:
        queue = answer["job"].get("queue")
        given = {"name": queue} if queue else {}
        self._ask("job-manager.queue-status", given, partial(self._report, job, queue or ""))

    def _report(self, job: str, queue: str, answer: Mapping[str, Any]) -> None:
        key = f"queue {queue}"
        if answer.get("start", True):
            self._told.discard(key)
        elif key not in self._told and self._journal.waits(job):
            self._told.add(key)
            reason = answer.get("stop_reason")
            start = f"flux queue start --queue={queue}" if queue else "flux queue start"
            self._problem(
                f"{job} waits in Flux: the {key.strip()} is stopped"
                f"{f' ({reason})' if reason else ''}: '{start}' lets it start"
            )

    def _ask(self, topic: str, given: object, take: Callable[[Mapping[str, Any]], None]) -> None:
        def answered(text: str | None) -> None:
            take(json.loads(text or "{}"))

        # The job may be over, or the instance may be too old for this request.
        self._reactor.ask(topic, given, answered, lambda _error: None)
