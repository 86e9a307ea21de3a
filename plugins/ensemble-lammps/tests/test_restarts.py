"""Tests of restart files, complete or damaged by a kill, a full disk or another job."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ensemble_lammps import restarts
from ensemble_lammps.restarts import MAGIC, IncompleteRestart, Restart, read

BIN = Path(sys.executable).parent
PATH = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
needs_lammps = pytest.mark.skipif(
    not shutil.which("lmp", path=PATH), reason="LAMMPS (lmp) is not installed"
)

SCRIPT = """
units lj
lattice fcc 0.8442
region box block 0 3 0 3 0 3
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
restart 20 melt.restart
run 100
restart 20 turn.1 turn.2
run 60
restart 0
shell mkdir deep
restart 50 deep/melt.*.bin
run 40
restart 0
write_restart base.%.base
write_restart final
"""


def restart(
    step: int, *, order: str = "<", bigint: int = 8, revision: int = 3, parts: int | None = None
) -> bytes:
    """Return the bytes of a restart file: the values that are read, and filler."""
    version = b"22 Jul 2025\0"
    file = MAGIC + struct.pack(f"{order}2i", 1, revision)
    file += struct.pack(f"{order}2i", 0, len(version)) + version
    file += struct.pack(f"{order}8i", 1, 4, 48, 4, 2, 4, 3, bigint)
    file += struct.pack(f"{order}2i", 4, 3) + b"lj\0"
    file += struct.pack(f"{order}i{'q' if bigint == 8 else 'i'}", 5, step)
    file += b"atoms" * 40
    if parts is not None:
        file += struct.pack(f"{order}3i", 44, parts, -1)
    return file + MAGIC


class Found(NamedTuple):
    newest: Restart | None
    passed: tuple[tuple[str, str], ...]


def find(folder: str, *patterns: Any, **options: Any) -> Found:
    found = restarts.find(folder, *patterns, **options)
    return Found(None if found.newest is None else read(found.newest), found.passed)


def write(path: Path, data: bytes, *, time: float = 1000.0) -> Path:
    path.write_bytes(data)
    os.utime(path, (time, time))
    return path


@pytest.fixture(scope="module")
def melt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("melt")
    (folder / "in.melt").write_text(SCRIPT)
    subprocess.run(
        ["lmp", "-in", "in.melt", "-screen", "none"],
        cwd=folder,
        env={**os.environ, "PATH": PATH},
        check=True,
        timeout=150,
    )
    return folder


@needs_lammps
def test_the_newest_file_of_lammps_is_found(melt: Path) -> None:
    def newest(*patterns: str) -> tuple[str, int]:
        found = find(str(melt), patterns)
        assert found.newest is not None
        assert found.passed == ()
        return os.path.relpath(found.newest.path, melt), found.newest.step

    assert newest("melt.restart.*") == ("melt.restart.160", 160)
    assert newest("turn.*") == ("turn.1", 160)
    assert newest("deep/*") == ("deep/melt.200.bin", 200)
    assert newest("base.%.base") == ("base.%.base", 200)
    assert newest("*.base") == ("base.%.base", 200)
    assert newest() == ("final", 200)
    assert newest("melt.*", "turn.?") == ("turn.1", 160)


@needs_lammps
def test_lammps_continues_from_the_found_file(melt: Path) -> None:
    (melt / "in.on").write_text(
        "variable restart index none\nread_restart ${restart}\nfix 1 all nve\nrun 10\n"
    )
    for pattern in ("turn.*", "base.*", "final"):
        found = find(str(melt), [pattern]).newest
        assert found is not None
        done = subprocess.run(
            ["lmp", "-in", "in.on", "-var", "restart", found.path, "-log", "none"],
            cwd=melt,
            env={**os.environ, "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stdout
        assert f"Current step  : {found.step}" in done.stdout


@needs_lammps
def test_a_file_truncated_anywhere_is_skipped(melt: Path, tmp_path: Path) -> None:
    whole = (melt / "final").read_bytes()
    write(tmp_path / "melt.100", restart(100))
    for size in (17, 25, 60, 100, len(whole) // 2, len(whole) - 1):
        write(tmp_path / "melt.200", whole[:size])
        found = find(str(tmp_path))
        assert found.newest is not None
        assert found.newest.step == 100
        assert found.passed == (
            (str(tmp_path / "melt.200"), "it is truncated, or still being written"),
        )


def test_the_step_is_read_from_the_file_not_its_name(tmp_path: Path) -> None:
    write(tmp_path / "turn.1", restart(600), time=1000)
    write(tmp_path / "turn.2", restart(500), time=900)
    newest = find(str(tmp_path)).newest
    assert newest is not None
    assert (newest.path, newest.step) == (str(tmp_path / "turn.1"), 600)


def test_of_two_files_with_the_same_step_the_later_is_newer(tmp_path: Path) -> None:
    write(tmp_path / "b", restart(600), time=1000)
    write(tmp_path / "a", restart(600), time=2000)
    newest = find(str(tmp_path)).newest
    assert newest is not None
    assert newest.path == str(tmp_path / "a")


def test_time_can_decide_if_a_script_resets_the_step(tmp_path: Path) -> None:
    write(tmp_path / "equilibrated", restart(100_000), time=1000)
    write(tmp_path / "production.500", restart(500), time=2000)
    by_step, by_time = find(str(tmp_path)), find(str(tmp_path), newest="time")
    assert by_step.newest is not None
    assert by_time.newest is not None
    assert (by_step.newest.step, by_time.newest.step) == (100_000, 500)


def test_files_of_an_earlier_run_are_skipped_except_the_jobs_own_start(
    tmp_path: Path,
) -> None:
    old = write(tmp_path / "old.900", restart(900), time=1000)
    found = find(str(tmp_path), begun=2000)
    assert found.newest is None
    assert found.passed == ((str(old), "it is older than the job"),)
    newest = find(str(tmp_path), begun=2000, also=["old.900"]).newest
    assert newest is not None
    assert newest.step == 900
    write(tmp_path / "new.100", restart(100), time=2500)
    again = find(str(tmp_path), begun=2000)
    assert again.newest is not None
    assert again.newest.step == 100
    assert again.passed == ((str(old), "it is older than the job"),)


def test_a_retry_does_not_continue_from_a_file_of_the_attempt_that_failed_seconds_before(
    tmp_path: Path,
) -> None:
    write(tmp_path / "r.100", restart(100), time=1995)
    write(tmp_path / "r.20", restart(20), time=2001)
    found = find(str(tmp_path), begun=1999)
    assert found.newest is not None
    assert found.newest.step == 20
    assert found.passed == ((str(tmp_path / "r.100"), "it is older than the job"),)


def test_older_files_that_could_not_be_chosen_are_not_listed(tmp_path: Path) -> None:
    for step in range(100, 800, 100):
        write(tmp_path / f"chain.{step}", restart(step), time=1000 + step)
    write(tmp_path / "chain.800", restart(800), time=2500)
    found = find(str(tmp_path), begun=2000)
    assert found.newest is not None
    assert (found.newest.step, found.passed) == (800, ())


def test_other_files_folders_and_pipes_are_not_restart_files(tmp_path: Path) -> None:
    (tmp_path / "log.lammps").write_text("LAMMPS (22 Jul 2025)\n")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "other-job.900", restart(900))
    os.mkfifo(tmp_path / "pipe")
    for patterns in ((), ("*",)):
        found = find(str(tmp_path), patterns)
        assert (found.newest, found.passed) == (None, ())
    assert find(str(tmp_path / "gone")).newest is None


@pytest.mark.parametrize(("order", "bigint"), [("<", 8), (">", 8), ("<", 4), (">", 4)])
def test_files_of_other_machines_and_builds_are_read(
    tmp_path: Path, order: str, bigint: int
) -> None:
    path = write(tmp_path / "r", restart(123_456, order=order, bigint=bigint))
    assert read(str(path)).step == 123_456


def test_a_large_step_is_read(tmp_path: Path) -> None:
    assert read(str(write(tmp_path / "r", restart(10**12)))).step == 10**12


def test_an_uncheckable_file_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(IncompleteRestart, match="an old LAMMPS"):
        read(str(write(tmp_path / "r", restart(5, revision=0))))
    with pytest.raises(IncompleteRestart, match="it has no step at"):
        read(str(write(tmp_path / "r", restart(5).replace(struct.pack("<i", 5), b"\6\0\0\0"))))


def test_no_damage_raises_another_error(tmp_path: Path) -> None:
    source = random.Random(1)
    whole = restart(600, parts=2)
    path = tmp_path / "melt.base"
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(source.randint(1, 6)):
            data[source.randrange(16, len(data))] = source.choice([0, 1, 127, 255, 44])
        path.write_bytes(data[: source.choice([len(data), source.randrange(len(data))])])
        try:
            found = read(str(path))
        except IncompleteRestart:
            continue
        assert isinstance(found.step, int)


class TestSeveralFiles:
    def make(self, folder: Path, *, part_time: float = 1001.0) -> None:
        write(folder / "melt.base.5", restart(5, parts=2), time=1000)
        for number in range(2):
            write(folder / f"melt.{number}.5", b"atoms" * 20 + MAGIC, time=part_time)

    def test_they_count_as_one(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        found = find(str(tmp_path))
        assert found.newest is not None
        assert (found.newest.path, found.newest.step) == (str(tmp_path / "melt.%.5"), 5)
        assert read(str(tmp_path / "melt.%.5")) == found.newest

    def test_a_missing_or_truncated_part_spoils_them(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        write(tmp_path / "melt.1.5", b"atoms")
        assert find(str(tmp_path)).newest is None
        (tmp_path / "melt.1.5").unlink()
        found = find(str(tmp_path))
        assert found.newest is None
        assert "cannot read melt.1.5" in found.passed[0][1]

    def test_a_part_from_an_earlier_step_spoils_them(self, tmp_path: Path) -> None:
        # As if LAMMPS was killed after it rewrote the first file.
        self.make(tmp_path, part_time=400.0)
        found = find(str(tmp_path))
        assert found.newest is None
        assert "earlier step" in found.passed[0][1]
