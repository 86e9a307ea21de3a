"""The script that runs all checks ends, whatever a command leaves or waits for, and says why."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.checkout

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check.py"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check", module)
    spec.loader.exec_module(module)
    return module


def test_all_that_a_command_prints_is_shown(check: ModuleType) -> None:
    assert check.show("sh", "-c", "echo one; printf two; exit 3")[0] == 3
    assert check.show("sh", "-c", "echo one; printf two") == (0, ["one", "two"])


def test_a_process_that_a_command_leaves_is_shown_and_not_awaited(check: ModuleType) -> None:
    code, lines = check.show("sh", "-c", "sleep 1000 & echo $!")
    os.kill(int(lines[0]), signal.SIGKILL)
    assert (code, lines[1]) == (0, "processes that this command left hold its output:")
    assert "sleep 1000" in lines[2]
    assert [lines[2]] == check.RESULTS.left


def test_a_command_that_prints_nothing_for_long_is_stopped_and_shows_what_it_does(
    check: ModuleType,
) -> None:
    check.SILENCE = 2.0
    program = "import time\ndef stuck(): time.sleep(1000)\nstuck()"
    code, lines = check.show(sys.executable, "-X", "faulthandler", "-c", program)
    assert code == -signal.SIGABRT
    assert "time.sleep(1000)" in lines[1] + lines[2] + lines[3]
    assert any("in stuck" in line for line in lines)


def test_checks_that_are_terminated_show_what_still_runs(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import check, os, signal, time\n"
        "signal.signal(signal.SIGTERM, check.terminated)\n"
        "def work():\n    check.say('begun')\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(300)\n"
        "check.together({'slow': ('title', work)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert "STILL RUNNING: slow\n" in done.stdout
    assert "begun" in done.stdout
