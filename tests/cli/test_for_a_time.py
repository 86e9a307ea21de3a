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
from ensemble_core.model.events import Observed, Resumed, TimerElapsed

SECONDS = 9.0
#: After a resume, a time that is over is looked at when rows could be read.
GRACE = 5.0
FILE = """
jobs:
  - {name: sim, command: "sh -c 'echo T=60; exec sleep 600'", observe: {key-value: {fields: [T]}}}
  - {name: after, command: "true"}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: warm, trigger: metric, name: last.sim-T, when: "> 50", for: 9s,
     action: {name: submit, label: after}}
  - {trigger: job-done, name: after, action: {name: terminate, exit_code: 7}}
"""


@pytest.mark.parametrize("late", [False, True], ids=["in time", "too late"])
def test_controller_killed_while_a_condition_lasts_waits_for_the_rest_of_the_time(
    tmp_path: Path, late: bool
) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    state = str(tmp_path / "state")
    one = [sys.executable, str(CRASH / "one.py"), "", "0"]
    begin = [*one, "run", "e.yaml", "--tag", "r", "--executor", "local", "--state", state]

    def due() -> float | None:
        """Return when the time is over, according to the journal."""
        try:
            with KeptRun(state, "r", salvage=True) as kept:
                rows = [row for row in kept.journal.rows() if row.type == "observed"]
        except EnsembleError:  # the run is only starting
            return None
        return rows[0].time + SECONDS if rows else None

    with subprocess.Popen(begin, cwd=tmp_path) as first:
        try:
            wait_until(lambda: due() is not None)
        finally:
            first.send_signal(signal.SIGKILL)
    over = due()
    assert over is not None
    if late:
        wait_until(lambda: time.time() > over)
    again = subprocess.run([*one, "resume", "r", "--state", state], cwd=tmp_path, timeout=600)
    assert again.returncode == 7
    with KeptRun(state, "r") as kept:
        replay = Replay(kept.journal, kept.loading)
        elapsed = []
        for _, event, _ in replay.steps():
            if isinstance(event, Resumed):
                resumed = event.timestamp
                expected = over if over > resumed else resumed + GRACE
                timer = replay.engine.next_timer()
                assert timer is not None
                assert (timer.kind, timer.when) == ("for", expected)
            elif isinstance(event, TimerElapsed) and event.timer == "for":
                elapsed.append(event.timestamp)
            elif isinstance(event, Observed):
                assert event.timestamp == over - SECONDS
        (at,) = elapsed
        assert at >= expected
        assert replay.engine.state.table.groups["after"].next_index == 1
