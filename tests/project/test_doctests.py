"""Examples in docstrings of the product have the results that they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in (ROOT / "ensemble_core", *sorted(ROOT.glob("plugins/*/ensemble_*")))
    for file in sorted(package.rglob("*.py"))
    if ">>> " in file.read_text("utf-8")
]

pytestmark = pytest.mark.checkout


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_a_module_have_the_shown_results(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctest.testmod(import_module(module))
    assert found.attempted
    assert not found.failed, capsys.readouterr().out
