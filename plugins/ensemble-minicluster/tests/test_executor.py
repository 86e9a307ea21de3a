"""Tests of growing: requests, the time of their outcomes, and nodes that never arrive."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ensemble_minicluster import ensemble_executors
from ensemble_minicluster.cluster import Patience
from ensemble_testing.executor import wait_until

from ensemble_core import ExecutorError, JobEvent, PluginError, Problem, UsageError

Play = Callable[..., Any]


def test_jobs_go_to_the_composed_executor(played: Play) -> None:
    cluster = played()
    session, flux = cluster.session, cluster.flux
    jobs = [session.job("true"), session.job("true")]
    session.submit(*jobs)
    assert flux.submitted == jobs
    flux.finish(jobs[0].id)
    assert session.names(jobs[0])[-1] == "clean"
    session.executor.cancel([jobs[1].id])
    assert flux.cancelled == [jobs[1].id]
    assert session.context(jobs[1], "exception")["type"] == "cancel"
    assert session.executor.reattach({jobs[0].id: 0.0, "x.1": 0.0}) == {
        jobs[0].id: True,
        "x.1": False,
    }
    session.executor.forget([jobs[0].id])
    assert flux.forgot == [jobs[0].id]
    assert session.executor.resources()["nodes.up"] == 2
    assert session.executor.handle is cluster.instance
    assert session.executor.sees_foreign_jobs is flux.sees_foreign_jobs
    assert session.executor.shared is flux.shared
    assert session.executor.capabilities == flux.capabilities | {"resize"}
    cluster.close()
    assert flux.closed
    assert cluster.cloud.closed


def test_jobs_rejected_by_the_composed_executor_are_rejected(played: Play) -> None:
    cluster = played()
    cluster.flux.refuse = ExecutorError("the queue is closed")
    with pytest.raises(ExecutorError, match="the queue is closed"):
        cluster.session.submit(cluster.session.job("true"))
    assert not [e for e in cluster.session.events if isinstance(e, JobEvent)]


def test_grow_is_granted_when_flux_reports_the_nodes_as_up_and_not_before(played: Play) -> None:
    cluster = played(2)
    cluster.session.executor.resize("resize-1", 2)
    wait_until(lambda: cluster.cloud.count == 4)
    cluster.instance.online.add(2)
    cluster.flux.tell_up(3)
    cluster.looked()
    assert cluster.outcomes("resize-1") == []
    cluster.instance.online.add(3)
    cluster.flux.tell_up(4)
    outcome = cluster.answer("resize-1")
    assert (outcome.outcome, outcome.size, outcome.reason) == ("granted", 4, "")
    assert cluster.cloud.requests == [(f"{cluster.run}/resize-1", 2)]


def test_the_gauges_include_the_nodes_before_a_rule_learns_of_the_grant(
    played: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_minicluster.grow_and_shrink._BEHIND", 150.0)
    cluster = played(2)
    cluster.cloud.act = lambda before, after: cluster.instance.online.update(range(after))
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: 2 in cluster.instance.online)
    cluster.looked()  # Flux has the node, but its gauges lag
    assert cluster.outcomes("resize-1") == []
    cluster.flux.tell_up(3)
    assert cluster.answer("resize-1").size == 3


def test_resize_returns_immediately_while_the_service_is_busy(played: Play) -> None:
    cluster = played(2)
    cluster.follow()
    free = threading.Event()
    act = cluster.cloud.act

    def slow(before: int, after: int) -> None:
        assert free.wait(60)
        act(before, after)

    cluster.cloud.act = slow
    cluster.session.executor.resize("resize-1", 1)
    assert not free.is_set()
    cluster.session.submit(cluster.session.job("true"))
    free.set()
    assert cluster.answer("resize-1").outcome == "granted"


def test_a_partial_grant_has_its_reason_and_size(played: Play) -> None:
    cluster = played(2)
    cluster.follow()
    outcome = cluster.resize("resize-1", 5)
    assert (outcome.outcome, outcome.size) == ("granted", 4)
    assert outcome.reason == "2 of 5 nodes: that is the maximum"


def test_a_denial_has_the_services_reason(played: Play) -> None:
    cluster = played(4)
    outcome = cluster.resize("resize-1", 1)
    assert (outcome.outcome, outcome.size) == ("denied", 4)
    assert outcome.reason == "there are no more"


def test_nodes_that_never_come_cause_a_timeout_with_the_number_up(played: Play) -> None:
    cluster = played(2, Patience(arrival=0.5, drain=1, settle=0))
    cluster.cloud.act = lambda before, after: cluster.instance.online.add(2)
    outcome = cluster.resize("resize-1", 2)
    assert (outcome.outcome, outcome.size) == ("timeout", 3)
    assert outcome.reason == (
        "4 nodes were granted, but 3 of them are up after 0.5 s: Flux has not seen rank 3"
    )


def test_a_leaving_node_is_not_taken_for_the_new_one(played: Play) -> None:
    cluster = played(3, Patience(arrival=150, drain=1, settle=150))
    cluster.cloud.count = 2  # rank 2 is leaving, and Flux has not noticed yet
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: cluster.cloud.count == 3)
    cluster.looked()
    assert cluster.outcomes("resize-1") == []
    cluster.instance.online.discard(2)
    cluster.looked()
    assert cluster.outcomes("resize-1") == []
    cluster.instance.online.add(2)
    assert cluster.answer("resize-1").outcome == "granted"


def test_a_node_that_was_up_before_counts_after_a_while(played: Play) -> None:
    cluster = played(3, Patience(arrival=30, drain=1, settle=0.5))
    cluster.cloud.count = 2
    began = time.monotonic()
    assert cluster.resize("resize-1", 1).outcome == "granted"
    assert time.monotonic() - began >= 0.5


def test_nodes_that_return_after_a_shrink_accept_jobs(played: Play) -> None:
    cluster = played(3)
    cluster.follow()
    assert cluster.resize("resize-1", -1).outcome == "granted"
    # One node is still drained by a shrink of an earlier run.
    cluster.instance.drained[2] = "ensemble gives this node back (run other)"
    cluster.instance.drained[1] = "bad disk"
    assert cluster.resize("resize-2", 1).outcome == "granted"
    assert cluster.instance.drained == {1: "bad disk"}


def test_a_missing_answer_of_flux_is_retried(played: Play) -> None:
    cluster = played(2)

    def act(before: int, after: int) -> None:
        cluster.instance.refuses["resource.status"] = TimeoutError(110, "timed out")

    cluster.cloud.act = act
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: cluster.cloud.count == 3)
    cluster.looked()
    cluster.instance.online.add(2)
    cluster.flux.tell_up(3)
    cluster.instance.refuses.clear()
    assert cluster.answer("resize-1").outcome == "granted"


def test_without_a_handle_the_gauges_count(played: Play) -> None:
    cluster = played(2, handle=False)
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: cluster.cloud.count == 3)
    time.sleep(0.3)
    assert cluster.outcomes("resize-1") == []
    cluster.flux.tell_up(3)
    assert cluster.answer("resize-1").size == 3
    outcome = cluster.resize("resize-2", -1)
    assert (outcome.outcome, outcome.size) == ("denied", 3), "rules speak of the size"
    assert "without access to Flux" in outcome.reason
    cluster.cloud.act = lambda before, after: cluster.flux.tell_up(after)
    assert cluster.resize("resize-3", -1, "force").outcome == "granted"


# -- repeated requests-------------------------------------------------------------------------------


def test_a_request_to_an_unreachable_service_is_undelivered_and_repeated(
    played: Play, undelivered: ExecutorError
) -> None:
    cluster = played(2)
    cluster.follow()
    cluster.cloud.fails = [undelivered]
    first = cluster.resize("resize-1", 1)
    assert (first.outcome, first.reason) == (
        "undelivered",
        "the service cannot be reached: refused",
    )
    assert cluster.resize("resize-1", 1).outcome == "granted"
    assert cluster.cloud.requests == [(f"{cluster.run}/resize-1", 1)] * 2


def test_a_request_whose_answer_was_lost_is_carried_out_once(
    played: Play, undelivered: ExecutorError
) -> None:
    cluster = played(2)
    cluster.follow()
    cluster.cloud.loses = [undelivered]
    assert cluster.resize("resize-1", 1).outcome == "undelivered"
    assert cluster.resize("resize-1", 1).outcome == "granted"
    assert cluster.cloud.count == 3


def test_a_known_answer_is_repeated_without_asking(played: Play) -> None:
    cluster = played(2)
    cluster.follow()
    first, second = cluster.resize("resize-1", 1), cluster.resize("resize-1", 1)
    assert (first.outcome, first.size) == (second.outcome, second.size) == ("granted", 3)
    assert len(cluster.cloud.requests) == 1


def test_a_request_in_progress_is_not_taken_twice(played: Play) -> None:
    cluster = played(2)
    for _ in range(3):
        cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: cluster.cloud.count == 3)
    cluster.instance.online.add(2)
    cluster.flux.tell_up(3)
    cluster.answer("resize-1")
    cluster.follow()
    cluster.resize("resize-2", 1)  # it had to wait for the previous request
    assert len(cluster.outcomes("resize-1")) == 1


def test_a_second_request_waits_for_the_first(played: Play) -> None:
    cluster = played(2)
    cluster.session.executor.resize("resize-1", 1)
    cluster.session.executor.resize("resize-2", 1)
    wait_until(lambda: cluster.cloud.count == 3)
    cluster.looked()
    assert len(cluster.cloud.requests) == 1
    cluster.follow()
    cluster.instance.online.add(2)
    cluster.flux.tell_up(3)
    assert [cluster.answer(f"resize-{n}").size for n in (1, 2)] == [3, 4]


def test_a_later_controller_repeats_the_request_under_its_name_and_waits_again(
    played: Play,
) -> None:
    cluster = played(2)
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: cluster.cloud.count == 3)
    cluster.kill()
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: len(cluster.cloud.requests) == 2)
    assert cluster.cloud.count == 3
    cluster.looked()
    assert cluster.outcomes("resize-1") == []
    cluster.instance.online.add(2)
    cluster.flux.tell_up(3)
    assert cluster.answer("resize-1").size == 3


def test_a_later_controller_knows_the_answers(played: Play) -> None:
    cluster = played(2)
    cluster.follow()
    cluster.resize("resize-1", 1)
    cluster.kill()
    assert cluster.resize("resize-1", 1).size == 3
    assert len(cluster.cloud.requests) == 1


def test_runs_do_not_share_requests(played: Play) -> None:
    first, second = played(2), played(2)
    assert first.tag != second.tag
    first.follow()
    second.follow()
    first.resize("resize-1", 1)
    second.resize("resize-1", 1)
    assert first.cloud.requests != second.cloud.requests


def test_a_rejected_credential_is_a_denial_with_a_hint(played: Play) -> None:
    cluster = played(2)
    cluster.cloud.fails = [
        ExecutorError("the service refused", cause="not your member", hint="get a token")
    ]
    outcome = cluster.resize("resize-1", 1)
    assert (outcome.outcome, outcome.size) == ("denied", 2)
    assert outcome.reason == "the service refused: not your member (get a token)"


def test_a_faulty_service_still_leads_to_an_answer(played: Play) -> None:
    cluster = played(2)
    cluster.cloud.act = lambda before, after: {}["no"]  # type: ignore[index]
    outcome = cluster.resize("resize-1", 1)
    assert outcome.outcome == "denied"
    assert "KeyError" in outcome.reason


def test_an_unwritable_log_causes_a_warning_and_requests_are_answered(
    played: Play, tmp_path: Path
) -> None:
    cluster = played(2)
    cluster.follow()
    state = tmp_path / "state" / cluster.tag
    (state / "minicluster.json").unlink()
    (state / "minicluster.new").mkdir()
    assert cluster.resize("resize-1", 1).outcome == "granted"
    assert len([w for w in cluster.warnings() if "cannot write" in w]) == 1


def test_an_unreadable_log_causes_a_warning(played: Play, tmp_path: Path) -> None:
    cluster = played(2)
    (tmp_path / "state" / cluster.tag / "minicluster.json").write_text("{")
    cluster.kill()
    assert any("cannot read" in warning for warning in cluster.warnings())


def test_closing_does_not_wait_for_nodes_to_come(played: Play) -> None:
    cluster = played(2)
    cluster.session.executor.resize("resize-1", 1)
    wait_until(lambda: cluster.cloud.count == 3)
    cluster.close()
    assert cluster.outcomes("resize-1") == []


# -- options ---------------------------------------------------------------------------------------


def build(**options: Any) -> Any:
    (record,) = ensemble_executors()
    return record.build(options)


def test_a_missing_name_is_rejected_with_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        build()
    assert "--name NAMESPACE/NAME" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"mock": True, "size": 5}, "max-size 4"),
        ({"mock": True, "min_size": 3, "size": 2}, "min-size 3"),
        ({"name": "a/b", "max_size": 3, "compose": "local"}, "mock only"),
        ({"name": "a/b", "compose": "minicluster"}, "itself"),
        ({"name": "a/b", "compose": "local", "queue": "batch"}, "no option 'queue'"),
    ],
)
def test_contradictory_options_are_rejected(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        build(**options)


def test_an_unknown_executor_to_compose_is_named() -> None:
    with pytest.raises(PluginError, match="no executor 'fluxx'"):
        build(name="a/b", compose="fluxx")


def test_a_missing_token_file_is_reported_before_submitting(
    tmp_path: Path,
) -> None:
    from ensemble_core import Run

    executor = build(name="a/b", compose="local", token_file=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="cannot read the token"):
        executor.open(Run("tag", tmp_path, time.time), lambda events: None)


# -- the mock --------------------------------------------------------------------------------------


def test_a_mock_without_flux_uses_this_machine_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ensemble_testing.executor import Session

    monkeypatch.delenv("FLUX_URI", raising=False)
    with Session(build(mock=True, max_size=3), tmp_path, tidy=True) as session:
        (note,) = [e.message for e in session.events if isinstance(e, Problem)]
        assert "1 to 3" in note
        assert "on this machine" in note
        assert session.executor.resources()["cores.up"] == 1
        session.executor.resize("resize-1", 2)
        session.wait(lambda: session.executor.resources()["cores.up"] == 3, "three cores")
        assert session.executor.shared is False


def test_a_mock_run_started_on_this_machine_is_resumed_there_even_inside_flux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ensemble_testing.executor import Session

    monkeypatch.delenv("FLUX_URI", raising=False)
    first = Session(build(mock=True), tmp_path)
    job = first.job("sleep", "1")
    with first:
        first.submit(job)
        first.wait_for(job, "start")
    monkeypatch.setenv("FLUX_URI", "local:///nowhere")
    second = Session(build(mock=True), tmp_path)
    second.resume(first)
    with second:
        assert second.executor.reattach({job.id: 0.0}) == {job.id: True}
        second.wait_clean(job)


def test_a_run_with_another_executor_is_not_resumed_with_this_one(
    played: Play, tmp_path: Path
) -> None:
    cluster = played(2)
    file = tmp_path / "state" / cluster.tag / "minicluster.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "executor": "slurm"}))
    cluster.flux.closed = False
    with pytest.raises(ExecutorError, match="to executor 'slurm', not 'flux'"):
        cluster.kill()


def test_an_executor_of_a_plugin_file_can_be_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    (tmp_path / "theirs.py").write_text(
        "from ensemble_core import ExecutorPlugin, executor_record, hookimpl\n"
        "@hookimpl\n"
        "def ensemble_executors():\n"
        "    return [ExecutorPlugin(name='theirs', summary='as local',\n"
        "        build=lambda options: executor_record('local').build({'slots': 1}))]\n"
    )
    (tmp_path / "file.yaml").write_text(
        "jobs: [{name: one, command: 'true'}]\n"
        "rules: [{trigger: start, action: {name: submit, label: one}}]\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ensemble_core.cli", "run", "--executor", "minicluster"),
            *("--mock", "--plugin", "theirs.py", "-o", "compose=theirs", "--json", "file.yaml"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "jobs go to executor 'theirs'" in done.stdout


def test_the_options_of_upstreams_operator_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator passes ``--kubernetes --executor minicluster``: ignored, with a message."""
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("FLUX_URI", raising=False)
    (tmp_path / "ensemble.yaml").write_text(
        "jobs: [{name: one, command: 'true'}]\n"
        "rules: [{trigger: start, action: {name: submit, label: one}}]\n"
    )
    words = "run --kubernetes --executor minicluster --host 10.0.0.7 --port 50051 --name e-0"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ensemble_core.cli", *words.split()),
            *("--mock", "-o", "compose=local", "ensemble.yaml"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--kubernetes has no effect" in " ".join((done.stdout + done.stderr).split())


def test_a_flux_that_started_later_is_another_queue_until_it_gets_jobs(
    played: Play,
) -> None:
    """As after a kill of the lead broker's pod: the new Flux has no jobs."""
    minicluster = played()
    executor = minicluster.session.executor
    assert not executor.queue_is_new
    minicluster.kill()
    assert not minicluster.session.executor.queue_is_new, "only the controller was killed"
    for _ in range(2):  # a second controller is killed before it submits
        minicluster.instance.began = "2.0"
        minicluster.kill()
        assert minicluster.session.executor.queue_is_new
    minicluster.session.executor.submit([])
    minicluster.kill()
    assert not minicluster.session.executor.queue_is_new


def test_a_queue_outside_of_the_pod_is_always_the_same(
    played: Play,
) -> None:
    minicluster = played(handle=False)
    minicluster.kill()
    assert not minicluster.session.executor.queue_is_new
