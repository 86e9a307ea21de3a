"""Supervisors of version 1.0 that still have a run's jobs: they are used, or an error gives a hint.

``data/supervisor-1.0.json`` has the recorded answers of such a supervisor to a later controller.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ensemble_core import ExecutorError, Job, JobEvent
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.ledger import Ledger
from ensemble_core.local.protocol import JOB_FIELDS, encode_job
from ensemble_core.local.recovery import past_records
from ensemble_core.local.supervisor_client import SupervisorClient
from ensemble_core.model.events import Event
from ensemble_core.plugin.executor import Run

RECORDED = json.loads((Path(__file__).parent / "data" / "supervisor-1.0.json").read_text())

#: Fields of a job in version 1.0; its supervisor accepts no others.
FIELDS_OF_1_0 = {
    "id", "group", "index", "command", "nodes", "tasks", "cores_per_task", "gpus_per_task",
    "duration", "workdir", "environment", "stdout", "stderr", "urgency", "parameters", "observe",
    "executor", "options",
}  # fmt: skip


class Old:
    """A supervisor that replays the recorded answer to each request."""

    def __init__(self, turns: list[dict[str, Any]]) -> None:
        self.heard: list[list[Any]] = []
        self.ours, self._its = socket.socketpair()
        self._turns = turns
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._its, self._its.makefile("r", encoding="ascii") as requests:
            for request, turn in zip(requests, self._turns, strict=False):
                self.heard.append(json.loads(request))
                assert turn["asked"] == self.heard[-1][0]
                text = "".join(f"{said}\n" for said in turn["said"])
                self._its.sendall(text.encode("ascii"))
                if turn is self._turns[-1]:
                    return

    def close(self) -> None:
        self.ours.close()
        self._thread.join(10)


@pytest.fixture
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Old]:
    old = Old(RECORDED[request.param])
    monkeypatch.setattr(SupervisorClient, "_find", lambda self: old.ours)
    yield old
    old.close()


def until(heard: list[Event], job: str, name: str) -> None:
    deadline = time.monotonic() + 120
    while not any(isinstance(e, JobEvent) and (e.job, e.name) == (job, name) for e in heard):
        assert time.monotonic() < deadline, (job, name)
        time.sleep(0.01)


@pytest.mark.parametrize("old", ["spoken"], indirect=True)
def test_a_supervisor_of_version_1_0_is_understood(old: Old, tmp_path: Path) -> None:
    heard: list[Event] = []
    executor = LocalExecutor(slots=2)
    executor.open(Run("recorded", tmp_path / "output", time.time, tmp_path), heard.extend)
    found = executor.reattach({"a.0": 0.0, "a.1": 0.0, "a.9": 0.0})
    assert found == {"a.0": True, "a.1": True, "a.9": False}
    until(heard, "a.0", "clean")
    executor.submit([Job(id="b.0", group="b", index=0, command=("sh", "-c", "exit 3"))])
    until(heard, "b.0", "clean")
    executor.resize("r1", 1)
    executor.cancel(["a.1"])
    until(heard, "a.1", "clean")
    executor.forget(["a.0"])
    executor.close()
    ends = {e.job: e.context for e in heard if isinstance(e, JobEvent) and e.name == "finish"}
    assert ends == {"a.0": {"status": 0}, "b.0": {"status": 768}, "a.1": {"status": 15}}
    (resized,) = [event for event in heard if event.type == "resize-outcome"]
    assert resized.to_dict()["outcome"] == "denied"
    (submit,) = [message for message in old.heard if message[0] == "submit"]
    assert all(FIELDS_OF_1_0.issuperset(job) for job in submit[1])


def test_jobs_have_no_field_that_a_supervisor_of_version_1_0_ignores() -> None:
    """That supervisor does not check for unknown fields.

    If this fails, raise ``protocol.VERSION``, so that the supervisor rejects the controller, and let the
    ledger's reader accept both versions. (It may ignore numbers that are also in the job's id,
    except that ENSEMBLE_ATTEMPT is then missing. Without ``grace``, it uses the executor's, and
    without ``memory_per_task``, jobs start as they did in that version; the controller looks for
    ``outputs`` and ``within``. Without ``warn``, jobs get no signal before their time limit;
    ``avoid`` only rejects jobs here.)
    """
    everything: dict[str, Any] = dict.fromkeys(JOB_FIELDS, "x")
    harmless = {"replica", "attempt", "requeued", "grace", "memory_per_task"}
    harmless |= {"outputs", "within", "warn", "avoid"}
    assert FIELDS_OF_1_0.issuperset(encode_job(Job(**everything)).keys() - harmless)


@pytest.mark.parametrize("old", ["refused"], indirect=True)
def test_a_supervisor_of_another_version_causes_an_error_with_a_hint(
    old: Old, tmp_path: Path
) -> None:
    executor = LocalExecutor(slots=2)
    with pytest.raises(ExecutorError, match="another version of Ensemble") as raised:
        executor.open(Run("recorded", tmp_path / "output", time.time, tmp_path), lambda _: None)
    assert raised.value.hint == "resume the run with the version that it was started with"


def test_a_ledger_of_version_1_0_is_read(tmp_path: Path) -> None:
    lines = [said for turn in RECORDED["spoken"] for said in turn["said"] if '["e","a' in said]
    begun = lines[
        : 1 + next(at for at, text in enumerate(lines) if '"a.0"' in text and "clean" in text)
    ]
    head = ['["v",1,"recorded",1795310579.0]', json.dumps(["k", os.uname().nodename, "", 1])]
    (tmp_path / "local.log").write_text("".join(f"{text}\n" for text in head + begun))
    ledger = Ledger(str(tmp_path), "recorded", 1795310580.0)
    assert ledger.unreadable == 0
    assert ledger.knows("a.0")
    ((record, past),) = past_records(ledger)
    ledger.close()
    assert record.job == Job(id="a.1", group="a", index=1, command=("sleep", "3600"))
    assert past.launched
