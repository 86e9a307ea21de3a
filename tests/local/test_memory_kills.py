"""Whether a SIGKILL was the kernel's, for want of memory: where the count of that is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ensemble_core.local.memory_kills import MemoryKills

#: What /proc/self/cgroup says, and where the count then stands, beside what else there is.
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
def test_a_kill_is_noticed_once_the_count_has_grown(
    cgroup: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("ensemble_core.local.memory_kills.time.monotonic", lambda: now)
    write(tmp_path, "proc/self/cgroup", cgroup + "\n")
    write(tmp_path, "proc/vmstat", "pgfault 5\noom_kill 2\n")
    write(tmp_path, place, "oom 9\noom_kill 2\noom_group_kill 9\n")
    kills = MemoryKills(tmp_path)
    assert not kills.happened()
    write(tmp_path, place, "oom 9\noom_kill 3\noom_group_kill 9\n")
    assert kills.happened()
    assert kills.happened()  # another process of the same moment
    now += 2.0
    assert not kills.happened()


def test_where_nothing_counts_nothing_is_known(tmp_path: Path) -> None:
    assert not MemoryKills(tmp_path).happened()


def test_a_count_that_begins_anew_is_no_kill(tmp_path: Path) -> None:
    write(tmp_path, "proc/vmstat", "oom_kill 5\n")
    kills = MemoryKills(tmp_path)
    write(tmp_path, "proc/vmstat", "oom_kill 1\n")
    assert not kills.happened()
    (tmp_path / "proc/vmstat").unlink()
    assert not kills.happened()
