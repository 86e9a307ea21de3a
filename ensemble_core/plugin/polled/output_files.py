"""Output files of jobs, and their working folders, from what a job group says.

The wrapper opens the files where the job runs. A named file is emptied when the run first uses it
and appended to after that, so that jobs may share one; one that no job names lies in the run's
folder, and goes again if nothing is written to it. Used by ``PolledExecutor``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from ensemble_core.model.jobs import Job
from ensemble_core.plugin.polled.job_script import Place

__all__ = ["OutputFiles"]


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

    def place(self, job: Job) -> Place:
        """Where a job runs and writes. Raises :class:`OSError` where a file cannot be emptied."""
        workdir = os.path.normpath(os.path.join(self._here, job.workdir or "."))
        out = self._file(job, job.stdout, workdir, "out")
        err = self._file(job, job.stderr, workdir, "err")
        kept = [path for path, named in ((out, job.stdout), (err, job.stderr)) if named is None]
        return Place(workdir, out, err, tuple(kept))

    def _file(self, job: Job, named: str | None, workdir: str, ending: str) -> str:
        if named is None:
            path = os.path.join(self._folder, f"{job.id}.{ending}")
            if not self._emptied(path):
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
