"""Converts a jobspec to another format, such as an ensemble file or a batch script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ensemble_core import Rendered, UsageError
from ensemble_core.cli.toolkit import Registry, load_text, rendered
from ensemble_jobspec.conversion import Converted
from ensemble_jobspec.jobspec_errors import nearest
from ensemble_jobspec.workload import Workload

#: The plugin's own targets, by name.
OWN = ("ensemble", "flux-script", "kubernetes", "nextgen", "script")
_YAML = "application/yaml"


def targets(registry: Registry) -> list[str]:
    """Return the names of all formats."""
    able = [name for name, record in registry.executors.items() if record.render is not None]
    return sorted({*OWN, *able})


def written(
    workload: Workload, converted: Converted, target: str, registry: Registry, image: str | None
) -> dict[str, Rendered]:
    """Return the texts in the format ``target``, by job group.

    If the format has one text for the whole jobspec, its key is the jobspec's name. Raises
    :class:`~ensemble_core.UsageError` for an unknown format.
    """
    name = converted.name
    if target == "ensemble":
        return {name: Rendered(as_yaml(converted.document), _YAML)}
    if target == "nextgen":
        from ensemble_jobspec.nextgen_writer import as_nextgen

        return {name: Rendered(as_yaml(as_nextgen(workload)), _YAML)}
    if target == "kubernetes":
        from ensemble_jobspec.kubernetes_writer import as_documents, manifests

        if image is None:
            raise UsageError(
                "a Kubernetes Job needs an image",
                hint="add --image NAME; the image must contain the programs that the tasks run",
                code="no-image",
            )
        return {name: Rendered(as_documents(manifests(converted, image)), _YAML)}
    if target in ("flux-script", "script"):
        from ensemble_jobspec.script_writer import flux_script, script

        text = flux_script(converted) if target == "flux-script" else script(converted)
        return {name: Rendered(text)}
    known = targets(registry)
    if target not in known:
        raise UsageError(
            f"unknown target {target!r}", hint=nearest(target, known), code="no-such-target"
        )
    return _render(converted, target, registry)


def _render(converted: Converted, target: str, registry: Registry) -> dict[str, Rendered]:
    record = registry.executors[target]
    ensemble = load_text(as_yaml(converted.document), registry, file="", executor=record)
    defaults = {
        key: option["default"]
        for key, option in record.options.get("properties", {}).items()
        if "default" in option
    }
    return {
        name: rendered(record, next(group.jobs(0)), defaults)
        for name, group in ensemble.groups.items()
        if name in converted.shapes
    }


def as_yaml(document: Mapping[str, Any]) -> str:
    """Return an ensemble file with each entry of ``jobs`` and ``rules`` on one line."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list):
            lines.append(f"{key}:")
            lines += [f"- {_flow(each)}" for each in value]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Return a value in JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f").replace("\x85", "\\x85")
