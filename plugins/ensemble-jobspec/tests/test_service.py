"""Tests of jobspecs in ensemble files, requirements, other transformers and served folders."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_jobspec import folder_server, schemas
from ensemble_testing import wait_until

from ensemble_core.cli.main import main

WORK = """\
version: 1
tasks:
- {name: build, command: ["sh", "-c", "echo build {T} {index} >>notes"]}
- {name: use, command: [sh, -c, "echo use >>notes"], depends_on: [build]}
"""
FILE = """\
jobs:
- {jobspec: work.yaml, prefix: study-}
- {name: after, command: sh -c 'echo after >>notes'}
rules:
- {trigger: metric, name: count.study-use.success, when: 1, action: {name: submit, label: after}}
"""
MAIN = [
    sys.executable,
    "-c",
    "import sys; from ensemble_core.cli.main import main; main(sys.argv[1:])",
]


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ensemble(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    return result


def notes() -> list[str]:
    return Path("notes").read_text().splitlines() if Path("notes").exists() else []


def run(file: str, text: str, code: int = 0) -> Result:
    Path(file).write_text(text)
    return ensemble(
        "run", file, "--executor", "local", "--state", "state", "--no-progress", code=code
    )


# -- in an ensemble file ---------------------------------------------------------------------------


def test_tasks_of_a_jobspec_are_job_groups_of_a_file_and_rules_can_use_them() -> None:
    Path("work.yaml").write_text(WORK)
    run("study.yaml", FILE)
    assert notes() == ["build {T} {index}", "use", "after"]


def test_a_program_can_run_received_jobspecs() -> None:
    from ensemble_core import run as run_mapping

    for number, code in enumerate((0, 1)):
        Path("work.yaml").write_text(WORK if not code else WORK.replace("echo use", "exit 3; "))
        run = run_mapping({"jobs": [{"jobspec": "work.yaml"}], "rules": []}, executor="local", state="state")  # fmt: skip
        assert run.exit_code == code
        assert len(run.jobs()) == 2
        assert len(notes()) == 2 + number


def test_parameters_are_filled_into_a_jobspecs_commands() -> None:
    Path("work.yaml").write_text(WORK)
    run("study.yaml", FILE.replace("prefix: study-", "prefix: study-, parameters: {T: 3}"))
    assert notes()[0] == "build 3 {index}"


def test_with_submit_false_a_rule_of_the_file_starts_the_tasks() -> None:
    Path("work.yaml").write_text(WORK)
    begin = "- {trigger: job-success, name: after, action: {name: submit, label: study-build}}\n"
    begin += "- {trigger: start, action: {name: submit, label: after}}\n"
    text = FILE.replace("prefix: study-", "prefix: study-, submit: false")
    run("study.yaml", text[: text.index("- {trigger")] + begin)
    assert notes() == ["after", "build {T} {index}", "use"]


def test_a_mistake_in_the_jobspec_is_reported_with_its_place() -> None:
    Path("work.yaml").write_text(WORK.replace("depends_on: [build]", "depends_on: [buld]"))
    result = run("study.yaml", FILE, code=2)
    assert "work.yaml:4:67" in result.output
    assert "did you mean 'build'?" in result.output
    Path("work.yaml").unlink()
    assert "no file" in run("study.yaml", FILE, code=2).output


def test_the_options_of_the_entry_are_checked() -> None:
    Path("work.yaml").write_text(WORK)
    result = run("study.yaml", FILE.replace("prefix: study-", "prefx: study-"), code=2)
    assert "did you mean 'prefix'?" in result.output


# -- requirements ----------------------------------------------------------------------------------

REQUIRING = """\
version: 1
requires:
  shm: [{name: io, field: type, match: shm}]
  fast: [{name: io, field: type, match: nvme, attribute: speed, value: 3}]
  gpu: [{name: gpus, field: vendor}]
  slow: [{name: io, attribute: speed, value: 2}]
  red: [{name: io, attribute: colour}]
