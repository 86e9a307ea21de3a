"""Computes the identities of a run's jobs, and finds earlier jobs to reuse (``--reuse``).

The identity of a job is a digest of its command, parameters and input files: if an earlier job has
the same identity, its results can be reused. The engine's thread never reads input files.

Reuse in five files: ``model.identity`` (what is compared), ``runtime.input_files`` (which files),
this one (asks and answers, beside the engine), and
``journal.reusable_jobs`` (finds the equal job). ``session.reuse_explanations`` opens earlier runs
and explains.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.errors import EnsembleError
from ensemble_core.model.codec import NOTHING, dumps
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, Identified, JobEvent, LookedUp, Observed, Problem
from ensemble_core.model.identity import Source, identity_of, parts_of, short
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass
from ensemble_core.runtime.input_files import Inputs, unknown
from ensemble_core.runtime.required_outputs import has_outputs

if TYPE_CHECKING:  # needed only if jobs are reused
    from ensemble_core.journal.reusable_jobs import EarlierJob, EarlierJobs

#: How many jobs are looked up or checked at a time.
_AT_ONCE = 100
#: Seconds between two checks. Waking the thread at the end of each job would cost more than the
#: checks themselves.
_CHECK_PAUSE = 0.2
#: Back-pressure: look-ups pause while more events than this wait for the engine.
_MOST_WAITING = 20_000
#: Size of the cache of sources. There may be many, because rules may change fields at each submit.
_MOST_SOURCES = 1000

#: Item in the queue which says that jobs have ended.
_CHECK = object()


class Unit(list[Event]):
    """Events that the journal stores atomically."""


@dataclass(frozen=True, slots=True)
class LookUpRequest:
    """Order: find earlier jobs that can replace these jobs. Each job comes with its group."""

    jobs: tuple[tuple[Job, JobGroup | None], ...]


@lru_cache(maxsize=10_000)
def _key(files: tuple[tuple[str, str], ...]) -> str:
    """Return the key by which the journal stores these input files."""
    return short(dict(files))[:12]


def identify(
    job: Job, group: JobGroup, source: Source, inputs: Inputs, seen: dict[str, dict[str, str]]
) -> tuple[str, dict[str, str]]:
    """Return the identity of a job of this group, and the current state of its inputs."""
    files = inputs.of(job, group, seen)
    return identity_of(parts_of(job, source.parts, files)), files


def uses_job_files(ensemble: Ensemble) -> bool:
    """Return True if a rule uses the folder or the output of jobs."""
    texts = [dumps(rule.spec) for rule in ensemble.rules]
    return any(
        name in text for text in texts for name in ("{job.workdir", "{job.std", "{job.outputs")
    )


class Identities:
    """Identities and look-ups of the jobs of a run.

    - ``put`` receives the resulting events; ``backlog`` returns how many events wait in the inbox.
      ``put_later`` receives the identities of submitted jobs, which may wait for the next events.
    - ``folders`` lists the folders of the earlier runs to reuse; ``earlier`` has their jobs, if
      they have been read already.
    - ``reused_from`` has the earlier jobs that replace jobs of this run.
    - With ``files``, an earlier job is reused only if its folder and output still exist.
    """

    def __init__(
        self,
        put: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
        backlog: Callable[[], int],
        *,
        put_later: Callable[[Sequence[Event]], None] | None = None,
        folders: Sequence[str] = (),
        earlier: EarlierJobs | None = None,
        reused_from: Iterable[str] = (),
        files: bool = False,
    ) -> None:
        self._put = put
        self._put_later = put_later or put
        self._clock = clock
        self._backlog = backlog
        self._folders = folders
        self._earlier = earlier
        self._reused_from = tuple(reused_from)
        self._files = files
        self._inputs = Inputs()
        self._sources: dict[tuple[int, ...], tuple[JobGroup, Source]] = {}
        #: Keys of the sources and inputs that this controller has already put into the journal.
        self._recorded: set[str] = set()
        #: Groups of the jobs that are about to be submitted.
        self._groups: dict[str, JobGroup] = {}
        #: Queue of the thread. Its items are look-ups, ``_CHECK`` if jobs have ended since the last
        #: check, and ``None`` at the end.
        self._queue: queue.SimpleQueue[LookUpRequest | object | None] = queue.SimpleQueue()
        #: Jobs that have ended, each with the key of its inputs.
        self._ended: deque[tuple[Job, JobGroup, str]] = deque()
        self._check_queued = False
        #: Set if other work waits, so that the thread does not pause before its next check.
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False

    def expect(self, jobs: Sequence[Job], records: Mapping[str, JobRecord]) -> None:
        """Note that these jobs are about to be submitted."""
        for job in jobs:
            record = records.get(job.id)
            if record is not None and record.source is not None:
                self._groups[job.label] = record.source

    def identify(self, jobs: Sequence[Job]) -> None:
        """Report the identities of jobs that are about to be submitted."""
        seen: dict[str, dict[str, str]] = {}
        event = _Found()
        for job in jobs:
            group = self._groups.pop(job.label, None)
            if group is not None:
                self._add(event, job, group, seen)
        if event.jobs:
            self._put_later((event.event(self._clock()),))

    def look_up(self, order: LookUpRequest) -> None:
        """Look up jobs in earlier runs. Returns immediately."""
        self._queue.put(order)
        self._hurry.set()
        self._begin()

    def ended(self, record: JobRecord) -> None:
        """Have the inputs of a job checked that has ended with success. Returns immediately."""
        if record.reused is not None or record.outcome != "success" or record.source is None:
            return
        if record.inputs is None:
            return
        self._ended.append((record.job, record.source, record.inputs))
        if not self._check_queued:
            self._check_queued = True
            self._queue.put(_CHECK)
            self._begin()

    def close(self, patience: float) -> None:
        """Finish the checks of ended jobs, and stop. Wait for at most ``patience`` seconds."""
        self._closing = True
        self._hurry.set()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(patience)

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="identities", daemon=True)
            self._thread.start()

    # -- the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            if isinstance(order, LookUpRequest):
                self._look_up(order)
            else:
                self._hurry.wait(_CHECK_PAUSE)
                self._check()
                if not self._closing:
                    self._hurry.clear()

    def _check(self) -> None:
        """Report the ended jobs whose inputs have not changed."""
        # Reset this before taking the first job, so that a job that ends later queues another
        # check.
        self._check_queued = False
        seen: dict[str, dict[str, str]] = {}
        before = 0  # number of jobs that had ended when the first file of ``seen`` was read
        while self._ended:
            if before == 0:
                # A job that ends from now on may have changed the files.
                seen, before = {}, len(self._ended)
            same: list[str] = []
            for _ in range(min(_AT_ONCE, before)):
                before -= 1
                job, group, key = self._ended.popleft()
                files = self._inputs.of(job, group, seen)
                if unknown(files) is None and _key(tuple(files.items())) == key:
                    same.append(job.label)
            if same:
                self._put((Identified(self._clock(), unchanged=tuple(same)),))

    def _look_up(self, order: LookUpRequest) -> None:
        for at in range(0, len(order.jobs), _AT_ONCE):
            while self._backlog() > _MOST_WAITING and not self._closing:
                time.sleep(0.01)
            if self._closing:
                return
            self._put(self.answer(order.jobs[at : at + _AT_ONCE]))

    def _reopen_runs(self) -> EarlierJobs:
        """Return the jobs of those earlier runs that still exist."""
        from ensemble_core.journal.reusable_jobs import EarlierJobs

        earlier = EarlierJobs(self._reused_from, files=self._files)
        for folder in self._folders:
            try:
                earlier.read(Path(folder))
            except EnsembleError as error:
                message = f"no more jobs of {Path(folder).name} are reused: {error}"
                self._put((Problem(self._clock(), message),))
        return earlier

    def answer(self, jobs: Sequence[tuple[Job, JobGroup | None]]) -> Unit:
        """Return the answer to a look-up, with the events of the earlier jobs that are reused.

        This reads the input files of the jobs.
        """
        if self._earlier is None:
            self._earlier = self._reopen_runs()
        seen: dict[str, dict[str, str]] = {}
        found = _Found()
        hits: dict[str, EarlierJob] = {}
        misses: list[str] = []
        for job, group in jobs:
            hit = None
            if group is not None:
                source = self._source(group)
                identity, files = identify(job, group, source, self._inputs, seen)
                if unknown(files) is None:
                    accept = partial(has_outputs, job, group) if group.outputs else None
                    hit = self._earlier.take(identity, accept)
            if group is None or hit is None:
                misses.append(job.id)
                continue
            hits[job.id] = hit
            self._note(found, job, source, identity, files)
            if files:
                found.unchanged.append(job.label)
        now = self._clock()
        answer = LookedUp(now, {job: hit.name for job, hit in hits.items()}, tuple(misses))
        unit = Unit([found.event(now)] if hits else [])
        unit.append(answer)
        for name, hit in hits.items():
            unit += _events(name, hit, now)
        return unit

    def _source(self, group: JobGroup) -> Source:
        # Submits that change another field, such as the count, have different groups with the same
        # parts.
        parts = (group.command, group.environment, group.environment_from, group.observe)
        key = tuple(map(id, (*parts, group.options, group.within)))
        known = self._sources.get(key)
        if known is None:
            if len(self._sources) >= _MOST_SOURCES:
                self._sources.clear()
            known = self._sources[key] = group, Source.of(group)
        return known[1]

    def _add(
        self, found: _Found, job: Job, group: JobGroup, seen: dict[str, dict[str, str]]
    ) -> None:
        source = self._source(group)
        self._note(found, job, source, *identify(job, group, source, self._inputs, seen))

    def _note(
        self, found: _Found, job: Job, source: Source, identity: str, files: dict[str, str]
    ) -> None:
        entry = [identity, source.key]
        if source.key not in self._recorded:
            self._recorded.add(source.key)
            found.sources[source.key] = source.parts
        if files:
            key = _key(tuple(files.items()))
            entry.append(key)
            if key not in self._recorded:
                self._recorded.add(key)
                found.inputs[key] = files
        found.jobs[job.label] = entry


class _Found:
    """Builder of an :class:`Identified` event."""

    def __init__(self) -> None:
        self.jobs: dict[str, list[str]] = {}
        self.sources: dict[str, Mapping[str, Any]] = {}
        self.inputs: dict[str, dict[str, str]] = {}
        self.unchanged: list[str] = []

    def event(self, now: float) -> Identified:
        return Identified(
            now,
            self.jobs,
            self.sources or NOTHING,
            self.inputs or NOTHING,
            tuple(self.unchanged),
        )


def _events(job: str, hit: EarlierJob, now: float) -> list[Event]:
    """Return the events of a job that an earlier job replaces, as if the job had run."""
    rows = [Observed(now, job, *row) for row in hit.rows]
    done = {"status": 0, "duration": hit.duration}
    return [
        JobEvent(now, job, "submit", {"reused": hit.name}),
        JobEvent(now, job, "start", hit.start),
        *rows,
        JobEvent(now, job, "finish", done),
        JobEvent(now, job, "clean"),
    ]


def reuse_events(event: Event, records: Mapping[str, JobRecord], now: float) -> Iterator[Event]:
    """Yield the events that the engine handles for this event: usually only the event itself.

    If the event's job is over, yield nothing. If a rule has cancelled the reused job, yield two
    events: the cancel and the end of the job.
    """
    if not isinstance(event, (JobEvent, Observed)):
        yield event
        return
    record = records.get(event.job)
    if record is None:
        return
    if record.reused is not None and record.cancelling and record.outcome is None:
        why = {"type": "cancel", "severity": 0, "note": "cancelled by the run"}
        yield JobEvent(now, event.job, "exception", why)
        yield JobEvent(now, event.job, "clean")
    else:
        yield event
