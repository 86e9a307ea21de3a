"""Texts with a mistake, in which the sign ``«`` marks the expected place of the error."""

from __future__ import annotations

import pytest

SIGN = "«"


def unmarked(text: str) -> tuple[str, str]:
    """Return the text without the sign, and the place of the sign in the format of errors."""
    before, sign, after = text.partition(SIGN)
    assert sign, text
    return before + after, f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def wrong(study: str, replaced: str, by: str, *words: str) -> object:
    """Return a study with a marked mistake, and the words of its error, as a case of a test."""
    assert study.count(replaced) == 1, replaced
    assert by.count(SIGN) == 1, by
    return pytest.param(study.replace(replaced, by), words, id=by.replace(SIGN, ""))
