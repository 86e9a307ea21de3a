"""``ensemble watch``: gauges and events of a queue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main

PLUGIN = """
from ensemble_core import ExecutorPlugin, hookimpl
from ensemble_core.model.events import ExecutorLost, JobEvent, Resources
from ensemble_core.plugin.executor import Executor


class Spoken(Executor):
    sees_foreign_jobs = True

    def open(self, run, emit):
        self.emit, self.clock = emit, run.clock
        now = run.clock()
        emit([Resources(now, {"nodes.free": 4.0, "nodes.up": 8.0})])
        emit([Resources(now, {"nodes.free": 3.0, "nodes.up": 8.0})])
        emit([JobEvent(now, "f42", "start", {"ranks": "0"}, ours=False)])
        emit([ExecutorLost(now, "spoken", "the broker went away")])

    def resources(self):
        return {"nodes.free": 4.0, "nodes.up": 8.0}

    def submit(self, jobs):
        raise AssertionError("nothing is submitted")

    def cancel(self, jobs):
        raise AssertionError("nothing is cancelled")

    def close(self):
        pass


@hookimpl
def ensemble_executors():
    yield ExecutorPlugin(name="spoken", summary="A queue that speaks.", build=lambda o: Spoken())
"""


def watch(*args: str) -> Result:
    result = CliRunner().invoke(main, ["watch", *args])
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "spoken.py"
    path.write_text(PLUGIN)
    return str(path)


def test_watch_shows_gauges_then_changes_and_foreign_jobs(plugin: str) -> None:
    result = watch("--plugin", plugin, "--executor", "spoken", "--for", "60")
    lines = [line.partition("  ")[2] for line in result.output.splitlines()]
    assert lines == [
        "nodes.free 4  nodes.up 8",
        "nodes.free 3",
        'f42  start  {"ranks": "0"}',
        "lost the queue: the broker went away",
    ]
    assert result.exit_code == 1


def test_json_has_one_event_per_line(plugin: str) -> None:
    result = watch("--plugin", plugin, "--executor", "spoken", "--for", "60", "--json")
    told = [json.loads(line) for line in result.output.splitlines()]
    assert [one["type"] for one in told] == ["resources", "resources", "job", "executor-lost"]
    assert told[1]["values"] == {"nodes.free": 3.0}


def test_watch_for_zero_seconds_shows_the_gauges_once() -> None:
    result = watch("--executor", "local", "--for", "0")
    (line,) = result.output.splitlines()
    assert "cores.up" in line
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--executor", "loacl"], "did you mean 'local'?"),
        (["--executor", "local", "--for", "1:2"], "add units: "),
        (["--executor", "local", "-o", "slotz=1"], "did you mean 'slots'?"),
    ],
)
def test_typo_is_rejected_before_the_queue_is_opened(args: list[str], said: str) -> None:
    result = watch(*args)
    assert result.exit_code == 2
    assert said in result.output
