"""Tests of parsing Slurm's output: recorded from Slurm 22.05, and in other releases' formats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from ensemble_batch import CannotTake, QueueJob
from ensemble_slurm.commands import Refusal, hint_for, refusal, words
from ensemble_slurm.executor import SlurmExecutor
from ensemble_slurm.job_states import STUCK, StepMessages, base_state, queue_job, wait_status
from ensemble_slurm.slurm_output import (
    SEPARATOR,
    Row,
    Site,
    read_config,
    read_jobs,
    read_nodes,
    read_sacct,
    read_squeue,
    unreadable,
)

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def rows() -> dict[tuple[str, int | None], Row]:
    return {(row.job, row.task): row for row in read_squeue(recorded("squeue-22.05.txt"))}


def test_jobs_of_a_queue_are_parsed_with_tasks_states_and_times() -> None:
    found = rows()
    assert len(found) == 8
    running = found["140", 2]
    assert (running.state, running.nodes, running.started) == ("RUNNING", "n2", 1795277392.0)
    assert running.comment == "ensemble melt 1f 1 run 0-2"
    assert running.ended is None
    held = found["141", None]
    assert (held.state, held.reason, held.nodes, held.started) == (
        "PENDING",
        "JobHeldUser",
        "",
        None,
    )
    assert [found["144", task].reason for task in (0, 1)] == ["Resources", "Resources"]


def test_failures_of_jobs_are_parsed() -> None:
    found = rows()
    assert (found["142", None].status, found["142", None].reason) == (3 << 8, "NonZeroExitCode")
    assert (found["143", None].status, found["143", None].nodes) == (9, "n3")


def test_a_name_with_a_similar_separator_is_harmless() -> None:
    assert rows()["142", None].name == "bad | name"


def test_lines_that_are_not_jobs_are_skipped() -> None:
    broken = recorded("squeue-22.05.txt")[:-1250]
    assert len(list(read_squeue(broken + "\nnonsense\n" + SEPARATOR * 12))) < 8
    het = f"12+0{SEPARATOR}" + SEPARATOR.join(["RUNNING"] * 12)
    assert list(read_squeue(het)) == []


def test_nodes_are_counted_by_their_state() -> None:
    assert read_nodes(recorded("sinfo-22.05.txt")) == {
        "nodes.up": 4, "nodes.free": 2, "cores.up": 8, "cores.free": 5, "gpus.up": 0, "gpus.free": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "up"),
    [("idle", 1), ("mixed", 1), ("allocated+", 1), ("idle~", 1), ("planned", 1),
     ("down", 0), ("down*", 0), ("idle*", 0), ("drained", 0), ("draining", 0), ("maint", 0),
     ("reserved", 0), ("mixed$", 0), ("idle^", 0), ("unknown", 0)],
)  # fmt: skip
def test_a_node_is_up_if_jobs_may_start_on_it(state: str, up: int) -> None:
    line = SEPARATOR.join(["n1", state, "1/3/0/4", "gpu:a100:2(S:0-1)", "gpu:a100:1(IDX:0)", ""])
    gauges = read_nodes(f"{line}\n{line}\n")  # once for each of two partitions
    assert (gauges["nodes.up"], gauges["cores.free"], gauges["gpus.up"]) == (up, 3 * up, 2 * up)
    assert gauges["gpus.free"] == up


def test_the_site_is_parsed_from_its_configuration() -> None:
    site = read_config(recorded("config-22.05.txt"))
    assert site.version == (22, 5, 8)
    assert site.controller == "127.0.0.1"
    assert (site.largest_array, site.most_jobs, site.least_age) == (1001, 10000, 300)
    assert (site.kill_wait, site.message_timeout) == (2, 10)
    assert not site.accounting


def test_missing_settings_get_slurms_defaults() -> None:
    site = read_config("SLURM_VERSION = 20.11.9\nSlurmctldHost[0] = head\nMaxArraySize = 1\n")
    assert (site.version, site.controller, site.largest_array) == ((20, 11, 9), "head", 1)
    few = "MaxArraySize = 1001\nSchedulerParameters = bf_max_job_test=5,max_array_tasks=40\n"
    assert read_config(few).largest_array == 40
    assert read_config("AccountingStorageType = accounting_storage/slurmdbd").accounting
    assert not read_config("AccountingStorageType = (null)").accounting
    requeue = "RequeueExit             = 99,120-122\nRequeueExitHold         = 98\n"
    assert read_config(requeue).restart_codes == {98, 99, 120, 121, 122}
    assert read_config("RequeueExit = (null)").restart_codes == frozenset()


def test_accounting_is_parsed_if_it_keeps_no_comments() -> None:
    found = {(row.job, row.task): row for row in read_sacct(recorded("sacct-22.05.txt"))}
    cancelled = found["369", None]
    assert (cancelled.state, cancelled.nodes, cancelled.name) == (
        "CANCELLED",
        "n2",
        "long.1@abcdef01",
    )
    assert [found["367", task].status for task in range(3)] == [3 << 8] * 3
    assert found["367", 0].comment == ""
    assert found["367", 0].ended == 1795279856.0


def test_accounting_is_parsed_with_and_without_comments() -> None:
    def line(*fields: str) -> str:
        return SEPARATOR.join(fields)

    text = "\n".join(
        [
            line("12_3", "CANCELLED by 1000", "0:15", "1795270000", "1795270010", "1795270020",
                 "n1", "sim.0-9@abcdef01", "ensemble t k 1 sim 0-9"),
            line("13", "COMPLETED", "0:0", "1795270000", "Unknown", "Unknown", "None assigned", "x", ""),
            line("13.batch", "COMPLETED", "0:0", "1", "1", "1", "n1", "batch", ""),
            line("14", "FAILED", "3:0", "1", "1", "1", "n1", "x", "", "sbatch --wait /run/ab.sh"),
        ]
    )  # fmt: skip
    first, second, third = read_sacct(text)
    assert (first.job, first.task, first.state, first.status) == ("12", 3, "CANCELLED", 15)
    assert (second.nodes, second.started, second.ended) == ("", None, None)
    assert (third.status, third.script) == (3 << 8, "sbatch --wait /run/ab.sh")


@pytest.mark.parametrize("old", [False, True], ids=["", "before 21.08"])
def test_accounting_without_comments_identifies_a_renamed_job_by_its_script(
    old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ["7", "FAILED", "3:0", "1", "1", "1", "n1", "another", ""]
    asked: list[bool] = []

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        if words[0] == "scontrol":
            return 1, "", "slurm_load_jobs error: Invalid job id specified"
        asked.append(any("SubmitLine" in word for word in words))
        if old and asked[-1]:
            return 1, "", 'sacct: fatal: Invalid field requested: "SubmitLine"'
        line = ["sbatch --chdir=/home/me /home/me/run/scripts/ab.sh"] if asked[-1] else []
        return 0, SEPARATOR.join(record + line) + "\n", ""

    executor = SlurmExecutor()
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    executor._site = Site(accounting=True)
    monkeypatch.setattr(executor, "command", command)
    for _ in range(2):
        (job,) = executor.account(["7"])
        assert (job.status, job.batch.rpartition("/")[2]) == (3 << 8, "another" if old else "ab.sh")
    assert asked == ([True, False, False] if old else [True, True])


@pytest.mark.parametrize("changed", [False, True], ids=["", "by the site"])
def test_a_batch_is_found_although_its_name_and_comment_were_changed(
    changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its submission got no reply: if it is not found, it is submitted again."""
    jobs = {
        "8": ("job-7", "project x", "/b/other.sh"),
        "9": ("job-9", "project x", "/b/0123456789.sh"),
    }
    if not changed:
        comment = "ensemble t bd94cc0001234567 ens_bd94cc00_0123456789_1 sim 0"
        jobs["9"] = ("sim.0@bd94cc00", comment, "/b/0123456789.sh")

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        assert words[0] == "squeue"
        with_script = any("Command:" in word for word in words)
        lines = [
            SEPARATOR.join(
                [id_, "PENDING", "None", "0", "0", "1", "", "", "", *rest[: 2 + with_script], ""]
            )
            for id_, rest in jobs.items()
        ]
        return 0, "\n".join(lines) + "\n", ""

    executor = SlurmExecutor()
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    monkeypatch.setattr(executor, "command", command)
    assert executor.find_batch("ens_bd94cc00_0123456789_1", 1) == ["9"]
    assert executor.find_batch("ens_bd94cc00_0123456789_1", 2) == ["9_0", "9_1"]
    assert executor.find_batch("ens_bd94cc00_abcdef6789_1", 1) is None


