"""Classes of a report on a run: its groups, its rules, and why a rule never fired.

The engine creates a report on request; the console and other displays read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ensemble_core.model.codec import NOTHING, Record

__all__ = ["GroupReport", "InstanceReport", "Progress", "Report", "RuleReport", "Standing"]

#: Whether a rule fired, or why not.
Standing = Literal["fired", "never woken", "condition false", "disabled", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupReport(Record):
    """One job group: the number of jobs per state, and mean times in seconds (``None``: unknown).

    ``submitted`` = ``waiting`` + ``running`` + ``success`` + ``failed`` + ``cancelled``; ``failed``
    is the sum of ``causes``. ``reused`` counts those jobs in ``success`` that are from earlier
    runs.
    """

    name: str
    submitted: int = 0
    waiting: int = 0
    running: int = 0
    success: int = 0
    failed: int = 0
    cancelled: int = 0
    reused: int = 0
    causes: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    mean_duration: float | None = None
    mean_pending: float | None = None

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if not self.reused:  # in most runs
            del data["reused"]
        return data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class InstanceReport(Record):
    """One instance under ``use:``: its ``rules``, how often they ``fired``, and recent switches.

    A switch is a time in seconds since the epoch, and true for on. ``first`` says whether the
    instance was on when the run began.
    """

    name: str
    algorithm: str = ""
    version: str = ""
    on: bool = True
    first: bool = True
    rules: int = 0
    fired: int = 0
    switched: tuple[tuple[float, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RuleReport(Record):
    """One rule: how often it was considered and fired, and how often its trigger rejected an event.

    ``last_value`` is the last value of the rule's metric; ``last_seen`` has the values in the
    rule's condition when it was last checked. ``passed_over`` counts matches of exhausted instances
    (``each``). ``state`` is ``fired``, or the reason why the rule never fired. ``cut`` is the
    reason why the rule was permanently switched off. ``instance`` is the entry under ``use:`` to
    which the rule belongs.
    """

    id: str
    label: str
    fired: int = 0
    repetitions: int = 1
    woken: int = 0
    refused: int = 0
    passed_over: int = 0
    last_value: float | None = None
    last_seen: str = ""
    when: str = ""
    enabled: bool = True
    instance: str | None = None
    state: Standing = "never woken"
    cut: str = ""
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Progress(Record):
    """Progress of a run: ``done`` of ``planned`` jobs, including retries.

    If ``open`` is true, rules may add more jobs, so the total and the remaining time ``to_go``
    (seconds) are unknown. ``used``, ``committed`` and ``limits`` have the numbers of jobs,
    core-hours, node-hours and GPU-hours that are known, by name (``core_hours``). ``held`` is the
    number of held jobs. ``reached`` lists the limits that took effect; ``holding`` lists the limits
    that hold jobs now.
    """

    done: int = 0
    planned: int = 0
    open: bool = False
    to_go: float | None = None
    used: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    committed: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    limits: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    held: int = 0
    reached: tuple[str, ...] = ()
    holding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Report(Record):
    """Report on a run. ``events`` and ``firings`` are counts. ``warnings`` lists problems other
    than failed jobs."""

    groups: tuple[GroupReport, ...] = ()
    rules: tuple[RuleReport, ...] = ()
    events: int = 0
    firings: int = 0
    errors: int = 0
    unhandled_failures: int = 0
    warnings: tuple[str, ...] = ()
    instances: tuple[InstanceReport, ...] = ()
    progress: Progress = field(default_factory=Progress)

    def to_dict(self) -> dict[str, Any]:
        data = {**Record.to_dict(self), "progress": self.progress.to_dict()}
        for key in ("warnings", "instances"):
            if not data[key]:
                del data[key]
        return data
