"""Tests of output: destination, truncated files and removed files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ensemble_flux.job_output import Output, remove_empty, seen_by_all

from ensemble_core import Job


def job(number: int = 0, **fields: Any) -> Job:
    return Job(id=f"a.{number}", group="a", index=number, command=("a",), **fields)


def test_a_folder_is_seen_by_all_on_one_host_and_on_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_by_all("/any", ["n1", "n1.cluster"], "n1")
    monkeypatch.setattr("ensemble_flux.job_output.shared_storage", lambda path: None)
    assert not seen_by_all("/any", ["n1", "n2"], "n1")
    assert not seen_by_all("/any", ["n2"], "login")
    monkeypatch.setattr("ensemble_flux.job_output.shared_storage", lambda path: "nfs4")
    assert seen_by_all("/any", ["n1", "n2"], "login")


def test_unnamed_output_goes_to_the_runs_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    output = Output(str(folder), "files")
    option, stdout, kept = output.prepare(job(), str(tmp_path))
    assert stdout == str(folder / "a.0.out")
    assert kept == (str(folder / "a.0.out"), str(folder / "a.0.err"))
    assert option == {
        "mode": "append",
        "stdout": {"type": "file", "path": stdout},
        "stderr": {"type": "file", "path": str(folder / "a.0.err")},
    }
    assert folder.is_dir()


def test_output_of_an_earlier_run_is_not_this_runs(tmp_path: Path) -> None:
    old = tmp_path / "a.0.out"
    old.write_text("old")
    Output(str(tmp_path), "files").prepare(job(), str(tmp_path))
    assert not old.exists()


def test_flux_keeps_the_output_if_nodes_do_not_see_the_folder(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "run"), "kvs")
    option, stdout, kept = output.prepare(job(), str(tmp_path))
    assert (option["stdout"], option["stderr"]) == ({"type": "kvs"}, {"type": "kvs"})
    assert (stdout, kept) == (None, ())
    assert not (tmp_path / "run").exists()


def test_a_named_file_is_truncated_once_and_shared_after_that(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "run"), "files")
    shared = tmp_path / "work" / "logs" / "all.txt"
    shared.parent.mkdir(parents=True)
    shared.write_text("of yesterday")
    for number in range(2):
        sharing = job(number, stdout="logs/all.txt", workdir="work")
        option, stdout, kept = output.prepare(sharing, str(tmp_path / "work"))
        assert option["stdout"] == {"type": "file", "path": str(shared)}
        assert stdout == str(shared)
        assert str(shared) not in kept
        assert shared.read_text() == ("" if number == 0 else "of the first job")
        shared.write_text("of the first job")


def test_a_later_controller_truncates_no_file_of_its_run(tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "all.txt"
    log.write_text("of yesterday")
    sharing = job(stdout=str(log))
    Output(str(tmp_path / "run"), "files", state).prepare(sharing, str(tmp_path))
    assert log.read_text() == ""
    log.write_text("of the first job")
    Output(str(tmp_path / "run"), "files", state).prepare(sharing, str(tmp_path))
    assert log.read_text() == "of the first job"


def test_a_device_is_not_truncated_and_a_folder_is_an_error(tmp_path: Path) -> None:
    output = Output(str(tmp_path), "files")
    option, _, _ = output.prepare(job(stdout="/dev/null"), str(tmp_path))
    assert option["stdout"]["path"] == "/dev/null"
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"directory|exists"):
        output.prepare(job(workdir="file/inside"), str(tmp_path / "file" / "inside"))


def test_only_empty_files_are_removed(tmp_path: Path) -> None:
    empty, full = tmp_path / "e", tmp_path / "f"
    empty.write_text("")
    full.write_text("x")
    remove_empty([str(empty), str(full), str(tmp_path / "gone")])
    assert os.listdir(tmp_path) == ["f"]
