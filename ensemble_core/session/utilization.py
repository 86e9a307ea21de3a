"""Core-hours, node-hours and GPU-hours that a queue offered (``up``) and that were idle (``free``).

Only time in which the run had a controller counts.
"""

from __future__ import annotations

from collections.abc import Mapping

_KINDS = ("cores", "nodes", "gpus")


class Capacity:
    """Sums of the queue's gauges over time.

    A value counts until the next report of the same gauge.
    """

    def __init__(self) -> None:
        self._hours: dict[str, dict[str, float]] = {}
        self._values: dict[str, float] = {}
        self._at = 0.0

    def report(self, now: float, values: Mapping[str, float]) -> None:
        """Add the gauges (``cores.up``, ``cores.free`` …) that changed at the time ``now``."""
        self._hours = self.until(now)
        self._values.update(values)
        self._at = now

    def pause(self, now: float | None) -> None:
        """Stop counting until the next report, because the controller exited at the time ``now``.

        If ``now`` is ``None``, the controller was killed, so count only until its last report.
        """
        if now is not None:
            self._hours = self.until(now)
        self._values.clear()

    def until(self, now: float) -> dict[str, dict[str, float]]:
        """Return the sums up to the time ``now``, by resource.

        For example, ``up`` of ``cores`` is in core hours. A resource is included if the queue has
        reported it.
        """
        hours = max(0.0, now - self._at) / 3600
        found = {kind: dict(sums) for kind, sums in self._hours.items()}
        for kind in _KINDS:
            up, free = (self._values.get(f"{kind}.{name}") for name in ("up", "free"))
            if up is not None and free is not None:
                sums = found.setdefault(kind, {"up": 0.0, "free": 0.0})
                sums["up"] += up * hours
                sums["free"] += min(free, up) * hours
        return found
