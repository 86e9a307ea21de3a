"""A base for executors of batch queues that must be polled: PBS, LSF, Grid Engine …

A plugin inherits :class:`BatchExecutor`; :class:`Batch` is what it is given to submit, and
:class:`QueueJob` what it answers. The other names are parts for executors with a loop of their own.
``docs/executor-tutorial.md`` writes an executor.
"""

from ensemble_batch.command import CommandResult, kill_command, run_command
from ensemble_batch.executor import BatchExecutor
from ensemble_batch.hooks import QueueJob
from ensemble_batch.job_events import JobEvents
from ensemble_batch.job_script import Batch, job_lines, quote
from ensemble_batch.outlet import Outlet
from ensemble_batch.output_files import OutputFiles, Place
from ensemble_batch.queue_run import mark_of
from ensemble_batch.records import Records, Sent
from ensemble_batch.shared_folder import SharedFolder
from ensemble_batch.spool import status_of

__all__ = [
    "Batch",
    "BatchExecutor",
    "CommandResult",
    "JobEvents",
    "Outlet",
    "OutputFiles",
    "Place",
    "QueueJob",
    "Records",
    "Sent",
    "SharedFolder",
    "job_lines",
    "kill_command",
    "mark_of",
    "quote",
    "run_command",
    "status_of",
]
