"""Attempts: how the next one of an index is made, and what a success leaves as its result.

Pure functions over the records of the job table; called by the engine's state and by
``rule_evaluation``.
"""

from __future__ import annotations

from dataclasses import replace

from ensemble_core.engine.job_record import Index
from ensemble_core.errors import EnsembleError
from ensemble_core.model.decisions import Retry
from ensemble_core.model.ensemble import Binder
from ensemble_core.model.jobs import Job, JobGroup

__all__ = ["coming", "next_attempt"]


def coming(index: Index) -> str:
    """The id that the next attempt of an index will have."""
    job = index.record.job
    return f"{job.group}.{job.index}-{job.attempt + 1}"


def next_attempt(index: Index, retry: Retry, binder: Binder) -> tuple[Job, JobGroup]:
    """The next attempt, and what it is made of: the attempt before with the fields of the retry
    merged over its own. Raises :class:`EnsembleError` where these do not fit."""
    job, source = index.record.job, index.record.source
    if source is None:
        raise EnsembleError("it was submitted by a plugin as a whole", code="no-source")
    fields = {**retry.fields}
    parameters = {**job.parameters, **(fields.pop("parameters", None) or {})}
    if fields:
        source = binder.group(replace(source, more=()), fields)
    unknown = parameters.keys() - job.parameters.keys()
    if unknown:
        raise EnsembleError(
            f"{job.group!r} has no parameter {', '.join(sorted(unknown))}", code="no-such-parameter"
        )
    return source.job(job.index, parameters, job.replica, job.attempt + 1), source
