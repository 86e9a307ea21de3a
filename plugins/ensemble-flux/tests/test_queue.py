"""Tests of a run in a shared Flux instance: backlog, foreign jobs, other runs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ensemble_flux import bindings
from ensemble_flux.event_streams import EventlogWatcher
from ensemble_flux.executor import FluxExecutor
from ensemble_testing.executor import Session, wait_until

from ensemble_core import Job, JobEvent, Problem, Resources
from ensemble_core.plugin.executor import Run

Ensemble = Callable[..., Any]
#: Number of jobs that wait in the instance before the run connects.
BACKLOG = 10_000


@pytest.fixture(params=["journal", "eventlogs"])
def events(request: pytest.FixtureRequest) -> str:
    """Return the source of events: of the instance's owner, and of a guest."""
    return str(request.param)


def submit_held(count: int) -> None:
    """Submit foreign jobs that are held in the current instance."""
    flux = bindings.bindings()
    handle = flux.Flux()
    spec = flux.job.JobspecV1.from_command(["true"])
    spec.environment = {}
    text = spec.dumps()
    for start in range(0, count, 500):
        futures = [
            flux.job.submit_async(handle, text, urgency=0) for _ in range(min(500, count - start))
        ]
        for future in futures:
            future.get_id()


def truth(instance: Any) -> dict[str, float]:
    """Return the gauges according to Flux's commands."""
    states = Counter(job["state"] for job in instance.jobs())
    found: dict[str, float] = {
        f"queue.{name}": states.get(name.upper(), 0)
        for name in ("depend", "priority", "sched", "run", "cleanup", "inactive")
    }
    for path, shown in (("free", "free"), ("up", "up")):
        line = instance.flux("resource", "list", "-s", shown, "-no", "{nnodes} {ncores} {ngpus}")
        nodes, cores, gpus = (int(number) for number in line.split())
        found |= {f"nodes.{path}": nodes, f"cores.{path}": cores, f"gpus.{path}": gpus}
    return found


def told(session: Session, first: Mapping[str, float]) -> dict[str, float]:
    """Return the gauges after all emitted events."""
    values = dict(first)
    for event in list(session.events):
        if isinstance(event, Resources):
            values.update(event.values)
    return values


# -- foreign jobs -----------------------------------------------------------------------


def test_ten_thousand_waiting_foreign_jobs_neither_delay_a_run_nor_are_changed_by_it(
    own_instance: Any, tmp_path: Path
) -> None:
    brokers = own_instance.brokers()
    own_instance.flux("submit", "--quiet", "--wait", "--cc=1-10", "true")
    submit_held(BACKLOG)
    began = time.monotonic()
    with Session(FluxExecutor(events="journal"), tmp_path) as session:
        took = time.monotonic() - began
        gauges = dict(session.executor.resources())
        assert gauges["queue.sched"] == BACKLOG
        assert gauges["waiting.nodes"] == BACKLOG
        assert gauges["queue.inactive"] == 10
        jobs = [session.job("true") for _ in range(20)]
        session.run(*jobs)
        for job in jobs:
            assert session.names(job)[0] == "submit"
            assert session.context(job, "finish")["status"] == 0
        past = [e for e in session.events if isinstance(e, JobEvent) and not e.ours]
        assert past == []
        session.wait(
            lambda: told(session, gauges)["queue.inactive"] == 30, "the count of what is over"
        )
        assert told(session, gauges)["queue.sched"] == BACKLOG
        session.executor.cancel([job.id for job in jobs])
    assert took < 60, f"connecting took {took:.1f} s"
    counts = json.loads(own_instance.flux("job", "stats"))["job_states"]
    assert counts["sched"] == BACKLOG
    assert counts["inactive"] == 30
    os.kill(brokers[0], signal.SIGKILL)  # faster than cancelling all jobs


def test_a_rule_sees_foreign_jobs_only_if_it_asks_for_the_whole_queue(
    instance: Any, ensemble: Ensemble
) -> None:
    instance.flux("submit", "--quiet", "--wait", "--cc=1-3", "true")  # finished jobs
    run = ensemble(
        """
on_stop: cancel
jobs:
  - {name: work, command: sleep 1000}
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {id: everybody, trigger: job-success, scope: queue, repetitions: 100, action: {name: log, message: seen}}
  - {id: ours, trigger: job-success, repetitions: 100, action: {name: log, message: ours}}
"""
    )
    run.wait_for(type="job", name="start")
    instance.flux("submit", "--quiet", "--wait", "--cc=1-5", "true")
    run.wait_for(5, type="fired", rule="everybody")
    run.signal(signal.SIGINT)
    assert run.ended() == 130
    assert len(run.of(type="fired", rule="everybody")) == 5
    assert run.of(type="fired", rule="ours") == []


