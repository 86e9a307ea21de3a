"""Actions of ensemble files that were converted from jobspecs.

- ``jobspec-local`` runs a command on the controller's machine.
- ``jobspec-files`` writes files into a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble_core import Action, ActionPlugin, CallContext, EnsembleError, job_environment

_TEXT = {"type": "string", "minLength": 1}
_THEN = {
    "description": "Actions on success.",
    "type": ["object", "array"],
    "x-ensemble": "action",
}
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
#: Maximum number of characters of a failed command's output that the error quotes.
_TOLD = 2000


def fill_folder(text: str, context: CallContext) -> str:
    """Return the path with ``{run}`` and ``{cwd}`` replaced by the run's tag and start folder."""
    return os.path.join(
        context.cwd, text.replace("{run}", context.run).replace("{cwd}", context.cwd)
    )


def _follow_up(options: Mapping[str, Any]) -> list[Action]:
    given = options.get("then", [])
    return [Action(spec) for spec in ([given] if isinstance(given, Mapping) else given)]


def _run_command(context: CallContext) -> list[Action]:
    import tempfile

    options = context.options
    name = options["task"]
    try:
        if context.folder:
            records = Path(context.folder, "jobspec-local")
            records.mkdir(mode=0o700, exist_ok=True)
            text = _run_all(context, records)
        else:  # a run without a journal is never resumed
            with tempfile.TemporaryDirectory(prefix="ensemble-jobspec-") as spare:
                text = _run_all(context, Path(spare))
    except TimeoutError:
        raise EnsembleError(
            f"{name!r} took longer than {options['duration']:g} s", code="local-failed"
        ) from None
    except OSError as error:
        raise EnsembleError(f"cannot run {name!r}: {error}", code="local-failed") from None
    if text:
        told = Action({"name": "log", "message": "{task}: {output}"})
        return [told.knowing({"task": name, "output": text[-_TOLD:]}), *_follow_up(options)]
    return _follow_up(options)


def _run_all(context: CallContext, records: Path) -> str:
    """Run the command as many times as requested. Return its output, empty if it is secret.

    Raises :class:`EnsembleError` if the command fails.
    """
    from ensemble_jobspec.run_once import run_once

    options = context.options
    folder = fill_folder(options.get("workdir", "{cwd}"), context)
    os.makedirs(folder, exist_ok=True)
    environment = {**job_environment(), "ENSEMBLE_RUN": context.run}
    environment |= options.get("environment", {})
    keep = not options.get("secret", False)
    said = []
    for number in range(options.get("count", 1)):
        record = records / f"{_OTHER.sub('-', context.call)}.{number}"
        code = run_once(
            options["command"], record, again=context.event.get("attempt", 1) > 1, keep=keep,
            cwd=folder, environment=environment, duration=options.get("duration") or None,
        )  # fmt: skip
        if code is None:
            raise EnsembleError(
                f"{options['task']!r} was interrupted when an earlier controller died; it is not "
                f"run a second time, because it may have done part of its work",
                hint="check what it has done, then run the jobspec again",
                code="local-failed",
            )
        if keep:
            with record.with_name(f"{record.name}.out").open(errors="replace") as output:
                said.append(output.read(1 << 20))
        if code:
            told = "".join(said).strip()[-_TOLD:]
            raise EnsembleError(
                f"{options['task']!r} ended with exit code {code}{f': {told}' if told else ''}",
                code="local-failed",
            )
    return "".join(said).strip()


def _write_files(context: CallContext) -> list[Action]:
    import shutil

    options = context.options
    folder = Path(fill_folder(options["folder"], context))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in options["files"]:
            target = _path_in_folder(folder, file["name"], options.get("task", "files"))
            target.parent.mkdir(parents=True, exist_ok=True)
            # Write a temporary file and rename it, so that repeating the call is harmless.
            part = target.with_name(f".{target.name}.part")
            if "source" in file:
                source = Path(context.cwd, file["source"])
                if source.is_dir():
                    shutil.copytree(source, target, dirs_exist_ok=True)
                    continue
                shutil.copy2(source, part)
            else:
                part.write_text(file["content"], "utf-8")
                part.chmod(0o700 if file.get("executable") else 0o600)
            part.replace(target)
    except OSError as error:
        raise EnsembleError(
            f"{options.get('task', 'files')!r} cannot put {file['name']!r} into {folder}: {error}",
            code="cannot-stage",
        ) from None
    return _follow_up(options)


def _path_in_folder(folder: Path, name: str, task: str) -> Path:
    """Return the path of a file in the folder. Raise an error if a link leads out of the folder."""
    target = folder / name
    inside = os.path.realpath(folder)
    if os.path.commonpath([inside, os.path.realpath(target)]) != inside:
        raise EnsembleError(
            f"{task!r} cannot put {name!r} into {folder}: a link leads out of the staging folder",
            code="path-outside",
        )
    return target


LOCAL = ActionPlugin(
    name="jobspec-local",
    summary="Run a command on the controller's machine; 'then' follows on success",
    run=_run_command,
    options={
        "type": "object",
        "required": ["task", "command"],
        "additionalProperties": False,
        "properties": {
            "task": {"description": "Name for messages.", **_TEXT},
            "command": {
                "description": "Program and arguments.",
                "type": "array",
                "minItems": 1,
                "items": {"type": "string"},
            },
            "workdir": {"description": "Working folder; {run} and {cwd} are filled in.", **_TEXT},
            "environment": {
                "description": "Environment variables, in addition to the run's.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "duration": {"description": "Time limit in seconds.", "type": "number"},
            "count": {
                "description": "Number of runs, one after another.",
                "type": "integer",
                "minimum": 1,
                "default": 1,
            },
            "secret": {
                "description": "Whether to discard the command's output.",
                "type": "boolean",
            },
            "then": _THEN,
        },
    },
)
FILES = ActionPlugin(
    name="jobspec-files",
    summary="Put files into a staging folder; 'then' follows on success",
    run=_write_files,
    options={
        "type": "object",
        "required": ["folder", "files"],
        "additionalProperties": False,
        "properties": {
            "task": {"description": "Name for messages.", **_TEXT},
            "folder": {"description": "Folder; {run} and {cwd} are filled in.", **_TEXT},
            "files": {
                "description": "Files by name, each with its content or its source.",
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "additionalProperties": False,
                    "properties": {
                        "name": {"description": "Path within the folder.", **_TEXT},
                        "content": {"description": "Content.", "type": "string"},
                        "source": {"description": "File to copy.", **_TEXT},
                        "executable": {
                            "description": "Whether it is executable.",
                            "type": "boolean",
                        },
                    },
                },
            },
            "then": _THEN,
        },
    },
)
