"""Plugin record for jobspecs in ensemble files, as in ``jobs: [{jobspec: study.yaml}]``.

Each task of the jobspec becomes a job group. The dependencies between tasks become rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core import (
    EnsembleError,
    Fragment,
    Location,
    SourcePlugin,
    SourceView,
    executor_record,
)

_TEXT = {"type": "string", "minLength": 1}
#: Executors whose options are written if they are installed.
_KNOWN = ("flux", "slurm")


def _installed_executors() -> frozenset[str]:
    found = set()
    for name in _KNOWN:
        try:
            executor_record(name)
        except EnsembleError:
            continue
        found.add(name)
    return frozenset(found)


def _expand(given: Mapping[str, Any], view: SourceView) -> Fragment:
    from ensemble_jobspec.conversion import Options, convert
    from ensemble_jobspec.jobspec_reader import read_jobspec

    name = given["jobspec"]
    workload = read_jobspec(view.read(name), view.called(name), given.get("form"))
    options = Options(
        executors=_installed_executors(),
        groups="flat",
        copies=given["copies"],
        prefix=given["prefix"],
        submit=given["submit"],
        skip=frozenset(given["skip"]),
        site=given["requires"],
        strict=given["strict"],
        parameters=given["parameters"],
    )
    converted = convert(workload, options)
    wheres = {}
    for unit in converted.units:
        of = unit.task or unit.group
        if of is not None:
            wheres[unit.name] = of.where
    places: dict[tuple[str | int, ...], Location | None] = {
        ("jobs", number): wheres.get(job["name"]) for number, job in enumerate(converted.jobs)
    }
    for number, rule in enumerate(converted.rules):
        places["rules", number] = wheres.get(rule["id"])
    return Fragment(
        jobs=converted.jobs, rules=converted.rules, places=places, warnings=converted.warnings
    )


SOURCE = SourcePlugin(
    name="jobspec",
    summary="The tasks of a jobspec, as job groups and rules",
    expand=_expand,
    options={
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "jobspec": {"description": "Path of the jobspec, relative to this file.", **_TEXT},
            "prefix": {
                "description": "Prefix of its tasks' names.",
                "type": "string",
                "pattern": "^([A-Za-z0-9_][A-Za-z0-9_-]*)?$",
                "default": "",
            },
            "copies": {
                "description": "One task for each slot, or for each core.",
                "enum": ["slots", "cores"],
                "default": "slots",
            },
            "submit": {
                "description": "If true, tasks without dependencies start with the run; otherwise "
                "a rule of this file submits them.",
                "type": "boolean",
                "default": True,
            },
            "form": {
                "description": "Form of the jobspec. Default: detected.",
                "enum": ["flux", "transform", "nextgen"],
            },
            "skip": {
                "description": "Steps to skip.",
                "type": "array",
                "items": _TEXT,
                "default": [],
            },
            "requires": {
                "description": "Options that meet requirements at this site, by requirement and "
                "executor.",
                "type": "object",
                "additionalProperties": {"type": "object"},
                "default": {},
            },
            "strict": {
                "description": "Whether a requirement that 'requires' does not list is an error.",
                "type": "boolean",
                "default": False,
            },
            "parameters": {
                "description": "One value for each {NAME} in commands, environments and folders.",
                "type": "object",
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                "additionalProperties": {"type": ["string", "number"]},
                "default": {},
            },
        },
    },
)
