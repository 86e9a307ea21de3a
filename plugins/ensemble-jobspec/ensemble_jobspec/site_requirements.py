"""Requirements of a jobspec, such as a compiler or a CPU type, and what a site has of them.

A site file maps them to executor options::

    requires:
      "system.cpu.target=amd64":
        slurm: {constraint: amd64}
        kubernetes: {nodeSelector: {kubernetes.io/arch: amd64}}

``ensemble jobspec satisfy`` checks them: the site describes its software and hardware in JGF files
(JSON Graph Format), one for each subsystem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble_core import FileErrors, Location, UsageError
from ensemble_core.cli.toolkit import read_document, read_file
from ensemble_jobspec.jobspec_errors import Faults
from ensemble_jobspec.workload import Group, Task, Workload


def read_site(text: str, file: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the section ``requires`` of a site file.

    Raises :class:`~ensemble_core.FileErrors` for an invalid file.
    """
    faults = Faults(read_document(text, file))
    if not faults.check("site"):
        raise FileErrors(faults.errors)
    table: Mapping[str, Mapping[str, Any]] = faults.document.data["requires"]
    return table


def site_options(
    site: Mapping[str, Mapping[str, Any]],
    required: Sequence[str],
    name: str,
    where: Location | None,
    *,
    strict: bool,
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the options that meet these requirements of ``name``, and warnings about the others.

    Raises :class:`UsageError` about the others if ``strict``.
    """
    notes = []
    for requirement in required:
        if requirement not in site:
            what = f"{name!r} requires {requirement!r}, which the site file does not list"
            if strict:
                raise UsageError(
                    what,
                    where=where,
                    hint=f"add {{'{requirement}': {{slurm: {{constraint: …}}}}}} under 'requires' "
                    "in the site file",
                    code="not-met",
                )
            notes.append(what)
    return [site[requirement] for requirement in required if requirement in site], notes


def check_requirements(
    workload: Workload, folder: Path, *, require_all: bool = False
) -> tuple[bool, dict[str, str]]:
    """Return whether the site meets the requirements, and the result for each requirement.

    A task or group can combine requirements in an expression, such as ``compiler|python``. If
    the workload has such expressions, all of them must hold. Without any, or if ``require_all`` is
    true, all requirements must be met.

    Raises :class:`UsageError` if the site's files cannot be read.
    """
    # A requirement is met if one node of its subsystem's graph has everything that is required.
    graphs = _graphs(folder) if workload.requires else {}
    met: dict[str, bool] = {}
    told: dict[str, str] = {}
    for name, wanted in workload.requires.items():
        missing = [each for each in wanted if not _is_met(each, name, graphs)]
        met[name] = not missing
        told[name] = (
            "met"
            if not missing
            else "; ".join(_describe_missing(each, name, graphs) for each in missing)
        )
    members: list[Task | Group] = [*workload.every_task(), *workload.every_group()]
    asked = [each.requires for each in members if each.requires]
    if require_all or not asked:
        return all(met.values()), told
    return all(_evaluate(text, met) for text in asked), told


def _evaluate(text: str, met: Mapping[str, bool]) -> bool:
    """Evaluate the expression; ``&`` binds more tightly than ``|``."""
    return any(
        all(met.get(name.strip(), False) for name in alternative.split("&"))
        for alternative in text.split("|")
    )


def _graphs(folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the metadata of all nodes, by the graph's name."""
    if not folder.is_dir():
        raise UsageError(
            f"folder of subsystems not found: {str(folder)!r}",
            hint="choose an existing folder with --subsystem-dir",
            code="no-such-file",
        )
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            data = json.loads(read_file(file, suffixes=(".json",)))
            found[file.stem] = list(_nodes(data))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UsageError(
                f"{file} is not a subsystem graph",
                where=Location(str(file)),
                cause=str(error),
                hint="write JSON such as {graph: {nodes: {ID: {metadata: {…}}}}}",
                code="bad-graph",
            ) from None
    return found


def _nodes(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    nodes = data["graph"]["nodes"]
    for node in nodes.values() if isinstance(nodes, Mapping) else nodes:
        metadata = dict(node.get("metadata") or {})
        inner = metadata.pop("attributes", None)
        yield {
            "label": node.get("label"),
            **(inner if isinstance(inner, Mapping) else {}),
            **metadata,
        }


def _is_met(
    wanted: Mapping[str, Any], name: str, graphs: Mapping[str, list[Mapping[str, Any]]]
) -> bool:
    nodes = graphs.get(str(wanted.get("name", name)), [])
    return any(_matches(wanted, node) for node in nodes)


def _matches(wanted: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    for key, value in (("field", "match"), ("attribute", "value")):
        if key in wanted:
            if wanted[key] not in node:
                return False
            if value in wanted and _text(node[wanted[key]]) != _text(wanted[value]):
                return False
    return True


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe_missing(
    wanted: Mapping[str, Any], name: str, graphs: Mapping[str, list[Mapping[str, Any]]]
) -> str:
    subsystem = str(wanted.get("name", name))
    if subsystem not in graphs:
        return f"unknown subsystem {subsystem!r}"
    said = [
        f"{wanted[key]}={wanted[value]}" if value in wanted else str(wanted[key])
        for key, value in (("field", "match"), ("attribute", "value"))
        if key in wanted
    ]
    return f"nothing in {subsystem!r} has {' and '.join(said) or 'anything'}"
