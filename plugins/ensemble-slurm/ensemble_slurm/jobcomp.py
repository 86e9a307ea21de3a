"""Watches the file in which Slurm's completion script (``jobcomp-ensemble.sh``) reports ended jobs.

A report only triggers a query of the queue, so a forged one does no harm.
"""

from __future__ import annotations

import os


class Completions:
    """The file ``FOLDER/UID.MARK``, which grows by a line whenever a job of the run ends.

    ``UID`` is the user's id, ``MARK`` the beginning of the run's identity.
    """

    def __init__(self, folder: str, mark: str, user: int) -> None:
        self._path = os.path.join(folder, f"{user}.{mark}")
        self._size = 0

    def news(self) -> bool:
        """Return whether the file has grown since the last call."""
        try:
            size = os.stat(self._path).st_size
        except OSError:
            return False
        grown, self._size = size != self._size, size
        return grown
