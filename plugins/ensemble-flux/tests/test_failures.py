"""Tests of failures of a real Flux instance, and of the messages about them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ensemble_flux import bindings, idle_queue, submitter
from ensemble_flux.executor import FluxExecutor
from ensemble_testing.executor import Session

from ensemble_core import ExecutorError, Problem, Resources
from ensemble_core.plugin.executor import Run

Ensemble = Callable[..., Any]

ONE = """
jobs:
  - {name: work, command: "true"}
rules:
  - {trigger: start, action: {name: submit, label: work}}
"""
LASTING = """
jobs:
  - {name: work, command: sleep 1000, count: 20}
rules:
  - {trigger: start, action: {name: submit, label: work}}
"""


def problems(session: Session) -> list[str]:
    return [event.message for event in list(session.events) if isinstance(event, Problem)]


def gauge(session: Session, path: str) -> float | None:
    """Return the newest emitted value of a gauge."""
    for event in reversed(list(session.events)):
        if isinstance(event, Resources) and path in event.values:
            return event.values[path]
    return None


def look(session: Session, events: str) -> None:
    """Run a job as a guest: only changes of its own jobs make it update the gauges of nodes."""
    if events == "eventlogs":
        session.run(session.job("true"))


def refusal(tmp_path: Path, executor: FluxExecutor) -> ExecutorError:
    """Return the error that opening the executor raises."""
    run = Run(tag="refused", folder=tmp_path, clock=time.time)
    with pytest.raises(ExecutorError) as caught:
        executor.open(run, lambda _events: None)
    return caught.value


@pytest.fixture(params=["journal", "eventlogs"])
def events(request: pytest.FixtureRequest) -> str:
    """Return the source of events: of the instance's owner, and of a guest."""
    return str(request.param)


# -- before the start ----------------------------------------------------------------------------


def test_without_flux_the_error_says_what_to_install(ensemble: Ensemble, tmp_path: Path) -> None:
    run = ensemble(ONE, PATH=str(tmp_path / "nothing"), PYTHONPATH="", FLUX_URI="local:///none")
    assert run.ended() not in (0, 130)
    assert "bindings were not found" in run.errors
    assert "'flux' is not on the PATH" in run.errors
    assert "flux-python" in run.errors
    assert "Traceback" not in run.errors


@pytest.mark.usefixtures("flux_command")
@pytest.mark.parametrize("environment", [{}, {"FLUX_URI": ""}], ids=["unset", "empty"])
def test_outside_of_an_instance_the_error_says_how_to_get_one(
    ensemble: Ensemble, environment: dict[str, str]
) -> None:
    run = ensemble(ONE, **environment)
    assert run.ended() not in (0, 130)
    assert "no Flux instance answers" in run.errors
    assert "flux start" in run.errors
    assert "Traceback" not in run.errors


@pytest.mark.usefixtures("flux_command")
@pytest.mark.parametrize("kind", ["nothing", "deserted", "a file", "nonsense"])
def test_an_instance_that_is_gone_is_reported_by_name(
    ensemble: Ensemble, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "local-0"
    if kind == "deserted":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    elif kind == "a file":
        path.write_text("")
    uri = "there is no such scheme" if kind == "nonsense" else f"local://{path}"
    run = ensemble(ONE, FLUX_URI=uri)
    assert run.ended() not in (0, 130)
    assert f"no Flux instance answers at {uri}" in run.errors
    assert "flux uptime" in run.errors
    assert "Traceback" not in run.errors


@pytest.mark.usefixtures("instance")
def test_too_old_bindings_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "OLDEST", (999, 1))
    error = refusal(tmp_path, FluxExecutor())
    assert error.code == "version-mismatch"
    assert "999.1" in str(error)
    assert bindings.version(bindings.bindings()) in str(error)


@pytest.mark.usefixtures("instance")
def test_a_too_old_instance_is_rejected_and_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = type(bindings.bindings().Flux())
    old = handle.attr_get

    def attr_get(self: Any, name: str) -> Any:
        return "0.12.3" if name == "version" else old(self, name)

    monkeypatch.setattr(handle, "attr_get", attr_get)
    before = len(os.listdir("/proc/self/fd"))
    error = refusal(tmp_path, FluxExecutor())
    assert error.code == "version-mismatch"
    assert "instance" in str(error)
    assert "0.12.3" in str(error)
    assert len(os.listdir("/proc/self/fd")) <= before


# -- brokers that die ------------------------------------------------------------------------------


