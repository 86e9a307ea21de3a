"""Run folders made by another user: reading them never blocks, runs code or ends in a traceback."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ensemble_core.errors import UsageError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME, PERFORMED, Journal, JournalError
from ensemble_core.journal.request_files import (
    end_requester,
    post_request,
    requester,
    stop_requester,
)
from ensemble_core.journal.run_folder import (
    BEGAN,
    HALT,
    LOCK,
    STOP,
    RunFiles,
    is_own,
    is_run_folder,
)
from ensemble_core.journal.run_state import read_info
from ensemble_core.journal.run_store import find_run, is_taken, run_folders
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.plugin.discovery import discover
from ensemble_core.session.kept_run import KeptRun
from ensemble_core.session.log_tail import log_tail
from ensemble_core.session.new_run import check_tag

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


def a_run(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    writer = JournalWriter(folder / NAME)
    writer.describe({"tag": "run-1", "name": "run"})
    writer.close()
    return folder


def in_time(call: Callable[[], object]) -> object:
    """Return the value of a call; fail if it hangs."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it waits for ever"
    return found[0]


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Be a user to whom permissions apply; root becomes ``nobody``."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_a_private_run_of_another_user_hides_no_other_run(
    request: pytest.FixtureRequest,
) -> None:
    state = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        state.chmod(0o755)
        (state / "runs").mkdir()
        (state / "runs").chmod(0o755)
        shown, private = a_run(state / "runs" / "shown"), a_run(state / "runs" / "private")
        shown.chmod(0o755)
        private.chmod(0)
        request.getfixturevalue("as_nobody")
        assert run_folders(state) == [shown]
        assert find_run(state, "shown") == find_run(state, "last") == shown
        for name in ("private", str(private)):
            with pytest.raises(UsageError, match="cannot read the run's folder"):
                find_run(state, name)
        assert is_taken(state, "private")
        assert not is_taken(state, "free")
    finally:
        os.seteuid(os.getuid())
        private.chmod(0o700)
        shutil.rmtree(state)


def test_whether_a_tag_is_taken_in_a_private_folder_of_runs_is_an_error(
    request: pytest.FixtureRequest,
) -> None:
    state = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        state.chmod(0o755)
        (state / "runs").mkdir(mode=0)
        request.getfixturevalue("as_nobody")
        with pytest.raises(UsageError, match="cannot read the folder of runs"):
            is_taken(state, "tag")
        with pytest.raises(UsageError, match="cannot read the folder of runs"):
            check_tag("tag", str(state), new=True)
    finally:
        os.seteuid(os.getuid())
        (state / "runs").chmod(0o700)
        shutil.rmtree(state)


def test_a_named_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run-1")
    for name in (BEGAN, LOCK, PERFORMED, STOP, HALT):
        os.mkfifo(folder / name)
    assert in_time(lambda: read_info(folder).state) == "new"
    assert in_time(Lock(folder).holder) is None
    assert in_time(lambda: end_requester(folder) or "nobody") == "nobody"
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME)
    assert in_time(lambda: read_info(folder).state) == "unreadable"
    assert in_time(lambda: is_run_folder(folder)) is False


def test_a_device_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run-1")
    for name in (BEGAN, LOCK, PERFORMED, STOP):
        (folder / name).symlink_to("/dev/zero")
    assert in_time(lambda: read_info(folder).state) == "new"
    assert in_time(lambda: end_requester(folder) or "nobody") == "nobody"


@pytest.mark.parametrize(
    "made",
    [
        f"DROP TABLE about; CREATE VIEW about AS {ENDLESS} SELECT 'a' AS key, '1' AS value FROM n",
        "DROP TABLE about; CREATE TABLE about (key TEXT, value TEXT AS (hex(zeroblob(400000000))))",
        f"DROP TABLE about; CREATE VIEW ABOUT AS {ENDLESS} SELECT 'a' AS key, '1' AS value FROM n",
        "CREATE TRIGGER more AFTER INSERT ON event_lists BEGIN DELETE FROM about; END",
    ],
)
def test_a_journal_with_a_foreign_schema_is_rejected_before_it_is_read(
    tmp_path: Path, made: str
) -> None:
    folder = a_run(tmp_path / "run-1")
    with sqlite3.connect(folder / NAME) as journal:
        journal.executescript(made)
    journal.close()
    for salvage in (False, True):
        with pytest.raises(JournalError, match="not the journal of a run") as refused:
            Journal(folder / NAME, salvage=salvage)
        assert refused.value.code == "no-journal"


