"""``ensemble resume``: runs that it resumes or rejects, messages and exit codes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until
from killed_runs import CRASH, JOBS, YAML, empty_folder, kill, submitted

from ensemble_core import EnsembleError, open_run
from ensemble_core.cli.main import main
from ensemble_core.journal.damage_detection import read_progress
from ensemble_core.journal.database import FORMAT, NAME
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import Journal
from ensemble_core.journal.run_store import run_folders
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import Problem


class Place:
    """Folder with an ensemble, its state and its queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"

    def run_args(self, executor: str = "disk", **options: str) -> list[str]:
        given = {"folder": str(self.folder), **options}
        args = ["run", "e.yaml", "--plugin", str(CRASH / "disk_queue.py"), "--executor", executor]
        for key, value in given.items():
            args += ["-o", f"{key}={value}"]
        return [*args, "--state", str(self.state)]

    def killed(self, kind: str, number: int, executor: str = "disk", **options: str) -> Place:
        """Start a run, and kill its controller at this event."""
        kill(self.folder, kind, number, self.run_args(executor, **options))
        return self

    def ensemble(self, *args: str) -> Result:
        """Run a command. It must not print a traceback."""
        result = CliRunner().invoke(main, [*args, "--state", str(self.state)])
        assert result.exit_code != 70, result.output
        assert "Traceback" not in result.output
        return result

    @property
    def run(self) -> Path:
        (found,) = (self.state / "runs").iterdir()
        return found

    @property
    def journal(self) -> Path:
        return self.run / NAME

    def heard_of(self) -> set[str]:
        """Return the jobs with an event in the journal."""
        lines = self.ensemble("events", "last", "--json").output.splitlines()
        return {event["job"] for event in map(json.loads, lines) if event.get("type") == "job"}

    def submitted(self) -> Counter[str]:
        return submitted(self.folder)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(empty_folder(tmp_path_factory.getbasetemp(), monkeypatch))


def check_right(place: Place, result: Result) -> None:
    """Check that the run ended like an undisturbed one."""
    assert result.exit_code == 0, result.output
    assert place.submitted() == JOBS
    assert place.ensemble("replay", "last").exit_code == 0


# -- runs that can be resumed ----------------------------------------------------------------------


def test_killed_run_is_interrupted_and_can_be_resumed(place: Place) -> None:
    place.killed("told", 4)
    assert "interrupted" in place.ensemble("runs").output
    check_right(place, place.ensemble("resume", "last"))
    assert "ended" in place.ensemble("runs").output


def test_run_killed_before_its_first_event_starts_on_resume(place: Place) -> None:
    place.killed("before the first event", 1)
    assert "new" in place.ensemble("runs").output
    check_right(place, place.ensemble("resume", "last"))


def test_run_killed_before_its_first_event_is_cancelled_without_jobs(
    place: Place,
) -> None:
    place.killed("before the first event", 1)
    assert place.ensemble("cancel", "last").exit_code == 0
    assert place.submitted() == {}
    assert place.ensemble("resume", "last").exit_code == 2


@pytest.mark.parametrize("number", [1, 4])
def test_every_command_reports_a_run_killed_during_setup(number: int, place: Place) -> None:
    place.killed("before INSERT", number)
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2, result.output
    assert "was killed before its first event" in result.output
    assert "'ensemble run' starts it again" in result.output
    for command in ("status", "events", "logs", "replay", "cancel"):
        assert place.ensemble(command, "last").exit_code in (0, 1, 2)
    assert place.ensemble("why", "last", "begin").exit_code in (0, 1, 2)
    assert place.ensemble("clean", "last", "--yes").exit_code == 0
    assert run_folders(place.state) == []


def test_ended_run_is_not_resumed(place: Place) -> None:
    assert place.ensemble(*place.run_args()[:-2]).exit_code == 0
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2
    assert "has ended, with exit code 0" in result.output
    assert place.submitted() == JOBS


