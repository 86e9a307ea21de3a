"""``ensemble runs``, ``status``, ``events``, ``logs`` and ``clean``: commands for stored runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from kept_story import KeptStory

from ensemble_core import open_run, run
from ensemble_core.cli.main import main
from ensemble_core.cli.options import KeptRun, complete_runs
from ensemble_core.display.text_style import format_size
from ensemble_core.journal import run_folder
from ensemble_core.journal.damage_detection import WRITE_ALL, add_functions
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME, Snapshot, digest
from ensemble_core.journal.run_folder import BEGAN
from ensemble_core.journal.run_state import write_began
from ensemble_core.journal.run_store import new_folder
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()

FILE = """
jobs: [{name: sim, command: sim, count: 3}, {name: echo, command: echo hello}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
  - {id: enough, trigger: metric, name: count.sim.success, when: 2,
     action: {name: submit, label: echo}}
"""


class Kept(KeptStory):
    """A run with output."""

    def __init__(
        self, state: Path, tag: str = "run-20260101T120000-aaaaaa", text: str = FILE, **about: Any
    ) -> None:
        self.output = state / "runs" / tag / "output"
        executor = {"name": "local", "options": {}}
        about = {"name": "run", "executor": executor, "output": str(self.output), **about}
        super().__init__(state, text, tag, **about)
        self.output.mkdir()

    def started(self, job: str, out: str | None = "", err: str | None = "") -> None:
        """Start a job with this output; ``None``: its file was deleted."""
        self.job(job, "submit", queue_id=f"q-{job}")
        for text, ending in ((out, "out"), (err, "err")):
            if text is not None:
                (self.output / f"{job}.{ending}").write_text(text)
        folder = str(self.output)
        self.job(job, "start", workdir=folder, stdout=f"{job}.out", stderr=f"{job}.err")

    def cut_off(self) -> Kept:
        """Close the journal without an end, as a killed controller leaves it."""
        self.writer.flush(None)
        self.writer.close()
        return self

    def keep(self, exit_code: int = 0, *, days_ago: float = 0.0, **outcome: Any) -> Kept:
        """End the run."""
        said = {"over": True, "exit_code": exit_code, "reason": "all is done", **outcome}
        self.writer.end(time.time() - 86400 * days_ago, said)
        self.writer.close()
        return self


def ensemble(state: Path, *args: str) -> Result:
    return CliRunner().invoke(main, [*args, "--state", str(state)])


def changed(connection: sqlite3.Connection) -> None:
    """Recompute the checksums of a modified journal."""
    add_functions(connection)
    connection.executescript(WRITE_ALL)


def in_lists_of(events: int, connection: sqlite3.Connection) -> None:
    """Rewrite the journal with a fixed number of events per list.

    Otherwise their number would depend on the speed of the machine.
    """
    found = connection.execute("SELECT list, jobs FROM event_lists ORDER BY first").fetchall()
    rows = [row for text, _ in found for row in json.loads(text)]
    connection.execute("DELETE FROM event_lists")
    for at in range(0, len(rows), events):
        part = rows[at : at + events]
        values = (at + 1, at + len(part), json.dumps(part, separators=(",", ":")))
        values += (found[-1][1], 0, 0)
        connection.execute("INSERT INTO event_lists VALUES (?, ?, ?, ?, ?, ?)", values)
    changed(connection)
    connection.commit()
    connection.execute("VACUUM")


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def played(state: Path, tag: str = "run-20260101T120000-aaaaaa", **about: Any) -> Kept:
    told = Kept(state, tag, **about)
    told.start()
    told.play("sim.0")
    told.play("sim.1", status=256)
    return told


# -- runs ------------------------------------------------------------------------------------------


def test_empty_list_of_runs_is_no_error(tmp_path: Path) -> None:
    result = ensemble(tmp_path, "runs")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no runs in" in result.stderr
    assert ensemble(tmp_path, "runs", "--json").stdout == ""


def test_runs_are_listed_oldest_first_each_with_its_state(tmp_path: Path) -> None:
    played(tmp_path, "b-20260101T120000-aaaaaa", began=1000.0).keep(exit_code=3)
    played(tmp_path, "a-20260102T120000-bbbbbb", began=1001.0).cut_off()
    running = played(tmp_path, "c-20260103T120000-cccccc", began=1002.0)
    lock = Lock(running.folder)
    lock.acquire()
    try:
        broken = tmp_path / "runs" / "d-20260104T120000-dddddd"
        broken.mkdir()
        (broken / NAME).write_bytes(b"nothing that anybody could read" * 99)
        found = rows(ensemble(tmp_path, "runs", "--json").stdout)
        assert [(run["tag"][0], run["state"]) for run in found] == [
            ("b", "ended"),
            ("a", "interrupted"),
            ("c", "running"),
            ("d", "unreadable"),
        ]
        assert found[0]["exit_code"] == 3
        assert found[2]["controller"]["pid"] == os.getpid()
        assert found[1]["events"] == 21
        lines = ensemble(tmp_path, "runs").stdout.splitlines()
        assert [line.split()[1] for line in lines[1:]] == [run["state"] for run in found]
        assert "is damaged" in lines[-1]
    finally:
        lock.release()
        running.cut_off()


def test_newest_of_many_runs_are_listed(tmp_path: Path) -> None:
    for number in range(30):
        Kept(tmp_path, f"run-20260101T1200{number:02d}-aaaaaa").cut_off()
    lines = ensemble(tmp_path, "runs").stdout.splitlines()
    assert "10 earlier; --all lists them" in lines[0]
    assert len(lines) == 22
    assert lines[-1].startswith("run-20260101T120029")
    assert len(ensemble(tmp_path, "runs", "--all").stdout.splitlines()) == 31
    assert len(rows(ensemble(tmp_path, "runs", "--json").stdout)) == 30


def test_last_is_the_run_with_the_latest_start(tmp_path: Path) -> None:
    """All of these runs start within the same second."""
    for place, tag in enumerate(("zebra", "aaa", "run-20260101T120000-aaaaaa", "bbb")):
        write_began(played(tmp_path, tag).keep().folder, 1.7e9 + place / 100)
    expected = ["zebra", "aaa", "run-20260101T120000-aaaaaa", "bbb"]
    found = rows(ensemble(tmp_path, "runs", "--json").stdout)
    assert [run["tag"] for run in found] == expected
    assert found[-1]["began"] == 1.7e9 + 0.03
    assert json.loads(ensemble(tmp_path, "status", "last", "--json").stdout)["tag"] == "bbb"
    assert open_run("last", state=tmp_path).tag == "bbb"
    context = click.Context(click.Command("status"))
    context.params = {"state": str(tmp_path)}
    offered = complete_runs(context, click.Argument(["run"]), "")
    assert [item.value for item in offered] == ["last", *reversed(expected)]
    assert "bbb" in ensemble(tmp_path, "clean", "last", "--yes").stdout


def test_last_is_the_newest_of_runs_started_one_after_another(tmp_path: Path) -> None:
    study = {"jobs": [{"name": "sim", "command": "sim"}], "rules": []}
    study["rules"] = [{"trigger": "start", "action": {"name": "log", "message": "here"}}]
    tags = []
    for tag in ("aaa", None, "Aaa"):
        tags.append(run(study, tag=tag, state=tmp_path).tag)
        assert open_run("last", state=tmp_path).tag == tags[-1]
    assert [one["tag"] for one in rows(ensemble(tmp_path, "runs", "--json").stdout)] == tags


def test_copying_or_touching_a_run_does_not_make_it_newer(tmp_path: Path) -> None:
    old = played(tmp_path, "old", began=1000.0).keep()
    played(tmp_path, "new", began=2000.0).keep()
    shutil.copytree(old.folder, tmp_path / "runs" / "zzz")
    for path in (old.folder, old.folder / NAME):
        os.utime(path)
    found = rows(ensemble(tmp_path, "runs", "--json").stdout)
    assert [run["tag"] for run in found] == ["old", "zzz", "new"]
    assert json.loads(ensemble(tmp_path, "status", "last", "--json").stdout)["tag"] == "new"


def test_damaged_run_keeps_its_place_and_is_last_only_with_a_start_time(
    tmp_path: Path,
) -> None:
    for tag, began in (("first", 1000.0), ("damaged", 2000.0), ("third", 3000.0)):
        played(tmp_path, tag, began=began).keep()
    write_began(tmp_path / "runs" / "damaged", 2000.0)
    write_began(tmp_path / "runs" / "first", 1000.0)
    flipped = (tmp_path / "runs" / "first" / BEGAN).read_bytes().replace(b"1000", b"9000", 1)
    (tmp_path / "runs" / "first" / BEGAN).write_bytes(flipped)  # the journal has 1000
    (tmp_path / "runs" / "damaged" / NAME).write_bytes(b"nothing that anybody could read" * 99)
    shutil.copytree(tmp_path / "runs" / "damaged", tmp_path / "runs" / "zzz")
    (tmp_path / "runs" / "zzz" / BEGAN).write_text("nan")
    found = rows(ensemble(tmp_path, "runs", "--json").stdout)
    assert [(run["tag"], run["began"]) for run in found] == [
        ("zzz", None),
        ("first", 1000.0),
        ("damaged", 2000.0),
        ("third", 3000.0),
    ]


def test_reading_a_run_does_not_lock_it(tmp_path: Path) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            Lock(tmp_path).controller()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(200):
            # As left by a killed controller.
            (tmp_path / "lock").write_text('{"pid": 1, "host": "here", "locked": true}')
            lock = Lock(tmp_path)
            lock.acquire()
            lock.release()
    finally:
        over.set()
        looker.join()


def test_unknown_run_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    played(tmp_path).keep()
    for command in ("status", "events", "logs", "replay", "clean"):
        result = ensemble(tmp_path, command, "run-20260101T120000-aaaaab")
        assert result.exit_code == 2
        assert "there is no run" in result.stderr
        assert "did you mean run-20260101T120000-aaaaaa?" in result.stderr
    found = rows(ensemble(tmp_path, "status", "nope", "--json").stdout)
    assert found[0]["code"] == "no-such-run"


def test_shell_completes_runs_newest_first(tmp_path: Path) -> None:
    from click.shell_completion import ShellComplete

    played(tmp_path, "one-20260101T120000-aaaaaa").keep()
    played(tmp_path, "two-20260102T120000-bbbbbb").keep()
    complete = ShellComplete(main, {}, "ensemble", "_ENSEMBLE_COMPLETE")
    found = complete.get_completions(["status", "--state", str(tmp_path)], "")
    assert [item.value for item in found] == [
        "last",
        "two-20260102T120000-bbbbbb",
        "one-20260101T120000-aaaaaa",
    ]


# -- status ----------------------------------------------------------------------------------------


def test_status_of_an_interrupted_run_shows_the_resume_command(tmp_path: Path) -> None:
    played(tmp_path).cut_off()
    result = ensemble(tmp_path, "status", "last")
    assert result.exit_code == 0
    assert "run-20260101T120000-aaaaaa: interrupted" in result.stdout
    assert "was killed" in result.stdout
    assert "(1 job unfinished): ensemble resume run-20260101T120000-aaaaaa" in result.stdout
    found = json.loads(ensemble(tmp_path, "status", "last", "--json").stdout)
    (sim, echo) = found["report"]["groups"]
    assert (sim["success"], sim["failed"], sim["waiting"]) == (1, 1, 1)
    assert echo["submitted"] == 0
    assert found["sessions"][0]["ended"] is None
    assert found["active"] == 1


def test_status_of_an_ended_run_shows_its_exit_code(tmp_path: Path) -> None:
    told = played(tmp_path)
    told.play("sim.2")
    told.play("echo.0")
    told.keep(exit_code=1)
    result = ensemble(tmp_path, "status", "last")
    assert "ended, exit code 1" in result.stdout
    assert "resume" not in result.stdout
    assert "fired 1  enough" in result.stdout


def test_status_shows_the_readable_part_if_the_file_cannot_be_loaded(tmp_path: Path) -> None:
    played(tmp_path, plugins=[str(tmp_path / "gone.py")]).cut_off()
    result = ensemble(tmp_path, "status", "last")
    assert result.exit_code == 2
    assert "run-20260101T120000-aaaaaa: interrupted" in result.stdout
    assert "gone.py' does not exist" in result.stderr
    found = json.loads(ensemble(tmp_path, "status", "last", "--json").stdout)
    assert found["report"] is None
    assert "gone.py" in found["error"]["what"]


# -- events ----------------------------------------------------------------------------------------


def test_events_are_in_order(tmp_path: Path) -> None:
    told = played(tmp_path).keep()
    found = rows(ensemble(tmp_path, "events", "last", "--json").stdout)
    events = [each for each in found if each["kind"] == "event"]
    decisions = [each for each in found if each["kind"] == "decision"]
    assert [each["seq"] for each in events] == list(range(1, len(told.events) + 1))
    assert [each["name"] for each in events[1:10]] == [
        "submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free",
    ]  # fmt: skip
    assert [each["type"] for each in decisions] == [one.type for one in told.decisions]
    kept = ("kind", "seq")
    assert [
        {key: value for key, value in each.items() if key not in kept} for each in events
    ] == json.loads(json.dumps([event.to_dict() for event in told.events]))
    only = rows(ensemble(tmp_path, "events", "last", "--json", "--no-decisions").stdout)
    assert only == events


def test_events_of_a_job_include_its_decisions(tmp_path: Path) -> None:
    played(tmp_path).keep()
    found = rows(ensemble(tmp_path, "events", "last", "--json", "--job", "sim.1").stdout)
    assert {each["job"] for each in found if each["kind"] == "event"} == {"sim.1"}
    (submit,) = [each for each in found if each["kind"] == "decision"]
    assert [job["id"] for job in submit["jobs"]] == ["sim.1"]
    text = ensemble(tmp_path, "events", "last", "--job", "sim.1", "--since", "12").stdout
    assert text.splitlines()[0].split()[0] == "12"
    assert "sim.0" not in text
    assert "failed sim.1: exit code 1" in text


def test_events_of_a_job_that_the_run_does_not_have_are_refused(tmp_path: Path) -> None:
    played(tmp_path).keep()
    for options in ((), ("--json",), ("--follow",), ("--since", "12"), ("--no-decisions",)):
        told = ensemble(tmp_path, "events", "last", "--job", "sim.19", *options)
        assert told.exit_code == 2, options
        assert "has no job 'sim.19'" in told.output
        assert "did you mean sim." in told.output
    assert ensemble(tmp_path, "events", "last", "--job", "sim.1-7").exit_code == 2
    none_since = ensemble(tmp_path, "events", "last", "--job", "sim.1", "--since", "9999")
    assert (none_since.exit_code, none_since.stdout) == (0, "")


def test_follow_ends_when_the_controller_exits(tmp_path: Path) -> None:
    told = played(tmp_path)
    lock = Lock(told.folder)
    lock.acquire()

    def go_on() -> None:
        time.sleep(0.5)
        told.play("sim.2")
        told.writer.end(told.now, {"over": True, "exit_code": 0})
        told.writer.close()
        lock.release()

    other = threading.Thread(target=go_on)
    other.start()
    found = rows(ensemble(tmp_path, "events", "last", "--follow", "--json").stdout)
    other.join()
    events = [each["seq"] for each in found if each["kind"] == "event"]
    assert events == list(range(1, len(told.events) + 1))


def test_events_shows_the_readable_part_of_a_damaged_journal(tmp_path: Path) -> None:
    told = Kept(tmp_path, text=FILE.replace("count: 3", "count: 300"))
    told.start()
    for job in range(300):
        told.play(f"sim.{job}")
    told.keep()
    path = told.folder / NAME
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").fetchall()
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    with path.open("r+b") as file:
        file.seek(30 * size)
        file.write(b"\xff" * size)
    result = ensemble(tmp_path, "events", "last", "--json", "--no-decisions")
    assert result.exit_code == 1
    read = [each["seq"] for each in rows(result.stdout)]
    assert read == sorted(set(read))
    missing = len(told.events) - len(read)
    assert 0 < missing < 400  # the lists on that page
    assert f"{missing} events cannot be read" in result.stderr
    # The other commands report it and stop.
    for command in (["replay", "last"], ["why", "last", "enough"]):
        result = ensemble(tmp_path, *command)
        assert result.exit_code == 2
        assert "the journal is damaged" in result.stderr


@pytest.mark.parametrize("at_once", [1, 20])
def test_events_shows_the_rest_of_a_truncated_journal(tmp_path: Path, at_once: int) -> None:
    told = Kept(tmp_path, text=FILE.replace("count: 3", "count: 300"))
    told.start()
    for job in range(300):
        told.play(f"sim.{job}")
    told.keep()
    path = told.folder / NAME
    with sqlite3.connect(path) as connection:
        in_lists_of(at_once, connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    whole = path.stat().st_size
    os.truncate(path, whole // 2)
    result = ensemble(tmp_path, "events", "last", "--json", "--no-decisions")
    assert result.exit_code == 1
    read = [each["seq"] for each in rows(result.stdout)]
    assert read == sorted(set(read))
    assert len(told.events) / 8 < len(read) < len(told.events)
    # A list may be stored after later lists, and so be lost without them. Its position also depends
    # on the length of this test's path.
    missing = read[-1] - len(read)
    assert missing % at_once == 0
    said = f"possible events from {read[-1] + 1} on"
    said = f"{missing} event{'s' * (missing > 1)}, and {said}," if missing else said
    assert f"error: the journal is damaged: {said} cannot be read" in result.stderr
    assert ensemble(tmp_path, "status", "last").exit_code == 2
    # Even without the run's description, the events are shown.
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    again = ensemble(tmp_path, "events", "last", "--json", "--no-decisions")
    assert again.stdout == result.stdout
    assert "[" in ensemble(tmp_path, "events", "last").stdout


def test_invalid_text_in_a_journal_is_damage(tmp_path: Path) -> None:
    told = played(tmp_path).keep()
    with sqlite3.connect(told.folder / NAME) as connection:
        connection.execute("UPDATE about SET value = CAST(X'FF22' AS TEXT) WHERE key = 'tag'")
    connection.close()
    result = ensemble(tmp_path, "status", "last")
    assert result.exit_code == 2
    assert "the journal is damaged" in result.stderr


def test_missing_row_is_reported(tmp_path: Path) -> None:
    told = played(tmp_path).keep()
    with sqlite3.connect(told.folder / NAME) as connection:
        in_lists_of(1, connection)
        connection.execute("DELETE FROM event_lists WHERE first IN (5, 6)")
        connection.execute("UPDATE event_lists SET list = '[[1.0,\"job' WHERE first = 8")
    connection.close()
    result = ensemble(tmp_path, "events", "last", "--json", "--no-decisions")
    assert result.exit_code == 1
    found = [each["seq"] for each in rows(result.stdout)]
    assert found == [seq for seq in range(1, len(told.events) + 1) if seq not in (5, 6, 8)]
    assert "3 events cannot be read" in result.stderr


# -- logs ------------------------------------------------------------------------------------------


def test_logs_shows_the_output_of_jobs(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.started("sim.0", "one\ntwo\nthree\n", "oh dear\n")
    told.started("sim.1", "four\n", None)
    told.keep()
    result = ensemble(tmp_path, "logs", "last")
    assert "three\n" in result.stdout
    assert "oh dear\n" in result.stdout
    assert "==> sim.1 stdout" in result.stdout
    assert result.exit_code == 1  # the file of an unfinished job is missing
    assert "sim.1.err: no such file" in result.stderr
    assert "sim.2: it has not started yet" in result.stderr
    one = ensemble(tmp_path, "logs", "last", "sim.0", "--tail", "1")
    assert one.exit_code == 0
    assert "three\n" in one.stdout
    assert "two" not in one.stdout
    found = rows(ensemble(tmp_path, "logs", "last", "sim.0", "--json").stdout)
    assert [(each["stream"], each["text"]) for each in found] == [
        ("stdout", "one\ntwo\nthree\n"),
        ("stderr", "oh dear\n"),
    ]
    assert found[0]["queue_id"] == "q-sim.0"


def test_deleted_empty_output_is_no_error(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.started("sim.0", None, None)
    told.job("sim.0", "finish", "clean", status=0)
    told.keep()
    assert ensemble(tmp_path, "logs", "last").exit_code == 0
    result = ensemble(tmp_path, "logs", "last", "sim.0")
    assert "the job wrote nothing, or the file was removed" in result.stderr


def test_logs_do_not_mention_the_empty_stream_of_a_job(
    tmp_path: Path,
) -> None:
    told = Kept(tmp_path)
    told.start()
    told.started("sim.0", "all is well\n", None)
    told.job("sim.0", "finish", "clean", status=0)
    told.keep()
    result = ensemble(tmp_path, "logs", "last", "sim.0")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "all is well\n", "")
    found = rows(ensemble(tmp_path, "logs", "last", "sim.0", "--json").stdout)
    assert [each["stream"] for each in found] == ["stdout", "stderr"]


def test_much_output_is_listed_rather_than_shown(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.started("sim.0", "x" * 70_000, "")
    told.keep()
    result = ensemble(tmp_path, "logs", "last")
    assert result.stdout.splitlines()[0].split()[:4] == ["sim.0", "stdout", "70", "kB"]
    assert "xxx" not in result.stdout


def test_logs_says_how_to_get_output_from_the_queue(tmp_path: Path) -> None:
    told = Kept(tmp_path, executor={"name": "flux", "options": {}})
    told.start()
    told.job("sim.0", "submit", queue_id="f123")
    told.job("sim.0", "start", workdir="/tmp")
    told.keep()
    result = ensemble(tmp_path, "logs", "last", "sim.0")
    assert result.exit_code == 1
    assert "flux job attach f123" in result.stderr


def test_logs_names_the_path_of_output_on_a_member(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    told = Kept(tmp_path, executor={"name": "remote", "options": {}})
    told.start()
    told.job("sim.0", "start", at_member={"workdir": str(tmp_path), "stdout": "secret"})
    told.keep()
    result = ensemble(tmp_path, "logs", "last", "sim.0")
    assert result.exit_code == 1
    assert f"on its member's machine, in {secret}" in result.stderr
    assert "mine" not in result.output


def test_unknown_job_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    played(tmp_path).keep()
    result = ensemble(tmp_path, "logs", "last", "sim.9")
    assert result.exit_code == 2
    assert "has no job 'sim.9'" in result.stderr
    assert "did you mean sim." in result.stderr


# -- clean -----------------------------------------------------------------------------------------


def test_clean_needs_a_selection(tmp_path: Path) -> None:
    told = played(tmp_path).keep()
    assert ensemble(tmp_path, "clean").exit_code == 2
    assert ensemble(tmp_path, "clean", "--older-than", "soon").exit_code == 2
    assert ensemble(tmp_path, "clean", "--ended", "--dry-run").exit_code == 0
    assert told.folder.is_dir()


def test_clean_removes_only_ended_runs(tmp_path: Path) -> None:
    ended = played(tmp_path, "a-20260101T120000-aaaaaa").keep()
    cut = played(tmp_path, "b-20260102T120000-bbbbbb").cut_off()
    running = played(tmp_path, "c-20260103T120000-cccccc")
    lock = Lock(running.folder)
    lock.acquire()
    try:
        result = ensemble(tmp_path, "clean", "--ended", "--json")
        assert result.exit_code == 0
        (one, total) = rows(result.stdout)
        assert (one["tag"], one["removed"]) == (ended.folder.name, True)
        assert total["removed"] == 1
        assert total["bytes"] > 0
        assert not ended.folder.exists()
        assert cut.folder.exists()
        # A live run is kept even if named, and with --all.
        assert ensemble(tmp_path, "clean", running.folder.name, "--yes").exit_code == 1
        assert ensemble(tmp_path, "clean", "--all", "--yes").exit_code == 0
        assert running.folder.exists()
        assert not cut.folder.exists()
    finally:
        lock.release()
        running.cut_off()


def test_run_with_queued_jobs_is_removed_only_with_yes(tmp_path: Path) -> None:
    told = played(tmp_path).cut_off()
    result = ensemble(tmp_path, "clean", "last")
    assert result.exit_code == 2
    assert "may still have 1 job" in result.stderr
    assert "ensemble cancel" in result.stderr
    assert told.folder.exists()
    assert ensemble(tmp_path, "clean", "last", "--yes").exit_code == 0
    assert not told.folder.exists()


@pytest.mark.parametrize("journal", [b"", b"my notes", b"SQLite format 3\0" + bytes(100)])
def test_clean_keeps_a_folder_that_only_looks_like_a_run(tmp_path: Path, journal: bytes) -> None:
    home = tmp_path / "home"
    (home / "output").mkdir(parents=True)
    (home / NAME).write_bytes(journal)
    (home / "thesis.tex").write_text("four years")
    (home / "output" / "sim.0.out").write_text("a figure of the thesis")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}

    result = ensemble(tmp_path, "clean", f"{home}/", "--yes")

    assert result.exit_code == 1
    assert f"{home / NAME} is not a journal of Ensemble" in result.stderr
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("content", ["", "a thesis"])
def test_folder_names_are_escaped(tmp_path: Path, content: str) -> None:
    name = "x\x1b]0;owned\x07\x1b[2J\nrun y  ended  0 B"
    folder = tmp_path / "runs" / name
    folder.mkdir(parents=True)
    (folder / NAME).write_text("")
    if content:
        (folder / "thesis.tex").write_text(content)

    for command in (("runs",), ("clean", "--all"), ("clean", "--all", "--yes")):
        result = ensemble(tmp_path, *command)
        assert "\x1b" not in result.output
        assert "\x07" not in result.output
        assert not [line for line in result.output.splitlines() if line.startswith("run y")]


@pytest.mark.parametrize(
    "place", ["thesis.tex", "output/thesis.tex", "output/sim.0.out/thesis.tex"]
)
def test_clean_keeps_a_run_with_other_files_in_its_folder(tmp_path: Path, place: str) -> None:
    told = played(tmp_path).keep()
    thesis = told.folder / place
    thesis.parent.mkdir(parents=True, exist_ok=True)
    thesis.write_text("four years")

    result = ensemble(tmp_path, "clean", "last", "--yes")

    assert result.exit_code == 1
    assert f"Ensemble did not write {thesis}" in result.stderr
    assert thesis.read_text() == "four years"
    assert ensemble(tmp_path, "status", "last").exit_code == 0


def test_clean_removes_a_run_killed_before_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "study-20260101T120000-aaaaaa"
    (folder / "executor").mkdir(parents=True)
    for name in (NAME, "lock", "executor/supervisor.log"):
        (folder / name).touch()
    assert ensemble(tmp_path, "clean", "last", "--yes").exit_code == 0
    assert not folder.exists()


def test_a_run_whose_executor_writes_while_it_is_removed_can_be_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = played(tmp_path).keep()
    late = told.folder / "executor" / "ledger"
    late.parent.mkdir(exist_ok=True)
    rmdir = os.rmdir
    with monkeypatch.context() as patched:
        patched.setattr("os.rmdir", lambda path: (late.touch(), rmdir(path)))
        kept = ensemble(tmp_path, "clean", "last", "--yes")
    assert kept.exit_code == 1
    assert "Directory not empty" in kept.stderr
    assert ensemble(tmp_path, "clean", "--all", "--yes").exit_code == 0
    assert not told.folder.exists()


def test_clean_does_not_follow_links(tmp_path: Path) -> None:
    told = played(tmp_path).keep()
    home = tmp_path / "home"
    home.mkdir()
    (home / "sim.0.out").write_text("four years")
    shutil.rmtree(told.folder / "output", ignore_errors=True)
    (told.folder / "executor").symlink_to(home)
    (told.folder / "output").symlink_to(home)
    assert ensemble(tmp_path, "clean", "last", "--yes").exit_code == 1
    assert (home / "sim.0.out").read_text() == "four years"


def test_unreadable_run_is_removed_only_with_yes(tmp_path: Path) -> None:
    told = played(tmp_path).keep()
    with (told.folder / NAME).open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 8000)
    result = ensemble(tmp_path, "clean", "last")
    assert result.exit_code == 2
    assert f"runs to be removed: {told.folder}" in result.stderr
    assert told.folder.exists()
    assert ensemble(tmp_path, "clean", "last", "--yes").exit_code == 0
    assert not told.folder.exists()


def test_older_than_removes_only_old_runs(tmp_path: Path) -> None:
    old = played(tmp_path, "a-20260101T120000-aaaaaa").keep(days_ago=40)
    new = played(tmp_path, "b-20260102T120000-bbbbbb").keep(days_ago=20)
    cut = played(tmp_path, "c-20260102T120000-cccccc").cut_off()
    assert ensemble(tmp_path, "runs").exit_code == 0  # reading a run does not make it newer
    assert ensemble(tmp_path, "clean", "--older-than", "30d").exit_code == 0
    assert not old.folder.exists()
    assert new.folder.exists()
    past = time.time() - 40 * 86400
    for path in cut.folder.glob(f"{NAME}*"):
        os.utime(path, (past, past))
    assert ensemble(tmp_path, "clean", "--older-than", "30d").exit_code == 0
    assert cut.folder.exists()
    assert ensemble(tmp_path, "clean", "--older-than", "30d", "--all", "--yes").exit_code == 0
    assert not cut.folder.exists()
    assert new.folder.exists()


def test_run_in_a_read_only_folder_can_be_read() -> None:
    home = Path(tempfile.mkdtemp())
    told = played(home).keep()
    for path in (home, *home.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)  # root can write anywhere
        result = ensemble(home, "runs", "--json")
        events = ensemble(home, "events", "last", "--json", "--no-decisions")
    finally:
        if root:
            os.seteuid(0)
        for path in (home, *home.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(home)
    assert [run["state"] for run in rows(result.stdout)] == ["ended"]
    assert len(rows(events.stdout)) == len(told.events)


class _Bomb:
    """Object that runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("foreign", [True, False])
@pytest.mark.parametrize("command", ["status", "events", "replay", "why"])
def test_reading_another_users_run_does_not_run_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, foreign: bool
) -> None:
    told = played(tmp_path).keep()
    plugin, ran, exploded = (tmp_path / name for name in ("theirs.py", "ran", "exploded"))
    plugin.write_text(f"open({str(ran)!r}, 'w')")
    with KeptRun(str(tmp_path), "last") as own:
        maker = own.maker or ""
    with sqlite3.connect(told.folder / NAME) as journal:
        state = pickle.dumps(_Bomb(exploded))
        journal.execute(
            "INSERT OR REPLACE INTO about VALUES ('plugins', ?)", (json.dumps([str(plugin)]),)
        )
        checksum = digest(Snapshot(3, maker, state))
        journal.execute("INSERT INTO snapshots VALUES (3, ?, ?, ?)", (maker, checksum, state))
        changed(journal)
    journal.close()
    if foreign:
        somebody = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: somebody)

    result = ensemble(tmp_path, command, "last", *(["begin"] if command == "why" else []))

    assert ran.exists() != foreign  # plugins of the user's own runs are trusted
    assert not exploded.exists()
    if foreign:
        assert result.exit_code == 0, result.output
        assert "belongs to another user" in result.stderr or command in ("status", "events")
        refused = ensemble(tmp_path, "resume", "last")
        assert refused.exit_code == 2
        assert "belongs to another user" in refused.stderr
        assert not ran.exists()


