"""Test of reused ids: a PBS server that has lost its database gives our jobs' ids to other jobs.

The server of the tests must not lose its database. Commands that are first on the PATH exchange the
ids of two jobs instead.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_pbs.executor import PBSExecutor
from ensemble_testing import Session

if TYPE_CHECKING:
    from conftest import Complex

_COMMAND = """#!/bin/bash
echo "$@" >> "$0.log"
words=()
for word; do words+=("${{word//{ours}/{other}}}"); done
{real} "${{words[@]}}" 2>&1 | sed 's/{other}/{ours}/g'
exit "${{PIPESTATUS[0]}}"
"""


def reuse(
    pbs: Complex, folder: Path, monkeypatch: pytest.MonkeyPatch, ours: str, *words: str
) -> str:
    """Submit a foreign job, which then has our job's id; return its real id."""
    outputs = ("-o", "/dev/null", "-e", "/dev/null")
    other = pbs.run("qsub", "-q", pbs.queue, *outputs, *words).strip()
    pbs.run("qdel", "-x", ours)
    folder /= "bin"
    folder.mkdir()
    for name in ("qstat", "qdel", "qselect"):
        text = _COMMAND.format(ours=ours, other=other, real=shutil.which(name))
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return other


@pytest.mark.timeout(300)
def test_no_foreign_job_that_got_the_id_since_the_last_query_is_cancelled(
    pbs: Complex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = os.environ["PATH"]
    with Session(PBSExecutor(queue=pbs.queue, poll=1000.0), tmp_path, 90.0) as session:
        job = session.job("true", urgency=0)  # held
        session.submit(job)
        session.wait_for(job, "priority")
        other = reuse(pbs, tmp_path, monkeypatch, session.queue_id(job), "--", "/bin/sleep", "1000")
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
    monkeypatch.setenv("PATH", path)
    assert other in pbs.jobs()
    assert (tmp_path / "bin" / "qstat.log").exists()
    assert not (tmp_path / "bin" / "qdel.log").exists()
    pbs.run("qdel", "-W", "force", other)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
@pytest.mark.parametrize("script", [False, True], ids=["command", "script"])
def test_a_job_with_the_id_of_a_lost_one_is_not_ours(
    pbs: Complex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool, script: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(PBSExecutor(queue=pbs.queue, poll=1.0), tmp_path, 90.0) as first:
        job = first.job("true", urgency=0)  # held
        first.submit(job)
        first.wait_for(job, "priority")
        ours = first.queue_id(job)
    (tmp_path / "other.sh").write_text("#!/bin/sh\nsleep 1000\n")
    words = [str(tmp_path / "other.sh")] if script else ["--", "/bin/sleep", "1000"]
    path = os.environ["PATH"]
    other = reuse(pbs, tmp_path, monkeypatch, ours, *words)
    second = Session(PBSExecutor(queue=pbs.queue, poll=1.0), tmp_path, 90.0)
    second.resume(first)
    with second:
        second.executor.reattach({job.id: 0.0})
        if cancelled:
            second.cancel(job)
        second.wait_clean(job)
        assert second.exception(job) == ("cancel" if cancelled else "lost")
    monkeypatch.setenv("PATH", path)
    assert other in pbs.jobs()
    pbs.run("qdel", "-W", "force", other)
