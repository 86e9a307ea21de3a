"""Input files of jobs: what ``--reuse`` compares, by the ways in which a study names its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ensemble_core.model.jobs import JobGroup
from ensemble_core.runtime.input_files import Inputs, unknown


def files(folder: Path, command: str | tuple[str, ...] = "x", **fields: object) -> dict[str, str]:
    words = tuple(command.split()) if isinstance(command, str) else command
    group = JobGroup(name="g", command=words, cwd=str(folder), here=str(folder), **fields)  # type: ignore[arg-type]
    values = {name: column[0] for name, column in group.parameters.items()}
    return Inputs().of(group.job(0, values), group, {})


def write(path: Path, text: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "job.dat"),
        ("python", "-u", "job.dat"),
        ("./job.dat",),
        ("x", "--conf=./job.dat"),
        ("x", "--conf=job.dat"),
        ("x", "key=--set=job.dat"),
        ("x", "--files=other,job.dat"),
        ("x", "file:job.dat"),
        ("x", "@job.dat"),
        ("x", "-ijob.dat"),
        ("x", "-i./job.dat"),
        ("sh", "-c", "python job.dat"),
        ("sh", "-c", "cat<job.dat"),
        ("bash", "-lc", "module load x; srun ./job.dat -n 2"),
        ("sh", "-c", 'x "job.dat" && y'),
        ("sh", "-c", "x \njob.dat\n"),
        ("sh", "-c", "x 'job.dat"),  # an open quotation
        ("x", "{name}.dat"),
        ("x", "--conf={here}/{name}.dat"),
        ("sh", "-c", "x {here}/job.dat > {run}/out"),
    ],
    ids=str,
)
def test_file_that_a_command_names_is_compared(tmp_path: Path, command: tuple[str, ...]) -> None:
    write(tmp_path / "job.dat", "before")
    before = files(tmp_path, command, parameters={"name": ("job",)})
    write(tmp_path / "job.dat", "after")
    after = files(tmp_path, command, parameters={"name": ("job",)})
    assert before.keys() == after.keys()
    assert before != after


@pytest.mark.parametrize(
    "name", ["my file.dat", "data(1).csv", "lr=0.1/c.yaml", "a,b/x.dat", "x;y"]
)
@pytest.mark.parametrize("word", ["{name}", "--conf={name}", "-i{name}"])
def test_file_whose_name_has_signs_is_compared(tmp_path: Path, name: str, word: str) -> None:
    given = {"parameters": {"name": (name,)}, "environment": {"CONF": "{name}"}}
    write(tmp_path / name, "before")
    before = files(tmp_path, ("sim", word), **given)
    write(tmp_path / name, "after")
    after = files(tmp_path, ("sim", word), **given)
    assert before.keys() == after.keys()
    assert not set(before.items()) & set(after.items())
    assert len(before) >= 1


def test_file_that_a_variable_names_is_compared(tmp_path: Path) -> None:
    write(tmp_path / "job.conf", "before")
    before = files(tmp_path, environment={"CONF": "{here}/job.conf"})
    write(tmp_path / "job.conf", "after")
    assert before != files(tmp_path, environment={"CONF": "{here}/job.conf"})


@pytest.mark.parametrize(
    "command",
    [("sh", "-c", "x > job.dat"), ("x", "{run}/job.dat"), ("job.dat",), ("x", "."), ("x", "no")],
    ids=str,
)
def test_output_program_on_the_path_and_folder_of_a_command_are_not_compared(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    write(tmp_path / "job.dat")
    write(tmp_path / "{run}" / "job.dat")
    assert files(tmp_path, command) == {}


def test_matches_of_a_pattern_with_equal_file_names_are_all_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "conf" / name / "in.dat", name)
    inputs = (("{here}/conf/*/in.dat", "content"),)
    before = files(tmp_path, inputs=inputs)
    assert list(before) == ["{here}/conf/*/in.dat: a/in.dat", "{here}/conf/*/in.dat: b/in.dat"]
    write(tmp_path / "conf/a/in.dat", "changed")
    assert before != files(tmp_path, inputs=inputs)


@pytest.mark.parametrize("name", ["a[1]", "a*", "what?", "[", "[!a]"])
def test_signs_of_patterns_in_folders_and_values_are_plain_text(tmp_path: Path, name: str) -> None:
    study = tmp_path / name
    write(study / f"{name}.dat", "before")
    for template in ("{here}/*.dat", "{here}/{case}.dat", "{here}/{case}.d*", "{case}.dat"):
        write(study / f"{name}.dat", "before")
        given = {"inputs": ((template, "content"),), "parameters": {"case": (name,)}}
        before = files(study, **given)
        assert unknown(before) is None, before
        write(study / f"{name}.dat", "after")
        assert before != files(study, **given), template


@pytest.mark.parametrize("by", ["content", "mtime"])
def test_folder_is_compared_with_all_files_below_it(tmp_path: Path, by: str) -> None:
    write(tmp_path / "case/system/controlDict")
    write(tmp_path / "outside/mesh")
    (tmp_path / "case/link").symlink_to("../outside")
    (tmp_path / "case/circle").symlink_to(".")
    (tmp_path / "case/broken").symlink_to("nowhere")
    inputs = (("{here}/case", by),)
    seen = [files(tmp_path, inputs=inputs)]
    assert unknown(seen[0]) is None
    assert seen == [files(tmp_path, inputs=inputs)]
    write(tmp_path / "case/system/controlDict", "changed text")
    seen.append(files(tmp_path, inputs=inputs))
    write(tmp_path / "outside/mesh", "changed text")
    seen.append(files(tmp_path, inputs=inputs))
    write(tmp_path / "case/new")
    seen.append(files(tmp_path, inputs=inputs))
    (tmp_path / "case/broken").unlink()
    seen.append(files(tmp_path, inputs=inputs))
    (tmp_path / "case/new").rename(tmp_path / "case/renamed")
    seen.append(files(tmp_path, inputs=inputs))
    assert len({state["{here}/case"] for state in seen}) == len(seen)


def test_folders_that_a_pattern_matches_are_compared(tmp_path: Path) -> None:
    write(tmp_path / "cases/a/deep/in", "1")
    for pattern in ("{here}/cases/*", "{here}/cases/**", "{here}/ca*s"):
        before = files(tmp_path, inputs=((pattern, "content"),))
        write(tmp_path / "cases/a/deep/in", "2")
        after = files(tmp_path, inputs=((pattern, "content"),))
        assert unknown(before) is None
        assert before != after
        write(tmp_path / "cases/a/deep/in", "1")


def test_input_without_known_content_equals_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder/pipe")
    states = {
        name: unknown(files(tmp_path, inputs=((name, "content"),)))
        for name in ("absent", "no*", "pipe", "folder", "nul\0")
    }
    assert states == {
        "absent": ("absent", "missing"),
        "no*": ("no*", "missing"),
        "pipe": ("pipe", "neither a file nor a folder"),
        "folder": ("folder", "neither a file nor a folder"),
        "nul\0": ("nul\0", "cannot be read"),
    }


def test_file_that_keeps_changing_while_it_is_read_equals_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ensemble_core.runtime import input_files

    path = write(tmp_path / "log")
    digest = input_files._digest

    def slow(parts: object) -> str:
        with path.open("a") as file:
            file.write("more")
        return digest(parts)  # type: ignore[arg-type]

    monkeypatch.setattr(input_files, "_digest", slow)
    found = files(tmp_path, inputs=(("log", "content"),))
    assert unknown(found) == ("log", "changed while it was read")


def test_unchanged_files_are_read_once_for_all_jobs(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"conf/{number}.dat")
    group = JobGroup(name="g", command=("x",), inputs=(("conf/*", "content"),), cwd=str(tmp_path))
    inputs, read = Inputs(), []
    content = inputs._content

    def noted(path: str, status: os.stat_result) -> str:
        size = len(inputs._known)
        found = content(path, status)
        read.append(len(inputs._known) - size)
        return found

    inputs._content = noted  # type: ignore[method-assign]
    for _ in range(3):
        assert len(inputs.of(group.job(0, {}), group, {})) == 20
    assert sum(read) == 20
