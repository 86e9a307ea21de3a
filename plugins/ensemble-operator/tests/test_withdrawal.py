"""Tests of withdrawal: before members are deleted, the jobs of an outside run are cancelled.

The operator waits for their ends, even if the run's pod no longer exists. These tests only call
``plan``; ``suspends.py`` tests withdrawal with processes.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ensemble_operator.changes import Create, Delete
from ensemble_operator.object_names import RUN, WITHDRAWS, Object, format_time
from fake_namespace import FILE, World, ensemble, member, running
from hypothesis import given
from hypothesis import strategies as st
from test_plan_properties import EVENTS, OTHER, QUICK, happens

CLAIM = {"claim": "journals"}


def shared(*, state: Any = CLAIM, **spec: Any) -> Object:
    """Return an Ensemble of two members and an outside run."""
    found = ensemble(member(name="a"), member(name="b"), ensemble=FILE, state=state, **spec)
    for each in found["spec"]["members"]:
        del each["ensemble"]
    return found


def members(world: World) -> set[str]:
    return {name for kind, name in world.children if kind == "MiniCluster"}


def withdraws(world: World) -> str:
    """Return the tag of the run that the Job withdraws, or an empty string."""
    noted = world.children.get(("Job", "study-run"), {}).get("metadata", {}).get("annotations", {})
    return str(noted[RUN]) if WITHDRAWS in noted else ""


def suspend(world: World, value: bool = True) -> None:
    world.edit(lambda spec: spec.update(suspend=value))


def withdrawing() -> World:
    """Return a world whose run is being withdrawn, because the Ensemble is suspended."""
    world = running(shared())
    suspend(world)
    world.settle()
    return world


def lingers(world: World, name: str, pod: Object, seconds: float) -> None:
    """Keep a pod that is being deleted; ``seconds`` is its grace period."""
    pod["metadata"]["deletionTimestamp"] = format_time(world.now + seconds)
    world.pods[name] = pod


def told(world: World) -> list[str]:
    return [each.reason for each in world.events]


def runs_again(world: World) -> None:
    """Let the members run, and then the run itself."""
    for name in ("study-a", "study-b"):
        world.runs(name)
    world.settle()
    world.pod("study-run", {"running": {}})
    world.settle()


def as_it_was(world: World) -> None: ...


def killed(world: World) -> None:
    world.killed("study-run")


def gone(world: World) -> None:
    """Lose the run's pod with its node, before the Job has created another."""
    world.pods.pop("study-run-0")


def not_yet_again(world: World) -> None:
    world.killed("study-run")
    world.pod("study-run", {"waiting": {"reason": "ImagePullBackOff"}}, phase="Pending")


def deleted_by_hand(world: World) -> None:
    world.delete("Job", "study-run")


POD = pytest.mark.parametrize("pod", [as_it_was, killed, gone, not_yet_again, deleted_by_hand])


@POD
def test_suspended_members_are_deleted_once_the_runs_jobs_are_cancelled(
    pod: Callable[[World], None],
) -> None:
    world = running(shared())
    tag = world.entry("run")["run"]
    pod(world)
    suspend(world)
    world.settle()
    assert members(world) == {"study-a", "study-b"}
    assert withdraws(world) == tag
    assert world.entry("run")["run"] == tag
    assert world.status["phase"] != "Suspended"
    world.killed("study-run")  # its Job creates another pod
    world.settle()
    assert members(world) == {"study-a", "study-b"}
    world.ends("study-run")
    world.settle()
    assert members(world) == set()
    assert ("Job", "study-run") not in world.children
    assert world.status["phase"] == "Suspended"
    assert "NotWithdrawn" not in told(world)
    suspend(world, False)
    world.settle()
    runs_again(world)
    assert world.entry("run")["run"] == tag, "the same run continues"
    assert not withdraws(world)


@pytest.mark.parametrize("late", [False, True], ids=["its pod ends", "its node is gone"])
def test_without_a_claim_members_are_deleted_once_the_runs_own_pod_has_cancelled_its_jobs(
    late: bool,
) -> None:
    world = running(shared(state={}))
    pod = world.pods["study-run-0"]
    suspend(world)
    world.step()
    assert ("Job", "study-run") not in world.children
    lingers(world, "study-run-0", pod, 60)
    world.settle()
    assert members(world) == {"study-a", "study-b"}
    if late:
        world.now += 100
    else:
        del world.pods["study-run-0"]
    world.settle()
    assert members(world) == set()
    assert world.status["phase"] == "Suspended"


def test_the_cancellation_of_jobs_is_recorded_before_anything_is_deleted() -> None:
    world = withdrawing()
    world.ends("study-run")
    made = world.plan()
    assert [(each.kind, each.name) for each in made.changes if isinstance(each, Delete)] == [
        ("Job", "study-run")
    ]
    assert "run" not in next(e for e in made.status["members"] if e["name"] == "run")


def failed(world: World) -> None:
    """Simulate the Job's deadline: Kubernetes fails the Job and deletes its pods."""
    job = world.children[("Job", "study-run")]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    world.pods.pop("study-run-0")


