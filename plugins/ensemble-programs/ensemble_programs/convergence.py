"""Convergence test for the means of a log's columns.

Method: H. Flyvbjerg and H. G. Petersen, J. Chem. Phys. 91, 461 (1989); R. M. Lee et al., Phys. Rev.
E 83, 066706 (2011).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Minimum number of blocks for an error. With 16, the error is uncertain by about 20 %.
FEWEST_BLOCKS = 16
#: Minimum number of blocks of larger sizes, which only check whether the plateau continues.
FEWEST_CHECKED = 8
#: Number of pieces into which the window for the drift is divided.
_PIECES = 32
#: Maximum number of a piece. A limit is needed because a log may contain any step.
_MOST_PIECES = 1e15
#: Factor on a tolerance beyond which convergence is lost. It prevents flickering.
_SLACK = 1.1
#: Suffixes of the values reported for a column.
_SUFFIXES = ("mean", "error", "drift")

_STEPS = {"type": "number", "minimum": 1}
_TOLERANCE = {"type": "number", "exclusiveMinimum": 0}

#: Schema of the observer's option ``converged``.
OPTIONS: Mapping[str, Any] = {
    "description": "Columns whose means should converge, by name, each with its conditions: "
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
                "description": "Largest standard error of the mean.",
                **_TOLERANCE,
            },
            "within": {
                "description": "Largest change of the running mean over the window.",
                **_TOLERANCE,
            },
            "window": {
                "description": "Number of steps over which the running mean is watched.",
                **_STEPS,
            },
            "relative": {
                "description": "Whether error and within are fractions of the mean.",
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


def variables(options: Mapping[str, Any], columns: Iterable[str]) -> frozenset[str]:
    """Return the names in rows of these columns, with those that the option ``converged`` adds."""
    names, converged = {*columns}, options.get("converged") or {}
    for column, given in converged.items():
        kept = _SUFFIXES if given.get("window") is not None else _SUFFIXES[:2]
        names.update((column, "Converged"), (f"{column}.{suffix}" for suffix in kept))
    return frozenset(names)


class Unasked(Mapping[str, str]):
    """Names that rows would have with other options of the observer, each with a hint.

    ``more`` are the names that the option ``columns`` can add. Of every column, rows can also have
    the mean, its error and its drift; these names are found, but not listed.
    """

    def __init__(
        self, options: Mapping[str, Any], columns: Iterable[str], more: Iterable[str]
    ) -> None:
        self._converged = options.get("converged") or {}
        self._have = variables(options, columns)
        self._hints = {
            name: f"add {name} to the observer's option 'columns'"
            for name in more
            if name not in self._have
        }
        if not self._converged:
            self._hints["Converged"] = "define convergence with the observer's option 'converged'"

    def __getitem__(self, name: str) -> str:
        base, _, suffix = name.rpartition(".")
        if name in self._hints or name in self._have or not base or suffix not in _SUFFIXES:
            return self._hints[name]
        if base in self._converged:  # only the drift can be missing
            return f"give {base} a window in the observer's option 'converged'"
        return f"add {base} to the observer's option 'converged'"

    def __iter__(self) -> Iterator[str]:
        return iter(self._hints)

    def __len__(self) -> int:
        return len(self._hints)


# The standard error accounts for autocorrelation by blocking (Flyvbjerg and Petersen): neighbouring
# values are averaged repeatedly, which doubles the block size each time. The error of the mean,
# computed from the blocks, grows until the blocks are longer than the correlation; then it reaches
# a plateau.
#
# The plateau starts at the smallest block size B for which ``B**3 > 2 * n * (e(B) / e(1))**4`` (Lee
# et al., after U. Wolff). Here n is the number of rows, and e(B) is the error from blocks of B
# rows. There must be at least FEWEST_BLOCKS of these blocks. If no block size satisfies this rule,
# as in a run that still drifts, the error is unknown.
#
# The rule assumes one correlation time. A slow motion under fast noise has a first plateau that is
# far too low. So the reported error is the maximum over this and all larger block sizes with at
# least FEWEST_CHECKED blocks. On a true plateau, this maximum is about a tenth higher than the
# plateau; otherwise, it is up to several times as high.


class BlockedMean:
    """Mean of a correlated series, and the standard error of this mean by blocking.

    Memory, and the time per value, grow with the logarithm of the number of values.
    """

    __slots__ = ("_error", "_levels", "_look", "count", "mean", "rough")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        #: For each block size: the number of blocks, their mean, the sum of their squared
        #: deviations, and the block that still waits for its neighbour.
        self._levels: list[list[Any]] = []
        self._error: float | None = None
        self._look = FEWEST_BLOCKS
        #: The error at the start of the plateau; without a plateau, the error from the largest
        #: blocks. It is too small to prove convergence, but good enough to decide whether
        #: convergence continues.
        self.rough: float | None = None

    def add(self, value: float) -> None:
        """Add a value; it must be finite."""
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
        """Return the standard error of the mean; ``None`` without a plateau."""
        # The error is recomputed after 1/64 more values, so the cost per value is negligible.
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
        # The mean of a constant column is known exactly. A very small variance is rounded to 0.
        if first <= 0:
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
            # By chance, larger blocks may have a smaller error.
            ratio = max(found / first, 1.0)
            if size**3 > 2 * count * ratio * ratio:
                largest = found
            size *= 2
        return None if largest is None else math.sqrt(largest)


class Drift:
    """Maximum minus minimum of a running mean during the last ``window`` steps."""

    __slots__ = ("_begin", "_high", "_low", "_past", "_piece", "_pieces", "_size", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        #: Length of a piece. The window is at most one piece and one row longer than requested.
        self._size = window / _PIECES
        self._begin: float | None = None
        self._piece = 0
        #: Complete pieces: each with its number, and its lowest and highest mean. The oldest starts
        #: before the window, so that the mean at the start of the window is always included.
        self._pieces: deque[tuple[int, float, float]] = deque()
        self._low = self._high = 0.0
        self._past = (math.inf, -math.inf)

    def add(self, step: float, mean: float) -> float | None:
        """Return the drift at this step; ``None`` until the window is full."""
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
        self._blocking = BlockedMean()
        self._drift = None if window is None else Drift(window)
        self._spoilt = False
        self.holds = False

    def update(self, step: float, value: float, out: dict[str, float]) -> None:
        if step < self._options.get("begin", 0) or self._spoilt:
            return
        if not math.isfinite(value):
            # From now on, the mean is not a number, so the column cannot converge until the log
            # restarts.
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
    """Return whether the value is within the tolerance. An unset tolerance allows any value."""
    return tolerance is None or (value is not None and value <= tolerance * scale)


class Convergence:
    """Convergence test for one log. The schema of its argument is :data:`OPTIONS`."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._columns = {name: _Column(name, given) for name, given in options.items()}
        self._step: float | None = None
        self._held = False

    def reset(self) -> None:
        """Forget everything, because the log restarted."""
        self._begin()
        self._held = False

    def update(self, step: float | None, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values to add to this row.

        - ``COLUMN.mean``, ``COLUMN.error`` and ``COLUMN.drift``, if known
        - ``Converged``: 1 in the row from which the conditions of all columns hold; -1 in the row
          from which they no longer hold, because an error or a drift exceeds its limit by more than
          a tenth

        A row is ignored if it has no step, or the same step as the previous row, as between two
        runs. A step lower than the previous one resets everything.
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
