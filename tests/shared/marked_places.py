"""Texts with a mistake; the sign ``«`` marks the expected position of the error."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import EnsembleError, FileErrors
from ensemble_core.plugin.registry import Registry

SIGN = "«"


def unmarked(text: str) -> tuple[str, str]:
    """Return the text without the sign, and the sign's position in the format of errors."""
    before, sign, after = text.partition(SIGN)
    assert sign, text
    return before + after, f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def wrong(study: str, replaced: str, by: str, *words: str) -> object:
    """Return a test parameter: a study with a marked mistake, and words of its error."""
    assert study.count(replaced) == 1, replaced
    assert by.count(SIGN) == 1, by
    return pytest.param(study.replace(replaced, by), words, id=by.replace(SIGN, ""))


def check_errors(text: str, registry: Registry, words: Iterable[str]) -> None:
    """Assert that a marked text has an error at the sign, with all of these words."""
    text, place = unmarked(text)
    with pytest.raises(FileErrors) as caught:
        load_text(text, registry, must_begin=True)
    told = " ".join(str(caught.value).split())
    assert f"ensemble.yaml:{place}: " in told
    for word in words:
        assert word in told, told


def the_error(text: str, registry: Registry) -> EnsembleError:
    """Return the only error of a marked text, which must be at the sign."""
    text, place = unmarked(text)
    with pytest.raises(FileErrors) as caught:
        load_text(text, registry)
    (error,) = caught.value.errors
    assert str(error.where) == f"ensemble.yaml:{place}"
    return error
