"""Each claim of docs/security.md names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.checkout
def test_each_claim_of_the_threat_model_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    named = re.findall(r"`([\w./-]+\.py)::(\w+)`", text)
    assert len(named) > 20
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text("utf-8"), f"{path}::{test}"
