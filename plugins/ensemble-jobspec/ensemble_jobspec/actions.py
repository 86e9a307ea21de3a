"""Actions of ensemble files that were converted from jobspecs.

- ``jobspec-local`` runs a command on the controller's machine, never twice, even if the controller
  is killed.
- ``jobspec-files`` writes files into a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

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


#: Shell script that writes its process id, runs a command unchanged, and writes the exit code
#: atomically. It survives the controller and holds the lock of the record.
_KEEPER = (
    'f=$0; echo $$ >"$f"; "$@"; code=$?; '
    'echo $code >"$f.part" && mv "$f.part" "$f.code"; exit $code'
)
#: Seconds between checks of a command that an earlier controller started.
_LOOK = 0.2


def run_once(
    command: Sequence[str],
    record: Path,
    *,
    again: bool,
    keep: bool,
    cwd: str,
    environment: Mapping[str, str],
    duration: float | None,
) -> int | None:
    """Run the command and return its exit code (128 + N after signal N).

    - ``record``: file that shows a later controller whether the command was started
    - ``again``: whether an earlier controller may have started the command. If it has, wait for the
      command instead of running it again. If the command was interrupted, return ``None``.
    - ``keep``: whether to write the output to the file ``record`` plus ``.out``

    Raises :class:`TimeoutError` after ``duration`` seconds, and :class:`OSError` if the command
    cannot run.
    """
    import subprocess  # slow, and rarely needed

    kept = record.with_name(f"{record.name}.out") if keep else Path(os.devnull)
    with record.open("a+") as held:
        if again:
            _wait_for(record, held, duration)
            if record.read_text():  # the earlier shell had begun, so don't run the command again
                return _code(record)
        with contextlib.suppress(OSError):  # without locks, only the record counts
            fcntl.flock(held, fcntl.LOCK_EX)
        words = ["sh", "-c", _KEEPER, str(record), _program(command[0], environment), *command[1:]]
        with kept.open("wb") as output:
            process = subprocess.Popen(
                words,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C stops the run, not the command
                pass_fds=[held.fileno()],
            )
    try:
        code = process.wait(duration)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
        process.wait()
        raise TimeoutError from None
    return 128 - code if code < 0 else code


def _program(name: str, environment: Mapping[str, str]) -> str:
    """Return the program's path, so that the shell does not use a builtin of the same name."""
    import shutil

    found = name if "/" in name else shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"program not found: {name!r}")
    return found


def _wait_for(record: Path, held: TextIO, duration: float | None) -> None:
    """Wait until a command of an earlier controller is over. Raises the errors of ``run_once``."""
    deadline = None if duration is None else time.monotonic() + duration
    while _is_running(record, held):
        if deadline is not None and time.monotonic() > deadline:
            shell = _shell_pid(record)
            if shell is not None:
                _kill(shell)
            raise TimeoutError
        time.sleep(_LOOK)


def _is_running(record: Path, held: TextIO) -> bool:
    if _code(record) is not None:  # only background processes may hold the lock
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # this file system has no locks
        return _shell_pid(record) is not None
    return False


def _code(record: Path) -> int | None:
    try:
        return int(record.with_name(f"{record.name}.code").read_text())
    except FileNotFoundError:
        return None


def _shell_pid(record: Path) -> int | None:
    """Return the process id of the shell that runs the command, or ``None`` if it has ended.

    The record must be in the process's command line, because the id may have been reused.
    """
    try:
        pid = int(record.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(record) in words else None


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