def test_run_without_a_journal_cannot_be_resumed(place: Place) -> None:
    assert place.ensemble(*place.run_args()[:-2], "--no-journal").exit_code == 0
    assert list(place.state.rglob(NAME)) == []
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2
    assert "there is no run" in result.output


# -- changed files ---------------------------------------------------------------------------------


def test_changed_file_is_shown_and_needs_accept_changes(place: Place) -> None:
    # One job at a time: otherwise all might have ended before the kill.
    first = YAML.replace("count: 3,", "count: 3, at_once: 1,")
    (place.folder / "e.yaml").write_text(first)
    place.killed("told", 3)
    changed = first.replace("name: next, command: x", "name: next, command: other")
    (place.folder / "e.yaml").write_text(changed)
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2
    assert "-  - {name: next, command: x}" in result.output
    assert "+  - {name: next, command: other}" in result.output
    assert "--accept-changes" in result.output
    before = place.submitted()
    result = place.ensemble("resume", "last", "--accept-changes")
    check_right(place, result)
    with Journal(place.journal) as journal:
        texts = journal.texts()
        assert [text.text for text in texts] == [first, changed]
        then = [row.decisions or "" for row in journal.rows(texts[1].seq)]
    assert sum(before.values()) < 6
    assert any('"other"' in text for text in then)
    # Unchanged rules keep their counts.
    status = json.loads(place.ensemble("status", "last", "--json").output)
    fired = {rule["id"]: rule["fired"] for rule in status["report"]["rules"]}
    assert fired == {"begin": 1, "each": 3}


def test_new_rule_that_can_never_fire_causes_a_warning(place: Place) -> None:
    place.killed("told", 4)
    more = "  - {id: late, trigger: start, action: {name: log, message: never}}\n"
    assert "rules:\n" in YAML
    (place.folder / "e.yaml").write_text(YAML.replace("rules:\n", f"rules:\n{more}"))
    result = place.ensemble("resume", "last", "--accept-changes")
    check_right(place, result)
    assert (
        "rule late has the trigger 'start', but the run has already started: the rule will never fire"
        in result.output
    )
    assert "rule begin waits" not in result.output


def test_invalid_changed_file_is_rejected_without_effect(place: Place) -> None:
    place.killed("told", 4)
    (place.folder / "e.yaml").write_text(YAML.replace("label: next", "label: nxt"))
    result = place.ensemble("resume", "last", "--accept-changes")
    assert result.exit_code == 2
    assert "nxt" in result.output
    (place.folder / "e.yaml").write_text(YAML)
    check_right(place, place.ensemble("resume", "last"))


def test_run_whose_file_is_missing_resumes_with_the_stored_one(place: Place) -> None:
    place.killed("told", 4)
    (place.folder / "e.yaml").unlink()
    result = place.ensemble("resume", "last")
    check_right(place, result)
    assert "the run continues with the original file" in result.output


def test_run_whose_folder_is_missing_is_an_error(place: Place, tmp_path_factory: Any) -> None:
    place.killed("told", 4)
    elsewhere = tmp_path_factory.mktemp("moved") / "state"
    shutil.move(place.state, elsewhere)
    os.chdir("/")
    shutil.rmtree(place.folder)
    place.state = elsewhere
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2
    assert str(place.folder) in result.output
    assert "relative paths of jobs refer to it" in result.output


# -- damaged journals ------------------------------------------------------------------------------


def test_journal_of_another_format_is_rejected(place: Place) -> None:
    place.killed("told", 4)
    connection = sqlite3.connect(place.journal)
    connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    connection.close()
    for command in ("resume", "status", "events", "replay", "cancel"):
        result = place.ensemble(command, "last")
        assert (result.exit_code, "use the version that wrote it" in result.output) == (2, True), (
            result.output
        )
    assert "unreadable" in place.ensemble("runs").output


