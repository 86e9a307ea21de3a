"""Input files of jobs: what ``--reuse`` compares, by the ways in which a study names its files."""

from __future__ import annotations

import os
import random
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ensemble_core.model.job_group import JobGroup
from ensemble_core.runtime import input_files
from ensemble_core.runtime.input_files import Inputs, unknown, words_of_script


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
        ("x", "+conf=job.dat"),
        ("x", "other+job.dat"),
        ("x", '--files=["job.dat","b"]'),
        ("x", '{{"conf":"job.dat"}}'),
        ("x", '{{"conf": "job.dat", "n": 1}}'),
        ("x", "[job.dat,b]"),
        ("x", "'job.dat'"),
        ("x", "job.dat#part"),
        ("x", "file://{here}/job.dat?mode=r"),
        ("x", "job.dat[0]"),
        ("x", f"--x={','.join(map(str, range(40)))},job.dat"),
        ("sh", "-c", "x `cat job.dat`"),
        ("sh", "-c", 'x "$(<job.dat)"'),
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


def test_words_of_a_script_are_those_of_the_shell() -> None:
    choose = random.Random(1)
    for _ in range(20_000):
        text = "".join(choose.choices("ab1.-/ \t\n'\"\\();<>|&={}#$\u00e9\u00a0\x0b", k=12))
        lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = list(lexer)
        except ValueError:  # an open quotation
            words = text.replace("'", " ").replace('"', " ").split()
        assert words_of_script(text) == words, text


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
        for name in ("absent", "no*", "no/**", "pipe", "folder", "nul\0")
    }
    assert states == {
        "absent": ("absent", "missing"),
        "no*": ("no*", "missing"),
        "no/**": ("no/**", "missing"),
        "pipe": ("pipe", "neither a file nor a folder"),
        "folder": ("folder", "neither a file nor a folder"),
        "nul\0": ("nul\0", "cannot be read"),
    }


def test_file_that_keeps_changing_while_it_is_read_equals_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "log")
    digest = input_files._digest

    def slow(parts: object) -> str:
        with path.open("a") as file:
            file.write("more")
        return digest(parts)  # type: ignore[arg-type]

    monkeypatch.setattr(input_files, "_digest", slow)
    found = files(tmp_path, inputs=(("log", "content"),))
    assert unknown(found) == ("log", "changed while it was read")


@pytest.mark.parametrize("pattern", ["data/**", "data/*", "data/**/*", "d*/*", "data/.*", "*"])
def test_patterns_match_hidden_files(tmp_path: Path, pattern: str) -> None:
    write(tmp_path / "data/in")
    write(tmp_path / "data/.params", "before")
    before = files(tmp_path, inputs=((pattern, "content"),))
    write(tmp_path / "data/.params", "after")
    after = files(tmp_path, inputs=((pattern, "content"),))
    assert before.keys() == after.keys()
    assert before != after


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("**/in", ["in", "a/in", "a/b/in"]),
        ("a/**/in", ["in", "b/in"]),
        ("**", ["a/b/in", "a/b/out", "a/in", "in"]),
        ("**/**/*", ["a/b/in", "a/b/out", "a/in", "in"]),
        ("**/b/*", ["a/b/in", "a/b/out"]),
        ("a/[b-z]/o?t", ["b/out"]),
        ("a/**/[!ic]*", ["b", "b/out"]),
    ],
)
def test_pattern_matches_at_each_depth(tmp_path: Path, pattern: str, matches: list[str]) -> None:
    for name in ("in", "a/in", "a/b/in", "a/b/out"):
        write(tmp_path / name)
    (tmp_path / "a/circle").symlink_to(".")
    found = files(tmp_path, inputs=((pattern, "content"),))
    shown = [os.path.normpath(name.partition(": ")[2]) for name in found]
    assert shown == [os.path.normpath(name) for name in matches]


def test_pattern_with_a_folder_that_cannot_be_read_equals_nothing(tmp_path: Path) -> None:
    write(tmp_path / "data/in")
    (tmp_path / "data/loop").symlink_to("loop")
    found = files(tmp_path, inputs=(("data/**", "content"),))
    assert unknown(found) == ("data/**", "cannot be read")


def test_many_matches_have_one_digest(tmp_path: Path) -> None:
    for number in range(101):
        write(tmp_path / f"data/{number}.dat")
    seen = [files(tmp_path, inputs=(("data/*.dat", "content"),))]
    write(tmp_path / "data/7.dat", "changed")
    seen.append(files(tmp_path, inputs=(("data/*.dat", "content"),)))
    (tmp_path / "data/8.dat").rename(tmp_path / "data/new.dat")
    seen.append(files(tmp_path, inputs=(("data/*.dat", "content"),)))
    states = [found["data/*.dat"] for found in seen]
    assert len(set(states)) == 3
    assert all(state.startswith("101 files ") for state in states)


def test_unchanged_files_are_read_once_for_all_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        write(tmp_path / f"conf/{number}.dat")
    group = JobGroup(name="g", command=("x",), inputs=(("conf/*", "content"),), cwd=str(tmp_path))
    read = count_reads(monkeypatch)
    later(monkeypatch, 10)
    inputs = Inputs()
    for _ in range(3):
        assert len(inputs.of(group.job(0, {}), group, {})) == 20
    assert len(read) == 20


def test_digest_of_a_file_that_has_just_changed_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second change within the same tick of the file system leaves no trace in size and times.
    path = write(tmp_path / "in")
    group = JobGroup(name="g", command=("x",), inputs=(("in", "content"),), cwd=str(tmp_path))
    read = count_reads(monkeypatch)
    inputs = Inputs()
    then = path.stat().st_ctime - time.time()
    later(monkeypatch, then + 0.5)
    for _ in range(2):
        inputs.of(group.job(0, {}), group, {})
    assert len(read) == 2
    later(monkeypatch, then + 60)
    for _ in range(2):
        inputs.of(group.job(0, {}), group, {})
    assert len(read) == 3


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each read of a file will add."""
    digest, read = input_files._digest, list[str]()

    def noted(parts: Iterable[bytes]) -> str:
        read.append(digest(parts))
        return read[-1]

    monkeypatch.setattr(input_files, "_digest", noted)
    return read


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the module's clock show a time that is ``seconds`` from now."""
    then = time.time() + seconds
    monkeypatch.setattr(input_files, "time", SimpleNamespace(time=lambda: then))
