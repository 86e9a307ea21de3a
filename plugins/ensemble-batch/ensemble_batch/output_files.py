"""Output files and working folders of jobs.

An output file named in the ensemble file is truncated when the run first uses it; later jobs append
to it. Other output goes to one file per job, which is removed if it is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ensemble_batch.output_claims import OutputClaims
from ensemble_core import Job


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
        claims: OutputClaims | None = None,
    ) -> None:
        self._folder = folder  # the run's folder for output
        self._here = here  # where the run was started
        self._emptied = emptied  # returns whether the run has already truncated a file
        self._empty = empty  # records that the run has truncated a file
        self._claims = claims
        self._used: bool | None = None

    def place(self, job: Job) -> Place:
        """Return where a job runs and writes.

        Raises :class:`OSError` or :class:`ValueError` if a file cannot be used.
        """
        workdir = os.path.normpath(os.path.join(self._here, job.workdir or "."))
        out = self._file(job, job.stdout, workdir, "out")
        try:
            err = self._file(job, job.stderr, workdir, "err")
        except BaseException:
            self.release({"stdout": out})
            raise
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
        if self._claims is not None:
            if not os.path.isabs(os.path.join(job.workdir or "", named)):
                # The job would create it. A folder elsewhere may exist only on its node.
                with suppress(OSError):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
            self._claims.take(path)
        if not self._emptied(path):
            # Devices and pipes cannot be truncated.
            if os.path.isfile(path):
                os.truncate(path, 0)
            self._empty(path)
        return path

    def hold(self, files: Mapping[str, Any]) -> None:
        """Claim the output files of a job of an earlier controller."""
        for path in self._paths(files):
            if self._claims is not None and os.path.dirname(path) != self._folder:
                with suppress(OSError):
                    self._claims.take(path)

    def release(self, files: Mapping[str, Any]) -> None:
        """Release the output files of a job that is over."""
        for path in self._paths(files):
            if self._claims is not None:
                self._claims.release(path)

    def _paths(self, files: Mapping[str, Any]) -> list[str]:
        return [str(files[name]) for name in ("stdout", "stderr") if name in files]
