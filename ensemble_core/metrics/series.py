"""Series: streaming statistics over the values of one variable of one job group.

The values are not kept, so memory does not grow with their number.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from ensemble_core.errors import returned_wrong
from ensemble_core.metrics.statistic_state import NoState, put_state, state_of
from ensemble_core.quick_dataclass import dataclass

#: The nan that stands for a printed value that could not be read. Its identity counts.
UNREADABLE = float("nan")

#: Which values a statistic receives besides finite numbers: none, nan and infinity, or a nan for
#: each value that could not be read.
Accepts = Literal["finite", "all", "unreadable"]

_BUFFER = 128


class Statistic(Protocol):
    """Interface of a streaming statistic.

    Only finite numbers are added, unless the statistic declares that it ``accepts`` others.
    """

    def update(self, value: float, /) -> Any:
        """Add a value."""

    def get(self) -> float | None:
        """Return the current result, or ``None``."""


class TimedStatistic(Protocol):
    """Interface of a streaming statistic that depends on the times of its values (in seconds)."""

    def update(self, value: float, timestamp: float, /) -> Any:
        """Add a value with its time."""

    def get(self, now: float, /) -> float | None:
        """Return the result at the time ``now``, or ``None``."""


class OrderFree(Protocol):
    """Interface of a statistic whose result is the same, bit for bit, for any order of its values.

    Columns of tables need it, because jobs may end in any order. A :class:`Statistic` for tables
    has a method ``order_free(grows=…)`` that returns such an object. If ``grows`` is true,
    ``remove`` is never called.
    """

    def add(self, value: float, /) -> None:
        """Add a value."""

    def remove(self, value: float, /) -> None:
        """Remove a value that was added."""

    def get(self) -> float | None:
        """Return the current result, or ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticSpec:
    """A statistic that rules can use by its ``name``.

    ``hookspecs.StatisticPlugin`` describes the fields.
    """

    name: str
    build: Callable[[], Statistic | TimedStatistic]
    timed: bool = False
    default: bool = False
    within: bool = False
    accepts: Accepts = "finite"
    #: The plugin that registered the statistic, for messages. Empty for a built-in statistic.
    plugin: str = ""

    def __str__(self) -> str:
        whose = f" ({self.plugin})" if self.plugin else ""
        return f"statistic {self.name!r}{whose}"

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the statistic.

        It is the same for the name with and without the plugin's prefix.
        """
        return self.plugin, self.name.rpartition(":")[2]

    def order_free(self, *, grows: bool) -> OrderFree | None:
        """Return an order-free object for this statistic, or ``None`` if the statistic does not
        support it.
        """
        try:
            make = getattr(self.build(), "order_free", None)
            reducer: OrderFree | None = None if make is None else make(grows=grows)
        except Exception:  # an error in a plugin's code, which the series will report
            return None
        return reducer

    def fault(self) -> Exception | None:
        """Return the error that building the statistic raises, or ``None``."""
        try:
            built: object = self.build()
            if not (hasattr(built, "update") and hasattr(built, "get")):
                expected = "an object with update() and get()"
                return returned_wrong("", "build", built, expected, self.build)
            _Cell(self, built)
        except Exception as error:  # a plugin's code may raise anything
            return error
        return None


class NoNumber(TypeError):
    """Error: a statistic returned something other than a number."""


def _number(value: object, nonfinite: bool) -> float | None:
    """Return a statistic's result as a number, or ``None``.

    A result that is not finite counts as ``None``, except with ``nonfinite``. Raises
    :class:`NoNumber` if it is no number at all.
    """
    if value is None:
        return None
    if not isinstance(value, (int, float)):
        if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
            raise NoNumber(f"get() returned {_shown(value)}, expected a number or None")
        value = float(value)
    return value if nonfinite or value - value == 0.0 else None


def _shown(value: object) -> str:
    """Return an invalid result for a message: strings as they are, other objects by their type."""
    return repr(value)[:80] if isinstance(value, (str, bytes)) else f"a {type(value).__name__}"


class _Nothing:
    """Stand-in for a statistic that could not be built."""

    def update(self, *_: float) -> None:
        """Ignore the value."""

    def get(self, *_: float) -> None:
        """Return no result."""


class _Cell:
    """One statistic in a series, and how many values in the series' buffer it has received."""

    __slots__ = (
        *("accepts", "broken", "done", "get", "name", "nonfinite"),
        *("statistic", "timed", "update", "update_all"),
    )

    def __init__(self, spec: StatisticSpec, statistic: Any = None) -> None:
        self.name = spec.name
        self.timed = spec.timed
        self.accepts = spec.accepts
        self.nonfinite = spec.accepts != "finite"
        self.done = 0
        self.broken = False
        self.hold(spec.build() if statistic is None else statistic)

    def hold(self, statistic: Any) -> None:
        """Replace the statistic in this cell."""
        self.statistic = statistic
        self.update: Callable[..., Any] = statistic.update
        self.get: Callable[..., float | None] = statistic.get
        #: A method of the statistic that adds many values at once with the same result, if it has
        #: one. (river's ``update_many`` takes arrays and rounds differently.)
        self.update_all: Callable[..., Any] | None = getattr(statistic, "update_all", None)


