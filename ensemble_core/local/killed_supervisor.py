"""Recovers local jobs from the ledger after their supervisor (their parent process) was killed.

- A job that was still waiting is queued again.
- A job that its supervisor had interrupted, because the allocation ended, is reported as such.
- Any other job that had started, or was about to start, is *inherited*. When its processes have
  ended, it is reported as lost, because the exit status is unknown. It is never started again, so
  no job runs twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from ensemble_core.local.ledger import Ledger, LedgerJob
from ensemble_core.local.local_job import LocalJob
from ensemble_core.local.protocol import to_job
from ensemble_core.model.jobs import Job

#: Events of a job that has not started. Any other event shows that it has. (After ``alloc``, other
#: lines can say that no process was spawned: see ``LedgerJob.launched``.)
_BEFORE = frozenset({"submit", "validate", "depend", "priority", "alloc", "exception"})
#: Note of a job of which the journal has newer events than the ledger.
LINES_LOST = (
    "the ledger of this machine lost its newest lines (a power cut, or a full disk): the job has "
    "started, and whether it finished cannot be known"
)


def past_records(ledger: Ledger) -> Iterator[tuple[LocalJob, LedgerJob]]:
    """Yield each job that is not over, with its state in the ledger, in the order of submission."""
    past, ledger.past = ledger.past, {}
    for number, (name, what) in enumerate(past.items()):
        if what.data is None:  # the line with the submit is damaged
            job = Job(id=name, group="", index=0, command=())
        else:
            job = to_job(what.data)
        record = LocalJob(job, number)
        record.reported = False
        record.allotted = "alloc" in what.names and "free" not in what.names
        record.inherited = what.launched or not _BEFORE.issuperset(what.names)
        if "finish" in what.names:
            record.started = "release" not in what.names
            record.reason = "leftover"
        elif what.fatal:
            record.reason = "ended"
        yield record, what


def why_lost(ledger: Ledger, what: LedgerJob) -> str:
    """Return the reason why an inherited job, whose processes have ended, is reported as lost."""
    if ledger.rebooted:
        note = "the machine was restarted while the job ran"
    elif what.data is None:
        note = "the ledger's lines of the job are damaged"
    else:
        note = "the supervisor of the job was killed"
    if "start" in what.names:
        return f"{note}, so its exit code cannot be known"
    return f"{note} while it was being started, so it cannot be known whether it ran"
