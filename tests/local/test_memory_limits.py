"""Memory as a resource of local jobs: they wait for it, and a job that uses too much ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_testing import Session

from ensemble_core.errors import UsageError
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.slots import machine_memory

MEBI = 1 << 20
#: Uses 300 MB, and stays. With an argument, a detached child does so, or, with two, a daemon that
#: keeps no variable.
GREEDY = """
import os, sys, time
if len(sys.argv) > 1 and os.fork():
    time.sleep(600)
if len(sys.argv) > 1:
    os.setsid()
if len(sys.argv) > 2:
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c", sys.argv[2]], {})
held = bytearray(300 * 1024 * 1024)
for at in range(0, len(held), 4096):
    held[at] = 1
time.sleep(600)
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Session]:
    executor = LocalExecutor(slots=4, grace=0.3, memory="1G")
    with Session(executor, tmp_path / "run", 60, tidy=True) as session:
        yield session


def test_jobs_wait_until_their_memory_fits(local: Session) -> None:
    held = local.job("sleep", "600", memory_per_task=700 * MEBI)
    local.submit(held)
    local.wait_for(held, "start")
    waits = local.job("true", memory_per_task=400 * MEBI)
    fits, other = local.job("true", memory_per_task=300 * MEBI), local.job("true")
    local.submit(waits)
    local.run(fits, other)
    assert "alloc" not in local.names(waits)
    local.cancel(held)
    local.wait_clean(waits)
    assert local.context(waits, "finish")["status"] == 0


def test_a_job_that_never_gets_its_memory_fails_with_a_hint(local: Session) -> None:
    job = local.job("true", tasks=2, memory_per_task=600 * MEBI)
    local.run(job)
    note = local.context(job, "exception")["note"]
    assert "needs 1.17G of memory, but there are 1G here" in note
    assert "--option memory=" in note


@pytest.mark.parametrize("detached", [False, True])
def test_a_job_that_uses_more_memory_than_it_requests_ends(local: Session, detached: bool) -> None:
    words = ("detached",) if detached else ()
    job = local.job(sys.executable, "-c", GREEDY, *words, memory_per_task=100 * MEBI)
    enough = local.job(sys.executable, "-c", GREEDY, memory_per_task=800 * MEBI)
    local.submit(enough)
    local.run(job)
    assert local.cause(job) == "memory"
    note = local.context(job, "exception")["note"]
    assert note.startswith("used ")
    assert note.endswith("more than its memory_per_task of 100M")
    local.cancel(enough)
    local.wait_clean(enough)
    assert local.cause(enough) == "cancelled"


def test_the_memory_of_a_daemon_counts_if_only_one_job_can_have_started_it(local: Session) -> None:
    other, job = (
        local.job("sleep", "1"),
        local.job(sys.executable, "-c", GREEDY, "daemon", GREEDY, memory_per_task=100 * MEBI),
    )
    local.run(other, job)
    assert local.cause(job) == "memory"
    assert local.cause(other) == "exit"


@pytest.mark.parametrize("memory", ["4", "1Q", "0G", -1])
def test_an_invalid_total_is_refused(memory: str | int) -> None:
    with pytest.raises(UsageError, match="'memory'"):
        LocalExecutor(memory=memory)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, 8 << 30),
        ("0::/a/b\n", {"a/memory.max": "1073741824\n", "a/b/memory.max": "max\n"}, 1 << 30),
        ("4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "2147483648\n"}, 2 << 30),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 8 << 30),
    ],
)
def test_the_total_is_that_of_the_machine_or_of_the_cgroup(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:        8388608 kB\nMemFree: 1 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert machine_memory(tmp_path) == expected
