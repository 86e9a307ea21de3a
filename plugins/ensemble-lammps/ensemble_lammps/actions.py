"""The actions ``lammps-vary``, ``lammps-continue`` and ``lammps-check``.

``lammps-vary`` decides in the engine's thread. The other two read files, so they run in another
thread and return further actions: ``lammps-continue`` returns a ``lammps-vary`` with the restart
file among the variables, ``lammps-check`` the action for the job's outcome. If a crash makes them
run twice, they find the same, because the job is over and its files stay.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core import Action, ActionPlugin, CallContext, EnsembleError, Firing, expression
from ensemble_lammps import variables
from ensemble_lammps.observer import DEFAULT_LOG

if TYPE_CHECKING:
    from ensemble_core import Decision
    from ensemble_lammps import restarts

__all__ = ["actions"]

#: Seconds by which the clock of the files may lag behind the queue's.
_CLOCKS = 10.0
#: Bytes of a script to search for the use of the restart file.
_MOST_OF_SCRIPT = 1 << 20
#: Outcomes that ``lammps-check`` distinguishes, as named by ``outcome``.
_KINDS = {
    "completed": "LAMMPS came to the end of its script",
    "lost-atoms": "atoms were lost",
    "nan": "the thermo output ended in what is no finite number",
    "halted": "fix halt stopped it, or its last run ended early",
    "timed-out": "timer timeout stopped it",
    "error": "LAMMPS ended with another error",
    "killed": "it was killed, or the log ends without a word",
}


# -- lammps-vary -----------------------------------------------------------------------------------


def _vary(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    job = firing.job_spec
    label = options.get("label") or (job.group if job is not None else None)
    if label is None:
        raise EnsembleError(
            "lammps-vary has no job group to submit: the event has no job",
            hint="add label: GROUP",
            code="no-such-group",
        )
    group = firing.group(label)
    if group is None:
        raise EnsembleError(f"there is no job group {label!r}", code="no-such-group")
    sweep: dict[str, list[Any]] = {}
    given: dict[str, Sequence[str]] = {}
    script = options.get("input")
    if job is not None:
        sweep = {n: [job.parameters[n]] for n in group.parameters if n in job.parameters}
        if job.group == label:
            own, other = variables.changed(job, group)
            given.update(own)
            script = script or other
    for name, value in options.get("variables", {}).items():
        worked_out = _value(firing, name, value)
        if name in group.parameters:
            sweep[name] = [worked_out]
        else:
            given[name] = [variables.as_word(worked_out)]
    changes: dict[str, Any] = {}
    if sweep:
        changes["parameters"] = {n: list(values) for n, values in group.parameters.items()} | sweep
    command = variables.with_changes(group.command, given, script)
    if command != list(group.command):
        changes["command"] = command
    if "count" in options or job is not None:
        changes["count"] = options.get("count", 1)
    yield firing.submit(label, changes)


def _value(firing: Firing, name: str, value: Any) -> Any:
    """Return the given value, or the value of its expression."""
    if not isinstance(value, str) or not value.startswith("="):
        # LAMMPS does not accept 1e5 or 1.0 as a whole number.
        return variables.as_number(value) if isinstance(value, float) else value
    number = expression(value).value(firing.fields, firing.metric)
    if number is None:
        raise EnsembleError(
            f"the variable {name} has no value: {value!r} cannot be worked out now",
            cause="something that it speaks of has no value, or the result is no finite number",
            code="no-value",
        )
    return variables.as_number(number)


# -- lammps-continue -------------------------------------------------------------------------------


def _continue(context: CallContext) -> Iterable[Action]:
    options, job = context.options, _job(context, "lammps-continue")
    name, label = options.get("variable", "restart"), options.get("label") or job["group"]
    began = variables.given(job["command"]).get(name, ())[:1]
    found = _newest_restart(context, job, began)
    if found.newest is None:
        why = f"{job['job']} cannot be continued: {_nothing_whole(job, found)}"
        yield _log(why, "warning" if "otherwise" in options else "error")
        yield from _nested(options.get("otherwise"))
        return
    path, step = found.newest.path, found.newest.step
    for passed, reason in found.passed:
        yield _log(f"{passed} is passed over: {reason}", "warning")
    yield _log(f"{job['job']} is continued from {path} (step {step})")
    if path in (os.path.join(job["workdir"], word) for word in began):
        yield _log(
            f"{job['job']} wrote no restart file of its own: {label} begins where it began. Is the "
            "time limit shorter than the interval of 'restart'?",
            "warning",
        )
    script = options.get("input")
    if script is None and label == job["group"]:
        script = variables.script(job["command"])
    if script is not None and _never_asks(os.path.join(job["workdir"], script), name):
        yield _log(
            f"{script} does not speak of ${{{name}}}, so it may not read {path} and begin anew",
            "warning",
        )
    changes = {**options.get("variables", {}), name: path}
    if "steps" in options:
        changes["steps"] = options["steps"]
    spec = {"name": "lammps-vary", "label": label, "variables": changes}
    if "input" in options:
        spec["input"] = options["input"]
    yield Action(spec)


def _newest_restart(
    context: CallContext, job: Mapping[str, Any], began: Sequence[str]
) -> restarts.Found:
    from ensemble_lammps import restarts

    options, workdir = context.options, job.get("workdir")
    if not workdir:
        return restarts.Found(None)
    patterns = options.get("restart", [])
    started = job.get("started")
    return restarts.find(
        workdir,
        [
            _filled(pattern, {**job, "parameters": _escaped(job.get("parameters", {}))})
            for pattern in ([patterns] if isinstance(patterns, str) else patterns)
        ],
        begun=None if started is None else started - _CLOCKS,
        also=began,
        newest=options.get("newest", "step"),
    )


def _escaped(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters with regular-expression characters escaped: a value is not a pattern."""
    import glob

    return {name: glob.escape(str(value)) for name, value in parameters.items()}


