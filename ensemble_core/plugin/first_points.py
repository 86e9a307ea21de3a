"""First points of a search (``first``): suggested before the generator suggests its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ensemble_core.model.generators import Exchange, Generator, Point, Reading
from ensemble_core.quick_dataclass import replace


class FirstPoints(Generator):
    """A generator that suggests given points, and then those of another generator.

    The other generator gets finished first points like those of a generator that it has replaced,
    with the number -1, so it learns from them if it can. It counts only its own points.
    """

    def __init__(self, generator: Generator, first: Sequence[Mapping[str, Any]]) -> None:
        self._generator = generator
        # An instance may differ from its class.
        self.quick = generator.quick  # type: ignore[misc]
        self._rest: list[Mapping[str, Any]] = [dict(point) for point in first]
        #: The number of each suggested point for the other generator; -1 for a first point.
        self._numbers: list[int] = []
        self._own = 0

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Return the next points."""
        found = self._rest[:count]
        del self._rest[: len(found)]
        self._numbers += [-1] * len(found)
        if len(found) < count:
            own = self._generator.suggest(count - len(found))
            self._note_own(len(own))
            found += own
        return found

    def _note_own(self, count: int) -> None:
        self._numbers += range(self._own, self._own + count)
        self._own += count

    def _ingested(self, points: Sequence[Point]) -> list[Point]:
        return [
            replace(point, number=self._numbers[point.number]) if point.number >= 0 else point
            for point in points
        ]

    def _readings(self, readings: Sequence[Reading]) -> list[Reading]:
        return [
            each._replace(point=self._numbers[each.point])
            for each in readings
            if self._numbers[each.point] >= 0
        ]

    def ingest(self, points: Sequence[Point]) -> None:
        """Receive finished points."""
        self._generator.ingest(self._ingested(points))

    def prune(self, readings: Sequence[Reading]) -> Collection[int]:
        """Return the points to cancel. A first point is never cancelled."""
        found = self._generator.prune(self._readings(readings))
        return [self._numbers.index(number) for number in found]

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Restore the state. First points that the file has got since then come next."""
        own: list[Exchange] = []
        for ingested, readings, suggested in exchanges:
            known = self._ingested(ingested), self._readings(readings)
            others: list[Point] = []
            for point in suggested:
                given = dict(point.parameters)
                if given in self._rest:
                    self._rest.remove(given)
                    self._numbers.append(-1)
                else:
                    others.append(replace(point, number=self._own))
                    self._note_own(1)
            own.append(Exchange(tuple(known[0]), tuple(known[1]), tuple(others)))
        self._generator.resume(own)