@pytest.mark.parametrize("comments", ["kept", "none", "changed"])
def test_a_batch_that_slurmctld_has_forgotten_is_found_in_accounting(
    comments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended, and no controller was active. If it is not found, its jobs run again."""
    name = "ens_bd94cc00_0123456789_1"
    comment = f"ensemble t bd94cc0001234567 {name} sim 0-1"
    comment = {"kept": comment, "none": "", "changed": "project x"}[comments]
    script = "sbatch --chdir=/home/me /home/me/a run/scripts/0123456789.sh"
    end = ["COMPLETED", "0:0", "1", "1", "1", "n1"]
    records = [
        ["8_0", *end, "job-8", "project x", "sbatch /home/me/other.sh"],
        *([f"9_{task}", *end, "job-9", comment, script] for task in range(2)),
        ["10", *end, "sim.7@bd94cc00", "", "sbatch /b/abcdef6789.sh"],
    ]
    asked: list[str] = []

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        asked.append(words[0])
        return 0, "\n".join(map(SEPARATOR.join, records)) + "\n", ""

    executor = SlurmExecutor()
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    monkeypatch.setattr(executor, "command", command)
    assert executor.find_ended_batch(name, 2, 600.0) is None
    assert not asked  # a site without accounting
    executor._site = Site(accounting=True)
    assert executor.find_ended_batch(name, 2, 600.0) == ["9_0", "9_1"]
    assert executor.find_ended_batch("ens_bd94cc00_fedcba9876_1", 1, 600.0) is None
    assert asked == ["sacct", "sacct"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_machine_without_sacct_has_no_accounting(
    exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that slurmctld no longer knows would otherwise be asked about forever."""

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        if words[:3] == ["scontrol", "show", "job"]:
            return 1, "", "slurm_load_jobs error: Invalid job id specified"
        if words[0] == "sacct":
            assert exists
            return 0, "", ""
        return 0, "AccountingStorageType = accounting_storage/slurmdbd\n", ""

    executor = SlurmExecutor()
    monkeypatch.setattr(executor, "command", command)
    monkeypatch.setattr("shutil.which", lambda name: name if exists or name != "sacct" else None)
    executor.connect()
    assert [job.state for job in executor.account(["7"])] == ["unknown"]


def test_exit_codes_of_all_releases_are_parsed() -> None:
    assert [wait_status(text) for text in ("0", "768", "3:0", "0:9", "N/A", "")] == [
        0,
        768,
        768,
        9,
        None,
        None,
    ]
    assert base_state("CANCELLED by 1000") == base_state("cancelled+") == "CANCELLED"


def test_a_job_that_slurm_reports_as_failed_never_has_status_zero() -> None:
    assert queue_job(Row("7", None, "FAILED", status=0)).status != 0
    assert queue_job(Row("7", None, "NODE_FAIL")).status != 0


@pytest.mark.parametrize(
    ("code", "cause"), [("0:9", "signal"), ("137:0", "signal"), ("35072", "signal"), ("3:0", None)]
)
def test_both_forms_of_a_signal_are_the_same_cause(code: str, cause: str | None) -> None:
    row = Row("7", None, "FAILED", status=wait_status(code), nodes="n1", started=1.0, ended=2.0)
    assert queue_job(row).cause == cause


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("CANCELLED", "cancel"), ("TIMEOUT", "timeout"), ("DEADLINE", "timeout"),
        ("NODE_FAIL", "node-failure"), ("BOOT_FAIL", "node-failure"), ("FAILED", "exec"),
        ("OUT_OF_MEMORY", "out-of-memory"), ("PREEMPTED", "preempted"), ("COMPLETED", None),
    ],
)  # fmt: skip
def test_the_reason_of_an_end_is_slurms(state: str, kind: str | None) -> None:
    job = queue_job(Row("7", 3, state, nodes="n1", started=10.0, ended=20.0, restarts=1))
    assert (job.id, job.state, job.exception, job.restarts) == ("7_3", "over", kind, 1)
    # A job that waited for its restart has the nodes and the start of its first life.
    began = None if kind == "cancel" else 10.0
    assert (job.began, job.ended, job.host) == (began, 20.0, "n1")