def _nothing_whole(job: Mapping[str, Any], found: restarts.Found) -> str:
    workdir = job.get("workdir")
    if not workdir:
        return "it never ran, or it is not known in which folder"
    if not os.path.isdir(workdir):
        return f"its folder {workdir} is not there, or not on this machine"
    said = "".join(f"; {os.path.basename(path)}: {reason}" for path, reason in found.passed)
    return f"there is no restart file in {workdir}{said}"


def _never_asks(path: str, variable: str) -> bool:
    """Return whether the script is readable and neither it nor a script that it includes can use
    the variable.
    """
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            text = file.read(_MOST_OF_SCRIPT)
    except OSError:
        return False
    if len(text) == _MOST_OF_SCRIPT or re.search(rb"^\s*(include|jump|python)\b", text, re.M):
        return False
    name = re.escape(variable.encode())
    asked = rb"\$\{" + name + rb"\}|\bv_" + name + rb"\b|\bis_defined\(variable,\s*" + name + rb"\)"
    return re.search(asked, text) is None and (len(variable) > 1 or b"$" + name not in text)


# -- lammps-check ----------------------------------------------------------------------------------


def _check(context: CallContext) -> Iterable[Action]:
    from ensemble_lammps import outcome

    options, job = context.options, _job(context, "lammps-check")
    name = _filled(options.get("log") or variables.log(job["command"]) or DEFAULT_LOG, job)
    workdir = job.get("workdir")
    if workdir or os.path.isabs(name):
        status = job.get("status")
        over = status is not None or "outcome" in job
        ended = outcome.read(os.path.join(workdir or "/", name), status, over=over)
    elif job.get("started") is None:
        ended = outcome.Outcome("unknown", "the job never ran")
    else:
        ended = outcome.Outcome(
            "unknown",
            "its log cannot be read, as it is not known in which folder it ran: give the job "
            "group a workdir, or the option log a whole path",
        )
    step = "?" if ended.step is None else ended.step
    told = ended.message
    if ended.kind != "completed" or told:
        where = "" if ended.step is None else f" at step {step}"
        text = f"{job['job']}: {ended.kind}{where}" + (f": {told}" if told else "")
        yield _log(text, "warning")
    fields = {"outcome": ended.kind, "message": told, "step": step}
    chosen = options.get(ended.kind)
    for action in _nested(options.get("otherwise") if chosen is None else chosen):
        yield action.knowing(fields)


# -- what they share -------------------------------------------------------------------------------


def _job(context: CallContext, action: str) -> Mapping[str, Any]:
    if context.job is None:
        raise EnsembleError(
            f"{action} is about the event's job, and this event has none",
            hint="use it under a trigger that has one, such as job-fail",
            code="no-job",
        )
    return context.job


