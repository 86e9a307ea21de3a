"""JSON Schema of ensemble files, composed of a base schema and the schemas of plugins.

The base is ``ensemble.schema.json`` next to this module.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ensemble_core.errors import PluginError
from ensemble_core.metrics.store import RESOURCES
from ensemble_core.plugin.hookspecs import ActionPlugin, StatisticPlugin, TriggerPlugin
from ensemble_core.plugin.option_schemas import required_options
from ensemble_core.plugin.registry import Registry
from ensemble_core.quick_dataclass import dataclass

_NAMES = {
    "group": "Job group of the jobs. Default: all jobs of this ensemble.",
    "groups": "Job group of the jobs, or a list of groups. Default: the whole run.",
    "generator": "Name of the generator. Default: any.",
    "metric": "The metric's path: count.GROUP.success, mean.GROUP-duration, queue.sched …",
}


#: The schema of an ensemble file without what plugins add to it. A key of a job group is declared
#: there once, with what may change it: ``x-ensemble-change`` is ``never``, ``group`` (only the
#: action ``set``, for the whole group) or ``submit`` (each submit, but there is no default to which
#: null could reset it), or missing (each submit, and null resets it).
_OWN_SCHEMA = Path(__file__).with_name("ensemble.schema.json").read_text("utf-8")
_JOB_KEYS: dict[str, dict[str, Any]] = json.loads(_OWN_SCHEMA)["$defs"]["job"]["properties"]
#: Keys of a job group that get their default if an action sets them to null.
RESET_BY_NULL = [name for name, key in _JOB_KEYS.items() if "x-ensemble-change" not in key]
#: Keys of a job group for which a profile can have defaults.
PROFILE_FIELDS = [name for name, key in _JOB_KEYS.items() if key.get("x-ensemble-profile")]

#: Option that all environments have.
_CHECK = {
    "description": "False: do not check where the run starts that it exists.",
    "type": "boolean",
    "default": True,
}
#: Options that all observers have.
_ROWS = {
    "description": "Store its rows until the job is over, for 'rows: job'.",
    "type": "boolean",
}


@dataclass(frozen=True)
class _Named:
    """View of a registry, restricted to actions, observers etc. with the given names."""

    registry: Registry
    words: Container[str]

    def __getattr__(self, kind: str) -> Mapping[str, Any]:
        records = getattr(self.registry, kind)
        return {name: records[name] for name in records if name in self.words}


def compose(registry: Registry | _Named) -> dict[str, Any]:
    """Return the whole schema (draft 2020-12) as plain data."""
    schema: dict[str, Any] = json.loads(_OWN_SCHEMA)
    definitions = schema["$defs"]
    _compose_rules(definitions, registry)
    _compose_named(definitions, "action", "name", registry.actions)
    _compose_named(definitions, "statistic", "statistic", registry.statistics)
    _compose_generators(definitions, registry)
    job = definitions["job"]
    job["properties"]["executor"]["examples"] = sorted(registry.executors)
    job["properties"]["options"]["properties"] = _job_options(registry, definitions)
    observers = job["properties"]["observe"]["properties"]
    for name in sorted(registry.observers):
        observer = registry.observers[name]
        observers[name] = _with_options(
            {
                "description": observer.summary,
                "type": ["object", "null"],
                "properties": {"rows": _ROWS},
            },
            observer.options,
            f"observer-{name}",
            definitions,
        )
    _compose_environments(definitions, registry)
    _compose_kinds(definitions, registry)
    _compose_sources(schema, registry)
    _compose_algorithms(schema, registry)
    fields = copy.deepcopy(job)
    del fields["required"]
    for name, inner in job["properties"].items():
        if inner.get("x-ensemble-change") in ("never", "group"):
            del fields["properties"][name]
    for name, inner in fields["properties"].items():
        types = [inner["type"]] if isinstance(inner["type"], str) else inner["type"]
        if types == ["integer"]:  # an expression is allowed as well
            inner |= {"type": (types := ["integer", "string"]), "pattern": "^="}
        if name in RESET_BY_NULL:
            inner["type"] = [*dict.fromkeys([*types, "null"])]
    fields["properties"]["environment"]["additionalProperties"]["type"].append("null")
    fields["properties"]["options"]["properties"] = _job_options(
        registry, definitions, changes=True
    )
    fields["description"] = (
        "Fields of a job group to change. Mappings are merged key by key, and null removes a key."
    )
    definitions["job-fields"] = fields
    definitions["group-fields"] = _whole_group(fields, job)
    definitions["live-limits"] = _live_limits(schema["properties"]["limits"])
    _compose_profiles(schema, fields["properties"])
    return schema


def _whole_group(fields: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the changes of a whole group: of its jobs, and of its own keys."""
    found = {**fields, "properties": dict(fields["properties"])}
    for name, key in job["properties"].items():
        if key.get("x-ensemble-change") != "group":
            continue
        own = copy.deepcopy(key)
        own["type"] = [*dict.fromkeys([*_listed(own["type"]), "null"])]
        found["properties"][name] = own
    retry = found["properties"]["retry"]
    del retry["required"]
    for name in ("when", "with"):
        del retry["properties"][name]
    retry["minProperties"] = 1
    return found


