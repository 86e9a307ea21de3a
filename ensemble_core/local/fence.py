"""Fence of a pilot: a file that forbids every further start of a job in it.

The controller creates the file, and *then* reads the ledger. The supervisor has the line of a job
that it is about to spawn synced, and *then* looks for the file. One of the two always sees the
other, so a job that the controller places elsewhere never starts here.

A shared file system may hang, so syncing and looking have a thread of their own.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from ensemble_core.local.epoll_loop import Poller, PollerTimer
from ensemble_core.local.event_recorder import EventRecorder
from ensemble_core.local.ledger import RETRY, Ledger
from ensemble_core.local.local_job import LocalJob
from ensemble_core.local.terminator import Token

#: After how many seconds without an answer of the file system this is reported.
_SLOW = 30.0


def is_fenced(path: str) -> bool:
    """Return whether the fence is there. Raises ``OSError`` if its folder cannot be reached.

    The folder is opened first: an NFS client then asks its server, and does not answer from its
    cache that there is no such file.
    """
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd))
    except FileNotFoundError:
        return False
    finally:
        os.close(fd)
    return True


class Fence:
    """The fence of this supervisor. ``found`` is called, in another thread, when it is there."""

    def __init__(
        self,
        path: str,
        ledger: Ledger,
        found: Callable[[], None],
        look: Callable[[str], bool] = is_fenced,
    ) -> None:
        self._path = path
        self._ledger = ledger
        self._found = found
        self._look = look
        self._poller: Poller[Token]
        self._log: EventRecorder
        #: Jobs that may be spawned.
        self._passed: deque[LocalJob] = deque()
        #: Jobs of the look that is under way.
        self._asked: list[LocalJob] = []
        self._answer: str | None = None  # empty: no fence; a text: why that is unknown
        self._slow: PollerTimer | None = None
        self._pausing = self._reported = False
        self._requests: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ensemble-fence", daemon=True).start()

    def attach(self, poller: Poller[Token], log: EventRecorder) -> None:
        self._poller, self._log = poller, log

    def pass_jobs(self, ready: deque[LocalJob]) -> deque[LocalJob]:
        """Return the jobs that may be spawned; the caller removes them.

        Jobs that are ready are taken for the next look, before which their lines are synced. They
        must have been written. The poller wakes up when the look is over.
        """
        if self._answer is not None:
            self._take_answer(ready)
        if ready and not self._asked and not self._pausing:
            self._asked = list(ready)
            ready.clear()
            self._slow = self._poller.at(time.monotonic() + _SLOW, self._report_slow)
            self._requests.put(self._ledger.copy_descriptor())
        return self._passed

    def _take_answer(self, ready: deque[LocalJob]) -> None:
        why, self._answer = self._answer, None
        asked, self._asked = self._asked, []
        if self._slow is not None:
            self._slow.cancel()
        if not why:
            self._passed.extend(asked)
            if self._reported:
                self._reported = False
                self._log.problem(f"{self._path} can be looked for again: waiting jobs start now")
            return
        self._report(why)
        for record in asked:  # a failed sync may have dropped what was written
            if not record.over:
                self._ledger.about_to_spawn(record.job.id)
        ready.extendleft(reversed(asked))
        self._pausing = True
        self._poller.at(time.monotonic() + RETRY, self._end_pause)

    def _end_pause(self) -> None:
        self._pausing = False  # this turn looks again

    def _report_slow(self) -> None:
        self._report(f"the file system has not answered for {_SLOW:g} s")

    def _report(self, why: str) -> None:
        if not self._reported:
            self._reported = True
            self._log.problem(f"cannot look for {self._path} ({why}): no job starts until it works")

    def _run(self) -> None:
        while True:
            fd = self._requests.get()
            try:
                try:
                    os.fdatasync(fd)
                finally:
                    os.close(fd)
                fenced = self._look(self._path)
            except OSError as error:
                self._answer = error.strerror or str(error)
            else:
                if fenced:
                    self._found()
                    return
                self._answer = ""
            self._poller.wake()