@pytest.mark.parametrize(
    "says",
    [
        {"pid": 1, "host": "far", "since": 1e300},
        {"pid": 1, "host": "far", "since": "yesterday"},
        {"pid": "1", "host": "far", "since": 1},
        {"pid": 1, "host": "far\x1b[2J\nrow", "since": 1},
        "[" * 200_000,
    ],
)
def test_an_invalid_lock_has_no_owner(tmp_path: Path, says: object) -> None:
    folder = a_run(tmp_path / "run-1")
    (folder / LOCK).write_text(says if isinstance(says, str) else json.dumps(says))
    assert Lock(folder).holder() is None
    assert read_info(folder).state == "new"


def test_a_journal_with_endlessly_nested_values_is_damaged(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run-1")
    with sqlite3.connect(folder / NAME) as journal:
        journal.execute("INSERT INTO about VALUES ('x', ?)", ("[" * 200_000,))
    journal.close()
    with pytest.raises(JournalError, match="damaged"):
        Journal(folder / NAME)


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("INSERT OR REPLACE INTO about VALUES ('executor', ?)", ["local"]),
        ("INSERT OR REPLACE INTO about VALUES ('plugins', ?)", {"a": 1}),
        ("INSERT OR REPLACE INTO about VALUES ('name', ?)", [1]),
        ("UPDATE sessions SET ended = 1, outcome = ?", {"over": True, "exit_code": "0\x1b[2J"}),
        ("UPDATE sessions SET ended = 1, outcome = ?", {"over": True, "exit_code": 10**30}),
        ("UPDATE sessions SET ended = 1, outcome = ?", {"over": True, "reason": {"a": 1}}),
    ],
)
def test_a_value_of_a_wrong_type_is_damage(tmp_path: Path, statement: str, value: object) -> None:
    folder = a_run(tmp_path / "run-1")
    with sqlite3.connect(folder / NAME) as journal:
        journal.execute("INSERT INTO sessions VALUES (1, 0, 1.0, 'h', 1, '{}', NULL, NULL)")
        journal.execute(statement, (json.dumps(value),))
    journal.close()
    info = read_info(folder)
    assert info.state == "unreadable"
    assert "damaged" in info.problem


