"""Jobs that were sent ahead to a full node come back if they wait there for long, and run once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ensemble_pilot import fleet
from ensemble_pilot.node_connections import Connections
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from pilot_sessions import controller, new_session, ran

from ensemble_core import Job
from ensemble_core.local.ledger_reader import read_ledger
from ensemble_core.local.leftover_jobs import supervisor_pid

#: A job that notes that it ran, and waits for a file if it has one.
NOTE = 'echo "$ENSEMBLE_JOB_ID" >> ran; until [ -e "$0" ]; do sleep 0.05; done'


#: Below or above the run time of each job, also on a busy machine.
NONE_IS_SHORT, ALL_ARE_SHORT = -1.0, 1000.0


def long_and_short(
    session: Session, folder: Path, patch: pytest.MonkeyPatch
) -> tuple[list[Job], list[Job]]:
    """Submit two long jobs, one for each pilot, and others of their group, which were short so far.

    So, one of the others waits on each node behind a long one.
    """
    wait_until(lambda: controller(session).gauges["pilots.ready"] == 2)
    (folder / "now").touch()
    patch.setattr(fleet, "_SHORT", NONE_IS_SHORT)
    session.run(*(session.job("sh", "-c", NOTE, "now") for _ in range(20)))
    long = [session.job("sh", "-c", NOTE, f"go{number}") for number in range(2)]
    others = [session.job("sh", "-c", NOTE, "now") for _ in range(6)]
    patch.setattr(fleet, "_SHORT", ALL_ARE_SHORT)
    session.submit(*long, *others)
    for job in long:
        session.wait_for(job, "start")
    return long, others


def check(session: Session, folder: Path, *jobs: Job) -> None:
    """Check that these jobs ended well, and that each job ran once."""
    for job in jobs:
        assert session.cause(job) == "exit"
        assert "exception" not in session.names(job)
    session.check_ended_once()
    assert len(ran(folder)) == len(set(ran(folder))) == 28


def test_job_does_not_wait_behind_a_long_one_while_another_node_is_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_session(folder, least=2, most=2) as session:
        long, others = long_and_short(session, folder, monkeypatch)
        (folder / "go1").touch()
        session.wait_clean(long[1], *others)
        assert "clean" not in session.names(long[0])
        (folder / "go0").touch()
        session.wait_clean(long[0])
        check(session, folder, *long, *others)


def test_job_that_came_back_runs_elsewhere_also_if_the_answer_is_lost_with_its_pilot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    take = Connections._on_message

    def on_message(self: Connections, peer: Any, message: Any) -> None:
        if message[0] == "recalled" and len(lost) < 2:
            lost.extend(message[1])
        else:
            take(self, peer, message)

    monkeypatch.setattr(Connections, "_on_message", on_message)
    with new_session(folder, least=2, most=2) as session:
        long, others = long_and_short(session, folder, monkeypatch)
        wait_until(lambda: len(lost) == 2)
        states = [folder / "state" / session.tag / f"pilot-{n}" / "node-0" for n in (1, 2)]
        for state in states:
            assert {read_ledger(state, {}).state(name) for name in lost} == {"waiting"}
        for state in states:
            os.kill(supervisor_pid(state), signal.SIGKILL)
        session.wait_clean(*long, *others)
        assert [session.cause(job) for job in long] == ["preempted", "preempted"]
        check(session, folder, *others)
