"""A supervisor of another version of Ensemble that still has a run's jobs."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from ensemble_core import ExecutorError
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.supervisor_client import SupervisorClient
from ensemble_core.plugin.executor import Run

REFUSAL = {
    "type": "error",
    "code": "other-version",
    "what": "the supervisor of this run's jobs is of another version of Ensemble",
    "cause": "it speaks version 1 and not 2",
    "hint": "resume the run with the version that it was started with",
    "file": None,
    "line": None,
    "column": None,
    "transient": False,
}


def test_a_supervisor_of_another_version_causes_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, its = socket.socketpair()
    heard: list[str] = []

    def refuse() -> None:
        with its, its.makefile("r", encoding="ascii") as requests:
            heard.append(json.loads(requests.readline())[0])
            its.sendall(json.dumps(["refused", REFUSAL]).encode() + b"\n")

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    monkeypatch.setattr(SupervisorClient, "_find", lambda self: ours)
    run = Run("recorded", tmp_path / "output", time.time, tmp_path)
    with pytest.raises(ExecutorError, match="another version of Ensemble") as raised:
        LocalExecutor(slots=2).open(run, lambda _: None)
    thread.join(60)
    assert heard == ["hello"]
    assert raised.value.hint == REFUSAL["hint"]
