"""Bases for executors of batch queues.

A plugin inherits :class:`BatchExecutor` where jobs need a wrapper (PBS, LSF, Grid Engine …), or
:class:`QueueExecutor` where the queue itself runs them as they are to be run, and knows how each
ended (Kubernetes …). :class:`Batch` is what it is given to submit, :class:`QueueJob` what it
answers; :class:`CannotTake` and :class:`InvalidJob` are what it raises. The other names are parts
for executors of other kinds. ``docs/executor-tutorial.md`` writes an executor of each.
"""

from ensemble_batch.batch_executor import BatchExecutor
from ensemble_batch.executor import QueueExecutor
from ensemble_batch.hooks import CannotTake, InvalidJob, QueueJob
from ensemble_batch.job_events import JobEvents
from ensemble_batch.job_script import Batch, job_lines, job_table, quote
from ensemble_batch.listener import address_option
from ensemble_batch.outlet import Outlet
from ensemble_batch.output_files import OutputFiles, Place
from ensemble_batch.queue_run import mark_of
from ensemble_batch.records import Records, Sent
from ensemble_batch.reports import status_of

__all__ = [
    "Batch",
    "BatchExecutor",
    "CannotTake",
    "InvalidJob",
    "JobEvents",
    "Outlet",
    "OutputFiles",
    "Place",
    "QueueExecutor",
    "QueueJob",
    "Records",
    "Sent",
    "address_option",
    "job_lines",
    "job_table",
    "mark_of",
    "quote",
    "status_of",
]
