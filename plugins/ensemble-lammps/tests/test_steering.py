"""Tests of the manual's examples with real LAMMPS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
README = Path(__file__).parents[1] / "README.md"
pytestmark = pytest.mark.skipif(
    not shutil.which("lmp", path=PATH), reason="LAMMPS (lmp) is not installed"
)

SCRIPT = """
variable T index 1.4
variable dt index 0.005
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 3 0 3 0 3
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create ${T} 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
timestep ${dt}
thermo 10
thermo_modify flush yes
"""


def ensemble(folder: Path, file: str) -> list[str]:
    """Run an ensemble file; return the printed lines."""
    (folder / "study.yaml").write_text(file)
    done = subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", "run", "study.yaml"],
        cwd=folder,
        env={**os.environ, "PATH": PATH, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


def test_the_example_of_the_manual_runs(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    script = re.search(r"^`in.melt`:\n\n```text\n(.*?)^```", text, re.M | re.S)
    file = re.search(r"^```yaml\n(jobs:\n.*?)^```", text, re.M | re.S)
    assert script
    assert file
    (tmp_path / "in.melt").write_text(script[1].replace("0 4 0 4 0 4", "0 3 0 3 0 3"))
    # Fewer jobs and atoms and less precision than in the manual, to save time.
    small = file[1].replace("[1.1, 1.5, 2.0, 3.4]", "[3.4]").replace("error: 0.05", "error: 0.3")
    shown = ensemble(tmp_path, small.replace("begin: 1000", "begin: 0"))
    assert "cancel melt.0" in shown
    assert any(line.startswith("submit melt") and "(T:1.7)" in line for line in shown)
    (known,) = [line for line in shown if "the pressure is" in line]
    pressure = re.match(r"log T = 1\.7: the pressure is ([0-9.]+) \+- ([0-9.]+)$", known)
    assert pressure
    assert 5.5 < float(pressure[1]) < 7.5
    assert float(pressure[2]) <= 0.3
    assert "cancel melt.1" in shown
    (log,) = tmp_path.glob("runs/*/melt/1/log.lammps")
    assert "Loop time" not in log.read_text()


def test_production_starts_once_two_replicas_have_converged(tmp_path: Path) -> None:
    (tmp_path / "in.melt").write_text(
        SCRIPT.replace("87287", "${seed}")
        + "fix 2 all langevin ${T} ${T} 0.1 ${seed}\nrestart 1000 melt.restart\nrun ${steps}\n"
    )
    (tmp_path / "in.on").write_text("read_restart ${restart}\nfix 1 all nve\nrun ${steps}\n")
    shown = ensemble(
        tmp_path,
        """
jobs:
  - name: equilibrate
    command: lmp -in {here}/in.melt -var seed {seed} -var steps 1000000 -screen none
    parameters: {seed: [11, 22]}
    workdir: runs/{group}/{index}
    observe:
      lammps: {columns: [Step], converged: {Press: {error: 0.2, begin: 500}}}
  - name: produce
    command: lmp -in {here}/in.on -screen none
    workdir: runs/{group}/{index}
rules:
  - {trigger: start, action: {name: submit, label: equilibrate}}
  - trigger: lammps-converged
    name: equilibrate
    replicas: 2
    action:
      - {name: log, message: "{value} replicas have converged"}
      - {name: cancel, label: equilibrate}
  - trigger: job-cancel
    name: equilibrate
    repetitions: 3
    action: {name: lammps-continue, label: produce, steps: 50}
""",
    )
    assert "log 2 replicas have converged" in shown
    assert len([line for line in shown if "continues from" in line]) == 2
    for index in range(2):
        assert "Loop time" in (tmp_path / f"runs/produce/{index}/log.lammps").read_text()


ENDS = {
    "completed": "run 50",
    "lost-atoms": "change_box all boundary f f f\nvelocity all scale 50.0\nrun 2000",
    "halted": "variable s equal step\nfix h all halt 20 v_s >= 40 error soft\nrun 500",
    "timed-out": "timer timeout 0:00:01 every 10\nrun 100000000",
    "error": "fix 2 all nvt temp 1.0\nrun 50",
    "killed": "thermo 1\nrun 20\nshell sh ../../kill.sh",
}
#: Script that kills the LAMMPS process that runs it.
KILL = """p=$PPID
while [ "$(cat /proc/$p/comm)" = sh ]; do p=$(cut -d ' ' -f 4 /proc/$p/stat); done
kill -9 $p
"""


def test_the_check_reports_the_outcome_of_each_job(tmp_path: Path) -> None:
    for name, end in ENDS.items():
        (tmp_path / f"in.{name}").write_text(SCRIPT + end + "\n")
    (tmp_path / "kill.sh").write_text(KILL)
    options = ", ".join(
        f"{name}: {{name: log, message: 'it was {{outcome}}: {name} {{step}}'}}" for name in ENDS
    )
    shown = ensemble(
        tmp_path,
        f"""
jobs:
  - name: melt
    command: lmp -in {{here}}/in.{{end}} -screen none
    parameters: {{end: [{", ".join(ENDS)}]}}
    workdir: runs/{{end}}
rules:
  - {{trigger: start, action: {{name: submit, label: melt}}}}
  - trigger: job-finish
    name: melt
    repetitions: 10
    action: {{name: lammps-check, {options}}}
  - {{trigger: job-fail, repetitions: 10, action: {{name: log, message: failed}}}}
""",
    )
    told = {line for line in shown if line.startswith("log it was ")}
    assert {line.split()[3].rstrip(":") for line in told} == set(ENDS)
    for line in told:
        _, _, _, said, option, step = line.split()
        assert said == f"{option}:"
        assert step == {"completed": "50", "halted": "40", "killed": "20"}.get(option, step)


def test_a_job_that_blew_up_is_retried_with_a_smaller_step(tmp_path: Path) -> None:
    (tmp_path / "in.melt").write_text(SCRIPT + "run 100\n")
    shown = ensemble(
        tmp_path,
        """
jobs:
  - name: melt
    command: lmp -in {here}/in.melt -var dt {dt} -screen none
    parameters: {dt: [0.2]}
    workdir: runs/{index}
    observe: {lammps: {}}
rules:
  - {trigger: start, action: {name: submit, label: melt}}
  - trigger: job-fail
    repetitions: 10
    action: {name: lammps-vary, variables: {dt: "=dt / 4"}}
  - trigger: lammps-thermo
    when: "Step == 100 and abs(Temp) < 10"
    action: {name: log, message: "{dt} will do"}
""",
    )
    assert any(re.fullmatch(r"log 0\.0\d+ will do", line) for line in shown), "\n".join(shown)
