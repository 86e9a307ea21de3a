"""Checks that a job has left the files of its key ``outputs``, before the engine sees its end.

The check adds an event: if a file is missing, a fatal ``exception`` precedes the job's ``finish``.
The engine thus needs no file system, and a replay decides the same.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from stat import S_ISDIR, S_ISREG
from typing import Any

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.causes import OUTPUT_MISSING
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass

#: Seconds until the first further look at a job's files, and the longest pause between two looks.
_FIRST, _LONGEST = 0.05, 1.0
#: How many files a note names at most.
_SHOWN = 3
#: Placeholders whose values differ between two runs of one job.
_OF_THE_RUN = late_pattern(r"\{(?:index|id|run|cwd|attempt)(?::[^{}]*)?\}")
#: By how many seconds the exception precedes the job's ``finish``.
_STEP = 1e-6


@dataclass(slots=True)
class _Pending:
    """A job that has exited with code 0, and whose files have not all been found yet."""

    job: Job
    folder: str
    ended: float  #: when the wait began, by the monotonic clock
    events: list[Event]
    due: float = 0.0
    pause: float = _FIRST
    problems: list[str] = field(default_factory=list)

    def look(self, now: float, *, last: bool) -> bool:
        """Look at the files. Return True if nothing is left to wait for."""
        late, waits = [], False
        for path, wait in self.job.outputs.items():
            problem = _problem(os.path.join(self.folder, path), path, again=self.due > 0)
            if problem is not None:
                over = last or now >= self.ended + wait
                late += [problem] if over else []
                waits = waits or not over
        self.problems = late
        self.due, self.pause = now + self.pause, min(2 * self.pause, _LONGEST)
        ends = [self.ended + wait for wait in self.job.outputs.values() if self.ended + wait > now]
        self.due = min([self.due, *ends])
        return bool(late) or not waits

    @property
    def note(self) -> str:
        """The error, for people: which files are missing."""
        shown = " and ".join(self.problems[:_SHOWN])
        more = len(self.problems) - _SHOWN
        shown += f" and {more} more" if more > 0 else ""
        waited = max(0.0, time.monotonic() - self.ended)
        if not os.path.isdir(self.folder):
            return f"outputs: {shown}, because {self.folder} does not exist on this machine"
        after = f", {waited:.0f} s after the job's end" if waited >= 1 else ""
        return f"outputs: {shown} in {self.folder}{after}"


class OutputCheck:
    """Holds the end of each job that needs files until they exist, and passes all other events on.

    Only jobs that exited with code 0 are checked. A thread looks for the files.
    """

    def __init__(self, put: Callable[[Sequence[Event]], None]) -> None:
        self._put = put
        self._changed = threading.Condition()
        #: The jobs that need files, and the contexts of their ``start``.
        self._jobs: dict[str, tuple[Job, Mapping[str, Any]]] = {}
        self._pending: dict[str, _Pending] = {}
        self._thread: threading.Thread | None = None
        self._hurries = self._closed = False

    def expect(self, jobs: Sequence[Job]) -> None:
        """Note that these jobs are about to be submitted."""
        for job in jobs:
            if job.outputs:
                self.resume(job, None)

    def resume(self, job: Job, start: Mapping[str, Any] | None) -> None:
        """Note a job that an earlier controller submitted, with the context of its ``start``."""
        if job.outputs:
            with self._changed:
                self._jobs[job.id] = job, start or NOTHING

    def emit(self, events: Sequence[Event]) -> None:
        """Receive events, in order."""
        if not self._jobs:
            self._put(events)
            return
        passed: list[Event] = []
        for event in events:
            if isinstance(event, JobEvent) and event.ours and event.job in self._jobs:
                if passed and event.name == "finish":
                    self._put(passed)  # the job's other events come first
                    passed = []
                if self._holds(event):
                    continue
            passed.append(event)
        if passed:
            self._put(passed)

    def hurry(self) -> None:
        """Wait no longer: the run ends or stops. Each job is looked at once more."""
        with self._changed:
            self._hurries = True
            self._changed.notify()

    def close(self) -> None:
        """Stop looking for files."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _holds(self, event: JobEvent) -> bool:
        name, context = event.name, event.context
        with self._changed:
            if event.job not in self._jobs:
                return False
            pending = self._pending.get(event.job)
            if pending is not None:
                pending.events.append(event)
                return True
            job, start = self._jobs[event.job]
            if name == "start":
                self._jobs[event.job] = job, context
            elif name == "finish" and context.get("status") == 0:
                self._check(job, start, event)
                return True
            elif name in ("finish", "clean") or (
                name == "exception" and context.get("severity", 0) == 0
            ):
                del self._jobs[event.job]  # it has not succeeded
        return False

    def _check(self, job: Job, start: Mapping[str, Any], finish: JobEvent) -> None:
        folder = folder_of(job, start)
        if folder is None:
            note = f"outputs: they cannot be checked, because {why_unseen(start)}"
            self._release(job, note, [finish])
            return
        self._pending[job.id] = _Pending(job, folder, time.monotonic(), [finish])
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="outputs", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _release(self, job: Job, note: str, events: list[Event]) -> None:
        """Pass the events of a job on, the first of which is its ``finish``."""
        del self._jobs[job.id]
        if note:
            context = {"type": OUTPUT_MISSING, "severity": 0, "note": note}
            time = events[0].timestamp - _STEP
            events.insert(0, JobEvent(time, job.id, "exception", context))
        self._put(events)

    def _run(self) -> None:
        while True:
            with self._changed:
                now, hurries = time.monotonic(), self._hurries
                due = [one for one in self._pending.values() if hurries or one.due <= now]
                if self._closed:
                    return
                if not due:
                    wakes = [one.due for one in self._pending.values()]
                    self._changed.wait(max(0.0, min(wakes) - now) if wakes else None)
                    continue
            for one in due:
                if one.look(time.monotonic(), last=hurries):
                    note = one.note if one.problems else ""
                    with self._changed:  # no later event of the job overtakes these
                        del self._pending[one.job.id]
                        self._release(one.job, note, one.events)


