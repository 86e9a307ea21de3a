"""Computes the status of an Ensemble: its conditions, its phase, and sums over its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_operator.changes import Note, Observed, PartPlan
from ensemble_operator.object_names import format_time, is_owned
from ensemble_operator.pod_state import trouble_of
from ensemble_operator.resource import Ensemble

Object = Mapping[str, Any]
#: Current state of a condition: its status, reason and message.
Verdict = tuple[bool, str, str]

#: Status fields that change with the queue. A change of only these fields causes no write.
_FIGURES = ("nodes", "cores", "queue", "running", "waiting")
_MEMBER_FIGURES = ("nodes", "cores", "queue", "groups", "lastHeartbeat")
_TOLD = {
    ("Valid", False): None,
    ("ServiceReady", True): "ServiceReady",
    ("MembersReady", True): "MemberReady",
}


def service_verdict(ensemble: Ensemble, observed: Observed, *, needed: bool) -> Verdict:
    """Return the condition of the service: ready, or why not."""
    if not needed:
        return True, "NotNeeded", "everything is over"
    deployment = observed.children.get(("Deployment", ensemble.name)) or {"metadata": {}}
    status, generation = deployment.get("status") or {}, deployment["metadata"].get("generation", 0)
    # Just after a change of the Deployment, its status still describes the old one.
    current = status.get("observedGeneration", generation) >= generation
    if is_owned(ensemble, deployment) and current and status.get("availableReplicas"):
        return True, "Available", ""
    for pod in observed.pods:
        labels = pod["metadata"].get("labels") or {}
        if labels.get("app.kubernetes.io/component") == "service":
            reason, words = trouble_of(pod)
            if reason:
                return False, reason, words
    return False, "Starting", "the Deployment of the service is not available yet"


def conditions(
    ensemble: Ensemble, verdicts: Mapping[str, Verdict], now: float, *, current: bool = True
) -> list[dict[str, Any]]:
    """Return all conditions, each with its time of transition.

    A condition that is not in ``verdicts`` keeps its old ``observedGeneration``, so that ``kubectl
    wait`` ignores it. If not ``current``, only ``Valid`` and ``Ready`` are about this generation.
    """
    before = {each["type"]: each for each in ensemble.status.get("conditions") or ()}
    found = [each for kind, each in before.items() if kind not in verdicts]
    for kind, (holds, reason, message) in verdicts.items():
        status = "True" if holds else "False"
        old = before.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        generation = ensemble.generation
        if not current and kind not in ("Valid", "Ready"):
            generation = old.get("observedGeneration", generation)
        found.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message[:4096],
                "observedGeneration": generation,
                "lastTransitionTime": since or format_time(now),
            }
        )
    return found


def transitions(ensemble: Ensemble, verdicts: Mapping[str, Verdict]) -> list[Note]:
    """Return Events for changed conditions."""
    before = {each["type"]: each for each in ensemble.status.get("conditions") or ()}
    notes = []
    for kind, (holds, reason, message) in verdicts.items():
        old = before.get(kind, {})
        was = (old.get("status") == "True", old.get("reason"), old.get("message"))
        if kind == "Valid" and not holds and was != (False, reason, message[:4096]):
            notes.append(Note(reason, message[:1000], warning=True))
        elif holds and not was[0] and (kind, True) in _TOLD and reason != "NotNeeded":
            notes.append(Note(str(_TOLD[(kind, True)]), message or f"{kind} now"))
    return notes


def sums(parts: Sequence[PartPlan]) -> dict[str, Any]:
    """Return the sums over all unfinished members."""
    found: dict[str, Any] = {}
    for key in ("nodes", "cores", "queue"):
        total: dict[str, int] = {}
        for part in parts:
            for name, value in part.entry.get(key, {}).items() if not part.over else ():
                total[name] = total.get(name, 0) + value
        if total:
            found[key] = total
    queue = found.get("queue", {})
    if queue:
        found["running"] = queue.get("run", 0) + queue.get("cleanup", 0)
        found["waiting"] = sum(queue.get(each, 0) for each in ("depend", "priority", "sched"))
    return found


def phase_of(ensemble: Ensemble, verdicts: Mapping[str, Verdict], parts: Sequence[PartPlan]) -> str:
    """Return the phase of the Ensemble."""
    if ensemble.deleting:
        return "Terminating"
    if verdicts.get("Finished", (False,))[0]:
        return "Succeeded" if verdicts["Finished"][1] == "Succeeded" else "Failed"
    if ensemble.suspend and not any(each.there for each in parts):
        return "Suspended"
    # A running Ensemble does not start again because a member grows.
    was_running = ensemble.status.get("phase") == "Running"
    if verdicts["Ready"][0] or (was_running and any(each.active for each in parts)):
        return "Running"
    return "Starting" if verdicts["Valid"][0] else "Pending"


def compare_status(status: Object, before: Object) -> tuple[bool, bool]:
    """Return whether nothing but heartbeats has changed, and whether nothing but heartbeats and
    figures (nodes, cores, queue …) has changed.
    """

    def bare(value: Object, members: tuple[str, ...], own: tuple[str, ...]) -> dict[str, Any]:
        found = {key: each for key, each in value.items() if key not in own}
        entries = found.get("members") or ()
        found["members"] = [
            {key: each for key, each in entry.items() if key not in members} for entry in entries
        ]
        return found

    beats = ("lastHeartbeat",)
    same = bare(status, beats, ()) == bare(before, beats, ())
    return same, same or bare(status, _MEMBER_FIGURES, _FIGURES) == bare(
        before, _MEMBER_FIGURES, _FIGURES
    )
