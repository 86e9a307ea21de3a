"""Reader of the form ``transform``: jobspecs 0.0.x, which have one task with scripts and steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_jobspec.flux_reader import command, inside, request_of_list, slots, system
from ensemble_jobspec.jobspec_errors import Faults, Path, nearest
from ensemble_jobspec.schemas import STEPS
from ensemble_jobspec.workload import Script, Step, Task, Workload

_STEPS: Path = ("task", "transform")


def read_transform(faults: Faults, name: str) -> Workload:
    """Return the workload of a jobspec in the form ``transform``."""
    given = faults.document.data["task"]
    count = given.get("count", {})
    request = request_of_list(faults, count.get("per_slot", 1), count.get("total"))
    found = slots(request.alternatives[0])
    labels = [slot.label for slot in found if slot.label]
    slot = given.get("slot")
    if slot is not None and labels and slot not in labels:
        what = f"the resources have no slot {slot!r}"
        faults.report(("task", "slot"), what, hint=nearest(slot, labels), code="no-such-slot")
    if "resources" in given:
        what = "the task's 'resources' are ignored: move them to the top level"
        faults.warn(("task", "resources"), what)
    scripts = _scripts(faults, given.get("scripts", []))
    words: tuple[str, ...] = ()
    script: Script | None = None
    name = given.get("name", name)
    if "command" in given:
        words, script = command(faults, ("task", "command"), name)
    steps = _steps(faults, scripts, "command" in given)
    if not given.get("transform") and "command" not in given:
        what = "the task needs a command, or a step that submits something"
        hint = "add 'command', or a 'transform' with a step 'submit'"
        faults.report(("task",), what, hint=hint, code="nothing-to-run")
    task = Task(
        name, words, script, request, attributes=system(faults), steps=steps,
        scripts=tuple(scripts.values()), where=faults.at(("task",)),
    )  # fmt: skip
    return Workload("transform", name, (task,), warnings=tuple(faults.warnings))


def _scripts(faults: Faults, given: list[Mapping[str, Any]]) -> dict[str, Script]:
    scripts: dict[str, Script] = {}
    for number, each in enumerate(given):
        place: Path = ("task", "scripts", number, "name")
        if each["name"] in scripts:
            what = f"duplicate script {each['name']!r}"
            faults.report(place, what, hint="rename one of the two scripts", code="duplicate-name")
        inside(faults, place, each["name"])
        scripts[each["name"]] = Script(each["content"], each["name"])
    return scripts


def _steps(faults: Faults, scripts: Mapping[str, Script], has_command: bool) -> tuple[Step, ...]:
    steps: list[Step] = []
    there: set[str] = set()
    elsewhere = submits = False
    before = len(faults.errors)
    given = faults.document.data["task"].get("transform", [])
    for number, each in enumerate(given):
        place: Path = (*_STEPS, number)
        name = each["step"]
        if name not in STEPS:
            what = f"unknown step {name!r}"
            faults.report((*place, "step"), what, hint=nearest(name, STEPS), code="no-such-step")
            continue
        if not faults.check(name, place, step=True):
            continue
        file = each.get("filename")
        if name == "copy" and file is None:
            file = each["source"].rstrip("/").rpartition("/")[2]
        if file is not None and not inside(faults, (*place, "filename"), file):
            continue
        if name == "write" and file not in scripts:
            what = f"unknown script {file!r}"
            hint = nearest(str(file), scripts) or "add it to 'scripts'"
            faults.report((*place, "filename"), what, hint=hint, code="no-such-script")
        elif name in ("write", "copy"):
            there.add(str(file))
        elif name == "set":
            elsewhere = elsewhere or each["key"] == "stage"
            _check_setting(faults, place, each)
        elif name in ("submit", "batch"):
            submits = True
            if file is None and not has_command:
                what = f"the step {name!r} needs a file, because the task has no command"
                faults.report(place, what, hint="add 'filename'", code="nothing-to-run")
        if file is not None and file not in there and not elsewhere and file in scripts:
            what = f"{file!r} is not written by an earlier step"
            hint = f"put '- {{step: write, filename: {file}}}' before this step"
            faults.report((*place, "filename"), what, hint=hint, code="not-written")
        elif file is not None and file not in there and not elsewhere and name != "write":
            what = f"{file!r} is not in the staging folder"
            hint = (
                nearest(file, [*there, *scripts]) or "add an earlier step that writes or copies it"
            )
            faults.report((*place, "filename"), what, hint=hint, code="not-written")
        steps.append(Step(name, {**each, **({"filename": file} if file else {})}, faults.at(place)))
    if steps and not submits and len(faults.errors) == before:
        what = "no step submits anything"
        hint = "add '- {step: submit, filename: …}'"
        faults.report(_STEPS, what, hint=hint, code="nothing-to-run")
    return tuple(steps)


def _check_setting(faults: Faults, place: Path, step: Mapping[str, Any]) -> None:
    kind, words = (bool, "true or false") if step["key"] == "sharedfs" else (str, "a folder")
    if not isinstance(step["value"], kind):
        what = f"{step['key']!r} is {step['value']!r}, expected {words}"
        faults.report((*place, "value"), what, code="wrong-type")
