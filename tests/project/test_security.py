"""Each claim in docs/security.md names an existing test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.checkout
def test_each_claim_of_the_threat_model_names_an_existing_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    named = re.findall(r"`([\w./-]+\.py)::(\w+::)?(\w+)`", text)
    assert len(named) == text.count(".py::") > 20
    suites = "".join(
        path.read_text("utf-8")
        for path in ROOT.glob("plugins/ensemble-testing/ensemble_testing/*.py")
    )
    for path, suite, test in named:  # a suite inherits the tests of its base
        held = (ROOT / path).read_text("utf-8") + (suites if suite else "")
        assert f"class {suite[:-2]}(" in held or not suite, f"{path}::{suite}"
        assert f"def {test}(" in held, f"{path}::{suite}{test}"


@pytest.mark.checkout
def test_each_claim_of_the_threat_model_names_its_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8").partition("## Not yet protected")[0]
    bullets = re.findall(r"^- (?:.|\n(?!\n|- |#))+", text, re.MULTILINE)
    tables = re.findall(r"^\| claim \| tests \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    claims = [*bullets, *(row for table in tables for row in table.splitlines())]
    assert len(claims) > 50
    assert [claim for claim in claims if not re.search(r"\.py::\S*test_", claim)] == []
