"""Reader of the form ``flux``: Flux's own jobspecs (RFC 14, V1 of RFC 25)."""

from __future__ import annotations

from ensemble_jobspec.jobspec_errors import Faults
from ensemble_jobspec.shared_parts import command, request_of_list, system
from ensemble_jobspec.workload import Task, Vertex, Workload


def slots(vertex: Vertex) -> list[Vertex]:
    """Return the slots in a resource, at any depth."""
    found = [vertex] if vertex.type == "slot" else []
    return found + [slot for inner in vertex.within for slot in slots(inner)]


def read_flux(faults: Faults, name: str) -> Workload:
    """Return the workload of a Flux jobspec."""
    data = faults.document.data
    given = data["tasks"][0]
    count = given["count"]
    request = request_of_list(faults, count.get("per_slot", 1), count.get("total"))
    labels = [slot.label for slot in slots(request.alternatives[0])]
    if given["slot"] not in labels:
        known = ", ".join(repr(label) for label in labels if label)
        what = f"the resources have no slot {given['slot']!r}"
        hint = f"its slots are {known}" if known else "give the slot a label and use it here"
        faults.report(("tasks", 0, "slot"), what, hint=hint, code="no-such-slot")
    own = system(faults)
    named = own.extra.get("job")
    if isinstance(named, dict) and isinstance(named.get("name"), str):
        name = named["name"]
    for key, are in (("attributes", "are"), ("distribution", "is")):
        if given.get(key):
            faults.warn(("tasks", 0, key), f"the task's {key!r} {are} ignored, as by Flux")
    words, script = command(faults, ("tasks", 0, "command"), name)
    task = Task(name, words, script, request, 1, own, where=faults.at(("tasks", 0)))
    return Workload("flux", name, (task,), warnings=tuple(faults.warnings))
