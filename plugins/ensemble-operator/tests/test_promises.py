"""Tests of the page of promises, which names a test for each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "what-is-held.md"


@pytest.mark.checkout
def test_every_promise_names_existing_tests() -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = "\n".join(each.read_text(encoding="utf-8") for each in TESTS.rglob("*.py"))
    there = set(re.findall(r"^def (test_\w+)\(", code, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 50
    assert named - there == set()
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.endswith("| tests |")
    ]
    unheld = [row for row in rows if "`" not in row.rsplit("|", 2)[1] and "this page" not in row]
    assert unheld == []
    assert [row.split()[1] for row in rows[:18]] == [str(number) for number in range(1, 19)]
