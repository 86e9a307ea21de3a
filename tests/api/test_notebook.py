"""Tests of runs in notebooks: progress below the cell, tables, ``await``, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import wait_until

from ensemble_core import open_run

pytestmark = pytest.mark.checkout

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

BEGIN = """
import ensemble_core as ensemble
study = {
    "jobs": [{"name": "sim", "command": "echo x={T}", "parameters": {"T": [1, 2, 3]},
              "observe": {"key-value": {}}, "result": {"x": "last.x"}}],
    "rules": [{"trigger": "start", "action": {"name": "submit", "label": "sim"}}],
    "results": {"all": {"of": "sim", "by": ["T"], "columns": {"x": "mean.x"}}},
}
"""


def client(folder: Path, *cells: str) -> Any:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in (BEGIN, *cells)]
    )
    return nbclient.NotebookClient(
        notebook, timeout=150, kernel_name="python3", resources={"metadata": {"path": folder}}
    )


def shown(cell: Any, kind: str = "text/html") -> list[str]:
    return [out["data"][kind] for out in cell["outputs"] if kind in out.get("data", {})]


def executed(folder: Path, *cells: str) -> list[Any]:
    found: list[Any] = client(folder, *cells).execute()["cells"]
    return found[1:]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path / "state"


def test_cell_shows_progress_and_tables(tmp_path: Path) -> None:
    run, table, frame = executed(
        tmp_path,
        "run = ensemble.run(study, executor='local')",
        "run.results('all')",
        "run.results('all').to_pandas()",
    )
    (progress,) = shown(run)
    assert "ended" in progress
    assert "exit code 0" in progress
    assert "<td>sim</td><td>3</td><td>0</td><td>0</td><td>3</td>" in progress
    (rows,) = shown(table)
    assert "<th>T</th><th>x</th>" in rows
    assert "<td>3</td><td>3</td>" in rows
    assert len(shown(frame)) == 1


def test_cell_awaits_a_run_and_shows_it(tmp_path: Path) -> None:
    awaited, last = executed(
        tmp_path,
        "run = await ensemble.run(study, executor='local', wait=False)\nrun.exit_code",
        "run",
    )
    assert shown(awaited, "text/plain") == ["0"]
    assert "exit code 0" in shown(last)[0]


def test_ctrl_c_in_a_cell_stops_the_run_and_the_notebook_stays_usable(
    tmp_path: Path, state: Path
) -> None:
    notebook = client(
        tmp_path,
        "study['jobs'][0]['command'] = 'sleep 600'\n"
        "try:\n    ensemble.run(study, executor='local', tag='t')\n"
        "except KeyboardInterrupt as error:\n    print(error)",
        "ensemble.open_run('last').state",
    )
    done: list[Any] = []

    def execute() -> None:
        done.append(asyncio.run(notebook.async_execute()))

    thread = threading.Thread(target=execute)
    thread.start()
    try:
        began = state / "runs" / "t" / "output"
        wait_until(lambda: any(began.glob("*")) or not thread.is_alive(), timeout=120)
    finally:
        os.kill(notebook.km.provisioner.pid, signal.SIGINT)
        thread.join()
    _, stopped, after = done[0]["cells"]
    assert [out.get("text") for out in stopped["outputs"] if out["output_type"] == "stream"] == [
        "run t was stopped; open it with open_run('t')\n"
    ]
    assert shown(after, "text/plain") == ["'stopped'"]
    assert open_run("t", state=state).exit_code == 130
