"""Tests of the service's commands and files with malicious or mistyped input."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ensemble_service.access import Unauthenticated
from ensemble_service.commands.server import main
from ensemble_service.tokens import TokenFile


def test_a_token_removed_while_no_file_could_be_opened_is_rejected_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.tokens._GLANCE", 0.0)
    path = tmp_path / "tokens.json"
    text, token = TokenFile(path).add("admin")
    service = TokenFile(path)
    assert service.identify(text).role == "admin"
    TokenFile(path).remove(token.id)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as flood:
        flood.setattr("builtins.open", refuse)
        assert service.identify(text).role == "admin"  # known ones stay valid
        assert "Too many open files" in service.trouble
    with pytest.raises(Unauthenticated):
        service.identify(text)
    assert service.trouble == ""


@pytest.mark.parametrize(
    "words",
    [
        ("start", "--port", "0", "--rate", "nan"),
        ("start", "--port", "0", "--rate", "inf"),
        ("start", "--port", "0", "--grace", "nan"),
        ("token", "add", "left", "--expires", "nan"),
        ("token", "add", "left", "--expires", "inf"),
        ("status", "--timeout", "nan"),
        ("status", "../x"),
        ("status", "a/b/c"),
        ("status", ""),
        ("status", "ä/b"),
    ],
)
def test_nonsensical_options_are_usage_errors(words: tuple[str, ...], tmp_path: Path) -> None:
    # Nothing listens on port 1, so other errors have another code.
    port = ("--port", "1") if words[0] == "status" else ()
    done = CliRunner().invoke(main, [*words, *port, "--state", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "tokens.json").exists()
