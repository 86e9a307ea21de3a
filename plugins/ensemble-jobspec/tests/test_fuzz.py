"""Property tests of the reader: any jobspec is read, or rejected with the place of each mistake."""

from __future__ import annotations

import json
from typing import Any

from ensemble_jobspec import read
from ensemble_jobspec.conversion import Options, convert
from ensemble_jobspec.format_writer import as_nextgen, as_yaml, flux_script, script
from ensemble_jobspec.kubernetes_writer import manifests
from ensemble_jobspec.workload import Workload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ensemble_core import EnsembleError, FileErrors
from ensemble_core.cli.toolkit import load_text
from ensemble_core.plugin.discovery import discover

_KEYS = (
    "version", "name", "resources", "tasks", "task", "groups", "group", "attributes", "system", "requires", "type",
    "count", "replicas", "with", "label", "slot", "command", "depends_on", "local", "steps", "path", "scripts",
    "content", "transform", "step", "filename", "key", "value", "duration", "environment", "cwd", "per_slot", "total", "a",
)  # fmt: skip
_WORDS = (
    "a", "b", "node", "slot", "core", "gpu", "write", "submit", "set", "stage", "copy", "a|b", "5m", "#!/bin/sh\nx",
    "", "\0", "../x", "echo 'a", "{index}", "1.5", "{{x}}",
)  # fmt: skip
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(-1, 2), st.sampled_from(_WORDS)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)),
    max_leaves=25,
)  # fmt: skip
_TEXTS = st.text(st.sampled_from("ab {}$'\"\\;`%*é\t"), min_size=1, max_size=12)


@st.composite
def jobspecs(draw: st.DrawFn) -> dict[str, Any]:
    """Generate a jobspec without dangling references."""
    core = {"type": "core", "count": draw(st.integers(1, 3))}
    slot = {"type": "slot", "count": draw(st.integers(1, 3)), "with": [core]}
    node = {"type": "node", "count": draw(st.integers(1, 3)), "with": [slot]}
    resources = {"node": node, "slot": slot, "core": core, "bare": {"type": "node"}}

    def tasks(outer: list[str]) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for name in draw(st.lists(_TEXTS.filter(str.strip), min_size=1, max_size=5, unique=True)):
            before = [task["name"] for task in made]
            task: dict[str, Any] = {"name": name}
            if outer and draw(st.integers(0, 3)) == 0:
                task["group"] = draw(st.sampled_from(outer))
            else:
                task["command"] = ["x", *draw(st.lists(_TEXTS, max_size=2))]
                task["local"] = draw(st.booleans())
            if draw(st.booleans()):
                task["command" if "command" in task else "group"] = (
                    "#!/bin/sh\n" + draw(_TEXTS) if "command" in task else task["group"]
                )
            if before:
                task["depends_on"] = draw(
                    st.lists(st.sampled_from(before), max_size=3, unique=True)
                )
            task["resources"] = draw(st.sampled_from([*resources, "node|slot"]))
            task["replicas"] = draw(st.integers(1, 3))
            task["attributes"] = {
                "environment": {"A": draw(_TEXTS)},
                "duration": draw(st.integers(0, 9)),
            }
            made.append(task)
        return made

    groups: list[dict[str, Any]] = []
    for name in draw(st.lists(st.sampled_from("ghi"), max_size=3, unique=True)):
        known = [group["name"] for group in groups]
        group = {"name": f"group {name}", "tasks": tasks(known)}
        groups.append({**group, "resources": "node"} if draw(st.booleans()) else group)
    document = {"version": 1, "resources": resources, "tasks": tasks([g["name"] for g in groups])}
    return {**document, "groups": groups} if groups else document


def _read(document: object) -> Workload | None:
    """Return the workload, or ``None`` if it is rejected. Check that each mistake has a place."""
    found: tuple[EnsembleError, ...] = ()
    try:
        return read(json.dumps(document) + "\n")
    except FileErrors as errors:
        found = errors.errors
    assert found
    assert all(error.where is not None and error.code != "error" for error in found)
    return None


@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=5))
@settings(deadline=None, max_examples=120)
def test_any_document_is_read_or_rejected(document: object) -> None:
    _read(document)


REGISTRY = discover()


@given(jobspecs())
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_every_workload_can_be_converted_to_every_target(document: dict[str, Any]) -> None:
    workload = _read(document)
    assert workload is not None
    converted = [convert(workload, Options(executor=name)) for name in (None, "flux", "local")]
    for each in converted:
        names = [job["name"] for job in each.jobs]
        assert len(names) == len(set(names))
        rules = [rule["id"] for rule in each.rules]
        assert len(rules) == len(set(rules))
    ensemble = load_text(as_yaml(converted[0].document), REGISTRY, file="x.yaml")
    assert [*ensemble.groups] == [job["name"] for job in converted[0].jobs]
    assert script(converted[0])
    assert flux_script(converted[0])
    manifests(converted[0], "image")
    again = read(as_yaml(as_nextgen(workload)))
    assert [task.name for task in again.every_task()] == [t.name for t in workload.every_task()]