def newest_event(journal: Path, newest_part: bytes) -> int:
    """Return the newest event of a copy of the journal with this WAL.

    ``sys.maxsize`` if it has no table of events yet.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(journal, folder))
        copy.with_name(f"{NAME}-wal").write_bytes(newest_part)
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            try:
                (last,) = connection.execute("SELECT max(last) FROM event_lists").fetchone()
            except sqlite3.OperationalError:
                return sys.maxsize
    return int(last or 0)


def test_journal_without_its_newest_part_is_not_resumed(place: Place) -> None:
    """A resume would submit the jobs of the missing decisions twice."""
    place.killed("told", 12)
    newest = place.journal.with_name(f"{NAME}-wal")
    whole = newest.read_bytes()
    before = place.submitted()
    performed = read_progress(place.run).performed
    # Commits vary in size, so look for the lengths that lose performed events.
    lost = [
        length
        for length in range(0, len(whole), 1024)
        if newest_event(place.journal, whole[:length]) < performed
    ]
    for length in {lost[-1], lost[3 * len(lost) // 4]}:
        newest.write_bytes(whole[:length])
        result = place.ensemble("resume", "last")
        assert result.exit_code == 2, result.output
        assert "the newest part of the journal is missing" in result.output
        assert "-wal" in result.output
    assert place.submitted() == before
    assert place.ensemble("cancel", "last").exit_code in (0, 1)
    assert place.submitted() == before


def test_resume_reports_missing_newest_events_and_continues(
    place: Place,
) -> None:
    """Their decisions were not carried out, and the executor still knows the jobs."""
    place.killed("told", 12)
    files = [place.journal, place.journal.with_name(f"{NAME}-wal")]
    before = [file.read_bytes() for file in files]
    writer = JournalWriter(place.journal)
    last = writer.seq
    writer.begin(time.time(), {})
    for number in range(3):
        writer.append(Problem(time.time(), f"problem {number}"), ())
    writer.flush(None)
    writer.close()
    for file, content in zip(files, before, strict=True):
        file.write_bytes(content)
    files[0].with_name(f"{NAME}-shm").unlink(missing_ok=True)
    for command in ("status", "results", "jobs", "metrics", "events", "replay", "logs"):
        result = place.ensemble(command, "last")
        assert result.exit_code == (1 if command == "events" else 2), (command, result.output)
        assert "the newest part of the journal is missing" in result.output
        assert f"it ends with event {last}, but event {last + 3} was written" in result.output
    assert "begin" in place.ensemble("status", "last").output, "what there is is shown"
    with pytest.raises(EnsembleError, match="newest part"):
        open_run("last", state=place.state)
    result = place.ensemble("resume", "last")
    assert f"the run continues after event {last}" in result.output
    check_right(place, result)
    assert place.ensemble("status", "last").exit_code == 0


def test_flipped_bit_is_reported_by_every_command_that_reads_it(place: Place) -> None:
    place.killed("told", 12)
    before = place.submitted()
    with contextlib.closing(sqlite3.connect(place.journal, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type != 'view'")
        ]
        tables = {
            name: [column for _, column, *_ in connection.execute(f"PRAGMA table_info({name})")]
            for name in names
            if not name.startswith("sqlite_")
        }
    whole = place.journal.read_bytes()
    assert {"about", "event_lists", "job_rows", "job_layouts", "sessions", "texts"} < {*tables}
    for table, columns in tables.items():
        # Without a snapshot the run resumes from its events.
        resumed = () if table == "snapshots" else ("resume",)
        commands = ["status", "results", "events", "replay", *resumed]
        for column in columns:
            if flipped(place.journal, table, column):
                # All columns of a table are read in the same way: one is enough for most commands.
                for command in commands:
                    result = place.ensemble(command, "last")
                    said = (table, column, command, result.output)
                    assert result.exit_code == (1 if command == "events" else 2), said
                    assert "damaged" in result.output, said
                del commands[1:]
            place.journal.write_bytes(whole)
    assert place.submitted() == before
    assert place.ensemble("status", "last").exit_code == 0


def test_run_with_a_damaged_snapshot_resumes_from_its_events(place: Place) -> None:
    place.killed("told", 12)
    assert flipped(place.journal, "snapshots", "state"), "no snapshot was made"
    result = place.ensemble("resume", "last")
    assert "the journal is damaged" in result.output
    assert "the snapshot after event" in result.output
    check_right(place, result)


def flipped(journal: Path, table: str, column: str) -> bool:
    """Flip a bit of a value in the last row of a table; return whether there is a value."""
    with contextlib.closing(sqlite3.connect(journal, isolation_level=None)) as connection:
        found = connection.execute(f"SELECT * FROM {table} ORDER BY 1").description
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
        place = [name for name, *_ in found].index(column)
        value = rows[-1][place] if rows else None
        if value is None or value == b"":
            return False
        if isinstance(value, int):
            # Not a value of another row: SQLite refuses two rows with one key.
            taken = {row[place] for row in rows}
            changed: object = next(
                value ^ 1 << bit for bit in range(62) if value ^ 1 << bit not in taken
            )
        elif isinstance(value, float):
            bits = struct.unpack("<Q", struct.pack("<d", value))[0] ^ 1
            changed = struct.unpack("<d", struct.pack("<Q", bits))[0]
        else:
            data = bytearray(value.encode() if isinstance(value, str) else value)
            data[len(data) // 2] ^= 1
            changed = data.decode() if isinstance(value, str) else bytes(data)
        row = (*rows[-1][:place], changed, *rows[-1][place + 1 :])
        connection.execute(f"DELETE FROM {table}")
        marks = ", ".join("?" * len(row))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", [*rows[:-1], row])
    return True


def flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 8, 200))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def blank(data: bytearray, chance: random.Random) -> None:
    page = 4096 * chance.randrange(len(data) // 4096)
    data[page : page + 4096] = bytes(4096)


def empty(data: bytearray, chance: random.Random) -> None:
    data.clear()


def text(data: bytearray, chance: random.Random) -> None:
    data[:] = b"dear diary,\n" * 500


DAMAGE: list[Callable[[bytearray, random.Random], None]] = [flip, cut, blank, empty, text]


def test_journal_with_a_damaged_schema_is_reported(place: Place) -> None:
    place.killed("told", 12)
    sqlite3.connect(place.journal).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    data = place.journal.read_bytes()
    assert b"TEXT PRIMARY KEY" in data
    place.journal.write_bytes(data.replace(b"TEXT PRIMARY KEY", b"TEXT PRIMARY \xccEY"))
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2
    assert "the journal is damaged" in result.output


@pytest.mark.parametrize(
    ("damage", "seed"),
    [(damage, seed) for damage in DAMAGE for seed in range(2 if damage in (empty, text) else 4)],
)
def test_damaged_journal_file_is_reported(
    damage: Callable[[bytearray, random.Random], None],
    seed: int,
    place: Place,
) -> None:
    place.killed("told", 12)
    chance = random.Random(seed)
    # Half of the seeds test a journal without a separate WAL.
    if seed % 2:
        sqlite3.connect(place.journal).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    data = bytearray(place.journal.read_bytes())
    damage(data, chance)
    place.journal.write_bytes(data)
    for command in ("runs", "status", "events", "logs", "replay", "why"):
        more = ["last", "begin"] if command == "why" else ["last"] if command != "runs" else []
        result = place.ensemble(command, *more)
        assert result.exit_code in (0, 1, 2)
        assert result.exit_code == 0 or result.output, command
    before = place.submitted()
    result = place.ensemble("cancel", "last")
    assert result.exit_code in (0, 1, 2), result.output
    assert place.submitted() == before
    # With a separate WAL, the commands may need nothing else.
    if seed % 2 and damage in (empty, text):
        assert result.exit_code == 2
        words = (
            "damaged",
            "not the journal",
            "not a database",
            "the journal is empty, but it had begun",
        )
        assert any(word in result.output for word in words), result.output


def test_database_of_another_program_is_not_a_run(place: Place) -> None:
    folder = place.state / "runs" / "other-20260101T000000-aaaaaa"
    folder.mkdir(parents=True)
    connection = sqlite3.connect(folder / NAME)
    connection.execute("CREATE TABLE notes (text)")
    connection.commit()
    connection.close()
    before = (folder / NAME).read_bytes()
    for command in ("resume", "status", "cancel", "replay"):
        result = place.ensemble(command, "last")
        assert result.exit_code == 2
        assert "not the journal" in result.output
    assert (folder / NAME).read_bytes() == before


def test_unwritable_state_folder_is_an_error(place: Place) -> None:
    def mount(*args: str) -> None:
        done = subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")

    place.state.mkdir()
    mount("-t", "tmpfs", "none", str(place.state))
    try:
        place.killed("told", 4)
        mount("-o", "remount,ro", "none", str(place.state))
        for command in (["resume", "last"], ["cancel", "last"], place.run_args()[:-2]):
            result = place.ensemble(*command)
            assert result.exit_code == 2, result.output
            assert "Read-only file system" in result.output or "readonly" in result.output
        assert place.ensemble("runs").exit_code == 0
        mount("-o", "remount,rw", "none", str(place.state))
        check_right(place, place.ensemble("resume", "last"))
    finally:
        subprocess.run(["umount", "-l", str(place.state)], check=False)


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-25, -1, 1, 24 * 400])
def test_changed_system_clock_does_not_break_a_resume(
    hours: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.folder / "e.yaml").write_text(
        YAML
        + """
  - {id: beat, trigger: heartbeat, repetitions: 3, action: {name: submit, label: next}}
  - {id: tick, trigger: interval, seconds: 0.05, repetitions: 3, action: {name: log, message: tick}}
