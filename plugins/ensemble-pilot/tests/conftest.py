"""Fixtures of the tests: a temporary home folder, no user settings, and a folder for a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_testing.isolation import isolated

__all__ = ["folder", "isolated"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder the working directory. At the end, let jobs end that wait for ``go``."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    (tmp_path / "go").touch()
