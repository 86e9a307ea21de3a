"""Checks options of the resizer ``kubernetes`` that its schema cannot check."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ensemble_core import UsageError
from ensemble_minicluster.member_names import member_name

_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def check_namespace(text: str) -> None:
    """Raise :class:`UsageError` for an invalid namespace."""
    try:
        member_name(f"{text}/x")
    except UsageError as error:
        raise UsageError(
            f"invalid namespace {text!r}", cause=error.cause, code="bad-option"
        ) from None


def names_of(given: object, namespace: str | None) -> dict[str, str]:
    """Return the option ``map``: names of MiniClusters by the full names of their members."""
    hint = """write it as '{"NAMESPACE/NAME": "MINICLUSTER"}'"""
    if given is None:
        return {}
    given = _parsed("map", given, hint)
    if not isinstance(given, Mapping):
        raise UsageError("the option 'map' is not a JSON object", hint=hint, code="bad-option")
    names: dict[str, str] = {}
    for member, name in given.items():
        full = member_name(member)
        if not isinstance(name, str) or not _OBJECT.fullmatch(name):
            raise UsageError(
                f"the option 'map' has an invalid MiniCluster name for {member}: {name!r}",
                hint=hint,
                code="bad-option",
            )
        if namespace is not None and not full.startswith(f"{namespace}/"):
            raise UsageError(
                f"the option 'map' may only contain members of namespace {namespace}, not {member}",
                code="bad-option",
            )
        if full in names:
            raise UsageError(f"the option 'map' has {full} twice", code="bad-option")
        names[full] = name
    return names


def _parsed(name: str, given: object, hint: str) -> object:
    if not isinstance(given, str):
        return given
    try:
        parsed: object = json.loads(given)
    except ValueError as error:
        raise UsageError(
            f"the option {name!r} is not JSON", cause=str(error), hint=hint, code="bad-option"
        ) from None
    return parsed


def fixed_of(given: object) -> frozenset[str]:
    """Return the option ``fixed``: the full names of members that are not resized."""
    hint = """write it as '["NAMESPACE/NAME"]'"""
    given = _parsed("fixed", given, hint)
    if given is None:
        return frozenset()
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise UsageError("option 'fixed' is not a list of names", hint=hint, code="bad-option")
    return frozenset(map(member_name, given))
