"""Firings of a run's rules as plain data; if they are many, those of frequent rules are thinned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ensemble_core.journal.event_encoding import JournalRow

#: Maximum number of firings. If there are more, only every second, fourth … firing of frequent
#: rules is kept.
_FIRINGS = 10_000


class Firings:
    """The firings of the events that it was given."""

    def __init__(self) -> None:
        self._firings: list[dict[str, Any]] = []
        #: For each rule of which only every Nth firing is kept: N.
        self._every: dict[str, int] = {}

    def add(self, row: JournalRow) -> None:
        """Add the firings of an event. Its decisions are a list."""
        from ensemble_core.engine.rule_trace import event_words

        decisions: Any = row.decisions or ()
        own: dict[tuple[Any, Any], list[str]] = {
            (decision.get("rule"), decision.get("firing")): [] for decision in decisions
        }
        for decision in decisions:
            if decision["type"] != "fired":
                own[decision.get("rule"), decision.get("firing")].append(_decision_text(decision))
        for decision in decisions:
            if decision["type"] == "fired" and self._survives_thinning(decision):
                self._firings.append(
                    {
                        "rule": decision.get("rule"),
                        "firing": decision.get("firing"),
                        "seq": row.seq,
                        "time": row.time,
                        "event": event_words(row.event()),
                        "job": decision.get("job"),
                        "count": decision.get("count", 1),
                        "value": decision.get("value"),
                        "each": dict(decision.get("each") or {}),
                        "decisions": own[decision.get("rule"), decision.get("firing")],
                    }
                )
        while len(self._firings) > _FIRINGS:
            often = Counter(each["rule"] for each in self._firings).most_common(1)[0][0]
            self._every[often] = 2 * self._every.get(often, 1)
            kept = [each for each in self._firings if self._survives_thinning(each)]
            fewer = len(kept) < len(self._firings)
            # If all rules fired once, keep the latest firings.
            self._firings = kept if fewer else kept[-_FIRINGS:]

    def _survives_thinning(self, firing: Mapping[str, Any]) -> bool:
        return bool((firing.get("count", 1) - 1) % self._every.get(firing["rule"], 1) == 0)

    def after(self, seq: int) -> list[dict[str, Any]]:
        """Return the firings after the event ``seq``."""
        return [each for each in self._firings if each["seq"] > seq]


def _decision_text(decision: Mapping[str, Any]) -> str:
    kind = decision["type"]
    if kind == "submit":
        count = len(decision["jobs"])
        return f"submit {count} job{'' if count == 1 else 's'} of {decision['group']}"
    if kind in ("cancel", "signal"):
        count = len(decision["jobs"])
        what = f"SIG{decision['signal']} to" if kind == "signal" else kind
        return f"{what} {count} job{'' if count == 1 else 's'}"
    if kind == "avoid":
        return f"avoid {', '.join(decision['nodes'])}"
    if kind == "log":
        return f"log {decision.get('message', '')}"
    if kind == "terminate":
        return f"terminate with exit code {decision.get('exit_code', 0)}"
    for name in ("call", "rules", "group", "job", "delta", "generator"):
        if name in decision:
            return f"{kind} {decision[name]}"
    return str(kind)
