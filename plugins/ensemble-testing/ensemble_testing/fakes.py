"""Fakes for tests of plugins and rules: a firing that records decisions, and an executor whose jobs
the test controls.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ensemble_core.builtin.actions import ensemble_actions
from ensemble_core.engine.action_decisions import PlainDecisions
from ensemble_core.errors import EnsembleError, ExecutorError
from ensemble_core.model.decisions import (
    Avoid,
    Call,
    Cancel,
    Decision,
    Retry,
    Signal,
    Submit,
    Switch,
    Terminate,
    WhenBusy,
)
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, ResizeOutcome, Started
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import Action, BoundAction
from ensemble_core.plugin.executor import Emit, Executor, Run
from ensemble_core.plugin.hookspecs import ActionPlugin


class FakeFiring(PlainDecisions):
    """A firing of a rule, for tests that pass it to an action's ``plan``.

    - ``groups``: job groups, or their names
    - ``metrics``: values by path
    - ``active``: ids of active jobs (``GROUP.INDEX``)
    - ``job_spec``: the event's job, if its fields differ from those of its group
    - ``actions``: records that ``act`` needs, in addition to the built-in actions

    The attribute ``decided`` lists all decisions in order.

    >>> firing = FakeFiring(groups=["sim"], active=["sim.0"])
    >>> firing.cancel(firing.active("sim")).jobs
    ('sim.0',)
    >>> [decision.type for decision in firing.decided]
    ['cancel']
    """

    def __init__(
        self,
        *,
        event: Event | None = None,
        job: str | None = None,
        groups: Iterable[str | JobGroup] = (),
        metrics: Mapping[str, float] | None = None,
        active: Iterable[str] = (),
        fields: Mapping[str, Any] | None = None,
        rule: str = "rule-1",
        job_spec: Job | None = None,
        actions: Iterable[ActionPlugin] = (),
    ) -> None:
        self.decided: list[Decision] = []
        self._actions = {record.name: record for record in (*ensemble_actions(), *actions)}
        self.rule = rule
        self.event = event or Started(0.0)
        self.job = job if job is not None or job_spec is None else job_spec.id
        self.fields: Mapping[str, Any] = dict(fields or {})
        self._metrics = dict(metrics or {})
        self._active = tuple(active)
        self._groups = {
            group.name: group
            for group in (
                JobGroup(name=item, command=("true",)) if isinstance(item, str) else item
                for item in groups
            )
        }
        self.job_spec = job_spec or self._job_from_id()
        self._next = dict.fromkeys(self._groups, 0)
        for known in self._active:
            name, _, rest = known.rpartition(".")
            index = rest.partition("-")[0]  # of any attempt of the job
            if name in self._next and index.isdecimal():
                self._next[name] = max(self._next[name], int(index) + 1)

    @property
    def groups(self) -> Sequence[str]:
        return tuple(self._groups)

    def group(self, name: str) -> JobGroup | None:
        return self._groups.get(name)

    def metric(self, path: str) -> float | None:
        return self._metrics.get(path)

    def active(self, group: str | None = None) -> Sequence[str]:
        return tuple(
            job for job in self._active if group is None or job.rpartition(".")[0] == group
        )

    def submit(self, group: str, overrides: Mapping[str, Any] | None = None) -> Decision:
        chosen = self._group(group)
        jobs = tuple(replace(chosen, **(overrides or {})).jobs(self._next[group]))
        self._next[group] += len(jobs)
        return self._decide(Submit, group=group, jobs=jobs)

    def submit_next(
        self, groups: Sequence[str], count: int = 1, *, order: str = "given", seed: int = 0
    ) -> Iterable[Decision]:
        """Return the first jobs of each group, ignoring ``order``."""
        for group in groups:
            jobs = tuple(self._group(group).jobs(self._next[group]))[:count]
            count -= len(jobs)
            self._next[group] += len(jobs)
            if jobs:
                yield self._decide(Submit, group=group, jobs=jobs)

    def retry(
        self, fields: Mapping[str, Any] | None = None, *, wait: float = 0.0, resume: bool = False
    ) -> Decision:
        return self._decide(
            Retry,
            job=self.job or "",
            fields=dict(fields or {}),
            wait=wait,
            resume=resume,
        )

    def vary(
        self,
        parameters: Mapping[str, Any],
        *,
        label: str | None = None,
        fields: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> Sequence[Decision]:
        job = self.job_spec
        name = label or (job.group if job is not None else "")
        own = {} if job is None else {key: [value] for key, value in job.parameters.items()}
        given = {
            key: list(value) if isinstance(value, (list, tuple)) else [value]
            for key, value in parameters.items()
        }
        return [self.submit(name, {**(fields or {}), "parameters": {**own, **given}})]

    def submit_rows(
        self,
        group: str,
        rows: str,
        fields: Mapping[str, Any] | None = None,
        *,
        again: bool = False,
    ) -> Sequence[Decision]:
        """Act as if the table had one row without columns."""
        return [self.submit(group, fields)]

    def cancel(self, jobs: Sequence[str]) -> Decision:
        return self._decide(Cancel, jobs=tuple(jobs))

    def signal(self, jobs: Sequence[str], signal: str) -> Sequence[Decision]:
        """Act as if all of these jobs ran."""
        return [self._decide(Signal, request="signal-1", signal=signal, jobs=tuple(jobs))]

    def terminate(self, exit_code: int = 0, *, cancel: bool = True, reason: str = "") -> Decision:
        return self._decide(
            Terminate,
            exit_code=exit_code,
            cancel=self._active if cancel else (),
            reason=reason,
        )

    def avoid(
        self, nodes: Sequence[str], *, most: int = 0, resubmit: bool = True
    ) -> Sequence[Decision]:
        return [self._decide(Avoid, nodes=tuple(nodes))]

    def set_group(self, group: str, fields: Mapping[str, Any]) -> Decision:
        self._groups[group] = replace(self._group(group), **fields)
        return super().set_group(group, fields)

    def switch(
        self,
        to: Sequence[str],
        away: Sequence[str] | None = None,
        *,
        keep: bool = False,
        reset: bool = False,
        cancel: bool = False,
    ) -> Sequence[Decision]:
        """Switch instances of algorithms, or generators: ``away`` off and ``to`` on.

        The fake does not know which of them are on. It assumes that all of ``to`` exist and are
        off, that all of ``away`` are on, and that no job waits.
        """
        off, on = tuple(away or ()), tuple(to)
        return [self._decide(Switch, off=off, on=on, keep=keep, reset=reset)]

    def call(self, function: str) -> Decision:
        return self._call("custom", function, {})

    def act(
        self,
        spec: Mapping[str, Any] | Action | Sequence[Mapping[str, Any] | Action],
        fields: Mapping[str, Any] | None = None,
    ) -> Sequence[Decision]:
        # immediately, so that a decision that is not returned is noticed
        decided: list[Decision] = []
        for one in (spec,) if isinstance(spec, (Mapping, Action)) else spec:
            own = one.fields if isinstance(one, Action) else {}
            firing = copy.copy(self)  # which appends its decisions to the same list
            firing.fields = {**self.fields, **(fields or {}), **own}
            options = dict(one.spec if isinstance(one, Action) else one)
            name = str(options.pop("name", ""))
            if name not in self._actions:
                raise EnsembleError(
                    f"no action {name!r}",
                    hint="pass its record to FakeFiring: actions=[…]",
                    code="no-such-action",
                )
            plan = self._actions[name].plan
            properties = self._actions[name].options.get("properties", {})
            messages = tuple(
                (key,)
                for key, schema in properties.items()
                if schema.get("x-ensemble") == "message" and not schema.get("x-ensemble-fills")
                if isinstance(options.get(key), str)
            )
            bound = BoundAction(name=name, options=options, messages=messages)
            options = dict(bound.fill_messages(firing.fields))
            if plan is None:
                decided.append(firing._call("action", name, options))  # noqa: SLF001  (its copy)
            else:
                decided += plan(firing, options)
        return decided

    def _call(
        self, kind: Literal["custom", "action"], name: str, options: Mapping[str, Any]
    ) -> Decision:
        return self._decide(
            Call,
            call=self._new_id("call"),
            kind=kind,
            name=name,
            options=dict(options),
            event=self.event.to_dict(),
            job=None if self.job_spec is None else self.job_spec.to_dict(),
        )

    def _job_from_id(self) -> Job | None:
        name, _, rest = (self.job or "").rpartition(".")
        index, _, attempt = rest.partition("-")
        if name not in self._groups or not index.isdecimal():
            return None
        job = next(self._groups[name].jobs(int(index)))
        if not attempt.isdecimal():
            return job
        return replace(job, id=self.job or "", attempt=int(attempt))

    def _decide(self, kind: type[Decision], /, **fields: Any) -> Decision:
        decision = kind(rule=self.rule, firing=1, **fields)
        self.decided.append(decision)
        return decision

    def _new_id(self, kind: str) -> str:
        return f"{kind}-{len(self.decided) + 1}"

    def _group(self, name: str) -> JobGroup:
        try:
            return self._groups[name]
        except KeyError:
            raise EnsembleError(
                f"no job group {name!r}",
                hint=f"pass it to FakeFiring: groups=[{name!r}]",
                code="no-such-group",
            ) from None


class FakeExecutor(Executor):
    """An executor whose jobs the test controls.

    A submitted job waits until the test calls :meth:`start`, :meth:`finish`, :meth:`reject`,
    :meth:`cancel` or :meth:`cancel_from_outside`. With ``instant``, every job succeeds immediately.

    - ``submitted``: the submitted jobs
    - ``cancelled``: the ids of the cancelled jobs
    - ``signalled``: pairs of a job and the signal that it got
    - ``resized``: the resize requests
    - ``events``: all events, even before :meth:`open`
    - ``refuse``: an error that the next ``submit`` raises

    >>> executor = FakeExecutor()
    >>> executor.submit([Job(id="sim.0", group="sim", index=0, command=("true",))])
    >>> executor.finish("sim.0", status=0)
    >>> [event.name for event in executor.events]
    ['submit', 'depend', 'priority', 'alloc', 'start', 'finish', 'release', 'free', 'clean']
    """

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "resize", "signal", "reattach"}
    )

    def __init__(self, *, nodes: int = 1, max_nodes: int = 8, instant: bool = False) -> None:
        self.nodes = nodes
        self.max_nodes = max_nodes
        self.instant = instant
        self.submitted: list[Job] = []
        self.cancelled: list[str] = []
        self.resized: list[tuple[str, int]] = []
        self.signalled: list[tuple[str, str]] = []
        self.events: list[Event] = []
        self._answers: dict[str, tuple[Literal["granted", "denied"], str]] = {}
        self.refuse: ExecutorError | None = None
        self.closed = False
        self.run: Run | None = None
        self._emit: Emit | None = None
        self._clock: Callable[[], float] = lambda: float(len(self.events))
        self._states: dict[str, Literal["waiting", "running", "suspended", "over"]] = {}

    def open(self, run: Run, emit: Emit) -> None:
        self.run, self._emit, self._clock = run, emit, run.clock

    def submit(self, jobs: Sequence[Job]) -> None:
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        twice = [job.id for job in jobs if job.id in self._states]
        if twice or len({job.id for job in jobs}) < len(jobs):
            raise AssertionError(f"submitted twice: {twice or [job.id for job in jobs]}")
        for job in jobs:
            self._states[job.id] = "waiting"
            self._send_event(job.id, "submit", queue_id=f"fake-{len(self._states)}")
            self._send_event(job.id, "depend")
            self._send_event(job.id, "priority", priority=job.urgency)
        self.submitted += jobs  # last: a waiting test may continue the jobs' lives
        if self.instant:
            for job in jobs:
                self.finish(job.id)

    def cancel(self, jobs: Sequence[str]) -> None:
        self.cancelled += jobs
        for job in jobs:
            if self._states.get(job, "over") != "over":
                self._cancel(job, note="")

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        running = [job for job in jobs if self._states.get(job) in ("running", "suspended")]
        self.signalled += [(job, signal) for job in running]

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        self.resized.append((request, delta))
        if request not in self._answers:
            size = self.nodes + delta
            granted = 1 <= size <= self.max_nodes
            if granted:
                self.nodes = size
            reason = "" if granted else f"{size} is not within 1 to {self.max_nodes}"
            self._answers[request] = ("granted" if granted else "denied", reason)
        outcome, reason = self._answers[request]
        self._send(ResizeOutcome(self._clock(), request, outcome, size=self.nodes, reason=reason))

    def resources(self) -> Mapping[str, float]:
        running = sum(state == "running" for state in self._states.values())
        return {"nodes.up": self.nodes, "nodes.free": max(0, self.nodes - running)}

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return {job: job in self._states for job in jobs}

    def close(self) -> None:
        self.closed = True

    def start(self, job: str, **context: Any) -> None:
        """Allocate the job's resources and start it."""
        if self._state(job) != "waiting":
            raise AssertionError(f"{job} cannot start: it is {self._states[job]}")
        self._states[job] = "running"
        self._send_event(job, "alloc")
        self._send_event(job, "start", **context)

    def finish(self, job: str, status: int = 0) -> None:
        """End the job with this wait status (``256`` is exit code 1). Start it first if
        necessary.
        """
        if self._state(job) == "waiting":
            self.start(job)
        if self._state(job) not in ("running", "suspended"):
            raise AssertionError(f"{job} cannot finish: it is over")
        self._send_event(job, "finish", status=status)
        self._end(job, ran=True)

    def suspend(self, job: str) -> None:
        """Suspend a running job."""
        self._interrupt(job, "suspend", "running", "suspended")

    def unsuspend(self, job: str) -> None:
        """Let a suspended job run again."""
        self._interrupt(job, "unsuspend", "suspended", "running")

    def requeue(self, job: str) -> None:
        """Take a running job's resources; it waits again until :meth:`start`."""
        self._interrupt(job, "requeue", "running", "waiting")

    def _interrupt(
        self,
        job: str,
        event: str,
        before: str,
        after: Literal["waiting", "running", "suspended"],
    ) -> None:
        if self._state(job) != before:
            raise AssertionError(f"{event} of {job} is impossible: it is {self._states[job]}")
        self._states[job] = after
        self._send_event(job, event)

    def cancel_from_outside(self, job: str, by: str = "") -> None:
        """Cancel the job in the queue, as another client of the queue does.

        The argument ``by`` is the user, if the queue knows it.
        """
        if self._state(job) == "over":
            raise AssertionError(f"{job} cannot be cancelled: it is over")
        self._cancel(job, note="not by this run", **({"by": by} if by else {}))

    def _cancel(self, job: str, **context: str) -> None:
        ran = self._states[job] in ("running", "suspended")
        self._send_event(job, "exception", type="cancel", severity=0, **context)
        if ran:
            self._send_event(job, "finish", status=15)
        self._end(job, ran=ran)

    def reject(self, job: str, note: str = "rejected") -> None:
        """End the job before it starts, because the queue cannot run it."""
        if self._state(job) != "waiting":
            raise AssertionError(f"{job} cannot be rejected: it is {self._states[job]}")
        self._send_event(job, "exception", type="exec", severity=0, note=note)
        self._end(job, ran=False)

    def lose(self, reason: str = "the queue is gone") -> None:
        """Lose the queue: its jobs emit no more events."""
        for job in self._states:
            self._states[job] = "over"
        self._send(ExecutorLost(self._clock(), "fake", reason))

    @property
    def folder(self) -> Path | None:
        """Return the run's folder, ``None`` before the executor was opened."""
        return None if self.run is None else self.run.folder

    def _state(self, job: str) -> str:
        if job not in self._states:
            raise AssertionError(f"{job} was never submitted; submitted: {list(self._states)}")
        return self._states[job]

    def _end(self, job: str, *, ran: bool) -> None:
        self._states[job] = "over"
        if ran:
            self._send_event(job, "release")
            self._send_event(job, "free")
        self._send_event(job, "clean")

    def _send_event(self, job: str, name: str, **context: Any) -> None:
        self._send(JobEvent(self._clock(), job, name, context))

    def _send(self, event: Event) -> None:
        if self.closed:
            raise AssertionError(f"the executor is closed and must not emit {event}")
        self.events.append(event)
        if self._emit is not None:
            self._emit([event])
