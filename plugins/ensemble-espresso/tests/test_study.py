"""The study of the README, with the real pw.x."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from ensemble_espresso import ESPRESSO
from ensemble_testing import StudyContract

#: A relaxation whose attempts are stopped after two steps each.
_RELAX = """
jobs:
  - name: relax
    command: sh {here}/scf.sh {here} 12 2 0.7 pw.x -in scf.in
    workdir: runs/{run}/{group}/{index}
    environment: {OMP_NUM_THREADS: "1"}
    observe: {espresso: {columns: [energy]}}
    result: {E: last.energy}
rules:
  - {trigger: start, action: {name: submit, label: relax}}
  - trigger: job-finish
    name: relax
    repetitions: 20
    action:
      name: espresso-check
      complete: {name: log, message: "{outcome}: {message}"}
      unfinished: {name: espresso-continue}
      otherwise: {name: log, message: "{outcome}: {message}", level: error}
results:
  energy: {of: relax, columns: {E: E, attempt: attempt}}
"""

needs_espresso = pytest.mark.skipif(
    not shutil.which("pw.x") or not Path("/usr/share/espresso/pseudo").is_dir(),
    reason="Quantum ESPRESSO (pw.x and its pseudopotentials) is not installed: no study is run",
)


class TestStudy(StudyContract):
    distribution = "ensemble-espresso"
    tests = Path(__file__).parent
    program = ESPRESSO
    files: ClassVar = {"scf.tmpl", "scf.sh", "silicon.yaml"}

    @needs_espresso
    def test_the_cut_off_and_the_mesh_are_raised_until_the_energy_changes_less(
        self, study: Path
    ) -> None:
        self.run(study, "silicon.yaml")
        for table, name in (("energies", "ecut"), ("meshes", "k")):
            rows = self.table(study, table)
            energies = [float(row["E"]) for row in rows]
            changes = [abs(b - a) for a, b in pairwise(energies)]
            assert changes[-1] <= 0.005, rows
            assert all(change > 0.005 for change in changes[:-1]), rows
            assert len({row[name] for row in rows}) == len(rows)

    @needs_espresso
    def test_a_failed_scf_cycle_is_tried_again_with_other_mixing(self, study: Path) -> None:
        self.change(study / "silicon.yaml", "beta: [0.7]", "beta: [-5000]")
        self.change(study / "silicon.yaml", '"= beta / 2"', "0.7")
        assert "the cut-off" in self.run(study, "silicon.yaml").stdout

    @needs_espresso
    def test_a_relaxation_that_was_stopped_continues_and_gives_the_same_energy(
        self, study: Path
    ) -> None:
        (study / "relax.yaml").write_text(_RELAX)
        self.change(study / "scf.tmpl", "Si 0.25 0.25 0.25", "Si 0.28 0.26 0.25")
        self.change(study / "scf.tmpl", "ATOMIC_SPECIES", "&ions\n/\nATOMIC_SPECIES")
        energies = []
        for steps, attempts in ((50, 0), (2, 2)):
            text = (study / "scf.tmpl").read_text()
            start = text.index("  prefix")
            calculation = f"&control\n  calculation = 'relax', nstep = {steps}\n"
            (study / "scf.tmpl").write_text(calculation + text[start:])
            done = self.run(study, "relax.yaml", tag=f"steps-{steps}")
            assert "bfgs converged in" in done.stdout
            assert ("continues from" in done.stdout) == (attempts > 0)
            (row,) = self.table(study, "energy", tag=f"steps-{steps}")
            assert int(row["attempt"]) == attempts
            energies.append(float(row["E"]))
        assert energies[0] == pytest.approx(energies[1], abs=1e-5)
