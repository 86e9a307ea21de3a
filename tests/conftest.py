"""What every test of the core may count on: a home of its own, and no setting from outside."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_from_outside(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs keep their state in a folder of the test's own; colours and widths are the test's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