def has_outputs(job: Job, group: JobGroup, start: Mapping[str, Any]) -> bool:
    """Return True if an earlier job that is to replace this one still has the files of ``outputs``.

    ``start`` is the context of the earlier job's ``start``. Its number is unknown, so any number
    fits.
    """
    folder = start.get("workdir")
    if not isinstance(folder, str):
        return False
    for text in group.outputs:
        path = job.fill(_OF_THE_RUN.sub("*", text), {"here": group.here})
        if _problem(os.path.join(folder, path), path, again=False) is not None:
            return False
    return True


def folder_of(job: Job, start: Mapping[str, Any]) -> str | None:
    """Return the folder in which a job ran, or ``None`` if it is not visible from here.

    ``start`` is the context of the job's ``start`` event.
    """
    folder = start.get("workdir")
    if isinstance(folder, str):
        return folder
    return None if "at_member" in start else os.path.abspath(job.workdir or ".")


def why_unseen(start: Mapping[str, Any]) -> str:
    """Return why the folder of a job is not visible from here, and what to do."""
    places = start.get("at_member")
    where = str(places.get("workdir", "")) if isinstance(places, Mapping) else ""
    return (
        f"its member ran it in {where[:500]!r}, which is not in a shared folder; name the folder "
        "that both machines see with --option shared=FOLDER"
    )


def _problem(path: str, shown: str, *, again: bool) -> str | None:
    """Return what is wrong with a file or with the files of a pattern, or ``None``."""
    if again:
        # A network file system looks for new files when their folder is opened.
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    if glob.has_magic(shown) and not os.path.lexists(path):
        folder = path[: len(path) - len(shown)] if path.endswith(shown) else ""
        found = glob.glob(glob.escape(folder) + path[len(folder) :], recursive=True)
        if not found:
            return f"no file matches {shown!r}"
        wrong = ((each[len(folder) :], _state(each)) for each in sorted(found))
        return next((f"{each!r} {state}" for each, state in wrong if state is not None), None)
    state = _state(path)
    return None if state is None else f"{shown!r} {state}"


def _state(path: str) -> str | None:
    """Return what is wrong with a file or folder, as words that follow its name."""
    try:
        found = os.stat(path)
        if S_ISDIR(found.st_mode):
            with os.scandir(path) as items:
                return None if any(True for _ in items) else "is an empty folder"
        return "is empty" if S_ISREG(found.st_mode) and not found.st_size else None
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError as error:
        return f"cannot be read ({os.strerror(error.errno or 0)})"