tasks:
- {command: "true", requires: "shm|fast"}
"""


def graphs() -> str:
    Path("subsystems").mkdir()
    nodes = {
        "1": {"metadata": {"type": "shm"}},
        "2": {"metadata": {"type": "nvme", "attributes": {"speed": 2}}},
    }
    Path("subsystems/io.json").write_text(json.dumps({"graph": {"nodes": nodes}}))
    return "subsystems"


def satisfy(text: str, *words: str, code: int = 0) -> str:
    Path("work.yaml").write_text(text)
    return ensemble("jobspec", "satisfy", "work.yaml", *words, code=code).output


def test_requirements_are_looked_up_and_unmet_ones_reported() -> None:
    words = ("--subsystem-dir", graphs())
    said = satisfy(REQUIRING, *words)
    assert "shm: met" in said
    assert "slow: met" in said
    assert "red: nothing in 'io' has colour" in said
    assert "fast: nothing in 'io' has type=nvme and speed=3" in said
    assert "gpu: unknown subsystem 'gpus'" in said
    satisfy(REQUIRING, *words, "--require-all", code=1)
    satisfy(REQUIRING.replace("shm|fast", "shm&fast"), *words, code=1)
    satisfy(REQUIRING.replace(', requires: "shm|fast"', ""), *words, code=1)
    assert "folder of subsystems not found" in satisfy(REQUIRING, "--subsystem-dir", "none", code=2)


def test_a_run_checks_the_given_subsystems_first() -> None:
    Path("work.yaml").write_text(REQUIRING.replace("shm|fast", "fast"))
    words = ["jobspec", "run", "work.yaml", "--executor", "local", "--state", "state"]
    result = ensemble(*words, "--subsystem-dir", graphs(), code=2)
    assert "requirements are not met" in result.output
    assert not Path("state").exists()
    ensemble(*words, "--no-progress")  # without subsystems, requirements are not checked


def test_sql_in_a_requirement_is_plain_text() -> None:
    graphs()
    text = REQUIRING.replace("match: shm", "match: \"shm' OR '1'='1\"").replace("shm|fast", "shm")
    satisfy(text, "--subsystem-dir", "subsystems", code=1)


# -- third-party transformers ----------------------------------------------------------------------


def transformer(name: str, text: str) -> dict[str, str]:
    package = Path("site") / f"jobspec_{name}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(Path("site").absolute())}


@pytest.mark.parametrize(
    ("ending", "code"), [("return 0", 0), ("return 3", 3), ("raise ImportError('broken')", 1)]
)
def test_a_transformer_package_runs_in_a_separate_process(ending: str, code: int) -> None:
    Path("work.yaml").write_text(WORK)
    text = "import ensemble_jobspec.schemas\nensemble_jobspec.schemas.STEPS['mine'] = {}\n"
    text += "class Transformer:\n    def run(self, file):\n        print('got', file)\n"
    text += f"        {ending}\n"
    env = transformer("paper_queue", text)
    words = ["jobspec", "run", "-t", "paper-queue", "work.yaml"]
    done = subprocess.run([*MAIN, *words], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "got work.yaml\n"), done.stderr
    assert "mine" not in schemas.STEPS


def test_a_failed_step_of_a_transformer_package_has_exit_code_1() -> None:
    """Base classes of the package jobspec print the exception and call ``sys.exit()``."""
    Path("work.yaml").write_text(WORK)
    text = """\
import sys
class Transformer:
    def run(self, file):
        try:
            raise ValueError("the queue rejects it")
        except Exception as error:
            print(error)
            sys.exit()
