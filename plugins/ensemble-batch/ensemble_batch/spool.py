"""Spool of a polled queue: the files that jobs' wrappers and the controller share.

Used by ``BatchExecutor``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ensemble_batch.job_script import quote
from ensemble_batch.reports import Report, end_report
from ensemble_batch.shared_folder import SharedFolder

__all__ = ["CLAIMED", "Spool"]

#: The exit code of a wrapper that finds its job claimed: it has run nothing.
CLAIMED = 121


class Spool(SharedFolder):
    """The folder that the controller shares with its jobs' wrappers, which nodes must see.

    ``reports`` has a file for each job that was claimed (``JOB@KEY``) and one for each that has
    ended (``.end``), ``scripts`` the batches', ``environment`` what jobs start from: it is for this
    user's eyes only. Raises :class:`OSError` where it cannot be made or written.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, "reports", "scripts")
        self._reports = os.path.join(folder, "reports")
        # What a job of the queue is told by it, and what a shell has of itself, stays.
        lines = [
            f"export {name}={quote(value)}\n"
            for name, value in environment.items()
            if name.isidentifier() and name not in ("SHELLOPTS", "BASHOPTS", "_", "PWD", "SHLVL")
        ]
        self.put(os.path.join(folder, "environment"), os.fsencode("".join(lines)))

    def claim(self, job: str, key: str) -> bool:
        """See to it that a job never runs; false where it has begun."""
        path = os.path.join(self._reports, f"{job}@{key}")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of the files that wrappers have written."""
        # A client of NFS may show for half a minute what a folder was, unless it changes it itself.
        os.utime(self._reports)
        return os.listdir(self._reports)

    def start(self, name: str) -> tuple[float, str, str] | None:
        """When and where a job has begun, and the queue's id of it; ``None`` if it has not said so
        (yet), or never will."""
        words = self._words(name)
        try:
            return float(words[0]), words[1], words[2]
        except (ValueError, IndexError):
            return None

    def end(self, name: str) -> Report | None:
        """The end that stands in ``name``, which has ``.end``."""
        words = self._words(name)
        try:
            report = end_report(*words[:5])
        except (ValueError, TypeError):
            return None
        if report.why.startswith("fail-"):
            why, note = report.why.removeprefix("fail-"), " ".join(words[5:])
            return replace(report, kind="fail", why=why, note=note)
        return report

    def _words(self, name: str) -> list[str]:
        with suppress(OSError), open(os.path.join(self._reports, name), "rb") as file:
            return file.read(4096).decode("utf-8", "replace").split()
        return []

    def drop(self, job: str, key: str, *, claim: bool) -> None:
        """A job is over: its files go, with its claim where no other copy of it can be about."""
        for ending in (".end", "") if claim else (".end",):
            with suppress(OSError):
                os.unlink(os.path.join(self._reports, f"{job}@{key}{ending}"))
