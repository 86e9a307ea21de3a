"""Plan of a resize: the size that a Flux MiniCluster gets, within its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: Kubernetes stores the number of replicas in 32 bits.
_COUNTABLE = 2**31 - 1


class NotResizable(Exception):
    """Error: the MiniCluster cannot be resized."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason  #: for people


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of a request, in numbers of nodes."""

    before: int
    asked: int
    target: int  #: the size to set
    code: str = ""
    reason: str = ""

    @property
    def outcome(self) -> Literal["granted", "partial", "denied"]:
        """The outcome of the request once the target is set."""
        if self.target == self.asked:
            return "granted"
        return "denied" if self.target == self.before else "partial"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Snapshot of a MiniCluster's size and its bounds, in nodes."""

    size: int  #: ``spec.size`` of the object
    acted_on: int  #: size that the Flux Operator last acted on; 0: none
    least: int  #: the operator ignores or resets smaller sizes
    most: int | None  #: … and larger sizes than this; ``None``: no limit
    why_most: str
    ceiling: int | None  #: limit of this resizer
    uid: str  #: distinguishes an object from a later one of the same name
    version: str  #: changes with every write
    generation: int  #: changes with the spec

    @property
    def before(self) -> int | None:
        """The number of nodes before a request; ``None`` if unknown.

        This is the wanted size or, if the operator ignores that size, the last valid one.
        """
        if self._accepts(self.size):
            return self.size
        return self.acted_on if self._accepts(self.acted_on) else None

    @property
    def ignored(self) -> bool:
        """True if the operator ignores the wanted size."""
        return not self._accepts(self.size)

    def plan(self, delta: int) -> Plan:
        """Return the plan for ``delta`` more nodes (fewer if negative).

        Raises :class:`NotResizable`.
        """
        before = self.before
        if before is None:
            most = f" to {self.most}" if self.most is not None else " up"
            raise NotResizable(
                "size-unknown",
                f"the Flux Operator ignores its spec.size, {self.size} (allowed: "
                f"{self.least}{most}), so its number of nodes is unknown; correct its spec.size "
                f"first",
            )
        asked = before + delta
        if asked > _COUNTABLE and self._highest() is None:
            raise NotResizable("out-of-bounds", f"{asked} nodes are more than Kubernetes can count")
        # Clamp only in the requested direction: a request to grow never shrinks a MiniCluster that
        # is above our ceiling.
        if delta > 0:
            highest = self._highest()
            if highest is None or asked <= highest:
                return Plan(before, asked, asked)
            return Plan(before, asked, max(before, highest), "at-maximum", self._limit(highest))
        target = min(before, max(asked, self.least))
        if target == asked:
            return Plan(before, asked, asked)
        least = f"it may not have fewer than {_nodes(self.least)}"
        return Plan(before, asked, target, "at-minimum", least)

    def _accepts(self, size: int) -> bool:
        return self.least <= size and (self.most is None or size <= self.most)

    def _highest(self) -> int | None:
        limits = [limit for limit in (self.most, self.ceiling) if limit is not None]
        return min(limits) if limits else None

    def _limit(self, highest: int) -> str:
        why = self.why_most if highest == self.most else "the limit of this service"
        return f"it may not have more than {_nodes(highest)}: {why}"


def read(found: Mapping[str, Any], ceiling: int | None = None) -> Sizes:
    """Return the sizes in a MiniCluster from the API server. Raises :class:`NotResizable`."""
    metadata = _part(found, "metadata")
    spec = _part(found, "spec")
    status = _part(found, "status")
    if metadata.get("deletionTimestamp"):
        raise NotResizable("being-deleted", "it is being deleted")
    size = _count(spec, "size")
    if size is None:
        raise NotResizable("no-size", "the MiniCluster has no spec.size")
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or not version:
        # Without the version, another writer's change in between would be overwritten.
        raise NotResizable("malformed", "the MiniCluster has no metadata.resourceVersion")
    least = max(_count(spec, "minSize") or 1, 1)
    wanted = _count(spec, "maxSize")
    # The operator reads maxSize only when it creates the MiniCluster.
    late = f"; its maxSize of {wanted} was set later" if wanted else "; it has no maxSize"
    fixed = f"its status.maximumSize, fixed by the Flux Operator at creation{late}"
    limits = {"its maxSize": wanted, fixed: _count(status, "maximumSize")}
    most, why = min(
        ((limit, why) for why, limit in limits.items() if limit is not None and limit > 0),
        default=(None, ""),
        key=lambda each: each[0],
    )
    if most is not None and least > most:
        raise NotResizable(
            "bad-bounds",
            f"its minSize, {least}, is above {why}, {most}: the Flux Operator ignores it",
        )
    return Sizes(
        size=size,
        acted_on=_count(status, "size") or 0,
        least=least,
        most=most,
        why_most=why,
        ceiling=ceiling,
        uid=str(metadata.get("uid", "")),
        version=version,
        generation=_count(metadata, "generation") or 0,
    )


def _part(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = found.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise NotResizable("malformed", f"the MiniCluster's {name} is not an object")
    return part


def _count(part: Mapping[str, Any], name: str) -> int | None:
    value = part.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotResizable("malformed", f"the MiniCluster's {name} is not a whole number")
    return value


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
