"""Contract suite for triggers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ensemble_core.errors import EnsembleError
from ensemble_core.model.events import (
    CallFailed,
    Event,
    JobEvent,
    Observed,
    PluginEvent,
    ResizeOutcome,
    Started,
    TimerElapsed,
)
from ensemble_core.model.rules import Trigger
from ensemble_core.plugin.hookspecs import TriggerPlugin
from ensemble_core.plugin.record_validation import CORE_EVENTS, probable_event
from ensemble_testing.plugin_record import RecordContract

_EVENTS: tuple[Event, ...] = (
    Started(0.0),
    JobEvent(1.0, "sim.0", "submit"),
    JobEvent(2.0, "sim.0", "finish", {"status": 0}),
    JobEvent(3.0, "f123", "exception", {"type": "exec", "severity": 0}, ours=False),
    Observed(4.0, "sim.0", "json-lines", {"energy": -1.5}),
    TimerElapsed(5.0, "heartbeat"),
    ResizeOutcome(6.0, "r1", "denied", reason="no"),
    CallFailed(7.0, "c1", "ValueError: no"),
    PluginEvent(8.0, "nightly", {"hour": 3}),
)


class TriggerContract(RecordContract):
    """Tests of a trigger plugin. Subclass it in your own tests::

        class TestNightly(TriggerContract):
            plugin = nightly                 # your TriggerPlugin
            options = {"hour": 3}
            matching = [PluginEvent(8.0, "nightly", {"hour": 3})]
            rejected = [PluginEvent(9.0, "nightly", {"hour": 4})]

    - ``name``: value of the key ``name`` beside ``trigger:`` (mostly a job group), if needed
    - ``matching``: events that ``match`` must accept
    - ``rejected``: events that ``match`` must reject

    Each entry of these two lists is an event, or a pair of an event and its fields.
    """

    plugin: ClassVar[TriggerPlugin]
    name: ClassVar[str | None] = None
    matching: ClassVar[Sequence[Event | tuple[Event, Mapping[str, Any]]]] = ()
    rejected: ClassVar[Sequence[Event | tuple[Event, Mapping[str, Any]]]] = ()

    def _build(self) -> Trigger:
        return self.plugin.build(self.name, self.options)

    @staticmethod
    def _fields(
        item: Event | tuple[Event, Mapping[str, Any]],
    ) -> tuple[Event, Mapping[str, Any]]:
        if isinstance(item, tuple):
            return item
        if isinstance(item, PluginEvent):
            return item, {**item.data, "name": item.name}
        if isinstance(item, JobEvent):
            return item, {**item.context, "name": item.name, "job": item.job}
        if isinstance(item, Observed):
            return item, {**item.values, "job": item.job, "observer": item.observer}
        return item, {}

    def test_builds_a_trigger(self) -> None:
        trigger = self._build()
        assert isinstance(trigger, Trigger)
        events: object = trigger.events
        ways = [bool(trigger.events), trigger.metric is not None, trigger.every is not None]
        assert sum(ways) == 1, "a trigger needs exactly one of 'events', 'metric' and 'every'"
        assert trigger.every is None or trigger.every > 0
        assert isinstance(events, tuple)
        for name in events:
            assert isinstance(name, str)
            assert name

    def test_events_that_it_waits_for_exist(self) -> None:
        own = {self.plugin.name}
        for item in self.matching:
            event = item[0] if isinstance(item, tuple) else item
            if isinstance(event, PluginEvent):
                own.add(event.name)
        for name in self._build().events:
            meant = probable_event(name)
            assert name in CORE_EVENTS or name in own, (
                f"no event has the name {name!r}, so the rule would never trigger: "
                + (f"did you mean {meant!r}? " if meant else "")
                + "A plugin's event has the trigger's name, or is listed in `matching`"
            )

    def test_name_is_used_as_declared(self) -> None:
        trigger = self._build()
        if self.name is not None and self.plugin.name_means in ("group", "groups"):
            assert trigger.group == self.name, "the rule would see every group's jobs"
        if self.name is not None and self.plugin.name_means == "metric":
            assert trigger.metric == self.name

    def test_same_options_give_the_same_trigger(self) -> None:
        first, second = self._build(), self._build()
        assert (first.events, first.group, first.metric, first.every) == (
            second.events,
            second.group,
            second.metric,
            second.every,
        )

    def test_needed_variables_are_names(self) -> None:
        if self.plugin.needs_variables is None:
            return
        names = self.plugin.needs_variables(self.options)
        assert not isinstance(names, str), f"{names!r}, expected a set of names"
        assert all(isinstance(name, str) for name in names)

    def test_build_does_not_change_options(self) -> None:
        options = copy.deepcopy(dict(self.options))
        self.plugin.build(self.name, options)
        assert options == dict(self.options)

    def test_match_accepts_matching_events(self) -> None:
        for item in self.matching:
            assert self._matches(self._build(), item), f"{item!r} should trigger it"

    def test_match_rejects_other_events(self) -> None:
        for item in self.rejected:
            assert not self._matches(self._build(), item), f"{item!r} should not trigger it"

    def test_match_is_pure(self) -> None:
        trigger = self._build()
        events = [*_EVENTS, *self.matching, *self.rejected]
        first = [self._matches(trigger, item) for item in events]
        again = [self._matches(trigger, item) for item in reversed(events)]
        assert first == again[::-1], "the result of match depends on earlier calls"

    def _matches(self, trigger: Trigger, item: Event | tuple[Event, Mapping[str, Any]]) -> bool:
        if trigger.match is None:
            return True
        event, fields = self._fields(item)
        given = copy.deepcopy(dict(fields))
        try:
            answer = trigger.match(event, given)
        except EnsembleError:
            raise
        except Exception as error:
            raise AssertionError(f"match() raised {error!r} for {event!r}") from error
        assert isinstance(answer, bool), f"match returned {answer!r}, expected true or false"
        assert given == dict(fields), "match changed the fields it was given"
        return answer
