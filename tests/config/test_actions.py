"""Decisions of the built-in actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ensemble_core.builtin.actions import ensemble_actions

ACTIONS = {record.name: record for record in ensemble_actions()}


class Firing:
    """Firing that records the requests of a plan."""

    def __init__(self, job: str | None = "a.0", fields: Mapping[str, Any] | None = None) -> None:
        self.job = job
        self.fields = fields or {}

    def active(self, group: str | None = None) -> list[str]:
        return [f"{group}.1", f"{group}.2"] if group != "idle" else []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: (name, *args, *kwargs.items())


@pytest.mark.parametrize(
    ("name", "options", "decided"),
    [
        ("submit", {"label": "a"}, [("submit", "a", None)]),
        ("submit", {"label": "a", "with": {"count": 2}}, [("submit", "a", {"count": 2})]),
        ("cancel", {"label": "b"}, [("cancel", ["b.1", "b.2"])]),
        ("cancel", {"label": "idle"}, []),
        ("cancel", {}, [("cancel", ["a.0"])]),
        ("terminate", {}, [("terminate", 0, ("cancel", True))]),
        ("terminate", {"exit_code": 3, "cancel": False}, [("terminate", 3, ("cancel", False))]),
        ("custom", {"label": "f"}, [("call", "f")]),
        ("grow", {}, [("resize", 1)]),
        ("grow", {"value": "3"}, [("resize", 3)]),
        ("shrink", {"value": 2}, [("resize", -2, ("when_busy", "wait"))]),
        ("shrink", {"when_busy": "force"}, [("resize", -1, ("when_busy", "force"))]),
        ("set", {"label": "a", "with": {"nodes": 2}}, [("set_group", "a", {"nodes": 2})]),
        ("enable", {"rules": "x"}, [("enable", ["x"])]),
        ("disable", {"rules": ["x", "y"]}, [("disable", ["x", "y"])]),
        ("log", {"message": "no {job} {{job}}"}, [("log", "no a.7 {job}", "info")]),
    ],
)
def test_action_returns_the_expected_decisions(
    name: str, options: dict[str, Any], decided: list[Any]
) -> None:
    plan = ACTIONS[name].plan
    assert plan is not None

    firing: Any = Firing(fields={"job": "a.7"})

    assert list(plan(firing, options)) == decided


def test_cancel_without_a_job_logs_a_warning() -> None:
    plan = ACTIONS["cancel"].plan
    assert plan is not None
    firing: Any = Firing(job=None)

    decided: Any = list(plan(firing, {}))
    ((what, message, level),) = decided

    assert (what, level) == ("log", "warning")
    assert "nothing to cancel" in message
