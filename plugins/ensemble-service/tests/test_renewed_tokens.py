"""Tests of renewed tokens: each call reads the token file, because a run may outlive its token."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ensemble_service.channel import read_token
from ensemble_service.client import ServiceClient
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile

from ensemble_core import EnsembleError


@pytest.mark.parametrize("how", ["named by the program", "named in the environment"])
def test_a_client_uses_the_current_token_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    tokens = TokenFile(tmp_path / "service" / "tokens.json")
    text, first = tokens.add("viewer", "default")
    file = tmp_path / "token"
    file.write_text(text)
    given: dict[str, Any] = {"token": partial(read_token, file)}
    if how == "named in the environment":
        monkeypatch.setenv("ENSEMBLE_TOKEN_FILE", str(file))
        given = {}
    with (
        serving(Settings(state=tmp_path / "service", port=0)) as service,
        ServiceClient(port=service.port, timeout=150, **given) as client,
    ):
        assert client.status() == []
        file.unlink()  # the client keeps the last token while the file is missing
        assert client.status() == []
        text, _ = tokens.add("viewer", "default")
        file.write_text(text)
        tokens.remove(first.id)
        assert client.status() == []
        file.write_text("ensemble-wrong")
        with pytest.raises(EnsembleError, match="token"):
            client.status()
