"""Folder where wrapper scripts claim their jobs and report how they end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ensemble_batch.job_script import quote
from ensemble_batch.reports import Report, end_report
from ensemble_batch.shared_folder import SharedFolder

__all__ = ["CLAIMED", "Spool"]

#: Exit code of a wrapper that has run nothing, because it found its job claimed.
CLAIMED = 121
#: Content of a claim by a controller.
_CONTROLLER = "controller"


class Spool(SharedFolder):
    """Folder that the controller shares with its jobs' wrapper scripts; nodes must see it.

    - ``reports/JOB@KEY``: the claim of a job; KEY is the key of its batch. A wrapper that finds
      this file runs nothing.
    - ``reports/JOB@KEY.end``: how the job ended
    - ``scripts``: the batches' scripts
    - ``environment``: the variables that jobs start with, among them secrets. It is removed as
      soon as no further job can start.

    Raises :class:`OSError` if the folder cannot be created or written.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, "reports", "scripts")
        self._reports = os.path.join(folder, "reports")
        # Keep the variables that the queue sets for its job, and the shell's own.
        lines = [
            f"export {name}={quote(value)}\n"
            for name, value in environment.items()
            if name.isidentifier() and name not in ("SHELLOPTS", "BASHOPTS", "_", "PWD", "SHLVL")
        ]
        self.put(os.path.join(folder, "environment"), os.fsencode("".join(lines)))

    def drop_environment(self) -> None:
        """Remove the variables, after the last job has started."""
        with suppress(OSError):
            for name in os.listdir(self.folder):
                # A controller that was killed in put() left the file under another name.
                if name.partition(".")[0] == "environment":
                    os.unlink(os.path.join(self.folder, name))

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
        return True

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

    def drop(self, job: str, key: str, *, claim: bool) -> None:
        """Remove the files of a job that is over, and its claim if no other copy can exist."""
        for ending in (".end", "") if claim else (".end",):
            with suppress(OSError):
                os.unlink(os.path.join(self._reports, f"{job}@{key}{ending}"))
