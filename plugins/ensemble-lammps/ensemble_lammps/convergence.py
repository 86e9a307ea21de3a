"""Convergence test: the error of a column's mean, row by row, in bounded memory.

The observer hands each row of a log to a :class:`Convergence`, and adds what that returns to the
row: the running mean of each watched column, the standard error of that mean, how far the mean has
moved lately, and a mark where the conditions begin or cease to hold. Pure: the same rows give the
same answers.

The standard error allows for autocorrelation by blocking (H. Flyvbjerg and H. G. Petersen, J. Chem.
Phys. 91, 461 (1989)): neighbours are averaged again and again, until the blocks are longer than the
correlation and the error of the mean, as computed from the blocks, no longer grows. The plateau is
found by a rule and not by eye (R. M. Lee et al., Phys. Rev. E 83, 066706 (2011), after U. Wolff):
the smallest block size B for which ``B**3 > 2 * n * (e(B) / e(1))**4``, with n rows and e(B) the
error computed from blocks of B rows, of which there must be at least :data:`FEWEST_BLOCKS`. That
rule knows of one correlation time; what moves slowly beneath fast noise gives a first plateau that
is far too low. So the error is the largest of those from there on, as long as there are
:data:`FEWEST_CHECKED` blocks: on a true plateau a tenth more, elsewhere up to several times. Where
no block size will do, as in a run that still drifts, the error is not known and nothing has
converged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = [
    "FEWEST_BLOCKS",
    "FEWEST_CHECKED",
    "OPTIONS",
    "Blocking",
    "Convergence",
    "Drift",
    "variables",
]

#: Blocks from which an error is computed, at least: with 16, it is itself known to some 20 %.
FEWEST_BLOCKS = 16
#: Blocks, at least, of those sizes that are only to show whether the plateau goes on.
FEWEST_CHECKED = 8
#: The window over which a drift is taken is kept in so many pieces.
_PIECES = 32
#: Pieces are counted no further: a step may be any number that a log can have.
_MOST_PIECES = 1e15
#: What converged ceases to be so beyond this times a tolerance, lest it flicker.
_SLACK = 1.1
#: What is told of a column.
_SUFFIXES = ("mean", "error", "drift")

_STEPS = {"type": "number", "minimum": 1}
_TOLERANCE = {"type": "number", "exclusiveMinimum": 0}

#: The schema of the observer's option ``converged``.
OPTIONS: Mapping[str, Any] = {
    "description": "Columns whose means are to converge, by name, each with what that means: "
    "error, within (over window steps), relative, begin.",
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "type": "object",
        "anyOf": [{"required": ["error"]}, {"required": ["within"]}],
        "dependentRequired": {"within": ["window"]},
        "additionalProperties": False,
        "properties": {
            "error": {
                "description": "The standard error of the mean is at most this.",
                **_TOLERANCE,
            },
            "within": {
                "description": "The running mean has moved at most so far over the window.",
                **_TOLERANCE,
            },
            "window": {
                "description": "Steps over which the running mean is looked at.",
                **_STEPS,
            },
            "relative": {
                "description": "error and within are fractions of the mean, not absolute.",
                "type": "boolean",
                "default": False,
            },
            "begin": {
                "description": "Rows before this step do not count.",
                "type": "number",
                "minimum": 0,
                "default": 0,
            },
        },
    },
}


def variables(options: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """The names that a row may get with this ``converged`` option."""
    names = {"Converged"}
    for column, given in options.items():
        kept = _SUFFIXES if given.get("window") is not None else _SUFFIXES[:2]
        names.update(f"{column}.{suffix}" for suffix in kept)
    return frozenset(names)


class Blocking:
    """The mean of a series and the standard error of that mean, value by value.

    Memory and the time for one value grow with the logarithm of their number; the error is computed
    anew whenever there are 1/64 more values, so that it costs next to nothing per value.
    """

    __slots__ = ("_error", "_levels", "_look", "count", "mean", "rough")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        #: Of each block size: how many blocks, their mean, the sum of their squared deviations,
        #: and the block that still waits for its neighbour.
        self._levels: list[list[Any]] = []
        self._error: float | None = None
        self._look = FEWEST_BLOCKS
        #: The error where the plateau begins, or where there is none, from the largest blocks.
        #: Too small to say that something converged, good enough to say that it did not cease to.
        self.rough: float | None = None

    def add(self, value: float) -> None:
        """One more value; it must be finite."""
        self.count += 1
        for level in self._levels:
            count, mean, squares, waiting = level
            count += 1
            change = value - mean
            mean += change / count
            level[0], level[1], level[2] = count, mean, squares + change * (value - mean)
            if waiting is None:
                level[3] = value
                break
            level[3] = None
            value = waiting + (value - waiting) / 2
        else:
            self._levels.append([1, value, 0.0, value])
        self.mean = self._levels[0][1]

    def error(self) -> float | None:
        """The standard error of the mean; ``None`` while there is no plateau to read it off."""
        if self.count >= self._look:
            self._look = self.count + 1 + (self.count >> 6)
            self.rough = None
            self._error = self._plateau()
        return self._error

    def _plateau(self) -> float | None:
        count, _, squares, _ = self._levels[0]
        if not math.isfinite(squares):
            return None
        first = squares / (count - 1) / count
        if first <= 0:  # or less than a number can be
            self.rough = 0.0
            return 0.0
        size, largest = 1.0, None
        for blocks, _, deviations, _ in self._levels:
            if blocks < (FEWEST_BLOCKS if largest is None else FEWEST_CHECKED):
                break
            found = deviations / (blocks - 1) / blocks
            if largest is not None:
                largest = max(largest, found)
                continue
            self.rough = math.sqrt(found)
            # By chance alone, larger blocks may have the smaller error.
            ratio = max(found / first, 1.0)
            if size**3 > 2 * count * ratio * ratio:
                largest = found
            size *= 2
        return None if largest is None else math.sqrt(largest)


class Drift:
    """How far a running mean moved during the last ``window`` steps: highest less lowest.

    The window is kept in pieces, and what is looked at is never less than the window and at most
    one piece and one row more.
    """

    __slots__ = ("_begin", "_high", "_low", "_past", "_piece", "_pieces", "_size", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._size = window / _PIECES
        self._begin: float | None = None
        self._piece = 0
        #: Pieces that are complete: number, lowest, highest. The oldest reaches back before the
        #: window, so that where the mean stood as the window began is always among them.
        self._pieces: deque[tuple[int, float, float]] = deque()
        self._low = self._high = 0.0
        self._past = (math.inf, -math.inf)

    def add(self, step: float, mean: float) -> float | None:
        """The drift at this step; ``None`` while the window is not full."""
        if self._begin is None:
            self._begin, self._low, self._high = step, mean, mean
        piece = int(min((step - self._begin) / self._size, _MOST_PIECES))
        if piece != self._piece:
            self._pieces.append((self._piece, self._low, self._high))
            while len(self._pieces) > 1 and self._pieces[1][0] < piece - _PIECES:
                self._pieces.popleft()
            self._past = (
                min(low for _, low, _ in self._pieces),
                max(high for _, _, high in self._pieces),
            )
            self._piece, self._low, self._high = piece, mean, mean
        elif mean < self._low:
            self._low = mean
        elif mean > self._high:
            self._high = mean
        if step - self._begin < self._window:
            return None
        return max(self._high, self._past[1]) - min(self._low, self._past[0])


class _Column:
    """One column: its mean, error and drift, and whether its conditions hold."""

    __slots__ = ("_blocking", "_drift", "_options", "_spoilt", "holds", "names")

    def __init__(self, column: str, options: Mapping[str, Any]) -> None:
        self.names = tuple(f"{column}.{suffix}" for suffix in _SUFFIXES)
        self._options = options
        self.begin()

    def begin(self) -> None:
        window = self._options.get("window")
        self._blocking = Blocking()
        self._drift = None if window is None else Drift(window)
        self._spoilt = False
        self.holds = False

    def update(self, step: float, value: float, out: dict[str, float]) -> None:
        if step < self._options.get("begin", 0) or self._spoilt:
            return
        if not math.isfinite(value):
            # No mean has a number after this, so none can converge before the log begins anew.
            self._spoilt, self.holds = True, False
            return
        blocking = self._blocking
        blocking.add(value)
        mean = blocking.mean
        error = blocking.error()
        drift = None if self._drift is None else self._drift.add(step, mean)
        out.update(
            (name, number)
            for name, number in zip(self.names, (mean, error, drift), strict=True)
            if number is not None and math.isfinite(number)
        )
        scale = abs(mean) if self._options.get("relative") else 1.0
        if self.holds:
            error, scale = blocking.rough, scale * _SLACK
        self.holds = _within(error, self._options.get("error"), scale) and _within(
            drift, self._options.get("within"), scale
        )


def _within(value: float | None, tolerance: float | None, scale: float) -> bool:
    """True if a condition holds, or there is none."""
    return tolerance is None or (value is not None and value <= tolerance * scale)


class Convergence:
    """The columns of one log that are to converge.

    ``options`` is the observer's option ``converged``: for each column ``error``, ``within`` and
    ``window`` (in steps), ``relative`` and ``begin`` (a step). A column without any variation has
    the error 0 as soon as there are enough rows: it is known exactly.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._columns = {name: _Column(name, given) for name, given in options.items()}
        self._step: float | None = None
        self._held = False

    def reset(self) -> None:
        """The log began anew: forget everything, as of a log that was never read."""
        self._begin()
        self._held = False

    def update(self, step: float | None, values: Mapping[str, float]) -> dict[str, float]:
        """The values to add to this row.

        ``COLUMN.mean``, ``COLUMN.error`` and ``COLUMN.drift`` where they are known; ``Converged``:
        1 in the row in which the conditions of all columns begin to hold, -1 in the row in which
        they cease to: where a value is more than a tenth beyond its tolerance. A row without a step
        is passed over, and so is one that has the step of the row before, as at the seam of two
        runs. A step that goes back begins anew.
        """
        if step is None or not math.isfinite(step) or self._columns.keys().isdisjoint(values):
            return {}
        if self._step is not None:
            if step == self._step:
                return {}
            if step < self._step:
                self._begin()
        self._step = step
        out: dict[str, float] = {}
        for name, column in self._columns.items():
            if name in values:
                column.update(step, values[name], out)
        holds = all(column.holds for column in self._columns.values())
        if holds != self._held:
            self._held = holds
            out["Converged"] = 1.0 if holds else -1.0
        return out

    def _begin(self) -> None:
        self._step = None
        for column in self._columns.values():
            column.begin()
