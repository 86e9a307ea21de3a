"""Requests of rules for more or fewer nodes (``grow`` and ``shrink``), until they are answered.

Like the fleet, this does no input or output and reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ensemble_core import WhenBusy
from ensemble_core.cli.toolkit import count_of
from ensemble_pilot.demand import FAILURES, Demand
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.pilot import Pilot


@dataclass(frozen=True)
class Resize:
    """An accepted request: ``delta`` more nodes, or fewer if it is negative.

    It is granted once ``target`` pilots are ready, or once the pilots ``leaving`` are over. With
    ``forced``, they end at once, and else after their jobs. All are of the same ``kind``.
    """

    delta: int
    target: int
    leaving: Sequence[int] = ()
    forced: bool = False
    note: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Answer:
    """Answer to a request, as a ``ResizeOutcome`` without its time. ``size`` is in nodes."""

    request: str
    outcome: Literal["granted", "denied", "timeout"]
    size: int
    reason: str


class Resizes:
    """The requests of rules that have no answer yet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: By the id of the request.
        self.pending: dict[str, Resize] = {}

    def plan(self, delta: int, when_busy: WhenBusy) -> Resize | str:
        """Return how the fleet will follow a request, or the reason why the request is denied.

        If there are several kinds, the first one grows that waiting jobs need, or else the first
        one, and that one shrinks whose pilots have the fewest jobs.
        """
        demands = [*self._fleet.demands.values()]
        if delta > 0:
            able = [each for each in demands if _current(each) < each.kind.most] or demands
            able = [each for each in able if each.is_awaited] or able
            return self._plan_growth(able[0], delta)
        order = [p.kind.name for p in self._order() if _shrinks(self._fleet.demands[p.kind.name])]
        chosen = self._fleet.demands[order[0]] if order else demands[0]
        return self._plan_shrinking(chosen, delta, when_busy)

    def _plan_growth(self, demand: Demand, delta: int) -> Resize | str:
        most, current = demand.kind.most, _current(demand)
        wanted, note = _whole(demand, delta)
        target = min(most, current + wanted)
        if target <= current:
            return f"the fleet has {_text(demand, current)}, and 'most' allows no more"
        if target < current + wanted:
            part = _part(demand, target - current, delta)
            note = f"{part}, because 'most' allows only {_text(demand, most)}"
        return Resize(delta, target, note=note, kind=demand.name)

    def _plan_shrinking(self, demand: Demand, delta: int, when_busy: WhenBusy) -> Resize | str:
        floor, least, current = demand.floor, demand.kind.least, _current(demand)
        wanted, note = _whole(demand, delta)
        target = max(floor, current - wanted)
        if target >= current:
            why = "'least' keeps them" if least >= current else "jobs wait"
            return f"the fleet has {_text(demand, current)}, and {why}"
        if target > current - wanted:
            why = "'least' keeps" if least == floor else "jobs wait, so the fleet keeps"
            part = _part(demand, current - target, delta)
            note = f"{part}, because {why} {_text(demand, floor)}"
        order = [pilot for pilot in self._order() if pilot.kind is demand.kind]
        leaving = order[: max(0, len(order) - target)]
        if when_busy == "skip" and any(pilot.busy for pilot in leaving):
            leaving = [pilot for pilot in leaving if not pilot.busy]
            target = len(order) - len(leaving)
            if target >= current:
                return "jobs run in all pilots"
            note = f"{_part(demand, current - target, delta)}, because jobs run in the others"
        numbers = [pilot.number for pilot in leaving]
        return Resize(delta, target, numbers, when_busy == "force", note, demand.name)

    def _order(self) -> list[Pilot]:
        """Return the pilots in the order in which they leave."""
        return sorted(
            (pilot for pilot in self._fleet.pilots.values() if pilot.live),
            key=lambda p: (
                p.busy,
                p.state == "ready",
                sum(len(n.jobs) for n in p.nodes),
                -p.number,
            ),
        )

    def begin(self, request: str, resize: Resize) -> None:
        """Let the fleet follow a request. Pilots that it has no more are passed over."""
        self.pending[request] = resize
        self._keep()
        self._fleet.demands[resize.kind].target = resize.target
        for number in resize.leaving:
            pilot = self._fleet.pilots.get(number)
            if pilot is not None:
                self._fleet.leave(pilot, forced=resize.forced)

    def _keep(self) -> None:
        """Let pilots without jobs stay until a request for more nodes is answered."""
        for demand in self._fleet.demands.values():
            demand.kept = max(
                (r.target for r in self.pending.values() if r.delta > 0 and r.kind == demand.name),
                default=0,
            )

    def answers(self) -> list[Answer]:
        """Return the answers that can be given now. Each is returned once."""
        fleet, found = self._fleet, []
        for request, resize in list(self.pending.items()):
            demand = fleet.demands[resize.kind]
            if resize.delta < 0:
                over = not any(number in fleet.pilots for number in resize.leaving)
                outcome: Literal["granted", "timeout"] | None = "granted" if over else None
                reason = resize.note
            elif demand.ready >= resize.target:
                outcome, reason = "granted", resize.note
            elif max(demand.target, demand.live) < resize.target:
                outcome = "timeout"
                reason = (
                    f"{count_of(demand.failures, 'pilot')} in a row ended before they were ready"
                    if demand.failures >= FAILURES
                    else "fewer pilots were needed before they were ready"
                )
            else:
                outcome, reason = None, ""
            if outcome is not None:
                del self.pending[request]
                self._keep()
                found.append(Answer(request, outcome, fleet.size, reason))
        return found


def _current(demand: Demand) -> int:
    return max(demand.live, demand.target, demand.floor)


def _shrinks(demand: Demand) -> bool:
    return _current(demand) > demand.floor


def _whole(demand: Demand, delta: int) -> tuple[int, str]:
    """Return how many pilots a number of nodes makes, and a note if it is rounded up."""
    wanted = math.ceil(abs(delta) / demand.kind.nodes)
    if wanted * demand.kind.nodes == abs(delta):
        return wanted, ""
    return wanted, f"{count_of(abs(delta), 'node')} rounded up to {_text(demand, wanted)}"


def _part(demand: Demand, pilots: int, delta: int) -> str:
    """Return how many of the requested nodes come or leave with so many pilots."""
    return f"{pilots * demand.kind.nodes} of {count_of(abs(delta), 'node')}"


def _text(demand: Demand, pilots: int) -> str:
    what = f"{demand.name} pilot" if demand.name else "pilot"
    return f"{count_of(pilots, what)} of {count_of(demand.kind.nodes, 'node')}"
