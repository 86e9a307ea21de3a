"""Tests of the Python API: run an ensemble, read its results, wait for it and stop it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import wait_until

import ensemble_core as ensemble
from ensemble_core.journal.run_folder import HALT

STUDY = """
jobs:
  - {name: sim, command: 'echo energy={x}', parameters: {x: [1, 2, 4]}, observe: {key-value: {}},
     result: {E: last.energy}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
results:
  energies: {of: sim, columns: {twice: 2 * E}, order: -E}
"""
ENDLESS = {
    "jobs": [{"name": "long", "command": "sleep 600"}],
    "rules": [{"trigger": "start", "action": {"name": "submit", "label": "long"}}],
}


PLUGIN = """
from ensemble_core import hookimpl

@hookimpl
def ensemble_actions():
    return []
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    return file


def started(run: ensemble.EnsembleRun) -> None:
    wait_until(lambda: run.report().groups[0].running == 1)


def test_run_of_a_file_gives_its_table_as_a_list_of_dictionaries(study: Path) -> None:
    run = ensemble.run(study, executor="local")
    assert (run.state, run.exit_code) == ("ended", 0)
    table = run.results("energies")
    assert table == [{"index": i, "twice": 2 * x} for i, x in ((2, 4), (1, 2), (0, 1))]
    assert table.names == ("index", "twice")
    assert table.column("twice") == [8, 4, 2]
    assert [(row["x"], row["outcome"], row["E"]) for row in run.results()] == [
        (1, "success", 1),
        (2, "success", 2),
        (4, "success", 4),
    ]
    assert run.metric("mean.sim-energy") == pytest.approx(7 / 3)
    assert run.metric("count.sim.success") == 3
    assert run.metric("max.sim-E") == 4
    assert run.metrics()["count.sim.done"] == 3


def test_run_is_opened_by_last_by_tag_and_by_folder(study: Path, tmp_path: Path) -> None:
    run = ensemble.run(study, executor="local", state=tmp_path / "state", tag="one")
    assert run.folder is not None
    for name in ("last", "one", str(run.folder)):
        opened = ensemble.open_run(name, state=tmp_path / "state")
        assert (opened.tag, opened.state, opened.exit_code) == ("one", "ended", 0)
        assert opened.results("energies") == run.results("energies")
        assert opened.metric("mean.sim-energy") == run.metric("mean.sim-energy")
    shown = subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", "results", "one", "energies", "--json",
         "--state", str(tmp_path / "state")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(shown.stdout) == run.results("energies")


def test_run_without_a_journal_has_tables_but_no_job_rows(study: Path) -> None:
    run = ensemble.run(study, executor="local", keep=False)
    assert run.state == "ended"
    assert len(run.results("energies")) == 3
    with pytest.raises(ensemble.UsageError, match="has no journal"):
        run.jobs()


def test_run_takes_overrides_and_executor_options(study: Path) -> None:
    run = ensemble.run(
        study, executor="local", options={"slots": 1}, overrides={"jobs.sim.parameters.x": [8]}
    )
    assert run.results("energies") == [{"index": 0, "twice": 16}]
    with pytest.raises(ensemble.UsageError, match="slots"):
        ensemble.run(study, executor="local", options={"slots": "many"})


def test_load_checks_a_file_without_running_it(study: Path, tmp_path: Path) -> None:
    checked = ensemble.load(study)
    assert (checked.name, list(checked.groups), list(checked.tables)) == (
        "study",
        ["sim"],
        ["energies"],
    )
    study.write_text(STUDY.replace("of: sim", "of: simm"))
    with pytest.raises(ensemble.FileErrors, match=r"study\.yaml:8.*no job group 'simm'"):
        ensemble.load(study)
    with pytest.raises(ensemble.FileErrors):
        ensemble.run(study, executor="local")
    with pytest.raises(ensemble.UsageError, match=r"no file.*none\.yaml"):
        ensemble.run(tmp_path / "none.yaml")


def test_unknown_table_or_metric_is_an_error_with_a_suggestion(study: Path) -> None:
    run = ensemble.run(study, executor="local")
    with pytest.raises(ensemble.UsageError, match="did you mean 'energies'"):
        run.results("energy")
    with pytest.raises(ensemble.EnsembleError, match="mean"):
        run.metric("meen.sim-energy")
    with pytest.raises(ensemble.UsageError, match="its columns are index, twice"):
        run.results("energies").column("thrice")


def test_run_in_a_thread_is_watched_and_stopped(tmp_path: Path) -> None:
    run = ensemble.run(ENDLESS, executor="local", wait=False)
    started(run)
    assert (run.state, run.exit_code) == ("running", None)
    assert ensemble.open_run(run.tag).state == "running"
    reports = run.watch(0.1)
    assert next(reports).groups[0].running == 1
    run.wait(timeout=0.01)
    assert run.state == "running"
    run.stop("seen enough")
    assert run.wait() is run
    assert (run.state, run.exit_code) == ("stopped", 5)
    assert "seen enough" in run.reason
    assert [report.groups[0].running for report in reports][-1] == 0


def test_run_of_another_process_is_stopped(tmp_path: Path) -> None:
    run = ensemble.run(ENDLESS, executor="local", wait=False)
    started(run)
    other = ensemble.open_run(run.tag)
    assert other.report().groups[0].submitted == 1
    other.stop()
    other.wait()
    assert other.state == "stopped"
    run.wait()


STEERED = {
    "jobs": [
        {"name": "hold", "command": "sleep 600"},
        {"name": "sim", "command": "echo {x}", "parameters": {"x": [1, 2]}},
    ],
    "rules": [
        {"trigger": "start", "action": {"name": "submit", "label": "hold"}},
        {"id": "after", "trigger": "job-done", "name": "sim", "repetitions": 99,
         "action": {"name": "log", "message": "done"}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("here", [True, False], ids=["in-this-process", "opened"])
def test_live_run_is_steered(here: bool) -> None:
    run = ensemble.run(STEERED, executor="local", options={"slots": 4}, wait=False)
    started(run)
    steered = run if here else ensemble.open_run(run.tag)
    assert steered.submit("sim") == ["sim.0", "sim.1"]
    assert steered.submit("sim", {"x": 7}, count=2) == ["sim.2", "sim.3"]
    wait_until(lambda: run.metric("count.sim.done") == 4)
    steered.disable("after")
    steered.set("sim", parameters={"x": [5]})
    assert steered.submit("sim") == ["sim.4"]
    wait_until(lambda: run.metric("count.sim.done") == 5)
    rules = {rule.id: rule for rule in run.report().rules}
    assert (rules["after"].fired, rules["after"].enabled) == (4, False)
    steered.enable("after")
    with pytest.raises(ensemble.UsageError, match="did you mean 'sim'"):
        steered.submit("simm")
    with pytest.raises(ensemble.EnsembleError, match="y"):
        steered.submit("sim", {"y": 1})
    with pytest.raises(ensemble.UsageError, match="'with' is empty"):
        steered.set("sim")
    assert steered.cancel("hold") == ["hold.0"]
    run.wait()
    jobs = [(row["group"], row.get("x"), row["outcome"]) for row in run.jobs()]
    assert jobs == [("hold", None, "cancelled")] + [("sim", x, "success") for x in (1, 2, 7, 7, 5)]
    with pytest.raises(ensemble.UsageError, match=r"is not live|has ended"):
        steered.submit("sim")


def test_run_may_be_started_in_a_thread_of_the_program(study: Path) -> None:
    codes: list[int | None] = []
    thread = threading.Thread(
        target=lambda: codes.append(ensemble.run(study, executor="local").exit_code)
    )
    thread.start()
    thread.join()
    assert codes == [0]


def test_asyncio_awaits_concurrent_runs(study: Path) -> None:
    async def both() -> list[ensemble.EnsembleRun]:
        runs = [ensemble.run(study, executor="local", wait=False) for _ in range(2)]
        return list(await asyncio.gather(*runs))

    assert [run.exit_code for run in asyncio.run(both())] == [0, 0]


def test_run_inside_an_event_loop_is_an_error_with_a_hint(study: Path) -> None:
    async def blocking() -> None:
        ensemble.run(study, executor="local")

    with pytest.raises(ensemble.UsageError, match=r"await run\(…, wait=False\)"):
        asyncio.run(blocking())


def test_cancelled_await_stops_the_run_before_it_raises() -> None:
    async def cancelled() -> ensemble.EnsembleRun:
        run = ensemble.run(ENDLESS, executor="local", wait=False)

        async def waits() -> None:
            await run

        task = asyncio.ensure_future(waits())
        while not run.report().groups[0].running:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return run

    run = asyncio.run(cancelled())
    assert (run.state, run.exit_code) == ("stopped", 5)
    assert run.report().groups[0].running == 0


PROGRAM = """
import sys, ensemble_core
try:
    ensemble_core.run(%r, executor="local", state=sys.argv[1], tag="t")
except KeyboardInterrupt as error:
    run = ensemble_core.open_run("last", state=sys.argv[1])
    print(error, run.state)
    sys.exit(7)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 7), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_stop_a_programs_run(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM % ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    folder = tmp_path / "runs" / "t"
    wait_until(lambda: any(folder.glob("output/*")) or program.poll() is not None, timeout=150)
    os.kill(program.pid, number)
    said = program.communicate()[0]
    assert program.returncode == code
    if number == signal.SIGINT:
        assert said == "run t was stopped; open it with open_run('t') stopped\n"
    assert ensemble.open_run("t", state=tmp_path).state == "stopped"


def test_problems_are_logged_as_warnings_and_event_lines_as_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ensemble")
    run = ensemble.run(
        {
            "jobs": [{"name": "bad", "command": "sh -c 'exit 3'"}],
            "rules": [{"trigger": "start", "action": {"name": "submit", "label": "bad"}}],
        },
        executor="local",
    )
    assert run.exit_code == 1
    levels: dict[str, list[str]] = {}
    for record in caplog.records:
        levels.setdefault(record.levelname, []).append(record.getMessage())
    assert any("failed bad.0: exit code 3" in text for text in levels["WARNING"])
    assert any("=> trigger start" in text for text in levels["INFO"])


def test_damaged_journal_is_reported(study: Path, tmp_path: Path) -> None:
    run = ensemble.run(study, executor="local", state=tmp_path / "state")
    assert run.folder is not None
    journal = run.folder / "journal.db"
    data = bytearray(journal.read_bytes())
    data[4096 : 4096 + 2000] = b"\xff" * 2000
    journal.write_bytes(data)
    with pytest.raises(ensemble.EnsembleError, match=r"the journal is damaged.*journal\.db"):
        ensemble.open_run("last", state=tmp_path / "state")
    journal.write_bytes(b"not a journal")
    with pytest.raises(ensemble.EnsembleError, match="damaged"):
        ensemble.open_run("last", state=tmp_path / "state")


def test_unknown_run_is_an_error_with_a_suggestion(study: Path, tmp_path: Path) -> None:
    ensemble.run(study, executor="local", state=tmp_path / "state", tag="monday")
    with pytest.raises(ensemble.UsageError, match="did you mean monday"):
        ensemble.open_run("munday", state=tmp_path / "state")
    with pytest.raises(ensemble.UsageError, match="run monday already exists"):
        ensemble.run(study, executor="local", state=tmp_path / "state", tag="monday")


def test_executor_that_cannot_be_opened_leaves_no_run(study: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "shut.py"
    plugin.write_text(
        "from ensemble_core import Executor, ExecutorError, ExecutorPlugin, hookimpl\n"
        "class Shut(Executor):\n"
        "    def open(self, run, emit): raise ExecutorError('the queue is shut')\n"
        "    def submit(self, jobs): ...\n"
        "    def cancel(self, jobs): ...\n"
        "    def close(self): ...\n"
        "@hookimpl\n"
        "def ensemble_executors():\n"
        "    return [ExecutorPlugin(name='shut', summary='s', build=lambda options: Shut())]\n"
    )
    state = tmp_path / "state"
    given: dict[str, Any] = {"executor": "shut", "plugins": [plugin], "state": state}
    with pytest.raises(ensemble.ExecutorError, match="the queue is shut"):
        ensemble.run(study, **given)
    run = ensemble.run(study, **given, wait=False)
    with pytest.raises(ensemble.ExecutorError, match="the queue is shut"):
        run.wait()
    assert run.state == "failed"
    assert not list((state / "runs").iterdir())


def test_reading_a_run_does_not_change_the_garbage_collector(tmp_path: Path) -> None:
    program = """
import gc
import click
import ensemble_core as ensemble

settings = gc.get_threshold(), gc.isenabled()
study = {
    "jobs": [{"name": "a", "command": "true"}],
    "rules": [{"trigger": "start", "action": {"name": "submit"}}],
}


@click.command()  # a program that is a click command itself is no command of ours
def main():
    run = ensemble.run(study, executor="local", state="state", tag="t")
    assert len(run.jobs()) == len(ensemble.open_run("last", state="state").jobs()) == 1
    again = ensemble.run(study, executor="local", state="state", tag="t", or_resume=True)
    assert again.results().column("outcome") == ["success"]
    assert (gc.get_freeze_count(), (gc.get_threshold(), gc.isenabled())) == (0, settings)


main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_plugin_file_of_a_run_is_executed_once(study: Path, tmp_path: Path) -> None:
    plugin, executed = tmp_path / "counted.py", tmp_path / "executed"
    plugin.write_text(
        f"{PLUGIN}\nwith open({str(executed)!r}, 'a') as file:\n    file.write('.')\n"
    )
    ensemble.run(study, executor="local", state=tmp_path / "state", plugins=[plugin])
    executed.write_text("")
    run = ensemble.open_run(state=tmp_path / "state")
    for _ in range(3):
        assert len(run.jobs()) == 3
    assert executed.read_text() == "."


def test_warnings_about_an_opened_run_are_logged(
    study: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plugin = tmp_path / "empty.py"
    plugin.write_text(PLUGIN)
    run = ensemble.run(study, executor="local", state=tmp_path / "state", plugins=[plugin])
    assert run.folder is not None
    run.folder.chmod(0o777)  # as if another user had made it
    assert len(run.jobs()) == 3
    assert "its plugin files are not loaded" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_stop_that_cannot_be_written_is_an_ensemble_error(tmp_path: Path) -> None:
    run = ensemble.run(ENDLESS, executor="local", state=tmp_path / "state", wait=False)
    started(run)
    assert run.folder is not None
    in_the_way = run.folder / HALT
    in_the_way.mkdir()
    with pytest.raises(ensemble.EnsembleError, match=r"controller of run .* to stop") as got:
        ensemble.open_run(state=tmp_path / "state").stop()
    assert got.value.code == "unwritable"
    in_the_way.rmdir()
    run.stop()
    run.wait()