def test_a_job_that_never_had_nodes_has_no_start() -> None:
    row = Row("7", None, "FAILED", reason="BadConstraints", started=1001.0, ended=1002.0)
    assert queue_job(row).began is None
    assert "BadConstraints" in queue_job(row).note


@pytest.mark.parametrize(
    ("state", "meant"),
    [
        ("PENDING", "waiting"), ("CONFIGURING", "waiting"), ("REQUEUED", "waiting"),
        ("REVOKED", "waiting"),  # in a federation, another cluster has the job
        ("RUNNING", "running"), ("SUSPENDED", "suspended"), ("STOPPED", "suspended"), ("COMPLETING", "ending"),
    ],
)  # fmt: skip
def test_an_unfinished_job_waits_runs_or_ends(state: str, meant: str) -> None:
    assert queue_job(Row("7", None, state)).state == meant


def test_a_job_that_would_wait_forever_is_stuck() -> None:
    job = queue_job(Row("7", None, "PENDING", reason="(PartitionTimeLimit)"))
    assert job.state == "stuck"
    assert "duration" in job.note
    assert queue_job(Row("7", None, "PENDING", reason="(Priority)")).state == "waiting"


#: Of Slurm 22.05, without most fields; the times are in the format that the executor asks for.
SHOWN = """\
JobId=2 ArrayJobId=1 ArrayTaskId=0 JobName=two words@3f9c2a11
   JobState=SUSPENDED Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   SubmitTime=1795884250 EligibleTime=1795884253
   StartTime=1795884253 EndTime=Unknown Deadline=N/A
   NodeList=n1
   Command=/home/me/run/scripts/ab.sh
   Comment=ensemble melt 1f 1 run

JobId=3 ArrayJobId=3 ArrayTaskId=0-5 JobName=j.sh
   JobState=PENDING Reason=JobHeldUser Dependency=(null)

JobId=7 JobName=single
   JobState=FAILED Reason=JobLaunchFailure Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:9
   NodeList=(null)
"""


