"""Recovery of the jobs that an earlier supervisor left: the ledger's past, as records.

A job that was never about to be spawned waits again, once a controller says that it is not over
(``request_handler``). One that was, or that ran, is *inherited*:
what is left of it is waited for, and then it is lost, for its exit status went to nobody. Should it
have been killed between the two, nothing can tell whether it ran: it counts as lost rather than
being run twice. Called by the loop, once.
"""

from __future__ import annotations

from collections.abc import Iterator

from ensemble_core.local.ledger import Ledger
from ensemble_core.local.ledger_lines import LedgerJob
from ensemble_core.local.local_job import LocalJob
from ensemble_core.local.protocol import to_job
from ensemble_core.model.jobs import Job

__all__ = ["LINES_LOST", "past_records", "why_lost"]

#: Events of a job that has not begun; any other says that it has, whichever lines are missing.
_BEFORE = frozenset({"submit", "validate", "depend", "priority", "exception"})
#: Why a job is lost of which the run knows more than the ledger.
LINES_LOST = (
    "the run knows of later events of this job than the ledger of this machine, which lost its "
    "newest lines (a power cut, or a full disk): the job has begun, and whether it ran to its end "
    "cannot be known"
)


def past_records(ledger: Ledger) -> Iterator[tuple[LocalJob, LedgerJob]]:
    """A record for each job that was not over, in the order in which they came."""
    past, ledger.past = ledger.past, {}
    for number, (name, what) in enumerate(past.items()):
        if what.data is None:  # the line of its submit was damaged
            job = Job(id=name, group="", index=0, command=())
        else:
            job = to_job(what.data)
        record = LocalJob(job, number)
        record.told = False
        record.allotted = "alloc" in what.names and "free" not in what.names
        record.inherited = what.launched or not _BEFORE.issuperset(what.names)
        if "finish" in what.names:
            record.started = "release" not in what.names
            record.reason = "leftover"
        elif what.fatal:
            record.reason = "ended"
        yield record, what


def why_lost(ledger: Ledger, what: LedgerJob) -> str:
    """Error message for an inherited job whose processes are gone."""
    if ledger.rebooted:
        note = "the machine was restarted while the job ran"
    elif what.data is None:
        note = "what was recorded of the job is damaged"
    else:
        note = "the process that watched over the job was killed"
    if "start" in what.names:
        return f"{note}, so its exit code cannot be known"
    return f"{note} while it was being started, so it cannot be known whether it ran"
