"""Failures of jobs by node: the trigger ``bad-node``, and the nodes that the run avoids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from ensemble_core.model.rules import Trigger
from ensemble_core.quick_dataclass import dataclass

#: How many jobs a message about a node names.
_NAMED = 5


@dataclass(slots=True, eq=False)
class BadNodes:
    """The recent failures on each node, and the nodes that get no more jobs of the run."""

    #: The nodes that jobs avoid, in the order in which rules have chosen them.
    avoided: dict[str, None] = field(default_factory=dict)
    #: For each node: the job (``GROUP.INDEX``), and the time and cause of its last failure there.
    failed: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict)

    def fail(
        self,
        node: str,
        job: str,
        cause: str,
        now: float,
        triggers: Sequence[Trigger],
        longest: float,
    ) -> list[tuple[int, dict[str, Any]]]:
        """Record a failure on a node. Return the triggers ``bad-node`` that occur, by position.

        Each comes with its fields for conditions. Only different jobs count, so earlier failures
        of this job on the node are forgotten. ``triggers`` are those of the job's group;
        ``longest`` is the longest ``within`` of all groups.
        """
        if node in self.avoided or not triggers:
            return []
        before = [len(self._jobs(node, each, now)) for each in triggers]
        earlier = self.failed.get(node, {})
        recent = {name: each for name, each in earlier.items() if each[0] > now - longest}
        self.failed[node] = {**recent, job: (now, cause)}
        found: list[tuple[int, dict[str, Any]]] = []
        for position, trigger in enumerate(triggers):
            jobs = self._jobs(node, trigger, now)
            if before[position] < trigger.failures <= len(jobs):
                shown = ", ".join(jobs[:_NAMED]) + ", …" * (len(jobs) > _NAMED)
                found.append((position, {"host": node, "failures": len(jobs), "jobs": shown}))
        return found

    def _jobs(self, node: str, trigger: Trigger, now: float) -> list[str]:
        """Return the jobs that failed on the node and count for the trigger."""
        return [
            job
            for job, (at, cause) in self.failed.get(node, {}).items()
            if at > now - trigger.within
            and (trigger.group is None or job.rpartition(".")[0] == trigger.group)
            and (not trigger.causes or cause in trigger.causes)
        ]
