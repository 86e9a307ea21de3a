"""``ensemble run`` and ``ensemble validate`` with real jobs, signals, pipes and terminals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from ensemble_testing.processes import process_files

from ensemble_core.cli.main import main

COMMAND = [sys.executable, "-m", "ensemble_core.cli"]

HELLO = """
jobs:
  - name: hello
    command: echo hello
    count: 2
  - name: after
    command: sh -c 'echo after'
rules:
  - trigger: start
    action: {name: submit, label: hello}
  - trigger: metric
    name: count.hello.success
    when: 2
    action: {name: submit, label: after}
  - {id: dear, trigger: job-fail, name: after, action: {name: terminate}}
"""

SLEEPER = """
jobs:
  - name: sleeper
    command: sleep 60
    count: 2
rules:
  - trigger: start
    action: {name: submit, label: sleeper}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("NO_COLOR", "FORCE_COLOR", "ENSEMBLE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "hello.yaml").write_text(HELLO)
    (tmp_path / "sleeper.yaml").write_text(SLEEPER)
    return tmp_path


def piped(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args], capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL
    )


def ensemble(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def started(*args: str) -> subprocess.Popen[str]:
    """Start a run and wait until both sleepers run; return its JSON."""
    process = subprocess.Popen(
        [*COMMAND, "run", "sleeper.yaml", "--json", "--slots", "2", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    running = 0
    while running < 2:
        running += json.loads(process.stdout.readline()).get("name") == "start"
    return process


def left_over(folder: Path) -> list[str]:
    """Return processes with this test's folder in their environment."""
    mark = os.fsencode(folder / "state")
    sleeps = {pid for pid, name in process_files("comm") if name == b"sleep\n"}
    return [str(pid) for pid, found in process_files("environ") if pid in sleeps and mark in found]


def test_hello_world_in_a_pipe_is_plain_with_a_summary(folder: Path) -> None:
    result = piped("run", "hello.yaml")
    assert result.returncode == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("executor local (")
    assert lines[1:3] == [
        " => trigger start",
        "   submit hello (name:hello),(command:echo hello),(count:2),(nodes:1)",
    ]
    assert any(line.startswith(" => trigger count.hello.success") for line in lines)
    assert any(
        re.match(r" never +dear +job-fail \(after\) +never triggered", line) for line in lines
    )
    assert lines[-1].startswith(" exit code 0")
    assert "\x1b" not in result.stdout


def test_default_output_of_jobs_is_kept_and_shown(folder: Path) -> None:
    result = ensemble("run", "hello.yaml", "--output", "kept")
    (kept,) = (folder / "kept").iterdir()
    assert f" output of jobs: {kept}" in result.stdout.splitlines()
    assert "hello" in "".join(file.read_text() for file in kept.iterdir())
    ensemble("run", "hello.yaml", "--output", "kept")
    assert len(list((folder / "kept").iterdir())) == 2
    result = ensemble("run", "hello.yaml")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(" output of jobs")]
    beside = Path(line.partition(": ")[2])
    assert beside.parent.parent == folder / "state" / "ensemble" / "runs"
    assert (beside.parent / "journal.db").is_file()


def test_folder_that_cannot_be_created_is_an_error(folder: Path) -> None:
    (folder / "file").write_text("")
    result = ensemble("run", "hello.yaml", "--output", "file/below")
    assert result.exit_code == 1
    assert "--output" in result.stderr
    assert "submit" not in result.stdout
    assert "Traceback" not in result.stderr


def test_json_has_every_event_and_decision_and_a_summary(folder: Path) -> None:
    result = ensemble("run", "hello.yaml", "--json")
    assert result.exit_code == 0
    items = lines_of(result.stdout)
    assert items[0]["type"] == "run"
    assert items[0]["executor"] == "local"
    assert [item["name"] for item in items if item.get("job") == "after.0"][-1] == "clean"
    assert sum(item["type"] == "submit" for item in items) == 2
    end = items[-1]
    assert end["type"] == "summary"
    assert end["exit_code"] == 0
    assert {group["name"]: group["success"] for group in end["groups"]} == {"hello": 2, "after": 1}
    assert [rule["state"] for rule in end["rules"]] == ["fired", "fired", "never triggered"]


def test_output_of_custom_functions_is_not_in_the_json(folder: Path) -> None:
    Path("talk.yaml").write_text(
        HELLO.replace("{name: terminate}", "{name: custom, label: talk}").replace(
            "echo after", "exit 4"
        )
        + "custom: |\n  def talk(**kwargs):\n      print('words')\n"
    )
    result = piped("run", "talk.yaml", "--json")
    assert lines_of(result.stdout)[-1]["type"] == "summary"
    assert "words" in result.stderr.splitlines()
    assert "words" in piped("run", "talk.yaml").stdout.splitlines()


def test_quiet_prints_failures_only(folder: Path) -> None:
    assert ensemble("run", "hello.yaml", "--quiet").stdout == ""
    Path("bad.yaml").write_text(HELLO.replace("echo hello", "sh -c 'echo no >&2; exit 3'"))
    result = ensemble("run", "bad.yaml", "--quiet")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("failed hello.") == 2
    assert "exit code 3: no" in result.stderr


def test_exit_code_has_its_reason(folder: Path) -> None:
    Path("bad.yaml").write_text(HELLO.replace("echo hello", "/bin/false"))
    result = ensemble("run", "bad.yaml")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == " exit code 1: 2 jobs failed and no rule handled them"


def test_debug_prints_every_event(folder: Path) -> None:
    result = ensemble("run", "hello.yaml", "--debug")
    events = [line for line in result.stdout.splitlines() if re.match(r"\[ +\d+\.\d{3}\] ", line)]
    assert any(" job alloc hello.0" in line for line in events)
    items = lines_of(ensemble("run", "hello.yaml", "--json").stdout)
    jobs = sum(item["type"] == "job" for item in items)
    assert sum("] job " in line for line in events) == jobs


def test_set_overrides_the_file(folder: Path) -> None:
    result = ensemble("run", "hello.yaml", "--set", "jobs.hello.count=3")
    assert "(count:3)" in result.stdout
    wrong = ensemble("run", "hello.yaml", "--set", "jobs.helo.count=3")
    assert wrong.exit_code == 2
    assert wrong.stdout == ""


def test_invalid_file_shows_all_errors_and_runs_nothing(folder: Path) -> None:
    Path("bad.yaml").write_text(
        HELLO.replace("count: 2", "cuont: 2").replace("job-fail", "job-fial")
    )
    result = ensemble("run", "bad.yaml")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "bad.yaml:5:5: " in result.stderr
    assert "did you mean 'count'?" in result.stderr
    assert "did you mean 'job-fail'?" in result.stderr
    assert "5 |     cuont: 2\n    |     ^" in result.stderr
    assert not (folder / "state").exists()
    errors = lines_of(ensemble("run", "bad.yaml", "--json").stdout)
    assert [error["type"] for error in errors] == ["error", "error"]
    assert errors[0]["line"] == 5


def test_validate_checks_every_file_and_counts(folder: Path) -> None:
    result = ensemble("validate", "hello.yaml", "sleeper.yaml")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "hello.yaml: valid: 2 job groups, 3 rules",
        "  each submit of hello creates 2 jobs",
        "sleeper.yaml: valid: 1 job group, 1 rule",
        "  each submit of sleeper creates 2 jobs",
    ]
    Path("bad.yaml").write_text("jobs: 3\n")
    mixed = ensemble("validate", "bad.yaml", "hello.yaml", "absent.yaml")
    assert mixed.exit_code == 2
    assert mixed.stdout.splitlines()[0] == "hello.yaml: valid: 2 job groups, 3 rules"
    assert "bad.yaml:1:7: " in mixed.stderr
    assert "absent.yaml" in mixed.stderr
    assert mixed.stderr.splitlines()[-1].endswith("errors in 2 files")


def test_validate_as_json_is_one_document(folder: Path) -> None:
    Path("bad.yaml").write_text("jobs: 3\n")
    result = ensemble("validate", "--json", "bad.yaml", "hello.yaml")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert [file["valid"] for file in document["files"]] == [False, True]
    assert document["files"][0]["errors"][0]["line"] == 1
    assert document["files"][1]["groups"] == ["hello", "after"]
    assert document["files"][1]["jobs"] == {"hello": 2, "after": 1}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_cancels_the_jobs_and_stops_the_run(
    folder: Path, number: signal.Signals, code: int
) -> None:
    process = started()
    process.send_signal(number)
    out, err = process.communicate(timeout=150)
    assert process.returncode == code
    assert "stopping: cancelling 2 jobs (Ctrl-C again to exit without waiting)" in err
    end = lines_of(out)[-1]
    assert end["exit_code"] == code
    assert end["groups"][0]["cancelled"] == 0  # a resume submits them again
    assert left_over(folder) == []


def test_nohup_run_survives_its_terminal(folder: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started()
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=150)
    assert process.returncode == 143


def test_run_whose_reader_exits_continues_silently(folder: Path) -> None:
    process = started()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    # The run notices the closed pipe at its next write, when a job ends.
    first, second = left_over(folder)
    os.kill(int(first), signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    assert left_over(folder) == [second]
    os.kill(int(second), signal.SIGKILL)
    assert process.wait(timeout=150) == 1
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


class Terminal:
    """Run on a pseudo-terminal, with its output."""

    def __init__(self, *args: str, columns: int = 80) -> None:
        pid, self._descriptor = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm-256color"
            size = struct.pack("HHHH", 24, columns, 0, 0)
            fcntl.ioctl(1, termios.TIOCSWINSZ, size)
            os.execv(COMMAND[0], [*COMMAND, "run", *args])
        self._pid = pid
        self.text = ""

    def read_until(self, done: Callable[[str], bool], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not done(self.text) and time.monotonic() < end:
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    data = os.read(self._descriptor, 65536)
                except OSError:  # Linux reports EIO after the other side has closed
                    return
                self.text += data.decode()

    def press(self, key: str) -> None:
        os.write(self._descriptor, key.encode())

    def end(self) -> int:
        self.read_until(lambda text: False)
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def test_live_table_is_replaced_by_the_summary(folder: Path) -> None:
    Path("short.yaml").write_text(SLEEPER.replace("sleep 60", "sleep 0.7"))
    terminal = Terminal("short.yaml", "--slots", "2")
    assert terminal.end() == 0
    assert "\x1b[94m => trigger start\x1b[0m" in terminal.text
    assert re.search(r"sleeper +2 +0 +2 +0 +0 +0", terminal.text), "both are seen to run"
    assert "elapsed" in terminal.text
    after = terminal.text[terminal.text.rindex("\x1b[J") :]
    assert "elapsed" not in after
    assert "ended after" in after
    assert "\x1b[?25l" not in terminal.text  # a killed run leaves the cursor visible


def test_no_progress_prints_lines_only(folder: Path) -> None:
    terminal = Terminal("hello.yaml", "--no-progress")
    assert terminal.end() == 0
    assert "elapsed" not in terminal.text
    assert "\x1b[94m => trigger start\x1b[0m" in terminal.text


def test_ctrl_c_on_a_terminal_cancels_with_a_message(folder: Path) -> None:
    terminal = Terminal("sleeper.yaml", "--slots", "2")
    terminal.read_until(lambda text: re.search(r"sleeper +2 +0 +2 ", text) is not None)
    terminal.press("\x03")
    assert terminal.end() == 130
    assert "stopping: cancelling 2 jobs (Ctrl-C again to exit without waiting)" in terminal.text
    assert "exit code 130" in terminal.text
    assert left_over(folder) == []


def test_second_ctrl_c_exits_at_once_without_leftover_processes(folder: Path) -> None:
    Path("stubborn.yaml").write_text(
        SLEEPER.replace("sleep 60", """[sh, -c, "trap '' TERM; while true; do sleep 60; done"]""")
    )
    terminal = Terminal("stubborn.yaml", "--slots", "2", "-o", "grace=2")
    terminal.read_until(lambda text: re.search(r"sleeper +2 +0 +2 ", text) is not None)
    terminal.press("\x03")
    terminal.read_until(lambda text: "Ctrl-C again" in text)
    time.sleep(0.4)  # within a shorter time, both would count as one
    terminal.press("\x03")
    assert terminal.end() == 130
    assert "exiting without waiting" in terminal.text
    assert left_over(folder) == []


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_run_continues_with_a_closed_standard_stream(tmp_path: Path, closed: str) -> None:
    (tmp_path / "e.yaml").write_text(
        "jobs: [{name: a, command: \"sh -c 'echo $ENSEMBLE_JOB_ID'\", stdout: kept.txt}]\n"
        "rules: [{trigger: start, action: {name: submit, label: a}}]\n",
        encoding="utf-8",
    )
    command = f"exec {sys.executable} -m ensemble_core.cli run e.yaml --output out {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=150, check=False)
    assert done.returncode == 0
    assert (tmp_path / "kept.txt").read_text("utf-8") == "a.0\n"


SWEEP = """
jobs:
  - name: sim
    command: sh -c 'echo {a} $ENSEMBLE_ATTEMPT > out'
    points: points.csv
    workdir: WORKDIR/{index}
rules:
  - {trigger: start, action: [{name: submit, label: sim}, {name: custom, label: told}]}
custom: study.py
"""


@pytest.fixture
def sweep(folder: Path) -> Path:
    (folder / "points.csv").write_text("a\nx\ny\n")
    (folder / "study.py").write_text("def told(**kwargs):\n    pass\n")
    return folder


def test_output_folder_of_another_run_causes_a_warning(sweep: Path) -> None:
    (sweep / "own.yaml").write_text(SWEEP.replace("WORKDIR", "own/{run}"))
    (sweep / "same.yaml").write_text(SWEEP.replace("WORKDIR", "same"))
    (sweep / "null.yaml").write_text(
        SWEEP.replace("WORKDIR/{index}", "null/{run}/{index}\n    stdout: /dev/null")
    )
    runs = (("own", 0), ("same", 0), ("own", 0), ("same", 1), ("null", 0), ("null", 0))
    for name, warned in runs:
        result = ensemble("run", f"{name}.yaml")
        assert result.exit_code == 0, result.stderr
        assert result.stderr.count("was used by the run") == warned
        if warned:
            assert "same/{index} was used by the run same-" in result.stderr
            assert "with {run} in workdir of 'sim'" in result.stderr
    assert (sweep / "same" / "1" / "out").read_text() == "y 0\n"
    assert len(list((sweep / "own").iterdir())) == 2


def test_resume_uses_the_stored_attached_files(sweep: Path) -> None:
    (sweep / "own.yaml").write_text(SWEEP.replace("WORKDIR", "own/{run}"))
    assert ensemble("run", "own.yaml").exit_code == 0
    (sweep / "points.csv").unlink()
    (sweep / "study.py").write_text("def (")
    again = ensemble("replay", "last")
    assert again.exit_code == 0, again.stderr
    assert "byte for byte" in again.stdout
    broken = ensemble("validate", "own.yaml")
    assert broken.exit_code == 2
    assert "study.py:1:5: 'custom' is not valid Python" in broken.stderr


def test_observer_that_parses_nothing_causes_a_warning(
    folder: Path,
) -> None:
    (folder / "slip.yaml").write_text(
        "jobs:\n"
        "  - {name: sim, count: 3, command: echo 'loss=0.5', observe: {key-value: {fields: [los]}}}\n"
        "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
    )
    result = ensemble("run", "slip.yaml")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("no field 'los'; found 'loss'") == 1
    for shown in (result.stdout, ensemble("status", "last").stdout):
        assert " warnings" in shown
        assert "no field 'los'; found 'loss'" in shown
    (summary,) = lines_of(ensemble("status", "last", "--json").stdout)
    assert len(summary["report"]["warnings"]) == 1


def test_run_without_values_for_its_results_ends_with_1(folder: Path) -> None:
    text = (
        "jobs:\n"
        "  - {name: sim, count: 2, command: echo 'loss=0.5', observe: {key-value: {fields: [los]}},\n"
        "     result: {best: RESULT}}\n"
        "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
    )
    (folder / "slip.yaml").write_text(text.replace("RESULT", "min.los"))
    result = ensemble("run", "slip.yaml")
    assert result.exit_code == 1, result.stderr
    assert (
        result.stderr.count("(min.los) has no value, because no observer could read its output")
        == 1
    )
    assert "exit code 1: 1 error" in result.stdout
    (folder / "other.yaml").write_text(text.replace("RESULT", "duration"))
    assert ensemble("run", "other.yaml").exit_code == 0


@pytest.mark.parametrize("odd", ["head -c 2000000 /dev/zero | tr '\\\\0' x; echo", "echo F=****"])
def test_a_statistic_without_a_value_is_no_error_if_its_column_was_read(
    folder: Path, odd: str
) -> None:
    (folder / "one.yaml").write_text(
        "jobs:\n"
        f'  - {{name: sim, command: [sh, -c, "echo E=1; {odd}"],\n'
        "     observe: {key-value: {fields: [E, F]}}, result: {err: error.E, last: last.E}}\n"
        "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
    )
    result = ensemble("run", "one.yaml")
    assert "did not understand" in result.stderr
    assert "warning: sim.0: its result 'err' (error.E) has no value\n" in result.stderr
    assert result.exit_code == 0, result.stderr


def test_a_result_that_was_no_number_is_an_error_whichever_job_was_first(
    folder: Path,
) -> None:
    # The observer complains about the first job of the group only.
    (folder / "two.yaml").write_text(
        "jobs:\n"
        "  - {name: sim, command: [sh, -c, 'printf \"E=%s\\n\" {Es}'], at_once: 1,\n"
        "     parameters: {Es: ['1 oops 2', 'oops']},\n"
        "     observe: {key-value: {fields: [E]}}, result: {E: last.E}}\n"
        "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
    )
    result = ensemble("run", "two.yaml")
    assert "error: sim.1: its result 'E' (last.E) has no value, because no obs" in result.stderr
    assert result.exit_code == 1, result.stderr


def test_keys_of_the_file_are_completed_after_set(folder: Path) -> None:
    def completed(*words: str) -> list[str]:
        complete = ShellComplete(main, {}, "ensemble", "_ENSEMBLE_COMPLETE")
        return [each.value for each in complete.get_completions([*words[:-1]], words[-1])]

    (folder / "e.yaml").write_text(
        "jobs: [{name: sim, command: x, parameters: {T: [1, 2]}, retry: {times: 1}}]\n"
        "rules: [{trigger: start, action: {name: submit}}, {id: r, trigger: job-fail,"
        " action: {name: log, message: x}}]\n"
    )
    assert completed("run", "e.yaml", "--set", "jobs.sim.pa") == ["jobs.sim.parameters.T="]
    assert completed("run", "e.yaml", "--set", "jobs.sim.re") == [
        "jobs.sim.retry.times=",
        "jobs.sim.replicas=",
    ]
    assert completed("run", "e.yaml", "--set", "limits.w") == ["limits.wall="]
    assert completed("validate", "e.yaml", "--set", "rules.r.ac")[0] == "rules.r.action.name="
    assert completed("run", "e.yaml", "--set", "rules.rule-1.w") == ["rules.rule-1.when="]
    for key in completed("run", "e.yaml", "--set", "jobs."):  # each names something in the file
        found = ensemble("validate", "e.yaml", "--set", f"{key}1").output
        assert not re.search("there is no|unknown key", found), key
    assert completed("run", "missing.yaml", "--set", "") == []
    (folder / "e.yaml").write_text("jobs: [")
    assert completed("run", "e.yaml", "--set", "") == []
