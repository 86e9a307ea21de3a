"""Runs on the file queue of ``tests/journal/crash`` whose controller is killed at an event."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["CRASH", "JOBS", "YAML", "empty_folder", "kill", "submitted"]

CRASH = Path(__file__).parents[1] / "journal" / "crash"
YAML = """
jobs:
  - {name: work, command: x, count: 3, options: {disk: {lasts: 0.1}}}
  - {name: next, command: x}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: work}}
  - {id: each, trigger: job-success, name: work, repetitions: 3, action: {name: submit, label: next}}
"""
#: All jobs of this ensemble.
JOBS = {"work.0": 1, "work.1": 1, "work.2": 1, "next.0": 1, "next.1": 1, "next.2": 1}
#: Copies of the folders of killed runs, by everything that a run depends on.
_COPIES: dict[tuple[object, ...], Path] = {}


def empty_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for a run with this ensemble the working directory; return it.

    All tests use the same path, because a journal has absolute paths: a killed run can only be
    resumed in its folder.
    """
    folder = base / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "e.yaml").write_text(YAML)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(CRASH)
    return folder


def kill(folder: Path, kind: str, number: int, words: Sequence[str]) -> None:
    """Run ``ensemble`` with these arguments and kill it at this event.

    It is killed earlier if the run would otherwise be over, because a slow machine reports more
    events at once. The state folder must be called ``state``. Later calls copy the first result.
    """
    key = (folder, (folder / "e.yaml").read_text(), kind, number, *words)
    if key in _COPIES:
        shutil.copytree(_COPIES[key], folder, dirs_exist_ok=True)
        return
    while True:
        command = [sys.executable, str(CRASH / "one.py"), kind, str(number), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == -signal.SIGKILL:
            break
        assert number > 1, done.stdout + done.stderr
        assert done.returncode in (0, 1), done.stdout + done.stderr
        number -= 1
        shutil.rmtree(folder / "state")
        (folder / "queue.jsonl").unlink()
    _COPIES[key] = folder.with_name(f"copy-{len(_COPIES)}")
    shutil.copytree(folder, _COPIES[key])


def submitted(folder: Path) -> Counter[str]:
    """Return how often each job was submitted to the queue."""
    path = folder / "queue.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return Counter(line["submit"] for line in lines if "submit" in line)
