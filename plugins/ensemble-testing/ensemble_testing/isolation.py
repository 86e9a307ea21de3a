"""Fixture that keeps the user's settings and runs out of tests.

Tests do not share cores with other runs of the user on this machine, which they would wait for,
and use no profile of the user or site.

In a ``conftest.py``: ``from ensemble_testing.isolation import isolated``.
"""

from __future__ import annotations

import os
import signal

import pytest

os.environ.setdefault("ENSEMBLE_POOL", "none")
os.environ["ENSEMBLE_PROFILE"] = "none"

# The parent process may ignore signals (nohup does), but the tests' processes must not.
for _signal in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(
            _signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL
        )


@pytest.fixture(autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs in a temporary folder, and remove settings of colours and widths.

    A surrounding Flux instance is hidden, because it would be the default executor.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    looks = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
    for name in (*looks, "FLUX_URI"):
        monkeypatch.delenv(name, raising=False)
