"""Spool of a polled queue: the files that jobs' wrappers and the controller share.

Used by ``BatchExecutor``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ensemble_batch.job_script import quote
from ensemble_batch.shared_folder import SharedFolder

__all__ = ["CLAIMED", "Report", "Spool", "status_of"]

#: The exit code of a wrapper that finds its job claimed: it has run nothing.
CLAIMED = 121


@dataclass(frozen=True, slots=True)
class Report:
    """The end that a job's wrapper wrote down. ``code`` is the exit code as a shell has it, ``why``
    is ``-``, ``timeout``, ``stopped`` or ``fail-WHAT``; times are the node's own."""

    code: int
    why: str
    began: float
    ended: float
    host: str
    note: str = ""


def status_of(code: int) -> int:
    """The wait status of an exit code as a shell has it: 128 and more is a signal's.

    >>> status_of(3), status_of(137), status_of(255)
    (768, 9, 65280)
    """
    return code - 128 if 128 < code < 160 else (code & 0xFF) << 8


class Spool(SharedFolder):
    """The folder that the controller shares with its jobs' wrappers, which nodes must see.

    ``reports`` has a file for each job that was claimed (``JOB@KEY``) and one for each that has
    ended (``.end``), ``scripts`` the batches', ``environment`` what jobs start from: it is for this
    user's eyes only. Raises :class:`OSError` where it cannot be made or written.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, "reports", "scripts")
        self._reports = os.path.join(folder, "reports")
        self._scripts = os.path.join(folder, "scripts")
        # What a job of the queue is told by it, and what a shell has of itself, stays.
        lines = [
            f"export {name}={quote(value)}\n"
            for name, value in environment.items()
            if name.isidentifier() and name not in ("SHELLOPTS", "BASHOPTS", "_", "PWD", "SHLVL")
        ]
        self.put(os.path.join(folder, "environment"), os.fsencode("".join(lines)))

    def script(self, key: str, text: bytes) -> str:
        """Write a batch's script; its path."""
        path = os.path.join(self._scripts, f"{key}.sh")
        self.put(path, text)
        os.chmod(path, 0o700)
        return path

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
            code, began, ended = int(words[0]), float(words[2]), float(words[3])
            return Report(code, words[1], began, ended, words[4], " ".join(words[5:]))
        except (ValueError, IndexError):
            return None

    def _words(self, name: str) -> list[str]:
        with suppress(OSError), open(os.path.join(self._reports, name), "rb") as file:
            return file.read(4096).decode("utf-8", "replace").split()
        return []

    def drop(self, job: str, key: str, *, claim: bool) -> None:
        """A job is over: its files go, with its claim where no other copy of it can be about."""
        for ending in (".end", "") if claim else (".end",):
            with suppress(OSError):
                os.unlink(os.path.join(self._reports, f"{job}@{key}{ending}"))

    def drop_script(self, key: str) -> None:
        """No job of this batch is left."""
        with suppress(OSError):
            os.unlink(os.path.join(self._scripts, f"{key}.sh"))
