"""Tests of Grid Engine's replies about single jobs: qacct, and 'qstat -j'."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence

import pytest
from ensemble_batch import CannotTake
from ensemble_gridengine.executor import GridEngineExecutor, _queue_job

RECORD = """==============================================================
qname        all.q
jobname      ens_1_2_1
jobnumber    7
taskid       undefined
failed       100 : assumedly after job
exit_status  137                  (Killed)
maxvmem      1.200G
category     -u me -l h_vmem=1G
"""


def replying(accounted: str, code: int, said: str) -> GridEngineExecutor:
    executor = GridEngineExecutor()

    def command(words: Sequence[str], given: bytes = b"") -> tuple[int, str, str]:
        if words[0] == "qacct":
            return (0, accounted, "") if accounted else (1, "", "error: job id 7 not found")
        return code, said if code == 0 else "", said if code else ""

    executor.command = command  # type: ignore[method-assign,assignment]
    return executor


def test_jobs_are_listed_for_the_user_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "another")
    executor = GridEngineExecutor()
    asked: list[Sequence[str]] = []

    def command(words: Sequence[str], given: bytes = b"") -> tuple[int, str, str]:
        asked.append(words)
        return 0, "<job_info/>", ""

    executor.command = command  # type: ignore[method-assign,assignment]
    assert list(executor.ask([])) == []
    assert asked[0][-1] == pwd.getpwuid(os.getuid()).pw_name


def test_a_job_killed_above_its_h_vmem_ran_out_of_memory() -> None:
    (job,) = replying(RECORD, 1, "").account(["7"])
    assert (job.exception, job.status) == ("out-of-memory", 9)
    assert "1.200G" in job.note
    (job,) = replying(RECORD.replace("1.200G", "0.5G"), 1, "").account(["7"])
    assert job.exception is None
    assert "assumedly after job" in job.note


def test_a_job_deleted_before_its_script_could_catch_the_notice_was_cancelled() -> None:
    """Its shell dies from the notice of ``qsub -notify`` (SIGUSR2)."""
    record = RECORD.replace("137 ", "140 ").replace("1.200G", "0.5G")
    (job,) = replying(record, 1, "").account(["7"])
    assert job.exception == "cancel"
    (job,) = replying(record.replace("0.5G", "1.2G"), 1, "").account(["7"])
    assert job.exception == "out-of-memory"


def test_a_run_that_was_cut_off_for_another_is_no_end() -> None:
    cut = RECORD.replace("100 : assumedly after job", "25  : rescheduling")
    still = "job_number:      7\nusage         1:      cpu=00:00:01\n"
    assert [job.state for job in replying(cut, 0, still).account(["7"])] == ["running"]
    assert [job.state for job in replying(cut + RECORD, 0, "").account(["7"])] == ["over"]


@pytest.mark.parametrize(
    ("requests", "exception"),
    [("h_vmem=2G", "out-of-memory"), ("h_rt=900", "timeout"), ("h_rt=9,h_vmem=2G", "timeout")],
)
def test_a_limit_that_grid_engine_enforced_is_named_although_no_figure_shows_it(
    requests: str, exception: str
) -> None:
    enforced = "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit"
    record = RECORD.replace("100 : assumedly after job", enforced).replace("h_vmem=1G", requests)
    (job,) = replying(record, 1, "").account(["7"])
    assert job.exception == exception
    assert "enforced" in job.note


@pytest.mark.parametrize(
    ("code", "said", "state", "of_array", "of_array_unlisted"),
    [
        (1, "Following jobs do not exist: \n7", *["unknown"] * 3),
        (0, "job_number:      7\nusage         1:      cpu=00:00:01\n", *["running"] * 3),
        (0, "job_number:      7\n", "waiting", "absent", None),
        (1, "error: weird", *[None] * 3),
    ],
)
def test_a_job_without_a_record_is_unknown_only_if_qmaster_says_so(
    code: int, said: str, state: str | None, of_array: str | None, of_array_unlisted: str | None
) -> None:
    """A waiting job was cancelled if ``qstat`` listed nothing for some time."""
    executor = replying("", code, said)
    executor._newest = lambda: 7  # type: ignore[method-assign]

    def states(id_: str) -> list[str | None]:
        return [job.state for job in executor.account([id_])] or [None]

    assert states("7") == [state]
    assert states("7.1") == [of_array_unlisted]
    executor._listed = True
    assert states("7.1") == [of_array]


@pytest.mark.parametrize(("started", "deleted"), [(99.0, True), (101.0, False)])
def test_a_job_is_only_deleted_if_qmaster_has_been_running_since_it_had_the_job(
    monkeypatch: pytest.MonkeyPatch, started: float, deleted: bool
) -> None:
    """The commands that ask may take seconds on a busy machine."""
    now = [200.0]
    monkeypatch.setattr("ensemble_gridengine.executor.time.monotonic", lambda: now[0])
    monkeypatch.setenv("SGE_QMASTER_PORT", "6444")
    executor = GridEngineExecutor()
    executor._seen["7"] = 100.0

    def command(words: Sequence[str], given: bytes = b"") -> tuple[int, str, str]:
        now[0] += 5.0
        if words[0] == "qping":
            return 0, f"run time [s]:             {int(now[0] - started)}\n", ""
        if words[0] == "qconf":
            return 0, "master.site\n", ""
        return (0, "", "") if "-u" in words else (1, "", "Following jobs do not exist: \n7")

    executor.command = command  # type: ignore[method-assign,assignment]
    (job,) = executor.account(["7"])
    assert (job.exception == "cancel") is deleted


def test_an_unreachable_qmaster_does_not_make_a_job_unknown() -> None:
    with pytest.raises(CannotTake):
        list(replying("", 1, "error: unable to contact qmaster").account(["7"]))


@pytest.mark.parametrize(
    ("letters", "state", "restarts"),
    [("r", "running", 0), ("qw", "waiting", 0), ("hqw", "held", 0), ("s", "suspended", 0),
     ("S", "suspended", 0), ("T", "suspended", 0), ("Rr", "running", 1), ("Rq", "waiting", 1),
     ("Rqw", "waiting", 1), ("t", "running", 0), ("dr", "running", 0), ("Rs", "suspended", 1)],
)  # fmt: skip
def test_letters_of_a_state(letters: str, state: str, restarts: int) -> None:
    job = _queue_job("7", letters, "")
    assert (job.state, job.restarts) == (state, restarts)
