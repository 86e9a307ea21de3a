"""Folder where wrapper scripts claim their jobs and report how they end."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from ensemble_batch.job_script import quote
from ensemble_batch.reports import Report, end_report
from ensemble_batch.shared_folder import SharedFolder
from ensemble_core import ExecutorError

#: Exit code of a wrapper that has run nothing, because it found its job claimed.
CLAIMED = 121
#: Variables of the controller that jobs do not get.
_KEPT = frozenset({
    "SHELLOPTS", "BASHOPTS", "_", "PWD", "SHLVL", "HOSTNAME", "ENSEMBLE_JOB_ID", "ENSEMBLE_INDEX",
    "ENSEMBLE_ATTEMPT", "ENSEMBLE_GROUP", "ENSEMBLE_RUN", "ENSEMBLE_TASK_COUNT",
    "ENSEMBLE_CORES",
})  # fmt: skip
#: Content of a claim by a controller.
_CONTROLLER = "controller"


class Spool(SharedFolder):
    """Folder that the controller shares with its jobs' wrapper scripts; nodes must see it.

    - ``reports/JOB@KEY``: the claim of a job; KEY is the key of its batch. A wrapper that finds
      this file runs nothing.
    - ``reports/JOB@KEY.end``: how the job ended
    - ``scripts``: the batches' scripts
    - ``signals/JOB@KEY.NUMBER.USR1``: a signal that the job's wrapper is to send, and removes
    - ``variables/JOB@KEY``: the variables that the job starts with, among them secrets. The files
      of a batch are links to one file. A wrapper removes its job's link when it has read it, so
      the variables are in no file once all jobs have started, even without a controller.

    Raises :class:`OSError` if the folder cannot be created or written.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, "reports", "scripts", "signals", "variables")
        self._reports = os.path.join(folder, "reports")
        self._variables = os.path.join(folder, "variables")
        self._signals = os.path.join(folder, "signals")
        # Keep the variables that the queue sets for its job, the shell's, and the wrapper's.
        lines = [
            f"export {name}={quote(value)}\n"
            for name, value in environment.items()
            if name.isidentifier() and name not in _KEPT and not name.startswith("_ens_")
        ]
        self._text = os.fsencode("".join(lines))

    def batch(self, key: str, text: bytes, jobs: Collection[str]) -> str:
        """Write the script of a batch, and at first the variables of its jobs; return the script's
        path.
        """
        if not self.has_script(key):
            self._put_variables([f"{job}@{key}" for job in jobs])
        return self.script(key, text)

    def _put_variables(self, names: Collection[str]) -> None:
        first = ""
        for path in [os.path.join(self._variables, name) for name in names]:
            try:
                if not first:
                    raise OSError
                os.link(first, path)
            except OSError:  # also if the file system has no links, or allows no more
                self.put(path, self._text)
                first = path

    def drop_variables(self, waiting: Collection[str] = ()) -> None:
        """Remove the variables of all jobs but the waiting ones: ``JOB@KEY``, or ``JOB`` if the key
        of its batch is unknown.
        """
        with suppress(OSError):
            for name in os.listdir(self._variables):
                if name not in waiting and name.rpartition("@")[0] not in waiting:
                    self._unlink_variables(name)

    def _unlink_variables(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(os.path.join(self._variables, name))

    def claim(self, job: str, key: str) -> bool:
        """Prevent a job from ever running. Return False if the job has begun.

        The claim says that a controller made it, for a later controller: this one may be killed
        before it has recorded anything.
        """
        name = f"{job}@{key}"
        path = os.path.join(self._reports, name)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return self._read_words(name) == [_CONTROLLER]
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(_CONTROLLER)
        except OSError:
            os.unlink(path)  # an empty claim would look like that of a job that has begun
            raise
        self._unlink_variables(name)
        return True

    def send_signal(self, job: str, key: str, signal: str) -> None:
        """Leave a signal for a job's wrapper.

        Raises a transient :class:`ExecutorError` if the folder cannot be written.
        """
        path = os.path.join(self._signals, f"{job}@{key}.{time.time_ns()}.{signal}")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise ExecutorError(
                f"cannot write {path}", cause=error.strerror, code="cannot-signal", transient=True
            ) from None

    def drop_signals(self, job: str, key: str) -> None:
        """Remove signals for a job that is over."""
        with suppress(OSError):
            for name in os.listdir(self._signals):
                if name.startswith(f"{job}@{key}."):
                    os.unlink(os.path.join(self._signals, name))

    def names(self) -> list[str]:
        """Return the names of wrappers' files."""
        return self.listing("reports")

    def start(self, name: str) -> tuple[float, str, str] | None:
        """Return when and where a job began, and its id in the queue; ``None`` if it has not
        begun.
        """
        words = self._read_words(name)
        try:
            return float(words[0]), words[1], words[2]
        except (ValueError, IndexError):
            return None

    def end(self, name: str) -> Report | None:
        """Return the end reported in the file ``name``, which has the suffix ``.end``."""
        words = self._read_words(name)
        try:
            report = end_report(*words[:5])
        except (ValueError, TypeError):
            return None
        if report.why.startswith("fail-"):
            why, note = report.why.removeprefix("fail-"), " ".join(words[5:])
            return replace(report, kind="fail", why=why, note=note)
        return report

    def _read_words(self, name: str) -> list[str]:
        with suppress(OSError), open(os.path.join(self._reports, name), "rb") as file:
            return file.read(4096).decode("utf-8", "replace").split()
        return []

    def drop_end(self, job: str, key: str) -> None:
        """Remove the report and the variables of a job that is over."""
        self._unlink_variables(f"{job}@{key}")
        with suppress(OSError):
            os.unlink(os.path.join(self._reports, f"{job}@{key}.end"))

    def drop_claim(self, job: str, key: str) -> None:
        """Remove the claim of a job of which no other copy can exist."""
        with suppress(OSError):
            os.unlink(os.path.join(self._reports, f"{job}@{key}"))
