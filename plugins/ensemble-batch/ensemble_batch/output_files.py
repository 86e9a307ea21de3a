"""Output files of jobs, and their working folders, from what a job group says.

A job's wrapper opens the files where the job runs. A named file is emptied when the run first uses
it and appended to after that, so that jobs may share one; one that no job names lies in the run's
folder, and is removed if nothing is written to it. Used by ``BatchExecutor``, and by executors of
queues whose wrapper does the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ensemble_core import Job

__all__ = ["OutputFiles", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one job runs and writes, as absolute paths. ``kept`` are those files that the run keeps
    by itself: empty ones are taken away."""

    workdir: str
    out: str
    err: str
    kept: tuple[str, ...] = ()

    @property
    def files(self) -> dict[str, str]:
        """The output files, as the context of the job's ``start`` names them."""
        return {"workdir": self.workdir, "stdout": self.out, "stderr": self.err}


class OutputFiles:
    """``folder`` is where the run keeps output, ``here`` where it was started. ``emptied`` and
    ``empty`` ask and say which files the run has begun."""

    def __init__(
        self,
        folder: str,
        here: str,
        emptied: Callable[[str], bool],
        empty: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._here = here
        self._emptied = emptied
        self._empty = empty
        self._used: bool | None = None

    def place(self, job: Job) -> Place:
        """Where a job runs and writes. Raises :class:`OSError` or :class:`ValueError` where a file
        cannot be had."""
        workdir = os.path.normpath(os.path.join(self._here, job.workdir or "."))
        out = self._file(job, job.stdout, workdir, "out")
        err = self._file(job, job.stderr, workdir, "err")
        kept = [path for path, named in ((out, job.stdout), (err, job.stderr)) if named is None]
        return Place(workdir, out, err, tuple(kept))

    def _file(self, job: Job, named: str | None, workdir: str, ending: str) -> str:
        if named is None:
            path = os.path.join(self._folder, f"{job.id}.{ending}")
            if self._used is None:
                self._used = bool(os.path.isdir(self._folder) and os.listdir(self._folder))
            if self._used and not self._emptied(path):
                # What an earlier run kept under the same name is none of this run's output.
                with suppress(FileNotFoundError):
                    os.unlink(path)
            return path
        path = os.path.normpath(os.path.join(workdir, named))
        if not self._emptied(path):
            # Nothing is to be emptied of a device or a pipe.
            if os.path.isfile(path):
                os.truncate(path, 0)
            self._empty(path)
        return path