"""
    words = ["jobspec", "run", "-t", "paper", "work.yaml"]
    env = transformer("paper", text)
    done = subprocess.run([*MAIN, *words], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "the queue rejects it\n"), done.stderr
    env = transformer("other", "import sys\nclass Transformer:\n    def run(self, f): sys.exit()\n")
    words[3] = "other"
    assert subprocess.run([*MAIN, *words], env=env, check=False).returncode == 0


@pytest.mark.parametrize("flag", ["-t", "--transform", "--transformer"])
def test_each_spelling_of_the_flag_names_a_transformer(flag: str) -> None:
    Path("work.yaml").write_text(WORK)
    said = ensemble("jobspec", "run", "work.yaml", flag, "none", code=2).output
    assert "'none'" in said


def test_a_transformer_that_cannot_be_imported_does_not_affect_others() -> None:
    Path("work.yaml").write_text("version: 1\ntasks: [{command: 'true'}]\n")
    env = transformer("broken", "raise RuntimeError('no')\n")
    words = ["jobspec", "run", "work.yaml", "--state", "state", "-q"]
    assert subprocess.run([*MAIN, *words, "-t", "local"], env=env, check=False).returncode == 0
    done = subprocess.run(
        [*MAIN, *words, "-t", "broken"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: no" in done.stderr
    done = subprocess.run(
        [*MAIN, *words, "-t", "none"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2


# -- served folders --------------------------------------------------------------------------------


def task(word: str, more: str = "") -> dict[str, Any]:
    command = ["sh", "-c", f'echo "$0" >>"$1"; {more}', word, os.path.abspath("notes")]
    return {"version": 1, "tasks": [{"name": "t", "command": command}]}


def move_in(name: str, document: Any) -> None:
    Path("served/new").mkdir(parents=True, exist_ok=True)
    part = Path("served/new", f"{name}.part")
    part.write_text(document if isinstance(document, str) else json.dumps(document))
    part.rename(part.with_name(f"{name}.yaml"))


def names(folder: str) -> list[str]:
    """Return the names, without tags, of the jobspecs in a served folder."""
    return sorted(path.name.split("-")[0] for path in Path("served", folder).glob("*.yaml"))


SERVE = ("jobspec", "serve", "served", "--executor", "local", "--state", "state", "--every", "0.1")


def test_moved_in_jobspecs_are_run_and_moved_to_done_or_failed_with_a_reason() -> None:
    move_in("good", task("good"))
    move_in("bad", task("bad", "exit 3"))
    move_in("wrong", "version: 1\ntaks: []\n")
    Path("served/new/later.yaml.part").write_text("ver")
    ensemble(*SERVE, "--once")
    assert sorted(notes()) == ["bad", "good"]
    assert (names("done"), names("failed"), names("running")) == (["good"], ["bad", "wrong"], [])
    (why,) = Path("served/failed").glob("wrong-*.txt")
    assert "exit code 2: " in why.read_text()
    assert "unknown key 'taks'" in why.read_text()
    (why,) = Path("served/failed").glob("bad-*.txt")
    assert "exit code 1: " in why.read_text()
    assert len(list(Path("state/runs").iterdir())) == 2
    assert Path("served/new/later.yaml.part").exists()
    ensemble(*SERVE, "--once")
    assert sorted(notes()) == ["bad", "good"]


NOTE = """sh, -c, 'echo "$0" >>notes'"""
SMALL = "{type: node, count: 1, with: [{type: core, count: 1}]}"
#: The larger examples of jobspec 0.1: jobspec, and expected lines of its notes (words of a line in
#: any order). They are moved into a served folder together, as its receive-job does.
RECEIVED = {
    "hello-world": (
        (f"resources: {{one: {SMALL[:-1]}, requires: [{{name: system, field: cpu.target, value: amd64}}]}}}}\n"
        f"tasks: [{{name: task-1, resources: one, command: [{NOTE}, one]}}, {{name: task-2, resources: one, command: [{NOTE}, two]}}]"),
        ["one two"],
    ),
    "depends-on": (
        (f"resources: {{one: {SMALL}}}\n"
        f"tasks: [{{name: task-1, resources: one, command: [{NOTE}, one]}}, "
        f"{{name: task-2, depends_on: [task-1], resources: one, command: [{NOTE}, two]}}]"),
        ["one", "two"],
    ),
    "task-with-group": (
        (f"resources: {{one: {SMALL}}}\n"
        f"groups: [{{name: task-2, resources: one, tasks: [{{command: [{NOTE}, inner]}}]}}]\n"
        f"tasks: [{{name: task-1, resources: one, command: [{NOTE}, one]}}, {{group: task-2}}]"),
        ["one inner"],
    ),
    "group-with-group": (
        (f"resources: {{one: {SMALL}}}\n"
        f"groups: [{{name: group-1, resources: one, tasks: [{{command: [{NOTE}, one]}}, {{group: group-2}}]}}, "
        f"{{name: group-2, resources: one, tasks: [{{command: [{NOTE}, two]}}]}}]"),
        ["one two"],
    ),
    "machine-learning": (
        (f"resources: {{cpu: {SMALL}, gpu: {{type: node, count: 1, with: [{{type: gpu, count: 4096}}, {{type: core, count: 1}}]}}}}\n"
        f"groups: [{{name: mini-mummi, resources: cpu, tasks: [{{group: train}}, {{name: test, replicas: 3, resources: cpu, command: [{NOTE}, test]}}]}}, "
        f"{{name: train, resources: gpu|cpu, tasks: [{{name: train, command: [{NOTE}, train]}}]}}]"),
        ["train test test test"],
    ),
}  # fmt: skip


def test_received_jobspecs_have_their_expected_results() -> None:
    for name, (text, _) in RECEIVED.items():
        move_in(name, "version: 1\n" + text.replace(">>notes", f">>notes.{name}") + "\n")
    said = ensemble(*SERVE, "--once").output
    assert len(list(Path("served/done").glob("*.yaml"))) == len(RECEIVED), said
    for name, (_, wanted) in RECEIVED.items():
        found = Path(f"notes.{name}").read_text().split()
        for line in wanted:
            here, found = found[: len(line.split())], found[len(line.split()) :]
            assert sorted(here) == sorted(line.split()), name
        assert found == [], name


def test_each_jobspec_runs_once_with_any_kills() -> None:
    for number in range(4):
        move_in(f"n{number}", task(f"n{number}", "sleep 0.3"))
    for limit in (1, 3):
        server = subprocess.Popen([*MAIN, *SERVE, "--jobs", "2"], stdout=subprocess.DEVNULL)
        wait_until(lambda limit=limit: len(notes()) >= limit)  # type: ignore[misc]
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
    ensemble(*SERVE, "--once")
    assert sorted(notes()) == [f"n{number}" for number in range(4)]
    assert names("done") == [f"n{number}" for number in range(4)]


def test_a_folder_has_one_server() -> None:
    move_in("slow", task("slow", "until test -e go; do sleep 0.05; done"))
    server = subprocess.Popen([*MAIN, *SERVE], stdout=subprocess.DEVNULL)
    wait_until(lambda: notes() == ["slow"])
    assert "another server uses" in ensemble(*SERVE, "--once", code=2).output
    server.terminate()
    assert server.wait() == 0
    assert names("running") == ["slow"]
    Path("go").touch()
    ensemble(*SERVE, "--once")
    assert names("done") == ["slow"]
    assert notes() == ["slow"]


@pytest.mark.parametrize("folder", ["served", "served/new", "served/running"])
def test_a_folder_that_others_can_write_to_is_not_served(folder: str) -> None:
    """Others' jobspecs would run as the server's user, perhaps root."""
    move_in("good", task("good"))
    Path(folder).mkdir(exist_ok=True)
    Path(folder).chmod(0o777)
    refused = ensemble(*SERVE, "--once", code=2)
    assert f"{folder}': another user owns it or can write to it" in refused.output
    assert not Path("notes").exists()
    assert names("new") == ["good.yaml"]


def test_jobspecs_that_others_can_write_to_are_not_run_until_they_cannot() -> None:
    move_in("good", task("good"))
    arrived, claimed = (
        Path("served", place, f"{place}-20200101T000000-abcdef.yaml")
        for place in ("new", "running")
    )
    claimed.parent.mkdir(mode=0o700)
    for path in (arrived, claimed):
        path.write_text(json.dumps(task(path.parent.name)))
        path.chmod(0o666)
    told = ensemble(*SERVE, "--once").output
    assert notes() == ["good"]
    for path in (arrived, claimed):
        assert path.exists()
        assert told.count(f"{path.name} is not run: another user owns it") == 1
        path.chmod(0o644)
    ensemble(*SERVE, "--once")
    assert sorted(notes()) == ["good", "new", "running"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file another user's")
def test_a_jobspec_of_another_user_is_not_run_by_root() -> None:
    move_in("theirs", task("theirs"))
    move_in("linked", task("linked"))
    os.chown("served/new/theirs.yaml", 65534, 65534)
    Path("served/new/linked.yaml").rename("linked.yaml")
    Path("served/new/linked.yaml").symlink_to(Path("linked.yaml").absolute())
    os.chown("served/new/linked.yaml", 65534, 65534, follow_symlinks=False)
    assert "theirs.yaml is not run" in ensemble(*SERVE, "--once").output
    assert not Path("notes").exists()
    assert names("new") == ["linked.yaml", "theirs.yaml"]


#: ``ensemble`` whose queue is unreachable while the file ``away`` exists. Attempts go to ``tries``.
AWAY = """\
import os, sys
from ensemble_core.cli.main import main
if os.path.exists("away") and sys.argv[1] != "stop":
    with open("tries", "a") as file:
        file.write("try" + chr(10))
    sys.exit("error: cannot reach the queue")
