"""One firing of a rule: the object that the method ``plan`` of an action receives.

``plan`` creates decisions with the methods of this object, and yields them. A decision takes effect
when it is yielded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ensemble_core.engine import added_sweep_values
from ensemble_core.engine.backlog import Order, take_next
from ensemble_core.engine.done_jobs import keep_for_functions
from ensemble_core.engine.firing_records import Origin
from ensemble_core.engine.instance_switch import switch_changes, waiting_of
from ensemble_core.engine.name_values import JobFields, job_field
from ensemble_core.engine.row_submission import of_rows, rows_of
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import expand, source_of
from ensemble_core.engine.vary_action import expand_variation
from ensemble_core.errors import EnsembleError, kind_of, written_at
from ensemble_core.model.decisions import (
    Avoid,
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Log,
    Notify,
    Resize,
    Retry,
    SetGenerator,
    SetGroup,
    Signal,
    Submit,
    Switch,
    Terminate,
    WhenBusy,
)
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.placeholders import metric_path
from ensemble_core.model.rules import Action, BoundAction, BoundSpec


class PlainDecisions:
    """The methods of a firing whose decisions follow from their arguments alone."""

    job: str | None

    def _decide(self, kind: type[Decision], /, **fields: Any) -> Decision:
        """Return a decision of this firing."""
        raise NotImplementedError

    def _new_id(self, kind: str) -> str:
        raise NotImplementedError

    def resize(self, delta: int, *, when_busy: WhenBusy = "wait") -> Decision:
        request = self._new_id("resize")
        return self._decide(Resize, request=request, delta=delta, when_busy=when_busy)

    def set_group(self, group: str, fields: Mapping[str, Any]) -> Decision:
        return self._decide(SetGroup, group=group, fields=dict(fields))

    def steer(
        self,
        generator: str,
        *,
        pause: bool | None = None,
        count: int = 0,
        learns: Sequence[str] = (),
    ) -> Decision:
        known = tuple(learns)
        return self._decide(
            SetGenerator, generator=generator, pause=pause, count=count, learns=known
        )

    def enable(self, rules: Sequence[str]) -> Decision:
        return self._decide(EnableRule, rules=tuple(rules))

    def disable(self, rules: Sequence[str]) -> Decision:
        return self._decide(DisableRule, rules=tuple(rules))

    def log(self, message: str, level: Literal["info", "warning", "error"] = "info") -> Decision:
        return self._decide(Log, message=message, level=level)

    def notify(self, message: str, to: Sequence[str]) -> Decision:
        notice = self._new_id("notice")
        return self._decide(Notify, notice=notice, message=message, to=tuple(to), job=self.job)


class EngineFiring(PlainDecisions):
    """Implementation of :class:`ensemble_core.model.rules.Firing`."""

    def __init__(self, state: State, origin: Origin, *, tolerated: bool = False) -> None:
        self._state = state
        #: True if the failure of a call is only a warning (``on_error: warn``).
        self._tolerated = tolerated
        #: The name of the action that is being performed.
        self._action: str | None = None
        self.origin = origin
        self.rule = origin.rule
        self.event = origin.match.event
        self.job = origin.job
        record = origin.match.record
        self.job_spec = None if record is None else record.job
        self.fields: Mapping[str, Any] = (
            origin.fields if record is None else JobFields(origin.fields, record)
        )
        self.metric = state.metric

    def _decide(self, kind: type[Decision], /, **fields: Any) -> Decision:
        return kind(**self.origin.decision_fields, **fields)

    def _new_id(self, kind: str) -> str:
        return self._state.new_id(kind)

    @property
    def groups(self) -> Sequence[str]:
        return tuple(self._state.table.groups)

    def group(self, name: str) -> JobGroup | None:
        state = self._state.table.groups.get(name)
        return None if state is None else state.group

    def active(self, group: str | None = None) -> Sequence[str]:
        return self._state.active(group, self.origin.match.scope)

    def submit(self, group: str, overrides: Mapping[str, Any] | None = None) -> Decision:
        source = source_of(self._state, group, overrides or {})
        action = None if source.asked else self._action
        added_sweep_values.note(self._state, self.origin, action, group, overrides or {})
        if not source.asked:
            # This reserves the indices of the jobs before the decision is yielded.
            return Submit(
                **self.origin.decision_fields, group=group, jobs=expand(self._state, source)
            )
        table = self._state.table
        keep_for_functions(table.done, table.groups[group], table.metrics)
        pending = sum(
            each.decision.kind == "parameters" and each.decision.options["group"] == group
            for each in self._state.calls.values()
        )
        options = {
            "group": group,
            "index": self._state.table.groups[group].next_index + pending,
            "functions": source.asked,
            "with": dict(overrides or {}),
        }
        names = ", ".join(dict.fromkeys(source.asked.values()))
        return self.call_off_thread("parameters", names, options)

    def submit_given(
        self, group: str, overrides: Mapping[str, Any], given: Mapping[str, Sequence[object]]
    ) -> Decision:
        """Submit a group with parameter values that functions have returned."""
        none = [name for name, values in given.items() if not values]
        if none:
            return self.log(f"no value for {none[0]}: no jobs of {group} submitted")
        source = source_of(self._state, group, overrides).with_values(given)
        return Submit(**self.origin.decision_fields, group=group, jobs=expand(self._state, source))

    def retry(
        self, fields: Mapping[str, Any] | None = None, *, wait: float = 0.0, resume: bool = False
    ) -> Decision:
        job = self.job
        if job is None:
            raise EnsembleError("'retry' needs an event of a job", code="no-job")
        changed = dict(fields or {})
        return Retry(
            **self.origin.decision_fields, job=job, fields=changed, wait=wait, resume=resume
        )

    def vary(
        self,
        parameters: Mapping[str, Any],
        *,
        label: str | None = None,
        fields: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> Iterable[Decision]:
        found = expand_variation(self._state, self.origin, parameters, label, fields or {}, again)
        group, jobs, passed_over = found
        if passed_over:
            what = f"{passed_over} of {passed_over + len(jobs)} combinations"
            yield self.log(f"{what} of {group.name} were submitted before: not repeated")
        if jobs:
            self._state.sources[jobs[0].id] = [group] * len(jobs)
            yield Submit(**self.origin.decision_fields, group=group.name, jobs=tuple(jobs))

    def submit_next(
        self,
        groups: Sequence[str],
        count: int = 1,
        *,
        order: Order = "given",
        seed: int = 0,
    ) -> Iterable[Decision]:
        taken: dict[str, list[tuple[JobGroup, Job]]] = {}
        for entry, job in take_next(self._state, groups, count, order, seed):
            taken.setdefault(job.group, []).append((entry, job))
        for name, each in taken.items():
            jobs = tuple(job for _, job in each)
            self._state.sources[jobs[0].id] = [entry for entry, _ in each]
            yield Submit(**self.origin.decision_fields, group=name, jobs=jobs)

    def submit_rows(
        self,
        group: str,
        rows: str,
        fields: Mapping[str, Any] | None = None,
        *,
        again: bool = False,
    ) -> Iterable[Decision]:
        state = self._state
        found = rows_of(state, self.origin, rows)
        if not found:
            table = state.ensemble.tables.get(rows)
            what = "the event's job printed no rows" if rows == "job" else f"{rows} has no rows"
            if table is not None and table.percent is not None:
                what += f" (top: {table.percent:g}%, rounded down)"
            yield self.log(f"{what}: no jobs of {group} submitted")
        jobs, sources, passed_over = of_rows(state, self.origin, group, found, fields or {}, again)
        if passed_over:
            what = f"{passed_over} of {passed_over + len(jobs)} combinations"
            yield self.log(f"{what} of {group} were submitted before: not repeated")
        if jobs:
            state.sources[jobs[0].id] = sources
            yield Submit(**self.origin.decision_fields, group=group, jobs=tuple(jobs))

    def cancel(self, jobs: Sequence[str]) -> Decision:
        state = self._state
        known = tuple(job for job in jobs if job in state.table.records or job in state.attempts)
        return Cancel(**self.origin.decision_fields, jobs=known)

    def signal(self, jobs: Sequence[str], signal: str) -> Iterable[Decision]:
        records = self._state.table.records
        chosen = tuple(job for job in jobs if job in records and records[job].runs)
        if chosen:
            request = self._state.new_id("signal")
            yield Signal(**self.origin.decision_fields, request=request, signal=signal, jobs=chosen)
        idle = [job for job in jobs if job not in chosen]
        if idle or not jobs:
            shown = ", ".join(idle[:3]) + (", …" if len(idle) > 3 else "") or "no job"
            verb = "runs" if not jobs else "does not run" if len(idle) == 1 else "do not run"
            level: Literal["info", "warning"] = "info" if chosen else "warning"
            yield self.log(f"{shown} {verb}: SIG{signal} not sent", level)

    def avoid(
        self, nodes: Sequence[str], *, most: int = 0, resubmit: bool = True
    ) -> Iterable[Decision]:
        avoided = self._state.bad_nodes.avoided
        new = tuple(name for name in dict.fromkeys(nodes) if name and name not in avoided)
        room = max(0, most - len(avoided)) if most else len(new)
        if new[room:]:
            yield self.log(
                f"{', '.join(new[room:])}: not avoided, because this run avoids {most} nodes at "
                f"most ('most'); do the jobs themselves fail?",
                "warning",
            )
        if new[:room]:
            known = self._state.table.groups.values()
            waiting = (each for group in known for each in group.waiting.values())
            jobs = tuple(each.job.id for each in waiting if resubmit and each.waits)
            yield Avoid(**self.origin.decision_fields, nodes=new[:room], jobs=jobs)

    def terminate(self, exit_code: int = 0, *, cancel: bool = True, reason: str = "") -> Decision:
        return Terminate(
            **self.origin.decision_fields,
            exit_code=exit_code,
            cancel=tuple(self._state.active()) if cancel else (),
            reason=reason or f"terminated by rule {self.rule}",
        )

    def switch(
        self,
        to: Sequence[str],
        away: Sequence[str] | None = None,
        *,
        keep: bool = False,
        reset: bool = False,
        cancel: bool = False,
    ) -> Iterable[Decision]:
        instances = {name: each.on for name, each in self._state.rules.instances.items()}
        generators = {name: not each.paused for name, each in self._state.generators.items()}
        for name in (*to, *(away or ())):
            if name not in instances and name not in generators:
                what = "instance or generator" if generators else "instance"
                raise EnsembleError(f"there is no {what} {name!r}", code="no-such-instance")
        on, off = switch_changes(instances, to, away)
        begin, pause = switch_changes(generators, to, away)
        if not (on or begin):
            return
        waiting = waiting_of(self._state, off, pause) if cancel else ()
        for name in pause:
            yield self.steer(name, pause=True)
        if on or off:
            yield Switch(**self.origin.decision_fields, off=off, on=on, keep=keep, reset=reset)
        for name in begin:
            yield self.steer(name, pause=False, learns=pause)
        if waiting:
            yield Cancel(**self.origin.decision_fields, jobs=waiting)

    def call(self, function: str) -> Decision:
        if function not in self._state.ensemble.functions:
            raise EnsembleError(f"there is no function {function!r}", code="no-such-function")
        return self.call_off_thread("custom", function, {})

    def act(
        self,
        spec: Mapping[str, Any] | Action | Sequence[Mapping[str, Any] | Action],
        fields: Mapping[str, Any] | None = None,
    ) -> Iterable[Decision]:
        for one in (spec,) if isinstance(spec, (Mapping, Action)) else spec:
            own = one.fields if isinstance(one, Action) else {}
            known = {**(fields or {}), **own}
            firing = EngineFiring(self._state, self.origin.with_fields(known)) if known else self
            if isinstance(one, BoundSpec):
                bound = one.bound  # it was checked together with the file
            else:
                plain = one.spec if isinstance(one, Action) else one
                bound = self._state.ensemble.binder.action(plain)
            yield from firing.perform(bound)

    def perform(self, action: BoundAction) -> Iterable[Decision]:
        """Yield the decisions of a checked action.

        For an action without a plan, this is a call outside the engine's thread.
        """
        metrics = {
            name: self.metric(metric_path(name))
            for name in action.metric_names
            if name not in self.fields
        }
        firing = self
        if metrics or action.tolerated != self._tolerated:
            origin = self.origin.with_fields(metrics) if metrics else self.origin
            firing = EngineFiring(self._state, origin, tolerated=action.tolerated)
        options = action.fill_messages(firing.fields) if action.messages else action.options
        if action.plan is None:
            return [firing.call_off_thread("action", action.name, options)]
        firing._action = action.name
        decisions: object = action.plan(firing, options)
        if isinstance(decisions, (str, Mapping)) or not isinstance(decisions, Iterable):
            raise EnsembleError(
                f"action {action.name}: its function 'plan' returned {kind_of(decisions)}, not "
                f"decisions ({written_at(action.plan)})",
                hint="return a list of decisions (an empty one for none), or yield each decision",
                code="bad-result",
            )
        return decisions

    def call_off_thread(
        self,
        kind: Literal["custom", "parameters", "action"],
        name: str,
        options: Mapping[str, Any],
    ) -> Decision:
        """Return the decision to call a function or an action's ``run``, outside this thread."""
        record, event = self.origin.match.record, self.event.to_dict()
        job = None
        if record is not None:
            job = {
                **self.fields,
                **self._state.table.described(record),
                **{name: job_field(record, name) for name in ("stdout", "stderr")},
            }
            # Some events, such as the return of a function, do not name the job.
            event.setdefault("job", record.job.id)
        return Call(
            **self.origin.decision_fields,
            call=self._state.new_id("call"),
            kind=kind,
            name=name,
            options=dict(options),
            event=event,
            job=job,
            tolerated=self._tolerated,
        )