class Series:
    """Computes several statistics over the values of one variable of one group.

    A statistic that raises an error has no value from then on, and the function ``problems`` is
    called with its name and the error.
    """

    __slots__ = (
        "_buffer",
        "_cells",
        "_problems",
        "_stamps",
        "_timed",
        "count",
        "high",
        "low",
        "total",
    )

    def __init__(
        self,
        specs: Iterable[StatisticSpec] = (),
        problems: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self.count = 0
        self.total = 0.0
        self.low = float("inf")
        self.high = float("-inf")
        self._cells: dict[str, _Cell] = {}
        self._timed = False
        self._buffer: list[float] = []
        self._stamps: list[float] = []
        self._problems = problems
        for spec in specs:
            self.keep(spec)

    def keep(self, spec: StatisticSpec) -> None:
        """Add a statistic. It receives all values from now on."""
        if spec.name not in self._cells:
            self._flush()
            try:
                self._cells[spec.name] = _Cell(spec)
            except Exception as error:  # a plugin's statistic must not end the run
                cell = self._cells[spec.name] = _Cell(spec, _Nothing())
                self._break(cell, error)
            self._timed = self._timed or spec.timed

    def record(self, value: float, timestamp: float) -> None:
        """Record a value.

        Most statistics skip nan and infinity, which would spoil all later results.
        """
        if value - value != 0.0:
            self._record_nonfinite(value, timestamp)
            return
        self.count += 1
        self.total += value
        if value > self.high:
            self.high = value
        if value < self.low:
            self.low = value
        buffer = self._buffer
        buffer.append(value)
        if self._timed:
            self._stamps.append(timestamp)
        if len(buffer) >= _BUFFER:
            self._flush()

    def _record_nonfinite(self, value: float, timestamp: float) -> None:
        """Pass nan or infinity to the statistics that accept it."""
        for cell in self._cells.values():
            if cell.accepts == "all" or (cell.nonfinite and value is UNREADABLE):
                self._catch_up(cell)
                if value == value:
                    self.high, self.low = max(self.high, value), min(self.low, value)
                try:
                    if not cell.broken:
                        cell.update(value, timestamp) if cell.timed else cell.update(value)
                except Exception as error:  # a plugin's statistic must not end the run
                    self._break(cell, error)

    def extend(self, values: Sequence[float]) -> None:
        """Record finite numbers for which the time does not matter."""
        if not values:
            return
        self.count += len(values)
        self.total += math.fsum(values)
        self.high = max(self.high, max(values))
        self.low = min(self.low, min(values))
        for first in range(0, len(values), _BUFFER):
            part = values[first : first + _BUFFER]
            self._flush()
            self._buffer += part
            if self._timed:
                self._stamps += [0.0] * len(part)

    def _flush(self) -> None:
        if self._buffer:
            for cell in self._cells.values():
                self._catch_up(cell)
                cell.done = 0
            self._buffer.clear()
            self._stamps.clear()

    def _catch_up(self, cell: _Cell) -> None:
        """Pass those values in the buffer to a statistic that it has not received yet."""
        done, buffer, update = cell.done, self._buffer, cell.update
        cell.done = len(buffer)
        if cell.broken or done == len(buffer):
            return
        try:
            if cell.timed:
                for value, stamp in zip(buffer[done:], self._stamps[done:], strict=True):
                    update(value, stamp)
            elif cell.update_all is not None:
                cell.update_all(buffer[done:] if done else buffer)
            else:
                for value in buffer[done:] if done else buffer:
                    update(value)
        except Exception as error:  # a plugin's statistic must not end the run
            self._break(cell, error)

    def _break(self, cell: _Cell, error: Exception) -> None:
        cell.broken = True
        if self._problems is not None:
            self._problems(cell.name, error)

    def get(self, statistic: str, now: float) -> float | None:
        """Return a statistic's result; ``None`` if it has no value yet or is not computed."""
        cell = self._cells.get(statistic)
        return None if cell is None else self.read(cell, now)

    def scoped(self, statistic: str, now: float) -> float | None:
        """Return a statistic's result as ``STAT.NAME`` and tables show it.

        The only difference from :meth:`get` is that the variance of a single value is ``None``
        here. (As a metric, it is 0, for compatibility with ensemble-python.)
        """
        cell = self._cells.get(statistic)
        if cell is None or (statistic == "variance" and self.count < 2):
            return None
        return self.read(cell, now)

    def reader(self, statistic: str) -> Callable[[float], float | None]:
        """Return a function that returns this statistic's result at a given time.

        It is faster than :meth:`get`, because it needs no look-up by name.
        """
        return partial(self.read, self._cells[statistic])

    def read(self, cell: _Cell, now: float) -> float | None:
        """Return the result of a cell. This must be fast, because rules call it at every update."""
        buffer = self._buffer
        left = len(buffer) - cell.done
        if left:
            if left == 1 and not cell.timed and not cell.broken:
                cell.done += 1
                try:
                    cell.update(buffer[-1])
                except Exception as error:  # as above
                    self._break(cell, error)
            else:
                self._catch_up(cell)
        if cell.broken or not (self.count or cell.nonfinite):
            return None
        try:
            value = cell.get(now) if cell.timed else cell.get()
            if type(value) is float:
                return value if cell.nonfinite or value - value == 0.0 else None
            return _number(value, cell.nonfinite)
        except Exception as error:  # as above
            self._break(cell, error)
            return None

    def get_with(self, statistic: str, values: Iterable[float], now: float) -> float | None:
        """Return the result that a statistic would have with the additional ``values``, without
        adding them.
        """
        cell = self._cells.get(statistic)
        if cell is None:
            return None
        self._catch_up(cell)
        if cell.broken:
            return None
        empty = not self.count
        try:
            trial = copy.deepcopy(cell.statistic)
            for value in values:
                empty = False
                trial.update(value, now) if cell.timed else trial.update(value)
            if empty:
                return None
            return _number(trial.get(now) if cell.timed else trial.get(), cell.nonfinite)
        except Exception as error:  # as above
            self._break(cell, error)
            return None

    def states(self, specs: Mapping[str, StatisticSpec]) -> dict[str, Any]:
        """Return the state of each statistic, for a snapshot.

        Raises :class:`NoState` with the name of a statistic whose state is not plain data.
        """
        states = {}
        for name, cell in self._cells.items():
            if not cell.broken:
                try:
                    states[name] = state_of(cell.statistic, specs[name].build())
                except Exception as error:  # a plugin's code, whatever it raises
                    raise NoState(f"the state of {specs[name]} cannot be saved: {error}") from error
        return states

    def restore(self, specs: Mapping[str, StatisticSpec], states: Mapping[str, Any]) -> None:
        """Rebuild the statistics of this series with the states in a snapshot."""
        self._problems = None
        for name, cell in self._cells.items():
            cell.hold(_Nothing() if cell.broken else specs[name].build())
            if not cell.broken:
                put_state(cell.statistic, states[name])

    def copy(self) -> Series:
        """Return an independent copy of the series."""
        self._flush()
        found = Series(problems=self._problems)
        found.count, found.total, found.low, found.high = (
            self.count,
            self.total,
            self.low,
            self.high,
        )
        found._timed = self._timed
        for name, cell in self._cells.items():
            twin = copy.copy(cell)
            twin.hold(copy.deepcopy(cell.statistic))
            found._cells[name] = twin
        return found

    def tell(self, problems: Callable[[str, Exception], None]) -> None:
        """Set the function to call when a statistic raises an error."""
        self._problems = problems

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the statistics."""
        return tuple(self._cells)
