"""Lets the queue copy a job's files to nodes that have no shared folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ensemble_core import UsageError, escape_braces
from ensemble_jobspec.resource_shapes import Shape
from ensemble_jobspec.unit_order import Unit

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
