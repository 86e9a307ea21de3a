"""The actions ``lammps-vary``, ``lammps-continue`` and ``lammps-check``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ensemble_programs import actions as programs
from ensemble_programs.actions import ACTIONS, TEXT, log_action, option
from ensemble_programs.checkpoints import newest_checkpoint

from ensemble_core import Action, ActionPlugin, EnsembleError, Firing, expression, hookimpl
from ensemble_lammps import command_line
from ensemble_lammps.program import LAMMPS

if TYPE_CHECKING:
    from ensemble_core import Decision


# -- lammps-vary -----------------------------------------------------------------------------------

# This action reads no files, so it runs in the engine's thread. The other two read files, so they
# run in another thread. After a crash of the controller, a resume may call them again: the result
# is the same, because the job is over and its files stay.


def _vary(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    job = firing.job_spec
    label = options.get("label") or ("" if job is None else job.group)
    if (group := firing.group(label)) is None:
        raise EnsembleError(
            f"'lammps-vary' has no job group to submit: there is no group {label!r}",
            hint="add 'label: GROUP'",
            code="no-such-group",
        )
    own: Mapping[str, Any] = {} if job is None else job.parameters
    sweep = {n: [own[n]] for n in group.parameters if n in own}
    given, script = command_line.find_changes(job, group)
    for name, value in options["variables"].items():
        if name in group.parameters:
            sweep[name] = [_value(firing, name, value)]
        else:
            given[name] = (command_line.as_word(_value(firing, name, value)),)
    changes: dict[str, Any] = {}
    if sweep:
        changes["parameters"] = {n: list(values) for n, values in group.parameters.items()} | sweep
    command = command_line.with_changes(group.command, given, options.get("input", script))
    if command != list(group.command):
        changes["command"] = command
    if "count" in options or job is not None:
        changes["count"] = options.get("count", 1)
    yield firing.submit(label, changes)


def _value(firing: Firing, name: str, value: Any) -> Any:
    """Return ``value``, evaluated if it is an expression."""
    if not isinstance(value, str) or not value.startswith("="):
        # LAMMPS does not accept 1e5 or 1.0 as an integer.
        return command_line.as_number(value) if isinstance(value, float) else value
    number = expression(value).value(firing.fields, firing.metric)
    if number is None:
        raise EnsembleError(
            f"variable {name}: cannot evaluate the expression {value!r}",
            cause="a name in it has no value, or the result is not finite",
            code="no-value",
        )
    return command_line.as_number(number)


# -- lammps-continue -------------------------------------------------------------------------------


def _continue(options: Mapping[str, Any], job: Mapping[str, Any]) -> Iterable[Action]:
    from ensemble_lammps import restarts

    name, label = options.get("variable", "restart"), options.get("label") or job["group"]
    began = command_line.parse_variables(job["command"]).get(name, ())[:1]

    find = partial(
        restarts.find,
        patterns=programs.fill_patterns(options.get("restart", []), job),
        begun=job.get("started"),
        also=began,
        newest=options.get("newest", "step"),
    )
    found, path = newest_checkpoint(job, find, "restart file")
    yield from programs.skipped(found)
    yield log_action(f"{job['job']} continues from {path} (step {restarts.read(path).step})")
    if path in (os.path.join(job["workdir"], word) for word in began):
        yield log_action(
            f"{job['job']} wrote no restart file, so {label} starts where it started. Is the "
            "time limit shorter than the interval of 'restart'?",
            "warning",
        )
    usual = command_line.script(job["command"]) if label == job["group"] else None
    script = options.get("input", usual)
    if script is not None and _ignores_variable(os.path.join(job["workdir"], script), name):
        yield log_action(
            f"{script} does not mention ${{{name}}}, so it may not continue from {path}", "warning"
        )
    changes = {**options.get("variables", {}), name: path}
    if "steps" in options:
        changes["steps"] = options["steps"]
    own = {"input": options["input"]} if "input" in options else {}
    yield Action({"name": "lammps-vary", "label": label, "variables": changes, **own})


def _ignores_variable(path: str, variable: str) -> bool:
    """Return whether the script certainly does not use the variable.

    Returns False if the script is unreadable, very long, or includes other scripts.
    """
    from ensemble_programs.outcome import TAIL, tail

    text = tail(path)
    readable = os.path.isfile(path) and os.access(path, os.R_OK)
    if not readable or len(text) == TAIL or re.search(rb"^\s*(include|jump|python)\b", text, re.M):
        return False
    name = re.escape(variable.encode())
    asked = rb"\$\{" + name + rb"\}|\bv_" + name + rb"\b|\bis_defined\(variable,\s*" + name + rb"\)"
    return re.search(asked, text) is None and (len(variable) > 1 or b"$" + name not in text)


# -- the records -----------------------------------------------------------------------------------

_GROUP = {"type": "string", "x-ensemble": "group"}
_VALUE = {"type": ["number", "string"], "x-ensemble": "expression"}
_NAME = r"^\w+$"
#: Options of both actions that submit a job.
_SHARED = {
    "label": option("The job group to submit; default: that of the event's job.", **_GROUP),
    "variables": option(
        "LAMMPS variables by name. If the group's sweep has a parameter of that "
        "name, it is set; otherwise '-var NAME VALUE' is replaced in the command or added to it. "
        'A value that begins with = is an expression: "=T * 1.1".',
        type="object",
        minProperties=1,
        propertyNames={"pattern": _NAME},
        additionalProperties=option("The value.", **_VALUE),
    ),
    "input": option("Script that replaces the one after -in.", **TEXT),
}
_VARY = programs.options_schema(
    ["variables"],
    "label",
    **_SHARED,
    count=option(
        "Number of jobs; default: 1 like the event's job, or, if it has no job, the group's count.",
        type="integer",
        minimum=1,
        maximum=1_000_000,
    ),
)
_CONTINUE = programs.options_schema(
    **_SHARED,
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
    steps=option("Value of the variable 'steps', for run ${steps}.", **_VALUE),
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
    yield programs.continuing(
        "lammps-continue",
        "submit the event's LAMMPS job again, from its newest restart file",
        _continue,
        _CONTINUE,
    )
    yield from LAMMPS.actions()
