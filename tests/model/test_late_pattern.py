"""Patterns that are compiled when they are first used."""

from __future__ import annotations

import copy
import re
import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest

import ensemble_core
from ensemble_core.late_pattern import late_pattern


def test_pattern_is_compiled_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    really = re.compile
    monkeypatch.setattr(re, "compile", lambda *given: compiled.append(given[0]) or really(*given))
    late = late_pattern("(a+)b", re.IGNORECASE)
    assert late.pattern == "(a+)b"
    twin = copy.deepcopy(late)
    assert compiled == []
    found = late.search("xAAb")
    assert found is not None
    assert found[1] == "AA"
    assert (late.sub("-", "abc"), late.groups, late.flags & re.IGNORECASE) == ("-c", 1, re.I)
    assert compiled == ["(a+)b"]
    assert twin.fullmatch("ab")
    with pytest.raises(AttributeError):
        late.finder  # type: ignore[attr-defined]  # noqa: B018


def test_each_pattern_of_the_core_can_be_compiled() -> None:
    for module in walk_packages(ensemble_core.__path__, "ensemble_core."):
        if ".templates" not in module.name and not module.name.endswith("__main__"):
            import_module(module.name)
    found = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith("ensemble_core.")
        for value in vars(module).values()
        if type(value) is late_pattern
    ]
    assert len(found) > 50
    for pattern in found:
        assert isinstance(pattern.flags, int)