#: Limits that the engine applies, so that they can change in a live run.
_LIVE_LIMITS = (*RESOURCES, "jobs", "at_once", "submits_per_second", "chain")


def _live_limits(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the limits that can change in a live run. Null removes a limit."""
    properties = {
        name: {**limits["properties"][name], "type": [*_listed(inner["type"]), "null"]}
        for name, inner in limits["properties"].items()
        if name in _LIVE_LIMITS
    }
    return {**limits, "type": "object", "minProperties": 1, "properties": properties}


def _compose_profiles(schema: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Complete the definitions of a profile. Null removes a value: of a profile with the same name
    in the site's file, or in an ensemble file of a profile.
    """
    definitions = schema["$defs"]
    own, job = definitions["profile"]["properties"], definitions["job"]["properties"]
    own["executor"]["examples"] = job["executor"]["examples"]
    own["jobs"]["properties"] = {name: fields[name] for name in PROFILE_FIELDS}
    limits = schema["properties"]["limits"]["properties"]
    own["limits"]["properties"] = {
        name: {**inner, "type": [*_listed(inner["type"]), "null"]} for name, inner in limits.items()
    }
    own["pilots"] = schema["properties"]["pilots"]
    # Names of limits belong to the ensemble file, in which groups use them.
    own["limits"]["properties"]["at_once"]["type"] = ["integer", "null"]
    for name in PROFILE_FIELDS:
        if name not in ("environment", "options"):
            job[name] = {**job[name], "type": [*_listed(job[name]["type"]), "null"]}
    values = job["environment"]["additionalProperties"]
    values["type"] = [*values["type"], "null"]


def _listed(types: str | list[str]) -> list[str]:
    return [types] if isinstance(types, str) else types


def _compose_environments(definitions: dict[str, Any], registry: Registry | _Named) -> None:
    """Define the entries of ``within``. Each has the name of one environment as a key."""
    names = sorted(registry.environments)
    branches: list[Any] = []
    for name in names:
        record, key = registry.environments[name], f"environment-{name}"
        own = {"description": record.summary, "type": "object", "properties": {"check": _CHECK}}
        definitions[key] = _with_options(own, record.options, key, definitions)
        others = [{"required": [other]} for other in names if other != name]
        chosen = {"required": [name], **({"not": {"anyOf": others}} if others else {})}
        branches.append({"if": chosen, "then": {"$ref": f"#/$defs/{key}"}})
    definitions["environment"]["allOf"] = branches or [True]


def _compose_kinds(definitions: dict[str, Any], registry: Registry | _Named) -> None:
    """Define the entries of ``pilots``. A file need not name the executor that uses them."""
    whole = registry.registry if isinstance(registry, _Named) else registry
    for record in whole.executors.values():
        if record.kinds:
            own = {**definitions["pilot"], "properties": definitions["pilot"].get("properties", {})}
            definitions["pilot"] = _with_options(own, record.kinds, "pilot", definitions)


def _compose_sources(schema: dict[str, Any], registry: Registry | _Named) -> None:
    """Allow entries under ``jobs`` that name a source. Files with such entries need no rules."""
    definitions = schema["$defs"]
    names = sorted(registry.sources)
    for name in names:
        record = registry.sources[name]
        key = f"source-{name}"
        given = dict(record.options.get("properties", {}))
        named = given.pop(record.name, {"type": "string", "minLength": 1})
        required = [each for each in record.options.get("required", ()) if each != record.name]
        options = {**record.options, "properties": {name: named, **given}, "required": required}
        own: dict[str, Any] = {"description": record.summary, "type": "object", "properties": {}}
        own["required"] = [name]
        definitions[key] = _with_options(own, options, key, definitions)
    if names:
        sources = {"anyOf": [{"required": [name]} for name in names]}
        schema["properties"]["jobs"]["items"] = {
            "if": sources,
            "then": {"allOf": [_if_present(name, f"source-{name}") for name in names]},
            "else": {"$ref": "#/$defs/job"},
        }
        brought = {"properties": {"jobs": {"contains": sources}}, "required": ["jobs"]}
        schema["if"]["anyOf"].append(brought)


def _compose_algorithms(schema: dict[str, Any], registry: Registry | _Named) -> None:
    definitions, use = schema["$defs"], schema["$defs"]["use"]
    names = sorted(registry.algorithms)
    use["properties"]["algorithm"]["examples"] = names
    use["allOf"] = [True]
    for name in names:
        record = registry.algorithms[name]
        key = f"algorithm-{name}"
        _define_algorithm(definitions, key, record.summary, record.options)
        own: dict[str, Any] = {"properties": {"with": {"$ref": f"#/$defs/{key}"}}}
        if record.options.get("required"):
            own["required"] = ["with"]
        chosen = {"required": ["algorithm"], "properties": {"algorithm": {"enum": [name]}}}
        use["allOf"].append({"if": chosen, "then": own})


def _define_algorithm(
    definitions: dict[str, Any], key: str, summary: str, options: Mapping[str, Any]
) -> None:
    own = {"description": summary, "type": ["object", "null"], "properties": {}}
    definitions[key] = _with_options(own, options, key, definitions)


def _if_present(key: str, definition: str) -> dict[str, Any]:
    return {"if": {"required": [key]}, "then": {"$ref": f"#/$defs/{definition}"}}


def _job_options(
    registry: Registry | _Named, definitions: dict[str, Any], *, changes: bool = False
) -> dict[str, Any]:
    """Return the schemas of all executors' options. Null removes those of a group or profile."""
    found: dict[str, Any] = {}
    for name in sorted(registry.executors):
        options = _relaxed(registry.executors[name].job_options, changes=changes)
        own: dict[str, Any] = {"description": f"Options for {name}.", "type": ["object", "null"]}
        if options:
            key = f"job-options-{name}" + ("-changes" if changes else "")
            own = _with_options({**own, "properties": {}}, options, key, definitions)
        found[name] = own
    return found


def _compose_rules(definitions: dict[str, Any], registry: Registry | _Named) -> None:
    rule = definitions["rule"]
    rule["properties"]["trigger"]["enum"] = sorted(registry.triggers)
    alike: dict[str, list[TriggerPlugin]] = {}
    for name in sorted(registry.triggers):
        record = registry.triggers[name]
        shape = json.dumps([record.name_means, record.options], sort_keys=True, default=dict)
        alike.setdefault(shape, []).append(record)
    rule["allOf"] = []
    for records in alike.values():
        first = records[0]
        key = f"rule-{first.name}"
        own = _accept_keys(rule, first.summary if len(records) == 1 else "a rule about jobs")
        if first.name_means is not None:
            own["properties"]["name"] = {
                "description": _NAMES[first.name_means],
                "type": "string",
                "minLength": 1,
                "x-ensemble": first.name_means,
            }
            if first.name_means == "groups":
                several = {"type": ["string", "array"], "minItems": 1, "items": {"type": "string"}}
                own["properties"]["name"] |= {**several, "x-ensemble": "group"}
        if first.name_means == "metric":
            own["required"] = ["name"]
        definitions[key] = _with_options(own, first.options, key, definitions)
        rule["allOf"].append(_if("trigger", [record.name for record in records], key))
    rule["allOf"] = rule["allOf"] or [True]


def _compose_named(
    definitions: dict[str, Any],
    kind: str,
    selector: str,
    records: Mapping[str, ActionPlugin] | Mapping[str, StatisticPlugin],
) -> None:
    base = definitions[kind]
    base["properties"][selector]["enum"] = sorted(records)
    base["allOf"] = []
    for name in sorted(records):
        key, record = f"{kind}-{name}", records[name]
        own = _accept_keys(base, record.summary)
        definitions[key] = _with_options(own, record.options, key, definitions)
        base["allOf"].append(_if(selector, [name], key))
    base["allOf"] = base["allOf"] or [True]


def _compose_generators(definitions: dict[str, Any], registry: Registry | _Named) -> None:
    base = definitions["generator"]
    base["properties"]["use"]["enum"] = sorted(registry.generators)
    base["allOf"] = []
    for name in sorted(registry.generators):
        key, record = f"generator-{name}", registry.generators[name]
        own = {"description": f"Options of {name}.", "type": ["object", "null"], "properties": {}}
        definitions[f"{key}-options"] = _with_options(
            own, record.options, f"{key}-options", definitions
        )
        about = {"description": "Options of the algorithm."}
        properties = {"with": {**about, "$ref": f"#/$defs/{key}-options"}}
        definitions[key] = {"description": record.summary, "properties": properties}
        if required_options(record.options):
            definitions[key]["required"] = ["with"]
        base["allOf"].append(_if("use", [name], key))
    base["allOf"] = base["allOf"] or [True]


def _accept_keys(base: Mapping[str, Any], description: str) -> dict[str, Any]:
    """Return a definition that accepts the keys of ``base`` without checking their values."""
    known = dict.fromkeys(base["properties"], True)
    return {"description": description, "type": "object", "properties": known}


def _if(selector: str, names: list[str], definition: str) -> dict[str, Any]:
    return {
        "if": {"required": [selector], "properties": {selector: {"enum": names}}},
        "then": {"$ref": f"#/$defs/{definition}"},
    }


#: Keywords of an option schema that ``_with_options`` merges one by one.
_MERGED = frozenset(
    {"$schema", "$id", "$defs", "definitions", "type", "properties", "required", "description"}
)


def _with_options(
    own: dict[str, Any], options: Mapping[str, Any], key: str, definitions: dict[str, Any]
) -> dict[str, Any]:
    """Return ``own`` merged with the option schema of a plugin. Other keys are rejected."""
    for word in ("$defs", "definitions"):
        for name, inner in options.get(word, {}).items():
            definitions[f"{key}-{name}"] = _plain(inner, key)
    for name, inner in options.get("properties", {}).items():
        if name not in own["properties"]:
            own["properties"][name] = _plain(inner, key)
    required = [*own.get("required", []), *options.get("required", [])]
    if required:
        own["required"] = required
    own.setdefault("additionalProperties", False)
    for word, inner in options.items():
        if word not in _MERGED:
            own[word] = _plain(inner, key)
    return own


def _plain(value: Any, key: str) -> Any:
    """Return a plugin's schema as plain data, with references that fit its new position."""
    if isinstance(value, (list, tuple)):
        return [_plain(inner, key) for inner in value]
    if not isinstance(value, Mapping):
        return value
    moved = {name: _plain(inner, key) for name, inner in value.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str):
        for word in ("#/$defs/", "#/definitions/"):
            if reference.startswith(word):
                moved["$ref"] = f"#/$defs/{key}-{reference.removeprefix(word)}"
    if moved.get("x-ensemble") == "fields":
        whole = moved.get("x-ensemble-whole-group")
        moved["$ref"] = f"#/$defs/{'group' if whole else 'job'}-fields"
    elif moved.get("x-ensemble") == "parameters":
        moved["$ref"] = "#/$defs/job-fields/properties/parameters"
    elif moved.get("x-ensemble") == "action":
        moved["$ref"] = "#/$defs/nested-actions"
    return moved


_PLACEHOLDER = r"\{[A-Za-z_][\w.]*(:[^{}\s]*)?\}"
#: Words of JSON Schema whose values are schemas, or mappings to schemas.
_INNER = ("items", "additionalProperties")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def _relaxed(schema: Any, *, changes: bool) -> Any:
    """Return the schema of options that also accepts placeholders, and null for an option.

    With ``changes``, it accepts expressions as well.
    """
    if not isinstance(schema, Mapping):
        return schema
    whole = {**schema}
    for word in _NAMED:
        if word in whole:
            whole[word] = {k: _or_later(v, changes, null=True) for k, v in whole[word].items()}
    for word in _INNER:
        if word in whole:
            whole[word] = _or_later(whole[word], changes, null=changes)
    return whole


def _or_later(schema: Any, changes: bool, *, null: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    pattern = f"^=|{_PLACEHOLDER}" if changes else _PLACEHOLDER
    types = ["string", "null"] if null else ["string"]
    later: dict[str, Any] = {"type": types, "pattern": pattern}
    said = {"description": schema["description"]} if "description" in schema else {}
    return {**said, "if": later, "else": _relaxed(schema, changes=changes)}


def option_defaults(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options, completed with the defaults in the schema."""
    known = options.get("properties", {})
    filled = {
        name: copy.deepcopy(inner["default"])
        for name, inner in known.items()
        if isinstance(inner, Mapping) and "default" in inner
    }
    return {**filled, **given}


@dataclass(eq=False)
class _Shared:
    """The schema and validators of a registry, shared by all files that a process loads."""

    schema: dict[str, Any] | None = None
    compiled: dict[str, Any] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)


#: One shared object for each registry, which is immutable.
_SHARED: WeakKeyDictionary[Registry, _Shared] = WeakKeyDictionary()


class Validators:
    """Compiled validators for one file: of the composed schema and of its parts."""

    def __init__(self, registry: Registry) -> None:
        self._shared = _SHARED.setdefault(registry, _Shared())
        self.registry = registry
        #: The schema with the definitions of this file, and the validators of these definitions.
        self._schema: dict[str, Any] | None = None
        self._own: dict[str, Any] = {}

    @property
    def schema(self) -> dict[str, Any]:
        """The composed schema."""
        if self._schema is not None:
            return self._schema
        if self._shared.schema is None:
            self._shared.schema = compose(self.registry)
        return self._shared.schema

    def hold(self, data: object, part: str = "") -> bool:
        """Return True if a file, or a ``part`` of one, is valid according to a schema reduced to
        the names in it.

        This takes a fifth of the time of a check with the complete schema, which is needed only to
        find out what the errors are.
        """
        if self._shared.schema is not None or part in self._shared.tried:
            return False
        import jsonschema_rs

        self._shared.tried.add(part)
        schema = _part_of(compose(_Named(self.registry, frozenset(_strings(data)))), part)
        try:
            return jsonschema_rs.validator_for(schema).is_valid(data)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
            return False

    def errors(self, data: object, part: str = "") -> Iterable[Any]:
        """Return the schema errors of ``data``, which is a whole file or a part with a name in
        ``$defs``.
        """
        compiled = self._own if part in self._own else self._shared.compiled
        validator = compiled.get(part)
        if validator is None:
            validator = compiled[part] = self._compile(part)
        return validator.iter_errors(data)  # type: ignore[no-any-return]

    def _compile(self, part: str) -> Any:
        import jsonschema_rs

        schema = _part_of(self.schema, part)
        try:
            return jsonschema_rs.validator_for(schema)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            # Each schema is valid on its own, so a reference between schemas must be invalid.
            raise PluginError(
                "the plugins' option schemas cannot be combined",
                cause=str(error).split("\n", 1)[0],
                hint="uninstall the most recently added plugin, or report this to its author",
                code="bad-plugin-schema",
            ) from None

    def define(self, part: str, summary: str, options: Mapping[str, Any]) -> None:
        """Add the options of an algorithm to ``$defs``, if only this file defines the algorithm."""
        self._schema = {**self.schema, "$defs": {**self.schema["$defs"]}}
        self._own[part] = None
        _define_algorithm(self._schema["$defs"], part, summary, options)

    def node(self, path: Iterable[str | int]) -> Any:
        """Return the part of the schema to which the path in a schema error refers."""
        here: Any = self.schema
        for step in path:
            if isinstance(here, dict):
                here = here.get(str(step))
            elif isinstance(here, list) and isinstance(step, int) and step < len(here):
                here = here[step]
            else:
                return None
        return here


def _part_of(schema: dict[str, Any], part: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]} if part else schema


def _strings(data: object) -> Iterator[str]:
    """Yield every string in the data, including keys."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _strings(key)
            yield from _strings(value)
    elif isinstance(data, list):
        for value in data:
            yield from _strings(value)