def test_a_run_whose_broker_is_killed_ends_with_a_message(
    own_instance: Any, ensemble: Ensemble
) -> None:
    run = ensemble(LASTING)
    run.wait_for(type="job", name="start")
    os.kill(own_instance.brokers()[0], signal.SIGKILL)
    assert run.ended() == 1
    assert "lost its queue" in run.errors
    assert "flux jobs -a" in run.errors
    assert "Traceback" not in run.errors
    assert run.of(type="summary")


def test_a_guest_whose_broker_is_killed_ends(own_instance: Any, ensemble: Ensemble) -> None:
    run = ensemble(LASTING, "-o", "events=eventlogs")
    run.wait_for(type="job", name="start")
    os.kill(own_instance.brokers()[0], signal.SIGKILL)
    assert run.ended(15) == 1
    assert "lost its queue" in run.errors
    assert "Traceback" not in run.errors


def test_a_broker_killed_while_jobs_are_being_submitted_ends_the_run(
    own_instance: Any, ensemble: Ensemble
) -> None:
    broker = own_instance.brokers()[0]
    run = ensemble(LASTING.replace("count: 20", "count: 5000"))
    run.wait_for(200, type="job", name="submit")
    os.kill(broker, signal.SIGKILL)
    assert run.ended(20) == 1
    assert "lost its queue" in run.errors
    assert "Traceback" not in run.errors


def test_an_instance_that_is_shut_down_under_a_run_ends_it(
    own_instance: Any, ensemble: Ensemble
) -> None:
    run = ensemble(LASTING)
    run.wait_for(type="job", name="start")
    own_instance.flux("shutdown", "--background", check=False)
    assert run.ended(30) != 0
    assert "Traceback" not in run.errors
    ends = run.of(type="job", name="clean")
    assert "lost its queue" in run.errors or len(ends) == 20, run.errors


def test_a_broker_that_is_paused_for_a_while_costs_nothing(
    own_instance: Any, tmp_path: Path
) -> None:
    broker = own_instance.brokers()[0]
    with Session(FluxExecutor(), tmp_path) as session:
        early = [session.job("sleep", "1") for _ in range(6)]
        session.submit(*early)
        session.wait_for(early[0], "start")
        os.kill(broker, signal.SIGSTOP)
        try:
            late = [session.job("true") for _ in range(20)]
            session.submit(*late)
            time.sleep(3)
        finally:
            os.kill(broker, signal.SIGCONT)
        session.wait_clean(*early, *late)
        for job in early + late:
            assert session.names(job).count("clean") == 1
            assert session.context(job, "finish")["status"] == 0
    assert len(own_instance.jobs()) == 26


def test_a_node_that_dies_under_a_job_ends_the_job_and_is_named(
    own_instance: Any, tmp_path: Path
) -> None:
    lost = own_instance.brokers()[3]
    with Session(FluxExecutor(events="journal"), tmp_path) as session:
        assert session.executor.resources()["nodes.up"] == 4
        job = session.job("sleep", "1000", nodes=4, tasks=4)
        session.submit(job)
        session.wait_for(job, "start")
        os.kill(lost, signal.SIGKILL)
        context = session.wait_for(job, "exception")
        assert context["severity"] == 0
        assert context["note"]
        session.wait(lambda: gauge(session, "nodes.up") == 3, "a node less")
        assert any("rank 3" in text and "went down" in text for text in problems(session))


# -- drained nodes and disabled queues ---------------------------------------------------------------


def test_a_drained_node_is_reported_with_its_reason_and_counts_again_after_its_return(
    own_instance: Any, tmp_path: Path, events: str
) -> None:
    with Session(FluxExecutor(events=events), tmp_path) as session:
        own_instance.flux("resource", "drain", "2", "bad memory")
        look(session, events)
        session.wait(lambda: gauge(session, "nodes.up") == 3, "a node less")
        session.wait(lambda: bool(problems(session)), "a warning")
        warning = problems(session)[0]
        assert "rank 2" in warning
        assert "bad memory" in warning
        assert "undrain" in warning
        own_instance.flux("resource", "undrain", "2")
        look(session, events)
        session.wait(lambda: gauge(session, "nodes.up") == 4, "the node again")
        assert session.executor.resources()["nodes.up"] == 4
        assert len(problems(session)) == 1


def test_a_disabled_queue_rejects_jobs_with_fluxs_message(
    own_instance: Any, tmp_path: Path, events: str
) -> None:
    with Session(FluxExecutor(events=events), tmp_path) as session:
        own_instance.flux("queue", "disable", "--message=maintenance on Tuesday")
        refused = session.job("true")
        session.run(refused)
        assert session.names(refused) == ["submit", "exception", "clean"]
        assert "maintenance on Tuesday" in session.context(refused, "exception")["note"]
        own_instance.flux("queue", "enable")
        taken = session.job("true")
        session.run(taken)
        assert session.context(taken, "finish")["status"] == 0


