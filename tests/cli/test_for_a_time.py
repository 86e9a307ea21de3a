"""``for: 9s`` in a real run whose controller is killed: the rest of the time is right."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ensemble_testing import wait_until
from killed_runs import CRASH

from ensemble_core.cli.toolkit import KeptRun
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.replay import Replay
from ensemble_core.model.events import Resumed, StopRequested, TimerElapsed

SECONDS = 9.0
#: After a resume, a time that is over is looked at when rows could be read.
GRACE = 5.0
FILE = """
jobs:
  - name: sim
    command: "sh -c 'echo T=60; until [ -e {cwd}/cold ]; do sleep 0.1; done; echo T=1; exec sleep 600'"
    observe: {key-value: {fields: [T]}}
  - {name: after, command: "true"}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: warm, trigger: metric, name: last.sim-T, when: "> 50", for: 9s,
     action: {name: submit, label: after}}
  - {trigger: job-done, name: after, action: {name: terminate, exit_code: 7}}
  - {trigger: metric, name: last.sim-T, when: "< 50", action: {name: terminate, exit_code: 9}}
"""


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    one = [sys.executable, str(CRASH / "one.py"), "", "0"]
    return subprocess.Popen([*one, *more, "--state", str(folder / "state")], cwd=folder)


def due(folder: Path) -> float | None:
    """Return when the time is over, according to the journal."""
    try:
        with KeptRun(str(folder / "state"), "r", salvage=True) as kept:
            rows = [row for row in kept.journal.rows() if row.type == "observed"]
    except EnsembleError:  # the run is only starting
        return None
    return rows[0].time + SECONDS if rows else None


@pytest.mark.parametrize("how", ["in time", "too late", "cold meanwhile", "stopped"])
def test_condition_that_lasts_without_a_controller_waits_for_the_rest_of_the_time(
    tmp_path: Path, how: str
) -> None:
    """After a kill, the time goes on; after a stop, it continues with the resume."""
    (tmp_path / "e.yaml").write_text(FILE)
    with start(
        tmp_path, "run", "e.yaml", "--tag", "r", "--executor", "local", "--set", "on_stop=keep"
    ) as first:
        try:
            wait_until(lambda: due(tmp_path) is not None)
        finally:
            first.send_signal(signal.SIGTERM if how == "stopped" else signal.SIGKILL)
    over = due(tmp_path)
    assert over is not None
    if how == "cold meanwhile":
        (tmp_path / "cold").touch()
    if how != "in time":
        wait_until(lambda: time.time() > over)
    with start(tmp_path, "resume", "r") as again:
        assert again.wait(600) == (9 if how == "cold meanwhile" else 7)
    with KeptRun(str(tmp_path / "state"), "r") as kept:
        replay = Replay(kept.journal, kept.loading)
        elapsed, halted = [], over
        for _, event, _ in replay.steps():
            if isinstance(event, StopRequested):
                halted = event.timestamp
            elif isinstance(event, Resumed):
                assert event.at >= event.timestamp
                expected = over if over > event.at else event.at + GRACE
                if how == "stopped":
                    expected = over + event.at - halted
                timer = replay.engine.next_timer()
                assert timer is not None
                assert (timer.kind, timer.when) == ("for", pytest.approx(expected, abs=1e-3))
            elif isinstance(event, TimerElapsed) and event.timer == "for":
                elapsed.append(event.timestamp)
        submitted = replay.engine.state.table.groups["after"].next_index
    if how == "cold meanwhile":
        assert (elapsed, submitted) == ([], 0)
    else:
        (at,) = elapsed
        assert at >= expected - 1e-3
        assert submitted == 1
