"""Completion notices: watches the file in which a site's jobcomp script reports ended jobs.

An administrator may install ``jobcomp-ensemble.sh`` (``JobCompType=jobcomp/script``). The script
adds a line to the run's file for each job that ends, whatever the cause. A line only triggers a
query of the queue, so a forged line cannot end a job. Used by the executor.
"""

from __future__ import annotations

import os

__all__ = ["Completions"]


class Completions:
    """The run's file in the site's folder: ``FOLDER/UID.MARK``.

    ``UID`` is the user's id, ``MARK`` a hash of the run's tag.
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
