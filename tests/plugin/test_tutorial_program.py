"""The chapter on plugins for simulation programs, followed with the real CP2K and with its logs.

The logs in ``cp2k-logs`` are those that CP2K 2023.1 writes if the chapter is followed.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from ensemble_testing.processes import process_files
from ensemble_testing.session import wait_until

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
    file.write_text(text)
    study = reader.folder / "argon.yaml"
    study.write_text(study.read_text().replace("[80, 85, 90]", "[80]"))

    def kill_once() -> None:
        workdir = reader.folder / "runs" / "argon" / "0"
        wait_until((workdir / "argon-1.restart").exists)
        for pid, name in process_files("comm"):
            if name == b"cp2k.psmp\n" and Path(f"/proc/{pid}/cwd").resolve() == workdir.resolve():
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_once)
    killer.start()
    printed = reader.run("ensemble run --tag argon argon.yaml")
    killer.join()
    print(printed)
    assert "argon.0 continues from" in printed
    assert "argon.0-1 reached step 2000 of 2000" in printed
