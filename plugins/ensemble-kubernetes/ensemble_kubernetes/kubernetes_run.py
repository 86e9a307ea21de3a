"""Creates a run's Jobs in Kubernetes, watches them and their pods, and reports their events."""

from __future__ import annotations

import heapq
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from ensemble_batch import Outlet, OutputFiles, Records, Sent

from ensemble_core import (
    Emit,
    ExecutorError,
    ExecutorLost,
    Job,
    JobEvent,
    Run,
    check_new,
    raised_at,
)
from ensemble_kubernetes.api import Api, ApiError, Kind
from ensemble_kubernetes.deletions import Deletions
from ensemble_kubernetes.job_state import STUCK, Failure, Life, read_pod
from ensemble_kubernetes.log_copy import LogCopy
from ensemble_kubernetes.manifest import INDEX, JOB, RUN, Settings, job_name, manifest, wrong
from ensemble_kubernetes.quotas import is_about_quota, never_fits, quota_of
from ensemble_kubernetes.thread_pool import Tasks

Object = Mapping[str, Any]
#: Maximum number of concurrent requests.
WORKERS = 4
#: In seconds: shortest and longest pause between retries; first pause while a quota is used up.
_SOON, _LATER, _FULL = 0.2, 10.0, 1.0
#: Seconds to wait, after a Job has ended, for its pods to end and for a pod to appear.
_GRACE, _UNSEEN = 45.0, 10.0
#: Time limit in seconds for closing a run.
_LEAVE = 60.0
_TRIES = 3
#: Seconds that a job may wait before a warning says why: for a node; for a pod or container.
_PATIENCE, _LONG = 10.0, 60.0
#: Seconds after which a silent watch counts as working.
_WELL = 1.0
#: A message with one of these words means that a pod will never be created. Other problems may
#: pass.
_NEVER = ("forbidden", "denied", "violates", "invalid", "must specify")
_NO_NODE = "FailedScheduling"
_NO_RIGHT = 'cannot create resource "jobs"'
_EVENTS = {"field_selector": "involvedObject.kind=Job,reason=FailedCreate"}
_AGAIN = "running jobs continue; retrying until it works"


def _age(event: Object) -> tuple[str, int]:
    """Return the time of an Event. Within a second, the versions of Events have their order."""
    version = str(event["metadata"].get("resourceVersion", ""))
    when = event.get("lastTimestamp") or event.get("eventTime") or ""
    return when, int(version) if version.isdigit() else 0


