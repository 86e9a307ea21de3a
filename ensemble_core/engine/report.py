"""Report on a run: its groups and rules, and why a rule never fired.

The engine creates a :class:`Report` on request; displays read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ensemble_core.model.codec import NOTHING, Record

__all__ = ["GroupReport", "InstanceReport", "Progress", "Report", "RuleReport", "Standing"]

#: Whether a rule fired, or the reason why it did not.
Standing = Literal["fired", "never woken", "condition false", "disabled", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupReport(Record):
    """A job group: the number of jobs in each state, and mean times in seconds (``None``: unknown).

    ``submitted`` = ``waiting`` + ``running`` + ``success`` + ``failed`` + ``cancelled``. ``failed``
    is the sum of ``causes``. ``reused`` counts the jobs in ``success`` that come from earlier runs.
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
    """An instance under ``use:``: how many ``rules`` it has, how often they ``fired``, recent
    switches.

    Each item of ``switched`` has the time of a switch (seconds since the epoch) and whether it was
    switched on. ``first`` is true if the instance was on when the run began.
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
    """A rule: how often it was triggered and fired.

    - ``woken``: how often the rule was considered; ``refused``: how often the trigger's ``match``
      rejected an event; ``passed_over``: how often an instance (``each``) matched that had already
      fired ``repetitions`` times.
    - ``last_value``: the last value of the rule's metric; ``last_seen``: the values in the rule's
      condition when it was last false.
    - ``state``: ``fired``, or the reason why the rule never fired.
    - ``cut``: the reason why the rule was permanently switched off.
    - ``instance``: the entry under ``use:`` to which the rule belongs.
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

    If ``open`` is true, rules may add jobs, so the total and the remaining time ``to_go`` (seconds)
    are unknown. ``limits`` maps names such as ``jobs`` or ``core_hours`` to amounts. ``used`` has
    the amounts that jobs have used so far; ``committed`` has those that running and waiting jobs
    may still use. ``held`` is the number of held jobs. ``holding`` lists the limits that hold jobs
    now; ``reached`` also lists those that held jobs earlier.
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
    """Report on a run.

    ``events`` and ``firings`` are counts. ``warnings`` lists problems other than failed jobs.
    """

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
