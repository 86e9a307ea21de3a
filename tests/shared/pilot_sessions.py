"""Sessions of the executor ``pilot`` whose pilots are jobs of this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_pilot.ledger import Transaction
from ensemble_pilot.pilot_controller import Controller
from ensemble_testing import Session
from ensemble_testing.executor import wait_until

__all__ = [
    "PLUGIN",
    "WORK",
    "controller",
    "kill_at_line",
    "new_session",
    "patch_nodes",
    "ran",
    "stop",
]

(PLUGIN,) = ensemble_executors()
#: A job that notes that it ran, and waits for the file ``go``.
WORK = 'echo "$ENSEMBLE_JOB_ID" >> ran; until [ -e go ]; do sleep 0.05; done'


def new_session(folder: Path, **options: Any) -> Session:
    """Return a session whose pilots have one core each, on a machine with four slots."""
    local = {"options": {"slots": 4, "pool": "none"}, "cores": 1, "idle": 60, "orphan": 60}
    return Session(PLUGIN.build({**local, "grace": 0.3, **options}), folder, 60.0, tidy=True)


def controller(session: Session) -> Controller:
    """Return the controller of an open session."""
    found: Controller = session.executor._controller  # type: ignore[attr-defined]
    return found


def ran(folder: Path) -> list[str]:
    """Return the jobs that have begun to :data:`WORK`, in order."""
    file = folder / "ran"
    return file.read_text().split() if file.exists() else []


def patch_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the tasks of pilots and their supervisors execute Python code before they begin."""
    place = folder / "patch"
    place.mkdir()
    # Supervisors run no sitecustomize; the task starts them with a program.
    first = f"exec({code!r})\n".replace("{", "{{").replace("}", "}}")
    (place / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'ensemble_pilot.node' in sys.orig_argv:\n"
        "    import ensemble_core.local.supervisor_start as start\n"
        f"    begin = 'import gc, sys\\n'\n"
        "    assert begin in start._PROGRAM\n"
        f"    start._PROGRAM = start._PROGRAM.replace(begin, begin + {first!r})\n"
        f"    exec({code!r})\n"
    )
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{place}{os.pathsep}{path}" if path else str(place))


def kill_at_line(kind: str, moment: str) -> None:
    """Let this process be killed ``before`` or ``after`` a line of this kind is in the ledger."""
    end = Transaction.end

    def transaction_end(transaction: Transaction) -> bool:
        if any(line[0] == kind for line in transaction._lines):
            if moment == "after":
                transaction.ledger.add(*transaction._lines)
                transaction.ledger.sync()
            os.kill(os.getpid(), signal.SIGKILL)
        return end(transaction)

    Transaction.end = transaction_end  # type: ignore[method-assign]


def stop(pid: int) -> None:
    """Stop a process, and wait until it does nothing any more.

    On a busy machine, a thread that SIGSTOP has not reached yet still takes a job that comes later.
    """

    def states() -> set[str]:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return {(each / "stat").read_text().rpartition(")")[2].split()[0] for each in threads}

    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: states() == {"T"})
