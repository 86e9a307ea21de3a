"""Tests of reports in files: many files, and outdated listings of a network file system."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ensemble_batch import network_reports
from ensemble_batch.claims_and_file_reports import ClaimFolder
from ensemble_batch.job_script import job_variables
from ensemble_batch.network_reports import ReportFolder

from ensemble_core import Job


@pytest.fixture
def _lagging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache folder listings like an NFS client: until this process changes the folder."""
    listings: dict[str, list[str]] = {}
    listdir = os.listdir

    def cached(path: str) -> list[str]:
        if path not in listings:
            listings[path] = listdir(path)
        return list(listings[path])

    def forgetting(change: Callable[..., None]) -> Callable[..., None]:
        def changed(path: str, *rest: str) -> None:
            change(path, *rest)
            listings.pop(path, None)
            listings.pop(os.path.dirname(path), None)

        return changed

    monkeypatch.setattr(os, "listdir", cached)
    for name in ("utime", "rename", "unlink"):
        monkeypatch.setattr(os, name, forgetting(getattr(os, name)))


@pytest.mark.usefixtures("_lagging")
def test_claims_and_ends_on_nfs_are_seen_at_once(tmp_path: Path) -> None:
    spool = ClaimFolder(str(tmp_path / "spool"), {})
    assert spool.names() == []
    for name, text in (("a.0@k", "5.0 n1 7"), ("a.0@k.end", "0 - 5.0 6.0 n1")):
        Path(spool.folder, "reports", name).write_text(f"{text}\n")
        assert name in spool.names()


def test_variables_of_a_job_around_the_run_do_not_replace_those_of_its_jobs(tmp_path: Path) -> None:
    job = Job(id="a.0", group="a", index=0, command=("x",))
    outer = dict.fromkeys(job_variables(job, "run"), "7")
    spool = ClaimFolder(str(tmp_path / "spool"), {**outer, "OTHER": "7"})
    spool.batch("k", b"", [job.id])
    found = Path(spool.folder, "variables", "a.0@k").read_text()
    assert found == "export OTHER='7'\n"


def test_variables_of_a_job_whose_batch_is_unknown_are_kept(tmp_path: Path) -> None:
    """After the loss of all records, a resume finds the job only in the queue."""
    spool = ClaimFolder(str(tmp_path / "spool"), {})
    spool.batch("k", b"", ["a.0", "a.1", "a.2"])
    spool.drop_variables({"a.0", "a.1@k"})
    assert sorted(os.listdir(tmp_path / "spool" / "variables")) == ["a.0@k", "a.1@k"]


@pytest.mark.usefixtures("_lagging")
def test_reports_on_nfs_are_read_at_once(tmp_path: Path) -> None:
    spool = ReportFolder(str(tmp_path / "spool"))
    assert list(spool.reports()) == []
    for line in ("start", "end"):
        with Path(spool.folder, "reports", "sim.0.7").open("a") as file:
            file.write(f"{line}\n")
        assert list(spool.reports()) == [line.encode()]


def test_thousands_of_files_are_read_once_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = ReportFolder(str(tmp_path / "spool"))
    folder = Path(spool.folder, "reports")
    for number in range(2_000):
        (folder / f"sim.{number}.7").write_bytes(b"%d\n" % number)
    assert sorted(map(int, spool.reports())) == list(range(2_000))
    monkeypatch.setattr(network_reports, "_WHILE", 0.0)
    assert list(spool.reports()) == []
    assert list(folder.iterdir()) == []
