"""Output files and working folders of jobs.

An output file named in the ensemble file is truncated when the run first uses it; later jobs append
to it. Other output goes to one file per job, which is removed if it is empty.
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
    """Absolute paths of one job's working folder and output files."""

    workdir: str
    out: str
    err: str
    kept: tuple[str, ...] = ()  #: files in the run's folder; removed at the end if empty

    @property
    def files(self) -> dict[str, str]:
        """Return the output files as the context of the job's ``start`` lists them."""
        return {"workdir": self.workdir, "stdout": self.out, "stderr": self.err}


class OutputFiles:
    """Chooses the output files of a run's jobs."""

    def __init__(
        self,
        folder: str,
        here: str,
        emptied: Callable[[str], bool],
        empty: Callable[[str], None],
    ) -> None:
        self._folder = folder  # the run's folder for output
        self._here = here  # where the run was started
        self._emptied = emptied  # returns whether the run has already truncated a file
        self._empty = empty  # records that the run has truncated a file
        self._used: bool | None = None

    def place(self, job: Job) -> Place:
        """Return where a job runs and writes.

        Raises :class:`OSError` or :class:`ValueError` if a file cannot be used.
        """
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
                # A file of the same name from an earlier run is not this run's output.
                with suppress(FileNotFoundError):
                    os.unlink(path)
            return path
        path = os.path.normpath(os.path.join(workdir, named))
        if not self._emptied(path):
            # Devices and pipes cannot be truncated.
            if os.path.isfile(path):
                os.truncate(path, 0)
            self._empty(path)
        return path
