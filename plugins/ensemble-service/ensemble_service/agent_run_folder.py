"""Run folder: what a member agent keeps on disk about one run, to read it after a restart."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from ensemble_core import ExecutorError
from ensemble_service.atomic_file import write_atomically


class RunFolder:
    """A member agent's folder for one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Number of the run's newest controller; 0 if unknown. Calls of earlier ones are rejected.
        try:
            self.epoch = int((path / "epoch").read_text("ascii"))
        except (OSError, ValueError):
            self.epoch = 0

    def name(self) -> str:
        """Return the folder's permanent, random name; empty if it cannot be written.

        If the name changes, another agent has replaced the previous one, and may not know its jobs.
        """
        path = self.path / "home"
        with contextlib.suppress(OSError, ValueError):
            if name := path.read_text("ascii").strip():
                return name
        name = secrets.token_hex(8)
        try:
            write_atomically(path, name.encode("ascii"))
        except OSError:
            return ""
        return name

    def begin_epoch(self, epoch: int) -> None:
        """Record an epoch durably before acting on it.

        Otherwise a restarted agent could carry out a call of an earlier controller.
        """
        path = self.path / "epoch"
        try:
            write_atomically(path, str(epoch).encode("ascii"))
        except OSError as error:
            raise ExecutorError(
                f"the member cannot write {path}",
                cause=error.strerror or str(error),
                code="no-state",
                transient=True,
            ) from None
        self.epoch = epoch
