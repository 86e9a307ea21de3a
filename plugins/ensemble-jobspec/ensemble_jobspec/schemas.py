"""JSON Schemas of the three forms of a jobspec: ``flux``, ``transform`` and ``nextgen``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

#: Types of resources to request; those in the second row are only containers.
RESOURCES = ("node", "slot", "core", "cores", "gpu", "gpus")
_HOLDERS = ("rack", "socket")

_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
_SCALAR = {"type": ["string", "number", "boolean"]}
_COMMAND = {
    "type": ["string", "array"],
    "minLength": 1,
    "minItems": 1,
    "items": {"type": ["string", "number"]},
}
_DURATION = {"type": ["number", "string"], "minimum": 0}
_ENVIRONMENT = {"type": "object", "additionalProperties": _SCALAR}


def _closed_object(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def _vertex(types: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return _closed_object(
        ("type",),
        type={"enum": list(types)},
        count=_COUNT,
        unit=_TEXT,
        label=_TEXT,
        exclusive={"type": "boolean"},
        **{"with": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/vertex"}}},
        **properties,
    )


_ATTRIBUTES = _closed_object(
    system={
        "type": "object",
        "properties": {"duration": _DURATION, "cwd": _TEXT, "environment": _ENVIRONMENT},
    },
    user={"type": "object"},
)
_TASK_COUNT = {
    **_closed_object(per_slot=_COUNT, total=_COUNT),
    "minProperties": 1,
    "maxProperties": 1,
}

_ONE_VERTEX = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "items": {"$ref": "#/$defs/vertex"},
}

_FLUX: Schema = {
    **_closed_object(
        ("version", "resources", "tasks", "attributes"),
        version={"const": 1},
        resources=_ONE_VERTEX,
        tasks={
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": _closed_object(
                ("command", "slot", "count"),
                command=_COMMAND,
                slot=_TEXT,
                count=_TASK_COUNT,
                distribution=_TEXT,
                attributes={"type": "object"},
            ),
        },
        attributes={
            **_ATTRIBUTES,
            "required": ["system"],
            "properties": {
                **_ATTRIBUTES["properties"],
                "system": {**_ATTRIBUTES["properties"]["system"], "required": ["duration"]},
            },
        },
    ),
    "$defs": {"vertex": _vertex(("node", "slot", "core", "gpu", *_HOLDERS), id=_TEXT)},
}

_TRANSFORM: Schema = {
    **_closed_object(
        ("version", "resources", "task"),
        version={"const": 1},
        resources=_ONE_VERTEX,
        attributes=_ATTRIBUTES,
        task=_closed_object(
            name=_TEXT,
            slot=_TEXT,
            count=_TASK_COUNT,
            command=_COMMAND,
            scripts={
                "type": "array",
                "items": _closed_object(
                    ("name", "content"), name=_TEXT, content={"type": "string"}
                ),
            },
            resources={"type": "object"},
            transform={
                "type": "array",
                "items": {"type": "object", "required": ["step"], "properties": {"step": _TEXT}},
            },
        ),
    ),
    "$defs": {"vertex": _vertex(("node", "slot", "core", "gpu", *_HOLDERS))},
}

_NAMES = {"type": ["array", "string"], "minLength": 1, "items": _TEXT}
_REQUIREMENT = {
    "type": ["string", "object"],
    "minLength": 1,
    "minProperties": 1,
    "additionalProperties": _SCALAR,
}
_REQUESTED = {
    "type": ["string", "object"],
    "minLength": 1,
    "if": {"type": "object"},
    "then": {"$ref": "#/$defs/vertex"},
}
_FREE_ATTRIBUTES = {
    "type": "object",
    "properties": {
        "duration": _DURATION,
        "cwd": _TEXT,
        "environment": _ENVIRONMENT,
        "watch": {"type": "boolean"},
    },
}
_TASK = _closed_object(
    name=_TEXT,
    command=_COMMAND,
    resources=_REQUESTED,
    replicas=_COUNT,
    depends_on=_NAMES,
    local={"type": "boolean"},
    group=_TEXT,
    requires=_TEXT,
    steps={
        "type": "array",
        "minItems": 1,
        "items": _closed_object(("name", "path"), name={"enum": ["stage"]}, path=_TEXT),
    },
    attributes=_FREE_ATTRIBUTES,
)
_NEXTGEN: Schema = {
    **_closed_object(
        ("version",),
        version={"const": 1},
        name=_TEXT,
        resources={"type": "object", "additionalProperties": {"$ref": "#/$defs/vertex"}},
        requires={
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "items": _closed_object(
                    name=_TEXT, field=_TEXT, match=_SCALAR, attribute=_TEXT, value=_SCALAR
                ),
            },
        },
        tasks={"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/task"}},
        groups={"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/group"}},
        attributes=_FREE_ATTRIBUTES,
    ),
    "$defs": {
        "vertex": _vertex(
            (*RESOURCES, *_HOLDERS),
            replicas=_COUNT,
            requires={"type": "array", "items": _REQUIREMENT},
            attributes=_FREE_ATTRIBUTES,
            schedule={"type": "boolean"},
        ),
        "task": _TASK,
        "group": _closed_object(
            ("name",),
            name=_TEXT,
            resources=_REQUESTED,
            depends_on=_NAMES,
            requires=_TEXT,
            attributes=_FREE_ATTRIBUTES,
            tasks={"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/task"}},
            groups={"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/group"}},
        ),
    },
}

_SITE: Schema = _closed_object(
    ("requires",),
    requires={
        "type": "object",
        "additionalProperties": {"type": "object", "additionalProperties": {"type": "object"}},
    },
)

#: Schemas of the forms and of the site file.
FORMS: Mapping[str, Schema] = {
    "flux": _FLUX,
    "transform": _TRANSFORM,
    "nextgen": _NEXTGEN,
    "site": _SITE,
}

_SETTINGS = ("stage", "sharedfs")
_STEP: dict[str, Any] = {"step": _TEXT}
_WAITS: dict[str, Any] = {"wait": {"type": "boolean"}, "watch": {"type": "boolean"}}

#: Schemas of the steps of a ``transform``, by the value of a step's key ``step``.
STEPS: Mapping[str, Schema] = {
    "write": _closed_object(("filename",), filename=_TEXT, executable={"type": "boolean"}, **_STEP),
    "set": _closed_object(("key", "value"), key={"enum": list(_SETTINGS)}, value=_SCALAR, **_STEP),
    "unset": _closed_object(("key",), key={"enum": list(_SETTINGS)}, **_STEP),
    "copy": _closed_object(("source",), source=_TEXT, filename=_TEXT, **_STEP),
    "stage": _closed_object(("filename",), filename=_TEXT, **_STEP),
    "submit": _closed_object(filename=_TEXT, **_WAITS, **_STEP),
    "batch": _closed_object(filename=_TEXT, **_WAITS, **_STEP),
    "auth": _closed_object(("command",), command=_COMMAND, **_STEP),
}
