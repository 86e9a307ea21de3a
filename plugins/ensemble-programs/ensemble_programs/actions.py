"""The actions ``NAME-check`` and ``NAME-continue``, and what such actions of plugins share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ensemble_core import (
    Action,
    ActionPlugin,
    CallContext,
    EnsembleError,
    as_text,
    escape_braces,
)
from ensemble_programs.checkpoints import Search, newest_checkpoint, no_checkpoint

if TYPE_CHECKING:
    from ensemble_programs.outcome import Outcome
    from ensemble_programs.program import Program

TEXT: Mapping[str, Any] = {"type": "string", "minLength": 1}
ACTIONS: Mapping[str, Any] = {"x-ensemble": "action"}

# These actions read files, so they run in another thread than the engine. After a crash of the
# controller, a resume may call them again: the result is the same, because the job is over and its
# files stay.


def check(program: Program) -> ActionPlugin:
    """Return the record of the action ``NAME-check``."""
    action = f"{program.name}-check"
    good = next(iter(program.kinds))

    def run(context: CallContext) -> Iterable[Action]:
        options, job = context.options, event_job(context, action)
        ended = _outcome(program, options, job)
        step = "?" if ended.step is None else ended.step
        if ended.kind != good or ended.message:
            where = "" if ended.step is None else f" at step {ended.step:.15g}"
            text = f"{job['job']}: {ended.kind}{where}"
            text += f": {ended.message}" if ended.message else ""
            yield log_action(text, "info" if ended.kind == "complete" else "warning")
        fields = {"outcome": ended.kind, "message": ended.message, "step": step}
        if program.read is None:
            fields["goal"] = "?" if ended.goal is None else ended.goal
        chosen = options.get(ended.kind)
        for each in nested_actions(options.get("otherwise") if chosen is None else chosen):
            yield each.knowing(fields)

    nested = {**program.kinds, "otherwise": "no other option applies"}
    goal = ["goal"] if program.read is None else []
    known = {"x-ensemble-fields": ["outcome", "message", "step", *goal]}
    return ActionPlugin(
        name=action,
        summary=f"read the log of the event's finished {program.title} job, and act according to "
        "its outcome",
        run=run,
        by_outcome=True,
        options=options_schema(
            log=_log_option(program),
            **{
                kind: option(f"Actions if {meaning}.", **ACTIONS, **known)
                for kind, meaning in nested.items()
            },
        ),
    )


def continuation(program: Program) -> ActionPlugin:
    """Return the record of the action ``NAME-continue``."""
    action = f"{program.name}-continue"

    def plan(options: Mapping[str, Any], job: Mapping[str, Any]) -> Iterable[Action]:
        found, changes = _continued(program, options, job)
        yield from skipped(found)
        yield log_action(f"{job['job']} continues from {found.newest}")
        if stuck := _no_progress(program, options, job):
            yield log_action(f"{job['job']} {stuck}", "warning")
        yield Action({"name": "retry", "continue": True, "with": changes})

    schema = options_schema(
        checkpoint=files_option(
            "Checkpoint, relative to the job's workdir: a pattern with * and ?, or several "
            "in order of preference. May contain {index} and the sweep's parameters. "
            f"Default: {', '.join(program.checkpoint)}."
        ),
        parameter=option(
            "Parameter that gets the checkpoint's path, for a command that "
            "a script hides: the command itself then stays as it is.",
            **TEXT,
        ),
        log=_log_option(program),
        otherwise=option(
            "Actions if the job cannot continue, or is complete; default: an error in the log.",
            **ACTIONS,
        ),
    )
    return continuing(
        action,
        f"submit the event's {program.title} job again, from its newest checkpoint",
        plan,
        {**schema, "x-ensemble-retries": True},
    )


def continuing(
    action: str,
    summary: str,
    plan: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterable[Action]],
    options: Mapping[str, Any],
) -> ActionPlugin:
    """Return the record of an action that continues the event's job.

    ``plan`` returns what to do, given the options and the job. If it raises an error, the action
    logs it and runs the actions of the option ``otherwise``.
    """

    def run(context: CallContext) -> Iterable[Action]:
        given, job = context.options, event_job(context, action)
        try:
            return [*plan(given, job)]
        except EnsembleError as error:
            level = "warning" if "otherwise" in given else "error"
            why = log_action(f"{job['job']} cannot continue: {error}", level)
            return [why, *nested_actions(given.get("otherwise"))]

    return ActionPlugin(
        name=action, summary=summary, run=run, needs=frozenset({"submit"}), options=options
    )


def _continued(
    program: Program, options: Mapping[str, Any], job: Mapping[str, Any]
) -> tuple[Search, dict[str, Any]]:
    """Return the job's newest checkpoint, and the fields of the job to change."""
    from ensemble_programs import checkpoints
    from ensemble_programs.program import Kept

    assert program.resume is not None  # or the action does not exist
    ended = _outcome(program, options, job)
    if ended.kind == next(iter(program.kinds)):
        raise no_checkpoint(f"it is complete ({ended.message})")
    patterns = options.get("checkpoint", program.checkpoint)
    wanted = patterns if isinstance(patterns, str) else ", ".join(patterns)

    def find(workdir: str) -> Search:
        return checkpoints.find(
            workdir,
            fill_patterns(patterns, job),
            program.reject,
            begun=job.get("started"),
            kept={os.path.join(workdir, word) for word in job["command"]},
        )

    found, path = newest_checkpoint(job, find, f"checkpoint {wanted}")
    if parameter := options.get("parameter"):
        if parameter not in job.get("parameters", {}):
            raise EnsembleError(
                f"the job has no parameter {parameter!r}",
                hint=f'add it to the group: parameters: {{{parameter}: [""]}}',
                code="no-such-parameter",
            )
        return found, {"parameters": {parameter: path}}
    before, words = split_command(program, job["command"])
    resumed = program.resume(Kept(words, path, job["workdir"]))
    return found, {"command": [escape_braces(word) for word in (*before, *resumed)]}


