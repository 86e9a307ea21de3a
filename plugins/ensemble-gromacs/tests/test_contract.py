"""The contract of programs, with logs that GROMACS 2022.5 wrote."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ensemble_gromacs import GROMACS
from ensemble_testing import ProgramContract

from ensemble_core import Row

LOGS = Path(__file__).parent / "logs"


class TestGromacs(ProgramContract):
    program = GROMACS
    logs = LOGS
    ends: ClassVar = {
        "complete.log": ("complete", "Finished mdrun on rank 0", 500),
        "terminated.log": ("unfinished", "Received the TERM signal", 2470),
        "killed.log": ("unfinished", "the log has no end", 1250),
        "continued.log": ("unfinished", "Run time exceeded 0.001 hours", 5160),
        "appended.log": ("unfinished", "Step 4830: Run time exceeded", 4840),
        "nan.log": ("diverged", "Temperature, Pressure are not finite", 300),
        "diverged.log": ("diverged", "potential energy is -nan, which is not finite", 50),
        "failed.log": ("failed", "Cannot change integrator", None),
        "em-stopped.log": ("unfinished", "reached the maximum number of steps", 30),
        "em-converged.log": ("complete", "converged to Fmax < 5000", 0),
    }
    rows: ClassVar = {
        "complete.log": (
            11,
            Row(
                {
                    "Potential": -9868.84,
                    "Kinetic": 1680.66,
                    "Total": -8188.18,
                    "Conserved": -8281.75,
                    "Temperature": 312.664,
                    "Pressure": 225.252,
                },
                500,
            ),
        ),
    }
    checkpoint = "state.cpt"
    continued = "continued.log"
    commands = (
        "gmx mdrun -s topol.tpr",
        "mpirun -n 4 gmx_mpi mdrun -s topol.tpr -cpi -append",
        "srun --cpu-bind=cores gmx_mpi mdrun -s topol.tpr -cpi old.cpt -maxh 1",
        "apptainer exec gromacs.sif gmx mdrun -s topol.tpr -noappend",
    )