def test_run_names_are_escaped_in_the_status(tmp_path: Path) -> None:
    forged = "e.yaml\r\n reason      all is well\x1b[2J"
    told = played(tmp_path, executor={"name": forged, "options": {}}).keep()
    with sqlite3.connect(told.folder / NAME) as journal:
        journal.execute("UPDATE about SET value = ? WHERE key = 'file'", (json.dumps(forged),))
        journal.execute("UPDATE sessions SET host = ?", (forged,))
        changed(journal)
    journal.close()
    result = ensemble(tmp_path, "status", "last")
    assert "\x1b" not in result.output
    assert "\r" not in result.output
    lines = result.output.splitlines()
    assert not [line for line in lines if line.startswith(" reason") and "all is well" in line]


def test_state_folder_is_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = new_folder(tmp_path / "state", "run-1")
    finally:
        os.umask(before)
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_run_on_a_file_system_without_owners_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "e.yaml").write_text(
        "jobs: [{name: g, command: 'true'}]\n"
        "rules: [{trigger: start, action: {name: submit, label: g}}]\n"
    )
    words = ["run", str(tmp_path / "e.yaml"), "--executor", "local", "--state", str(tmp_path)]
    assert "others may write" not in CliRunner().invoke(main, words).output
    monkeypatch.setattr(run_folder, "is_private", lambda path, **_: False)
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 0
    assert "others may write in the run's folder" in said.output


# -- pipes -----------------------------------------------------------------------------------------


def test_closed_pipe_ends_the_command_silently(tmp_path: Path) -> None:
    told = Kept(tmp_path, text=FILE.replace("count: 3", "count: 200"))
    told.start()
    for job in range(200):  # more text than a pipe takes
        told.play(f"sim.{job}")
    told.keep()
    command = f"{sys.executable} -m ensemble_core.cli events last --state {tmp_path} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=150)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (34_500, "34 kB"), (999_600, "1.0 MB")],
)
def test_sizes_are_short(size: int, words: str) -> None:
    assert format_size(size) == words


# -- documentation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["runs", "status", "events", "logs", "why", "replay", "clean"])
def test_page_on_kept_runs_names_every_command_and_option(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kept-runs.md").read_text("utf-8")
    assert f"ensemble {name}" in page
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert options
    for option in options:
        # For a pair of flags, the page must have the one that is not the default.
        names = option.secondary_opts or [one for one in option.opts if one.startswith("--")]
        assert any(one in page for one in names), option.opts