def test_single_jobs_are_parsed_except_tasks_that_wait_together() -> None:
    first, second = read_jobs(SHOWN)
    assert (first.id, first.state, first.restarts, first.nodes) == ("1_0", "SUSPENDED", 2, "n1")
    assert (first.submitted, first.started, first.ended) == (1795884250.0, 1795884253.0, None)
    assert (first.name, first.comment) == ("two words@3f9c2a11", "ensemble melt 1f 1 run")
    assert first.script.endswith("/ab.sh")
    assert (second.id, second.status, second.nodes) == ("7", 9, "")


def test_a_requeued_job_has_the_time_of_its_last_submission() -> None:
    row = Row("7", None, "PENDING", restarts=1, submitted=50.0)
    assert (queue_job(row).restarts, queue_job(row).requeued) == (1, 50.0)
    assert queue_job(Row("7", None, "PENDING", submitted=50.0)).requeued is None


def test_jobs_are_asked_about_one_by_one_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply about an array shows all its tasks."""
    asked: list[str] = []

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        asked.append(words[-1])
        if words[-1] == "1":
            return 0, SHOWN, ""
        if words[-1] == "1_5":
            return 1, "Job 1_5 not found\n", ""
        return 1, "", "slurm_load_jobs error: Invalid job id specified\n"

    executor = SlurmExecutor()
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    monkeypatch.setattr(executor, "command", command)
    found = {job.id: job.state for job in executor.account(["1_0", "1_5", "9", "10_1", "10_2"])}
    assert {id_: found[id_] for id_ in ("1_0", "1_5", "9", "10_1", "10_2")} == {
        "1_0": "suspended", "1_5": "unknown", "9": "unknown", "10_1": "unknown", "10_2": "unknown",
    }  # fmt: skip
    assert asked == ["1", "10", "1_5", "9"]
    asked.clear()
    executor.account([str(number) for number in range(100, 200)])
    assert len(asked) == 20


def test_tasks_cancelled_together_are_known_by_their_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm 22.05 forgets the numbers of tasks that ``scancel -u ME`` cancels while they wait."""
    array = "JobId=1 ArrayJobId=1 ArrayTaskId=4294967294 JobName=sim.0-5@bd94cc00\n   JobState=%s Reason=None"

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        if words[0] == "squeue":
            rest = ["None", "0", "0", "9", "9", "9", "", "sim.0-5@bd94cc00", ""]
            rows = [[id_, state, *rest] for id_ in (waiting if state == "PENDING" else ["1"])]
            return 0, "".join(SEPARATOR.join(row) + "\n" for row in rows), ""
        if words[-1] == "1":
            return 0, array % state, ""
        return 1, f"Job {words[-1]} not found\n", ""

    executor = SlurmExecutor()
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    monkeypatch.setattr(executor, "command", command)
    waiting, state = ["1_4", "1_5"], "PENDING"
    executor.ask(waiting)
    state = "CANCELLED"
    assert {job.id for job in executor.ask(["1_4", "1_5"])}.isdisjoint({"1_4", "1_5"})
    for ids in (["1_5"], ["1_4", "1_5"]):
        found = {job.id: job.exception for job in executor.account(ids)}
        assert [found[id_] for id_ in ids] == ["cancel"] * len(ids)
    array = "JobId=2 ArrayJobId=1 ArrayTaskId=3 JobName=of.another\n   JobState=%s Reason=None"
    assert [job.exception for job in executor.account(["1_5"]) if job.id == "1_5"] == [None]