def test_two_runs_in_one_instance_do_not_affect_each_other(
    instance: Any, ensemble: Ensemble
) -> None:
    text = """
on_stop: cancel
jobs:
  - {{name: work, command: {command}, count: 4}}
rules:
  - {{trigger: start, action: {{name: submit, label: work}}}}
  - {{id: seen, trigger: job-submit, repetitions: 100, action: {{name: log, message: seen}}}}
"""
    first = ensemble(text.format(command="sleep 4"))
    second = ensemble(text.format(command="sleep 1000"))
    first.wait_for(4, type="job", name="start", ours=True)
    second.wait_for(4, type="fired", rule="seen")
    second.signal(signal.SIGINT)
    assert second.ended() == 130
    assert first.ended() == 0, first.errors
    for run in (first, second):
        assert len(run.of(type="fired", rule="seen")) == 4
    (summary,) = first.of(type="summary")
    assert summary["groups"][0]["success"] == 4
    (summary,) = second.of(type="summary")
    assert summary["groups"][0]["success"] == 0


def test_foreign_jobs_submitted_while_a_run_connects_do_no_harm(
    instance: Any, tmp_path: Path, events: str
) -> None:
    flood = threading.Thread(
        target=instance.flux, args=("submit", "--quiet", "--wait", "--cc=1-60", "true")
    )
    flood.start()
    try:
        for number in range(4):
            with Session(FluxExecutor(events=events), tmp_path / str(number)) as session:
                jobs = [session.job("true") for _ in range(3)]
                session.run(*jobs)
                for job in jobs:
                    names = session.names(job)
                    assert names[0] == "submit"
                    assert names.count("clean") == 1
                    assert {"validate", "depend", "alloc", "start", "finish"} <= set(names)
    finally:
        flood.join()


# -- a stream that ends ------------------------------------------------------------------------------


def end_journal(session: Session) -> None:
    """Make the instance end the run's stream of job events, as it may at any time."""
    executor = session.executor
    assert isinstance(executor, FluxExecutor)
    loop = executor._loop
    assert loop is not None

    def end() -> None:
        stream = loop._stream._stream
        if stream in loop._reactor._streams:
            cancel = loop._reactor._streams[stream][1]
            assert cancel is not None
            cancel()

    loop._reactor.post(end)


def test_a_journal_that_ends_repeatedly_loses_and_repeats_no_event(
    instance: Any, tmp_path: Path
) -> None:
    before = {job["id"] for job in instance.jobs()}
    with Session(FluxExecutor(events="journal"), tmp_path) as session:
        jobs: list[Job] = []
        for _ in range(6):
            batch = [session.job("true") for _ in range(15)]
            session.submit(*batch)
            jobs += batch
            end_journal(session)
            time.sleep(0.3)
        session.wait_clean(*jobs)
        for job in jobs:
            names = [name for name in session.names(job) if name != "annotations"]
            assert len(names) == len(set(names)), names
            assert {"submit", "validate", "alloc", "start", "finish", "clean"} <= set(names)
            assert names[0] == "submit"
            assert names[-1] == "clean"
            assert session.context(job, "finish")["status"] == 0
        assert any("reopening" in e.message for e in session.events if isinstance(e, Problem))
    after = [job for job in instance.jobs() if job["id"] not in before]
    assert sorted(job["name"] for job in after) == sorted(job.id for job in jobs)


def test_jobs_that_wait_while_the_job_manager_is_reloaded_end_exactly_once(
    own_instance: Any, tmp_path: Path
) -> None:
    own_instance.flux("queue", "stop")
    with Session(FluxExecutor(events="journal"), tmp_path) as session:
        early = [session.job("true") for _ in range(10)]
        session.submit(*early)
        session.wait(lambda: all("priority" in session.names(job) for job in early), "waiting jobs")
        own_instance.flux("module", "reload", "job-manager")
        late = [session.job("true") for _ in range(10)]
        session.submit(*late)
        # Modules register with the job manager only when they are loaded.
        for module in ("sched-simple", "job-exec"):
            own_instance.flux("module", "reload", "-f", module)
        own_instance.flux("module", "load", "job-list")
        own_instance.flux("queue", "start")
        session.wait_clean(*early, *late)
        for job in early + late:
            names = session.names(job)
            assert names[0] == "submit"
            assert names.count("submit") == names.count("clean") == names.count("finish") == 1
            assert session.context(job, "finish")["status"] == 0
    assert sorted(job["name"] for job in own_instance.jobs()) == sorted(
        job.id for job in early + late
    )


