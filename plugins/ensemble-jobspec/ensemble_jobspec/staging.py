"""Scripts and files of a job on nodes without a shared folder.

Its command contains the script, or the queue copies the files. Pass a jobspec's text as an
argument. Never paste it into our own shell code, where it could inject commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

from ensemble_core import UsageError, escape_braces
from ensemble_jobspec.resource_shapes import Shape
from ensemble_jobspec.task_dependencies import Unit
from ensemble_jobspec.workload import Script

#: Command that copies files from a job's first node to the others, and starts the job.
_CAST = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do sbcast --force "$1" "$1" || exit 1; shift; '
    'n=$((n - 1)); done; exec "$@"'
)


def stage_files(
    job: dict[str, Any],
    unit: Unit,
    shape: Shape,
    executor: str | None,
    contents: Callable[[str], str] | None,  # returns the text of a file
) -> None:
    """Change ``job`` so that the queue copies the job's files to its nodes.

    Raises :class:`UsageError` if a file cannot be copied.
    """
    if executor == "flux":  # the files are sent within the jobspec
        files = {name: _content(unit, name, contents) for name in unit.staged}
        flux = job.setdefault("options", {}).setdefault("flux", {})
        flux.setdefault("attributes", {})["system.files"] = {
            escape_braces(name): {
                "mode": 0o100700,
                "encoding": "utf-8",
                "data": escape_braces(text),
            }
            for name, text in files.items()
        }
        # Flux's shell puts the files here on each node.
        job["command"] = [
            escape_braces("{{tmpdir}}/") + word if word in files else word
            for word in job["command"]
        ]
    elif executor == "slurm":
        if shape.nodes > 1:
            job.setdefault("options", {}).setdefault("slurm", {})["launch"] = "none"
            job["command"] = [
                "sh", "-c", _CAST, "sbcast", str(len(unit.staged)), *unit.staged, "srun",
                "--input=none", f"--cpus-per-task={shape.cores}", *job["command"],
            ]  # fmt: skip
    elif executor not in (None, "local"):
        task = unit.task
        assert task is not None
        raise UsageError(
            f"{unit.name!r} stages files, but {executor} cannot copy them to nodes without a "
            f"shared folder",
            where=unit.steps[0].where if unit.steps else task.where,
            hint="if the nodes share the folder, set 'sharedfs' to true or use --skip stage; "
            "otherwise, use Flux or Slurm",
            code="cannot-stage",
        )


def _content(unit: Unit, name: str, contents: Callable[[str], str] | None) -> str:
    task = unit.task
    assert task is not None
    for script in task.scripts:
        if script.name == name:
            return script.text
    copies = [step.options for step in task.steps if step.name == "copy"]
    source = next((each["source"] for each in copies if each["filename"] == name), name)
    if contents is None:
        raise UsageError(
            f"cannot stage {source!r}: a jobspec in an ensemble file can stage only its 'scripts'",
            where=task.where,
            hint="put the file into 'scripts', or run the jobspec with 'ensemble jobspec run'",
            code="cannot-stage",
        )
    return contents(source)


#: The option with which each interpreter takes a program as an argument.
_TAKES = (
    (re.compile(r"(ba|da|z|k|mk|a)?sh\Z"), "-c"),
    (re.compile(r"python[0-9.]*\Z|pypy[0-9.]*\Z"), "-c"),
    (re.compile(r"(perl|ruby|node|Rscript|lua)[0-9.]*\Z"), "-e"),
)
#: Maximum length of an argument in bytes, somewhat below Linux' limit of 128 KiB.
_MOST = 100_000
#: Command that writes a script to a file, runs the file, and removes it.
_CARRY = (
    'f=$(umask 077; mktemp "${TMPDIR:-/tmp}/jobspec.XXXXXX") || exit 126; '
    "trap 'rm -f \"$f\"' EXIT; trap 'exit 143' TERM; "
    'printf %s "$@" >"$f" && chmod 700 "$f" && "$f"'
)


def script_words(script: Script) -> tuple[str, ...]:
    """Return the command that runs a script: its interpreter, with the text as an argument.

    >>> script_words(Script("#!/usr/bin/env python3\\nprint(1)\\n"))
    ('/usr/bin/env', 'python3', '-c', '#!/usr/bin/env python3\\nprint(1)\\n')
    """
    first = script.text.split("\n", 1)[0]
    words = first[2:].split(None, 1) if first.startswith("#!") else []
    if not words:
        words = ["sh"]
    if len(words) > 1:
        # The kernel passes the rest of the interpreter line as one word; env splits it with -S.
        rest = words[1].strip()
        split = words[0].rpartition("/")[2] == "env" and rest.startswith("-S")
        words = [words[0], *(shlex.split(rest[2:]) if split else [rest])]
    small = len(script.text.encode(errors="surrogatepass")) <= _MOST
    program = words[-1] if words[0].rpartition("/")[2] == "env" else words[0]
    flag = next((flag for kind, flag in _TAKES if kind.match(program.rpartition("/")[2])), None)
    if small and flag is not None:
        name = [script.name] if _TAKES[0][0].match(program.rpartition("/")[2]) else []
        return (*words, flag, script.text, *name)
    text = script.text if first.startswith("#!") else f"#!/bin/sh\n{script.text}"
    step = _MOST // 4  # characters of UTF-8 have up to four bytes
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    return ("sh", "-c", _CARRY, script.name, *parts)
