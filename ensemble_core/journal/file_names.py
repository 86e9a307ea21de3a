"""Names of a journal's files, and its error.

They are apart from the journal, so that a run starts its executor before it loads the journal.
"""

from __future__ import annotations

from ensemble_core.errors import EnsembleError

#: Name of the file in the run's folder.
NAME = "journal.db"

#: Name of the file that holds a :class:`Progress` as text. It is not synced, so after a power cut
#: it may lag behind the journal, but it is never ahead of it.
PERFORMED = "performed"

#: Name of an empty file: a stop that could not be written to the journal has cancelled the jobs.
STOP_MARK = "stop-cancels"


class JournalError(EnsembleError):
    """Error: a journal cannot be opened, read or written."""

    exit_code = 2
