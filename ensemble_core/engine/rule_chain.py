"""Chains of firings, in which each firing caused the next one."""

from __future__ import annotations

from ensemble_core.quick_dataclass import dataclass


@dataclass(slots=True, eq=False)
class Link:
    """A firing in a chain, in which each firing caused the next one."""

    rule: str
    parent: Link | None
    #: Position in the chain, counted since a job last finished.
    depth: int
    #: Number of jobs that had finished when the rule fired.
    finishes: int

    def names(self) -> list[str]:
        """Return the rules in the chain, first to last."""
        link: Link | None = self
        found: list[str] = []
        while link is not None and link.finishes == self.finishes:
            found.append(link.rule)
            link = link.parent
        return found[::-1]
