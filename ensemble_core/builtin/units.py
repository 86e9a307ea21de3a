"""Units that a program prints after its numbers, as in ``5 GB``. Numbers are read without them."""

from __future__ import annotations

from collections.abc import Container, Iterator

from ensemble_core.late_pattern import late_pattern

#: The unit of a number, after it. Two units of one kind cannot be compared.
_UNIT = late_pattern(
    r"[ \t]{0,2}(%|[num\u00b5\u03bc]?s(?!/)|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|d|days?"
    r"|[kKMGTP]?i?B|[kKMGT]?bytes?|m?eV|[kKM]J|k?cal|Ha|Ry|[hkMG]?Pa|k?bar|[kMGT]?Hz|it/s|s/it)(?![\w^])"
)
_SAME_UNITS = {"sec": "s", "second": "s", "minute": "min", "hr": "h", "hour": "h", "day": "d"}
#: Maximum number of names whose units are remembered, and of units in a complaint.
_MOST_NAMES, _MOST_SHOWN = 200, 5


class Units:
    """The units that were found after the values of each name."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, None]] = {}

    def note(self, printed: str, text: str, end: int) -> None:
        """Remember the unit that a text has after a number."""
        unit = _UNIT.match(text, end)
        word = "" if unit is None else unit[1]
        word = word if len(word) < 3 else word.removesuffix("s")
        if len(self._of) < _MOST_NAMES or printed in self._of:
            self._of.setdefault(printed, {})[_SAME_UNITS.get(word, word)] = None

    def complaints(self, names: Container[str]) -> Iterator[str]:
        """Yield a text for each of these names with several units: they cannot be compared."""
        for name, found in self._of.items():
            units = [unit or "no unit" for unit in found if unit or "%" in found]
            if len(units) > 1 and name in names:
                yield (
                    f"{name!r} has the units {' and '.join(map(repr, units[:_MOST_SHOWN]))}, and "
                    "its numbers were read without them: read one unit with 'regex'"
                )
