"""The contract of programs, with logs that solvers of OpenFOAM v1912 wrote."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from ensemble_openfoam import OPENFOAM
from ensemble_programs import Kept
from ensemble_programs.outcome import read
from ensemble_testing import ProgramContract

from ensemble_core import EnsembleError, Row

LOGS = Path(__file__).parent / "logs"


class TestOpenFoam(ProgramContract):
    program = OPENFOAM
    logs = LOGS
    ends: ClassVar = {
        "complete.log": ("complete", "SIMPLE solution converged in 14 iterations", 14),
        "transient.log": ("complete", "End", 0.4),
        "end-time.log": ("unfinished", "convergence criteria field p tolerance 1e-05", 8),
        "killed.log": ("unfinished", "the log has no end", 16),
        "diverged.log": ("diverged", "Foam::sigFpe::sigHandler", 1),
        "nan.log": ("diverged", "are not finite at 50", 50),
        "nan-token.log": ("diverged", "expected scalar value, found on line 0: word 'nan'", 1),
        "failed.log": ("failed", "Unknown patchField type slippery", None),
    }
    checkpoint = "3"
    inputs = ("system/controlDict",)
    commands = (
        "simpleFoam",
        "mpirun -n 4 pimpleFoam -parallel",
        "apptainer exec openfoam.sif /opt/bin/icoFoam",
        "sh case.sh simpleFoam",
    )


def rows(name: str, **options: object) -> list[Row]:
    return TestOpenFoam.read([(LOGS / name).read_bytes()], **options)


def test_the_end_of_another_program_is_not_that_of_the_solver(tmp_path: Path) -> None:
    text = (LOGS / "transient.log").read_text()
    other = "Exec   : reconstructPar\n\nTime = 0.4\n\nEnd\n"
    log = tmp_path / "log"
    for own, kind in ((text, "complete"), (text[: text.rindex("End")], "unfinished")):
        log.write_text(own + "\n" + other)
        assert read(OPENFOAM, str(log), 0).kind == kind


def test_each_time_step_is_a_row_with_the_first_residuals_and_the_last_forces() -> None:
    found = rows("transient.log", columns=["p", "Cd"])
    assert [row.clock for row in found] == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    text = (LOGS / "transient.log").read_text().partition("Time = 0.4\n")[2]
    (first, second, *_) = [
        float(line.split("Initial residual = ")[1].split(",")[0])
        for line in text.splitlines()
        if "Solving for p" in line
    ]
    assert second < first == found[-1].values["p"]
    assert f"Cd       : {found[-1].values['Cd']:g}" in text


def test_the_columns_of_a_file_have_the_time_as_their_clock() -> None:
    found = rows("complete.log", columns=["Cd"], converged={"Cd": {"error": 1}})
    assert len(found) == 14
    assert found[-1].values.keys() == {"time", "Cd", "Cd.mean"}


def case(folder: Path) -> Path:
    shutil.copytree(LOGS / "system", folder / "system")
    shutil.copytree(LOGS / "3", folder / "3")
    return folder


def test_a_case_starts_from_the_written_time(tmp_path: Path) -> None:
    control = case(tmp_path) / "system/controlDict"
    before = control.read_text()
    for time in ("3", "12.5"):
        kept = Kept(["simpleFoam"], str(tmp_path / time), str(tmp_path))
        assert OPENFOAM.resume(kept) == ["simpleFoam"]  # type: ignore[misc]
        added = f"// openfoam-continue\nstartFrom startTime;\nstartTime {time};\n"
        assert control.read_text() == before + added


def test_a_control_dict_that_other_jobs_use_is_not_changed(tmp_path: Path) -> None:
    shared, own = case(tmp_path / "shared"), tmp_path / "own"
    own.mkdir()
    (own / "system").symlink_to(shared / "system")
    before = (shared / "system/controlDict").read_bytes()
    with pytest.raises(EnsembleError, match="other jobs may use"):
        OPENFOAM.resume(Kept(["simpleFoam"], str(own / "3"), str(own)))  # type: ignore[misc]
    assert (shared / "system/controlDict").read_bytes() == before
    (own / "system").unlink()
    with pytest.raises(EnsembleError, match="No such file"):
        OPENFOAM.resume(Kept(["simpleFoam"], str(own / "3"), str(own)))  # type: ignore[misc]


def test_incomplete_times_are_refused(tmp_path: Path) -> None:
    case(tmp_path)
    assert OPENFOAM.reject(str(tmp_path / "3")) is None
    assert "start" in (OPENFOAM.reject(str(tmp_path / "0.0")) or "")
    assert "not a time" in (OPENFOAM.reject(str(tmp_path / "0.orig")) or "")
    field = tmp_path / "3/p"
    text = field.read_bytes()
    with gzip.open(tmp_path / "3/p.gz", "wb") as file:
        file.write(text)
    field.unlink()
    assert OPENFOAM.reject(str(tmp_path / "3")) is None
    packed = (tmp_path / "3/p.gz").read_bytes()
    (tmp_path / "3/p.gz").write_bytes(packed[:-20])
    assert "p.gz is truncated" in (OPENFOAM.reject(str(tmp_path / "3")) or "")


def test_a_time_that_a_processor_lacks_is_refused(tmp_path: Path) -> None:
    for processor in ("processor0", "processor1"):
        shutil.copytree(LOGS / "3", tmp_path / processor / "3")
    time = str(tmp_path / "processor0/3")
    assert OPENFOAM.reject(time) is None
    (tmp_path / "processor1/3/U").unlink()
    assert "processor1/3 lacks U" in (OPENFOAM.reject(time) or "")
    shutil.rmtree(tmp_path / "processor1/3")
    assert "processor1/3 does not exist" in (OPENFOAM.reject(time) or "")
    shutil.copytree(LOGS / "system", tmp_path / "system")
    OPENFOAM.resume(Kept(["simpleFoam"], time, str(tmp_path)))  # type: ignore[misc]
    assert "startTime 3;" in (tmp_path / "system/controlDict").read_text()