# -- gauges ------------------------------------------------------------------------------------------


def test_the_gauges_equal_those_of_fluxs_commands_at_each_step(
    own_instance: Any, tmp_path: Path, events: str
) -> None:
    own_instance.flux("submit", "--quiet", "--wait", "--cc=1-4", "true")
    strangers = own_instance.submit("-N2", "--exclusive", "sleep", "1000")
    own_instance.flux("job", "wait-event", strangers[0], "start")
    with Session(FluxExecutor(events=events), tmp_path, 120) as session:
        first = dict(session.executor.resources())

        def agree(step: str) -> None:
            wanted: dict[str, float] = {}
            end = time.monotonic() + 120
            while time.monotonic() < end:
                wanted = truth(own_instance)
                seen = told(session, first)
                now = session.executor.resources()
                if wanted.items() <= seen.items() and wanted.items() <= now.items():
                    return
                time.sleep(0.2)
            wrong = {k: (v, seen.get(k), now.get(k)) for k, v in wanted.items() if seen.get(k) != v}
            pytest.fail(f"{step}: true, emitted and present value differ: {wrong}")

        agree("at the start")
        running = session.job("sleep", "1000", cores_per_task=2)
        waiting = session.job("sleep", "1000", nodes=3, tasks=3, cores_per_task=2)
        session.submit(running, waiting)
        session.wait_for(running, "start")
        agree("with one job that runs and one that waits")
        assert told(session, first)["waiting.nodes"] == 3
        own_instance.flux("resource", "drain", "3")
        held = session.job("true", urgency=0)
        session.submit(held)  # changes of its jobs make a guest update the gauges
        session.wait_for(held, "submit")
        agree("with a drained node")
        own_instance.flux("cancel", strangers[0])
        own_instance.flux("job", "wait-event", strangers[0], "clean")
        agree("without the stranger")
        own_instance.flux("resource", "undrain", "3")
        session.wait_for(waiting, "start")
        agree("with the node back")
        session.executor.cancel([running.id, waiting.id, held.id])
        session.wait_clean(running, waiting, held)
        agree("at the end")


# -- a long run --------------------------------------------------------------------------------------


