"""Events with a fast ``__init__`` behave like all other events."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from ensemble_core.model.events import Event, JobEvent, Resources

MADE = [
    JobEvent(1.0, "g.0", "start"),
    JobEvent(timestamp=1.0, job="g.0", name="start", context={"a": 1}, ours=False),
    Resources(2.0, {"nodes.up": 1.0}),
]


@pytest.mark.parametrize("event", MADE)
def test_a_quickly_made_event_is_immutable(event: Event) -> None:
    for each in fields(event):
        with pytest.raises(FrozenInstanceError):
            setattr(event, each.name, 0)
        with pytest.raises(FrozenInstanceError):
            delattr(event, each.name)
    assert not hasattr(event, "__dict__")


@pytest.mark.parametrize("event", MADE)
def test_a_quickly_made_event_has_its_class_and_all_fields(event: Event) -> None:
    assert type(event) in (JobEvent, Resources)
    for again in (copy.copy(event), replace(event)):
        assert type(again) is type(event)
        assert again.to_dict() == event.to_dict()


def test_defaults_are_those_of_the_class() -> None:
    event = JobEvent(1.0, "g.0", "start")
    assert (event.context, event.ours) == ({}, True)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        JobEvent(1.0, "g.0")  # type: ignore[call-arg]
