"""Starts the commands of jobs in their environments (``within``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ensemble_core.errors import EnsembleError, call_plugin, returned_wrong
from ensemble_core.model.causes import ENVIRONMENT_FAILED
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import replace

Wrap = Callable[[Job, Mapping[str, Any]], Sequence[str]]

#: Wait status of a job whose environment could not be set up.
_FAILED = ENVIRONMENT_FAILED << 8


def wrapped(job: Job, environments: Mapping[str, Wrap]) -> Job:
    """Return the job as an executor receives it: its command sets up the environments first.

    Raises :class:`EnsembleError` if an environment fails to do this.
    """
    for entry in reversed(job.within):
        name = next((each for each in entry if each in environments), "")
        if not name:
            raise EnsembleError(
                f"there is no environment {next(iter(entry), '')!r}", code="no-such-environment"
            )
        shown = f"environment {name!r}"
        wrap, words_of = environments[name], "a list of words"
        words = call_plugin(
            wrap,
            job,
            entry,
            returns=Sequence,
            method="wrap",
            whose=shown,
            failed=f"{shown} cannot change the command of {job.id}",
            expected=words_of,
        )
        if isinstance(words, str) or not words or not all(isinstance(each, str) for each in words):
            raise returned_wrong(shown, "wrap", words, words_of, wrap)
        job = replace(job, command=tuple(words))
    return replace(job, within=()) if job.within else job


class Environments:
    """The environments of a run, and the jobs in its queue that have some."""

    def __init__(self, environments: Mapping[str, Wrap]) -> None:
        self._environments = environments
        self._jobs: set[str] = set()

    def __bool__(self) -> bool:
        """Return False if no job in the queue has an environment."""
        return bool(self._jobs)

    def learn(self, job: Job) -> None:
        """Note a job of an earlier controller that is in the queue."""
        if job.within:
            self._jobs.add(job.queue_name)

    def given(self, job: Job) -> Job:
        """Return the job, which has its queue name, as the executor receives it."""
        if not job.within:
            return job
        self._jobs.add(job.id)
        return wrapped(job, self._environments)

    def explained(self, events: Iterable[Event]) -> list[Event]:
        """Return events of the queue. The end of a job says if its environment has failed."""
        found: list[Event] = []
        for event in events:
            if isinstance(event, JobEvent) and event.job in self._jobs:
                if event.name == "clean":
                    self._jobs.discard(event.job)
                elif event.name == "finish" and event.context.get("status") == _FAILED:
                    event = replace(event, context={**event.context, "cause": "environment"})
            found.append(event)
        return found