@pytest.mark.parametrize(
    ("accounting", "cancelled"),
    [(None, []), (["1_5|RUNNING"], ["1_4"]), ([], ["1_4", "1_5"])],
    ids=["no accounting", "one recorded", "none recorded"],
)
def test_a_task_that_slurmctld_has_forgotten_is_cancelled_only_if_it_cannot_have_ended(
    accounting: list[str] | None, cancelled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start was not reported. After MinJobAge, slurmctld forgets ended tasks of an array."""
    clock = [1000.0]

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        if words[0] == "squeue":
            row = ["PENDING", "None", "0", "0", "9", "9", "9", "", "sim.0-5@bd94cc00", ""]
            rows = [[id_, *row] for id_ in ("1_4", "1_5")]
            return 0, "".join(SEPARATOR.join(row) + "\n" for row in rows), ""
        if words[0] == "sacct":
            rest = ["0:0", "1", "1", "1", "n1", "sim.0-5@bd94cc00", "", "sbatch ab.sh"]
            rows = [[*each.split("|"), *rest] for each in accounting or ()]
            return 0, "".join(SEPARATOR.join(row) + "\n" for row in rows), ""
        if words[-1] == "1":
            array = (
                "JobId=2 ArrayJobId=1 ArrayTaskId=3 JobName=sim.0-5@bd94cc00\n   JobState=RUNNING"
            )
            return 0, f"{array} Reason=None", ""
        return 1, f"Job {words[-1]} not found\n", ""

    monkeypatch.setattr("ensemble_slurm.executor.time.monotonic", lambda: clock[0])
    executor = SlurmExecutor()
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    executor._site = Site(accounting=accounting is not None, least_age=10.0)
    monkeypatch.setattr(executor, "command", command)
    executor.ask(ids := ["1_4", "1_5"])

    def deleted() -> list[str]:
        found = {job.id: job for job in executor.account(ids)}
        assert {found[id_].state for id_ in found if id_ in ids} == {"unknown"}
        return [id_ for id_ in ids if id_ in found and found[id_].exception == "cancel"]

    clock[0] += 9.0
    assert deleted() == ids
    clock[0] += 2.0
    assert deleted() == cancelled
    clock[0] += 100.0  # the end of a job that is recorded does not come any more
    assert deleted() == cancelled
    assert {job.id for job in executor.account(ids)} >= set(ids)


def test_only_jobs_of_the_node_whose_prolog_failed_have_a_failed_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user cancelled a job on another node in the same second: a retry would run it again."""
    ended = "1000"
    hosts = {"7": "n1", "8": "n3", "9": "n[2-3]", "10": "n[1-2]"}
    nodes = {"n1": ["n1"], "n3": ["n3"], "n[2-3]": ["n2", "n3"], "n[1-2]": ["n1", "n2"]}

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        if words[0] == "scontrol":
            return 1, "", "slurm_load_jobs error: Invalid job id specified"
        if words[0] == "sinfo":
            (which,) = (word for word in words if word.startswith("--nodes="))
            lists = re.findall(r"[^,\[]+(?:\[[^]]*\])?", which.removeprefix("--nodes="))
            if not any("n3" in nodes[each] for each in lists):
                return 0, "", ""
            return 0, SEPARATOR.join(["n3", "Prolog error", ended, "\n"]), ""
        rest = ["0:0", ended, ended, ended]
        rows = [
            [id_, "CANCELLED by 0", *rest, host, f"sim.{id_}@bd94cc00", "", "sbatch ab.sh"]
            for id_, host in hosts.items()
        ]
        return 0, "".join(SEPARATOR.join(row) + "\n" for row in rows), ""

    executor = SlurmExecutor()
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    executor._site = Site(accounting=True)
    monkeypatch.setattr(executor, "command", command)
    jobs = {job.id: job for job in executor.account(list(hosts))}
    assert {id_: job.exception for id_, job in jobs.items()} == {
        "7": "cancel",
        "8": "node-failure",
        "9": "node-failure",
        "10": "cancel",
    }
    assert (jobs["8"].by, jobs["7"].by) == ("", "root")


def test_an_unreachable_slurmctld_does_not_make_a_job_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = SlurmExecutor()
    reply = (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    monkeypatch.setattr(executor, "command", lambda words, **options: reply)
    with pytest.raises(CannotTake):
        executor.account(["7"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("slurmstepd-n1: error: StepId=1.batch exceeded memory limit (7 > 5), being killed\n", "out-of-memory"),
        ("slurmstepd: error: Exceeded job memory limit\n", "out-of-memory"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch.\n", "out-of-memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in step 1.batch cgroup.\n", "out-of-memory"),
        ("slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE ***\n", "exec"),
    ],
)  # fmt: skip
def test_messages_of_a_step_explain_a_failed_job(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "slurm-7.err").write_text(text * 2)
    failed = QueueJob("7", "over", 9, "exec", "Slurm: FAILED, JobLaunchFailure", cause="signal")
    job = StepMessages(str(tmp_path)).explain(failed)
    assert job.exception == kind
    words = text.partition("error: ")[2].strip("* \n")
    assert job.note.count(words) == 1
    assert job.cause == (None if kind == "out-of-memory" else "signal")


@pytest.mark.parametrize("kind", ["cancel", "timeout", "preempted"])
@pytest.mark.parametrize(
    ("text", "explains"),
    [
        ("Detected 1 oom_kill event in StepId=1.batch.", False),  # of a child, hours before
        ("StepId=1.batch exceeded memory limit (7 > 5), being killed", True),
    ],
)
def test_an_old_message_about_memory_does_not_replace_a_later_reason(
    tmp_path: Path, kind: str, text: str, explains: bool
) -> None:
    (tmp_path / "slurm-7.err").write_text(f"slurmstepd: error: {text}\n")
    ended = QueueJob("7", "over", 15, kind, "Slurm's reason", by="ada")
    job = StepMessages(str(tmp_path)).explain(ended)
    assert job.exception == ("out-of-memory" if explains else kind)
    assert text in job.note


def test_a_job_without_messages_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.err"
    path.touch()
    job = QueueJob("7", "over", 9, "exec", "Slurm: FAILED")
    assert StepMessages(str(tmp_path)).explain(job) == job
    assert not path.exists()


def test_every_reason_to_wait_forever_has_a_hint() -> None:
    assert all(len(hint) > 10 for hint in STUCK.values())
    assert "job requeued in held state" in STUCK
    assert "Resources" not in STUCK
    assert not {"Priority", "JobHeldUser", "QOSMaxJobsPerUserLimit"} & STUCK.keys()


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        ("sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name specified", Refusal.FINAL, "sinfo"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", Refusal.BUSY, None),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Refusal.BUSY, None),
        ("sbatch: error: Batch job submission failed: Unexpected message received", Refusal.BUSY, None),
        ("sbatch: error: Batch job submission failed: Insane message length", Refusal.BUSY, None),
        ("sbatch: error: Batch job submission failed: Invalid license specification", Refusal.FINAL, "licenses"),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", Refusal.FULL, "MaxJobCount"),
        ("sbatch: error: Slurm job queue full, sleeping and retrying.", Refusal.FULL, "MaxJobCount"),
        ("sbatch: error: AssocGrpSubmitJobsLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", Refusal.FULL, "others end"),
        ("sbatch: error: QOSMaxCpuPerJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", Refusal.FINAL, "fewer"),
        ("sbatch: error: QOSGrpCPUMinutesLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", Refusal.FINAL, "used up"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", Refusal.FINAL, "duration"),
        ("sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)", Refusal.FINAL, "sinfo"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", Refusal.FULL, "others end"),
        ("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", Refusal.FULL, "others end"),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", Refusal.FINAL, "duration"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified", Refusal.FINAL, "sacctmgr"),
        ("sbatch: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such file or directory (retrying ...)", Refusal.BUSY, "munge"),
        ("sbatch: unrecognized option '--foo'", Refusal.FINAL, "--help"),
    ],
)  # fmt: skip
def test_slurms_rejections_are_classified(said: str, kind: Refusal, hint: str | None) -> None:
    assert refusal(said) is kind
    found = hint_for(said)
    assert found is None if hint is None else hint in (found or "")
    assert "sbatch: error" not in words(said)


def test_incomplete_output_of_squeue_is_rejected() -> None:
    whole = recorded("squeue-22.05.txt")
    assert unreadable(whole) is None
    assert unreadable("") is None
    assert unreadable("x\n" + whole) is None  # a job's name may contain a newline
    assert unreadable(whole[: len(whole) - 40]) is not None
    assert unreadable("slurm is in maintenance\n") == "'slurm is in maintenance'"


@pytest.mark.parametrize(
    ("words", "by"),
    [("CANCELLED by 0", "root"), ("CANCELLED by 4294967", "user 4294967"), ("None", "")],
)
def test_accounting_names_the_user_who_cancelled_a_job(words: str, by: str) -> None:
    job = queue_job(Row("7", None, "CANCELLED", words))
    assert (job.exception, job.by) == ("cancel", by)


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [
        # Cut as squeue does, and as scontrol prints it.
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs", True),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs", True),
        ("job_requeued_in_held_state", True),
        ("ReservationDeleted", True),
        ("QOSMaxMemoryPerJob", True),
        ("AssocMaxGRESPerNode", True),
        ("QOSGrpBillingMinutes", True),
        ("QOSMinCpuNotSatisfied", True),
        ("QOSGrpWallLimit", True),
        ("Job's QOS not permitted to use this partition (qosp allows vi", True),
        ("Job's_account_not_permitted_to_use_this_partition_(acc_allows", True),
        ("QOSGrpCPURunMinutesLimit", False),
        ("QOSMaxCpuPerUserLimit", False),
        ("AssocMaxJobsLimit", False),
        ("Resources", False),
    ],
)
def test_a_job_waits_in_vain_for_what_only_people_can_change(reason: str, stuck: bool) -> None:
    job = queue_job(Row("7", None, "PENDING", reason=reason))
    assert (job.state == "stuck") is stuck


@pytest.mark.parametrize(
    ("reason", "limited"),
    [
        ("QOSGrpCpuLimit", True),
        ("QOSMaxJobsPerUserLimit", True),
        ("QOSMaxNodePerUserLimit", True),
        ("AssocGrpJobsLimit", True),
        ("MaxMemoryPerAccount", True),
        ("Priority", False),
        ("Licenses", False),
    ],
)
def test_a_limit_on_several_jobs_has_a_note(reason: str, limited: bool) -> None:
    job = queue_job(Row("7", None, "PENDING", reason=reason))
    assert job.state == "waiting"
    assert job.note.startswith(f"{reason}: ") is limited


def test_a_reason_in_words_is_shown_without_the_names_that_squeue_cuts() -> None:
    reason = "Job's QOS not permitted to use this partition (qosp allows vi"
    note = queue_job(Row("7", None, "PENDING", reason=reason)).note
    assert note.startswith("Job's QOS not permitted to use this partition: ")


def test_a_job_that_slurm_removes_because_of_a_dependency_is_not_cancelled_by_others() -> None:
    job = queue_job(Row("7", None, "CANCELLED", "DependencyNeverSatisfied"))
    assert (job.exception, job.began) == ("dependency", None)
    assert "has failed" in job.note


@pytest.mark.parametrize(("ended", "doubtful"), [(5.0, True), (6.0, False)])
def test_a_job_cancelled_as_it_gets_its_nodes_may_have_had_no_prolog(
    ended: float, doubtful: bool
) -> None:
    """Slurm says nothing else if its PrologSlurmctld fails."""
    job = queue_job(Row("7", None, "CANCELLED", nodes="n1", started=5.0, ended=ended))
    assert job.exception == "cancel"
    assert ("PrologSlurmctld" in job.note) is doubtful


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("*** JOB 7 ON n1 CANCELLED AT 2026-12-01T12:48:55 ***", "cancel"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-12-01T12:48:55 DUE TO TIME LIMIT ***", "timeout"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-12-01T12:48:55 DUE TO PREEMPTION ***", "preempted"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-12-01T12:48:55 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "node-failure"),
        ("Job 7 exceeded memory limit (9 > 5), being killed", "out-of-memory"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-12-01T12:48:55 DUE TO JOB REQUEUE ***", None),
        ("*** STEP 7.0 ON n1 CANCELLED AT 2026-12-01T12:48:55 ***", None),
    ],
)  # fmt: skip
def test_the_end_of_a_job_that_slurm_has_forgotten_is_in_its_messages(
    said: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled while no controller ran, and seemed to have been killed by a signal."""
    (tmp_path / "slurm-7.err").write_text(f"slurmstepd-n1: error: {said}\n")

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        return 1, "", "slurm_load_jobs error: Invalid job id specified"

    executor = SlurmExecutor()
    executor._messages = StepMessages(str(tmp_path))
    monkeypatch.setattr(executor, "command", command)
    (job,) = executor.account(["7"])
    assert (job.state, job.exception) == (("over", kind) if kind else ("unknown", None))
    (other,) = executor.account(["8"])
    assert other.state == "unknown"


def test_a_job_whose_end_has_not_reached_the_accounting_is_not_lost_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slurmdbd was away. Slurmctld sends it the newest ends up to half a minute later."""
    clock, state = [1000.0], ["RUNNING"]

    def command(words: Sequence[str], **options: object) -> tuple[int, str, str]:
        if words[0] == "scontrol":
            return 1, "", "slurm_load_jobs error: Invalid job id specified"
        fields = ["7", state[0], "0:9", "1", "1", "5", "n1", "job-7", "", "sbatch /s.sh"]
        return 0, SEPARATOR.join(fields) + "\n", ""

    executor = SlurmExecutor()
    executor._site = Site(accounting=True)
    executor._run_id, executor._mark = "bd94cc0001234567", "@bd94cc00"
    monkeypatch.setattr(executor, "command", command)
    monkeypatch.setattr("ensemble_slurm.executor.time.monotonic", lambda: clock[0])
    assert list(executor.account(["7"])) == []
    clock[0] += 30
    assert list(executor.account(["7"])) == []
    clock[0] += 100  # slurmctld has lost the job, so accounting never gets its end
    assert [job.state for job in executor.account(["7"])] == ["unknown"]
    state[0] = "FAILED"
    (job,) = executor.account(["7"])
    assert (job.state, job.cause) == ("over", "signal")
