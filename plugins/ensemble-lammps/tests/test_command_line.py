"""Tests of changed LAMMPS command lines, checked with LAMMPS if it is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ensemble_lammps.command_line import (
    as_number,
    as_word,
    find_changes,
    log,
    parse_variables,
    script,
    with_changes,
)

from ensemble_core import EnsembleError, JobGroup

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
COMMAND = shlex.split("lmp -in in.melt -var T 1.5 -v seed 1 2 3 -log none")


def test_a_variable_of_the_command_is_replaced_in_place() -> None:
    assert with_changes(COMMAND, {"T": ["2"]}) == (
        shlex.split("lmp -in in.melt -var T 2 -v seed 1 2 3 -log none")
    )
    assert with_changes(COMMAND, {"seed": ["7"]}) == (
        shlex.split("lmp -in in.melt -var T 1.5 -var seed 7 -log none")
    )


def test_a_new_variable_is_added() -> None:
    assert with_changes(COMMAND, {"P": ["0"], "T": ["2"]})[-3:] == ["-var", "P", "0"]


def test_a_duplicate_variable_occurs_once_afterwards() -> None:
    command = shlex.split("lmp -var T 1 -in in.melt -var T 2")
    assert parse_variables(command) == {"T": ("1",)}
    assert with_changes(command, {"T": ["3"]}) == shlex.split("lmp -var T 3 -in in.melt")


def test_a_negative_number_is_a_value_not_an_option() -> None:
    assert parse_variables(shlex.split("lmp -var E -5.5e3 -in x")) == {"E": ("-5.5e3",)}
    assert with_changes(COMMAND, {"T": ["-1"]})[3:6] == ["-var", "T", "-1"]


def test_another_script_replaces_the_effective_one() -> None:
    assert script(with_changes(COMMAND, {}, "in.on")) == "in.on"
    assert with_changes(shlex.split("lmp -var T 1"), {}, "in.on")[-2:] == ["-in", "in.on"]
    assert script(shlex.split("lmp -i a -in b")) == "b"
    assert log(COMMAND) == "none"
    assert log(["lmp", "-in"]) is None


def test_a_command_in_a_shell_is_rejected() -> None:
    with pytest.raises(EnsembleError, match="LAMMPS would not see") as caught:
        with_changes(["bash", "-c", "lmp -in in.melt"], {"T": ["2"]})
    assert "parameters" in str(caught.value)
    assert with_changes(["bash", "-c", "lmp -in in.melt"], {}) == ["bash", "-c", "lmp -in in.melt"]


def test_launchers_and_their_options_stay_unchanged() -> None:
    command = shlex.split("srun -v -n 4 lmp -in in.melt")
    assert with_changes(command, {"T": ["2"]}) == [*command, "-var", "T", "2"]
    assert script(with_changes(shlex.split("mpiexec -n 2 lmp -in a"), {"T": ["2"]}, "b")) == "b"


def test_variables_set_for_one_job_alone_are_known() -> None:
    group = JobGroup(
        name="melt",
        command=tuple(
            shlex.split("lmp -in {here}/in -var T {T} -var out dump.{index} -var seed 1")
        ),
        parameters={"T": (1.0, 2.0)},
        here="/study",
    )
    job = list(group.jobs(3))[1]
    assert job.parameters["T"] == 2.0
    assert find_changes(job, group) == ({}, None)
    other = JobGroup(name="melt", command=(*job.command, "-var", "x", "{y}"), parameters={})
    assert find_changes(next(other.jobs(4)), group) == ({"x": ("{{y}}",), "T": ("2",)}, None)
    on = JobGroup(name="melt", command=("lmp", "-in", "in.on"))
    assert find_changes(next(on.jobs(4)), group) == ({}, "in.on")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.5 * 1.1, "1.65"), (4711.0, "4711"), (1e-7, "1e-07"), (3, "3"), (1e300, "1e+300")],
)
def test_numbers_are_written_without_rounding_noise(value: float, text: str) -> None:
    assert str(as_number(value)) == text


def test_braces_in_a_value_stay() -> None:
    (job,) = JobGroup(name="g", command=("lmp", as_word("a{index}b ${x} {}"))).jobs(0)
    assert job.command[1] == "a{index}b ${x} {}"


@pytest.mark.skipif(not shutil.which("lmp", path=PATH), reason="LAMMPS (lmp) is not installed")
@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("lmp -in in.q", "7"),
        ("lmp -in in.q -var q 1 -var q 2", "1"),
        ("lmp -v q 1 2 3 -i in.q", "1"),
        ("lmp -in in.q -var q -5.5", "-5.5"),
    ],
)
def test_lammps_sees_the_changes(tmp_path: Path, command: str, seen: str) -> None:
    (tmp_path / "in.q").write_text('variable q index 7\nprint "q=$q"\n')

    def run(words: list[str]) -> str:
        done = subprocess.run(
            [*words, "-log", "none"],
            cwd=tmp_path,
            env={**os.environ, "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=150,
        )
        return next(x for x in done.stdout.splitlines() if x.startswith("q="))[2:]

    words = shlex.split(command)
    assert run(words) == seen == parse_variables(words).get("q", ("7",))[0]
    assert run(with_changes(words, {"q": ["-4"]})) == "-4"