def skipped(found: Search) -> Iterable[Action]:
    """Yield actions that log the rejected checkpoints."""
    for path, reason in found.passed:
        yield log_action(f"{path} skipped: {reason}", "warning")


def split_command(program: Program, command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before the program's name, such as ``mpirun -n 4``, and all others."""
    for at, word in enumerate(command):
        name = os.path.basename(word)
        if any(fnmatchcase(name, each) for each in program.executables):
            return list(command[:at]), list(command[at:])
    raise EnsembleError(
        f"{' '.join(command)[:200]!r} does not name {' or '.join(program.executables)}, so the "
        "checkpoint cannot be added to it",
        hint="start the program directly in 'command', or write {checkpoint} in it, 'checkpoint: "
        "[\"\"]' under the group's parameters, and 'parameter: checkpoint' in this action",
        code="no-program-command",
    )


# -- shared parts ----------------------------------------------------------------------------------


def _outcome(program: Program, options: Mapping[str, Any], job: Mapping[str, Any]) -> Outcome:
    from ensemble_programs import outcome

    workdir, status = job.get("workdir"), job.get("status")
    over = status is not None or "outcome" in job
    if path := _log_path(program, options, job):
        if program.read is not None:
            return program.read(path, status, over=over)
        given = [job.get(each, each) for each in program.accounts]
        accounts = [os.path.join(workdir or "/", each) for each in given if each]
        return outcome.read(program, path, status, over=over, accounts=accounts)
    if job.get("started") is None:
        return outcome.Outcome("unknown", "the job never ran")
    return outcome.Outcome(
        "unknown",
        "cannot read its log, because its folder is unknown: give the job group a workdir, or the "
        "option 'log' an absolute path",
    )


def _log_path(program: Program, options: Mapping[str, Any], job: Mapping[str, Any]) -> str | None:
    """Return the path of the job's log, which may be a pattern, if its folder is known."""
    name = options.get("log") or program.log_of(job["command"]) or program.log
    name = job.get("stdout") if name is None else fill_placeholders(name, job)
    if name is None or not (job.get("workdir") or os.path.isabs(name)):
        return None
    return os.path.join(job.get("workdir") or "/", name)


def _no_progress(
    program: Program, options: Mapping[str, Any], job: Mapping[str, Any]
) -> str | None:
    """Return how the job got no further than the attempt before, or ``None`` if it did."""
    from ensemble_programs.outcome import no_progress

    path, attempt = _log_path(program, options, job), job.get("attempt", 0)
    # Without a clock, steps may begin at 0 in each attempt.
    if path is None or not attempt or not program.clock:
        return None
    # Without another name, each attempt's output has its own file, named after the attempt.
    name, before = f"{job['group']}.{job['index']}", f"-{attempt - 1}" if attempt > 1 else ""
    earlier = path.removesuffix(f"{name}-{attempt}.out")
    before_it = f"{earlier}{name}{before}.out" if earlier != path else ""
    return no_progress(program, path, before_it, _outcome(program, options, job).step)


def event_job(context: CallContext, action: str) -> Mapping[str, Any]:
    """Return the event's job. Raise :class:`EnsembleError` if the event has none."""
    if context.job is None:
        raise EnsembleError(
            f"{action} needs the event's job, but this event has no job",
            hint="use a trigger that concerns a job, such as job-fail",
            code="no-job",
        )
    return context.job


def fill_placeholders(text: str, job: Mapping[str, Any]) -> str:
    """Return the text with the job's placeholders replaced by their values."""
    for name, value in (
        *job.get("parameters", {}).items(),
        ("group", job["group"]),
        ("index", job["index"]),
        ("id", job["job"]),
    ):
        text = text.replace(f"{{{name}}}", as_text(value))
    return text


def fill_patterns(patterns: str | Sequence[str], job: Mapping[str, Any]) -> list[str]:
    """Return patterns of file names with the job's placeholders replaced. Wildcards in parameters
    match themselves.
    """
    import glob

    own = {name: glob.escape(as_text(value)) for name, value in job.get("parameters", {}).items()}
    given = [patterns] if isinstance(patterns, str) else patterns
    return [fill_placeholders(each, {**job, "parameters": own}) for each in given]


def nested_actions(given: Any) -> Iterable[Action]:
    """Return the actions listed in an option."""
    if given is None:
        return []
    return [Action(spec) for spec in (given if isinstance(given, list) else [given])]


def log_action(message: str, level: str = "info") -> Action:
    """Return the action that logs a message, whose braces are no placeholders."""
    return Action(name="log", message=escape_braces(message), level=level)


def options_schema(
    required: Sequence[str] = (), unless: str = "", /, **properties: Any
) -> dict[str, Any]:
    """Return the schema of the options of an action that needs a job, unless this option is set."""
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
        "x-ensemble-job-unless": unless,
    }


def option(description: str, /, **schema: Any) -> dict[str, Any]:
    """Return the schema of an option."""
    return {"description": description, **schema}


def files_option(description: str) -> dict[str, Any]:
    """Return the schema of an option that is a pattern of file names, or a list of them."""
    item = option("A pattern.", **TEXT)
    return option(description, type=["string", "array"], minLength=1, minItems=1, items=item)


def _log_option(program: Program) -> dict[str, Any]:
    default = program.log or "the job's standard output"
    return option(
        "The log's path in the workdir; may contain {index} and the sweep's "
        f"parameters. Default: the one that the command names, or {default}.",
        **TEXT,
    )
