"""The actions ``lammps-vary``, ``lammps-continue`` and ``lammps-check``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_programs import Program
from ensemble_programs.actions import (
    TEXT,
    check,
    event_job,
    files_option,
    fill_patterns,
    log_action,
    nested_actions,
    options_schema,
)

from ensemble_core import (
    Action,
    ActionPlugin,
    CallContext,
    EnsembleError,
    Firing,
    expression,
)
from ensemble_lammps import variables
from ensemble_lammps.observer import DEFAULT_LOG

if TYPE_CHECKING:
    from ensemble_core import Decision
    from ensemble_lammps import outcome, restarts

__all__ = ["LAMMPS", "actions"]

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
    sweep: dict[str, list[Any]] = {}
    given: dict[str, Sequence[str]] = {}
    script = options.get("input")
    if job is not None:
        sweep = {n: [job.parameters[n]] for n in group.parameters if n in job.parameters}
        if job.group == label:
            own, other = variables.find_changes(job, group)
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
    found = _newest_restart(context, job, began)
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
    started = job.get("started")
    return restarts.find(
        workdir,
        fill_patterns(options.get("restart", []), job),
        begun=None if started is None else started - _CLOCKS,
        also=began,
        newest=options.get("newest", "step"),
    )


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


def _read(path: str, status: int | None, *, over: bool) -> outcome.Outcome:
    from ensemble_lammps import outcome

    return outcome.read(path, status, over=over)


LAMMPS = Program(
    name="lammps", title="LAMMPS", log=DEFAULT_LOG, log_of=variables.log, read=_read, kinds=_KINDS
)

_LABEL = {"type": "string", "x-ensemble": "group"}
_VALUE = {"type": ["number", "string"], "x-ensemble": "expression"}
_VARIABLES = {
    "description": "LAMMPS variables by name. If the group's sweep has a parameter of that "
    "name, it is set; otherwise '-var NAME VALUE' is replaced in the command or added to it. A "
    'value that begins with = is an expression: "=T * 1.1".',
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": r"^\w+$"},
    "additionalProperties": {"description": "The value.", **_VALUE},
}
_INPUT = {"description": "Script that replaces the one after -in.", **TEXT}


def actions() -> Iterable[ActionPlugin]:
    """Return the plugin records of all three actions."""
    yield ActionPlugin(
        name="lammps-vary",
        summary="submit LAMMPS jobs like the event's, with changed variables",
        plan=_vary,
        needs=frozenset({"submit"}),
        options={
            **options_schema(
                ["variables"],
                label={
                    "description": "The job group to submit; default: that of the event's job.",
                    **_LABEL,
                },
                variables=_VARIABLES,
                input=_INPUT,
                count={
                    "description": "Number of jobs; default: 1 like the event's job, or, if "
                    "it has no job, the group's count.",
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
            **options_schema(
                label={
                    "description": "The job group to continue; default: that of the event's job.",
                    **_LABEL,
                },
                restart=files_option(
                    "Restart files, relative to the job's workdir: a pattern with * and ?, or "
                    "several; % as in LAMMPS. May contain {index} and the sweep's parameters. "
                    "Default: every restart file directly in the workdir."
                ),
                newest={
                    "description": "How to find the newest: highest step, or latest time (for "
                    "scripts that reset the step).",
                    "enum": ["step", "time"],
                    "default": "step",
                },
                variable={
                    "description": "Variable for the file's path: read_restart ${restart}.",
                    "type": "string",
                    "pattern": r"^\w+$",
                    "default": "restart",
                },
                input=_INPUT,
                steps={
                    "description": "Value of the variable 'steps', for run ${steps}.",
                    **_VALUE,
                },
                variables=_VARIABLES,
                otherwise={
                    "description": "Actions if no restart file is complete; default: an "
                    "error in the log.",
                    "x-ensemble": "action",
                },
            ),
            # No option can replace a missing job.
            "x-ensemble-job-unless": "",
        },
    )
    yield check(LAMMPS)
