"""Output files and working folders of jobs, and claims of these files against other runs.

An output file named in the ensemble file is truncated when the run first uses it; later jobs append
to it. Other output goes to one file per job, which is removed if it is empty.

Jobs of two runs must not write to one file at the same time. They run on other machines, and
continue when their controller is killed. So a claim is a file beside the output file, from the
submission of the first job that writes there until the end of the last.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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


class OutputClaims:
    """Output files that a run has claimed.

    The claims of a run whose folder ``state`` was removed are void. Files in folders that this
    machine does not see cannot be claimed.
    """

    def __init__(self, run_id: str, tag: str, state: str) -> None:
        self._run_id = run_id
        self._text = f"{run_id}\n{tag}\n{state}\n"
        #: Number of jobs by claimed file.
        self._jobs: Counter[str] = Counter()

    def take(self, path: str) -> None:
        """Claim a file for a job. Raise :class:`OSError` if another run has claimed it."""
        if not self._jobs[path]:
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(path).st_mode):
                    return  # a device or a pipe
            if not self._claim(path):
                return
        self._jobs[path] += 1

    def _claim(self, path: str) -> bool:
        """Create the claim. Return False if this machine cannot create it."""
        mark = _mark(path)
        new = f"{mark}-{secrets.token_hex(4)}"
        try:
            with open(new, "x", encoding="utf-8", errors="surrogateescape") as file:
                file.write(self._text)
        except OSError:
            return False
        try:
            try:
                os.link(new, mark)
            except FileExistsError:
                if (tag := self._other_run(mark)) is not None:
                    why = (
                        f"jobs of run {tag} that are not over write to it (or remove {mark}); give "
                        "each run its own files, as with workdir: runs/{run}/{index}"
                    )
                    raise OSError(errno.EBUSY, why, path) from None
                os.replace(new, mark)
                return True
            except OSError:
                return False  # a file system without hard links
        finally:
            with suppress(OSError):
                os.unlink(new)
        return True

    def _other_run(self, mark: str) -> str | None:
        """Return the tag of the other run that has a claim, unless its folder was removed."""
        try:
            with open(mark, encoding="utf-8", errors="surrogateescape") as file:
                run_id, tag, state = file.read().split("\n")[:3]
        except (OSError, ValueError):
            return None
        if run_id == self._run_id:
            return None
        try:
            os.stat(state)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            pass  # another user's folder
        return tag

    def release(self, path: str) -> None:
        """Release the claim if a file's last job is over."""
        if self._jobs[path] > 1:
            self._jobs[path] -= 1
        elif self._jobs.pop(path, 0):
            with suppress(OSError):
                os.unlink(_mark(path))


def _mark(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:200]}.ensemble")
