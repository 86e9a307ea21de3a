"""Tests of outcomes: how a LAMMPS job ended, according to its log and exit status."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from ensemble_lammps import outcome
from ensemble_lammps.outcome import read
from ensemble_lammps.program import LAMMPS
from ensemble_programs import Outcome
from ensemble_programs import outcome as programs
from hypothesis import given, settings
from hypothesis import strategies as st

LOGS = Path(__file__).parent / "logs"


def exited(code: int) -> int:
    return code << 8


def edited(tmp_path: Path, name: str, *changes: tuple[str, str]) -> Path:
    text = (LOGS / f"log.{name}").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "log.lammps"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "step", "goal"),
    [
        ("balance", "completed", 20, 20),
        ("continued", "completed", 60, 60),
        ("every", "completed", 45, 45),
        ("minimize", "completed", 20, 20),
        ("modify", "completed", 100, 100),
        ("mpi", "completed", 20, 20),
        ("nan", "completed", 60, 60),
        ("noecho", "completed", 20, None),
        ("norun", "completed", None, None),
        ("partition0", "completed", 20, 20),
        ("printing", "completed", 30, 30),
        ("quit0", "completed", 20, 20),
        ("rerun", "completed", 40, None),
        ("styles", "completed", 120, 120),
        ("switching", "completed", 60, 60),
        ("timeout-none", "completed", 20, 20),
        ("timer-off", "completed", 60, 60),
        ("units-metal", "completed", 30, 30),
        ("lost", "lost-atoms", 0, 500),
        ("nonnumeric", "nan", 0, 100),
        ("halt-hard", "halted", 14, 100),
        ("halt-soft", "halted", 14, 100),
        ("halt-continue", "halted", 21, 34),
        ("halt-quiet", "halted", 14, 100),
        ("timeout", "timed-out", 19940, 10000000),
        ("everytimeout", "timed-out", 20465, 10000005),
        ("bad", "error", 20, 20),
        ("parts", "error", 40, 40),
        ("quit", "error", 20, 20),
        ("killed", "killed", 35000, 100000000),
        ("terminated", "killed", 25000, 100000000),
        ("full", "killed", 760, 3000),
        ("switched", "unknown", 40, 40),
        ("partitions", "unknown", None, None),
    ],
)
def test_each_log_has_its_outcome(name: str, kind: str, step: int | None, goal: int | None) -> None:
    found = read(LOGS / f"log.{name}")
    assert (found.kind, found.step, found.goal) == (kind, step, goal)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lost", "Lost atoms: original 108 current 5"),
        ("bad", "Unknown command: pair_stile lj/cut 2.5"),
        ("proc", "Compute ID nothere for fix ave/time does not exist"),
        ("halt-hard", "Fix halt condition for fix-id h met on step 14 with value 0.8182393267869151"),
        ("nonnumeric", "Non-numeric atom coords - simulation unstable"),
        ("lostwarn", "Lost atoms: original 108 current 102"),
        ("quit", "the script ended with 'quit 3'"),
        ("balance", ""),
    ],
)  # fmt: skip
def test_the_message_is_lammps_without_the_source_location(name: str, words: str) -> None:
    assert read(LOGS / f"log.{name}").message == words


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (signal.SIGKILL, "killed", "SIGKILL"),
        (exited(137), "killed", "SIGKILL"),
        (exited(143), "killed", "SIGTERM"),
        (exited(245), "killed", "SIGSEGV"),
        (exited(9), "killed", "SIGKILL"),
        (exited(1), "error", "the job's own output"),
        (exited(2), "error", "exited with 2"),
        (0, "unknown", "disk full"),
        (None, "killed", "truncated"),
    ],
)
def test_the_status_decides_for_a_truncated_log(status: int | None, kind: str, words: str) -> None:
    found = read(LOGS / "log.full", status)
    assert found.kind == kind
    assert words in found.message
    assert found.step == 760


def test_an_unfinished_job_is_running() -> None:
    assert read(LOGS / "log.killed", over=False).kind == "running"
    assert read(LOGS / "log.balance", over=False).kind == "completed"
    assert read(LOGS / "log.lost", over=False).kind == "lost-atoms"


def test_the_log_takes_precedence_over_the_status() -> None:
    found = read(LOGS / "log.balance", exited(139))
    assert found.kind == "completed"
    assert "SIGSEGV" in found.message
    assert read(LOGS / "log.timeout", 0).kind == "timed-out"
    assert read(LOGS / "log.halt-soft", 0).kind == "halted"


@pytest.mark.parametrize("word", ["nan", "-nan", "inf"])
@pytest.mark.parametrize("name", ["balance", "killed", "timeout"])
def test_thermo_that_is_not_finite_at_the_end_is_reported(
    tmp_path: Path, name: str, word: str
) -> None:
    text = (LOGS / f"log.{name}").read_text()
    row = re.findall(r"^ +\d+ +-?\d[^\n]*$", text, re.M)[-1]
    words = row.split()
    path = edited(tmp_path, name, (row, row.replace(words[1], word)))
    found = read(path, 0)
    assert found.kind == "nan"
    assert "Temp" in found.message
    assert found.step == read(LOGS / f"log.{name}").step


def test_a_users_column_counts_only_if_there_is_no_other(tmp_path: Path) -> None:
    # In log.nan, v_odd is always 0/0; the temperature is finite.
    assert read(LOGS / "log.nan").kind == "completed"
    assert read(edited(tmp_path, "nan", ("'Temp'", "'c_x'"))).kind == "nan"


def test_a_stop_followed_by_complete_runs_does_not_count(tmp_path: Path) -> None:
    # As with "error continue" and a second run that completes.
    first = (LOGS / "log.halt-soft").read_text().partition("Total wall time")[0]
    last = (LOGS / "log.balance").read_text()
    path = tmp_path / "log"
    path.write_text(first + last[last.index("Per MPI") :])
    assert read(path).kind == "completed"


def test_the_second_job_in_an_appended_log_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lost = (LOGS / "log.lost").read_bytes()
    well = (LOGS / "log.balance").read_bytes()
    path.write_bytes(lost + well)
    assert read(path).kind == "completed"
    path.write_bytes(well + lost)
    assert read(path).kind == "lost-atoms"
    path.write_bytes(well + well[:400])
    assert read(path).kind == "killed"


def test_run_upto_requests_the_remaining_steps(tmp_path: Path) -> None:
    path = edited(tmp_path, "continued", ("\nrun 30\n", "\nrun 60 upto\n"))
    assert read(path) == Outcome("completed", "", step=60, goal=60)
    path = edited(tmp_path, "continued", ("\nrun 30\n", "\nrun 90 upto # more\n"))
    assert read(path).kind == "halted"


def test_a_run_whose_command_is_not_in_the_log_has_no_goal(tmp_path: Path) -> None:
    # As after 'echo none': the last command in the log belongs to an earlier run.
    text = (LOGS / "log.balance").read_text()
    table = text[text.index("Per MPI rank") : text.index("Total wall time")]
    path = edited(tmp_path, "balance", ("Total wall time", table + "Total wall time"))
    assert read(path) == Outcome("completed", "", step=20)


def test_user_output_is_not_a_command(tmp_path: Path) -> None:
    path = edited(tmp_path, "balance", ("\nrun 20\n", "\nrun 20\nrun 500 of them\n"))
    assert read(path).goal == 20


def test_a_missing_file_another_file_and_binary_data_are_reported_as_such(tmp_path: Path) -> None:
    assert read(tmp_path / "none").kind == "unknown"
    assert "No such file" in read(tmp_path / "none").message
    assert read(tmp_path / "none", signal.SIGTERM).kind == "killed"
    assert read(tmp_path).kind == "unknown"
    os.mkfifo(tmp_path / "pipe")
    assert read(tmp_path / "pipe").kind == "unknown"
    (tmp_path / "empty").touch()
    assert read(tmp_path / "empty").kind == "killed"
    (tmp_path / "other").write_text("Step Temp\n1 2\n")
    assert read(tmp_path / "other", 0).kind == "unknown"


def test_a_missing_input_script_is_an_error_in_lammps_words(tmp_path: Path) -> None:
    said = "Cannot open input script in.melt: No such file or directory"
    path = tmp_path / "log.lammps"
    path.write_text(f"ERROR on proc 0: {said} (src/src/lammps.cpp:565)\n")
    found = read(path, exited(1))
    assert (found.kind, found.message, found.step) == ("error", said, None)
    path.write_text("ERRORS of other programs\n")
    assert read(path, exited(1)).kind == "unknown"


@pytest.mark.parametrize("name", ["balance", "styles", "noecho", "killed", "timeout", "lost"])
def test_only_the_relevant_parts_of_a_long_log_are_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (LOGS / f"log.{name}").read_text()
    expected = read(LOGS / f"log.{name}")
    monkeypatch.setattr(programs, "_HEAD", 1500)
    monkeypatch.setattr(programs, "_END", 1700)
    monkeypatch.setattr(programs, "_PIECE", 500)
    monkeypatch.setattr(outcome, "_BEFORE", 1500)
    assert read(LOGS / f"log.{name}") == expected
    # The same with a much longer table.
    if name in ("killed", "balance", "timeout"):
        row = re.findall(r"^ +\d+ +-?\d[^\n]*\n", text, re.M)[0]
        rows = "".join(f"{n / 1e9:10.0f}" + row[10:] for n in range(500))
        path = edited(tmp_path, name, (row, row + rows))
        assert read(path) == expected


def test_a_log_of_a_hundred_megabytes_is_read_quickly(tmp_path: Path) -> None:
    text = (LOGS / "log.killed").read_bytes()
    row = re.findall(rb"^ +\d+ +-?\d[^\n]*\n", text, re.M)[-1]
    path = tmp_path / "log"
    block = b"".join(b"%10d" % n + row[10:] for n in range(35001, 45001))
    with path.open("wb") as file:
        file.write(text[: text.rindex(b"\n") + 1])
        for _ in range(110):
            file.write(block)
    assert path.stat().st_size > 90_000_000
    began = time.process_time()
    found = read(path)
    assert time.process_time() - began < 3
    assert (found.kind, found.step, found.goal) == ("killed", 45000, 100000000)


ALL = b"".join(path.read_bytes() for path in sorted(LOGS.glob("log.*")))
LINES = ALL.splitlines(keepends=True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=40)), max_size=40),
    st.sampled_from([None, 0, 9, exited(1), exited(255), 1 << 20]),
    st.booleans(),
)
def test_any_log_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], status: int | None, over: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.log"
    path.write_bytes(b"".join(lines))
    found = read(path, status, over=over)
    assert found.kind in {*LAMMPS.kinds, "running", "unknown"}
    assert "\n" not in found.message


def test_a_truncated_log_is_never_complete(tmp_path: Path) -> None:
    data = (LOGS / "log.balance").read_bytes()
    path = tmp_path / "log"
    for cut in range(0, data.index(b"Total wall time: 0:00:0") + 20, 7):
        path.write_bytes(data[:cut])
        assert read(path).kind in ("killed", "unknown"), cut
