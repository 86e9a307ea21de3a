"""Detection of out-of-memory kills from the kernel's counters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ensemble_testing import wait_until

from ensemble_core.local.job_memory import MemoryKills

#: Content of /proc/self/cgroup, and the path of the counter's file.
PLACES = [
    ("0::/user.slice/run-7", "sys/fs/cgroup/user.slice/run-7/memory.events"),
    ("4:cpu,memory:/jobs/7\n0::/", "sys/fs/cgroup/memory/jobs/7/memory.oom_control"),
    ("4:memory:/seen/from/outside", "sys/fs/cgroup/memory/memory.oom_control"),
    ("0::/", "proc/vmstat"),
    ("", "proc/vmstat"),
]


def write(root: Path, place: str, text: str) -> None:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(text)


@pytest.mark.parametrize(("cgroup", "place"), PLACES)
def test_a_kill_counts_if_the_counter_grew(
    cgroup: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("ensemble_core.local.job_memory.time.monotonic", lambda: now)
    write(tmp_path, "proc/self/cgroup", cgroup + "\n")
    write(tmp_path, "proc/vmstat", "pgfault 5\noom_kill 2\n")
    write(tmp_path, place, "oom 9\noom_kill 2\noom_group_kill 9\n")
    kills = MemoryKills(tmp_path)
    assert not kills.happened()
    write(tmp_path, place, "oom 9\noom_kill 3\noom_group_kill 9\n")
    assert kills.happened()
    assert kills.happened()  # another process at the same time
    now += 2.0
    assert not kills.happened()


def test_without_a_counter_no_kill_is_detected(tmp_path: Path) -> None:
    assert not MemoryKills(tmp_path).happened()


def test_a_reset_counter_is_not_a_kill(tmp_path: Path) -> None:
    write(tmp_path, "proc/vmstat", "oom_kill 5\n")
    kills = MemoryKills(tmp_path)
    write(tmp_path, "proc/vmstat", "oom_kill 1\n")
    assert not kills.happened()
    (tmp_path / "proc/vmstat").unlink()
    assert not kills.happened()


def test_a_kill_is_new_only_once(tmp_path: Path) -> None:
    write(tmp_path, "proc/vmstat", "oom_kill 5\n")
    kills = MemoryKills(tmp_path)
    assert not kills.grew()
    write(tmp_path, "proc/vmstat", "oom_kill 6\n")
    assert kills.grew()
    assert not kills.grew()
    assert kills.happened()


FILE = """
jobs:
  - {name: sim, command: [sh, -c, '"$0" -c "b = bytes(1) * 2**30"; exit 0', %s], count: 2}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""


def test_a_kill_that_ends_no_job_is_reported_once(tmp_path: Path) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"ensemble-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(2**29))
    except OSError:
        pytest.skip("only root can limit memory, with the control groups of version 1")
    try:
        (tmp_path / "e.yaml").write_text(FILE % sys.executable)
        words = [
            sys.executable,
            "-c",
            "from ensemble_core.cli.main import main; main()",
            "run",
            "e.yaml",
        ]
        words += ["--executor", "local", "--state", "state", "--tag", "run"]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            preexec_fn=lambda: (group / "cgroup.procs").write_text("0"),
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("warning: the kernel has killed a process for lack of memory") == 1
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
