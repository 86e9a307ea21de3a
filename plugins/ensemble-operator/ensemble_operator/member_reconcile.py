"""Plans changes to the objects of one member, or of the run that all members share.

The end of a run is written into the status before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_operator.changes import (
    Create,
    Figures,
    Note,
    Observed,
    Part,
    PartPlan,
    deletion,
    kept_status,
)
from ensemble_operator.object_names import (
    FILE,
    RUN,
    TEMPLATE,
    Object,
    format_time,
    is_owned,
    seconds,
)
from ensemble_operator.pod_state import (
    PodState,
    any_stopping,
    first_pods,
    job_ended,
    job_failed,
    job_of,
    late_until,
    lost_pod,
    newest,
    pod_state,
    trouble_of,
)
from ensemble_operator.resource import Ensemble
from ensemble_operator.withdrawal import plan_withdrawal

#: Seconds without a heartbeat after which a member is unreachable.
BEAT = 60.0
_NEEDED = "the run cancels its jobs first"
#: Seconds for the Flux Operator to create a Job.
_SOON = 60.0
#: In seconds: shortest and longest pause before a MiniCluster whose pods have ended is recreated;
#: time after which a run counts as stable.
_PAUSE, _LONGEST_PAUSE, _STEADY = 10.0, 300.0, 900.0


def members_leave(ensemble: Ensemble, parts: Iterable[Part], observed: Observed) -> bool:
    """Return whether a shared run must be stopped before its members change."""
    if not ensemble.outside or ensemble.suspend:
        return ensemble.outside
    # If the journal does not outlive the pod, a stopped run would start from the beginning.
    if ensemble.update_policy != "Recreate" or not ensemble.durable:
        return False
    names = {part.main["metadata"]["name"]: part for part in parts if not part.runs}
    return any(
        kind == "MiniCluster" and name in names and is_owned(ensemble, found)
        and _difference(names[name], found)
        for (kind, name), found in observed.children.items()
    )  # fmt: skip


def plan_part(
    ensemble: Ensemble,
    part: Part,
    observed: Observed,
    now: float,
    *,
    may_begin: bool,
    ended: bool,
    needed: bool = False,
    leaves: bool = False,
) -> PartPlan:
    """Return the changes for a part.

    - ``may_begin``: whether everything that the part requires exists
    - ``ended``: whether the recorded status says that everything is over
    - ``needed``: whether another part, which is being stopped, still uses this one
    - ``leaves``: whether this is a shared run, and members are to be replaced or removed
    """
    kind, name = part.main["kind"], part.main["metadata"]["name"]
    before = ensemble.entry(part.name)
    found = observed.children.get((kind, name))
    plan = PartPlan(
        {"name": part.name, "minicluster": name} if kind == "MiniCluster" else {"name": part.name}
    )
    if ensemble.durable:  # for the size of a member that is recreated
        plan.entry |= {key: before[key] for key in ("file", "size") if key in before}
    if found is not None and not is_owned(ensemble, found):
        plan.conflict = f"{kind} {name}"
        plan.entry |= kept_status(before)
        return plan
    plan.there = found is not None
    if part.runs and before.get("finishedAt") and before.get("run") == part.tag:
        plan.over = True
        plan.entry = dict(before)
        if found is not None and before.get("result") == "Lost":
            # The Job would start the run again from the beginning.
            plan.changes.append(
                deletion(found, Note("Pruned", f"removed {name}, whose run was lost"))
            )
        return plan
    if not part.runs and ended:
        plan.over = True
        plan.entry = dict(before) | plan.entry
        if found is not None:
            plan.changes.append(deletion(found, Note("Pruned", f"removed {name}: the run is over")))
        return plan
    if found is not None and "deletionTimestamp" in found["metadata"]:
        plan.entry |= kept_status(before)
        plan.waits = ("WaitingForPods", f"{name} is being removed")
        return plan
    if (
        ensemble.outside
        and part.runs
        and plan_withdrawal(ensemble, part, before, plan, found, observed, now, leaves=leaves)
    ):
        return plan
    if found is None:
        if any_stopping(observed.pods, name, now):
            may_begin, plan.waits = False, ("WaitingForPods", f"a pod of {name} has not ended yet")
        _plan_missing(ensemble, part, before, plan, now, may_begin=may_begin)
        return plan
    figures = observed.figures.get(f"{ensemble.namespace}/{name}", Figures())
    _present(
        ensemble, part, before, plan, found, observed, figures, now, needed=needed, leaves=leaves
    )
    return plan


def _plan_missing(
    ensemble: Ensemble,
    part: Part,
    before: Mapping[str, Any],
    plan: PartPlan,
    now: float,
    *,
    may_begin: bool,
) -> None:
    name = part.main["metadata"]["name"]
    if ensemble.suspend:
        plan.waits = ("Suspended", "")
        return
    begun = before.get("startedAt") and before.get("run") == part.tag
    if begun and part.runs and ensemble.restart_policy == "Fail":
        why = f"{name} was deleted while it ran, and without a journal its run cannot be resumed"
        _finish(part, before, plan, None, "Lost", why, now)
        return
    plan.entry |= kept_status(before) if begun else {}
    if may_begin:
        made = Note("Created", f"made {part.main['kind']} {name}")
        plan.changes.append(Create(part.main, made))


def _present(
    ensemble: Ensemble,
    part: Part,
    before: Mapping[str, Any],
    plan: PartPlan,
    found: Object,
    observed: Observed,
    figures: Figures,
    now: float,
    *,
    needed: bool,
    leaves: bool,
) -> None:
    metadata = found["metadata"]
    noted = metadata.get("annotations") or {}
    ended = before.get("finishedAt") and before.get("run") == noted.get(RUN)
    if part.runs and ended:  # another run is wanted: otherwise this function is not called
        note = Note("Recreated", f"recreating {metadata['name']}: its file has changed")
        plan.changes.append(deletion(found, note))
        return
    plan.entry |= {"file": noted.get(FILE, ""), "run": noted.get(RUN, "")}
    plan.entry |= {"restarts": before["restarts"]} if before.get("restarts") else {}
    spec, name = found.get("spec") or {}, metadata["name"]
    if found["kind"] == "MiniCluster":
        plan.entry |= {"size": spec.get("size", 0), "maxSize": spec.get("maxSize", 0)}
        if before.get("size") not in (None, plan.entry["size"]) and before.get("run"):
            size = f"{before['size']} → {plan.entry['size']} nodes"
            plan.notes.append(Note("Resized", f"{name}: {size}"))
    job = observed.children.get(("Job", name))
    pods = first_pods(observed.pods, found, job)
    state = pod_state(newest(pods), part.container)
    if part.runs and state.phase == "over":
        good = state.exit_code == 0
        _finish(part, before, plan, state.exit_code, "Succeeded" if good else "Failed",
                state.message, now, state.started)  # fmt: skip
        return
    if ensemble.suspend or leaves:
        why = "the Ensemble is suspended" if ensemble.suspend else "members are being recreated"
        stopped = Note("Updated", f"removed {name}: {why}")
        plan.changes += [] if needed else [deletion(found, stopped)]
        plan.waits = ("Suspended", _NEEDED if needed else "")
        return
    late = late_until(job_of(found, job), pods, observed.ended)
    unseen = now < late
    if part.runs and job_failed(job_of(found, job)) and not unseen:
        why = state.message or "its pods failed too often"
        _finish(part, before, plan, state.exit_code, "Lost", why, now)
        return
    lost = lost_pod(pods, part.container)
    if part.runs and ensemble.restart_policy == "Fail" and lost is not None:
        # The Job may have created another pod, which would start the run from the beginning.
        gone = pod_state(lost, part.container)
        _finish(part, before, plan, gone.exit_code, "Lost", gone.message, now)
        return
    began = before.get("startedAt") if before.get("run") == plan.entry["run"] else None
    replaced = began and state.phase == "running" and state.started not in ("", began)
    if part.runs and ensemble.restart_policy == "Fail" and replaced:
        why = "its pod or Job was deleted, so another pod has started the run from the beginning"
        _finish(part, before, plan, None, "Lost", why, now)
        return
    makes_no_more = job_ended(job_of(found, job)) or job_failed(job_of(found, job))
    if makes_no_more and unseen:
        plan.again = late
    elif makes_no_more and (
        state.phase not in ("running", "waiting") or lost is not None or before.get("lostPod")
    ):
        if part.runs and ensemble.restart_policy == "Fail":
            why = state.message or "some of its pods ended before the run"
            _finish(part, before, plan, state.exit_code, "Lost", why, now)
        else:
            _recreate(found, before, plan, state, now, needed=needed)
        return
    plan.outdated = _difference(part, found)
    if plan.outdated and ensemble.update_policy == "Recreate":
        note = Note("Recreated", f"{plan.outdated}; recreating it")
        plan.changes += [] if needed else [deletion(found, note)]
        plan.waits = ("WaitingForPods", _NEEDED if needed else "")
        return
    if state.started or before.get("startedAt"):
        plan.entry["startedAt"] = before.get("startedAt") or state.started
    if state.message:
        plan.entry["message"] = state.message
    _lost(before, plan, lost, part.container, name)
    _set_readiness(part, before, plan, state, figures, name, now)
    if not plan.ready:
        why = _wait_reason(found, job, observed, now)
        reason, words = plan.waits
        if why and why not in words:
            plan.waits = (reason, why if words in why else f"{words}; {why}")
        if state.phase == "absent":  # no event reports that a Job or pod was not created
            plan.again = plan.again or now + _SOON + 1


def _wait_reason(found: Object, job: Object | None, observed: Observed, now: float) -> str:
    """Return why the pods of a MiniCluster or Job wait, from their status and Events."""
    name = found["metadata"]["name"]
    pods = [p for p in observed.pods if (p["metadata"].get("labels") or {}).get("job-name") == name]
    for pod in pods:
        words = observed.warnings.get(pod["metadata"]["name"], "")
        if (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            why = trouble_of(pod)[1] or words
            if why:
                return f"pod {pod['metadata']['name']}: {why}"
    if pods:
        return ""
    if observed.warnings.get(name):
        return f"Job {name}: {observed.warnings[name]}"
    made = seconds(found["metadata"].get("creationTimestamp"))
    if job_of(found, job) is None and made and now - made > _SOON:
        return f"the Flux Operator has not created Job {name}: see its log"
    return ""


def _recreate(
    found: Object,
    before: Mapping[str, Any],
    plan: PartPlan,
    state: PodState,
    now: float,
    *,
    needed: bool,
) -> None:
    """Recreate a MiniCluster whose pods succeeded although its run is not over.

    The MiniCluster's Job creates no other pods. The sooner this happens again, the longer the
    pause.
    """
    name, began = found["metadata"]["name"], found["metadata"].get("creationTimestamp", "")
    lasted = now - seconds(state.started or began) if state.started or began else _STEADY
    times = 0 if lasted >= _STEADY else int(before.get("restarts", 0))
    pause = min(_PAUSE * 2.0 ** (times - 1), _LONGEST_PAUSE) if times else 0.0
    why = state.message or f"some pods of {name} ended before the run"
    plan.waits = ("WaitingForPods", _NEEDED if needed else why)
    plan.entry |= kept_status(before) | {"restarts": times}
    if lasted < pause:
        plan.again = now + pause - lasted
        return
    if not needed:
        plan.entry["restarts"] = times + 1
        resumed = Note("Recreated", f"{name}: {why}; the run is resumed")
        plan.changes.append(deletion(found, resumed))


def _lost(
    before: Mapping[str, Any],
    plan: PartPlan,
    pod: Mapping[str, Any] | None,
    container: str,
    name: str,
) -> None:
    """Report the last lost pod, once. The pod's Job may have created another pod since."""
    known = before.get("lostPod", "")
    lost = pod["metadata"]["name"] if pod is not None else known
    if lost:
        plan.entry["lostPod"] = lost
    if lost != known:
        words = f"{name}: pod {lost}: {pod_state(pod, container).message}"
        plan.notes.append(Note("MemberLost", words, warning=True))


