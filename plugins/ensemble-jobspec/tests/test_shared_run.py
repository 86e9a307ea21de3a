"""The ensemble that served jobspecs share: what becomes of it where a controller ends too soon, is
still there, or is killed before it wrote anything, and where a server is killed at the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ensemble_jobspec import serving, shared_run
from ensemble_jobspec.options import Options
from ensemble_jobspec.serving import Ended, Server, make_folders
from ensemble_jobspec.shared_run import SharedRun
from ensemble_testing import wait_until

from ensemble_core.cli.toolkit import choose_executor, load_plugins

#: The command, of which controllers note that they begin and end; FIRST comes before one's work.
COMMAND = """\
import os, sys, time
from pathlib import Path
from ensemble_core.cli.main import main
words = sys.argv[1:]
def note(word):
    with open("controllers", "a") as file:
        file.write(word + chr(10))
if words[0] == "stop":
    main(words)
note("begin")
try:
    FIRST
    main(words)
finally:
    note("end")
    while os.path.exists("linger"):
        time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SharedRun]]:
    """Maker of a shared run of the folder ``served``, whose controllers do ``first`` before."""
    made: list[SharedRun] = []

    def make(first: str = "pass", slots: int = 4) -> SharedRun:
        program = (sys.executable, "-c", COMMAND.replace("FIRST", first))
        monkeypatch.setattr(shared_run, "PROGRAM", program)
        monkeypatch.setattr(shared_run, "FIRST", 0.05)
        monkeypatch.setattr(serving, "FIRST", 0.05)
        folder = Path("served").absolute()
        make_folders(folder)  # as the command does
        registry = load_plugins(())
        choice = replace(choose_executor(registry, "local"), options={"slots": slots})
        words = ["--executor", "local", "-o", f"slots={slots}"]
        made.append(SharedRun(folder, registry, choice, words, str(Path("state").absolute())))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    Path("go").touch()  # jobs that outlive their controllers end


def claimed(name: str, more: str = "", cores: int = 1) -> Path:
    """A jobspec that the server has claimed, which notes its name."""
    slot = {"type": "slot", "count": 1, "with": [{"type": "core", "count": cores}]}
    command = ["sh", "-c", f'echo "$0" >>"$1"; {more}', name, os.path.abspath("notes")]
    file = Path("served/running").absolute() / f"{name}-20260101T000000-00{ord(name[0]):04x}.yaml"
    tasks = [{"name": "t", "command": command, "resources": "r"}]
    file.write_text(json.dumps({"version": 1, "resources": {"r": slot}, "tasks": tasks}))
    return file


def lines(name: str = "notes") -> list[str]:
    return Path(name).read_text().splitlines() if Path(name).exists() else []


def served(runs: SharedRun, files: list[Path], *, least: int, move: bool = True) -> list[Ended]:
    """The jobspecs that ended, once so many did: a server's loop."""
    found: list[Ended] = []

    def looked() -> bool:
        nonlocal files
        now = runs.ended()
        found.extend(now)
        for ended in now:
            if move:
                ended.file.unlink()
        files = runs.begin(files)
        return len(found) >= least

    wait_until(looked)
    return found


SLOW = "until test -e go; do sleep 0.05; done"


