"""State and events of one job, computed from the status of its Kubernetes Job and pods."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

from ensemble_batch import JobEvents

from ensemble_core import Job, JobEvent
from ensemble_kubernetes.log_copy import LogCopy
from ensemble_kubernetes.pods import Failure, Pod

_DELETED = "was deleted by another client"
_UNSEEN = Failure("lost", "its pod was deleted before its end was seen: its outcome is unknown")
_LOST = Failure("lost", "Kubernetes no longer knows this job, so its outcome is unknown")


class Life(JobEvents):
    """State of a job until it is over."""

    __slots__ = (
        "accepted_at", "condition", "copies", "deadline", "ending", "explained", "followed", "gone",
        "incomplete", "job_body", "log_lock", "missed", "name", "notes", "overdue", "pods",
        "resumed", "sent", "stuck", "suspended", "tasks", "verdict",
    )  # fmt: skip

    def __init__(self, job: str, name: str, notes: Mapping[str, Any], out: list[JobEvent]) -> None:
        hidden = ("tasks", "observed", "kept", "holds")
        super().__init__(job, {k: v for k, v in notes.items() if k not in hidden}, out)
        self.name = self.queue_id = name
        #: Recorded for a later controller: ``tasks``, ``observed`` (an observer reads the output),
        #: ``kept`` (the output file is in the run's folder), ``holds`` (the run itself suspends the
        #: Job), and the context of the start event.
        self.notes = notes
        self.tasks: int = notes.get("tasks", 1)
        self.job_body: Job | None = None
        #: Pods by rank.
        self.pods: dict[int, Pod] = {}
        #: ``sent``: the Job may have reached Kubernetes. ``gone``: the Job was deleted.
        self.sent = self.gone = self.stuck = self.ending = self.resumed = False
        #: ``missed``: the deletion was noticed only afterwards. ``followed``: the log is copied
        #: while the job runs. ``incomplete``: part of the log could not be copied.
        self.missed = self.overdue = self.followed = self.incomplete = False
        #: Whether others suspend the Job; whether a warning said why it has no pod.
        self.suspended = self.explained = False
        self.accepted_at: float | None = None
        #: Why the executor ends the job, if it does.
        self.verdict: Failure | None = None
        #: Kubernetes' condition for the end of the Job, and its message.
        self.condition: tuple[str, str] | None = None
        #: What Kubernetes says if the Job exceeded a time limit that others have set.
        self.deadline = ""
        #: What is already copied of each pod's log, and the lock for writing the files.
        self.copies: dict[int, LogCopy] = {}
        self.log_lock = threading.Lock()

    def was_accepted(self, when: float = math.inf) -> bool:
        """Return whether Kubernetes had accepted the Job before this time (monotonic seconds)."""
        return self.accepted_at is not None and self.accepted_at < when

    @property
    def runs(self) -> bool:
        """True if one of the job's pods runs."""
        return any(pod.began and not pod.over for pod in self.pods.values())

    @property
    def unseen(self) -> bool:
        """True if a pod was deleted before its end was seen."""
        return any(pod.unseen for pod in self.pods.values())

    @property
    def unstarted(self) -> str:
        """The name of a pod without a container, or of the Job if a pod is missing, unless the
        reason is known.
        """
        known = self.suspended or self.explained or self.verdict or self.notes.get("holds")
        if self.over or self.ending or known:
            return ""
        idle = (
            pod.name for pod in self.pods.values()
            if pod.began is None and not (pod.over or pod.stuck or pod.waits)
        )  # fmt: skip
        return next(idle, "" if len(self.pods) >= self.tasks else self.name)

    @property
    def complete(self) -> bool:
        """True if no further report can come."""
        done = sum(pod.over or pod.lost for pod in self.pods.values())
        final = self.gone or self.condition is not None
        # Its Job says how a pod ended that was deleted meanwhile.
        if done >= self.tasks and (final or self.suspended or not self.unseen):
            return True
        return final and done == len(self.pods) and bool(self.gone or self.pods)

    def begin_if_told(self, now: float, *, live: bool) -> None:
        """Report the job's start if a pod has begun.

        The flag ``live`` means that the pod began just now. The event then has the time of our
        clock, because the node's times have only whole seconds.
        """
        begun = [pod for pod in self.pods.values() if pod.began is not None]
        if not begun or "start" in self.told:
            return
        first = min(begun, key=lambda pod: pod.began or 0.0)
        assert first.began is not None
        when = first.began
        if live:
            when = now - max(0.0, (first.ended or first.began) - first.began)
        self.arrive(now, now)
        self.begin(when, now, first.host)

    def tell_end(self, now: float, *, live: bool) -> None:
        """Report the job's end and its cause."""
        pods = self.pods.values()
        self.arrive(now, now)
        self.begin_if_told(now, live=live)
        ended = max((pod.ended for pod in pods if pod.ended is not None), default=now)
        when = now if live else ended
        statuses = [pod.status for pod in pods if pod.status is not None]
        status = max(statuses, default=None)
        failure = self._failure(status)
        if failure is not None:
            more = {"cause": failure.cause} if failure.cause else {}
            self.fail(failure.kind, failure.note, when, now, **more)
            if failure.kind == "out-of-memory":
                status = status or None  # the exit code 0 hides that a process was killed
        elif status is None:  # the job succeeded, but the end of no pod was seen
            self.begin(when, now, "")
            status = 0
        self.end(status, when, now)

    def _failure(self, status: int | None) -> Failure | None:
        pods = self.pods.values()
        good = [pod for pod in pods if pod.over and pod.status == 0 and pod.failure is None]
        all_done = len(pods) >= self.tasks and len(good) == len(pods)
        # The log of a deleted pod may be gone, so a cancelled job's success may lack output.
        if all_done and not (self.verdict and self.incomplete):
            return None
        if self.verdict is not None:
            return self.verdict
        said = next((pod.failure for pod in pods if pod.failure is not None), None)
        # If one of several pods fails, Kubernetes deletes the others.
        if said is not None or any(pod.status and not pod.deleted for pod in pods):
            return said
        if self.condition is not None and self.condition[0] == "Complete":
            return None
        if self.deadline:
            return Failure("timeout", self.deadline)
        if any(pod.deleted for pod in pods) and self.suspended:
            note = "its Job was suspended by another client, so Kubernetes deleted its pod"
            return Failure("cancel", note)
        if self.unseen:
            return _UNSEEN
        if any(pod.deleted for pod in pods):
            return Failure("cancel", f"its {'Job' if self.gone else 'pod'} {_DELETED}")
        if self.gone and not self.missed:
            return Failure("cancel", f"its Job {_DELETED}")
        if self.condition is not None and pods and "start" not in self.told:
            return Failure("submit", f"its pod failed before it started: {self.condition[1]}")
        return _LOST