main(sys.argv[1:])
"""


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file: while it exists, the queue is unreachable. Attempts follow quickly."""
    monkeypatch.setattr(folder_server, "_PROGRAM", (sys.executable, "-c", AWAY))
    monkeypatch.setattr(folder_server, "_FIRST", 0.01)
    Path("away").touch()
    return Path("away")


def test_once_ends_with_an_error_if_the_queue_stays_away_and_the_next_server_continues(
    away: Path,
) -> None:
    move_in("a", task("a"))
    move_in("b", task("b"))
    said = ensemble(*SERVE, "--once", code=1).output
    assert "error: 2 jobspecs are unfinished in " in said
    assert "cannot reach the queue" in said
    assert "run 'ensemble jobspec serve' again to resume these jobspecs" in said
    assert len(Path("tries").read_text().split()) == 10
    assert (notes(), names("running")) == ([], ["a", "b"])
    away.unlink()
    ensemble(*SERVE, "--once")
    assert (sorted(notes()), names("done")) == (["a", "b"], ["a", "b"])


def test_a_run_that_cannot_start_is_restarted_and_has_not_failed(away: Path) -> None:
    move_in("a", task("a"))
    move_in("wrong", "version: 1\ntaks: []\n")
    program = (
        f"import ensemble_jobspec.folder_server as s; s._PROGRAM = (sys.executable, '-c', {AWAY!r})"
    )
    words = [sys.executable, "-c", MAIN[2].replace("main(", f"{program}; main(", 1), *SERVE]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: Path("tries").exists() and len(Path("tries").read_text().split()) > 3)
    assert names("failed") == []
    away.unlink()
    wait_until(lambda: (names("done"), names("failed")) == (["a"], ["wrong"]))
    server.terminate()
    said, _ = server.communicate()
    assert notes() == ["a"]
    assert said.count("before the run was over: error: cannot reach the queue") == 2


