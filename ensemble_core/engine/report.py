"""Report on a run, for people: its groups, its rules, and why a rule never fired.

Made by the engine on request; read by the console and whoever shows a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ensemble_core.model.codec import NOTHING, Record

__all__ = ["GroupReport", "InstanceReport", "Progress", "Report", "RuleReport", "Standing"]

#: Why a rule did not fire, or that it did.
Standing = Literal["fired", "never woken", "condition false", "disabled", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupReport(Record):
    """One job group: how many jobs are where, and mean times in seconds (``None``: no sample).

    ``submitted`` is the sum of ``waiting``, ``running``, ``success``, ``failed`` and
    ``cancelled``; ``failed`` that of ``causes``, by why the jobs ended. For ``reused`` of those in
    ``success`` jobs of earlier runs stand in.
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
    """One instance under ``use:``: whether its ``rules`` may fire, how often they ``fired`` all
    together, and when it was switched (seconds since the epoch, and whether on), the last times.
    ``first`` says whether it was on when the run began."""

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
    """One rule: how often it was looked at and fired, and how often its trigger refused an event.

    ``last_value`` is the last value of its metric, ``last_seen`` what an event's condition last
    saw. ``passed_over`` counts looks at exhausted instances (``each``). ``state`` says why
    it did not fire, or ``fired``; ``cut`` why it was switched off for good, if it was. ``instance``
    is the one of ``use:`` that it belongs to.
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
    """How far a run has come: ``done`` of ``planned`` jobs are over, each with its retries. Where
    ``open`` is true, rules may add more: how many is not known, nor the time ``to_go`` (seconds).

    ``used``, ``committed`` and ``limits`` are of jobs, core-hours, node-hours and GPU-hours, by
    these names (``core_hours``), as far as they are known; ``held`` are the jobs that a limit, or
    ``at_once``, holds; ``reached`` are limits of the file that took effect so far, by name, and
    ``holding`` those that hold jobs now.
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
    """How a run stands. ``events`` counts what the engine was told; ``firings`` what it did;
    ``warnings`` are what went wrong beside the jobs: an observer that understood nothing."""

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