def refused(world: World) -> None:
    world.ends("study-run", 2)


@pytest.mark.parametrize("how", [failed, refused])
def test_jobs_that_cannot_be_cancelled_are_given_up_after_a_time_and_reported(
    how: Callable[[World], None],
) -> None:
    world = withdrawing()
    limit = world.children[("Job", "study-run")]["spec"]["activeDeadlineSeconds"]
    assert 300 < limit <= 600
    how(world)
    world.settle()
    world.now = world.plan().again or world.now
    world.settle()
    assert members(world) == set()
    assert world.status["phase"] == "Suspended"
    assert told(world).count("NotWithdrawn") == 1


def test_jobs_are_not_reported_lost_if_a_withdrawals_end_is_seen_before_its_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = withdrawing()
    failed(world)
    monkeypatch.setattr(world, "kubernetes", lambda: None)  # would create a pod
    world.settle()
    assert members(world) == {"study-a", "study-b"}
    world.ends("study-run")
    world.settle()
    assert members(world) == set()
    assert "NotWithdrawn" not in told(world)


def test_a_revoked_suspend_lets_the_run_continue() -> None:
    world = running(shared())
    tag = world.entry("run")["run"]
    suspend(world)
    world.settle()
    assert withdraws(world)
    suspend(world, False)
    world.settle()
    runs_again(world)
    assert not withdraws(world)
    assert world.children[("Job", "study-run")]["metadata"]["annotations"][RUN] == tag
    suspend(world)
    world.settle()
    assert withdraws(world) == tag


@pytest.mark.parametrize("late", [False, True], ids=["it ends", "its node is gone"])
def test_a_run_is_withdrawn_once_its_own_pod_has_ended(late: bool) -> None:
    """Regression: a pod that was being deleted restarted the run after its jobs were cancelled."""
    world = running(shared())
    pod = world.pods["study-run-0"]
    suspend(world)
    world.step()
    lingers(world, "study-run-0", pod, 60)
    for _ in range(3):
        world.step()
    assert ("Job", "study-run") not in world.children
    world.figures.clear()
    assert world.plan().again == world.now + 70
    if late:
        world.now += 71
    else:
        del world.pods["study-run-0"]
    world.settle()
    assert withdraws(world) == world.entry("run")["run"]
    assert members(world) == {"study-a", "study-b"}


def test_a_run_continues_once_the_pod_that_withdrew_it_has_ended() -> None:
    """Otherwise the controller that cancels jobs would also stop the new one for good."""
    world = withdrawing()
    pod = world.pods["study-run-0"]
    suspend(world, False)
    world.step()
    lingers(world, "study-run-0", pod, 60)
    for _ in range(3):
        world.step()
    assert ("Job", "study-run") not in world.children
    del world.pods["study-run-0"]
    world.settle()
    assert ("Job", "study-run") in world.children
    assert not withdraws(world)


def test_a_member_is_recreated_once_its_previous_pods_have_ended() -> None:
    """Regression: a continued run submitted jobs to an agent and Flux that were about to end."""
    world = withdrawing()
    world.ends("study-run")
    pod = world.pods["study-a-0"]
    world.settle()
    assert members(world) == set()
    lingers(world, "study-a-0", pod, 30)
    suspend(world, False)
    for _ in range(3):
        world.step()
    assert members(world) == {"study-b"}
    assert ("Job", "study-run") not in world.children
    del world.pods["study-a-0"]
    world.settle()
    assert members(world) == {"study-a", "study-b"}
    assert ("Job", "study-run") not in world.children, "what was heard of them is of those before"


def test_a_run_that_could_not_continue_yet_is_withdrawn_at_another_suspend() -> None:
    world = running(shared())
    tag = world.entry("run")["run"]
    suspend(world)
    world.settle()
    world.killed("study-a")
    suspend(world, False)
    world.settle()
    assert ("Job", "study-run") not in world.children, "a member is not there"
    suspend(world)
    world.settle()
    assert withdraws(world) == tag


def test_a_run_that_never_started_is_not_waited_for() -> None:
    world = World(shared())
    world.settle()
    suspend(world)
    world.settle()
    assert members(world) == set()
    assert world.status["phase"] == "Suspended"


def test_a_run_whose_members_are_gone_has_nothing_to_cancel() -> None:
    world = withdrawing()
    for name in ("study-a", "study-b"):
        world.delete("MiniCluster", name)
    world.settle()
    assert world.status["phase"] == "Suspended"


@POD
def test_with_recreate_the_run_of_the_previous_file_is_withdrawn_first(
    pod: Callable[[World], None],
) -> None:
    world = running(shared(updatePolicy="Recreate"))
    tag = world.entry("run")["run"]
    pod(world)
    world.edit(lambda spec: spec.update(ensemble=OTHER))
    world.settle()
    assert withdraws(world) == tag
    world.ends("study-run")
    world.settle()
    noted = world.children[("Job", "study-run")]["metadata"]["annotations"]
    assert WITHDRAWS not in noted
    assert noted[RUN] not in ("", tag)
    assert world.entry("run")["run"] == noted[RUN]