def test_a_jobspec_removed_by_hand_before_its_start_does_not_end_the_server(
    away: Path,
) -> None:
    move_in("a", task("a"))
    program = (
        f"import ensemble_jobspec.folder_server as s; s._PROGRAM = (sys.executable, '-c', {AWAY!r})"
    )
    words = [sys.executable, "-c", MAIN[2].replace("main(", f"{program}; main(", 1), *SERVE]
    server = subprocess.Popen([*words, "--once"], stdout=subprocess.PIPE, text=True)
    wait_until(Path("tries").exists)
    for path in Path("served/running").glob("a-*.yaml"):
        path.unlink()
    said, _ = server.communicate()
    assert server.returncode == 0, said
    assert "the file is gone" in said


def test_a_cancelled_run_has_failed_and_a_stopped_one_is_left() -> None:
    move_in("a", task("a", "sleep 600"))
    move_in("b", task("b", "until test -e go; do sleep 0.05; done"))
    server = subprocess.Popen([*MAIN, *SERVE, "--once"], stderr=subprocess.PIPE)
    wait_until(lambda: sorted(notes()) == ["a", "b"])
    tags = {path.name[0]: path.name for path in Path("state/runs").iterdir()}
    ensemble("cancel", tags["a"], "--state", "state")
    ensemble("stop", tags["b"], "--state", "state")
    _, said = server.communicate()
    assert server.returncode == 1
    assert b"it was stopped" in said
    assert (names("failed"), names("running")) == (["a"], ["b"])
    Path("go").touch()
    ensemble(*SERVE, "--once")
    assert (names("failed"), names("done")) == (["a"], ["b"])