logging: {heartbeat: 0.1}
"""
    )
    place.killed("told", 4)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    began = time.monotonic()
    result = place.ensemble("resume", "last", "--debug")
    assert time.monotonic() - began < 100
    assert result.exit_code == 0, result.output
    assert place.submitted() == {**JOBS, "next.3": 1, "next.4": 1, "next.5": 1}
    assert ("clock is" in result.output and "behind" in result.output) == (hours < 0)
    assert place.ensemble("replay", "last").exit_code == 0
    with Journal(place.journal) as journal:
        resumed = [row for row in journal.rows() if row.type == "resume"]
        beats = [row for row in journal.rows() if row.name is None and row.type == "timer"]
        assert len(resumed) == 1
        assert len(beats) < 200
        # The run's own events never go back in time, even if the clock does.
        ours = [row.time for row in journal.rows() if row.type in ("start", "timer", "resume")]
        assert ours == sorted(ours)


# -- locks -----------------------------------------------------------------------------------------


def test_second_controller_is_rejected_and_the_first_is_named(place: Place) -> None:
    place.killed("told", 4)
    lock = Lock(place.run)
    lock.acquire()
    try:
        result = place.ensemble("resume", "last")
        assert result.exit_code == 2
        assert f"process {os.getpid()} on {socket.gethostname()}" in result.output
        # Not even with --take-over if the first controller is known to be alive.
        assert place.ensemble("resume", "last", "--take-over").exit_code == 2
    finally:
        lock.release()
    check_right(place, place.ensemble("resume", "last"))


def refuse_flock(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_lock_without_file_locking_is_judged_by_its_holder(
    number: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_flock(monkeypatch, number)
    place.killed("told", 4)
    lock = Lock(place.run)
    lock.acquire()  # allowed, because the killed controller is dead
    try:
        result = place.ensemble("resume", "last")
        assert result.exit_code == 2
        assert f"process {os.getpid()} on {socket.gethostname()}" in result.output
    finally:
        lock.release()
    elsewhere = {"host": "another", "pid": 1, "born": 1, "boot": "x", "since": 0, "locked": False}
    (place.run / "lock").write_text(json.dumps(elsewhere))
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2
    assert "process 1 on another" in result.output
    assert "--take-over" in result.output
    check_right(place, place.ensemble("resume", "last", "--take-over"))


def test_resume_reads_secrets_again_and_reports_missing_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place.folder / "e.yaml"
    text = file.read_text().replace("{name: ", "{environment_from: [DB_PASSWORD], name: ", 1)
    assert "DB_PASSWORD" in text
    file.write_text(text)
    monkeypatch.setenv("DB_PASSWORD", "first")
    place.killed("told", 4)
    before = place.submitted()
    monkeypatch.delenv("DB_PASSWORD")
    result = place.ensemble("resume", "last")
    assert result.exit_code == 2
    assert "environment variables are not set: DB_PASSWORD" in result.output
    assert place.submitted() == before
    monkeypatch.setenv("DB_PASSWORD", "second")
    check_right(place, place.ensemble("resume", "last"))


def test_lock_of_a_renamed_host_is_recognized(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_flock(monkeypatch, errno.ENOSYS)
    place.killed("told", 4)
    lock = Lock(place.run)
    lock.acquire()
    told = json.loads((place.run / "lock").read_text())
    lock.release()
    for change in ({"host": "before", "boot": "x"}, {"host": "before", "processes": "pid:[1]"}):
        (place.run / "lock").write_text(json.dumps({**told, "pid": 1 << 30, **change}))
        assert place.ensemble("resume", "last").exit_code == 2
    (place.run / "lock").write_text(json.dumps({**told, "pid": 1 << 30, "host": "before"}))
    check_right(place, place.ensemble("resume", "last"))


# -- queues without reattach -----------------------------------------------------------------------


def test_queue_that_cannot_reattach_loses_the_jobs(place: Place) -> None:
    place.killed("told", 4, executor="blind")
    before = place.submitted()
    result = place.ensemble("resume", "last")
    assert result.exit_code == 1, result.output
    assert "executor blind cannot find jobs again" in result.output
    assert "3 jobs failed" in result.output
    assert place.submitted() == before  # no job runs twice
    assert place.ensemble("replay", "last").exit_code == 0


def test_queue_that_forgot_finished_jobs_reports_them_lost(place: Place) -> None:
    """The controller is killed after an event of each job. The jobs end before the resume."""
    (place.folder / "e.yaml").write_text(YAML.replace("lasts: 0.1", "lasts: 60"))
    command = [sys.executable, "-m", "ensemble_core.cli", *place.run_args(forgets="true")]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        try:
            told = map(json.loads, process.stdout or ())
            assert len(list(islice((line for line in told if line.get("name") == "start"), 3))) == 3
            wait_until(lambda: place.heard_of() >= place.submitted().keys())
        finally:
            process.kill()
    before = place.submitted()
    assert len(before) == 3
    queue = place.folder / "queue.jsonl"
    lines = [json.loads(line) for line in queue.read_text().splitlines()]
    long_ago = [json.dumps({**line, "time": line["time"] - 100}) for line in lines]
    queue.write_text("".join(f"{line}\n" for line in long_ago))
    result = place.ensemble("resume", "last")
    assert result.exit_code in (0, 1), result.output
    told = "its outcome is unknown"
    events = place.ensemble("events", "last").output
    assert told in events + result.output
    assert all(count == 1 for count in place.submitted().values())
    assert before.keys() <= place.submitted().keys()
    status = json.loads(place.ensemble("status", "last", "--json").output)
    (work, _) = status["report"]["groups"]
    assert work["submitted"] == work["success"] + work["failed"] + work["cancelled"]