def _difference(part: Part, found: Object) -> str:
    """Return how the existing object differs from the wanted one, as a condition's reason and
    message.

    Returns an empty string if they are equal.
    """
    noted, name = found["metadata"].get("annotations") or {}, found["metadata"]["name"]
    wanted = part.main["metadata"]["annotations"]
    if noted.get(RUN) != wanted[RUN]:
        return f"RunningOldFile: {name} runs an older version of the file"
    if noted.get(TEMPLATE) != wanted[TEMPLATE]:
        return f"NeedsRecreate: the spec of {name} has changed since its creation"
    return ""


def _finish(
    part: Part,
    before: Mapping[str, Any],
    plan: PartPlan,
    code: int | None,
    result: str,
    message: str,
    now: float,
    started: str = "",
) -> None:
    """Record the end of a part's run."""
    entry = plan.entry
    entry.setdefault("run", before.get("run", ""))
    # Any other run used an older file.
    plan.over = entry["run"] == part.tag
    entry.setdefault("file", before.get("file", ""))
    entry |= {key: before[key] for key in ("size", "maxSize", "groups") if key in before}
    began = before.get("startedAt") or started
    entry |= {"startedAt": began} if began else {}
    entry |= {"finishedAt": format_time(now), "result": result}
    if code is not None:
        entry["exitCode"] = code
    if message:
        entry["message"] = message
    ended = {"Succeeded": "ended with exit code 0", "Lost": f"was lost: {message}"}
    words = ended.get(result, f"ended with exit code {code}" if code is not None else message)
    reason = "Finished" if result == "Succeeded" else "Failed"
    plan.notes.append(Note(reason, f"the run of {part.name} {words}", result != "Succeeded"))