def test_a_run_that_is_writable_by_its_group_is_not_private(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run-1")
    assert is_own(folder)
    for path in (folder, folder / NAME):
        before = path.stat().st_mode
        path.chmod(before | 0o020)
        assert not is_own(folder)
        path.chmod(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_a_run_of_another_user_shows_only_files_of_its_owner(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run-1")
    mine, theirs = tmp_path / "private", folder / "sim.0.out"
    mine.write_text("my secret")
    theirs.write_text("output")
    (folder / "link").symlink_to(tmp_path)
    (folder / "hard.out").hardlink_to(mine)
    with Journal(folder / NAME):
        RunFiles(folder).open(mine).close()  # in one's own run
    for path in (folder, folder / NAME, theirs):
        os.chown(path, 12345, 12345)
    with Journal(folder / NAME):
        files = RunFiles(folder)
    for path in (mine, folder / "link" / "private", folder / "hard.out", Path("/etc/shadow")):
        with pytest.raises(PermissionError):
            files.open(path)
    with files.open(theirs) as file:
        assert file.read() == b"output"


def test_run_that_others_can_write_shows_only_files_below_its_folder(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run-1")
    mine = tmp_path / "private"
    mine.write_text("my secret")
    (folder / "sim.0.out").write_text("output")
    (folder / "link").symlink_to(mine)
    folder.chmod(0o777)
    with Journal(folder / NAME):
        files = RunFiles(folder)
    for path in (mine, folder / "link"):
        with pytest.raises(PermissionError):
            files.open(path)
    files.open(folder / "sim.0.out").close()


def test_a_run_is_the_users_own_only_if_the_open_journal_is(tmp_path: Path) -> None:
    """A link in another user's state folder may lead to a private folder for a moment."""
    theirs, mine = a_run(tmp_path / "theirs"), a_run(tmp_path / "mine")
    link = tmp_path / "link"
    link.symlink_to(theirs)
    theirs.chmod(0o777)
    with Journal(link / NAME):
        link.unlink()
        link.symlink_to(mine)
        assert not RunFiles(link).own
    with Journal(link / NAME):
        assert RunFiles(link).own


def test_whose_run_it_is_does_not_change_while_it_is_open(tmp_path: Path) -> None:
    theirs, mine = a_run(tmp_path / "theirs"), a_run(tmp_path / "mine")
    secret = tmp_path / "private"
    secret.write_text("my secret")
    theirs.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(theirs)
    start = {"stdout": str(secret), "started": 1.0}
    with KeptRun(None, f"{link}{os.sep}", find_plugins=discover, warn=print) as kept:
        assert log_tail(start, "stdout", 100, kept.files)["text"] == ""
        link.unlink()
        link.symlink_to(mine)
        assert log_tail(start, "stdout", 100, kept.files)["text"] == ""
        assert kept.maker is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_logs_of_a_run_of_another_user_do_not_show_private_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from ensemble_core.cli.main import main

    private = tmp_path / "private"
    (tmp_path / "e.yaml").write_text(
        f"jobs: [{{name: g, command: [sh, -c, 'echo my-secret; exit 3'], stdout: {private}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: g}}]\n"
    )
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    CliRunner().invoke(main, ["run", str(tmp_path / "e.yaml"), "--executor", "local"])
    assert private.read_text() == "my-secret\n"
    (folder,) = (tmp_path / "state" / "runs").iterdir()
    words = ["logs", str(folder), "g.0"]
    seen = CliRunner().invoke(main, words)
    assert "my-secret" in seen.output
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 12345, 12345)
    seen = CliRunner().invoke(main, words)
    assert "my-secret" not in seen.output
    assert "not part of it" in seen.output, seen.output
    assert seen.exit_code == 1


def test_errors_of_a_text_in_the_journal_quote_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from ensemble_core.cli.main import main

    private = tmp_path / "private"
    private.write_text("first\npassword: hunter2\n")
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    folder = a_run(tmp_path / "run-1")
    (folder / NAME).unlink()
    writer = JournalWriter(folder / NAME)
    writer.describe({"tag": "run-1", "name": "run", "executor": {"name": "local", "options": {}}})
    writer.store_file_version(str(private), "unknown1: 1\nunknown2: 2\n", (), None)
    writer.close()
    folder.chmod(0o777)
    for command in ("status", "jobs", "why", "results"):
        seen = CliRunner().invoke(main, [command, str(folder)])
        assert "hunter2" not in seen.output, command
        assert "unknown2" in seen.output, seen.output


def test_a_request_to_stop_follows_no_link_and_opens_no_pipe(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run-1")
    mine = tmp_path / "thesis.tex"
    mine.write_text("my thesis")
    (folder / HALT).symlink_to(mine)
    (folder / f"{HALT}.part").symlink_to(mine)
    os.mkfifo(folder / STOP)
    in_time(lambda: post_request(folder, HALT, STOP) or "written")
    assert mine.read_text() == "my thesis"
    assert end_requester(folder) == stop_requester(folder) == requester()


@pytest.mark.parametrize(
    "command", [["stop", "--no-wait"], ["cancel", "--no-wait"], ["clean", "-y"]]
)
def test_a_run_that_others_can_write_gets_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    from click.testing import CliRunner

    from ensemble_core.cli.main import main

    folder = a_run(tmp_path / "run-1")
    if command[0] != "clean":
        monkeypatch.setattr(Lock, "controller", lambda lock: {"pid": 1, "host": "far", "since": 1})
    folder.chmod(0o777)
    seen = CliRunner().invoke(main, [*command, str(folder)])
    assert seen.exit_code == (1 if command[0] == "clean" else 2), seen.output
    assert "others can write in its folder" in seen.output
    assert {path.name for path in folder.iterdir()} <= {NAME, f"{NAME}-wal", f"{NAME}-shm"}
