"""Base classes for executors of batch queues.

- :class:`BatchExecutor`: for queues such as PBS, LSF or Grid Engine. A wrapper script starts each
  job's command and reports how it ended.
- :class:`QueueExecutor`: for queues that need no wrapper script, because they meet all requests of
  a job group and know how each job ended.

The tutorial ``docs/executor-tutorial.md`` develops an executor with each base class.

Every run loads plugins that take options from here, so modules are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_batch.event_emitter import Outlet
    from ensemble_batch.executor import BatchExecutor, QueueExecutor
    from ensemble_batch.job_events import JobEvents, status_of
    from ensemble_batch.job_script import Batch, job_lines, job_table, quote
    from ensemble_batch.output_files import OutputFiles, Place
    from ensemble_batch.queue_hooks import CannotTake, InvalidJob, QueueJob, reshaped
    from ensemble_batch.queue_options import address_option
    from ensemble_batch.shared_folder import script_of_batch
    from ensemble_batch.submission_records import Records, Sent

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
    "quote",
    "reshaped",
    "script_of_batch",
    "status_of",
]

_HOMES = {
    "executor": "BatchExecutor QueueExecutor",
    "queue_hooks": "CannotTake InvalidJob QueueJob reshaped",
    "job_events": "JobEvents status_of",
    "job_script": "Batch job_lines job_table quote",
    "queue_options": "address_option",
    "event_emitter": "Outlet",
    "output_files": "OutputFiles Place",
    "submission_records": "Records Sent",
    "shared_folder": "script_of_batch",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'ensemble_batch' has no attribute {name!r}")
    return getattr(import_module(f"ensemble_batch.{_HOME[name]}"), name)
