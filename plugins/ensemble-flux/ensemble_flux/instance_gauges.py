"""Reads and emits the gauges of a Flux instance, when messages of the instance say so.

Users who do not own the instance (guests) get fewer messages. For them, free resources are queried.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ensemble_flux.event_translation import EventTranslation
from ensemble_flux.ids_and_hostlists import parse_idset
from ensemble_flux.node_usage import Nodes
from ensemble_flux.reactor import Reactor, error_text

#: Minimum interval between a guest's queries of free resources, in seconds.
_PAUSE = 0.5
#: Maximum interval between these queries, in seconds, because nodes can go down without a message.
_LOOK = 30.0
#: Seconds until an ended stream is reopened.
_AGAIN = 1.0
_STATES = ("depend", "priority", "sched", "run", "cleanup", "inactive")


class Gauges:
    """Numbers of nodes, cores and GPUs, and of jobs in each state.

    The callback ``problem`` receives warnings for the user.
    """

    def __init__(
        self,
        reactor: Reactor,
        nodes: Nodes,
        journal: EventTranslation,
        problem: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._nodes = nodes
        self._journal = journal
        self._problem = problem
        self._told: dict[str, float] = {}
        self._watcher = False
        self._stats: dict[str, float] | None = None
        self._asking: dict[str, bool] = {}
        self._unanswered = 0
        self._past = False
        #: For a guest: the scheduler's last report about nodes that are down, and the ranks that
        #: were offline or drained at the last query.
        self._down: object = None
        self._lost_before: tuple[set[int], set[int]] | None = None

    @property
    def complete(self) -> bool:
        """True if every query has been answered."""
        return not self._unanswered

    def changed(self) -> dict[str, float]:
        """Return the values that changed since the last call."""
        values = self._nodes.gauges()
        if not self._watcher:
            values.update(self._journal.gauges())
        elif self._stats is not None:
            values.update(self._stats)
            values["waiting.nodes"] = self._journal.gauges()["waiting.nodes"]
        told = self._told
        changed = {path: value for path, value in values.items() if told.get(path) != value}
        told.update(changed)
        return changed

    def values(self) -> dict[str, float]:
        """Return all gauges, as last reported."""
        return dict(self._told)

    # -- the owner's ---------------------------------------------------------------------------

    def follow(self) -> None:
        """Start receiving changes of nodes."""
        self._past = True
        self._reactor.stream("resource.journal", {}, self._handle_resources, self._resources_ended)

    def _handle_resources(self, text: str) -> None:
        entries = json.loads(text).get("events", ())
        if not entries:
            self._past = False  # the events before this one happened before the stream began
            return
        self._query("resource.status", self._nodes.status)
        if not self._past:
            for entry in entries:
                self._warn(entry)

    def _warn(self, entry: dict[str, Any]) -> None:
        context = entry.get("context") or {}
        ranks = str(context.get("idset", "?"))
        if entry.get("name") == "offline":
            self._report_down(ranks, context.get("nodelist"))
        elif entry.get("name") == "drain":
            self._report_drained(ranks, context.get("nodelist"), context.get("reason"))

    def _report_down(self, ranks: str, hosts: str | None) -> None:
        self._problem(f"{_format_nodes(ranks, hosts)} of the Flux instance went down")

    def _report_drained(self, ranks: str, hosts: str | None, why: str | None) -> None:
        self._problem(
            f"{_format_nodes(ranks, hosts)} of the Flux instance was drained"
            f"{f' ({why})' if why else ''}: no more jobs start there"
            f" until 'flux resource undrain {ranks}'"
        )

    def _resources_ended(self, _error: OSError) -> None:
        self._reactor.after(_AGAIN, self.follow)

    def count_inactive(self) -> None:
        """Query the number of finished jobs."""

        def answer(counts: dict[str, Any]) -> None:
            self._journal.inactive(counts.get("inactive_jobs", 0))

        self._query("job-manager.stats-get", answer)

    # -- a guest's -----------------------------------------------------------------------------

    def follow_as_guest(self) -> None:
        """Start receiving the changes of the queue that a guest is allowed to see."""
        self._watcher = True
        self._poll()
        self._unanswered += 1
        answered_once = False

        def answered() -> None:
            nonlocal answered_once
            if not answered_once:
                answered_once = True
                self._unanswered -= 1

        def taken(text: str) -> None:
            answered()
            states = json.loads(text).get("job_states", {})
            self._stats = {f"queue.{state}": states.get(state, 0) for state in _STATES}
            self.moved()

        def ended(error: OSError) -> None:
            answered()
            self._stats = None
            self._problem(
                f"cannot read the numbers of jobs in this Flux instance ({error_text(error)}): "
                f"queue.* counts only this run's jobs"
            )

        self._reactor.stream("job-list.job-stats", {}, taken, ended, cancel="")

    def moved(self) -> None:
        """Query the resources again, because free or available nodes may have changed."""
        if self._watcher:
            self._query("resource.sched-status", self._allocated, pause=_PAUSE)

    def _allocated(self, answer: dict[str, Any]) -> None:
        self._nodes.allocated(answer.get("allocated"))
        down = answer.get("down")
        if down != self._down:  # a guest is not notified of changes of nodes
            self._down = down
            self._query("resource.status", self._handle_status)

    def _handle_status(self, answer: dict[str, Any]) -> None:
        """Update the nodes, and report nodes that a guest has lost."""
        self._nodes.status(answer)
        offline = parse_idset(answer.get("offline") or "")
        drains = {ranks: drain or {} for ranks, drain in (answer.get("drain") or {}).items()}
        drained = {rank: ranks for ranks in drains for rank in parse_idset(ranks)}
        if self._lost_before is not None:
            before_offline, before_drained = self._lost_before
            for rank in sorted(offline - before_offline):
                self._report_down(str(rank), None)
            for ranks in sorted({drained[rank] for rank in drained.keys() - before_drained}):
                self._report_drained(ranks, None, drains[ranks].get("reason"))
        self._lost_before = (offline, set(drained))

    def _poll(self) -> None:
        self.moved()
        self._reactor.after(_LOOK, self._poll)

    # -- queries -------------------------------------------------------------------------------

    def read_nodes(self) -> None:
        """Query the nodes."""
        self._query("resource.status", self._nodes.status)

    def _query(
        self, topic: str, take: Callable[[dict[str, Any]], None], pause: float = 0.0
    ) -> None:
        """Send a query, unless one is in progress.

        Queries requested meanwhile are merged into one, which is sent afterwards.
        """
        if topic in self._asking:
            self._asking[topic] = True
            return
        self._asking[topic] = False
        self._unanswered += 1

        def settle() -> None:
            self._unanswered -= 1
            if pause:
                self._reactor.after(pause, again)
            else:
                again()

        def again() -> None:
            if self._asking.pop(topic):
                self._query(topic, take, pause)

        def answered(text: str | None) -> None:
            take(json.loads(text or "{}"))
            settle()

        self._reactor.ask(topic, None, answered, lambda _error: settle())


def _format_nodes(ranks: str, hosts: str | None) -> str:
    """Return nodes in a form that users recognize: hosts, and ranks for Flux's commands."""
    word = "rank" if ranks.isdigit() else "ranks"
    return f"{hosts} ({word} {ranks})" if hosts else f"{word} {ranks}"
