"""Report spool: the folder that a run's controller shares with its jobs' wrappers.

``address`` says where the controller of now listens, ``reports`` is where wrappers write what they
could not tell it, ``void`` names attempts to submit that were given up. It lies in the run's state
folder, which nodes must see for it to be of use; the token in it is for this user's eyes only.
Used by the loop's thread.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress

from ensemble_batch import SharedFolder

from ensemble_slurm.script import Address

__all__ = ["Spool"]

_TAKEN = ".taken"
#: Bytes that are read of one file, and seconds until one that was read goes.
_LARGEST, _WHILE = 64 * 1024, 2.0


class Spool(SharedFolder):
    """The shared folder of one run. Raises :class:`OSError` where it cannot be made."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, "reports", "void")
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

    def announce(self, address: Address) -> None:
        """Wrappers report here from now on."""
        hosts = " ".join(address.hosts)
        self.put(os.path.join(self.folder, "address"), f"{address.port} {hosts}\n".encode())

    def void(self, batch: str) -> None:
        """This attempt (``KEY.ATTEMPT``) must not run, if Slurm should have taken it after all."""
        self.put(os.path.join(self._void, batch), b"")

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
