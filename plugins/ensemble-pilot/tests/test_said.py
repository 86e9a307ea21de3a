"""Messages about pilots: each step once, in the output of the run and in its status."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from ensemble_pilot import ensemble_executors
from ensemble_pilot.ledger import PilotLedger, Records
from ensemble_pilot.status import pilot_status
from ensemble_testing import Session
from ensemble_testing.executor import wait_until

from ensemble_core import ExecutorError, Problem

(PLUGIN,) = ensemble_executors()
FILE = """
jobs:
  - {name: sim, count: 3, command: "sh -c 'until [ -e go ]; do sleep 0.05; done'", workdir: "{here}"}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""
OPTIONS = ("-o", 'options={"slots": 4, "pool": "none"}', "-o", "cores=2", "-o", "idle=1m")


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ensemble_core.cli", *words, "--state", "state"]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)


def status(folder: Path) -> str:
    command = [sys.executable, "-m", "ensemble_core.cli", "status", "s", "--state", "state"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.MULTILINE))


def test_each_step_of_a_pilot_is_said_once_also_if_the_controller_is_killed(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    words = ("run", "e.yaml", "--executor", "pilot", "--tag", "s", *OPTIONS)
    first = start(tmp_path, *words)
    said = tmp_path / "said"
    wait_until(lambda: "pilot 1 ready" in said.read_text())
    shown = status(tmp_path)
    assert " pilots      1 requested: 1 ready" in shown
    assert "  pilot 1 ready since " in shown
    first.send_signal(signal.SIGKILL)
    first.wait()
    (tmp_path / "go").touch()
    assert start(tmp_path, "resume", "s").wait() == 0, said.read_text()
    text = said.read_text()
    assert count(r"^   pilot 1 requested \(1 node of 2 cores\)$", text) == 1, text
    assert count(r"^   pilot 1 ready after .* on .*: 2 cores$", text) == 1, text
    assert count(r"^   pilot 1 ended after .*: given back$", text) == 1, text
    shown = status(tmp_path)
    (share,) = re.findall(r"jobs used .* of them \((\d+)%\)", shown)
    assert 0 < int(share) <= 100, shown
    assert " pilots      1 requested: 1 ended" in shown
    assert count(r"^  pilot 1 ended at .* after .*: given back$", shown) == 1, shown


def test_pilot_that_ended_by_itself_says_why_and_how_many_jobs_wait_again(tmp_path: Path) -> None:
    options = {"options": {"slots": 4, "pool": "none"}, "cores": 1, "least": 1, "orphan": 60}
    with Session(PLUGIN.build(options), tmp_path, 60.0, tidy=True) as session:
        controller = session.executor._controller  # type: ignore[attr-defined]
        wait_until(lambda: controller.gauges["pilots.ready"])
        state = tmp_path / "state" / session.tag
        command = b"ensemble_pilot.node\0" + os.fsencode(state / "pilot-1")
        tasks = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # other processes end meanwhile
                if command in path.read_bytes():
                    tasks.append(int(path.parent.name))
        (task,) = tasks
        os.kill(task, signal.SIGTERM)
        wait_until(lambda: any("pilot 1 ended" in text for text in infos(session)))
    (text,) = [text for text in infos(session) if text.startswith("pilot 1 ended")]
    assert "the pilot ends: got SIGTERM" in text


def infos(session: Session) -> list[str]:
    events = [event for event in list(session.events) if isinstance(event, Problem)]
    return [event.message for event in events if event.level == "info"]


def test_use_of_pilots_is_recorded_while_jobs_run(tmp_path: Path) -> None:
    """A controller that is killed loses at most some seconds of it."""
    options = {"options": {"slots": 4, "pool": "none"}, "cores": 1, "orphan": 60}
    with Session(PLUGIN.build(options), tmp_path, 60.0, tidy=True) as session:
        job = session.job("sh", "-c", "until [ -e go ]; do sleep 0.05; done")
        session.submit(job)
        ledger = tmp_path / "state" / session.tag / "pilots.log"
        wait_until(lambda: Records(ledger).core_seconds[1] > 0, 40.0)
        (tmp_path / "go").touch()


def test_pilots_that_do_not_end_are_named_when_the_run_leaves(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """They are fenced off: if the queue starts one later, it ends at once."""
    monkeypatch.setattr("ensemble_pilot.pilot_controller._GIVING_BACK", 0.3)
    options = {"options": {"slots": 4, "pool": "none"}, "cores": 1, "least": 1, "orphan": 60}
    with Session(PLUGIN.build(options), tmp_path, 60.0) as session:
        controller = session.executor._controller  # type: ignore[attr-defined]
        wait_until(lambda: controller.gauges["pilots.ready"])
        outer = controller.pilots.outers[""]
        cancel = outer.cancel

        def lost(jobs: object) -> None:
            raise ExecutorError("the queue does not answer", code="away")

        monkeypatch.setattr(outer, "cancel", lost)
        # The connection is closed, too: the task cannot hear that it is given back.
        monkeypatch.setattr(controller.nodes, "drop", lambda pilot: None)
    (problem,) = session.problems()
    assert problem.startswith("pilots 1 were given back, but the queue has not ended them")
    state = tmp_path / "state" / session.tag
    assert (state / "pilot-1" / "fence").exists()
    said = state / "pilot-1" / "err"
    wait_until(lambda: "it counts as ended" in said.read_text())
    del cancel


def test_status_shows_pilots_of_a_run_without_a_controller(tmp_path: Path) -> None:
    assert pilot_status(tmp_path) == (
        [" pilots      none requested"],
        {
            "core_hours": 0,
            "used_core_hours": 0,
            "counted_until": None,
            "none_requested": None,
            "pilots": [],
        },
    )
    ledger = PilotLedger(tmp_path / "pilots.log", "0" * 16)
    for number in range(1, 20):
        ledger.add(["n", number, time.time()], ["s", number, f"4{number}"])
    ledger.add(["b", 2, 5.0], ["r", 2, 6.0, ["n1", "n2"]], ["b", 3, 5.0])
    ledger.add(*(["o", number, 8.0, "scancel"] for number in range(4, 10)))
    ledger.sync()
    ledger.close()
    lines, data = pilot_status(tmp_path)
    assert lines[0] == " pilots      19 requested: 11 waiting, 1 starting, 1 ready, 6 ended"
    assert lines[1].startswith("  pilot 1 (job 41) waiting in the queue since ")
    assert lines[2].startswith("  pilot 2 (job 42) ready since ")
    assert lines[2].endswith(" on n1, n2")
    assert len(lines) == 12, "a line for all together, for ten pilots, and for the others"
    assert lines[-1] == "  and 9 more; --json has them all"
    pilots = data["pilots"]
    assert [each["state"] for each in pilots[:4]] == ["waiting", "ready", "starting", "ended"]
    ledger = PilotLedger(tmp_path / "pilots.log", "")
    ledger.add(["d", 2, 7.0])
    ledger.close()
    lines, data = pilot_status(tmp_path)
    assert lines[2].startswith("  pilot 2 (job 42) draining since ")
    pilots = data["pilots"]
    assert pilots[3]["why"] == "scancel"
    assert json.loads(json.dumps(data)) == data
    again = PilotLedger(tmp_path / "pilots.log", "")
    assert again.last_pilot == 19, "numbers are not used again"
    again.close()
    assert pilot_status(tmp_path)[1]["pilots"] == pilots


def test_status_shows_how_much_of_the_pilots_was_used_and_why_no_other_one_is_requested(
    tmp_path: Path,
) -> None:
    ledger = PilotLedger(tmp_path / "pilots.log", "0" * 16)
    ledger.add(["n", 1, 0.0, 36], ["b", 1, 100.0], ["u", 1, 72_000.0, 3000.0])
    ledger.add(["o", 1, 3700.0, "given back"], ["y", "no job waits"])
    ledger.close()
    for _ in range(2):  # the second time, another controller has written the file again
        lines, data = pilot_status(tmp_path)
        assert lines[1] == "  pilots had 36 core-hours; jobs used 20 of them (56%)"
        assert lines[2] == "  no other one is requested: no job waits"
        assert (data["core_hours"], data["used_core_hours"]) == (36, 20)
        assert data["none_requested"] == "no job waits"
        assert data["pilots"][0]["used_core_hours"] == 20
        PilotLedger(tmp_path / "pilots.log", "").close()