def test_thousands_of_jobs_leave_no_descriptors_and_little_memory(
    instance: Any, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    clean = threading.Condition()

    def emit(events: Any) -> None:
        with clean:
            for event in events:
                if isinstance(event, JobEvent) and event.ours:
                    seen[event.name] += 1
            clean.notify_all()

    def memory() -> int:
        words = Path("/proc/self/statm").read_text().split()
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE")

    def batch(executor: FluxExecutor, first: int, count: int) -> None:
        for start in range(first, first + count, 250):
            executor.submit(
                [
                    Job(id=f"t.{index}", group="t", index=index, command=("true",))
                    for index in range(start, min(start + 250, first + count))
                ]
            )
        with clean:
            assert clean.wait_for(lambda: seen["clean"] == first + count, 110), seen

    executor = FluxExecutor(events="journal", output="kvs")
    executor.open(Run(tag="many", folder=tmp_path, clock=time.time), emit)
    try:
        batch(executor, 0, 250)
        descriptors, used = len(os.listdir("/proc/self/fd")), memory()
        batch(executor, 250, int(os.environ.get("ENSEMBLE_FLUX_MANY", "750")))
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert memory() - used < 8_000_000
    finally:
        executor.close()
    assert seen["finish"] == seen["clean"] == seen["submit"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_observers_read_both_streams_from_fluxs_store(
    instance: Any, ensemble: Ensemble, stream: str
) -> None:
    run = ensemble(
        f"""
jobs:
  - name: work
    command: [sh, -c, 'echo U=1; echo U=2 >&2; echo U=3; echo U=4 >&2']
    observe: {{key-value: {{stream: {stream}}}}}
rules:
  - {{trigger: start, action: {{name: submit, label: work}}}}
""",
        "-o",
        "output=kvs",
    )
    assert run.ended() == 0, run.errors
    rows = [line["values"] for line in run.of(kind="event", type="observed")]
    assert rows == ([{"U": 1}, {"U": 3}] if stream == "stdout" else [{"U": 2}, {"U": 4}])


# -- raw events -------------------------------------------------------------------------------------


def test_custom_functions_get_the_entry_of_fluxs_journal_for_an_event(
    instance: Any, ensemble: Ensemble, events: str
) -> None:
    run = ensemble(
        """
jobs: [{name: work, command: sleep 0.2}]
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: job-submit, action: {name: custom, label: look}}
  - {trigger: job-alloc, action: {name: custom, label: look}}
  - {trigger: job-finish, action: {name: custom, label: look}}
custom: |
  import json
  def look(event, **kwargs):
      (entry,) = event["events"]
      more = {key: sorted(event[key]) for key in ("jobspec", "R") if key in event}
      said = [event["id"], entry["name"], entry.get("context", {}).get("status"), more]
      return Action({"name": "log", "message": json.dumps(said)})
""",
        "-o",
        f"events={events}",
    )
    assert run.ended() == 0, run.errors
    said = [json.loads(line["message"]) for line in run.of(kind="decision", type="log")]
    ((job,),) = [{entry[0] for entry in said}]
    assert instance.flux(
        "job", "id", "--to=dec", run.wait_for(type="job", name="submit")["context"]["queue_id"]
    ).strip() == str(job)
    assert sorted((name, status, more) for _, name, status, more in said) == [
        ("alloc", None, {"R": ["execution", "version"]}),
        ("finish", 0, {}),
        ("submit", None, {"jobspec": ["attributes", "resources", "tasks", "version"]}),
    ]


def test_custom_functions_may_use_the_handle_freely_while_jobs_run(
    instance: Any, ensemble: Ensemble
) -> None:
    run = ensemble(
        """
jobs:
  - {name: work, command: "true", count: 40}
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: job-finish, name: work, repetitions: 40, action: {name: custom, label: ask}}
custom: |
  import gc, threading
  threads = set()
  asked = []
  def ask(handle, **kwargs):
      import flux.job
      threads.add(threading.get_ident())
      assert handle.attr_get("size") == "4"
      for _ in range(5):
          assert handle.rpc("broker.ping", {"seq": 1}).get()["seq"] == 1
      spec = flux.job.JobspecV1.from_command(["true"])
      spec.environment = {}
      asked.append(flux.job.submit(handle, spec))
      gc.collect()
      assert len(threads) == 1
      if len(asked) == 40:
          for jobid in asked:
              flux.job.event_wait(handle, jobid, "clean")
          return Action({"name": "log", "message": "forty were answered"})
"""
    )
    assert run.ended(60) == 0, run.errors
    assert run.of(type="call-failed") == []
    assert len(run.of(type="call-returned")) == 40
    assert run.of(type="log", message="forty were answered")
    assert len(run.of(type="job", name="clean", ours=True)) == 40


# -- a job that somebody submits again ----------------------------------------------------------------


@pytest.mark.parametrize("events", ["journal", "eventlogs"])
def test_a_copy_that_somebody_submits_of_a_job_is_not_taken_for_it_by_a_resume(
    instance: Any, tmp_path: Path, events: str
) -> None:
    with Session(FluxExecutor(events=events), tmp_path) as first:
        script = "until [ -e gate ]; do sleep 0.1; done"
        first.submit(job := first.job("sh", "-c", script, workdir=str(tmp_path)))
        first.wait_for(job, "start")
        jobspec = instance.flux("job", "info", first.queue_id(job), "jobspec")
    (tmp_path / "jobspec").write_text(jobspec)
    copies = [instance.flux("job", "submit", str(tmp_path / "jobspec")).strip() for _ in range(3)]
    for copy in copies:
        instance.flux("job", "wait-event", copy, "start")
    instance.flux("cancel", copies[0])
    with Session(FluxExecutor(events=events), tmp_path, tidy=True).resume(first) as later:
        later.take_over([job.id])
        instance.flux("cancel", *copies[1:])
        (tmp_path / "gate").touch()
        later.wait_clean(job)
        assert later.queue_id(job) == first.queue_id(job)
        assert later.context(job, "finish")["status"] == 0


def test_a_guests_resume_finds_jobs_that_fluxs_list_of_jobs_does_not_have_yet(
    instance: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list follows the queue with a delay; a job that is not found may be submitted again."""
    handle = bindings.bindings().Flux(instance.uri)
    find = EventlogWatcher.find

    def find_late(*arguments: Any) -> None:
        find(*arguments)
        threading.Timer(1.0, handle.rpc, ("job-list.job-state-unpause", {})).start()

    monkeypatch.setattr(EventlogWatcher, "find", find_late)
    handle.rpc("job-list.job-state-pause", {}).get()
    with Session(FluxExecutor(events="eventlogs"), tmp_path) as first:
        first.submit(job := first.job("true"))
        first.wait_for(job, "submit")
    with Session(FluxExecutor(events="eventlogs"), tmp_path).resume(first) as later:
        assert later.executor.reattach({job.id: 0.0}) == {job.id: True}
        wait_until(lambda: later.over() == {job.id})
