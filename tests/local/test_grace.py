"""Each process of a local job gets SIGTERM once, and SIGKILL after the grace of its group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_testing.session import Session, wait_until

from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.jobs import Job

#: Counts the SIGTERMs that it gets, and needs 2 s to end after the first one.
COUNTER = """
n=0; until=
trap 'n=$((n+1)); echo $n > count; until=$((SECONDS + 2))' TERM
echo $$ > ready
while [ -z "$until" ] || [ $SECONDS -lt $until ]; do sleep 0.05; done
echo $n > ended
"""
#: How the program is started: without exec, in another session, in the background, by a second
#: shell, and as a process that the handler of its parent starts.
WAYS = {
    "wrapped": "bash counter.sh; echo after",
    "alone": "exec bash counter.sh",
    "session": "setsid bash counter.sh & until [ -e ready ]; do sleep 0.05; done; wait",
    "background": "bash counter.sh & until [ -e ready ]; do sleep 0.05; done; wait",
    "twice": "sh -c 'bash counter.sh; echo after'; echo after",
}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "counter.sh").write_text(COUNTER)
    return work


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Session]:
    with Session(LocalExecutor(slots=4, grace=60.0), tmp_path / "run", 100, tidy=True) as session:
        yield session


@pytest.mark.parametrize("end", ["cancel", "timeout"])
@pytest.mark.parametrize("way", WAYS)
def test_a_process_gets_sigterm_once(local: Session, work: Path, way: str, end: str) -> None:
    limit = 10.0 * (end == "timeout")
    job = local.job("sh", "-c", WAYS[way], workdir=str(work), duration=limit)
    local.submit(job)
    wait_until((work / "ready").exists, 100.0)
    if end == "cancel":
        local.executor.cancel([job.id])
    local.wait_clean(job)
    assert (work / "count").read_text() == "1\n"
    assert (work / "ended").read_text() == "1\n"


def test_what_a_handler_of_sigterm_starts_gets_none(local: Session, work: Path) -> None:
    """For example, a copy that saves a checkpoint."""
    text = "trap 'sleep 1; touch saved; exit' TERM; touch ready; while :; do sleep 0.05; done"
    job = local.job("sh", "-c", text, workdir=str(work))
    local.submit(job)
    wait_until((work / "ready").exists, 100.0)
    local.executor.cancel([job.id])
    local.wait_clean(job)
    assert (work / "saved").exists()


@pytest.mark.parametrize(("own", "default"), [(0.5, 600.0), (600.0, 0.5)])
def test_a_job_may_set_its_grace(tmp_path: Path, work: Path, own: float, default: float) -> None:
    with Session(LocalExecutor(slots=2, grace=default), tmp_path / "run", 100) as session:
        text = "trap : TERM; touch ready; until [ -e go ]; do sleep 0.05; done"
        fields = {"id": "t.0", "group": "t", "index": 0, "command": ("sh", "-c", text)}
        job = Job(**fields, grace=own, workdir=str(work))  # type: ignore[arg-type]
        session.submit(job)
        wait_until((work / "ready").exists, 100.0)
        began = time.monotonic()
        session.executor.cancel([job.id])
        if own > default:
            time.sleep(2 * default)  # it must still be there
            assert "clean" not in session.names(job)
            (work / "go").touch()
        session.wait_clean(job)
        assert own > default or time.monotonic() - began >= own
        status = session.context(job, "finish")["status"]
        assert (status == 0) == (own > default)