def test_a_resume_that_cannot_open_the_queue_is_tried_again_and_fails_no_jobspec(
    shared: Callable[..., SharedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    away = "if words[0] == 'resume' and Path('away').exists(): sys.exit('error: no queue')"
    runs = shared(away)
    first, second = claimed("a", SLOW), claimed("b")
    assert runs.begin([first]) == []
    wait_until(lambda: lines() == ["a"])
    Path("away").touch()
    waiting = [second]

    def gave_up() -> bool:
        nonlocal waiting
        assert runs.ended() == []
        waiting = runs.begin(waiting)
        return lines("controllers").count("end") >= 3  # of the first, and of two that failed

    wait_until(gave_up)
    assert Path("served/ensemble.yaml").exists()
    Path("away").unlink()
    Path("go").touch()
    ended = served(runs, waiting, least=2)
    assert sorted((each.file.name[0], each.code) for each in ended) == [("a", 0), ("b", 0)]
    assert sorted(lines()) == ["a", "b"]
    assert capsys.readouterr().out.count("before the run was over: error: no queue") == 1


def test_a_controller_of_a_killed_server_that_has_yet_to_begin_is_waited_for(
    shared: Callable[..., SharedRun],
) -> None:
    killed = shared("while Path('hold').exists(): time.sleep(0.05)")
    Path("hold").touch()
    file = claimed("a")
    killed.begin([file])
    wait_until(lambda: lines("controllers") == ["begin"])
    runs = shared()
    runs.begin([file])
    Path("hold").unlink()
    (ended,) = served(runs, [], least=1)
    assert (ended.code, lines()) == (0, ["a"])
    assert lines("controllers")[:2] == ["begin", "end"]  # one after another


def test_a_controller_that_was_stopped_before_it_wrote_anything_begins_anew(
    shared: Callable[..., SharedRun],
) -> None:
    made = "folder = Path('state/runs', words[words.index('--tag') + 1])"
    made += "; folder.mkdir(parents=True, mode=0o700); (folder / 'journal.db').touch()"
    made += "; note('made'); time.sleep(600)"
    runs = shared(f"Path('state').exists() or exec({made!r})")
    first, second = claimed("a"), claimed("b")
    runs.begin([first])
    wait_until(lambda: "made" in lines("controllers"))
    ended = served(runs, [second], least=2)
    assert sorted((each.file.name[0], each.code) for each in ended) == [("a", 0), ("b", 0)]
    assert sorted(lines()) == ["a", "b"]


def test_a_server_that_is_killed_before_it_moved_what_ended_runs_nothing_again(
    shared: Callable[..., SharedRun],
) -> None:
    runs = shared()
    file = claimed("a")
    served(runs, [file], least=1, move=False)
    (ended,) = served(shared(), [file], least=1)
    assert (ended.code, lines()) == (0, ["a"])


def test_what_is_under_way_is_not_refused_for_what_the_queue_has_by_now(
    shared: Callable[..., SharedRun],
) -> None:
    runs = shared()
    file = claimed("a", SLOW, cores=4)
    runs.begin([file])
    wait_until(lambda: lines() == ["a"])
    runs.stop()
    Path("go").touch()
    (ended,) = served(shared(slots=2), [file], least=1)
    assert (ended.code, ended.why, lines()) == (0, "", ["a"])


def test_what_arrives_after_the_run_is_over_begins_another(
    shared: Callable[..., SharedRun],
) -> None:
    runs = shared()
    Path("linger").touch()
    served(runs, [claimed("a")], least=1)
    assert runs.busy  # its controller is not over yet
    Path("linger").unlink()

    def over() -> bool:
        runs.ended()
        return not runs.busy

    wait_until(over)
    runs.ended()
    assert not Path("served/ensemble.yaml").exists()
    served(runs, [claimed("b")], least=1)
    assert len(list(Path("state/runs").iterdir())) == 2


def test_what_is_made_for_the_server_is_its_users_alone(shared: Callable[..., SharedRun]) -> None:
    before = os.umask(0)
    try:
        runs = shared()
        runs.begin([claimed("a", SLOW)])
        wait_until(lambda: lines() == ["a"])
        Server(Path("served"), runs)._finish(claimed("b"), "done", 0)
        (told,) = Path("served/done").glob("*.txt")
        assert told.stat().st_mode & 0o777 == 0o600
        modes = {path.name: path.stat().st_mode & 0o777 for path in Path("served").iterdir()}
    finally:
        os.umask(before)
    folders = dict.fromkeys(("new", "running", "done", "failed"), 0o700)
    files = dict.fromkeys(("ensemble.yaml", "ensemble.log", ".ensemble.lock"), 0o600)
    assert modes == {**folders, **files}
    assert Path("served").stat().st_mode & 0o777 == 0o700


def test_why_a_jobspec_failed_is_looked_for_in_what_this_start_wrote(
    shared: Callable[..., SharedRun],
) -> None:
    runs = shared("print('error: of this start'); sys.exit(2)")
    Path("served/ensemble.log").write_text("error: of months ago\n")
    (ended,) = served(runs, [claimed("a")], least=1)
    assert ended.code == 1
    assert ended.why.startswith("error: of this start")


@pytest.mark.checkout  # the executor is ensemble-slurm's
def test_a_group_of_several_nodes_that_was_begun_is_gone_on_with_where_flux_is_not_found(
    shared: Callable[..., SharedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of cron has another PATH than the one that began the jobspec."""
    make_folders(Path("served").absolute())
    file = Path("served/running/wide-20260101T000000-abc123.yaml").absolute()
    slot = {"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]}
    wide = {"name": "g", "resources": "two", "tasks": [{"command": "true"}]}
    two = {"two": {"type": "node", "count": 2, "with": [slot]}}
    file.write_text(json.dumps({"version": 1, "resources": two, "groups": [wide]}))
    asked = Options(executor="slurm", executors=frozenset({"slurm"}), file=str(file))
    monkeypatch.setattr(shared_run, "run_options", lambda *_, **__: asked)
    assert served(shared("pass"), [file], least=1, move=False)[0].code == 2  # it would begin here
    jobs = [{"name": "wide-abc123-g", "command": "true"}]
    begin = {"trigger": "start", "action": {"name": "submit", "label": "wide-abc123-g"}}
    rules = [{"id": "wide-abc123-begin", **begin}]
    document = {"name": "served-x", "limits": {"chain": 64}, "jobs": jobs, "rules": rules}
    Path("served/ensemble.yaml").write_text(json.dumps(document))
    Path("state/runs/served-x").mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(SharedRun, "_stands", lambda _: "interrupted")
    known = shared("pass")
    known.begin([file])
    assert known.ended() == []