def test_in_a_stopped_queue_jobs_wait_and_the_gauges_show_it(
    own_instance: Any, tmp_path: Path, events: str
) -> None:
    own_instance.flux("queue", "stop")
    with Session(FluxExecutor(events=events), tmp_path) as session:
        jobs = [session.job("true") for _ in range(5)]
        session.submit(*jobs)
        session.wait(lambda: gauge(session, "queue.sched") == 5, "five waiting jobs")
        assert gauge(session, "waiting.nodes") == 5
        assert not any("start" in session.names(job) for job in jobs)
        own_instance.flux("queue", "start")
        session.wait_clean(*jobs)
        session.wait(lambda: gauge(session, "queue.sched") == 0, "no waiting job")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of three megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no 'mount' here")
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_an_instance_whose_disk_is_full_still_runs_every_job(
    flux_command: str,
    small_disk: Path,
    make_instance: Callable[..., Any],
    ensemble: Ensemble,
) -> None:
    instance = make_instance(f"-Sstatedir={small_disk}", size=1)
    with (small_disk / "fill").open("wb", buffering=0) as fill, suppress(OSError):
        while fill.write(b"x" * 4096):
            pass
    assert shutil.disk_usage(small_disk).free == 0
    run = ensemble(ONE.replace('"true"', '"true", count: 50'), FLUX_URI=instance.uri)
    assert run.ended(60) == 0, run.errors
    assert "content" in instance.flux("dmesg")  # it reported the full disk
    assert len(run.of(type="job", name="clean")) == 50
    os.kill(instance.brokers()[0], signal.SIGKILL)  # a shutdown would first try to save its content


# -- jobs that Flux rejects ------------------------------------------------------------------------


def test_a_job_that_flux_rejects_has_its_message_and_the_others_continue(
    instance: Any, tmp_path: Path, events: str
) -> None:
    with Session(FluxExecutor(events=events), tmp_path) as session:
        bad = {
            "too many nodes": session.job("true", nodes=500, tasks=500),
            "unknown queue": session.job("true", options={"flux": {"queue": "nowhere"}}),
            "shell option": session.job("true", options={"flux": {"shell": {"output": 7}}}),
            "urgency": session.job("true", urgency=99),
            "no command": session.job(""),
            "no cores": session.job("true", cores_per_task=0),
        }
        good = [session.job("true") for _ in range(10)]
        session.run(*good[:5], *bad.values(), *good[5:])
        for job in good:
            assert session.context(job, "finish")["status"] == 0
        notes = {}
        for what, job in bad.items():
            fatal = [
                e.context
                for e in session.of(job)
                if e.name == "exception" and e.context["severity"] == 0
            ]
            assert len(fatal) >= 1, (what, session.of(job))
            assert session.names(job)[0] == "submit", what
            assert session.names(job).count("clean") == 1, what
            notes[what] = str(fatal[0]["note"])
        assert all(notes.values()), notes
        assert "unsatisfiable" in notes["too many nodes"], notes
        assert "queue" in notes["unknown queue"], notes
        assert "urgency" in notes["urgency"], notes


def test_a_rejected_job_is_shown_to_the_user_and_the_run_fails(
    instance: Any, ensemble: Ensemble
) -> None:
    run = ensemble(
        """
jobs:
  - {name: huge, command: "true", nodes: 500}
  - {name: small, command: "true", count: 5}
rules:
  - {trigger: start, action: [{name: submit, label: huge}, {name: submit, label: small}]}
"""
    )
    assert run.ended() == 1
    (summary,) = run.of(type="summary")
    groups = {group["name"]: group for group in summary["groups"]}
    assert groups["huge"]["failed"] == 1
    assert groups["small"]["success"] == 5
    assert "unsatisfiable" in run.errors