class KubernetesRun:
    """State and threads of one run."""

    def __init__(
        self,
        run: Run,
        emit: Emit,
        api: Api,
        records: Records,
        settings: Settings,
        places: tuple[str, str],
    ) -> None:
        self._run, self._api, self._records, self._settings = run, api, records, settings
        self._outlet = Outlet("kubernetes", run.clock, emit, str(run.state))
        self._output = OutputFiles(*places, records.was_emptied, self._record_emptied)
        #: Guards all state of this run. Requests are made without it.
        self._lock = threading.Condition()
        self._events: list[JobEvent] = []
        self._lives: dict[str, Life] = {}
        self._names: dict[str, Life] = {}
        self._waiting: list[tuple[int, int, Life]] = []
        self._unrecorded: list[Life] = []
        self._numbers = count()
        self._creators = 0
        self._created = self._closed = self._queued = self._checks = False
        #: Whether jobs of an earlier controller are looked for, so that none ends meanwhile.
        self._seeking = False
        #: Pause in seconds while a quota is used up; 0 at other times.
        self._full = 0.0
        self._warned: set[str] = set()
        #: Number of complete lists of each watched kind. Events tell which pods could not be
        #: created.
        self._lists: dict[Kind, int] = {"jobs": 0, "pods": 0, "events": 0}
        self._relist: set[Kind] = set()
        self._tasks = Tasks(WORKERS, self._report_lost)
        self._deletions = Deletions(
            api, run.id, self._tasks, self._outlet, self._lock, self._on_deleted
        )
        #: Jobs to forget when their Jobs are deleted, by the Jobs' names.
        self._forgotten: dict[str, str] = {}
        # An earlier controller has reported these ends, but was killed before it deleted the Jobs.
        over = [job for job, told in records.told.items() if told[-1][1] == "clean"]
        if over:
            with self._lock:
                self._deletions.add([job_name(run.id, job) for job in over])
        self._threads: list[threading.Thread] = []

    def _record_emptied(self, path: str) -> None:
        self._outlet.write(lambda: self._records.empty(path))

    def _watch(self) -> None:
        if self._threads:
            return
        for kind in self._lists:
            name = f"kubernetes watches {kind}"
            thread = threading.Thread(target=self._follow, args=(kind,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Close the run.

        Before that, create the waiting Jobs for which there is quota, and delete those that are no
        longer needed, unless Kubernetes is unreachable. Raises :class:`ExecutorError` if Jobs
        remain.
        """
        deletions = self._deletions

        def idle() -> bool:
            done = (not self._waiting or self._full) and not deletions
            return done or bool(self._outlet.current_problem or deletions.problem)

        with self._lock:
            deletions.hurry()
            self._lock.wait_for(idle, _LEAVE)
            remaining, lost = len(deletions), self._closed
            self._closed = True
            self._lock.notify_all()
        self._api.close()
        self._tasks.close()
        for thread in self._threads:
            thread.join()
        self._api.release()
        self._records.close()
        if remaining and not lost:
            seconds = self._settings.ttl
            raise ExecutorError(
                f"{remaining} Job{'s' if remaining != 1 else ''} of this run remain in namespace "
                f"{self._api.namespace}",
                cause=deletions.problem or self._outlet.current_problem or "no answer in time",
                hint=f"kubectl -n {self._api.namespace} delete jobs -l {RUN}={self._run.id}\n"
                f"  Kubernetes deletes finished ones after {seconds} s",
                code="jobs-remain",
            )

    def _report_lost(self, error: Exception) -> None:
        reason = f"its thread failed with {error!r} ({raised_at(error)})"
        lost = ExecutorLost(
            self._run.clock(), "kubernetes", reason, "jobs continue: 'ensemble resume'"
        )
        with self._lock:
            if not self._closed:
                self._outlet.add((lost,))
                self._outlet.emit()
            self._closed = True
            self._lock.notify_all()

    # -- requests of the run -------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        """Accept jobs; background tasks create their Jobs."""
        with self._lock:
            check_new(jobs, self._lives)
            self._watch()
            for job in jobs:
                self._add_job(job)
            self._start_creators()
            self._publish()

    def _start_creators(self) -> None:
        for _ in range(min(WORKERS - self._creators, len(self._waiting))):
            self._creators += 1
            self._tasks.after(0.0, self._create)

    def _add_job(self, job: Job) -> None:
        name, now = job_name(self._run.id, job.id), self._run.clock()
        notes: dict[str, Any] = {}
        kind, why = "jobspec", wrong(job, self._settings)
        if why is None:
            try:
                place = self._output.place(job)
                os.makedirs(os.path.dirname(place.out), exist_ok=True)
                notes = {**place.files, "stderr": place.out, "tasks": job.tasks}
                notes |= {"observed": bool(job.observe), "kept": job.stdout is None}
                notes["holds"] = job.urgency == 0
            except (OSError, ValueError) as error:
                what = getattr(error, "filename", None) or job.stdout
                said = getattr(error, "strerror", None) or error
                kind, why = "output", f"cannot use the output file {what}: {said}"
        life = self._lives[job.id] = self._names[name] = Life(job.id, name, notes, self._events)
        life.job_body = job
        if why is not None:
            life.refuse(kind, why, now)
            return
        self._unrecorded.append(life)
        heapq.heappush(self._waiting, (-job.urgency, next(self._numbers), life))

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs. Jobs that were never sent to Kubernetes are over at once."""
        with self._lock:
            ours = [self._lives[job] for job in jobs if job in self._lives]
            if ours:
                self._outlet.write(lambda: self._records.cancel([life.job for life in ours]))
            failure = Failure("cancel", f"cancelled by run {self._run.tag}")
            for life in ours:
                if not life.sent:
                    life.refuse(failure.kind, failure.note, self._run.clock())
                else:
                    self._end(life, failure)
            self._waiting = [each for each in self._waiting if not each[2].over]
            heapq.heapify(self._waiting)
            self._publish()

    def _end(self, life: Life, why: Failure) -> None:
        """Make Kubernetes end a job."""
        life.verdict = life.verdict or why
        if life.accepted_at is not None:
            self._deletions.add([life.name], wait=True)

    def forget(self, jobs: Sequence[str]) -> None:
        """Delete the Jobs of these jobs, which are over and recorded."""
        with self._lock:
            names = {job_name(self._run.id, job): job for job in jobs}
            self._forgotten.update(names)
            self._deletions.add(list(names), urgent=bool(self._full))

    def _on_deleted(self, names: Sequence[str]) -> None:
        """Drop the records of forgotten jobs whose Jobs are deleted. Their quota is free now."""
        jobs = [self._forgotten.pop(name) for name in names if name in self._forgotten]
        if jobs:
            self._outlet.write(lambda: self._records.forget(jobs))
        if self._full:
            self._full = 0.0
            self._start_creators()

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Find jobs of an earlier controller."""
        with self._lock:
            notes = {
                job: each for sent in self._records.sent.values() for job, each in sent.jobs.items()
            }
            found = dict.fromkeys(jobs, False)
            restored: list[Life] = []
            for job, since in jobs.items():
                told = self._records.told.get(job, ())
                if job in self._lives or not (told or job in notes):
                    found[job] = job in self._lives
                    continue
                name = job_name(self._run.id, job)
                life = Life(job, name, notes.get(job, {}), self._events)
                self._outlet.add(life.restore(told, since))
                found[job] = life.over
                if life.over:
                    continue
                restored.append(life)
                life.sent = life.resumed = True
                if "submit" in life.told:
                    life.accepted_at, self._created = 0.0, True
                if job in self._records.cancelled:
                    life.verdict = Failure("cancel", f"cancelled by run {self._run.tag}")
                self._lives[job] = self._names[name] = life
            self._outlet.emit()
            before, self._seeking = dict(self._lists), True
            if self._threads:
                self._relist |= {"jobs", "pods"}
                self._api.cut()
            self._watch()

            def listed() -> bool:
                both: tuple[Kind, Kind] = ("jobs", "pods")
                return self._closed or all(self._lists[kind] > before[kind] for kind in both)

            if not self._lock.wait_for(listed, 60.0):
                raise ExecutorError(
                    "Kubernetes did not list the Jobs and pods of this run within 60 s",
                    cause=self._outlet.current_problem or None,
                    hint="resume again once 'kubectl get jobs' works",
                    transient=True,
                    code="no-kubernetes",
                )
            self._check_cluster(restored)
            self._seeking = False
            for life in list(self._lives.values()):
                self._settle(life, live=life not in restored)
            for life in restored:
                found[life.job] = life.accepted_at is not None
                if not found[life.job]:  # the job never arrived, so it may be submitted
                    self._drop(life)
                elif life.verdict is not None and not life.over:
                    self._deletions.add([life.name], wait=True)
            return found

    def _check_cluster(self, lives: Sequence[Life]) -> None:
        """Raise :class:`ExecutorError` if these jobs are in another cluster.

        Here, they would count as lost, or be created again.
        """
        if any(life.pods or not life.gone for life in lives if life.accepted_at is not None):
            return
        jobs = {life.job for life in lives}
        for sent in self._records.sent.values():
            identity, _, place = sent.names[-1].partition(" ")
            if place and identity != self._api.identity and not jobs.isdisjoint(sent.jobs):
                raise ExecutorError(
                    f"none of the {len(jobs)} unfinished Jobs of this run is in {self._api.place}",
                    cause=f"they were created in {place}",
                    hint="resume with the kubeconfig and context of that cluster; if it no longer "
                    "exists, 'ensemble run --reuse' takes over the run's results",
                    code="other-cluster",
                )

    # -- creating and deleting -------------------------------------------------------------------

    def _create(self) -> None:
        """Create the next waiting Job, then the next one, until none waits."""
        with self._lock:
            if self._closed or not self._waiting or (self._full and self._creators > 1):
                self._creators -= 1
                return
            if not self._record():
                self._tasks.after(1.0, self._create)
                return
            entry = heapq.heappop(self._waiting)
            life = entry[2]
            if life.was_accepted():  # an earlier request has created it
                self._tasks.after(0.0, self._create)
                return
            maybe, life.sent = life.sent, True
            assert life.job_body is not None
            body = manifest(life.job_body, self._run.tag, self._run.id, self._settings)
            if life.verdict is not None:
                body["spec"]["suspend"] = True  # the Job may already exist; a new one must not run
        wait, error = 0.0, None
        try:
            self._api.create(body)
        except ApiError as caught:
            # A Job with this name is ours. Other conflicts are about a quota.
            exists = caught.status == 409 and "already exists" in caught.message
            error = None if exists else caught
        with self._lock:
            if life.was_accepted():  # by now, watches have reported the Job
                error = None
            full = error is not None and is_about_quota(error.message)
            # An API server that has just started may forbid what it allowed before.
            again = error is not None and self._created and _NO_RIGHT in error.message
            if error is None:
                self._full = 0.0
                self._outlet.answered("create")
                self._on_accept(life)
            elif full and not never_fits(error.message):
                heapq.heappush(self._waiting, entry)
                life.sent = maybe  # the quota may count the Job of an earlier request
                self._outlet.answered("create")
                self._warn(
                    f"quota {quota_of(error.message)}",
                    f"cannot create Jobs in Kubernetes: {error.message}\n  "
                    "jobs wait for free quota and are then retried",
                )
                self._full = min(2 * self._full, _LATER) or _FULL
                wait = max(error.after, self._full)
                self._deletions.hurry()
            elif again or error.passing:
                heapq.heappush(self._waiting, entry)
                self._full = 0.0
                wait = max(error.after, 1.0)
                self._outlet.trouble(
                    "create", f"cannot create Jobs in Kubernetes: {error.message}\n  {_AGAIN}"
                )
            else:
                life.refuse("submit", error.message, self._run.clock())
                if maybe:
                    self._deletions.add([life.name], wait=True)
            self._tasks.after(wait, self._create)
            self._publish()
            self._lock.notify_all()

    def _record(self) -> bool:
        """Record the jobs that are about to be created. Return whether that worked."""
        new = [life for life in self._unrecorded if not life.over]
        if new:
            notes = {life.job: dict(life.notes) for life in new}
            where = f"{self._api.identity} {self._api.place}"
            sent = Sent(uuid.uuid4().hex, notes, [where], self._run.clock())
            if not self._outlet.write(lambda: self._records.send(sent)):
                self._outlet.emit()
                return False
        self._unrecorded.clear()
        return True

    def _on_accept(self, life: Life) -> None:
        """Record that Kubernetes has accepted a job's Job."""
        life.sent = True
        if life.accepted_at is None:
            life.accepted_at, self._created = time.monotonic(), True
            now = self._run.clock()
            life.arrive(now, now)
            if life.verdict is not None:
                self._deletions.add([life.name], wait=True)
        if not self._checks and "unstarted" not in self._warned:
            self._checks = True
            self._tasks.after(_LONG, self._check_unstarted)

    # -- watching --------------------------------------------------------------------------------

    def _follow(self, kind: Kind) -> None:
        try:
            version, pause, failures = "", _SOON, 0
            query = _EVENTS if kind == "events" else {"label_selector": f"{RUN}={self._run.id}"}
            while True:
                try:
                    if kind == "events":
                        self._await_pods()
                    if not version or kind in self._relist:
                        self._relist.discard(kind)
                        began = time.monotonic()
                        found, version = self._api.list(kind, **query)
                        self._on_list(kind, found, began)
                    with self._api.watch(kind, version, **query) as changes:
                        well = threading.Event()
                        self._tasks.after(_WELL, partial(self._is_well, kind, well))
                        try:
                            for event in changes:
                                well.set()
                                version = event["object"]["metadata"]["resourceVersion"]
                                with self._lock:
                                    self._on_watch_event(kind, event)
                            well.set()
                        finally:
                            failures *= not well.is_set()
                            well.set()
                    error = None
                except ApiError as caught:
                    error = caught
                with self._lock:
                    if self._closed:
                        return
                    if error is None or kind in self._relist:
                        self._on_answer(kind)
                        failures, pause = 0, _SOON
                    elif error.status == 410:  # the resource version has expired
                        version = ""
                    else:
                        failures += 1
                        version = version if error.passing else ""
                        if failures > 1:  # a single failure may be due to a long idle connection
                            self._outlet.trouble(
                                f"watch {kind}",
                                f"cannot watch {kind} in Kubernetes: {error.message}\n  {_AGAIN}",
                            )
                            self._outlet.emit()
                    self._lock.wait_for(lambda: self._closed, pause)
                    pause = min(_LATER, pause * 2) if failures else _SOON
        except Exception as error:
            self._report_lost(error)

    def _await_pods(self) -> None:
        """Wait for the first list of pods: an old event may be about a pod that exists by now."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._lists["pods"])

    def _is_well(self, kind: Kind, well: threading.Event) -> None:
        """Mark a silent watch as working, unless it has broken in the meantime."""
        if not well.is_set():
            well.set()
            self._on_answer(kind)

    def _on_watch_event(self, kind: Kind, event: Object) -> None:
        self._on_answer(kind)
        if event["type"] != "BOOKMARK":
            self._on_change(kind, event["object"], gone=event["type"] == "DELETED", live=True)
            self._publish()

    def _on_answer(self, kind: Kind) -> None:
        with self._lock:
            self._outlet.answered(f"watch {kind}")
            self._outlet.emit()

    def _on_list(self, kind: Kind, found: Sequence[Object], began: float) -> None:
        """Process a complete list of objects. Known objects that are missing from the list were
        deleted.
        """
        with self._lock:
            for each in found:
                self._on_change(kind, each, gone=False, live=False)
            there = {each["metadata"]["name"] for each in found}
            for life in list(self._lives.values()):
                if kind == "pods":
                    for rank, pod in life.pods.items():
                        if pod.name not in there and not pod.over:
                            life.pods[rank] = read_pod(
                                {"metadata": {"name": pod.name}}, removed=True
                            )
                            self._settle(life, live=False)
                elif kind == "jobs" and life.name not in there and life.was_accepted(began):
                    life.gone = life.missed = True
                    self._settle(life, live=False)
            self._lists[kind] += 1
            self._publish()
            self._on_answer(kind)
            self._lock.notify_all()

    def _on_change(self, kind: Kind, found: Object, *, gone: bool, live: bool) -> None:
        metadata = found["metadata"]
        if kind == "events":
            life = self._names.get(found["involvedObject"]["name"])
            if life is not None and not gone:
                self._on_uncreated_pod(life, str(found.get("message", "")))
        elif kind == "jobs":
            life = self._names.get(metadata["name"])
            if life is None or life.over:
                return
            self._on_accept(life)
            for each in (found.get("status") or {}).get("conditions") or ():
                if each["status"] != "True":
                    continue
                if each.get("reason") == "DeadlineExceeded":  # the pods are deleted before "Failed"
                    life.deadline = each.get("message") or "its Job exceeded its time limit"
                if each["type"] in ("Complete", "Failed"):
                    life.condition = each["type"], each.get("message", "")
            life.gone = gone
            before = life.suspended
            life.suspended = bool(found["spec"].get("suspend")) and not life.notes.get("holds")
            if life.suspended and not before:
                self._tasks.after(_PATIENCE, partial(self._report_suspended, life))
            self._settle(life, live=live)
        else:
            life = self._lives.get((metadata.get("annotations") or {}).get(JOB, ""))
            # A copy of the Job that somebody has made has another name.
            if life is None or life.over or metadata["labels"].get("job-name") != life.name:
                return
            self._on_accept(life)
            rank = int(metadata["labels"].get(INDEX, 0))
            old = life.pods.get(rank)
            if old is not None and old.over:
                return
            pod = life.pods[rank] = read_pod(found, old, removed=gone)
            life.begin_if_told(self._run.clock(), live=live)
            if life.notes.get("observed") and life.runs and not life.followed:
                life.followed = True
                self._observe(life)
            if pod.stuck and not pod.over and not life.stuck:
                life.stuck = True
                self._warn(
                    "stuck",
                    f"{life.job} waits in Kubernetes: {pod.stuck}\n"
                    f"  hint: it fails if that lasts for {STUCK:g} s",
                )
                self._tasks.after(STUCK, partial(self._check_stuck, life, rank))
            elif pod.beside and not (pod.over or (old is not None and old.beside)):
                self._tasks.after(_GRACE, partial(self._end_pod, life, rank, found))
            elif pod.tainted and not (pod.over or (old is not None and old.tainted)):
                wait = _UNSEEN + (pod.grace or 0.0)
                self._tasks.after(wait, partial(self._end_pod, life, rank, found))
            elif pod.waits and not self._queued:
                self._queued = True
                self._tasks.after(_PATIENCE, partial(self._report_queued, life, rank))
            self._settle(life, live=live)

    def _check_stuck(self, life: Life, rank: int) -> None:
        with self._lock:
            pod = life.pods[rank]
            life.stuck = bool(pod.stuck)
            if not life.over and pod.stuck:
                self._end(life, Failure("submit", pod.stuck))

    def _end_pod(self, life: Life, rank: int, found: Object) -> None:
        """End a pod that does not end: its node is lost, or other containers run on."""
        with self._lock:
            pod = life.pods[rank]
            if life.over or pod.over:
                return
            if pod.beside:
                self._warn(
                    "beside",
                    f"{life.job} has ended, but its pod runs on because of its other containers: "
                    f"{pod.beside}\n  {_GRACE:g} s later, the run ends the job and deletes the pod"
                    "\n  hint: let no webhook of the cluster, such as Istio's, add containers here",
                )
            life.pods[rank] = read_pod(found, pod, last=True)
            self._settle(life, live=True)
            self._publish()

    def _report_queued(self, life: Life, rank: int) -> None:
        """Report why a job still waits, unless it may just be waiting for running jobs of this
        run.
        """
        with self._lock:
            waits = not life.over and life.pods[rank].waits
            if waits and any(each.runs for each in self._lives.values()):
                self._tasks.after(_PATIENCE, partial(self._report_queued, life, rank))
                return
            self._queued = False
            if waits:
                self._warn("waits", f"{life.job} waits in Kubernetes: {waits}")
            self._publish()

    def _report_suspended(self, life: Life) -> None:
        with self._lock:
            if life.suspended and not life.over and life.verdict is None:
                resume = f"""kubectl patch job {life.name} -p '{{"spec":{{"suspend":false}}}}'"""
                self._warn(
                    "suspended",
                    f"{life.job} waits in Kubernetes: its Job is suspended, but not by this run\n"
                    f"  hint: a queue such as Kueue resumes it later; otherwise, do it: {resume}",
                )
                self._publish()

    def _on_uncreated_pod(self, life: Life, message: str) -> None:
        """Handle the message that Kubernetes could not create a pod; a later attempt may succeed.

        A job that already has a pod is never ended: what forbids another one will pass.
        """
        if life.over or len(life.pods) >= life.tasks or "being terminated" in message:
            return
        passing = is_about_quota(message) and not never_fits(message)
        if not (passing or life.pods) and any(word in message for word in _NEVER):
            self._end(life, Failure("submit", message))
        else:
            life.explained = True
            said = f"{life.job} waits in Kubernetes: {message}"
            self._warn(f"pods {quota_of(message)}", said)

    def _check_unstarted(self) -> None:
        """Report, once, a job that has waited for long without a known reason."""
        with self._lock:
            self._checks = bool(self._lives) and "unstarted" not in self._warned
            if not self._checks:
                return
            self._tasks.after(_LONG, self._check_unstarted)
            before = time.monotonic() - _LONG
            waiting = (life for life in self._lives.values() if life.was_accepted(before))
            life = next((life for life in waiting if life.unstarted), None)
            if life is None:
                return
            name = life.unstarted
        try:
            events, _ = self._api.list("events", field_selector=f"involvedObject.name={name}")
        except ApiError:
            return  # the watches report it
        events = sorted(events, key=_age)
        pulls = bool(events) and events[-1].get("reason") == "Pulling"
        # The pod has a node, so what the scheduler said before is outdated.
        said = [e for e in events if e.get("type") == "Warning" and e.get("reason") != _NO_NODE]
        last = said[-1] if said else None
        with self._lock:
            if pulls or life.unstarted != name:
                return
            what = "no pod was created for it"
            what = what if name == life.name else f"pod {name} has no running container"
            why = f"see 'kubectl describe' of {name}"
            why = why if last is None else f"{last.get('reason')}: {last.get('message')}"
            self._warn("unstarted", f"{life.job} waits in Kubernetes: {what}: {why}")
            self._publish()

    def _warn(self, what: str, message: str) -> None:
        """Warn, once per kind of message."""
        if what not in self._warned:
            self._warned.add(what)
            self._outlet.warn(message)

    # -- ends ------------------------------------------------------------------------------------

    def _settle(self, life: Life, *, live: bool) -> None:
        """Check whether a job is over."""
        if life.over or life.ending or self._seeking:
            return
        if life.complete:
            life.ending = True
            self._tasks.after(0.0, partial(self._finish, life, live))
        elif (life.gone or life.condition) and not life.overdue:
            life.overdue = True
            wait = _GRACE if life.pods else _UNSEEN
            self._tasks.after(wait, partial(self._end_overdue, life, live))

    def _end_overdue(self, life: Life, live: bool) -> None:
        """End a job whose Job is over or gone, unless pods still run.

        Others may have deleted the Job alone (``--cascade=orphan``). Its pods then run on.
        """
        with self._lock:
            left = [pod for pod in life.pods.values() if not (pod.over or pod.lost)]
            if any(pod.grace is None for pod in left):
                self._tasks.after(_GRACE, partial(self._end_overdue, life, live))
                return
            wait = max((pod.grace or 0.0 for pod in left), default=0.0)
        self._tasks.after(wait, partial(self._finish, life, live))

    def _finish(self, life: Life, live: bool) -> None:
        """Fetch the logs of a job and report its end."""
        trouble = ""
        wanted = life.files.get("stdout") != os.devnull
        for rank, pod in sorted(life.pods.items()):
            if wanted and pod.began is not None and not pod.lost:
                trouble = trouble or self._fetch(life, rank)
        complete = life.condition is not None and life.condition[0] == "Complete"
        if wanted and complete and (life.unseen or len(life.pods) < life.tasks):
            trouble = trouble or "its pod was deleted before its log was read"
        with self._lock:
            if life.over or self._closed:
                return
            life.incomplete = bool(trouble)
            if trouble and life.verdict is None:
                self._outlet.warn(f"the output of {life.job} is incomplete: {trouble}")
            life.tell_end(self._run.clock(), live=live)
            self._publish()

    def _fetch(self, life: Life, rank: int) -> str:
        """Copy the whole log of a pod to its file. Return why that failed, or an empty string."""
        tries = 0
        while True:
            try:
                self._copy(life, rank, follow=False)
                return ""
            except ApiError as error:
                tries += error.status != 0  # requests without a reply are retried without limit
                if self._closed or not error.passing or tries >= _TRIES:
                    return error.message
                with self._lock:
                    self._lock.wait_for(lambda: self._closed, max(error.after, 1.0))
            except OSError as error:
                return f"{error.filename}: {error.strerror}"

    def _observe(self, life: Life) -> None:
        """Copy the log of the job's first pod to its file while the log grows."""
        name = f"kubernetes log of {life.job}"
        thread = threading.Thread(target=self._copy_on, args=(life,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _copy_on(self, life: Life) -> None:
        rank = min(life.pods)
        try:
            while not (self._closed or life.over or life.pods[rank].over):
                # The copy at the job's end retries, and reports what is missing.
                with suppress(ApiError, OSError):
                    self._copy(life, rank, follow=True)
                # If the API server stops, the log ends although the pod runs.
                with self._lock:
                    self._lock.wait_for(lambda: self._closed or life.over, 1.0)
        except Exception as error:
            self._report_lost(error)
        with self._lock:
            if not self._closed:
                self._threads.remove(threading.current_thread())

    def _copy(self, life: Life, rank: int, *, follow: bool) -> None:
        """Append the missing part of a pod's log to its file."""
        path = life.files["stdout"]
        with life.log_lock:
            copy = life.copies.get(rank)
            if copy is None:
                mine = life.resumed and (life.notes.get("kept") or life.notes.get("observed"))
                copy = life.copies[rank] = LogCopy(path, resumed=bool(life.tasks == 1 and mine))
            pod = life.pods[rank].name
            with self._api.log(pod, follow=follow) as pieces:
                same = copy.add(pieces)
            if same:
                return
            with self._api.log(pod) as pieces:
                whole = b"".join(pieces)
            if whole and not copy.add_rotated(whole):
                self._outlet.warn(
                    f"the log of {life.job} was rotated on its node while it was not read, so "
                    f"lines of {path} may be missing\n"
                    "  hint: let the job print less, or write to a file"
                )

    # -- events ----------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Record new events on disk, then emit them."""
        events, self._events[:] = self._events[:], []
        if events:
            self._outlet.write(lambda: self._records.tell(events))
            self._outlet.add(events)
        if not self._closed:
            self._outlet.emit()
        for event in events:
            life = self._lives.get(event.job) if event.name == "clean" else None
            if life is not None:
                self._drop(life)

    def _drop(self, life: Life) -> None:
        del self._lives[life.job], self._names[life.name]
        self._lock.notify_all()
