"""Spool of a run whose jobs report over the network: the folder it shares with their wrappers.

``address`` says where the controller of now listens, ``reports`` is where wrappers write what they
could not tell it, ``void`` names attempts to submit that were given up, ``scripts`` has the
batches'. It lies in the run's state folder, which nodes need not see, though reports are only kept
if they do; the token in it is for this user's eyes only. Used by ``ReportRun``.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ensemble_batch.shared_folder import SharedFolder

__all__ = ["ReportSpool"]

_TAKEN = ".taken"
#: Bytes that are read of one file, and seconds until one that was read goes.
_LARGEST, _WHILE = 64 * 1024, 2.0


class ReportSpool(SharedFolder):
    """The shared folder of one run. Raises :class:`OSError` where it cannot be made."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, "reports", "void", "scripts")
        self._reports = os.path.join(folder, "reports")
        self._void = os.path.join(folder, "void")
        #: Files of reports that were read: how much of each, and when.
        self._read: dict[str, tuple[int, float]] = {}
        self.token = self._token()

    def _token(self) -> str:
        """The run's token: made once, so that a later controller knows the wrappers' reports."""
        path = os.path.join(self.folder, "token")
        with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            token = file.read().strip()
            if token:
                return token
        token = secrets.token_hex(16)
        self.put(path, f"{token}\n".encode())
        return token

    def announce(self, port: int, hosts: Sequence[str]) -> None:
        """Wrappers report here from now on; to files only where there are no ``hosts``."""
        self.put(os.path.join(self.folder, "address"), f"{port} {' '.join(hosts)}\n".encode())

    def void(self, name: str) -> None:
        """The batch of this name must not run, if the queue should have taken it after all."""
        self.put(os.path.join(self._void, name), b"")

    def reports(self) -> Iterator[bytes]:
        """The lines that wrappers have written since this was last asked; some come twice.

        A file is renamed before it is read, so that the next line begins another, and goes a while
        later, for a wrapper may have opened it just before.
        """
        try:
            names = sorted(os.listdir(self._reports))
        except OSError:
            return
        for name in names:
            path = os.path.join(self._reports, name)
            try:
                if not name.endswith(_TAKEN):
                    # A name of its own each time: an earlier one may lie there still.
                    taken = f"{path}.{secrets.token_hex(4)}{_TAKEN}"
                    os.rename(path, taken)
                    path = taken
                with open(path, "rb") as file:
                    data = file.read(_LARGEST)
            except OSError:
                continue
            read, since = self._read.get(path, (-1, 0.0))
            now = time.monotonic()
            if read == len(data):
                if now - since > _WHILE:
                    del self._read[path]
                    with suppress(OSError):
                        os.unlink(path)
                continue
            self._read[path] = (len(data), now)
            yield from data.split(b"\n")[:-1]