# -- a held job -------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", ["journal", "eventlogs"])
def test_a_waiting_job_that_somebody_holds_is_reported_once_with_what_releases_it(
    own_instance: Any, tmp_path: Path, events: str
) -> None:
    own_instance.flux("submit", "-N4", "--exclusive", "sleep", "1000")
    with Session(FluxExecutor(events=events), tmp_path) as session:
        jobs = [session.job("true", group="work") for _ in range(2)]
        wished = session.job("true", group="wished", urgency=0)
        session.submit(*jobs, wished)
        for job in (*jobs, wished):
            session.wait_for(job, "priority")
        ids = [str(session.context(job, "submit")["queue_id"]) for job in jobs]
        for id_ in ids:
            own_instance.flux("job", "urgency", id_, "hold")
        session.wait(lambda: problems(session), "a warning")
        (message,) = problems(session)
        assert message.startswith("work.")
        assert "holds it" in message
        release = message.split("'")[1]
        assert release in [f"flux job urgency {id_} default" for id_ in ids]
        for id_ in ids:
            own_instance.flux("job", "urgency", id_, "default")
        own_instance.flux("cancel", "--all", "--states=run")
        session.wait_clean(*jobs)
        session.executor.cancel([wished.id])
        session.wait_clean(wished)
        assert problems(session) == [message]


# -- a queue that starts nothing --------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_queue, "PATIENCE", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_stopped_queue_is_reported_once_with_what_starts_it(
    own_instance: Any, tmp_path: Path, events: str
) -> None:
    own_instance.flux("queue", "stop")
    with Session(FluxExecutor(events=events), tmp_path) as session:
        jobs = [session.job("true", group=name) for name in ("one", "two", "two")]
        session.submit(*jobs)
        session.wait(lambda: problems(session), "a warning")
        time.sleep(2.0)
        (message,) = problems(session)
        assert "waits in Flux: the queue is stopped" in message
        assert "'flux queue start' lets it start" in message
        own_instance.flux("queue", "start")
        session.wait_clean(*jobs)
        assert problems(session) == [message]


def test_submissions_that_flux_never_answers_are_reported(
    own_instance: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload of the module job-ingest drops the submissions in flight. The run hung silently."""

    def submit(handle: Any, *words: Any, **more: Any) -> Any:
        return handle.rpc("kvs.wait-version", {"namespace": "primary", "rootseq": 2**30})

    monkeypatch.setattr(submitter, "_SILENT", 1.0)
    with Session(FluxExecutor(), tmp_path) as session:
        session.run(session.job("true"))
        flux = sys.modules["flux"]
        real = flux.job.submit_async
        monkeypatch.setattr(flux.job, "submit_async", submit)
        session.submit(session.job("true"), session.job("true"))
        session.wait(lambda: problems(session), "a warning")
        monkeypatch.setattr(flux.job, "submit_async", real)
        session.run(session.job("true"))
        time.sleep(2.0)
        (message,) = problems(session)
        assert "Flux has not answered 2 submissions" in message
        assert "'ensemble resume'" in message


@pytest.mark.usefixtures("impatient")
def test_a_stopped_queue_with_a_name_is_reported_while_other_jobs_run(
    make_instance: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: str
) -> None:
    (tmp_path / "queues.toml").write_text("[queues.debug]\n[queues.batch]\n")
    instance = make_instance(f"--config-path={tmp_path}")
    monkeypatch.setenv("FLUX_URI", instance.uri)
    instance.flux("queue", "start", "--all")
    with Session(FluxExecutor(events=events), tmp_path) as session:
        runs = session.job("sleep", "1000", group="runs", options={"flux": {"queue": "batch"}})
        session.submit(runs)
        session.wait_for(runs, "start")
        instance.flux("queue", "stop", "--queue=debug")
        waits = session.job("true", group="waits", options={"flux": {"queue": "debug"}})
        session.submit(waits)
        session.wait(lambda: problems(session), "a warning")
        (message,) = problems(session)
        assert message.startswith(f"{waits.id} waits in Flux: the queue debug is stopped")
        assert "'flux queue start --queue=debug'" in message
        instance.flux("queue", "start", "--queue=debug")
        session.wait_clean(waits)
        session.executor.cancel([runs.id])
        session.wait_clean(runs)


@pytest.mark.usefixtures("impatient")
def test_a_job_for_which_too_many_nodes_were_drained_before_the_run_is_reported_once(
    own_instance: Any, tmp_path: Path, events: str
) -> None:
    own_instance.flux("resource", "drain", "1-3", "broken")
    with Session(FluxExecutor(events=events), tmp_path) as session:
        small, large = session.job("true", group="small"), session.job("true", nodes=4, tasks=4)
        session.submit(small, large)
        session.wait_clean(small)
        session.wait(lambda: problems(session), "a warning")
        time.sleep(2.0)
        (message,) = problems(session)
        assert f"{large.id} waits in Flux: it needs 4 nodes, but only 1 is up; nodes are" in message
        assert "'flux resource undrain 1,2,3' lets it start" in message
        own_instance.flux("resource", "undrain", "1-3")
        session.wait_clean(large)
