"""Removes the files of a job group's key ``discard`` when a job is over.

The ``clean`` of the job waits for that, so that the next attempt begins in a tidy folder, and a
resume repeats a removal that was interrupted. Nothing outside the job's workdir is ever removed:
symbolic links are removed, but not followed.
"""

from __future__ import annotations

import fnmatch
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from ensemble_core.engine.firing_records import Stop
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_states import Outcome
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.runtime.required_outputs import folder_of, why_unseen

#: How many jobs' files are removed at the same time.
_THREADS = 4
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Discarder:
    """Holds the ``clean`` of jobs with ``discard`` until their files have been removed.

    - ``put`` receives each event again.
    - ``warn`` receives a message about files that stay.
    """

    def __init__(self, put: Callable[[Sequence[Event]], None], warn: Callable[[str], None]) -> None:
        self._put = put
        self._warn = warn
        self._work: queue.SimpleQueue[tuple[JobEvent, str, list[str]]] = queue.SimpleQueue()
        self._threads = 0
        #: The jobs whose ``clean`` is held, or comes for the second time.
        self._held: set[str] = set()
        #: How many jobs in the queue have each workdir.
        self._users: Counter[str] = Counter()
        self._warned: set[str] = set()

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note that these jobs are in the queue."""
        for job in jobs:
            if job.discard:
                self._users[_workdir(job)] += 1

    def holds(self, event: JobEvent, record: JobRecord, stop: Stop | None) -> bool:
        """Return True if the ``clean`` of a job has to wait. It is then passed on later.

        The files of a job without an outcome stay, because it never ran or will run again.
        """
        job = record.job
        if event.job in self._held:
            self._held.discard(event.job)
            return False
        if record.reused is not None:
            return False
        workdir = _workdir(job)
        self._users[workdir] -= 1
        if self._users[workdir] > 0:
            return False  # the last job in this folder removes the files
        del self._users[workdir]
        outcome = _outcome(record, stop)
        if record.files is None or outcome is None:
            return False
        good = outcome == "success"
        paths = [path for path, when in job.discard.items() if good or when == "always"]
        folder = folder_of(job, record.files)
        if paths and folder is None:
            self._warn_once(job, why_unseen(record.files))
        if not paths or folder is None:
            return False
        self._held.add(event.job)
        self._work.put((event, folder, paths))
        if self._threads < _THREADS:
            self._threads += 1
            threading.Thread(target=self._run, name="discard", daemon=True).start()
        return True

    def _warn_once(self, job: Job, why: str) -> None:
        if job.group not in self._warned:
            self._warned.add(job.group)
            self._warn(f"files of {job.id} that 'discard' names stay: {why}")

    def _run(self) -> None:
        while True:
            event, folder, paths = self._work.get()
            for path in paths:
                try:
                    problem = remove_below(folder, path)
                except Exception as error:  # such as RecursionError: the job must still end
                    problem = repr(error)
                if problem:
                    group = event.job.rpartition(".")[0]
                    if (key := f"{group} {path}") not in self._warned:
                        self._warned.add(key)
                        self._warn(f"{event.job}: 'discard' cannot remove {path!r}: {problem}")
            self._put((event,))


def _outcome(record: JobRecord, stop: Stop | None) -> Outcome | None:
    """Return the outcome of a job that is over, as far as it is known.

    If it has ended during a stop, the engine learns of its end at the resume.
    """
    group = record.source
    if stop is None or (group is not None and group.fail_if is not None):
        return record.outcome
    own = [each for each in stop.deferred if type(each) is JobEvent and each.job == record.job.id]
    ends = [each for each in own if each.name in ("exception", "finish")]
    return "success" if len(ends) == 1 and ends[0].context.get("status") == 0 else None


def _workdir(job: Job) -> str:
    return os.path.abspath(job.workdir or ".")


def remove_below(folder: str, path: str) -> str:
    """Remove the files and folders below ``folder`` that match the pattern ``path``.

    Return what could not be removed, and why; empty: nothing.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        return f"it is not below {folder}"
    try:
        base = os.open(folder, _OPEN & ~os.O_NOFOLLOW)
    except FileNotFoundError:
        return f"{folder} does not exist on this machine"
    except OSError as error:
        return f"{folder}: {os.strerror(error.errno or 0)}"
    try:
        return _Removal(os.fstat(base).st_dev, folders_only=path.endswith("/")).match(base, parts)
    finally:
        os.close(base)


class _Removal:
    """Removal of all matches of a pattern, on one file system."""

    def __init__(self, device: int, *, folders_only: bool) -> None:
        self._device = device
        self._folders_only = folders_only

    def match(self, folder: int, parts: Sequence[str]) -> str:
        """Remove what matches the parts of a pattern in an open folder; return the first error."""
        first, rest = parts[0], parts[1:]
        if first == "**":
            problem = self.match(folder, rest) if rest else ""
            if not rest:
                return self._each(folder, "*", lambda name: self._remove(name, folder))
            return problem or self._each(
                folder, "*", lambda name: self._inside(name, folder, parts)
            )
        if rest:
            return self._each(folder, first, lambda name: self._inside(name, folder, rest))
        return self._each(folder, first, lambda name: self._remove(name, folder))

    @staticmethod
    def _each(folder: int, pattern: str, act: Callable[[str], str]) -> str:
        problem = ""
        for name in _matching(folder, pattern):
            try:
                problem = problem or act(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = problem or f"{name}: {os.strerror(error.errno or 0)}"
        return problem

    def _inside(self, name: str, folder: int, parts: Sequence[str]) -> str:
        """Continue in a folder. A file or a symbolic link has nothing below it."""
        try:
            inner = os.open(name, _OPEN, dir_fd=folder)
        except OSError as error:
            return "" if _no_folder(name, folder) else f"{name}: {os.strerror(error.errno or 0)}"
        try:
            if os.fstat(inner).st_dev != self._device:
                return f"{name}: another file system is mounted there"
            return self.match(inner, parts)
        finally:
            os.close(inner)

    def _remove(self, name: str, folder: int) -> str:
        if _no_folder(name, folder):
            if not self._folders_only:
                os.unlink(name, dir_fd=folder)
            return ""
        whole = _Removal(self._device, folders_only=False)
        problem = whole._inside(name, folder, ("**",)) or whole._inside(name, folder, (".*",))
        if not problem:
            os.rmdir(name, dir_fd=folder)
        return problem


def _no_folder(name: str, folder: int) -> bool:
    """Return True for a file or a symbolic link."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return found.st_mode & 0o170000 != 0o040000


def _matching(folder: int, pattern: str) -> Iterator[str]:
    """Yield the names in a folder that match a pattern. As in a shell, ``*`` matches no name that
    begins with a point.
    """
    if not re.search(r"[*?\[]", pattern):
        yield from [pattern] if _exists(pattern, folder) else []
        return
    matches = re.compile(fnmatch.translate(pattern)).match
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    yield from (n for n in names if matches(n) and (n[0] != "." or pattern[0] == "."))


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
