"""One firing of one rule: what an action's plan sees, and the decisions it may take.

A decision has its effect when the plan hands it on, not when it is made. Made by the engine; the
interface that actions know is ``rules.Firing``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core.errors import EnsembleError
from ensemble_core.model.decisions import (
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Log,
    Resize,
    SetGroup,
    Submit,
    Terminate,
    WhenBusy,
)
from ensemble_core.model.events import Event
from ensemble_core.model.rules import Action, BoundSpec

if TYPE_CHECKING:
    from ensemble_core.engine.job_table import JobRecord, Link
    from ensemble_core.engine.rule_index import RuleState
    from ensemble_core.engine.state import Effects
    from ensemble_core.model.jobs import Job, JobGroup

__all__ = ["EngineFiring"]


class EngineFiring:
    """See :class:`ensemble_core.model.rules.Firing`."""

    __slots__ = ("_engine", "_fields", "_record", "event", "link", "number", "state")

    def __init__(
        self,
        engine: Effects,
        state: RuleState,
        event: Event,
        record: JobRecord | None,
        fields: Mapping[str, Any],
        number: int,
        link: Link,
    ) -> None:
        self._engine = engine
        self.state = state
        self.event = event
        self._record = record
        self._fields = fields
        self.number = number
        self.link = link

    @property
    def rule(self) -> str:
        return self.state.rule.id

    @property
    def job(self) -> str | None:
        return None if self._record is None else self._record.job.id

    @property
    def job_spec(self) -> Job | None:
        return None if self._record is None else self._record.job

    @property
    def fields(self) -> Mapping[str, Any]:
        return self._fields

    @property
    def groups(self) -> Sequence[str]:
        return tuple(self._engine.groups)

    def group(self, name: str) -> JobGroup | None:
        return self._engine.group(name)

    def metric(self, path: str) -> float | None:
        return self._engine.metric(path)

    def active(self, group: str | None = None) -> Sequence[str]:
        return self._engine.active(group)

    def submit(self, group: str, overrides: Mapping[str, Any] | None = None) -> Decision:
        jobs = self._engine.expand(group, overrides or {})
        return Submit(rule=self.rule, firing=self.number, group=group, jobs=jobs)

    def cancel(self, jobs: Sequence[str]) -> Decision:
        known = tuple(job for job in jobs if self._engine.knows(job))
        return Cancel(rule=self.rule, firing=self.number, jobs=known)

    def terminate(self, exit_code: int = 0, *, cancel: bool = True, reason: str = "") -> Decision:
        return Terminate(
            rule=self.rule,
            firing=self.number,
            exit_code=exit_code,
            cancel=tuple(self._engine.active()) if cancel else (),
            reason=reason or f"terminated by rule {self.rule}",
        )

    def resize(self, delta: int, *, when_busy: WhenBusy = "wait") -> Decision:
        return Resize(
            rule=self.rule,
            firing=self.number,
            request=self._engine.new_id("resize"),
            delta=delta,
            when_busy=when_busy,
        )

    def set_group(self, group: str, fields: Mapping[str, Any]) -> Decision:
        return SetGroup(rule=self.rule, firing=self.number, group=group, fields=dict(fields))

    def enable(self, rules: Sequence[str]) -> Decision:
        return EnableRule(rule=self.rule, firing=self.number, rules=tuple(rules))

    def disable(self, rules: Sequence[str]) -> Decision:
        return DisableRule(rule=self.rule, firing=self.number, rules=tuple(rules))

    def log(self, message: str, level: Literal["info", "warning", "error"] = "info") -> Decision:
        return Log(rule=self.rule, firing=self.number, message=message, level=level)

    def call(self, function: str) -> Decision:
        if function not in self._engine.ensemble.functions:
            raise EnsembleError(f"there is no function {function!r}", code="no-such-function")
        return self.call_off_thread("custom", function, {})

    def knowing(self, fields: Mapping[str, Any]) -> EngineFiring:
        """The same firing, with these fields beside those of the event."""
        known = {**self._fields, **fields}
        return EngineFiring(
            self._engine, self.state, self.event, self._record, known, self.number, self.link
        )

    def act(
        self,
        spec: Mapping[str, Any] | Action | Sequence[Mapping[str, Any] | Action],
        fields: Mapping[str, Any] | None = None,
    ) -> Iterable[Decision]:
        for one in (spec,) if isinstance(spec, (Mapping, Action)) else spec:
            own = one.fields if isinstance(one, Action) else {}
            known = {**(fields or {}), **own}
            firing = self.knowing(known) if known else self
            if isinstance(one, BoundSpec):
                bound = one.bound  # checked when the file was
            else:
                plain = one.spec if isinstance(one, Action) else one
                bound = self._engine.ensemble.binder.action(plain)
            if bound.plan is None:
                yield firing.call_off_thread("action", bound.name, bound.options)
            else:
                yield from bound.plan(firing, bound.options)

    def call_off_thread(
        self, kind: Literal["custom", "action"], name: str, options: Mapping[str, Any]
    ) -> Decision:
        """A call of a function or a slow action, to be made off the engine's thread."""
        job = None
        if self._record is not None:
            job = {**self._fields, **self._engine.table.described(self._record)}
        return Call(
            rule=self.rule,
            firing=self.number,
            call=self._engine.new_id("call"),
            kind=kind,
            name=name,
            options=dict(options),
            event=self.event.to_dict(),
            job=job,
        )
