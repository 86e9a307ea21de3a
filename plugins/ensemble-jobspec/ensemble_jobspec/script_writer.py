"""Converts a jobspec to a shell script, which runs without Ensemble."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core import Job, as_text, shell_line, unescape_braces
from ensemble_jobspec.conversion import Converted
from ensemble_jobspec.unit_order import Unit

_HEAD = "#!/bin/sh\n# {name}: written by ensemble jobspec convert\nset -eu\n"


def _shell_path(text: str) -> str:
    """Quote a path for the shell; ``{cwd}`` and ``{run}`` in it become shell variables."""
    quoted = shlex.quote(text)
    # The shell's process id replaces the run's tag.
    return (
        quoted.replace("{cwd}", "'\"$here\"'").replace("{run}", "'\"$$\"'")
        if "{" in text
        else quoted
    )


def _sorted_units(units: Sequence[Unit]) -> list[Unit]:
    from graphlib import TopologicalSorter

    named = {unit.name: unit for unit in units}
    order = TopologicalSorter({unit.name: unit.after for unit in units}).static_order()
    return [named[name] for name in order]


def _action(converted: Converted, unit: Unit) -> Mapping[str, Any]:
    """Return the action that starts a unit on the controller's machine."""
    for rule in converted.rules:
        given = rule["action"]
        for action in given if isinstance(given, list) else [given]:
            if action.get("task") == unit.name:
                return action  # type: ignore[no-any-return]
            if action["name"] == "jobspec-files" and unit.name in str(action.get("then")):
                return action  # type: ignore[no-any-return]
    return {}


def _local_lines(converted: Converted, unit: Unit) -> list[str]:
    """Return the shell lines of a unit that runs on the controller's machine."""
    action = _action(converted, unit)
    if not action:
        return []
    if action["name"] == "jobspec-local":
        words = shlex.join(action["command"])
        changes = [f"{key}={value}" for key, value in action.get("environment", {}).items()]
        words = f"{shlex.join(['env', *changes])} {words}" if changes else words
        folder = action.get("workdir")
        line = f"( cd {_shell_path(folder)} && {words} )" if folder else words
        return [line] * action.get("count", 1)
    folder = _shell_path(action["folder"])
    lines = [f"mkdir -p {folder}"]
    for file in action["files"]:
        target = f"{folder}/{shlex.quote(file['name'])}"
        if "source" in file:
            lines.append(f"cp -R -- {shlex.quote(file['source'])} {target}")
        else:
            lines.append(f"printf %s {shlex.quote(file['content'])} >{target}")
            if file.get("executable"):
                lines.append(f"chmod 700 {target}")
    return lines


def _job(job: Mapping[str, Any]) -> Job:
    """Return a job of a group as a shell line."""
    return Job(
        id=job["name"],
        group=job["name"],
        index=0,
        command=tuple(unescape_braces(word) for word in job["command"]),
        environment={
            key: unescape_braces(value) for key, value in job.get("environment", {}).items()
        },
        nodes=job.get("nodes", 1),
        tasks=job.get("tasks", job.get("nodes", 1)),
        cores_per_task=job.get("cores_per_task", 1),
        gpus_per_task=job.get("gpus_per_task", 0),
        duration=job.get("duration", 0.0),
    )


def flux_script(converted: Converted) -> str:
    """Return a script that submits all jobs to Flux with their dependencies, and waits for them."""
    jobs = {job["name"]: job for job in converted.jobs}
    ids: dict[str, list[str]] = {}
    lines = [_HEAD.format(name=converted.name), "here=$(pwd)"]
    every: list[str] = []
    for number, unit in enumerate(_sorted_units(converted.units)):
        after = [name for wait in unit.after for name in ids[wait]]
        if unit.name not in jobs:
            beside = _local_lines(converted, unit)
            if beside and after:
                lines.append(f"flux job status {' '.join(after)}")
            lines += beside
            ids[unit.name] = [] if beside else after
            continue
        job = _job(jobs[unit.name])
        command, slot, many = (
            ("batch", "slot", "nslots") if unit.once else ("submit", "task", "ntasks")
        )
        words = ["flux", command, f"--job-name={unit.name}", f"--{many}={job.tasks}"]
        if not jobs[unit.name].get("options", {}).get("flux", {}).get("any_nodes"):
            words.append(f"--nodes={min(job.nodes, job.tasks)}")
        words.append(f"--cores-per-{slot}={job.cores_per_task}")
        if job.gpus_per_task:
            words.append(f"--gpus-per-{slot}={job.gpus_per_task}")
        if job.duration:
            words.append(f"--time-limit={as_text(job.duration)}s")
        words += [f"--env={key}={value}" for key, value in job.environment.items()]
        line = shlex.join([*words, "--wrap"] if unit.once else words)
        workdir = jobs[unit.name].get("workdir")
        if workdir:
            line += f" --cwd={_shell_path(workdir)}"
        # Flux replaces placeholders such as {{tmpdir}}, which cannot be escaped.
        program = shlex.join(job.command)
        depends = "".join(f" --dependency=afterok:{name}" for name in after)
        own = []
        for replica in range(unit.count):
            name = f"id_{number}_{replica}"
            lines.append(f"{name}=$({line}{depends} -- {program})")
            own.append(f"${name}")
        ids[unit.name] = own
        every += own
    lines.append(f"flux job status {' '.join(every)}" if every else ":")
    return "\n".join(lines) + "\n"


def script(converted: Converted) -> str:
    """Return a script that runs all tasks on this machine, in the order of their dependencies."""
    jobs = {job["name"]: job for job in converted.jobs}
    lines = [_HEAD.format(name=converted.name), "here=$(pwd)"]
    for unit in _sorted_units(converted.units):
        if unit.name not in jobs:
            lines += _local_lines(converted, unit)
            continue
        job = _job(jobs[unit.name])
        line = shell_line(job)
        workdir = jobs[unit.name].get("workdir")
        if workdir:
            line = f"mkdir -p {_shell_path(workdir)} && cd {_shell_path(workdir)} && {line}"
        times = unit.count * (1 if unit.once else job.tasks)
        lines += [f"# {unit.name}", *([f"( {line} )"] * times)]
    return "\n".join(lines) + "\n"
