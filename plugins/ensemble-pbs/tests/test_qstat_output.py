"""Tests of parsed job listings, recorded from OpenPBS 23.06.06 (``recorded``)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ensemble_batch import CannotTake, QueueJob
from ensemble_pbs.executor import PBSExecutor, blocks, count, queue_job

RECORDED = Path(__file__).parent / "recorded"


def listed() -> dict[str, QueueJob]:
    """Return the recorded jobs. Keys are the letter in a job's name and its array index."""
    jobs = blocks((RECORDED / "qstat.txt").read_text())
    return {
        fields["Job_Name"][4] + re.sub(r"^\d+\W*(\d*).*", r"\1", id_): queue_job(id_, fields)
        for id_, fields in jobs.items()
    }


def test_each_job_of_a_listing_is_found_by_its_id() -> None:
    assert len(blocks((RECORDED / "qstat.txt").read_text())) == 13


@pytest.mark.parametrize(
    ("job", "status"), [("a", 3 << 8), ("b1", 9), ("b2", 9)], ids=["exit", "signal", "signal"]
)
def test_an_exit_status_becomes_a_wait_status(job: str, status: int) -> None:
    found = listed()[job]
    assert (found.state, found.status, found.exception) == ("over", status, None)


def test_a_job_over_its_walltime_is_a_timeout() -> None:
    assert listed()["d"].exception == "timeout"
    assert "-29" in listed()["d"].note


def test_a_deleted_job_is_cancelled_not_successful() -> None:
    """PBS reports exit status 0 for a deleted job."""
    assert listed()["g"].exception == "cancel"
    assert listed()["x"].exception == "cancel"


def test_a_deleted_task_of_an_unfinished_array_is_cancelled() -> None:
    assert (listed()["e2"].state, listed()["e2"].exception) == ("unknown", "cancel")


@pytest.mark.parametrize("more", [{"Exit_status": "0"}, {"Exit_status": "1"}, {}])
@pytest.mark.parametrize("state", ["X", "F"])
def test_a_deleted_task_that_never_ran_has_no_share_in_its_arrays_exit_status(
    state: str, more: dict[str, str]
) -> None:
    """PBS prints the array's state, comment and exit status. Without an exit status, the job or
    array was deleted because its dependency failed.
    """
    fields = {"job_state": state, "substate": "92", "comment": "Subjob finished", **more}
    found = queue_job("156[3].head", fields)
    assert (found.state, found.status, found.exception) == ("unknown", None, "cancel")
    assert "before it ran" in found.note


def test_a_job_that_can_never_run_is_stuck_with_a_reason() -> None:
    stuck = listed()["c"]
    assert stuck.state == "stuck"
    assert "ncpus (R: 99 A: 8 T: 8)" in stuck.note


@pytest.mark.parametrize(("job", "state"), [("h", "held"), ("r", "running"), ("e1", "held")])
def test_an_unfinished_job_waits_or_runs(job: str, state: str) -> None:
    assert listed()[job].state == state


@pytest.mark.parametrize(
    ("code", "exception"),
    [(-27, "out-of-memory"), (-26, "out-of-memory"), (-20, "node-failure"), (-2, "exec")],
)
def test_pbs_reasons_become_exceptions(code: int, exception: str) -> None:
    fields = {"job_state": "F", "substate": "93", "Exit_status": str(code), "comment": "why"}
    found = queue_job("1.head", fields)
    assert found.exception == exception
    assert "why" in found.note


def test_resources_of_a_node_and_attributes_of_the_server_are_read() -> None:
    (node,) = blocks((RECORDED / "pbsnodes.txt").read_text()).values()
    assert count(node, "resources_available.ncpus") == 8
    (server,) = blocks((RECORDED / "server.txt").read_text()).values()
    assert server["job_history_enable"] == "True"
    assert count(server, "max_array_size") == 10000
    assert count(server, "none") == 0


