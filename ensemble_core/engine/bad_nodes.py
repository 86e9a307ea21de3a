"""Failures of jobs by node: the trigger ``bad-node``, and the nodes that the run avoids."""

from __future__ import annotations

from dataclasses import field

from ensemble_core.model.rules import Trigger
from ensemble_core.quick_dataclass import dataclass


@dataclass(slots=True, eq=False)
class BadNodes:
    """The recent failures on each node, and the nodes that get no more jobs of the run."""

    #: The nodes that jobs avoid, in the order in which rules have chosen them.
    avoided: dict[str, None] = field(default_factory=dict)
    #: For each node: the job (``GROUP.INDEX``), and the time and cause of its last failure there.
    failed: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict)

    def add(self, node: str, job: str, cause: str, now: float, kept: float) -> None:
        """Record a failure, and forget those on the node that are more than ``kept`` seconds old.

        Only different jobs count, so the earlier failures of this job on the node are forgotten.
        """
        earlier = self.failed.get(node, {})
        recent = {name: each for name, each in earlier.items() if each[0] > now - kept}
        self.failed[node] = {**recent, job: (now, cause)}

    def jobs(self, node: str, trigger: Trigger, now: float) -> list[str]:
        """Return the jobs that failed on the node and count for the trigger."""
        return [
            job
            for job, (at, cause) in self.failed.get(node, {}).items()
            if at > now - trigger.within
            and (trigger.group is None or job.rpartition(".")[0] == trigger.group)
            and (not trigger.causes or cause in trigger.causes)
        ]