@POD
def test_with_recreate_a_member_is_deleted_once_the_runs_jobs_are_cancelled(
    pod: Callable[[World], None],
) -> None:
    world = running(shared(updatePolicy="Recreate"))
    tag = world.entry("run")["run"]
    uids = {
        name: world.children[("MiniCluster", name)]["metadata"]["uid"] for name in members(world)
    }
    pod(world)

    def edit(spec: Object) -> None:
        spec["members"][0]["minicluster"]["spec"]["containers"][0]["image"] = "another"

    world.edit(edit)
    world.settle()
    assert withdraws(world) == tag
    assert world.children[("MiniCluster", "study-a")]["metadata"]["uid"] == uids["study-a"]
    world.ends("study-run")
    del world.figures["default/study-a"]
    world.settle()
    assert ("Job", "study-run") not in world.children, "not before all members are there"
    runs_again(world)
    assert world.children[("MiniCluster", "study-a")]["metadata"]["uid"] != uids["study-a"]
    assert world.children[("MiniCluster", "study-b")]["metadata"]["uid"] == uids["study-b"]
    assert world.entry("run")["run"] == tag, "the same run continues"
    assert not withdraws(world)


HISTORY = st.lists(
    st.tuples(
        st.sampled_from([each for each in (*EVENTS, "image") if each != "lose"]),
        st.integers(0, 7),
        st.integers(0, 3),
    ),
    max_size=12,
)


@QUICK
@given(st.sampled_from(["OnFinish", "Recreate"]), HISTORY)
def test_no_member_is_deleted_and_no_other_run_starts_while_a_run_may_have_jobs(
    policy: str, history: list[tuple[str, int, int]]
) -> None:
    """The operator may be killed after any of its writes."""
    world = running(shared(updatePolicy=policy, suspend=False))
    mine, busy = world.entry("run")["run"], True
    for what, pick, most in history:
        if what == "image":
            containers = world.found["spec"]["members"][0]["minicluster"]["spec"]["containers"]
            containers[0]["image"] = f"image-{pick % 2}"
            world.found["metadata"]["generation"] += 1
        else:
            happens(world, what, pick)
        for at in range(6):
            pod = world.pods.get("study-run-0")
            states = (pod or {}).get("status", {}).get("containerStatuses", [{}])
            ended = "terminated" in states[0].get("state", {})
            good = ended and "ensemble: exit" in states[0]["state"]["terminated"].get("message", "")
            if good and ("Job", "study-run") in world.children:
                busy = False  # withdrawn, or over
            made = world.plan()
            world.found["status"] = dict(made.status)
            for number, change in enumerate(made.changes):
                if at == 0 and number >= most:
                    break  # killed
                if isinstance(change, Delete) and change.kind == "MiniCluster":
                    assert not busy, change
                if isinstance(change, Create) and change.body["kind"] == "Job":
                    noted = change.body["metadata"]["annotations"]
                    if WITHDRAWS in noted:
                        assert noted[RUN] == mine
                    else:
                        assert not busy or noted[RUN] == mine
                        mine, busy = noted[RUN], True
                world.carry_out(copy.deepcopy(change))
            world.kubernetes()


def script(world: World) -> str:
    (container,) = world.children[("Job", "study-run")]["spec"]["template"]["spec"]["containers"]
    shell, option, text = container["command"]
    assert (shell, option) == ("/bin/sh", "-c")
    return str(text)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([0], "ensemble: exit 0\n"),
        ([75, 75, 0], "ensemble: exit 0\n"),
        ([2], "ensemble: exit 2\n"),
        (None, "ensemble: exit 0\n"),
        ([143], ""),
    ],
    ids=["cancelled", "the queue is away at first", "it cannot be", "never began", "killed"],
)
def test_the_queue_is_asked_until_it_has_no_jobs_of_the_run(
    tmp_path: Path, codes: list[int] | None, message: str
) -> None:
    world = running(shared())
    tag = world.entry("run")["run"]
    suspend(world)
    world.settle()
    text = script(world).replace("/dev/termination-log", str(tmp_path / "told"))
    program = tmp_path / "bin" / "ensemble"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n'
        f"read code < {tmp_path}/codes; sed -i 1d {tmp_path}/codes\nexit $code\n"
    )
    program.chmod(0o755)
    (program.parent / "sleep").write_text("#!/bin/sh\n")
    (program.parent / "sleep").chmod(0o755)
    if codes is not None:
        (tmp_path / "runs" / tag).mkdir(parents=True)
        (tmp_path / "codes").write_text("".join(f"{each}\n" for each in codes))
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "ENSEMBLE_STATE": str(tmp_path)}
    environment["ENSEMBLE_PID"] = str(tmp_path / "pid")
    done = subprocess.run(["/bin/sh", "-c", text], env=environment, timeout=60, check=False)
    assert done.returncode == (0 if message else 143)
    assert ((tmp_path / "told").read_text() if message else "") == message
    asked = (tmp_path / "asked").read_text().splitlines() if codes else []
    assert asked == [f"stop --cancel-jobs {tag}"] * len(codes or ())
