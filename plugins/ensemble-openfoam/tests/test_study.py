"""The study of the README, with the real OpenFOAM."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from ensemble_openfoam import OPENFOAM
from ensemble_testing import StudyContract

needs_openfoam = pytest.mark.skipif(
    not shutil.which("simpleFoam"),
    reason="OpenFOAM (simpleFoam) is not installed: the study is not run",
)


class TestStudy(StudyContract):
    distribution = "ensemble-openfoam"
    tests = Path(__file__).parent
    program = OPENFOAM
    files: ClassVar = {
        *("controlDict", "fvSchemes", "fvSolution", "blockMeshDict", "U", "p"),
        *("case.sh", "square.yaml"),
    }

    @needs_openfoam
    def test_the_mesh_is_refined_until_the_drag_changes_by_less_than_1_percent(
        self, study: Path
    ) -> None:
        self.run(study, "square.yaml")
        rows = self.table(study, "drag")
        assert [row["n"] for row in rows] == ["4", "8", "12"]
        drags = [float(row["Cd"]) for row in rows]
        assert abs(drags[1] - drags[0]) > 0.01 * drags[1]
        assert abs(drags[2] - drags[1]) <= 0.01 * drags[2]
        for job, drag in enumerate(drags):
            # OpenFOAM's own file has the same coefficients: time, Cd, …
            (file,) = (study / f"runs/study/mesh/{job}/postProcessing").rglob("coefficient.dat")
            last = file.read_text().splitlines()[-1].split()
            assert drag == pytest.approx(float(last[1]), rel=1e-4)

    @needs_openfoam
    def test_a_run_whose_residuals_stall_is_cancelled(self, study: Path) -> None:
        # Without viscosity, vortices separate, and there is no steady flow.
        self.change(study / "case.sh", "nu 0.05", "nu 0.0005")
        self.change(study / "controlDict", "endTime       1000", "endTime       1000000")
        done = self.ensemble(study, "run", "--tag", "study", "square.yaml")
        assert "residuals stall at iteration" in done.stderr, done.stdout + done.stderr
        assert "cancel mesh.0" in done.stdout

    @needs_openfoam
    def test_a_killed_run_continues_from_its_last_complete_time(self, study: Path) -> None:
        self.change(study / "square.yaml", "{n} simpleFoam", "{n} sh {here}/kill.sh simpleFoam")
        (study / "kill.sh").write_text(
            "[ -e killed ] && exec simpleFoam\n"
            "touch killed\n"
            "simpleFoam & solver=$!\n"
            "until grep -q '^6[0-9]' postProcessing/drag/0/coefficient.dat; do sleep 0.01; done\n"
            "kill -9 $solver; wait $solver\n"
        )
        done = self.run(study, "square.yaml")
        assert "mesh.0 continues from" in done.stdout
        rows = self.table(study, "drag")
        assert [row["n"] for row in rows] == ["4", "8", "12"]
        case = study / "runs/study/mesh/0"
        assert "startTime 50;" in (case / "system/controlDict").read_text()
        (continued,) = (case / "postProcessing/drag/50").glob("coefficient.dat")
        steps = re.findall(r"^(\d+)\s", continued.read_text(), re.M)
        assert rows[0]["steps"] == steps[-1]
