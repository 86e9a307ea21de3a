"""Records of a report on a run: its groups, its rules, its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

from ensemble_core.model.codec import NOTHING, Record
from ensemble_core.quick_dataclass import dataclass

#: Whether a rule fired, or the reason why it did not.
FiringState = Literal["fired", "never triggered", "condition false", "held back", "disabled", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport(Record):
    """A job group: how many jobs are in each state, and how long they waited and ran on average."""

    rare_fields: ClassVar[tuple[str, ...]] = ("suspended", "reused", "cancelled_by")
    name: str
    submitted: int = 0  # the sum of the next six
    waiting: int = 0
    running: int = 0
    suspended: int = 0
    success: int = 0
    failed: int = 0  # the sum of ``causes``
    cancelled: int = 0
    reused: int = 0  # jobs in ``success`` whose results come from an earlier run
    causes: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    #: Those jobs in ``cancelled`` whose cancel the run had not asked for, by canceller.
    cancelled_by: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    mean_duration: float | None = None  # seconds; ``None``: unknown
    mean_pending: float | None = None  # seconds; ``None``: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReport(Record):
    """An instance of an algorithm under ``use:``."""

    name: str
    algorithm: str = ""
    version: str = ""
    on: bool = True
    first: bool = True  # whether it was on when the run began
    rules: int = 0  # the number of its rules
    fired: int = 0  # the number of firings of its rules
    #: Recent switches: the time (seconds since the epoch), and whether it was switched on.
    switched: tuple[tuple[float, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReport(Record):
    """A rule: how often it was triggered, and how often it fired."""

    id: str
    label: str
    fired: int = 0
    repetitions: int = 1
    triggered: int = 0  # how often the rule was considered
    refused: int = 0  # how often the trigger's ``match`` rejected an event
    #: Matches of instances (``each``) that had already fired ``repetitions`` times.
    passed_over: int = 0
    #: How often each verdict of the engine, such as ``backoff``, kept the rule from firing. A false
    #: condition is not counted.
    held_back: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    #: At how many checks in a row the condition was true at most, and how many ``for`` needs. If
    #: ``for`` is a time (``lasts``): for how many seconds it was true at most.
    longest: float = 0
    checks: int = 1
    lasts: float = 0.0
    last_value: float | None = None  # of the rule's metric
    last_seen: str = ""  # values in the condition when it was last false
    when: str = ""
    enabled: bool = True
    instance: str | None = None  # the entry under ``use:`` to which the rule belongs
    state: FiringState = "never triggered"
    cut: str = ""  # why the rule was permanently switched off
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Record):
    """Progress of a run: how many jobs are done, and how much of its limits the run has used."""

    done: int = 0  # jobs, including retries
    planned: int = 0
    open: bool = False  # rules may add jobs: the total is unknown
    to_go: float | None = None  # seconds
    used: Mapping[str, float] = field(default_factory=lambda: NOTHING)  # by jobs so far
    #: What running and waiting jobs may still use.
    committed: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: Limits by name, such as ``jobs`` or ``core_hours``; ``used`` has the same names.
    limits: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    held: int = 0  # jobs
    reached: tuple[str, ...] = ()  # limits that have held jobs at any time
    holding: tuple[str, ...] = ()  # limits that hold jobs now


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Record):
    """Report on a run."""

    rare_fields: ClassVar[tuple[str, ...]] = ("warnings", "instances", "avoided")
    groups: tuple[GroupReport, ...] = ()
    rules: tuple[RuleReport, ...] = ()
    events: int = 0  # number of events
    firings: int = 0
    errors: int = 0
    unhandled_failures: int = 0
    warnings: tuple[str, ...] = ()  # problems other than failed jobs
    instances: tuple[InstanceReport, ...] = ()
    progress: Progress = field(default_factory=Progress)
    avoided: tuple[str, ...] = ()  # nodes that get no more jobs

    def to_dict(self) -> dict[str, Any]:
        return {**Record.to_dict(self), "progress": self.progress.to_dict()}