def _set_readiness(
    part: Part,
    before: Mapping[str, Any],
    plan: PartPlan,
    state: PodState,
    figures: Figures,
    name: str,
    now: float,
) -> None:
    """Record in the plan whether the part is ready, and the figures of its queue."""
    if part.main["kind"] != "MiniCluster":
        plan.ready = state.phase == "running"
        plan.waits = ("WaitingForPods", state.message or f"{name} has no running pod")
        return
    # The heartbeat may be from the previous pod or member.
    recent = figures.alive and bool(figures.beat) and now - figures.beat <= BEAT
    heard = recent and state.phase == "running"
    size = int(plan.entry.get("size", 1))
    up = int(figures.gauges.get("nodes.up", size))
    plan.ready = heard and up >= size
    if state.phase in ("absent", "waiting", "lost"):
        plan.waits = ("WaitingForPods", state.message or f"the first pod of {name} is not running")
    elif not figures.beat or (not heard and figures.beat < seconds(state.started)):
        plan.waits = ("WaitingForFlux", f"no heartbeat yet from the run in {name}")
    elif not heard:
        plan.waits = (
            "Unreachable",
            f"the last heartbeat of {name} was at {format_time(figures.beat)}",
        )
    else:
        plan.waits = ("WaitingForNodes", f"{up} of {size} nodes of {name} are up")
    if not figures.beat:
        return
    plan.entry["lastHeartbeat"] = format_time(figures.beat)
    if not figures.alive:
        return
    for key in ("nodes", "cores", "queue"):
        values = {
            path.partition(".")[2]: int(value)
            for path, value in sorted(figures.gauges.items())
            if path.partition(".")[0] == key and path.count(".") == 1
        }
        if values:
            plan.entry[key] = values
    if figures.denied:
        plan.entry["denied"] = figures.denied
        if figures.denied != before.get("denied"):
            plan.notes.append(Note("ResizeDenied", f"{name}: {figures.denied}", warning=True))
    if figures.groups:
        plan.entry["groups"] = [dict(each) for each in figures.groups[:50]]
