"""Tests of Kubernetes manifests: every field exists in Kubernetes and has the right type.

Jobs are validated by the models of Kubernetes' Python client, MiniClusters by the definition of
the stand-in of ``ensemble-minicluster``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from ensemble_jobspec import read
from ensemble_jobspec.conversion import Options, convert
from ensemble_jobspec.kubernetes_writer import manifests

pytestmark = pytest.mark.checkout

SLOT = "{type: slot, count: 2, with: [{type: core, count: 3}, {type: gpu, count: 1}]}"
WORK = f"""\
version: 1
resources:
  slots: {SLOT}
  nodes: {{type: node, count: 3, requires: [arch=arm], with: [{SLOT}]}}
  arm: {{type: core, requires: [arch=arm]}}
tasks:
- {{name: Plain_1, command: [echo, $(HOME), "{{index}}"]}}
- {{name: many, command: "#!/bin/sh\\necho $1\\n", replicas: 4, resources: slots, depends_on: [Plain_1],
   attributes: {{duration: 1.5, cwd: /tmp, environment: {{A: 1, B: "$(x)"}}}}}}
- {{name: choose_shape, command: x, resources: arm}}
- {{name: wide, command: x, resources: nodes, attributes: {{duration: 90, cwd: /tmp, environment: {{A: b}}}}}}
groups:
- {{name: batch, resources: nodes, tasks: [{{command: x}}]}}
"""
STEPS = """\
version: 1
resources: [{type: slot, count: 1, with: [{type: core, count: 1}]}]
task:
  scripts: [{name: a.sh, content: "echo a\\n"}, {name: b/c.sh, content: "echo b\\n"}]
  transform:
  - {step: write, filename: a.sh, executable: true}
  - {step: write, filename: b/c.sh}
  - {step: submit, filename: a.sh, wait: true}
"""
SITE = {"arch=arm": {"kubernetes": {"nodeSelector": {"kubernetes.io/arch": "arm64"}}}}


def written(text: str) -> list[dict[str, Any]]:
    options = Options(groups="nested", site=SITE)
    return manifests(convert(read(text), options), "image:1")


def closed(schema: Any) -> Any:
    """Return the schema without additional properties in objects that list theirs."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    return found


def model(manifest: dict[str, Any]) -> Any:
    """Return the client's model of a manifest. Raise if a field is unknown or has a wrong type."""
    from kubernetes.client import models

    return getattr(models, f"V1{manifest['kind']}").model_validate(manifest)


def test_every_job_fits_the_clients_models() -> None:
    found = [each for each in (*written(WORK), *written(STEPS)) if each["kind"] != "MiniCluster"]
    assert sorted(each["kind"] for each in found) == ["ConfigMap", "Job", "Job", "Job", "Job"]
    for each in found:
        model(each)
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", each["metadata"]["name"])
    job = found[0]
    job["spec"]["backOffLimit"] = job["spec"].pop("backoffLimit")
    with pytest.raises(ValueError, match="backOffLimit"):
        model(job)


def test_every_minicluster_fits_its_definition() -> None:
    crd = "tests/shared/kubernetes_stand_in/minicluster-crd.yaml"
    definition = yaml.safe_load((Path(__file__).parents[3] / crd).read_text())
    (version,) = definition["spec"]["versions"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    # The operator has these fields; the stand-in does not need them.
    spec = schema["properties"]["spec"]["properties"]
    spec["deadlineSeconds"] = {"type": "integer"}
    spec["pod"]["properties"]["nodeSelector"] = {"type": "object"}
    validator = jsonschema_rs.validator_for(schema)
    found = [each for each in written(WORK) if each["kind"] == "MiniCluster"]
    assert [each["metadata"]["name"] for each in found] == ["wide", "batch"]
    for each in found:
        assert [str(error) for error in validator.iter_errors(each)] == []
    found[0]["spec"]["sizes"] = 1
    assert not validator.is_valid(found[0])
