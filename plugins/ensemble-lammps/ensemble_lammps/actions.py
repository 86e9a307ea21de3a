"""The actions ``lammps-vary``, ``lammps-continue`` and ``lammps-check``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_programs import Program
from ensemble_programs import actions as programs
from ensemble_programs.actions import ACTIONS, TEXT, event_job, log_action, nested_actions, option

from ensemble_core import (
    Action,
    ActionPlugin,
    CallContext,
    EnsembleError,
    Firing,
    ObserverPlugin,
    expression,
    hookimpl,
)
from ensemble_lammps import observer, variables

if TYPE_CHECKING:
    from ensemble_core import Decision
    from ensemble_lammps import outcome, restarts

__all__ = ["LAMMPS", "ensemble_actions"]

#: Seconds by which the file system's clock may lag behind the queue's.
_CLOCKS = 10.0
#: Maximum number of bytes of a script to search for a use of the restart file.
_MOST_OF_SCRIPT = 1 << 20
#: Outcomes that ``lammps-check`` distinguishes, by their names in ``outcome``.
_KINDS = {
    "completed": "LAMMPS reached the end of its script",
    "lost-atoms": "atoms were lost",
    "nan": "the thermo output ended with values that are not finite",
    "halted": "fix halt stopped it, or its last run ended early",
    "timed-out": "timer timeout stopped it",
    "error": "LAMMPS ended with another error",
    "killed": "it was killed, or the log is truncated",
}


# -- lammps-vary -----------------------------------------------------------------------------------

# This action reads no files, so it runs in the engine's thread. The other two read files, so they
# run in another thread. After a crash of the controller, a resume may call them again: the result
# is the same, because the job is over and its files stay.


def _vary(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    job = firing.job_spec
    label = options.get("label") or (job.group if job is not None else None)
    if label is None:
        raise EnsembleError(
            "'lammps-vary' needs 'label': the event has no job whose group it could submit",
            hint="add 'label: GROUP'",
            code="no-such-group",
        )
    group = firing.group(label)
    if group is None:
        raise EnsembleError(f"unknown job group {label!r}", code="no-such-group")
    sweep: dict[str, Any] = {}
    given: dict[str, Sequence[str]] = {}
    script = options.get("input")
    if job is not None:
        sweep = {n: [job.parameters[n]] for n in group.parameters if n in job.parameters}
        if job.group == label:
            own, other = variables.find_changes(job, group)
            given.update(own)
            script = script or other
    for name, value in options.get("variables", {}).items():
        if name in group.parameters:
            sweep[name] = [_value(firing, name, value)]
        else:
            given[name] = [variables.as_word(_value(firing, name, value))]
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
    """Return ``value``, evaluated if it is an expression."""
    if not isinstance(value, str) or not value.startswith("="):
        # LAMMPS does not accept 1e5 or 1.0 as an integer.
        return variables.as_number(value) if isinstance(value, float) else value
    number = expression(value).value(firing.fields, firing.metric)
    if number is None:
        raise EnsembleError(
            f"variable {name}: cannot evaluate the expression {value!r}",
            cause="a name in it has no value, or the result is not finite",
            code="no-value",
        )
    return variables.as_number(number)


# -- lammps-continue -------------------------------------------------------------------------------


def _continue(context: CallContext) -> Iterable[Action]:
    options, job = context.options, event_job(context, "lammps-continue")
    name, label = options.get("variable", "restart"), options.get("label") or job["group"]
    began = variables.parse_variables(job["command"]).get(name, ())[:1]
    found = _newest_restart(options, job, began)
    if found.newest is None:
        why = f"{job['job']} cannot continue: {_why_no_restart(job, found)}"
        yield log_action(why, "warning" if "otherwise" in options else "error")
        yield from nested_actions(options.get("otherwise"))
        return
    path, step = found.newest.path, found.newest.step
    for passed, reason in found.passed:
        yield log_action(f"{passed} skipped: {reason}", "warning")
    yield log_action(f"{job['job']} continues from {path} (step {step})")
    if path in (os.path.join(job["workdir"], word) for word in began):
        yield log_action(
            f"{job['job']} wrote no restart file, so {label} starts where it started. Is the "
            "time limit shorter than the interval of 'restart'?",
            "warning",
        )
    script = options.get("input")
    if script is None and label == job["group"]:
        script = variables.script(job["command"])
    if script is not None and _ignores_variable(os.path.join(job["workdir"], script), name):
        yield log_action(
            f"{script} does not mention ${{{name}}}, so it may not continue from {path}",
            "warning",
        )
    changes = {**options.get("variables", {}), name: path}
    if "steps" in options:
        changes["steps"] = options["steps"]
    own = {"input": options["input"]} if "input" in options else {}
    yield Action({"name": "lammps-vary", "label": label, "variables": changes, **own})


def _newest_restart(
    options: Mapping[str, Any], job: Mapping[str, Any], began: Sequence[str]
) -> restarts.Found:
    from ensemble_lammps import restarts

    if not (workdir := job.get("workdir")):
        return restarts.Found(None)
    patterns = programs.fill_patterns(options.get("restart", []), job)
    begun = (job.get("started") or 0.0) - _CLOCKS
    by = options.get("newest", "step")
    return restarts.find(workdir, patterns, begun=begun, also=began, newest=by)


def _why_no_restart(job: Mapping[str, Any], found: restarts.Found) -> str:
    workdir = job.get("workdir")
    if not workdir:
        return "it never ran, or its folder is unknown"
    if not os.path.isdir(workdir):
        return f"its folder {workdir} does not exist on this machine"
    said = "".join(f"; {os.path.basename(path)}: {reason}" for path, reason in found.passed)
    return f"no restart file in {workdir}{said}"


def _ignores_variable(path: str, variable: str) -> bool:
    """Return whether the script certainly does not use the variable.

    Returns False if the script is unreadable, very long, or includes other scripts.
    """
    from ensemble_programs.outcome import open_regular

    try:
        with open_regular(path) as file:
            text = file.read(_MOST_OF_SCRIPT)
    except OSError:
        return False
    if len(text) == _MOST_OF_SCRIPT or re.search(rb"^\s*(include|jump|python)\b", text, re.M):
        return False
    name = re.escape(variable.encode())
    asked = rb"\$\{" + name + rb"\}|\bv_" + name + rb"\b|\bis_defined\(variable,\s*" + name + rb"\)"
    return re.search(asked, text) is None and (len(variable) > 1 or b"$" + name not in text)


# -- lammps-check ----------------------------------------------------------------------------------


def _read(path: str, status: int | None, *, over: bool) -> outcome.Outcome:
    from ensemble_lammps import outcome

    return outcome.read(path, status, over=over)


LAMMPS = Program(
    name="lammps",
    title="LAMMPS",
    log=observer.DEFAULT_LOG,
    log_of=variables.log,
    observer=ObserverPlugin(
        name="lammps",
        summary="Rows of thermo output in a growing LAMMPS log, by column name.",
        build=observer.build,
        options=observer.OPTIONS,
        variables=observer.variables,
        unasked=observer.unasked,
    ),
    read=_read,
    kinds=_KINDS,
)

_GROUP = {"type": "string", "x-ensemble": "group"}
_VALUE = {"type": ["number", "string"], "x-ensemble": "expression"}
_NAME = r"^\w+$"
_VARIABLES = option(
    "LAMMPS variables by name. If the group's sweep has a parameter of that "
    "name, it is set; otherwise '-var NAME VALUE' is replaced in the command or added to it. A "
    'value that begins with = is an expression: "=T * 1.1".',
    type="object",
    minProperties=1,
    propertyNames={"pattern": _NAME},
    additionalProperties=option("The value.", **_VALUE),
)
_INPUT = option("Script that replaces the one after -in.", **TEXT)
_VARY = programs.options_schema(
    ["variables"],
    "label",
    label=option("The job group to submit; default: that of the event's job.", **_GROUP),
    variables=_VARIABLES,
    input=_INPUT,
    count=option(
        "Number of jobs; default: 1 like the event's job, or, if it has no job, the group's count.",
        type="integer",
        minimum=1,
        maximum=1_000_000,
    ),
)
_CONTINUE = programs.options_schema(
    label=option("The job group to continue; default: that of the event's job.", **_GROUP),
    restart=programs.files_option(
        "Restart files, relative to the job's workdir: a pattern with * and ?, or "
        "several; % as in LAMMPS. May contain {index} and the sweep's parameters. "
        "Default: every restart file directly in the workdir."
    ),
    newest=option(
        "How to find the newest: highest step, or latest time (for scripts that reset the step).",
        enum=["step", "time"],
        default="step",
    ),
    variable=option(
        "Variable for the file's path: read_restart ${restart}.",
        type="string",
        pattern=_NAME,
        default="restart",
    ),
    input=_INPUT,
    steps=option("Value of the variable 'steps', for run ${steps}.", **_VALUE),
    variables=_VARIABLES,
    otherwise=option(
        "Actions if no restart file is complete; default: an error in the log.", **ACTIONS
    ),
)


@hookimpl
def ensemble_actions() -> Iterable[ActionPlugin]:
    """Return the actions ``lammps-vary``, ``lammps-continue`` and ``lammps-check``."""
    yield ActionPlugin(
        name="lammps-vary",
        summary="submit LAMMPS jobs like the event's, with changed variables",
        plan=_vary,
        needs=frozenset({"submit"}),
        options=_VARY,
    )
    yield ActionPlugin(
        name="lammps-continue",
        summary="submit the event's LAMMPS job again, from its newest restart file",
        run=_continue,
        needs=frozenset({"submit"}),
        options=_CONTINUE,
    )
    yield from LAMMPS.actions()
