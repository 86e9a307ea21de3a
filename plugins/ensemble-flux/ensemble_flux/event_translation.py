"""Translates what Flux reports about jobs into the events of a run.

:class:`EventTranslation` receives entries of jobs' eventlogs and returns events. It uses neither a
clock nor Flux.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core import Cause, JobEvent, JobState
from ensemble_flux.ids_and_hostlists import f58, parse_hostlist
from ensemble_flux.interrupted_jobs import INTERRUPTED
from ensemble_flux.jobspec import files_of, nodes_of, tag_of
from ensemble_flux.node_usage import Nodes

#: Ids of the response that ends a stream's backlog (``FLUX_JOBID_ANY``, as signed and unsigned
#: number).
END_OF_BACKLOG = frozenset({-1, 0xFFFFFFFFFFFFFFFF})

#: State of a job after each event (RFC 21).
_STATES: Mapping[str, JobState] = {
    "submit": JobState.NEW,
    "validate": JobState.DEPEND,
    "depend": JobState.PRIORITY,
    "priority": JobState.SCHED,
    "alloc": JobState.RUN,
    "finish": JobState.CLEANUP,
    "clean": JobState.INACTIVE,
}
#: Events that Flux streams but does not write into the job's eventlog.
_UNWRITTEN = frozenset({"annotations", "invalidate"})
_COUNTED = tuple(state for state in JobState if state is not JobState.NEW)


def _next_state(state: JobState, name: str, context: Mapping[str, Any]) -> JobState:
    """Return the state of a job after an event."""
    if name == "exception":
        fatal = context.get("severity") == 0 and state < JobState.CLEANUP
        return JobState.CLEANUP if fatal else state
    if name == "flux-restart":
        return JobState.PRIORITY if state is JobState.SCHED else state
    after = _STATES.get(name, state)
    if name == "priority" and state is not JobState.PRIORITY:
        return state  # a waiting or running job got a new priority
    return after if after > state or name == "priority" else state


#: Causes of ``exec`` exceptions, by a part of the exception's note. Other notes mean a failed
#: start.
_EXEC_CAUSES: Mapping[str, Cause] = {
    "node failure on": "node-failure",
    "lost contact": "lost",
    "exit-timeout": "exit",  # one task ended long before the others
}


def _cause(context: Mapping[str, Any]) -> Cause | None:
    """Return the cause of an exception; ``None`` if the core can derive it from the type alone."""
    kind, note = context.get("type"), str(context.get("note", ""))
    if kind == "lost-shell":
        return "lost"
    if kind != "exec":
        return None
    return next((cause for words, cause in _EXEC_CAUSES.items() if words in note), None)


def _user(context: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the user who cancelled or held a job as the field ``by``, if Flux knows the user."""
    user = context.get("userid")
    if not isinstance(user, int) or user < 0:
        return {}
    try:
        return {"by": pwd.getpwuid(user).pw_name}
    except (LookupError, OverflowError):
        return {"by": f"user {user}"}


class _Active:
    """An unfinished job in the queue; a job without a name is foreign."""

    __slots__ = ("name", "newest", "nodes", "present", "started", "state", "taken")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.state = JobState.NEW
        self.started = False
        self.nodes = 0
        #: Number of processed entries of the job's eventlog.
        self.taken = 0
        #: Time of the newest of these entries.
        self.newest = 0.0
        #: Whether the current backlog contained the job.
        self.present = True


class _OwnJob:
    """A job that this run waits for."""

    __slots__ = ("extra", "held", "host", "newest", "nodes", "queue_id", "since", "told")

    def __init__(self, nodes: int, extra: Mapping[str, Any] | None, since: float) -> None:
        self.queue_id: int | None = None
        self.nodes = nodes
        self.host = ""  # or several, separated by commas
        self.extra = extra
        #: Entries up to this time are not reported.
        self.since = since
        #: Number of processed entries of the job's eventlog, and the time of the newest of these.
        self.told = 0
        self.newest = 0.0
        #: The event with which somebody set its urgency to 0, until its urgency changes again.
        self.held: Mapping[str, Any] | None = None


