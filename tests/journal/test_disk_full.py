"""Runs on a full disk: the problem is reported once, and no unrecorded decision is performed. The run
continues when there is space again, or is stopped, or exits and is resumed."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import FakeExecutor, wait_until

from ensemble_core.config import load_text
from ensemble_core.journal import writer as writer_module
from ensemble_core.journal.database import journal_error
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.replay import Replay
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event, Problem
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime import shutdown
from ensemble_core.runtime.controller import Outcome, Runtime, Watcher

REGISTRY = discover(())
CRASH = Path(__file__).parent / "crash"
#: Long commands, so that each decision needs new pages of the database.
TEXT = f"""
jobs: [{{name: work, command: x {"y" * 6000}, count: 2}}, {{name: next, command: x {"z" * 6000}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: work}}}}
  - {{trigger: job-success, name: work, repetitions: 2, action: {{name: submit, label: next}}}}
  - {{trigger: job-success, name: next, repetitions: 3, action: {{name: submit, label: next}}}}
"""


def decided(path: Path) -> Counter[str]:
    """Return the jobs whose submission is in the journal."""
    with Journal(path) as journal:
        return Counter(
            job.id
            for row in journal.rows()
            for data in json.loads(row.decisions or "[]")
            if data["type"] == "submit"
            for job in Decision.from_dict(data).jobs  # type: ignore[attr-defined]
        )


class Witness(FakeExecutor):
    """Executor that checks that submitted jobs are in the journal."""

    def __init__(self, path: Path) -> None:
        super().__init__(instant=True)
        self._path = path
        self.unrecorded: list[str] = []
        #: While this is unset, ``submit`` blocks.
        self.open_to_jobs = threading.Event()
        self.open_to_jobs.set()
        self.asked = threading.Event()

    def submit(self, jobs: Sequence[Job]) -> None:
        self.asked.set()
        assert self.open_to_jobs.wait(60)
        known = decided(self._path)
        self.unrecorded += [job.id for job in jobs if job.id not in known]
        super().submit(jobs)


class Told(Watcher):
    def __init__(self) -> None:
        self.problems: list[str] = []

    def event(self, event: Event) -> None:
        if isinstance(event, Problem):
            self.problems.append(event.message)


class Going:
    """A run with a journal, on a separate thread."""

    def __init__(self, folder: Path, *, held: bool = False) -> None:
        self.path = folder / NAME
        self.writer = JournalWriter(self.path)
        self.writer.describe({"tag": "run"})
        self.writer.store_file_version("e.yaml", TEXT, ())
        self.writer.begin(1.0, {})
        self.executor = Witness(self.path)
        if held:
            self.executor.open_to_jobs.clear()
        self.told = Told()
        self.runtime = Runtime(
            load_text(TEXT, REGISTRY),
            self.executor,
            actions=REGISTRY.actions,
            observers=REGISTRY.observers,
            watchers=[self.told],
            folder=folder / "output",
            journal=self.writer,
            maker="test",
        )
        self.outcome: Outcome | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.outcome = self.runtime.run()

    def ended(self) -> Outcome:
        self.thread.join(90)
        assert self.outcome is not None, "the run hangs"
        return self.outcome

    def close(self) -> None:
        self.runtime.stop()
        self.runtime.stop()
        self.thread.join(90)
        self.writer.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Going]]:
    going: list[Going] = []

    def start(*, held: bool = False) -> Going:
        going.append(Going(tmp_path, held=held))
        return going[0]

    yield start
    for each in going:
        each.close()


def check_result(going: Going) -> None:
    """Check that all events are in the journal, and each job was submitted once."""
    going.writer.end(2.0, {"over": True})
    going.writer.close()
    submitted = Counter(job.id for job in going.executor.submitted)
    assert submitted == decided(going.path)
    assert set(submitted.values()) == {1}
    assert len(submitted) == 7
    assert going.executor.unrecorded == []
    with Journal(going.path) as journal:
        journal.check()
        replay = Replay(journal, lambda text: load_text(text.text, REGISTRY))
        for _ in replay.steps():
            pass
    assert replay.engine.report() == going.runtime.engine.report()


def limit_pages(writer: JournalWriter, more: int | None) -> None:
    """Limit the database to ``more`` additional pages; ``None`` removes the limit."""
    connection = writer._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    most = 1 << 30 if more is None else pages + more
    connection.execute(f"PRAGMA max_page_count={most}")


@pytest.mark.parametrize("number", range(5))
def test_a_run_survives_a_full_disk_at_any_write(
    number: int, started: Callable[[], Going], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_RETRY_FIRST", 0.02)
    write, count, full = JournalWriter._write, 0, threading.Event()

    def limited(self: JournalWriter, first: int, batch: Any, snapshot: Any) -> None:
        nonlocal count
        if any(decisions for _, decisions, *_ in batch) and not full.is_set():
            if count == number:
                limit_pages(self, 0)
                full.set()
            count += 1
        write(self, first, batch, snapshot)

    monkeypatch.setattr(JournalWriter, "_write", limited)
    going = started()
    wait_until(lambda: going.writer.failure or going.outcome is not None)
    assert full.is_set() or count >= 3, "there were hardly any writes"
    if going.writer.failure:
        time.sleep(0.1)
        submitted = {job.id for job in going.executor.submitted}
        assert submitted <= set(decided(going.path)), "performed, but not on record"
    limit_pages(going.writer, None)
    assert going.ended().exit_code == 0
    told = [text for text in going.told.problems if "journal" in text]
    assert len(told) in (0, 2), told
    if told:
        assert "no space for the journal" in told[0]
        assert "nothing is submitted or cancelled" in told[0]
        assert "writable again" in told[1]
    check_result(going)


def test_a_run_survives_a_quota(
    started: Callable[[], Going], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial write of a failed commit does no harm."""
    monkeypatch.setattr(writer_module, "_RETRY_FIRST", 0.02)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        write, lowered = JournalWriter._write, threading.Event()

        def lowering(self: JournalWriter, first: int, batch: Any, snapshot: Any) -> None:
            if self.seq > 8 and not lowered.is_set():
                size = os.path.getsize(f"{self.path}-wal")
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, before[1]))
                lowered.set()
            write(self, first, batch, snapshot)

        monkeypatch.setattr(JournalWriter, "_write", lowering)
        going = started()
        wait_until(lambda: going.writer.failure)
        submitted = {job.id for job in going.executor.submitted}
        assert submitted <= set(decided(going.path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert going.ended().exit_code == 0
    check_result(going)


def test_a_run_that_ends_on_a_full_disk_has_no_recorded_end(
    started: Callable[[], Going], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal lacks the newest events, so a resume must ask the queue."""
    from ensemble_core.journal.reader import JournalError

    monkeypatch.setattr(writer_module, "_RETRY_FIRST", 0.02)
    going = started(held=True)
    assert going.executor.asked.wait(60)
    limit_pages(going.writer, 0)
    going.executor.open_to_jobs.set()
    wait_until(lambda: going.writer.failure)
    going.runtime.stop()
    wait_until(lambda: going.runtime.engine.state.ended)
    going.runtime.stop()
    assert going.ended().exit_code == 130
    with pytest.raises(JournalError, match="no space"):
        going.writer.end(2.0, {"over": True})
    limit_pages(going.writer, None)
    going.writer.close()
    with Journal(going.path) as journal:
        assert journal.sessions()[-1].outcome is None


def test_a_stop_on_a_full_disk_does_not_wait_for_a_job_that_was_never_submitted(
    started: Callable[[], Going], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "_UNHEARD_GRACE", 0.5)
    write = JournalWriter._write

    def full(self: JournalWriter, first: int, batch: Any, snapshot: Any) -> None:
        limit_pages(self, 0)
        write(self, first, batch, snapshot)

    monkeypatch.setattr(JournalWriter, "_write", full)
    going = started()
    wait_until(lambda: going.writer.failure)
    going.runtime.stop()
    outcome = going.ended()
    assert outcome.exit_code == 130
    assert not outcome.over, "a resume finds that nothing was submitted"
    assert going.executor.submitted == []
    assert decided(going.path) == {}


def test_a_stop_cancels_jobs_even_if_the_disk_is_full(
    started: Callable[..., Going], monkeypatch: pytest.MonkeyPatch
) -> None:
    going = started(held=True)
    going.executor.instant = False
    going.executor.open_to_jobs.set()
    wait_until(lambda: going.executor.submitted)
    stopped = threading.Event()

    def full(*_: Any) -> None:
        assert stopped.wait(60)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JournalWriter, "_write", full)
    going.runtime.stop()
    wait_until(lambda: going.runtime.engine.state.ended)
    stopped.set()
    assert going.ended().exit_code == 130
    assert sorted(set(going.executor.cancelled)) == ["work.0", "work.1"]


# -- the command on a really full disk -------------------------------------------------------------


@contextlib.contextmanager
def tiny_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


YAML = f"""
jobs: [{{name: work, command: x {"y" * 4000}, options: {{disk: {{lasts: 0.05}}}}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: work}}}}
  - {{trigger: job-success, name: work, repetitions: 40, action: {{name: submit, label: work}}}}
"""


class Command:
    """``ensemble`` as a process, with its state on a tiny disk and its queue elsewhere."""

    def __init__(self, folder: Path, state: Path, *args: str) -> None:
        self.said = folder / "said.txt"
        with self.said.open("a") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ensemble_core.cli", *args, "--state", str(state)],
                cwd=folder,
                stdout=said,
                stderr=said,
                env={**os.environ, "PYTHONPATH": str(CRASH)},
            )

    def wait(self) -> int:
        try:
            return self.process.wait(90)
        finally:
            self.process.kill()


def run_on(folder: Path, state: Path) -> Command:
    (folder / "e.yaml").write_text(YAML)
    plugin = str(CRASH / "disk_queue.py")
    return Command(
        folder, state, "run", "e.yaml", "--plugin", plugin, "--executor", "disk", "-o", f"folder={folder}"
    )  # fmt: skip


def submits(folder: Path) -> list[str]:
    return lines(folder, "submit")


def lines(folder: Path, kind: str) -> list[str]:
    path = folder / "queue.jsonl"
    text = path.read_text() if path.exists() else ""
    return [line[kind] for line in map(json.loads, text.splitlines()) if kind in line]


def fill(disk: Path) -> Path:
    """Write until nothing more fits."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"x")
    return filler


def test_a_run_continues_when_a_full_disk_has_space_again(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "4m") as disk:
        command = run_on(tmp_path, disk / "state")
        wait_until(lambda: len(submits(tmp_path)) > 3)
        filler = fill(disk)
        wait_until(lambda: "no space for the journal" in command.said.read_text())
        held = len(submits(tmp_path))
        time.sleep(0.5)
        assert len(submits(tmp_path)) == held
        filler.unlink()
        assert command.wait() == 0, command.said.read_text()
        said = command.said.read_text()
        assert said.count("no space for the journal") == 1
        assert said.count("writable again: the run continues") == 1
        assert Counter(submits(tmp_path)) == {f"work.{n}": 1 for n in range(41)}
        replayed = Command(tmp_path, disk / "state", "replay", "last")
        assert replayed.wait() == 0, command.said.read_text()


def test_a_run_left_on_a_full_disk_can_be_resumed(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "4m") as disk:
        command = run_on(tmp_path, disk / "state")
        wait_until(lambda: len(submits(tmp_path)) > 3)
        filler = fill(disk)
        wait_until(lambda: "no space for the journal" in command.said.read_text())
        command.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping" in command.said.read_text())
        time.sleep(0.4)  # signals in quick succession count as one
        command.process.send_signal(signal.SIGINT)
        assert command.wait() == 130, command.said.read_text()
        said = command.said.read_text()
        assert "Traceback" not in said
        assert "ensemble resume" in said
        filler.unlink()
        again = Command(tmp_path, disk / "state", "resume", "last")
        code = again.wait()
        said = again.said.read_text()
        assert code in (0, 1, 130), said
        assert "fault" not in said
        assert max(Counter(submits(tmp_path)).values()) == 1
        replayed = Command(tmp_path, disk / "state", "replay", "last")
        assert replayed.wait() == 0, said
        # Jobs in the queue have ended; the others were never submitted.
        status = Command(tmp_path, disk / "state", "status", "last", "--json")
        assert status.wait() == 0


def test_one_sigterm_ends_a_run_on_a_full_disk(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "4m") as disk:
        command = run_on(tmp_path, disk / "state")
        wait_until(lambda: len(submits(tmp_path)) > 3)
        filler = fill(disk)
        wait_until(lambda: "no space for the journal" in command.said.read_text())
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == 143, command.said.read_text()
        filler.unlink()
        again = Command(tmp_path, disk / "state", "cancel", "last")
        assert again.wait() == 0, again.said.read_text()
        assert set(submits(tmp_path)) >= set(lines(tmp_path, "clean"))


@pytest.mark.parametrize("killed", [False, True])
def test_jobs_that_a_stop_on_a_full_disk_has_cancelled_run_again(
    tmp_path: Path, killed: bool
) -> None:
    go = tmp_path / "go"

    def running() -> list[Path]:
        return [*tmp_path.glob("began.*")]

    (tmp_path / "e.yaml").write_text(
        f"jobs: [{{name: work, command: [sh, -c, 'touch {tmp_path}/began.$$; test -e {go} || exec sleep 100'], count: 3}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: work}}]\n"
    )
    with tiny_disk(tmp_path / "disk", "3m") as disk:
        args = ("run", "e.yaml", "--executor", "local", "-o", "slots=2")
        command = Command(tmp_path, disk / "state", *args)
        wait_until(lambda: len(running()) == 2)
        filler = fill(disk)
        command.process.send_signal(signal.SIGTERM)
        if killed:
            wait_until(lambda: [*disk.rglob("stop-cancels")])
            command.process.kill()
        assert command.wait() == (-signal.SIGKILL if killed else 143), command.said.read_text()
        filler.unlink()
        jobs = Command(tmp_path, disk / "state", "jobs", "last")
        assert jobs.wait() == 0
        assert "is not recorded, and it has no controller" in jobs.said.read_text()
        go.touch()
        again = Command(tmp_path, disk / "state", "resume", "last")
        code = again.wait()
        said = again.said.read_text()
        assert "by others" not in said
        assert code == 0, said
        assert not [*disk.rglob("stop-cancels")]
        replayed = Command(tmp_path, disk / "state", "replay", "last")
        assert replayed.wait() == 0, again.said.read_text()


def test_a_stop_that_cannot_be_recorded_cancels_nothing(
    started: Callable[..., Going], monkeypatch: pytest.MonkeyPatch
) -> None:
    going = started(held=True)
    going.executor.instant = False
    going.executor.open_to_jobs.set()
    wait_until(lambda: going.executor.submitted)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JournalWriter, "_write", full)
    monkeypatch.setattr(Path, "touch", full)
    going.runtime.stop()
    assert going.ended().exit_code == 130
    assert going.executor.cancelled == []
    assert not going.ended().over


@pytest.mark.parametrize("free", [0, 8192, 40960])
def test_a_run_does_not_start_without_space_for_its_journal(tmp_path: Path, free: int) -> None:
    with tiny_disk(tmp_path / "disk", "1m") as disk:
        filler = fill(disk)
        os.truncate(filler, filler.stat().st_size - free)
        command = run_on(tmp_path, disk / "state")
        code = command.wait()
        said = command.said.read_text()
        assert code == 2, said
        assert "no space" in said.lower() or "No space" in said
        assert "--state" in said
        assert "Traceback" not in said
        assert submits(tmp_path) == []
        runs = disk / "state" / "runs"
        assert not runs.exists() or list(runs.iterdir()) == []


@pytest.mark.parametrize(("free", "code"), [(0, "full"), (1000, "journal")])
def test_an_io_error_on_a_full_disk_is_reported_as_no_space(
    free: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = list(os.statvfs(tmp_path))
    fields[1], fields[2], fields[4] = 4096, 1000, free
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    error = journal_error(sqlite3.OperationalError("disk I/O error"), tmp_path / NAME)
    assert error.code == code
