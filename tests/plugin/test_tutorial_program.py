"""The chapter on plugins for simulation programs, followed with the real CP2K and with its logs.

The logs in ``cp2k-logs`` are those that CP2K 2023.1 writes if the chapter is followed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.plugin.test_tutorial import DOCS, Command, File, Reader, fits, steps

PAGE = DOCS / "plugin-tutorial-program.md"
LOGS = Path(__file__).parent / "cp2k-logs"
#: The chapter needs ensemble-programs.
pytestmark = pytest.mark.checkout
needs_cp2k = pytest.mark.skipif(
    not shutil.which("cp2k.psmp"), reason="CP2K (cp2k.psmp) is not installed: no chapter is run"
)


def reader_of(folder: Path) -> Reader:
    reader = Reader(folder, "ensemble-cp2k")
    reader.environment["OMP_NUM_THREADS"] = "1"
    return reader


def follow(reader: Reader, wanted: str = "") -> int:
    """Follow the page; of its commands, only those that contain a text. Return their number."""
    commands = 0
    for step in steps(PAGE):
        if isinstance(step, File):
            reader.write(step)
        elif wanted in step.text:
            printed = reader.run(step.text)
            shown: Command = step
            assert fits(shown.printed, printed), (
                f"{step.place}: $ {step.text}\nprinted\n{printed}and not\n{step.printed}"
            )
            commands += 1
    return commands


@needs_cp2k
def test_commands_of_the_chapter_print_what_it_shows(tmp_path: Path) -> None:
    assert follow(reader_of(tmp_path)) == 20


def test_the_plugin_of_the_chapter_passes_its_suite_with_recorded_logs(tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    shutil.copytree(LOGS, reader.folder / "tests" / "logs")
    assert follow(reader, "pytest") == 1


@needs_cp2k
def test_a_run_continues_as_the_chapter_says(tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    follow(reader, "pip install")
    file = reader.folder / "argon.inp"
    text = file.read_text().replace("STEPS 200", "STEPS 2000").replace("_STEPS 201", "_STEPS 2001")
    file.write_text(text.replace("PRINT_LEVEL LOW", "PRINT_LEVEL LOW\n  WALLTIME 1"))
    study = reader.folder / "argon.yaml"
    text = study.read_text().replace("repetitions: 20", "repetitions: 500")
    study.write_text(text.replace("[80, 85, 90]", "[80]"))
    printed = reader.run("ensemble run --tag argon argon.yaml")
    assert "argon.0 continues from" in printed
    assert "reached step 2000 of 2000" in printed
