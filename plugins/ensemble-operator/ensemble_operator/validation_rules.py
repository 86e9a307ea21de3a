"""Validation rules of the custom resource that its schema cannot express.

Each rule exists in CEL for the API server, and in Python for ``ensemble-operator check`` and for
the operator, because an API server may have an older definition. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Maximum number of members of an Ensemble, and of characters in its name (pod names have at most
#: 63).
MEMBER_LIMIT, NAME_LIMIT = 32, 40

Value = Any


@dataclass(frozen=True)
class Rule:
    """A validation rule for one field of the schema, in CEL and in Python (``holds``)."""

    place: str
    cel: str
    holds: Callable[..., bool]  #: of the value and, with ``old``, the previous value
    message: str
    old: bool = False  #: whether the rule is about changes


def rules_at(place: str) -> dict[str, Any]:
    """Return the rules of a place, in the form that a schema uses."""
    found = [{"rule": r.cel, "message": r.message} for r in RULES if r.place == place]
    return {"x-kubernetes-validations": found} if found else {}


def _sources(found: Mapping[str, Value]) -> int:
    return ("ensemble" in found) + ("ensembleFrom" in found)


def _one_file(spec: Mapping[str, Value]) -> bool:
    shared = _sources(spec)
    return shared <= 1 and all(_sources(each) + shared == 1 for each in spec["members"])


def _distinct(spec: Mapping[str, Value]) -> bool:
    names = [each["name"] for each in spec["members"] if "name" in each]
    return len(names) == len(set(names))


def _has_same_size(new: Mapping[str, Value], old: Mapping[str, Value]) -> bool:
    if new.get("resize", "Rules") == "None":
        return True
    sizes = [each["minicluster"]["spec"].get("size") for each in (new, old)]
    return bool(sizes[0] == sizes[1])


def _keeps_sizes(spec: Mapping[str, Value], old: Mapping[str, Value]) -> bool:
    pairs: Sequence[tuple[Value, Value]] = [
        (new, was)
        for new, was in zip(spec["members"], old["members"], strict=False)
        if "name" not in new and "name" not in was
    ]
    named = {each["name"]: each for each in old["members"] if "name" in each}
    found = [(new, named[new["name"]]) for new in spec["members"] if new.get("name") in named]
    return all(_has_same_size(new, was) for new, was in (*pairs, *found))


def _port(port: Value) -> bool:
    text = str(port)
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535


def _in_order(*names: str) -> Callable[[Mapping[str, Value]], bool]:
    def holds(spec: Mapping[str, Value]) -> bool:
        found = [spec[name] for name in names if name in spec]
        return found == sorted(found)

    return holds


def _order_rule(small: str, large: str) -> Rule:
    return Rule(
        "minicluster.spec",
        f"!has(self.{small}) || !has(self.{large}) || self.{small} <= self.{large}",
        _in_order(small, large),
        f"{small} is greater than {large}",
    )


_SHARED = "(has(self.ensemble) ? 1 : 0) + (has(self.ensembleFrom) ? 1 : 0)"
_SAME = (
    "({new}.resize == 'None' || (has({new}.minicluster.spec.size) == "
    "has({old}.minicluster.spec.size) && (!has({new}.minicluster.spec.size) || "
    "{new}.minicluster.spec.size == {old}.minicluster.spec.size)))"
)
_INDEX = f"[{', '.join(map(str, range(MEMBER_LIMIT)))}]"

RULES: tuple[Rule, ...] = (
    Rule(
        "object",
        f"size(self.metadata.name) <= {NAME_LIMIT} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        lambda found: (
            len(found["metadata"]["name"]) <= NAME_LIMIT
            and found["metadata"]["name"][0].isalpha()
            and found["metadata"]["name"][-1] != "-"
            and all(c.isascii() and (c.isalnum() or c == "-") for c in found["metadata"]["name"])
            and found["metadata"]["name"].islower()
        ),
        f"the name of an Ensemble must have at most {NAME_LIMIT} characters, start with a letter "
        f"and have no dots, because Services and pods are named after it",
    ),
    Rule(
        "spec",
        f"{_SHARED} <= 1 && self.members.all(m, (has(m.ensemble) ? 1 : 0) + "
        f"(has(m.ensembleFrom) ? 1 : 0) + {_SHARED} == 1)",
        _one_file,
        "each member needs exactly one ensemble file: its 'ensemble' or 'ensembleFrom', or one of "
        "these for all, beside 'members'",
    ),
    Rule(
        "spec",
        "self.members.all(m, !has(m.name) || "
        "self.members.exists_one(n, has(n.name) && n.name == m.name))",
        _distinct,
        "two members have the same name",
    ),
    Rule(
        "spec",
        f"{_INDEX}.all(i, i >= size(self.members) || i >= size(oldSelf.members) || "
        "has(self.members[i].name) || has(oldSelf.members[i].name) || "
        f"{_SAME.format(new='self.members[i]', old='oldSelf.members[i]')}) && "
        "self.members.all(m, !has(m.name) || oldSelf.members.all(o, !has(o.name) || "
        f"o.name != m.name || {_SAME.format(new='m', old='o')}))",
        _keeps_sizes,
        "'size' is only the initial size; later, rules or the autoscaler set it: use kubectl "
        "scale on the MiniCluster, or set 'resize: None'",
        old=True,
    ),
    _order_rule("minSize", "size"),
    _order_rule("size", "maxSize"),
    _order_rule("minSize", "maxSize"),
    Rule(
        "minicluster.spec",
        "!has(self.cleanup) || !self.cleanup",
        lambda spec: not spec.get("cleanup", False),
        "'cleanup: true' deletes a finished MiniCluster with its result: use "
        "'ttlSecondsAfterFinished' of the Ensemble instead",
    ),
    Rule(
        "sidecar.port",
        "type(self) == int ? self >= 1 && self <= 65535 : "
        "self.matches('^[0-9]{1,5}$') && int(self) >= 1 && int(self) <= 65535",
        _port,
        "a port must be between 1 and 65535",
    ),
    Rule(
        "state",
        "!has(self.claim) || !has(self.size)",
        lambda state: not ("claim" in state and "size" in state),
        "'claim' (an existing claim) cannot be combined with 'size' (new claims)",
    ),
)
