"""Patterns that are compiled when they are first used."""

from __future__ import annotations

import copy
import re
import subprocess
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


_YAML = """
import re
at_once = re.compile
from ensemble_core.config.reader import read_text
from ensemble_core.late_pattern import late_pattern
print(read_text("a: 1\\nb: \\u00e9", "file").data)
import yaml
print(re.compile is at_once, type(yaml.reader.Reader.NON_PRINTABLE) is late_pattern)
print(yaml.safe_load("[1.5, 2001-02-03, yes, 0x10, '1:2', \\u00e9]"))
try:
    yaml.safe_load("a: \\x07")
except yaml.YAMLError as error:
    print(type(error).__name__)
"""


def test_the_patterns_of_yaml_are_late_and_work() -> None:
    done = subprocess.run([sys.executable, "-c", _YAML], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "{'a': 1, 'b': 'é'}",
        "True True",
        "[1.5, datetime.date(2001, 2, 3), True, 16, '1:2', 'é']",
        "ReaderError",
    ], done.stderr
