"""Validation of built-in kinds, as far as tests need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .kinds import Kind
from .quantities import amount, store_canonically
from .refusals import Refusal, invalid

__all__ = ["check"]

Object = Mapping[str, Any]


def check(kind: Kind, found: Object) -> None:
    """Raise the API server's error for an invalid object: 400 if it cannot be decoded, else 422.

    Stores quantities in their canonical form.
    """
    try:
        if kind.kind == "PersistentVolumeClaim":
            requests = (found["spec"].get("resources") or {}).get("requests") or {}
            for each in requests.values():
                amount(str(each))
        if kind.kind in ("Pod", "Job"):
            store_canonically(found.get("spec"))
    except ValueError:
        raise Refusal(
            400,
            f'{kind.kind} in version "v1" cannot be handled as a {kind.kind}: quantities '
            "must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ) from None
    if kind.kind == "HorizontalPodAutoscaler":
        wrong = list(_autoscaler(found["spec"]))
        if wrong:
            raise invalid(kind.kind, kind.group, found["metadata"]["name"], wrong)


def _autoscaler(spec: Object) -> Iterator[str]:
    if not 1 <= spec.get("minReplicas", 1) <= spec.get("maxReplicas", 0):
        yield "spec.maxReplicas: Invalid value: must be greater than or equal to `minReplicas`"
    sources = {"Resource": "resource", "Pods": "pods", "Object": "object", "External": "external",
               "ContainerResource": "containerResource"}  # fmt: skip
    for index, metric in enumerate(spec.get("metrics") or ()):
        where = f"spec.metrics[{index}]"
        source = sources.get(metric.get("type", ""))
        if source is None:
            yield f"{where}.type: Unsupported value: {metric.get('type')!r}"
        elif source not in metric:
            yield f"{where}.{source}: Required value: must populate information for the given source"
        elif "target" not in metric[source]:
            yield f"{where}.{source}.target.type: Required value: must specify a metric target type"