def _filled(text: str, job: Mapping[str, Any]) -> str:
    """Return the text with the job's placeholders filled in."""
    for name, value in (
        *job.get("parameters", {}).items(),
        ("group", job["group"]),
        ("index", job["index"]),
        ("id", job["job"]),
    ):
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _nested(given: Any) -> Iterable[Action]:
    """Return the actions in an option."""
    if given is None:
        return []
    return [Action(spec) for spec in (given if isinstance(given, list) else [given])]


def _log(message: str, level: str = "info") -> Action:
    return Action(name="log", message=variables.as_word(message), level=level)


_TEXT = {"type": "string", "minLength": 1}
_LABEL = {"type": "string", "x-ensemble": "group"}
_VALUE = {"type": ["number", "string"], "x-ensemble": "expression"}
_VARIABLES = {
    "description": "LAMMPS' variables by name. Where the group's sweep has a parameter of that "
    "name, it is set; otherwise '-var NAME VALUE' is replaced in the command or added to it. A "
    'value that begins with = is worked out: "=T * 1.1".',
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": r"^\w+$"},
    "additionalProperties": {"description": "The value.", **_VALUE},
}
_INPUT = {"description": "Another script, in place of the one after -in.", **_TEXT}


def _options(required: Sequence[str] = (), /, **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


def actions() -> Iterable[ActionPlugin]:
    """Return the records."""
    yield ActionPlugin(
        name="lammps-vary",
        summary="submit LAMMPS jobs like the event's, with changed variables",
        plan=_vary,
        needs=frozenset({"submit"}),
        options={
            **_options(
                ["variables"],
                label={
                    "description": "The job group to submit; default: the event's job's.",
                    **_LABEL,
                },
                variables=_VARIABLES,
                input=_INPUT,
                count={
                    "description": "How many jobs; default: 1 like the event's job, or where "
                    "there is none, the group's count.",
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 1_000_000,
                },
            ),
            "x-ensemble-job-unless": "label",
        },
    )
    yield ActionPlugin(
        name="lammps-continue",
        summary="submit the event's LAMMPS job again, from its newest restart file",
        run=_continue,
        needs=frozenset({"submit"}),
        options={
            **_options(
                label={
                    "description": "The job group that goes on; default: the event's job's.",
                    **_LABEL,
                },
                restart={
                    "description": "Which files, relative to the job's workdir: a pattern with * "
                    "and ?, or several; % as in LAMMPS. {index} and the sweep's parameters may "
                    "stand in it. Default: every restart file in the workdir itself.",
                    "type": ["string", "array"],
                    "minLength": 1,
                    "minItems": 1,
                    "items": {"description": "A pattern.", **_TEXT},
                },
                newest={
                    "description": "What is newest: the highest step, or the latest time (for "
                    "scripts that set the step back).",
                    "enum": ["step", "time"],
                    "default": "step",
                },
                variable={
                    "description": "The variable that is given the file's path: "
                    "read_restart ${restart}.",
                    "type": "string",
                    "pattern": r"^\w+$",
                    "default": "restart",
                },
                input=_INPUT,
                steps={
                    "description": "The value of the variable 'steps', for run ${steps}.",
                    **_VALUE,
                },
                variables=_VARIABLES,
                otherwise={
                    "description": "What to do where there is no whole restart file; default: an "
                    "error in the log.",
                    "x-ensemble": "action",
                },
            ),
            # An option cannot replace a missing job.
            "x-ensemble-job-unless": "",
        },
    )
    yield ActionPlugin(
        name="lammps-check",
        summary="read the log of the event's LAMMPS job, which is over, and act by its outcome",
        run=_check,
        by_outcome=True,
        options={
            **_options(
                log={
                    "description": "The log, relative to the job's workdir; {index} and the "
                    "sweep's parameters may stand in it. Default: what follows -log in the "
                    f"command, or else {DEFAULT_LOG}.",
                    **_TEXT,
                },
                **{
                    kind: {
                        "description": f"What to do where {meaning}.",
                        "x-ensemble": "action",
                        "x-ensemble-fields": ["outcome", "message", "step"],
                    }
                    for kind, meaning in {
                        **_KINDS,
                        "otherwise": "no other option says what to do",
                    }.items()
                },
            ),
            "x-ensemble-job-unless": "",
        },
    )
