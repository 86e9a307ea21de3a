"""Instances that end with the run's allocation or with the program of ``flux start``."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_flux import instance
from ensemble_flux.executor import FluxExecutor
from ensemble_flux.instance import (
    Instance,
    LastInstance,
    ends_with,
    presence,
    read_instance,
    survives_power_cut,
)
from ensemble_testing import Session, wait_until
from ensemble_testing.processes import Allocation

from ensemble_core import ExecutorLost, JobEvent

FILE = """
jobs: [{name: a, command: "sh -c 'sleep 1; echo $ENSEMBLE_JOB_ID >> ran'", count: 8}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


class Handle:
    """A handle of an instance with these attributes."""

    def __init__(self, level: str = "0", **attributes: str) -> None:
        self._level = level
        self._attributes = {name.replace("_", "."): value for name, value in attributes.items()}

    def attr_get(self, name: str) -> str:
        if name == "instance-level":
            return self._level
        if name not in self._attributes:
            raise OSError(2, "No such file or directory")
        return self._attributes[name]

    def rpc(self, topic: str, payload: dict[str, str], nodeid: int) -> Handle:
        assert (topic, nodeid) == ("attr.get", 0)
        self._asked = payload["name"]
        return self

    def get(self) -> dict[str, str]:
        if self._asked not in self._attributes:
            raise OSError(2, "No such file or directory")
        return {"value": self._attributes[self._asked]}


@pytest.fixture(autouse=True)
def _no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*instance._ALLOCATIONS, "FLUX_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def sleeper(**more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], env={**os.environ, **more})


def test_an_instance_that_is_a_job_is_temporary() -> None:
    assert read_instance(Handle("1")).temporary
    assert not read_instance(Handle("0")).temporary


@pytest.mark.parametrize(
    ("hosts", "cleanup", "survives"),
    [
        (("", ""), "1", False),
        (("", "elsewhere"), "1", True),
        (("elsewhere",), "1", True),
        (("",), "0", True),  # its state is in a folder that it finds again
        (("",), None, True),  # Flux does not tell
    ],
)
def test_jobs_of_an_instance_on_this_machine_alone_end_with_its_power(
    hosts: Sequence[str], cleanup: str | None, survives: bool
) -> None:
    names = [host or socket.gethostname() for host in hosts]
    handle = Handle()
    if cleanup is not None:
        handle._attributes["statedir-cleanup"] = cleanup
    assert survives_power_cut(handle, names) is survives


@pytest.mark.parametrize("lasts", [False, True])
def test_the_journal_waits_for_the_disk_only_if_the_state_of_flux_lasts(
    make_instance: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lasts: bool,
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    options = [f"--setattr=statedir={folder}"] if lasts else []
    monkeypatch.setenv("FLUX_URI", make_instance(*options, size=1).uri)
    executor = FluxExecutor()
    assert executor.survives_power_cut, "until it is open"
    with Session(executor, tmp_path / "run"):
        assert executor.survives_power_cut is lasts


def test_an_instance_whose_broker_is_an_ancestor_is_temporary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Handle(broker_pid=str(os.getppid()), broker_uuid="u")
    assert read_instance(here) == Instance("u", temporary=True, pid=os.getppid())
    monkeypatch.setenv("FLUX_JOB_ID", "f7")  # a job of the instance, which outlives the job
    assert not read_instance(here).temporary
    monkeypatch.delenv("FLUX_JOB_ID")
    elsewhere = Handle(broker_pid=str(os.getppid()), hostname="elsewhere")
    assert not read_instance(elsewhere).temporary


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID"])
def test_an_instance_whose_broker_is_in_an_allocation_is_temporary(name: str) -> None:
    inside, outside = sleeper(**{name: "7"}), sleeper()
    try:
        found = read_instance(Handle(broker_pid=str(inside.pid), **{"local-uri": "local:///x"}))
        assert found.temporary
        assert (found.allocation, found.uri) == (f"{name}=7", "local:///x")
        assert not read_instance(Handle(broker_pid=str(outside.pid))).temporary
    finally:
        for each in (inside, outside):
            each.kill()
            each.wait()


def test_an_instance_ends_with_a_process_of_its_allocation_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child, other = Handle("1", broker_pid=str(os.getppid())), Handle("1", broker_pid="4194305")
    there = Instance("u", temporary=True, allocation="PBS_JOBID=7")
    assert ends_with(child, there)
    assert not ends_with(other, there)  # for example, from a login node
    assert not ends_with(Handle("1"), there)
    monkeypatch.setenv("PBS_JOBID", "7")
    assert ends_with(other, there)
    monkeypatch.setenv("PBS_JOBID", "8")
    assert not ends_with(other, there)


def test_a_temporary_instance_is_left_for_another_one(tmp_path: Path) -> None:
    first, next_ = Instance("a", temporary=True), Instance("b", temporary=True)
    assert not LastInstance(tmp_path).is_left_for(first)
    LastInstance(tmp_path).record(first)
    assert not LastInstance(tmp_path).is_left_for(first)
    assert LastInstance(tmp_path).is_left_for(next_)
    assert not LastInstance(tmp_path).is_left_for(Instance(""))
    LastInstance(tmp_path).record(Instance("c"))  # the system's instance still runs
    assert not LastInstance(tmp_path).is_left_for(next_)
    LastInstance(None).record(first)
    (tmp_path / "flux-instance.json").write_text("{")
    assert LastInstance(tmp_path).last == Instance()


HERE = socket.gethostname()


def broker(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process with the name of a broker."""
    program = folder / "flux-broker-0"
    program.symlink_to(shutil.which("sleep") or "")
    return subprocess.Popen([program, "600"])


@pytest.mark.parametrize(
    ("answers", "found"), [("a", "running"), ("b", "ended"), (None, "unknown")]
)
def test_an_instance_on_this_host_runs_while_its_broker_answers(
    tmp_path: Path, answers: str | None, found: str
) -> None:
    def connect(uri: str) -> Handle:
        assert uri == "local:///x"
        if answers is None:
            raise OSError(111, "Connection refused")
        return Handle(broker_uuid=answers)

    process = broker(tmp_path)
    last = Instance("a", temporary=True, host=HERE, pid=process.pid, uri="local:///x")
    try:
        wait_until(lambda: "flux" in Path(f"/proc/{process.pid}/comm").read_text())
        assert presence(last, connect) == found
    finally:
        process.kill()
        process.wait()
    assert presence(last, connect) == "ended"


def test_an_instance_whose_process_id_is_reused_has_ended() -> None:
    process = sleeper()
    try:
        last = Instance("a", temporary=True, host=HERE, pid=process.pid, uri="local:///x")
        assert presence(last, Handle) == "ended"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("program", "says", "code", "allocation", "found"),
    [
        ("ssh", "flux-broker-0", 0, "", "running"),
        ("ssh", "none", 0, "", "ended"),
        ("ssh", "", 255, "", "unknown"),
        ("squeue", "RUNNING", 0, "SLURM_JOB_ID=7", "unknown"),
        ("squeue", "COMPLETED", 0, "SLURM_JOB_ID=7", "ended"),
        ("squeue", "slurm_load_jobs error: Invalid job id specified", 1, "SLURM_JOB_ID=7", "ended"),
        ("squeue", "slurm_load_jobs error: Unable to contact", 1, "SLURM_JOB_ID=7", "unknown"),
        ("squeue", "squeue: error: Munge encode failed", 1, "SLURM_JOB_ID=7", "unknown"),
        ("qstat", "qstat: 7.head Job has finished", 35, "PBS_JOBID=7.head", "ended"),
        ("qstat", "qstat: cannot connect to server", 111, "PBS_JOBID=7.head", "unknown"),
    ],
)
def test_the_host_or_the_queue_tells_whether_an_instance_elsewhere_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    program: str, says: str, code: int, allocation: str, found: str,
) -> None:  # fmt: skip
    for name in ("ssh", "squeue", "qstat"):
        said, exit_code = (says, code) if name == program else ("", 255)
        path = tmp_path / name
        stream = ">&2" if exit_code else ""
        path.write_text(f"#!/bin/sh\necho '{said}' {stream}\nexit {exit_code}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    last = Instance("a", True, host="elsewhere", pid=7, uri="local:///x", allocation=allocation)
    assert presence(last, Handle) == found


_RUN = "ensemble run f.yaml --executor flux --tag t --state state"


def _environment() -> dict[str, str]:
    """Return the environment outside of any instance, in which this Python's commands are found."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("FLUX_")}
    known["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}"
    return known


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the program of an instance of its own."""
    return subprocess.run(
        ["flux", "start", *words], cwd=folder, env=_environment(), capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


@pytest.mark.usefixtures("instance")
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_in_the_program_of_an_instance_continues_in_the_next_one(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "f.yaml").write_text(FILE)
    if how == "stopped":
        ended = start(tmp_path, *_RUN.split(), "--wall", "2s")
        assert ended.returncode == 5, ended.stderr
        assert "cancelling" in ended.stdout + ended.stderr
    else:
        script = f"{_RUN} & until [ -s ran ]; do sleep 0.1; done; kill -9 $!"
        start(tmp_path, "sh", "-c", script)
    resumed = start(tmp_path, "ensemble", "resume", "t", "--state", "state")
    ran = (tmp_path / "ran").read_text().split()
    assert len(ran) == len(set(ran)), "no job runs twice"
    if how == "stopped":
        assert (resumed.returncode, len(ran)) == (0, 8), resumed.stdout
        return
    # Jobs that ran when the instance was killed, or started after the controller's end, have
    # failed. Those that had not started run now.
    failed = re.findall(r"failed (a\.\d+): (node-failure|lost)", resumed.stdout + resumed.stderr)
    assert {f"a.{index}" for index in range(8)} <= {*ran, *(job for job, _ in failed)}
    assert resumed.returncode == (1 if failed else 0)


@pytest.mark.usefixtures("instance")
def test_the_end_of_the_allocation_around_an_instance_loses_no_job(tmp_path: Path) -> None:
    """SIGTERM reaches every process of the allocation: broker, controller and jobs."""
    (tmp_path / "f.yaml").write_text(FILE)
    command = ["flux", "start", *_RUN.split()]
    with (tmp_path / "output").open("w") as output:
        allocation = Allocation(command, tmp_path, _environment(), output)
    try:
        wait_until(lambda: bool((tmp_path / "ran").exists()))
        allocation.end(random.Random(1))
        allocation.wait_over()
    finally:
        allocation.kill()
    said = (tmp_path / "output").read_text()
    resumed = start(tmp_path, "ensemble", "resume", "t", "--state", "state")
    assert resumed.returncode == 0, said + resumed.stdout + resumed.stderr
    ran = (tmp_path / "ran").read_text().split()
    assert sorted(set(ran)) == [f"a.{index}" for index in range(8)]


@pytest.mark.usefixtures("instance")
@pytest.mark.parametrize("stops", [True, False], ids=["allocation", "others"])
def test_jobs_that_the_end_of_an_allocation_reaches_first_are_interrupted(
    tmp_path: Path, stops: bool
) -> None:
    """SIGTERM to the jobs of an instance is a failure, unless the run gets it soon, too."""
    gate = "until [ -e gate ]; do sleep 0.1; done"
    (tmp_path / "f.yaml").write_text(FILE.replace("sleep 1", gate))
    then = "kill $!" if stops else "touch gate"
    script = (
        f"{_RUN} > said 2>&1 & until flux jobs -no '{{id}}' --filter=running | grep -q .; do "
        "sleep 0.1; done; flux jobs -no '{id}' --filter=running | xargs -n1 flux job kill -s TERM; "
        f"sleep 1; {then}; wait $!"
    )
    start(tmp_path, "sh", "-c", script)
    said = (tmp_path / "said").read_text()
    if not stops:
        assert "by signal" in said
        return
    assert "failed a." not in said
    (tmp_path / "gate").touch()
    resumed = start(tmp_path, "ensemble", "resume", "t", "--state", "state")
    assert resumed.returncode == 0, said + resumed.stdout + resumed.stderr
    assert len((tmp_path / "ran").read_text().split()) == 8


def events_of(session: Session) -> dict[str, list[JobEvent]]:
    """Return the events of the run's jobs, by job."""
    found: dict[str, list[JobEvent]] = {}
    for event in list(session.events):
        if isinstance(event, JobEvent) and event.ours:
            found.setdefault(event.job, []).append(event)
    return found


def ends_of(events: Sequence[JobEvent]) -> list[str]:
    """Return the types of a job's exceptions, and ``clean`` if it is over."""
    ends = [event for event in events if event.name in ("exception", "clean")]
    return [str(event.context.get("type", event.name)) for event in ends]


@pytest.mark.parametrize("source", ["journal", "eventlogs"])
@pytest.mark.parametrize("next_", ["same", "new"])
def test_a_drain_interrupts_running_jobs_and_leaves_the_others_on_record(
    make_instance: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    next_: str,
) -> None:
    """The next controller learns all ends again, also if the instance has ended."""
    monkeypatch.setenv("PBS_JOBID", "7.head")  # of this process and of the brokers
    first = make_instance(size=1)
    monkeypatch.setenv("FLUX_URI", first.uri)
    loop = "while :; do sleep 0.1; done"
    with Session(FluxExecutor(events=source), tmp_path) as session:
        assert session.executor.drains
        succeeds = session.job("sh", "-c", f"trap 'exit 0' TERM; touch {tmp_path}/up; {loop}")
        stubborn = session.job("sh", "-c", f"trap '' TERM; touch {tmp_path}/up2; {loop}")
        quick = session.job("true")
        session.run(quick)
        rest = [session.job("sleep", "600") for _ in range(4 * (os.cpu_count() or 1))]
        session.submit(succeeds, stubborn, *rest)
        wait_until(lambda: (tmp_path / "up").exists() and (tmp_path / "up2").exists())
        wait_until(lambda: len(events_of(session)) == len(rest) + 3)
        session.executor.drain()
        late = session.job("true")
        session.submit(late)
        wait_until(lambda: any(isinstance(event, ExecutorLost) for event in session.events))
    last = session.events[-1]
    assert isinstance(last, ExecutorLost)
    assert last.drained
    told = events_of(session)
    assert late.id not in told
    succeeded = (quick.id, succeeds.id)
    assert [ends_of(told[job]) for job in succeeded] == [["clean"], ["clean"]]
    started = {job for job, events in told.items() if any(e.name == "start" for e in events)}
    waiting = told.keys() - started
    assert waiting
    for job in started.difference(succeeded):
        assert ends_of(told[job]) == ["interrupted", "clean"]
    assert [ends_of(told[job]) for job in waiting] == [[] for _ in waiting]
    if next_ == "new":
        first.close()
        monkeypatch.setenv("FLUX_URI", make_instance(size=1).uri)
    with Session(FluxExecutor(events=source), tmp_path).resume(session) as later:
        known = {
            job: max(e.timestamp for e in events if e.name in ("submit", "start"))
            for job, events in told.items()
        }
        found = later.executor.reattach({**known, late.id: 0.0})
        assert found == {
            **dict.fromkeys(started, True),
            **dict.fromkeys(waiting, next_ == "same"),
            late.id: False,
        }
        again = started | waiting if next_ == "same" else started
        wait_until(lambda: later.over() == again)
    for job, events in events_of(later).items():
        assert ends_of(events) == (["clean"] if job in succeeded else ["interrupted", "clean"])


def test_a_broker_that_is_gone_during_a_drain_ends_it_in_order(
    make_instance: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_JOBID", "7.head")
    first = make_instance(size=1)
    monkeypatch.setenv("FLUX_URI", first.uri)
    (broker_pid,) = first.brokers()
    with Session(FluxExecutor(), tmp_path) as session:
        loop = "while :; do sleep 0.1; done"
        stubborn = session.job("sh", "-c", f"trap '' TERM; touch {tmp_path}/up; {loop}")
        session.submit(stubborn)
        wait_until((tmp_path / "up").exists)
        session.wait_for(stubborn, "start")
        session.executor.drain()
        os.kill(broker_pid, signal.SIGKILL)
        wait_until(lambda: any(isinstance(event, ExecutorLost) for event in session.events))
        session.executor.cancel([stubborn.id])  # nothing is left to cancel
    last = session.events[-1]
    assert isinstance(last, ExecutorLost)
    assert last.drained
    assert ends_of(session.of(stubborn)) == ["interrupted", "clean"]


@pytest.mark.usefixtures("instance")
def test_a_run_whose_instance_still_runs_is_not_resumed_in_another_one(tmp_path: Path) -> None:
    count = 4 * (os.cpu_count() or 1)  # so that some jobs wait
    (tmp_path / "f.yaml").write_text(
        FILE.replace("sleep 1", "until [ -e gate ]; do sleep 0.1; done").replace(
            "count: 8", f"count: {count}"
        )
    )
    run = "ensemble run f.yaml --executor flux --tag t --state state"
    script = (
        f"{run} & until [ $(flux jobs -no '{{id}}' --filter=running | wc -l) -gt 0 ]; "
        "do sleep 0.1; done; kill -9 $!; touch killed; until [ -e over ]; do sleep 0.1; done"
    )
    known = {k: v for k, v in os.environ.items() if not k.startswith("FLUX_")}
    known["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}"
    first = subprocess.Popen(["flux", "start", "sh", "-c", script], cwd=tmp_path, env=known)
    try:
        wait_until((tmp_path / "killed").exists)
        resume = ("ensemble", "resume", "t", "--state", "state")
        refused = start(tmp_path, *resume)
        assert refused.returncode == 1, refused.stdout + refused.stderr
        assert "another Flux instance" in refused.stderr
        assert "FLUX_URI=local://" in refused.stderr
        (tmp_path / "gate").touch()
        log = tmp_path / "ran"
        wait_until(lambda: log.exists() and len(log.read_text().split()) == count)
    finally:
        for name in ("gate", "over"):
            (tmp_path / name).touch()
        first.wait(120)
    start(tmp_path, *resume)
    ran = (tmp_path / "ran").read_text().split()
    assert len(ran) == len(set(ran)), "no job runs twice"


def test_flux_names_the_user_who_cancelled_a_job(instance: Any, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FILE.replace("sleep 1", "sleep 600"))
    words = "ensemble run f.yaml --executor flux --tag t --state state"
    script = f"{words} > log 2>&1 & until flux jobs -no '{{name}}' | grep -q a; do sleep 0.2; done;"
    ended = start(tmp_path, "sh", "-c", f"{script} sleep 1; flux cancel --all; wait $!")
    log = (tmp_path / "log").read_text()
    assert ended.returncode == 1, log
    assert " exit code 1: 8 jobs were cancelled by others (" in log


@pytest.mark.parametrize("source", ["journal", "eventlogs"])
def test_an_instance_that_is_shut_down_interrupts_the_jobs_that_it_cancels(
    make_instance: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A run beside the instance goes on with them in the next one, as with the waiting ones."""
    first = make_instance(size=1)
    monkeypatch.setenv("FLUX_URI", first.uri)
    with Session(FluxExecutor(events=source), tmp_path) as session:
        jobs = [session.job("sleep", "600") for _ in range(2 * (os.cpu_count() or 1))]
        session.submit(*jobs)
        running = jobs[: os.cpu_count() or 1]
        for job in running:
            session.wait_for(job, "start")
        first.flux("cancel", session.queue_id(running[0]))
        session.wait_clean(running[0])
        assert session.exception(running[0]) == "cancel"
        session.wait_for(jobs[len(running)], "start")
        first.flux("shutdown", "--background", check=False)
        wait_until(lambda: any(isinstance(event, ExecutorLost) for event in session.events))
    told = events_of(session)
    started = [job for job in jobs[1:] if any(e.name == "start" for e in told[job.id])]
    assert len(started) == len(running)
    assert {tuple(ends_of(told[job.id])) for job in started} == {("interrupted", "clean")}
    waiting = [job for job in jobs[1:] if job not in started]
    assert {tuple(ends_of(told[job.id])) for job in waiting} == {()}
