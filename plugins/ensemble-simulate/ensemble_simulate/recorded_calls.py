"""Calls of functions and of plugins' actions in a simulated run, as a kept run has them.

Each takes as long as it took there; an action, which is not carried out, returns what it did, or
fails as it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ensemble_core import EnsembleError
from ensemble_core.cli.toolkit import Call

__all__ = ["Called", "Calls", "Result", "key_of_call"]

#: What a call returned, as plain specifications; or what it failed with.
Result: TypeAlias = Sequence[Mapping[str, Any]] | EnsembleError


class Called(NamedTuple):
    """A call of a kept run: how long it took, in seconds, and its result."""

    seconds: float
    result: Result


def key_of_call(name: str, job: Mapping[str, Any] | None) -> tuple[str, str]:
    """The key of a call's results in a kept run: its function's name, and the job it is about."""
    return name, str((job or {}).get("job", ""))


class Calls:
    """The calls of one simulated run, each as the kept run has it: of a function and a job the
    first as it was then, and so on. Others take what is ``drawn``. With ``functions`` those of the
    file return what they did, and not only plugins' actions. Of one that failed the result is its
    error. An action that is made more often does as the last that did not fail. :meth:`takes` is
    asked before :meth:`answer`, once for each."""

    def __init__(
        self,
        kept: Mapping[tuple[str, str], Sequence[Called]],
        drawn: Callable[[Call], float],
        *,
        functions: bool,
    ) -> None:
        self._kept = kept
        self._drawn = drawn
        self._functions = functions
        self._made: Counter[tuple[str, str]] = Counter()
        self._known: dict[str, Called] = {}

    def takes(self, call: Call) -> float:
        """Seconds that it takes: those of the kept run, else drawn."""
        key = key_of_call(call.name, call.job)
        found, place = self._kept.get(key, ()), self._made[key]
        self._made[key] += 1
        if place < len(found):
            known = self._known[call.call] = found[place]
            return known.seconds
        if found and call.kind == "action":  # which is not carried out
            good = [each for each in found if not isinstance(each.result, EnsembleError)]
            if good:
                self._known[call.call] = good[-1]
        return self._drawn(call)

    def answer(self, call: Call) -> Result | None:
        """The result that it had in the kept run; ``None``: not known, or to be asked for anew."""
        known = self._known.pop(call.call, None)
        returns = call.kind == "action" or (self._functions and call.kind != "generator")
        return known.result if known is not None and returns else None
