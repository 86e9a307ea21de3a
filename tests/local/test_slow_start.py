"""The wait of a supervisor for a controller that is slow to start."""

from __future__ import annotations

import socket
import threading

import pytest

from ensemble_core.local import supervisor
from ensemble_core.local.protocol import Splitter, line


def test_a_supervisor_waits_for_a_controller_however_long_its_plugins_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE", 0.01)
    mine, its = socket.socketpair()
    with mine, its:
        hello = line(["hello", {"tag": "slow"}])
        later = threading.Timer(0.5, mine.sendall, [hello])
        later.start()
        assert supervisor._hello(its, Splitter()) == {"tag": "slow"}
        later.join()


def test_a_supervisor_ends_where_its_controller_has_gone() -> None:
    mine, its = socket.socketpair()
    with its:
        mine.close()
        assert supervisor._hello(its, Splitter()) is None
