"""Tests of ``ensemble submit``, ``set``, ``enable`` and ``disable`` with a live run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from ensemble_testing import wait_until

import ensemble_core
from ensemble_core.api.handle import EnsembleRun
from ensemble_core.cli.main import main
from ensemble_core.model.decisions import Decision

FILE = """
jobs:
  - {name: wait, command: "sh -c 'while [ ! -e {cwd}/go ]; do sleep 0.05; done'"}
  - {name: b, command: 'echo {T} {U}', parameters: {T: [1], U: [5, 6]}}
rules:
  - {trigger: start, action: {name: submit, label: wait}}
  - {id: other, trigger: job-success, name: b, repetitions: 0x10, action: {name: log, message: b}}
results: {each: {of: b, by: [T, U]}}
"""


class Under:
    """Live run that ends when ``go`` is called."""

    def __init__(self, folder: Path, run: EnsembleRun) -> None:
        self.folder, self.run = folder, run

    def go(self) -> None:
        (self.folder / "go").touch()
        self.run.wait(120)

    def ensemble(self, command: str, *args: str) -> Result:
        result = CliRunner().invoke(main, [command, self.run.tag, *args])
        assert "Traceback" not in result.output
        return result


@pytest.fixture
def under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Under]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    (tmp_path / "e.yaml").write_text(FILE.replace("0x10", "16"))
    run = ensemble_core.run("e.yaml", executor="local", wait=False)
    found = Under(tmp_path, run)
    wait_until(lambda: run.state == "running")
    yield found
    found.go()


def test_pipe_or_folder_among_the_requests_does_not_block(tmp_path: Path) -> None:
    from ensemble_core.journal.request_files import RequestInbox

    requests = tmp_path / "requests"
    requests.mkdir()
    for name in ("1.json", "2.part"):
        os.mkfifo(requests / name)
    (requests / "11.json").mkdir()
    (requests / "2.json").write_text("no request")
    (requests / "3.json").write_text(json.dumps({"by": "ada", "action": {"name": "submit"}}))
    taken: list[str] = []

    def request(action: Mapping[str, Any], by: str) -> Future[tuple[Decision, ...]]:
        taken.append(by)
        done: Future[tuple[Decision, ...]] = Future()
        done.set_result(())
        return done

    desk = threading.Thread(target=RequestInbox(tmp_path, request), daemon=True)
    desk.start()
    desk.join(60)
    assert not desk.is_alive(), "it waits for a pipe"
    assert taken == ["ada"]
    assert json.loads((requests / "3.answer").read_text()) == {"decided": []}
    for name in ("1.answer", "2.answer"):
        assert json.loads((requests / name).read_text())["error"]["code"] == "bad-request"


def test_submitted_jobs_are_recorded_with_the_requester(under: Under) -> None:
    done = under.ensemble("submit", "b", "--set", "T=2.5", "--count", "2")
    assert done.exit_code == 0, done.output
    assert "submitted b.0, b.1, b.2, b.3" in done.output
    later = under.ensemble("set", "b", "nodes=1", "duration=10m")
    assert later.exit_code == 0
    assert later.output == "b: nodes=1, duration=10m, for jobs that are not in the queue yet\n"
    new = under.ensemble("set", "b", "command=echo {U} {T}")
    assert new.exit_code == 0, new.output
    given = "parameters={V: [1, 2], T: null, U: null}"
    other = under.ensemble("set", "b", "command=echo {V}", given)
    assert other.exit_code == 0, other.output
    assert under.ensemble("disable", "other").output == "disabled other\n"
    more = under.ensemble("set", "b", "at_once=4", "retry.times=6")
    assert more.output == "b: at_once=4, retry.times=6, for jobs that are not over\n"
    limit = under.ensemble("set", "limits.core_hours=500", "limits.at_once=100")
    assert limit.output == "limits: core_hours=500, at_once=100\n"
    under.go()
    told = under.ensemble("events").output
    assert "requested submit" in told
    assert '"parameters": {"T": 2.5}' in told
    assert "requested set" in told
    assert under.run.metric("count.b.success") == 4
    why = under.ensemble("why", "other").output
    assert "it is disabled:" in why
    assert "it is disabled: by " in why
    assert under.ensemble("replay").exit_code == 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_key_and_its_whole_mapping_are_both_set_in_either_order(under: Under, order: int) -> None:
    done = under.ensemble("set", *["limits.jobs=100", "limits={core_hours: 3}"][::order], "--json")
    assert done.exit_code == 0, done.output
    (decided,) = json.loads(done.output)["decided"]
    assert decided["limits"] == {"jobs": 100, "core_hours": 3}


def test_a_rule_named_twice_is_switched_once(under: Under) -> None:
    assert under.ensemble("disable", "other", "other").output == "disabled other\n"


def test_json_has_the_decisions(under: Under) -> None:
    done = under.ensemble("submit", "b", "--json")
    (decided,) = json.loads(done.output)["decided"]
    assert [job["id"] for job in decided["jobs"]] == ["b.0", "b.1"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["submit", "bb"], "did you mean 'b'?"),
        (["submit", "b", "--set", "t=1"], "did you mean 'T'?"),
        (["submit", "b", "--set", "T"], "for example: T=2.5"),
        (["enable", "othre"], "did you mean 'other'?"),
        (["set", "b", "nodse=2"], "did you mean 'nodes'?"),
        (["set", "b", "nodse=2"], "unknown key 'nodse' in the job group 'b'"),
        (["set", "b", "nodes"], "for example: nodes=4"),
        (["set", "b"], "for example: nodes=4"),
        (["set", "b", "limits.jobs=4"], "limits are those of the run, not of 'b'"),
        (["set", "nodes=4"], "'nodes' is not a limit of the run"),
        (["set", "limits.core_hour=4"], "did you mean 'core_hours'?"),
        (["set", "limits.core_hours=many"], "'core_hours' is the string 'many', expected a number"),
        (["set", "limits.wall=4h"], "ensemble resume RUN --set limits.wall=VALUE"),
        (["set", "b", "retry=1", "retry.times=2"], "'retry' is set twice"),
        (["set", "b", "retry.times=2", "retry=1"], "'retry' is set twice"),
        (["set", "limits.jobs=2", "limits={jobs: 3}"], "'jobs' is set twice"),
        (["submit", "b", "--set", "T=2", "--set", "T=3"], "write it once; a list is [1, 2]"),
        (["set", "b", "command=x"], "the parameter 'T' of 'b' would no longer be used, so jobs"),
        (["set", "b", "command=x {T}"], "the parameter 'U' of 'b' would no longer be used"),
    ],
)
def test_typo_is_rejected_with_a_suggestion_and_no_effect(
    under: Under, args: list[str], said: str
) -> None:
    done = under.ensemble(*args)
    assert done.exit_code == 2
    assert said in done.output
    under.go()
    assert "asked for" not in under.ensemble("events").output


def test_shell_completes_names_of_a_live_run_without_a_replay(
    under: Under, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(command: str, *given: str) -> list[str]:
        *words, incomplete = given
        complete = ShellComplete(main, {}, "ensemble", "_ENSEMBLE_COMPLETE")
        found = complete.get_completions([command, under.run.tag, *words], incomplete)
        return [item.value for item in found]

    monkeypatch.setattr("ensemble_core.session.kept_run.KeptRun.recover", None)
    assert completed("submit", "") == ["wait", "b"]
    assert completed("set", "")[:2] == ["wait", "b"]
    assert completed("set", "limits.s") == ["limits.submits_per_second="]
    wait_until(lambda: completed("cancel", "") == ["wait.0"])
    assert completed("cancel", "wait.0", "") == []
    assert completed("cancel", "b") == []
    assert completed("submit", "w") == ["wait"]
    assert completed("submit", "b", "") == []
    assert completed("set", "b", "no") == ["nodes="]
    assert completed("set", "b", "retry.") == ["retry.times=", "retry.wait="]
    assert completed("set", "b", "nodes", "=", "") == []
    assert completed("submit", "b", "--set", "") == ["T=", "U="]
    assert completed("submit", "--set", "") == []
    assert completed("retry", "--set", "parameters.") == ["parameters.T=", "parameters.U="]
    assert completed("retry", "--set", "dur") == ["duration="]
    assert completed("resume", "--set", "jobs.b.no") == ["jobs.b.nodes="]
    assert completed("resume", "--set", "limits.wa") == ["limits.wall="]
    assert completed("events", "--job", "w") == completed("logs", "") == ["wait.0"]
    assert completed("jobs", "--group", "") == ["wait", "b"]
    assert completed("results", "") == ["each"]
    assert completed("disable", "") == completed("why", "") == ["rule-1", "other"]
    assert completed("disable", "rule-1", "") == ["other"]
    assert completed("enable", "") == []
    assert under.ensemble("disable", "other").exit_code == 0
    wait_until(lambda: completed("enable", "") == ["other"])
    assert completed("disable", "") == ["rule-1"]
    assert under.ensemble("submit", "b").exit_code == 0
    under.go()
    assert completed("cancel", "") == []


def test_request_to_an_ended_run_is_rejected(under: Under) -> None:
    under.go()
    done = under.ensemble("submit", "b")
    assert done.exit_code == 2
    assert "has ended, with exit code 0" in done.output


def test_unreadable_request_is_answered_and_the_run_continues(under: Under) -> None:
    assert under.run.folder is not None
    folder = under.run.folder / "requests"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(["{", "[]", '{"action": 3, "by": "x"}', '{"by": "x"}']):
        (folder / f"{number}.json").write_text(text)
    wait_until(lambda: len(list(folder.glob("*.answer"))) == 4)
    assert "the request cannot be read" in (folder / "0.answer").read_text()
    assert under.ensemble("submit", "b").exit_code == 0


def test_concurrent_requests_are_all_answered(under: Under) -> None:
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(_ask(under.run.tag))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [2] * 5
    under.go()
    assert under.run.metric("count.b.submitted") == 10


def _ask(tag: str) -> int:
    from ensemble_core.journal.request_files import ask
    from ensemble_core.journal.run_store import find_run, state_folder

    (decided,) = ask(find_run(state_folder(None), tag), {"name": "submit", "label": "b"}, "someone")
    return len(decided["jobs"])


def test_request_to_a_dead_controller_is_not_carried_out_later(tmp_path: Path) -> None:
    from ensemble_core.journal.request_files import RequestInbox, forget_requests

    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "1.json").write_text('{"by": "x", "action": {"name": "submit"}}')
    forget_requests(tmp_path)
    RequestInbox(tmp_path, _nobody)()


@pytest.mark.parametrize("accepted", [True, False])
def test_a_request_does_not_wait_for_another_controller_than_that_it_was_made_to(
    tmp_path: Path, accepted: bool
) -> None:
    from ensemble_core.errors import EnsembleError
    from ensemble_core.journal.lock import Lock
    from ensemble_core.journal.request_files import ask

    def exit_and_resume() -> None:
        if accepted:
            next(tmp_path.glob("requests/*.json")).unlink()
        controller.release()
        successor.acquire()  # a resume may begin before the next look of the waiting command

    controller, successor = Lock(tmp_path), Lock(tmp_path)
    controller.acquire()
    once = [exit_and_resume]
    with pytest.raises(EnsembleError, match="exited before it answered the request"):
        ask(tmp_path, {"name": "submit", "label": "b"}, "someone", lambda: once and once.pop()())
    successor.release()


def test_a_controller_that_ctrl_z_has_suspended_is_named_instead_of_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("ensemble_core.cli.control_requests._PATIENCE", 0.0)
    (tmp_path / "e.yaml").write_text(FILE.replace("0x10", "16"))
    command = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", "--tag", "t", "-q"]
    controller = subprocess.Popen(command)

    def ensemble(*args: str) -> Result:
        return CliRunner().invoke(main, [*args])

    try:
        wait_until(lambda: "wait.0" in ensemble("events", "t").output)
        controller.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, controller.pid, os.WSTOPPED | os.WNOWAIT)
        for args in (["submit", "t", "b"], ["stop", "t"], ["cancel", "t"]):
            refused = ensemble(*args)
            assert refused.exit_code == 1, refused.output
            assert f"'kill -CONT {controller.pid}'" in refused.output
        assert f"suspended: 'kill -CONT {controller.pid}'" in ensemble("status", "t").output
        controller.send_signal(signal.SIGCONT)
        done = ensemble("submit", "t", "b")
        assert done.stdout == "submitted b.0, b.1\n"
        assert f"waiting for the controller of run t (process {controller.pid} on" in done.stderr
        assert ensemble("cancel", "t").exit_code == 0
        assert "suspended" not in ensemble("status", "t").output
        assert controller.wait(60) == 130
    finally:
        controller.kill()


def _nobody(action: object, by: str) -> NoReturn:
    raise AssertionError(f"{by} asks a later controller for {action}")
