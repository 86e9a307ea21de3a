"""The study of the README, with the real GROMACS and fewer steps."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import ClassVar

import pytest
from ensemble_gromacs import GROMACS
from ensemble_testing import StudyContract

needs_gromacs = pytest.mark.skipif(
    not shutil.which("gmx"), reason="GROMACS (gmx) is not installed: the study is not run"
)


class TestStudy(StudyContract):
    distribution = "ensemble-gromacs"
    tests = Path(__file__).parent
    program = GROMACS
    files: ClassVar = {"water.top", "md.mdp", "md.sh", "water.yaml"}

    @needs_gromacs
    def test_six_temperatures_have_the_error_bars_that_the_logs_give(self, study: Path) -> None:
        self.change(study / "md.mdp", "nsteps        = 10000", "nsteps        = 100")
        self.change(study / "water.yaml", "err > 20", "T == 280 and runs < 3")
        self.run(study, "water.yaml")
        rows = self.table(study, "curve")
        assert [row["T"] for row in rows] == ["280", "290", "300", "310", "320", "330"]
        assert [row["runs"] for row in rows] == ["4", "2", "2", "2", "2", "2"]
        energies: dict[str, list[float]] = {}
        for folder in (study / "runs" / "study" / "md").iterdir():
            log = (folder / "md.log").read_text("utf-8").partition("A V E R A G E S")[0]
            found = re.findall(
                r"^ +LJ \(SR\) +Coulomb \(SR\) +Potential .*\n +\S+ +\S+ +(\S+)", log, re.M
            )
            temperature = re.findall(r"^ +ref-t: +(\S+)", log, re.M)[0]
            energies.setdefault(temperature, []).append(mean(map(float, found)))
        for row in rows:
            runs = energies[row["T"]]
            assert float(row["U"]) == pytest.approx(mean(runs))
            assert float(row["err"]) == pytest.approx(stdev(runs) / len(runs) ** 0.5, rel=0.01)

    @needs_gromacs
    def test_a_chain_of_checkpoints_reaches_the_goal(self, study: Path) -> None:
        self.change(study / "water.yaml", "-maxh 0.1", "-maxh 0.0004")
        self.change(study / "water.yaml", "[280, 290, 300, 310, 320, 330]", "[300]")
        self.change(study / "water.yaml", "replicas: 2", "replicas: 1")
        plain = study
        for steps in (
            3000,
            12000,
            48000,
        ):  # until it takes longer than maxh, also on a fast machine
            study = plain.with_name(f"study{steps}")
            shutil.copytree(plain, study)
            self.change(study / "md.mdp", "nsteps        = 10000", f"nsteps        = {steps}")
            run = self.run(study, "water.yaml")
            assert "md.0 cannot continue" not in run.stdout
            assert f"reached step {steps}" in run.stdout
            if "continues from" in run.stdout:
                break
        assert "md.part0002.log" in os.listdir(study / "runs/study/md/0")
        (row,) = self.table(study, "curve")
        printed: dict[str, float] = {}
        for log in sorted((study / "runs/study/md/0").glob("md*.log")):
            blocks = re.findall(
                r"^ +Step +Time\n +(\d+) [^A]*?Potential .*\n +\S+ +\S+ +(\S+)",
                log.read_text(),
                re.M,
            )
            printed |= {step: float(value) for step, value in blocks}
        assert f"{steps}" in printed
        # Each step counts once, although the last one of an attempt comes again in the next attempt.
        assert float(row["U"]) == pytest.approx(mean(printed.values()), rel=1e-9)

    @needs_gromacs
    def test_a_run_that_blows_up_is_cancelled(self, study: Path) -> None:
        self.change(study / "md.mdp", "dt            = 0.002", "dt            = 0.02")
        self.change(study / "md.mdp", "nsteps        = 10000", "nsteps        = 1000000")
        with (study / "md.mdp").open("a") as file:
            file.write("verlet-buffer-tolerance = -1\nrlist = 0.9\nnstlist = 10\n")
        self.change(study / "md.sh", "-o topol.tpr", "-o topol.tpr -maxwarn 9")
        self.change(study / "water.yaml", "[280, 290, 300, 310, 320, 330]", "[300]")
        self.change(study / "water.yaml", "replicas: 2", "replicas: 1")
        run = self.ensemble(study, "run", "--tag", "study", "water.yaml")
        assert "blew up at step" in run.stderr, run.stdout + run.stderr
        assert "cancel md.0" in run.stdout
