"""The contract of programs, with outputs that pw.x 6.7 wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import pytest
from ensemble_espresso import ESPRESSO
from ensemble_programs import Kept
from ensemble_programs.outcome import read
from ensemble_testing import ProgramContract

from ensemble_core import EnsembleError, Row


class TestEspresso(ProgramContract):
    program = ESPRESSO
    logs = Path(__file__).parent / "logs"
    ends: ClassVar = {
        "scf.log": ("complete", "JOB DONE", None),
        "relaxed.log": ("complete", "bfgs converged in 4 scf cycles", 4),
        "time.log": ("unfinished", "Maximum CPU time exceeded", None),
        "killed.log": ("unfinished", "the log has no end", None),
        "dynamics.log": ("complete", "End of molecular dynamics calculation", 4),
        "hybrid.log": ("complete", "bfgs converged in 3 scf cycles", 3),
        "restarted.log": ("complete", "bfgs converged in 8 scf cycles and 7 bfgs steps", 8),
        "nstep.log": ("unfinished", "maximum number of steps has been reached", 2),
        "not-converged.log": ("failed", "convergence NOT achieved after 3 iterations", None),
        "error.log": ("failed", "Xx.UPF not found", None),
        "diverged.log": ("diverged", "total energy =*****", None),
    }
    continued = "restarted.log"
    rows: ClassVar = {"not-converged.log": (6, Row({"accuracy": 8.987e-05}))}


def rows(text: bytes, *columns: str) -> list[Row]:
    return TestEspresso.read([text], columns=[*columns])


LOGS = TestEspresso.logs


def test_each_step_of_a_relaxation_is_a_row() -> None:
    found = rows((LOGS / "relaxed.log").read_bytes(), "energy", "force", "pressure")
    assert [row.clock for row in found] == [1, 2, 3, 4]
    assert [row.values["energy"] for row in found] == [
        -15.54415072, -15.55241668, -15.55325857, -15.55325963,
    ]  # fmt: skip
    assert found[1].values == {
        "step": 2, "energy": -15.55241668, "force": 0.033931, "pressure": 30.56,
    }  # fmt: skip


def test_a_restarted_relaxation_counts_on_and_has_a_final_step_in_the_new_cell() -> None:
    found = rows((LOGS / "restarted.log").read_bytes(), "energy", "force")
    assert [row.clock for row in found] == [3, 4, 5, 6, 7, 8, 9]
    assert [row.values["energy"] for row in found[-2:]] == [-15.72708968, -15.71252413]


def test_scf_iterations_are_rows_at_once() -> None:
    text = (LOGS / "relaxed.log").read_bytes()
    found = rows(text[: text.index(b"iteration #  3")], "energy", "accuracy")
    assert found == [Row({"accuracy": 0.09878171}), Row({"accuracy": 0.00443876})]


def test_a_hybrid_functional_repeats_the_scf_cycle_within_a_step() -> None:
    found = rows((LOGS / "hybrid.log").read_bytes(), "energy")
    assert [row.clock for row in found] == [1, 2, 3]
    marked = re.findall(r"^!! +total energy += +(\S+)", (LOGS / "hybrid.log").read_text(), re.M)
    assert [row.values["energy"] for row in found] == [*map(float, marked)]


@pytest.mark.parametrize(
    ("line", "column", "values"),
    [
        ("     total magnetization       =     0.40 Bohr mag/cell", "magnetization", [0.4]),
        ("     total magnetization       =     0.00     0.00     0.40 Bohr mag/cell",
         "magnetization", []),
        ("     highest occupied, lowest unoccupied level (ev):     7.3476    8.5699",
         "fermi", [7.3476]),
    ],
)  # fmt: skip
def test_a_line_of_several_numbers(line: str, column: str, values: list[float]) -> None:
    text = f"     Self-consistent Calculation\n{line}\n".encode()
    assert [row.values[column] for row in rows(text, column)] == values


def test_a_calculation_that_is_no_relaxation_has_no_step() -> None:
    (row,) = rows((LOGS / "scf.log").read_bytes(), "energy", "force")
    assert row == Row({"energy": -15.55325972, "force": 0.0})


def test_bands_have_a_fermi_energy() -> None:
    text = b"     Band Structure Calculation\n\n     the Fermi energy is     6.1665 ev\n"
    assert rows(text, "fermi") == [Row({"fermi": 6.1665})]


def test_the_end_of_another_program_is_not_that_of_pw(tmp_path: Path) -> None:
    other = "     Program POST-PROC v.6.7MaX starts on 30Nov2026\n\n   JOB DONE.\n"
    for name, kind in (("killed.log", "unfinished"), ("scf.log", "complete")):
        (tmp_path / name).write_text((LOGS / name).read_text() + "\n" + other)
        assert read(ESPRESSO, str(tmp_path / name), 0).kind == kind


def test_a_restart_changes_a_copy_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "a.in").write_text("&CONTROL\n  prefix = 'a'\n/\n")
    words = ["pw.x", "-nk", "2", "-in", "a.in"]
    again = ESPRESSO.resume(Kept(words, "out/a.save", str(tmp_path)))  # type: ignore[misc]
    assert again == [*words[:-1], str(tmp_path / "a.in.restart")]
    text = (tmp_path / "a.in.restart").read_text()
    assert text == "&CONTROL\n  restart_mode = 'restart'\n  prefix = 'a'\n/\n"
    assert "restart" not in (tmp_path / "a.in").read_text()
    assert ESPRESSO.resume(Kept(again, "out/a.save", str(tmp_path))) == again  # type: ignore[misc]
    assert (tmp_path / "a.in.restart").read_text() == text


@pytest.mark.parametrize("words", [["pw.x"], ["pw.x", "-in", "missing.in"], ["pw.x", "-in", "b"]])
def test_a_job_without_a_usable_input_is_refused(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "b").write_text("nothing\n")
    with pytest.raises(EnsembleError):
        ESPRESSO.resume(Kept(words, "out/a.save", str(tmp_path)))  # type: ignore[misc]


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    assert ESPRESSO.reject(str(tmp_path)) is not None
    (tmp_path / "data-file-schema.xml").write_text("<qes:espresso>\n")
    assert "truncated" in (ESPRESSO.reject(str(tmp_path)) or "")
    (tmp_path / "data-file-schema.xml").write_text("<qes:espresso>\n</qes:espresso>\n")
    assert ESPRESSO.reject(str(tmp_path)) is None