def test_a_file_system_without_locks_causes_a_warning_and_does_not_count_as_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locked = fcntl.flock

    def none_here(file: Any, how: int) -> None:
        name = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
        if "/served/" in name:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        locked(file, how)

    monkeypatch.setattr(fcntl, "flock", none_here)
    move_in("a", task("a"))
    said = ensemble(*SERVE, "--once").output
    assert "does not support locks (No locks available)" in said
    assert (notes(), names("done")) == (["a"], ["a"])


# -- runs of served jobspecs -----------------------------------------------------------------------


@pytest.fixture
def claimed() -> Path:
    """Return a jobspec claimed by a server. Its task appends its name to ``notes``."""
    folder_server._make_folders(Path("served"))
    file = Path("served/running/a-20260101T000000-abc123.yaml").absolute()
    file.write_text(json.dumps(task("a")))
    return file


def over(runs: folder_server.Runs) -> folder_server._Ended:
    """Wait for a finished jobspec and return it."""
    found: list[folder_server._Ended] = []

    def looked() -> bool:
        found.extend(runs.ended())
        return bool(found)

    wait_until(looked)
    return found[0]


def test_a_server_killed_before_it_moved_a_finished_jobspec_repeats_nothing(
    claimed: Path,
) -> None:
    for _ in range(2):
        runs = folder_server.Runs(("--executor", "local"), "state")
        assert runs.begin([claimed]) == []
        assert over(runs).code == 0
    assert notes() == ["a"]


def test_a_jobspec_waits_while_the_controller_of_a_killed_server_holds_it(claimed: Path) -> None:
    runs = folder_server.Runs()
    with claimed.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert runs.begin([claimed]) == [claimed]
    assert not runs.busy


def test_the_reason_of_a_failure_is_taken_from_the_output_of_this_start(
    claimed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys; print('error: of this start'); sys.exit(2)"
    monkeypatch.setattr(folder_server, "_PROGRAM", (sys.executable, "-c", program))
    claimed.with_suffix(".log").write_text("error: of months ago\n")
    runs = folder_server.Runs()
    runs.begin([claimed])
    assert over(runs).why == "error: of this start"


def test_files_of_a_server_are_private() -> None:
    before = os.umask(0)
    try:
        move_in("a", task("a"))
        Path("served/new/a.yaml").chmod(0o600)
        for path in (Path("served"), Path("served/new")):
            path.chmod(0o700)
        ensemble(*SERVE, "--once")
    finally:
        os.umask(before)
    folders = [path for path in Path("served").iterdir() if path.is_dir()]
    files = [path for path in Path("served").rglob("*") if path.is_file()]
    assert {path.name for path in folders} == {"new", "running", "done", "failed"}
    assert {path.suffix or path.name for path in files} == {".lock", ".txt", ".log", ".yaml"}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
