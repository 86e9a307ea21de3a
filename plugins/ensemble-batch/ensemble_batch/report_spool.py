"""Folder that a run shares with wrapper scripts that report over the network.

Only the run's user may read it, because it contains the token that each report must contain.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ensemble_batch.shared_folder import SharedFolder

#: Exit code of a wrapper script that runs nothing, because its job or batch is in ``void``.
VOIDED = 122

_TAKEN = ".taken"
#: Largest number of bytes to read from a file, and seconds until a file that was read is deleted.
_LARGEST, _WHILE = 64 * 1024, 2.0


class ReportSpool(SharedFolder):
    """Shared folder of one run. Raises :class:`OSError` if it cannot be created.

    - ``address``: where the current controller listens
    - ``token``: the token that each report must contain
    - ``reports``: reports that wrapper scripts could not send
    - ``scripts``: the batches' scripts
    - ``void``: a file for each submission of a batch whose jobs must not run any more
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder, "reports", "void", "scripts")
        self._reports = os.path.join(folder, "reports")
        self._void = os.path.join(folder, "void")
        #: Number of bytes read of each report file, and when they were read.
        self._read: dict[str, tuple[int, float]] = {}
        self.token = self._token()

    def _token(self) -> str:
        """Return the run's token, the same for all controllers."""
        path = os.path.join(self.folder, "token")
        with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            token = file.read().strip()
            if token:
                return token
        token = secrets.token_hex(16)
        self.put(path, f"{token}\n".encode())
        return token

    def announce(self, port: int, hosts: Sequence[str]) -> None:
        """Tell wrapper scripts where to report; without ``hosts``, they only write files."""
        self.put(os.path.join(self.folder, "address"), f"{port} {' '.join(hosts)}\n".encode())

    def void(self, name: str) -> None:
        """Prevent the batch of this name from running, in case the queue has accepted it."""
        self.put(os.path.join(self._void, name), b"")

    def is_void(self, *names: str) -> bool:
        """Return whether one of these jobs or batches was prevented from running."""
        return any(os.path.exists(os.path.join(self._void, name)) for name in names)

    def unread_jobs(self) -> set[str]:
        """Return the jobs with reports in files."""
        try:
            names = self.listing("reports")
        except OSError:
            return set()
        return {".".join(name.split(".")[:2]) for name in names}  # GROUP.INDEX.ID

    def reports(self, *, keep: bool = False) -> Iterator[bytes]:
        """Yield the lines that wrappers have written since the last call; some come twice.

        A file is renamed before it is read, so that the next line starts a new file. It is deleted
        a while later, because a wrapper may have opened it just before; with ``keep``, it stays.
        """
        try:
            names = sorted(self.listing("reports"))
        except OSError:
            return
        for name in names:
            path = os.path.join(self._reports, name)
            try:
                if not name.endswith(_TAKEN):
                    # A new name each time, because an earlier file may still exist.
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
                if now - since > _WHILE and not keep:
                    del self._read[path]
                    with suppress(OSError):
                        os.unlink(path)
                continue
            self._read[path] = (len(data), now)
            yield from data.split(b"\n")[:-1]
