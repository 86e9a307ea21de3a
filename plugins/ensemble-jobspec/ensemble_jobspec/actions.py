"""Actions of converted jobspecs: commands beside the controller, and files in the staging folder.

Both may be slow and run off the engine's thread; what follows on success stands under ``then``. A
failure is an error of the run, whose exit code is then 1, and what waits for it never begins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble_core import Action, ActionPlugin, CallContext, EnsembleError, job_environment

__all__ = ["FILES", "LOCAL", "placed"]

_TEXT = {"type": "string", "minLength": 1}
_THEN = {
    "description": "What is done on success.",
    "type": ["object", "array"],
    "x-ensemble": "action",
}
#: Characters of a failed command's output that are told.
_TOLD = 2000


def placed(text: str, context: CallContext) -> str:
    """A folder or path with the run's tag and the folder where it was started filled in."""
    return os.path.join(
        context.cwd, text.replace("{run}", context.run).replace("{cwd}", context.cwd)
    )


def _then(options: Mapping[str, Any]) -> list[Action]:
    given = options.get("then", [])
    return [Action(spec) for spec in ([given] if isinstance(given, Mapping) else given)]


def _local(context: CallContext) -> list[Action]:
    import subprocess
    import tempfile

    options = context.options
    folder = placed(options.get("workdir", "{cwd}"), context)
    secret = bool(options.get("secret", False))
    name = options["task"]
    environment = {**job_environment(), "ENSEMBLE_RUN": context.run}
    environment |= options.get("environment", {})
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile() as output:
            for _ in range(options.get("count", 1)):
                done = subprocess.run(
                    options["command"],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if secret else output,
                    stderr=subprocess.DEVNULL if secret else subprocess.STDOUT,
                    timeout=options.get("duration") or None,
                    check=False,
                )
                if done.returncode:
                    break
            output.seek(0)
            text = output.read(1 << 20).decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        raise EnsembleError(
            f"{name!r} took longer than {options['duration']:g} s", code="local-failed"
        ) from None
    except OSError as error:
        raise EnsembleError(f"{name!r} cannot run: {error}", code="local-failed") from None
    if done.returncode:
        said = f": {text[-_TOLD:]}" if text else ""
        raise EnsembleError(
            f"{name!r} ended with exit code {_as_shell(done.returncode)}{said}", code="local-failed"
        )
    if text:
        told = Action({"name": "log", "message": "{task}: {output}"})
        return [told.knowing({"task": name, "output": text[-_TOLD:]}), *_then(options)]
    return _then(options)


def _as_shell(code: int) -> int:
    return 128 - code if code < 0 else code


def _files(context: CallContext) -> list[Action]:
    import shutil

    options = context.options
    folder = Path(placed(options["folder"], context))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in options["files"]:
            target = _within(folder, file["name"])
            target.parent.mkdir(parents=True, exist_ok=True)
            # Written beside it and moved: a call that is made again leaves the same.
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
            f"cannot put {file['name']!r} into {folder}: {error}", code="cannot-stage"
        ) from None
    return _then(options)


def _within(folder: Path, name: str) -> Path:
    """The file of this name in the folder. Raises where a link would lead out of it."""
    target = folder / name
    inside = os.path.realpath(folder)
    if os.path.commonpath([inside, os.path.realpath(target)]) != inside:
        raise EnsembleError(f"{name!r} leaves the staging folder", code="path-outside")
    return target


LOCAL = ActionPlugin(
    name="jobspec-local",
    summary="run a command beside the controller, and do something on its success",
    run=_local,
    options={
        "type": "object",
        "required": ["task", "command"],
        "additionalProperties": False,
        "properties": {
            "task": {"description": "Its name, for messages.", **_TEXT},
            "command": {
                "description": "The program and its arguments.",
                "type": "array",
                "minItems": 1,
                "items": {"type": "string"},
            },
            "workdir": {"description": "Where it runs; {run} and {cwd} are filled in.", **_TEXT},
            "environment": {
                "description": "Variables beside those of the run.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "duration": {"description": "Its time limit in seconds.", "type": "number"},
            "count": {
                "description": "How often, one time after another.",
                "type": "integer",
                "minimum": 1,
                "default": 1,
            },
            "secret": {"description": "Whether its output is kept nowhere.", "type": "boolean"},
            "then": _THEN,
        },
    },
)
FILES = ActionPlugin(
    name="jobspec-files",
    summary="put files into a staging folder, and do something then",
    run=_files,
    options={
        "type": "object",
        "required": ["folder", "files"],
        "additionalProperties": False,
        "properties": {
            "folder": {"description": "The folder; {run} and {cwd} are filled in.", **_TEXT},
            "files": {
                "description": "Files by name, with their content, or where they are copied from.",
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "additionalProperties": False,
                    "properties": {
                        "name": {"description": "Its path within the folder.", **_TEXT},
                        "content": {"description": "What is in it.", "type": "string"},
                        "source": {"description": "What it is a copy of.", **_TEXT},
                        "executable": {
                            "description": "Whether it may be run.",
                            "type": "boolean",
                        },
                    },
                },
            },
            "then": _THEN,
        },
    },
)