class EventTranslation:
    """Translates the job events of a Flux instance into a run's events.

    - ``run_id``: the run's identity
    - ``foreign``: whether to report new events of foreign jobs
    - ``begun``: the current time in seconds since the epoch. Foreign jobs that are already over are
      ignored.
    """

    def __init__(
        self, run_id: str, nodes: Nodes, *, foreign: bool = False, begun: float = 0.0
    ) -> None:
        self._run_id = run_id
        self._nodes = nodes
        self._foreign = foreign
        self._ours: dict[str, _OwnJob] = {}
        self._names: dict[int, str] = {}
        self._active: dict[int, _Active] = {}
        self._states = [0] * len(JobState)
        self._waiting_nodes = 0
        #: Events of the current backlog; ``None`` outside of backlogs.
        self._backlog: list[JobEvent] | None = []
        #: Finished foreign jobs that were in a backlog. Each reopened stream repeats these jobs.
        self._seen: set[int] = set()
        #: The run's jobs in the last backlog.
        self.met: set[str] = set()
        #: Foreign jobs that were over by this time need no report: they were already reported or
        #: are ignored.
        self._cut = float("inf")
        self._newest = begun

    # -- expected jobs -------------------------------------------------------------------------

    def expect(
        self,
        job: str,
        nodes: int = 1,
        extra: Mapping[str, Any] | None = None,
        since: float = 0.0,
    ) -> None:
        """Expect the events of a submitted or reattached job.

        The argument ``nodes`` is the job's number of nodes, used if its jobspec is unknown. The
        mapping ``extra`` is added to the context of the job's ``start`` event. Events up to
        ``since`` (seconds since the epoch) are omitted.
        """
        self._ours[job] = _OwnJob(nodes, extra, since)

    def forget(self, job: str) -> None:
        """Stop expecting a job that is over or was never created."""
        ours = self._ours.pop(job, None)
        if ours is not None and ours.queue_id is not None:
            self._names.pop(ours.queue_id, None)

    def accepted(self, job: str, queue_id: int) -> None:
        """Record Flux's id of a job."""
        ours = self._ours.get(job)
        if ours is not None:
            ours.queue_id = queue_id
            self._names[queue_id] = job

    def place(self, job: str, extra: Mapping[str, Any]) -> None:
        """Add ``extra`` to the context of the ``start`` event of an expected job."""
        ours = self._ours.get(job)
        if ours is not None:
            ours.extra = extra

    def submitted(self, job: str) -> bool:
        """Return whether an event of this job was reported."""
        ours = self._ours.get(job)
        return ours is not None and ours.told > 0

    def queue_id(self, job: str) -> int | None:
        """Return Flux's id of an unfinished job, once it is known."""
        ours = self._ours.get(job)
        return None if ours is None else ours.queue_id

    def waits(self, job: str) -> bool:
        """Return whether this is a job of the run that has not started."""
        queue_id = self.queue_id(job)
        active = None if queue_id is None else self._active.get(queue_id)
        return job in self._ours and (active is None or not active.started)

    def held(self, job: str) -> str:
        """Return why a waiting job does not start, and what releases it, if somebody holds it."""
        ours = self._ours.get(job)
        if ours is None or ours.held is None or ours.queue_id is None or not self.waits(job):
            return ""
        by = _user(ours.held).get("by", "somebody")
        return f"{by} holds it: 'flux job urgency {f58(ours.queue_id)} default' lets it start"

    def first_waiting(self) -> dict[str, tuple[int, int]]:
        """Return the first waiting job of each group, with its id in Flux and number of nodes."""
        found: dict[str, tuple[str, tuple[int, int]]] = {}
        for job, ours in self._ours.items():
            group = job.rpartition(".")[0]
            if group not in found and ours.queue_id is not None and self.waits(job):
                active = self._active.get(ours.queue_id)
                nodes = ours.nodes if active is None else active.nodes
                found[group] = job, (ours.queue_id, nodes)
        return dict(found.values())

    def waits_for(self, job: str) -> bool:
        """Return whether this is an unfinished job of the run."""
        return job in self._ours

    # -- responses -----------------------------------------------------------------------------

    def reopen(self) -> None:
        """Prepare for another stream, whose backlog contains all jobs, including finished ones."""
        if self._backlog is None:  # otherwise, the last stream ended within its backlog
            self._backlog = []
            self._cut = self._newest
        self.met.clear()
        for active in self._active.values():
            active.present = False

    def no_backlog(self) -> None:
        """Prepare for entries job by job, without a stream of all jobs."""
        self._backlog = None
        self._cut = 0.0

    def take(self, response: Mapping[str, Any], start: int | None = None) -> Sequence[JobEvent]:
        """Process a response. Return the events to report now, in order.

        The events of a backlog are returned at its end, in the order of their times. The argument
        ``start`` is the position of the response's first entry in the job's eventlog, if the stream
        does not imply it.
        """
        queue_id, entries = response["id"], response["events"]
        if queue_id in END_OF_BACKLOG and not entries:
            return self._end_backlog()
        active = self._active.get(queue_id)
        new = active is None
        if active is None:
            active = _Active(self._name_of(queue_id, response.get("jobspec")))
        active.present = True
        ours = self._ours.get(active.name or "")
        if ours is not None and ours.extra is None and response.get("jobspec") is not None:
            ours.extra = files_of(response["jobspec"])
        if self._backlog is not None and active.name is not None:
            self.met.add(active.name)
        # The nodes of a job that was already over don't matter.
        resources = response.get("R")
        over = entries[-1]["name"] == "clean"
        if new and over:
            resources = None
        # An unknown foreign job that was over by the cut needs no report. The time of a single
        # event does not prove that: a submit is older than other events that were streamed before
        # it.
        first = self._cut == float("inf")
        past = new and (first or (over and entries[-1]["timestamp"] <= self._cut))
        if self._backlog is not None and over and active.name is None and not past:
            past = queue_id in self._seen
            self._seen.add(queue_id)
        if start is None:
            start = active.taken if self._backlog is None else 0
        told: list[JobEvent] = []
        place = start
        for entry in entries:
            name, timestamp = entry["name"], entry["timestamp"]
            context: Mapping[str, Any] = entry.get("context") or {}
            written = name not in _UNWRITTEN
            fresh = not written or place >= active.taken or timestamp > active.newest
            if fresh:
                self._work_in(queue_id, active, name, context, resources, new=new)
            event = self._event_to_report(
                queue_id, active, place, entry, context, fresh=fresh, past=past
            )
            if event is not None:
                told.append(event)
            if written:
                place += 1
                active.taken = max(active.taken, place)
                active.newest = max(active.newest, timestamp)
            self._newest = max(self._newest, timestamp)
        if new and active.state is not JobState.INACTIVE:
            self._active[queue_id] = active
            self._enter(active, response.get("jobspec"))
        if self._backlog is not None:
            self._backlog += told
            return ()
        return told

    def _work_in(
        self,
        queue_id: int,
        active: _Active,
        name: str,
        context: Mapping[str, Any],
        resources: Mapping[str, Any] | None,
        *,
        new: bool,
    ) -> None:
        """Update a job's state and resources with one entry of its eventlog."""
        if name == "invalidate":  # the job was never created
            if new:
                active.state = JobState.INACTIVE
            else:
                self._remove(queue_id, active)
            return
        before = active.state
        active.state = _next_state(before, name, context)
        if active.state is not before and not new:
            self._move(queue_id, active, before)
        active.started = active.started or name == "start"
        if name == "alloc" and resources:
            self._nodes.alloc(queue_id, resources)
            ours = self._ours.get(active.name or "")
            if ours is not None and ours.queue_id in (None, queue_id):
                nodes = (resources.get("execution") or {}).get("nodelist") or ()
                ours.host = ",".join(parse_hostlist(",".join(nodes)))
        elif name == "release":
            self._nodes.release(queue_id, str(context.get("ranks", "all")))
        elif name in ("free", "clean"):
            self._nodes.release(queue_id)

    def _event_to_report(
        self,
        queue_id: int,
        active: _Active,
        place: int,
        entry: Mapping[str, Any],
        context: Mapping[str, Any],
        *,
        fresh: bool,
        past: bool,
    ) -> JobEvent | None:
        """Return the event to report for an entry, if any."""
        name, timestamp, job = entry["name"], entry["timestamp"], active.name
        if job is None:
            if not self._foreign or not fresh:
                return None
            if self._backlog is not None and past:
                return None
            return JobEvent(timestamp, f58(queue_id), name, context, ours=False)
        ours = self._ours.get(job)
        if ours is None or (ours.queue_id is not None and ours.queue_id != queue_id):
            return None  # the job is over, or not (yet) expected
        if ours.queue_id is None:
            self.accepted(job, queue_id)
        if name not in _UNWRITTEN:
            # A reopened stream repeats entries. The position alone does not identify them, because
            # the first stream also had volatile memos. The time alone does not either, because
            # clocks may be set back.
            if place < ours.told and timestamp <= ours.newest:
                return None
            ours.told = max(ours.told, place + 1)
            ours.newest = max(ours.newest, timestamp)
        if name == "urgency":
            ours.held = None if context.get("urgency") else context
        if name == "clean":
            self.forget(job)
        if timestamp <= ours.since:
            return None
        cause = _cause(context) if name == "exception" else None
        if cause is not None:
            context = {**context, "cause": cause}
        if name == "exception" and context.get("type") == "cancel":
            # A controller had cancelled this waiting job in a drain.
            drained = context.get("note") == INTERRUPTED["note"]
            context = INTERRUPTED if drained else {**context, **_user(context)}
        ours.since = 0.0  # all later entries are newer, even if the clock was set back
        if name == "submit":
            context = {**context, "queue_id": f58(queue_id)}
        elif name == "start":
            host = {"host": ours.host} if ours.host else {}
            context = {**context, **host, **(ours.extra or {})}
        return JobEvent(timestamp, job, name, context)

    def _name_of(self, queue_id: int, jobspec: Mapping[str, Any] | None) -> str | None:
        """Return our name of a job, from its jobspec or from Flux's reply to its submission."""
        if jobspec is not None:
            tag = tag_of(jobspec)
            if tag.get("id") == self._run_id:
                return str(tag.get("job"))
            return None
        return self._names.get(queue_id)

    def _end_backlog(self) -> list[JobEvent]:
        told, self._backlog = self._backlog, None
        self._seen.clear()
        for queue_id, active in list(self._active.items()):
            if not active.present:  # the instance has forgotten the job
                self._remove(queue_id, active)
        # A job's events keep their order, even if the clock was set back.
        newest: dict[str, float] = {}

        def time(event: JobEvent) -> float:
            at = newest[event.job] = max(event.timestamp, newest.get(event.job, 0.0))
            return at

        return sorted(told or [], key=time)

    def missing(self) -> list[str]:
        """Return the jobs that Flux accepted but no longer knows.

        Call it after the end of a backlog.
        """
        return [
            job
            for job, ours in self._ours.items()
            if ours.queue_id is not None and ours.queue_id not in self._active
        ]

    # -- the queue -----------------------------------------------------------------------------

    def _enter(self, active: _Active, jobspec: Mapping[str, Any] | None) -> None:
        if jobspec is not None:
            active.nodes = nodes_of(jobspec, self._nodes.cores_per_node)
        elif active.name in self._ours:
            active.nodes = self._ours[active.name].nodes
        self._states[active.state] += 1
        if active.state < JobState.RUN:
            self._waiting_nodes += active.nodes

    def _move(self, queue_id: int, active: _Active, before: JobState) -> None:
        self._states[before] -= 1
        self._states[active.state] += 1
        if before < JobState.RUN <= active.state:
            self._waiting_nodes -= active.nodes
        elif active.state < JobState.RUN <= before:
            self._waiting_nodes += active.nodes
        if active.state is JobState.INACTIVE:
            del self._active[queue_id]

    def _remove(self, queue_id: int, active: _Active) -> None:
        before, active.state = active.state, JobState.INACTIVE
        self._move(queue_id, active, before)
        self._states[JobState.INACTIVE] -= 1
        self._nodes.release(queue_id)

    def inactive(self, count: int) -> None:
        """Set the number of finished jobs in the queue, as counted by Flux."""
        self._states[JobState.INACTIVE] = count

    def gauges(self) -> dict[str, float]:
        """Return the number of jobs in each state, and the nodes that waiting jobs need, by metric
        path.
        """
        gauges: dict[str, float] = {
            f"queue.{state.name.lower()}": self._states[state] for state in _COUNTED
        }
        gauges["waiting.nodes"] = self._waiting_nodes
        return gauges
