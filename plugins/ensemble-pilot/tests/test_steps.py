"""The controller is killed at each line of its ledger: just before it is written, and just after.

After the resume, each job has run once.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import run_and_kill
from pilot_sessions import kill_at_line, new_session, stop

from ensemble_core.local.leftover_jobs import supervisor_pid

#: Two jobs run, the second in another pilot than the one to which it was sent first.
JOBS = 2
LINES = {
    "n": "a pilot is requested",
    "s": "the outer queue has it",
    "b": "it has begun",
    "r": "its nodes are connected",
    "p": "a job is placed",
    "w": "a job waits again",
    "o": "a pilot is over",
    "e": "a job was cancelled while it waited",
    "f": "jobs are forgotten",
}


def work(session: Session, number: int) -> str:
    return f"echo {number} >> {session.folder}/ran"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", LINES)
def test_each_job_runs_once(
    kind: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = new_session(tmp_path)

    def control() -> None:
        kill_at_line(kind, moment)
        first.__enter__()
        one = first.job("sh", "-c", work(first, 0))
        first.run(one)
        keeper = supervisor_pid(tmp_path / "state" / first.tag / "pilot-1" / "node-0")
        stop(keeper)
        two = first.job("sh", "-c", work(first, 1))
        first.submit(two)
        controller = first.executor._controller  # type: ignore[attr-defined]
        wait_until(lambda: controller.request(lambda c: two.id in c.fleet.placed))
        held = first.job("true", urgency=0)
        first.submit(held)
        first.cancel(held)
        first.wait_clean(held)
        os.kill(keeper, signal.SIGKILL)
        first.wait_clean(two)
        first.executor.forget([one.id])
        time.sleep(60)

    run_and_kill(control, tmp_path / "trace")
    with new_session(tmp_path).resume(first) as later:
        jobs = [later.job("sh", "-c", work(later, number)) for number in range(JOBS)]
        pids = [supervisor_pid(path) for path in (tmp_path / "state").glob("*/pilot-1/node-0")]
        for pid in filter(None, pids):  # as if the node was slow, and then continued
            os.kill(pid, signal.SIGCONT)
        known = later.executor.reattach({job.id: 0.0 for job in jobs})
        unknown = [job for job in jobs if not known[job.id]]
        # A job that was forgotten is over; the run would not ask for it.
        ran = (tmp_path / "ran").read_text().split() if (tmp_path / "ran").exists() else []
        again = [job for job in unknown if str(job.index) not in ran]
        if again:
            later.submit(*again)
        for job in jobs:
            if known[job.id] or job in again:
                later.wait_clean(job)
                assert later.cause(job) == "exit"
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1"]
