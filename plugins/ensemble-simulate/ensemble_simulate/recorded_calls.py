"""Gives calls in a simulation the durations and results that they had in an earlier run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ensemble_core import EnsembleError
from ensemble_core.cli.toolkit import Call

#: Result of a call, as plain specifications, or its error.
Result: TypeAlias = Sequence[Mapping[str, Any]] | EnsembleError


class RecordedCall(NamedTuple):
    """A call of a function or of a plugin's action in an earlier run."""

    seconds: float  # its duration
    result: Result


def key_of_call(name: str, job: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the key of a call in an earlier run: the function's name, and the job's id."""
    return name, str((job or {}).get("job", ""))


class Calls:
    """The calls of one simulated run. For each call, call :meth:`takes` once, then :meth:`answer`.

    The first call of a function for a job is answered by the first recorded one, and so on. After
    the last recorded one, an action returns its last successful result.

    - ``kept``: recorded calls by :func:`key_of_call`
    - ``drawn``: returns the duration in seconds of a call that was not recorded
    - ``functions``: whether functions of the file return recorded results instead of being called
    """

    def __init__(
        self,
        kept: Mapping[tuple[str, str], Sequence[RecordedCall]],
        drawn: Callable[[Call], float],
        *,
        functions: bool,
    ) -> None:
        self._kept = kept
        self._drawn = drawn
        self._functions = functions
        self._made: Counter[tuple[str, str]] = Counter()
        self._known: dict[str, RecordedCall] = {}

    def takes(self, call: Call) -> float:
        """Return the duration of a call in seconds: recorded or drawn."""
        key = key_of_call(call.name, call.job)
        found, place = self._kept.get(key, ()), self._made[key]
        self._made[key] += 1
        if place < len(found):
            known = self._known[call.call] = found[place]
            return known.seconds
        if found and call.kind == "action":  # actions are not carried out
            good = [each for each in found if not isinstance(each.result, EnsembleError)]
            if good:
                self._known[call.call] = good[-1]
        return self._drawn(call)

    def answer(self, call: Call) -> Result | None:
        """Return the recorded result of a call.

        Returns ``None`` if no result was recorded, or if the function must be called.
        """
        known = self._known.pop(call.call, None)
        returns = call.kind == "action" or (self._functions and call.kind != "generator")
        return known.result if known is not None and returns else None
