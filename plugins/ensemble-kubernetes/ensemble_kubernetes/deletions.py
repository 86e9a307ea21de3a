"""Deletes the Jobs of a run in the background, many in one request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ensemble_batch import Outlet

from ensemble_kubernetes.api import Api, ApiError, selector
from ensemble_kubernetes.manifest import JOB, RUN
from ensemble_kubernetes.thread_pool import Tasks

#: Maximum number of Jobs in one request.
_TOGETHER = 100
#: In seconds: time to collect Jobs for one request, urgent ones and others; pause after a failure
#: that may pass, and after any other.
_URGENT, _TIDY, _PAUSE, _LATER = 0.05, 2.0, 1.0, 10.0


class Deletions:
    """Jobs to delete. Failed deletions are repeated.

    All methods are called with ``lock``, which is notified after each request. The function
    ``deleted`` receives the names of deleted Jobs, also with the lock.
    """

    def __init__(
        self,
        api: Api,
        mark: str,
        tasks: Tasks,
        outlet: Outlet,
        lock: threading.Condition,
        deleted: Callable[[Sequence[str]], None],
    ) -> None:
        self._api, self._mark, self._tasks = api, mark, tasks
        self._outlet, self._lock, self._deleted = outlet, lock, deleted
        #: Names of the Jobs, each with whether the Job must exist until its last pod is gone.
        self._names: dict[str, bool] = {}
        #: Number of Jobs in requests without an answer.
        self._asked = 0
        self._due: float | None = None
        self._warned = False
        #: Why the last request failed, or an empty string.
        self.problem = ""

    def __len__(self) -> int:
        return len(self._names) + self._asked

    def add(self, names: Sequence[str], *, wait: bool = False, urgent: bool = False) -> None:
        """Delete Jobs. With ``wait``, a Job exists until its last pod is gone."""
        for name in names:
            self._names[name] = wait or self._names.get(name, False)
        self._sweep_after(_URGENT if wait or urgent else _TIDY)

    def hurry(self) -> None:
        """Delete the collected Jobs now."""
        self._sweep_after(0.0)

    def _sweep_after(self, seconds: float) -> None:
        if self.problem:
            seconds = max(seconds, _PAUSE)
        due = time.monotonic() + seconds
        if self._names and (self._due is None or due < self._due):
            self._due = due
            self._tasks.after(seconds, self._sweep)

    def _sweep(self) -> None:
        """Delete all collected Jobs, unless a request fails."""
        while True:
            with self._lock:
                self._due = None
                wait = any(self._names.values())
                names = [name for name, each in self._names.items() if each == wait][:_TOGETHER]
                if not names:
                    return
                for name in names:
                    del self._names[name]
                self._asked += len(names)
            error = self._delete(names, wait=wait)
            with self._lock:
                self._asked -= len(names)
                if error is None:
                    self.problem = ""
                    self._outlet.answered("delete")
                    self._deleted(names)
                else:
                    for name in names:
                        self._names[name] = wait or self._names.get(name, False)
                    self._report(error)
                    self._sweep_after(max(error.after, _PAUSE) if error.passing else _LATER)
                self._outlet.emit()
                self._lock.notify_all()
                if error is not None:
                    return

    def _delete(self, names: Sequence[str], *, wait: bool) -> ApiError | None:
        digests = [name.rpartition("-")[2] for name in names]
        try:
            self._api.delete(f"{RUN}={self._mark},{selector(JOB, digests)}", wait=wait)
        except ApiError as error:
            return error if error.status != 404 else None  # the namespace is gone
        return None

    def _report(self, error: ApiError) -> None:
        self.problem = f"cannot delete Jobs: {error.message}"
        if error.passing:
            self._outlet.trouble("delete", f"{self.problem}\n  retrying until it works")
        elif not self._warned:
            self._warned = True
            hint = "allow 'deletecollection' of jobs (deploy/access.yaml)"
            self._outlet.warn(f"{self.problem}\n  hint: {hint}")