@pytest.mark.parametrize(
    ("name", "batch"),
    [("ens_a_1", "ens_a_1"), ("another", "/home/me/my run/scripts/ab.sh")],
    ids=["", "renamed"],
)
def test_a_renamed_job_is_identified_by_its_script(
    name: str, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = (RECORDED / "qstat.txt").read_text().partition("\n\n")[0] + "\n\n"
    script = "<jsdl-hpcpa:Argument>/home/me/my run/scr\n\tipts/ab.sh</jsdl-hpcpa:Argument>"
    listing = re.sub(r"(?<=argument_list = ).*\n\t.*", script, listing)
    listing = listing.replace("Job_Name = ens_a_1\n", f"Job_Name = {name}\n")
    executor = PBSExecutor()
    monkeypatch.setattr(executor, "command", lambda words: (0, listing, ""))
    (job,) = executor.ask(["135.pbshost"])
    assert job.batch == batch


@pytest.mark.parametrize("letter", ["S", "U"])
def test_a_suspended_job_is_neither_running_nor_waiting(letter: str) -> None:
    job = queue_job("7.head", {"job_state": letter, "run_count": "1"})
    assert (job.state, job.restarts) == ("suspended", 0)
    assert "suspended" in job.note


def test_a_requeued_job_waits_and_counts_its_runs() -> None:
    waiting = queue_job("7.head", {"job_state": "Q", "run_count": "1"})
    assert (waiting.state, waiting.restarts) == ("waiting", 1)
    running = queue_job("7.head", {"job_state": "R", "run_count": "2"})
    assert (running.state, running.restarts) == ("running", 1)


def test_a_job_of_an_array_that_waits_after_it_ran_was_requeued() -> None:
    """PBS prints no number of runs for it."""
    executor, states = PBSExecutor(), ["job_state = R\n    run_count = 2", "job_state = Q"]
    listings = (f"Job Id: 7[1].head\n    {state}\n\n" for state in states)
    executor.command = lambda words, given=b"": (0, next(listings), "")  # type: ignore[method-assign]
    for state, restarts in (("running", 1), ("waiting", 2)):
        assert [(job.state, job.restarts) for job in executor.ask(["7[1].head"])] == [
            (state, restarts)
        ]


def test_a_killed_job_that_used_more_memory_than_requested_has_that_cause() -> None:
    fields = {"job_state": "F", "run_count": "1", "Exit_status": "265", "Resource_List.mem": "50mb"}
    assert queue_job("7.head", {**fields, "resources_used.mem": "300000kb"}).exception == (
        "out-of-memory"
    )
    assert queue_job("7.head", {**fields, "resources_used.mem": "300kb"}).exception is None


@pytest.mark.parametrize(
    ("said", "state"), [("qstat: Unknown Job Id 7.head", "unknown"), ("qstat: weird", None)]
)
def test_a_single_job_is_unknown_only_if_the_server_says_so(said: str, state: str | None) -> None:
    executor = PBSExecutor()
    executor.command = lambda words, given=b"": (153, "", said)  # type: ignore[method-assign]
    assert [job.state for job in executor.account(["7.head"])] == ([state] if state else [])
    executor.command = lambda words, given=b"": (111, "", "cannot connect to server")  # type: ignore[method-assign]
    with pytest.raises(CannotTake):
        list(executor.account(["7.head"]))


@pytest.mark.parametrize(
    ("kinds", "more", "words"),
    [
        ("u", {}, "'qrls -h u 1.head' lets it start"),
        ("so", {}, "'qrls -h so 1.head' lets it start"),
        ("s", {"depend": "afterok:2.head@head"}, ""),
    ],
)
def test_a_held_job_is_reported_with_what_releases_it(
    kinds: str, more: dict[str, str], words: str
) -> None:
    job = queue_job("1.head", {"job_state": "H", "Hold_Types": kinds, **more})
    assert job.state == ("held" if words else "waiting")
    assert words in job.note


def test_a_task_of_a_held_array_is_held_with_what_releases_the_array() -> None:
    """PBS shows such tasks as queued, and refuses to release one of them."""
    job = queue_job("110[2].head", {"job_state": "Q", "substate": "10", "Hold_Types": "u"})
    assert job.state == "held"
    assert "'qrls -h u 110[].head' lets it start" in job.note


def test_a_job_in_a_stopped_queue_is_stuck_with_the_reason() -> None:
    job = queue_job("7.head", {"job_state": "Q", "comment": "Not Running: Queue not started."})
    assert job.state == "stuck"
    assert "Queue not started" in job.note


def test_a_job_that_pbs_holds_after_failed_attempts_is_stuck_with_what_releases_it() -> None:
    comment = "Job Array Held, too many failed attempts to run subjob 555[1].head"
    fields = {"job_state": "Q", "Hold_Types": "s", "comment": comment, "run_count": "21"}
    job = queue_job("555[2].head", fields)
    assert job.state == "stuck"
    assert "'qrls -h s 555[].head' lets it start" in job.note


def test_a_limit_that_a_waiting_job_may_exceed_alone_is_named() -> None:
    comment = "Not Running: User has reached server running job limit."
    job = queue_job("7.head", {"job_state": "Q", "comment": comment})
    hint = "if the job alone exceeds it, request less or use another queue"
    assert (job.state, job.note) == ("waiting", f"{comment} ('qstat -f 7.head'; {hint})")
    comment = "Not Running: Insufficient amount of resource: ncpus"
    assert queue_job("7.head", {"job_state": "Q", "comment": comment}).note == ""
