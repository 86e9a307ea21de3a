"""A run driven event by event, for tests of rules and actions: an engine without a queue or clock.

The test starts, ends or cancels jobs; the engine's invariants are checked after each event.

>>> story = Story('''
... jobs: [{name: echo, command: echo hello, count: 2}]
... rules: [{trigger: start, action: {name: submit, label: echo}}]
... ''')
>>> [decision.type for decision in story.start()]
['fired', 'submit']
>>> story.play("echo.0", duration=3)
[]
>>> story.metric("count.echo.success")
1
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ensemble_core.cli.toolkit import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.state_validation import validate
from ensemble_core.model.decisions import (
    Cancel,
    Decision,
    Fired,
    Log,
    Signal,
    Submit,
    Switch,
    Terminate,
)
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, JobEvent, Observed, Resumed, Started, TimerElapsed
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry

#: Events of a job before it runs and after it has finished.
ARRIVAL = ("submit", "validate", "depend", "priority")
BEGIN = ("alloc", "start")
CLEARING = ("release", "free", "clean")
#: Up to so many jobs, the whole state is checked after each event. With more, it is checked less
#: often, because a check takes as long as there are jobs.
CHECKED_EACH_TIME = 20


@cache
def _registry() -> Registry:
    return discover()


class Story:
    """A run, driven event by event.

    - ``source``: the text of an ensemble file, or a checked ensemble
    - ``now``: the time in seconds, which the methods advance
    - ``decisions``: all decisions so far
    """

    def __init__(self, source: str | Ensemble, *, now: float = 1000.0) -> None:
        if isinstance(source, str):
            source = load_text(source, _registry()).begun("story", "/story")
        self.ensemble = source
        self.engine = Engine(self.ensemble)
        self.now = now
        self.decisions: list[Decision] = []
        self.events: list[Event] = []
        self._terminated = False
        self._fired: dict[tuple[str, object], int] = {}
        self._unchecked = 0  # events since the last check of the whole state

    # -- events --------------------------------------------------------------------------------

    def tell(self, event: Event) -> list[Decision]:
        """Pass an event to the engine and check the invariants."""
        self.events.append(event)
        self.now = max(self.now, event.timestamp)
        state = self.engine.state
        taken_back = state.resumable_end is not None or state.stop is not None
        if isinstance(event, Resumed) and (taken_back or event.reopened):
            self._terminated = False  # a resume revokes this end
        decisions = self.engine.handle(event)
        self.decisions += decisions
        self._check(decisions)
        self._unchecked += 1
        if self._unchecked * CHECKED_EACH_TIME >= len(state.table.records):
            self._unchecked = 0
            validate(state)
        return decisions

    def start(self, resources: Mapping[str, float] | None = None) -> list[Decision]:
        """Start the run."""
        return self.tell(Started(self.now, dict(resources or {})))

    def job(
        self, job: str, *names: str, after: float = 0.0, ours: bool = True, **context: Any
    ) -> list[Decision]:
        """Emit events of a job after ``after`` seconds, each with this context."""
        self.now += after
        decided: list[Decision] = []
        for name in names:
            decided += self.tell(JobEvent(self.now, job, name, context, ours))
        return decided

    def begin(self, job: str, *, pending: float = 0.0) -> list[Decision]:
        """Submit a job to the queue, and start it ``pending`` seconds later."""
        return self.job(job, *ARRIVAL) + self.job(job, *BEGIN, after=pending)

    def suspend(self, job: str, *, after: float = 0.0) -> list[Decision]:
        """Suspend a running job ``after`` seconds."""
        return self.job(job, "suspend", after=after)

    def unsuspend(self, job: str, *, after: float = 0.0) -> list[Decision]:
        """Let a suspended job run again ``after`` seconds."""
        return self.job(job, "unsuspend", after=after)

    def requeue(
        self, job: str, *, after: float = 0.0, pending: float | None = None
    ) -> list[Decision]:
        """Put a started job back into the queue ``after`` seconds.

        With ``pending``, start it again so many seconds later.
        """
        decided = self.job(job, "requeue", after=after)
        return decided if pending is None else decided + self.job(job, *BEGIN, after=pending)

    def end(self, job: str, *, status: int = 0, duration: float = 1.0) -> list[Decision]:
        """End a running job with this wait status, ``duration`` seconds later."""
        decided = self.job(job, "finish", after=duration, status=status)
        return decided + self.job(job, *CLEARING)

    def play(
        self, job: str, *, status: int = 0, duration: float = 1.0, pending: float = 0.0
    ) -> list[Decision]:
        """Run a job's whole life."""
        return self.begin(job, pending=pending) + self.end(job, status=status, duration=duration)

    def cancel(self, job: str, *, by: str = "") -> list[Decision]:
        """Cancel a job: immediately if it waits, by a signal if it runs.

        If the run has not asked for this, others have cancelled the job; ``by`` is their name.
        """
        more: dict[str, Any] = {"by": by} if by else {}
        decided = self.job(job, "exception", type="cancel", severity=0, note="", **more)
        record = self.engine.state.table.records[job]
        if record.started is not None:
            decided += self.job(job, "finish", status=15)
        return decided + self.job(job, *CLEARING)

    def observe(
        self,
        job: str,
        /,
        values: Mapping[str, float] | None = None,
        *,
        observer: str = "test",
        clock: float | None = None,
        **more: float,
    ) -> list[Decision]:
        """Make an observer read a row with these values."""
        return self.tell(Observed(self.now, job, observer, {**(values or {}), **more}, clock))

    def wait(self, seconds: float) -> list[Decision]:
        """Advance the time, and fire every timer that is due by then."""
        end, decided = self.now + seconds, []
        while (timer := self.engine.next_timer()) is not None and timer.when <= end:
            self.now = max(self.now, timer.when)
            decided += self.tell(TimerElapsed(self.now, timer.kind, timer.key))
        self.now = end
        return decided

    # -- state ---------------------------------------------------------------------------------

    def metric(self, path: str) -> float | None:
        """Return a metric's current value."""
        return self.engine.state.metric(path)

    def submitted(self, decisions: Sequence[Decision] | None = None) -> list[str]:
        """Return the ids of the jobs that these decisions (or all so far) submit."""
        source = self.decisions if decisions is None else decisions
        return [job.id for one in source if isinstance(one, Submit) for job in one.jobs]

    def fired(self, decisions: Sequence[Decision] | None = None) -> list[str]:
        """Return the rules that fired in these decisions (or in all so far)."""
        source = self.decisions if decisions is None else decisions
        return [one.rule or "" for one in source if isinstance(one, Fired)]

    def messages(self, level: str | None = None) -> list[str]:
        """Return the messages logged so far, of all levels or of this one."""
        logs = [one for one in self.decisions if isinstance(one, Log)]
        return [one.message for one in logs if level in (None, one.level)]

    @property
    def exit_code(self) -> int | None:
        """Return the run's exit code; ``None`` while it is active."""
        return self.engine.state.ended.exit_code if self.engine.state.ended else None

    # -- the laws ------------------------------------------------------------------------------

    def _count_firing(self, decision: Fired) -> None:
        rule = self.engine.state.rules.states[decision.rule or ""].rule
        of: object = None
        if rule.each is not None:
            index = re.sub(r"-[0-9]+$", "", decision.job or "")  # all attempts of the job
            of = tuple(decision.each.items()) or index
        key = rule.id, of
        self._fired[key] = self._fired.get(key, 0) + 1
        assert self._fired[key] <= rule.repetitions, f"{key} fired {self._fired[key]} times"

    def _check(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            late = isinstance(decision, (Submit, Fired)) and self._terminated
            if late and isinstance(decision, Fired):
                rule = self.engine.state.rules.states[decision.rule or ""].rule
                late = "end" not in rule.trigger.events
            assert not late, f"decided after terminate: {decision}"
            if isinstance(decision, Terminate):
                self._terminated = True
            if isinstance(decision, Switch) and decision.reset:
                members = map(self.engine.state.rules.members, decision.on)
                anew = {each.rule.id for some in members for each in some}
                for key in [key for key in self._fired if key[0] in anew]:
                    del self._fired[key]
            if isinstance(decision, Fired):
                self._count_firing(decision)
            if isinstance(decision, Signal):
                records = self.engine.state.table.records
                assert decision.jobs, decision
                assert all(records[job].runs for job in decision.jobs), decision
            if isinstance(decision, Cancel):
                assert all(job in self.engine.state.table.records for job in decision.jobs)
        for group in self.engine.report().groups:
            over = group.success + group.failed + group.cancelled
            in_queue = group.waiting + group.running + group.suspended
            assert group.submitted == over + in_queue, group
            assert min(group.running, group.waiting, group.suspended) >= 0, group
            state = self.engine.state
            coming = [
                each for each in state.attempts.values() if each.record.job.group == group.name
            ]
            active = len(state.active(group.name)) - len(coming)
            counts = {
                counter: state.metrics.count(group.name, counter)
                for counter in ("open", "done", "lost", "active")
            }
            assert counts["open"] + counts["done"] + counts["lost"] <= group.submitted, counts
            assert counts["open"] >= 0, counts
            assert counts["active"] == active, (counts, active)
            assert in_queue == active, (group, active)
