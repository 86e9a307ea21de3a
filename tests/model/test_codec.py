"""Encoding of plain data as JSON: as the standard library does it, with or without its C encoder."""

from __future__ import annotations

import json

import pytest

from ensemble_core.model import codec

DATA = {
    "a": [1, 2.5, 1e300, float("nan"), float("-inf"), None, True, 'é "\n\u2028'],
    "b": {},
    "c": (),
    "é": [[], {"d": -0.0}],
}


@pytest.mark.parametrize("value", [DATA, [], "text", 3, None])
@pytest.mark.parametrize("fast", [True, False])
def test_text_is_that_of_the_standard_library(
    value: object, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:  # an implementation of Python without it
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    assert codec._encoder()(value) == json.dumps(value, separators=(",", ":"))
