"""Two runs with the same tag on one machine: neither touches the processes of the other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ensemble_testing.session import Session, alive, wait_until

from ensemble_core.local.executor import LocalExecutor

#: Runs a process in another session, which is found by its environment only.
DETACHED = "setsid sh -c 'echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000' & wait"


def detached(session: Session, folder: Path) -> tuple[str, int]:
    job = session.job("sh", "-c", DETACHED.format(file="pid"), workdir=str(folder))
    session.submit(job)
    wait_until((folder / "pid").exists)
    return job.id, int((folder / "pid").read_text())


def test_a_resume_after_a_killed_supervisor_ends_no_process_of_another_run(tmp_path: Path) -> None:
    first = Session(LocalExecutor(slots=1, grace=0.2), tmp_path / "a", 60)
    second = Session(LocalExecutor(slots=1, grace=0.2), tmp_path / "b", 60, tidy=True)
    second.tag = first.tag
    for session in (first, second):
        session.folder.mkdir()
    with second:
        other, foreign = detached(second, second.folder)
        with first:
            job, ours = detached(first, first.folder)
            supervisor = first.executor._client.supervisor  # type: ignore[attr-defined]
        assert job == other
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not alive(supervisor))
        with Session(LocalExecutor(slots=1, grace=0.2), tmp_path / "a", 60).resume(first) as later:
            later.take_over([job])
            later.cancel(job)
            later.wait_clean(job)
        wait_until(lambda: not alive(ours))
        assert alive(foreign)
        assert "clean" not in second.names(other)


def test_two_runs_without_a_journal_have_separate_supervisors(tmp_path: Path) -> None:
    first = Session(LocalExecutor(slots=1), tmp_path, 60, kept=False)
    second = Session(LocalExecutor(slots=1), tmp_path, 60, kept=False)
    second.tag = first.tag
    with first, second:
        jobs = [session.job("true") for session in (first, second)]
        first.run(jobs[0])
        second.run(jobs[1])


def test_a_job_does_not_write_to_the_file_of_another_runs_job(tmp_path: Path) -> None:
    """The other run would count the rows of both jobs."""
    gate, log = tmp_path / "gate", tmp_path / "log.out"
    wait = f"echo first; while ! test -e {gate}; do sleep 0.05; done; echo last"
    first = Session(LocalExecutor(slots=9), tmp_path / "first", 60)
    second = Session(LocalExecutor(slots=9), tmp_path / "second", 60)
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    with first, second:
        one = first.job("sh", "-c", wait, stdout=str(log))
        first.submit(one)
        first.wait_for(one, "start")
        wait_until(lambda: log.read_text() == "first\n")
        beside = first.job("echo", "beside", stdout=str(log))
        first.run(beside)  # jobs of one run may share a file
        other = second.job("echo", "other", stdout=str(log))
        null = second.job("echo", "other", stdout="/dev/null")
        second.run(other, null)
        assert second.exception(other) == "output"
        assert f"a job of another run writes to the output file {log}" in str(
            second.context(other, "exception")["note"]
        )
        assert log.read_text() == "first\nbeside\n"
        gate.touch()
        first.wait_clean(one)
        assert log.read_text() == "first\nbeside\nlast\n"
        later = second.job("echo", "other", stdout=str(log))
        second.run(later)
        assert log.read_text() == "other\n"
