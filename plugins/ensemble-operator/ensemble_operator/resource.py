"""Validates and parses the custom resource ``Ensemble``.

An operator with ``--restrict-members`` also rejects some fields of MiniClusters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ensemble_operator.crd_schema import GROUP, KIND, RULES, SPEC, VERSION, Rule

Object = Mapping[str, Any]

#: Upstream's images, which lack the service that this operator's members use.
_UPSTREAM = re.compile(r"(^|/)(ensemble-python|ensemble-operator-api)(:|@|$)")


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Problem:
    """A mistake in a field such as ``spec.members[0].name``."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True)
class Reference:
    """A key of a ConfigMap."""

    name: str
    key: str


@dataclass(frozen=True)
class Member:
    """A member: a Flux MiniCluster for jobs."""

    name: str
    minicluster: Object  #: the MiniCluster's spec as the user wrote it
    file: str | Reference | None  #: the ensemble file; ``None`` if all members share one
    container: int = 0  #: index of the container that runs the ensemble
    options: Mapping[str, str] = field(default_factory=dict)
    resize: str = "Rules"
    autoscaling: Object | None = None
    branch: str = ""

    @property
    def size(self) -> int:
        """The initial number of nodes."""
        return int(self.minicluster.get("size", 1))

    @property
    def most(self) -> int:
        """The maximum number of nodes."""
        return int(self.minicluster.get("maxSize", self.size))


@dataclass(frozen=True)
class Sidecar:
    """The ensemble service."""

    image: str = ""  #: empty for the operator's image
    #: Image in a file for upstream's ensemble operator. It does not contain this service.
    foreign: str = ""
    pull_policy: str = "IfNotPresent"
    port: int = 50051
    metrics_port: int = 9464
    resources: Object | None = None
    node_selector: Object | None = None
    tolerations: Sequence[Object] = ()
    pull_secrets: Sequence[Object] = ()
    storage: Object | None = None
    tls_secret: str = ""


@dataclass(frozen=True)
class Ensemble:
    """A custom resource: the wanted state, its status, and the API server's metadata."""

    name: str
    namespace: str
    uid: str
    generation: int
    members: tuple[Member, ...]
    sidecar: Sidecar
    file: str | Reference | None
    suspend: bool
    update_policy: str
    restart_policy: str
    ttl: int | None
    on_delete: str
    install: Object
    state: Object
    status: Object
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def outside(self) -> bool:
        """True if all members share one file, whose run has its own pod."""
        return self.file is not None

    @property
    def durable(self) -> bool:
        """True if journals outlive a pod."""
        return "claim" in self.state or "size" in self.state

    def entry(self, part: str) -> Object:
        """Return the status entry of a member or of the shared run; empty if it has no entry."""
        entries = self.status.get("members") or ()
        return next((each for each in entries if each.get("name") == part), {})


def problems(found: Object, old: Object | None = None) -> list[Problem]:
    """Return the mistakes in an object, worded as by the API server where possible.

    With ``old``, also check the change from ``old``.
    """
    if found.get("apiVersion") != f"{GROUP}/{VERSION}" or found.get("kind") != KIND:
        said = f"{found.get('apiVersion')}, {found.get('kind')}"
        return [Problem("apiVersion, kind", f"{said}: this is not {GROUP}/{VERSION}, {KIND}")]
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        return [Problem("metadata.name", "is required")]
    wrong = list(_shape(found.get("spec"), SPEC, "spec"))
    if wrong:
        return wrong
    wrong = [Problem(path, rule.message) for path, rule in _broken_rules(found, old)]
    return wrong or list(_other_problems(found["spec"]))


def is_readable(found: Object) -> bool:
    """Return whether :func:`read` accepts an object. It may have mistakes that only the operator
    finds.
    """
    return not any(_shape(found.get("spec"), SPEC, "spec")) and not any(_broken_rules(found, None))


def _shape(value: Any, schema: Object, path: str) -> Iterator[Problem]:
    """Return the places where a value violates the schema.

    Like ``kubectl apply``, this check reports unknown fields.
    """
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield Problem(path, "must be an integer or a string")
        return
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,),
        "array": (list,),
        "string": (str,),
        "boolean": (bool,),
        "integer": (int,),
    }
    kind = schema["type"]
    right: bool = isinstance(value, kinds[kind])
    if not right or (kind == "integer" and isinstance(value, bool)):
        article = "an" if kind[0] in "aeio" else "a"
        yield Problem(path, f"must be {article} {kind}, not {_type_name(value)}")
    elif kind == "object":
        yield from _object(value, schema, path)
    elif kind == "array":
        if not schema.get("minItems", 0) <= len(value) <= schema["maxItems"]:
            least, most = schema.get("minItems", 0), schema["maxItems"]
            yield Problem(path, f"has {len(value)} items; allowed are {least} to {most}")
        for index, each in enumerate(value):
            yield from _shape(each, schema["items"], f"{path}[{index}]")
    elif "enum" in schema and value not in schema["enum"]:
        yield Problem(path, f"{value!r} is not one of {', '.join(schema['enum'])}")
    elif kind == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if len(value) < least or (most is not None and len(value) > most):
            yield Problem(path, f"has {len(value)} characters; allowed are {least} to {most}")
        elif "pattern" in schema and not re.search(schema["pattern"], value):
            yield Problem(path, f"{value!r} does not match {schema['pattern']}")
    elif kind == "integer":
        least, most = schema.get("minimum", value), schema.get("maximum", value)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            yield Problem(path, f"{value} must be {bound}")


def _object(value: dict[str, Any], schema: Object, path: str) -> Iterator[Problem]:
    known = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield Problem(f"{path}.{key}", "is required")
    for key, each in value.items():
        place = f"{path}.{key}"
        if key in known:
            yield from _shape(each, known[key], place)
        elif "additionalProperties" in schema:
            yield from _shape(each, schema["additionalProperties"], place)
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            near = f"; known fields are {', '.join(sorted(known))}" if known else ""
            yield Problem(place, f"is unknown{near}")


def _type_name(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "nothing" if value is None else "a number")


def _broken_rules(found: Object, old: Object | None) -> Iterator[tuple[str, Rule]]:
    spec = found["spec"]
    places: dict[str, list[tuple[str, Any]]] = {
        "object": [("metadata.name", found)],
        "spec": [("spec", spec)],
        "minicluster.spec": [
            (f"spec.members[{index}].minicluster.spec", member["minicluster"]["spec"])
            for index, member in enumerate(spec["members"])
        ],
        "sidecar.port": [
            ("spec.sidecar.port", spec["sidecar"]["port"])
            for _ in range("port" in spec.get("sidecar", {}))
        ],
        "state": [("spec.state", spec.get("state", {}))],
    }
    for rule in RULES:
        for path, value in places[rule.place]:
            if rule.old and (old is None or rule.holds(value, old["spec"])):
                continue
            if rule.old or not rule.holds(value):
                yield path, rule


def _other_problems(spec: Object) -> Iterator[Problem]:
    """Return the mistakes that neither the schema nor the rules cover."""
    for index, member in enumerate(spec["members"]):
        path = f"spec.members[{index}]"
        containers = member["minicluster"]["spec"]["containers"]
        names = [each.get("name", "") for each in containers]
        if "container" in member and member["container"] not in names:
            yield Problem(
                f"{path}.container",
                f"unknown container {member['container']!r}; containers are "
                f"{', '.join(filter(None, names)) or 'none with a name'}",
            )
            continue
        chosen = _container(member)
        if containers[chosen].get("command"):
            yield Problem(
                f"{path}.minicluster.spec.containers[{chosen}].command",
                "this container runs the ensemble, so its own command would never run: use a job "
                "of the ensemble file, or choose another 'container'",
            )
        if not containers[chosen].get("image"):
            yield Problem(
                f"{path}.minicluster.spec.containers[{chosen}].image",
                "the container that runs the ensemble must have an image",
            )
        for place, text in _silently_ignored(member["minicluster"]["spec"], chosen):
            yield Problem(f"{path}.minicluster.spec.{place}", text)
        if (member.get("resize") == "HPA") != ("autoscaling" in member):
            yield Problem(
                f"{path}.autoscaling", "is needed for 'resize: HPA', and allowed only with it"
            )
    install = spec.get("install", {})
    if (install.get("method") == "Pip") != ("requirements" in install):
        yield Problem(
            "spec.install.requirements", "is needed for 'method: Pip', and allowed only with it"
        )


def _silently_ignored(spec: Object, chosen: int) -> Iterator[tuple[str, str]]:
    """Return fields for which the Flux Operator creates no pods and only logs why."""
    for index, each in enumerate(spec["containers"]):
        path, commands = f"containers[{index}]", _mapping(each.get("commands"))
        if index != chosen and each.get("runFlux"):
            yield f"{path}.runFlux", "only the container that runs the ensemble may have 'runFlux'"
        if index != chosen and not each.get("name"):
            yield f"{path}.name", "every container but the one that runs the ensemble needs a name"
        if each.get("batch") and (index == chosen or each.get("launcher")):
            yield f"{path}.batch", "cannot be combined with 'launcher', which a run needs"
        if index == chosen and commands.get("script"):
            yield f"{path}.commands.script", "the container that runs the ensemble has no script"
        yield from _volume_problems(path, each)
    services = spec.get("services")
    for index, each in enumerate(map(_mapping, services if isinstance(services, list) else ())):
        path, commands = f"services[{index}]", _mapping(each.get("commands"))
        if not each.get("name"):
            yield f"{path}.name", "every service container needs a name"
        for key in ("pre", "brokerPre", "workerPre"):
            if commands.get(key):
                yield f"{path}.commands.{key}", "service containers have no commands"
        yield from _volume_problems(path, each)
    limit = spec.get("backoffLimit")
    if isinstance(limit, int) and limit < 0:
        yield "backoffLimit", "must not be negative"


def _mapping(value: object) -> Object:
    """Return a mapping as it is, and an empty one for a value that the API server will reject."""
    return value if isinstance(value, Mapping) else {}


def _volume_problems(path: str, container: Object) -> Iterator[tuple[str, str]]:
    for name, volume in _mapping(container.get("volumes")).items():
        if not _LABEL.fullmatch(name):
            text = (
                f"{name!r} is not a valid volume name: use at most 63 lower-case "
                f"letters, digits and dashes, and no dash at either end"
            )
            yield f"{path}.volumes", text
        fields = _mapping(volume)
        has_path = any(fields.get(key) for key in ("path", "secretName", "configMapName"))
        if not has_path and (fields.get("claimName") or fields.get("hostPath")):
            yield f"{path}.volumes.{name}.path", "a claim or a hostPath needs a path"


def _container(member: Object) -> int:
    """Return the container that runs the ensemble."""
    containers = member["minicluster"]["spec"]["containers"]
    chosen: Callable[[Object], bool] = lambda each: bool(each.get("runFlux"))  # noqa: E731
    if "container" in member:
        chosen = lambda each: each.get("name") == member["container"]  # noqa: E731
    return next((at for at, each in enumerate(containers) if chosen(each)), 0)


#: MiniCluster fields that grant more than an Ensemble needs, each with what it grants.
_GRANTS = {
    "hostPath": "a path of the node",
    "hostPID": "processes of the node",
    "hostIPC": "the memory that processes of the node share",
    "privileged": "the privileges of the node",
    "allowPrivilegeEscalation": "further privileges",
    "secretName": "a Secret",
    "secrets": "a Secret",
    "serviceAccountName": "the rights of another service account",
}


def privilege_problems(spec: Object) -> list[Problem]:
    """Return the places where MiniClusters use Secrets, nodes or privileges.

    An operator with restrictions rejects these.
    """
    return [
        Problem(path, f"asks for {what}, which this operator does not allow ('--restrict-members')")
        for index, member in enumerate(spec["members"])
        for path, what in _grants(
            member["minicluster"]["spec"], f"spec.members[{index}].minicluster.spec"
        )
    ]


def _grants(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _grants(each, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in _GRANTS and each:
                yield f"{path}.{key}", _GRANTS[key]
            elif path.endswith(".capabilities") and key == "add" and each:
                yield f"{path}.{key}", "further privileges"
            else:
                yield from _grants(each, f"{path}.{key}")


def read(found: Object) -> Ensemble:
    """Return the Ensemble of an object that :func:`is_readable`."""
    metadata, spec = found["metadata"], found["spec"]
    state = {k: v for k, v in spec.get("state", {}).items() if v is not None}
    durable = "claim" in state or "size" in state
    return Ensemble(
        name=metadata["name"],
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 0),
        members=tuple(_member(index, each) for index, each in enumerate(spec["members"])),
        sidecar=_sidecar(spec.get("sidecar", {})),
        file=_source(spec),
        suspend=spec.get("suspend", False),
        update_policy=spec.get("updatePolicy", "OnFinish"),
        restart_policy=spec.get("restartPolicy") or ("Resume" if durable else "Fail"),
        ttl=spec.get("ttlSecondsAfterFinished"),
        on_delete=spec.get("onDelete", "Cancel"),
        install={"method": "View", **spec.get("install", {})},
        state=state,
        status=found.get("status") or {},
        finalizers=tuple(metadata.get("finalizers", ())),
        deleting="deletionTimestamp" in metadata,
    )


def _source(found: Object) -> str | Reference | None:
    if "ensembleFrom" in found:
        key = found["ensembleFrom"]["configMapKeyRef"]
        return Reference(key["name"], key.get("key", "ensemble.yaml"))
    text: str | None = found.get("ensemble")
    return text


def _member(index: int, found: Object) -> Member:
    return Member(
        name=found.get("name", str(index)),
        minicluster=found["minicluster"]["spec"],
        file=_source(found),
        container=_container(found),
        options=found.get("options", {}),
        resize=found.get("resize", "Rules"),
        autoscaling=found.get("autoscaling"),
        branch=found.get("branch", ""),
    )


def _sidecar(found: Object) -> Sidecar:
    image = found.get("image", "")
    foreign = image if _UPSTREAM.search(image) else ""
    always = found.get("pullAlways", False)
    return Sidecar(
        image="" if foreign else image,
        foreign=foreign,
        pull_policy="Always" if always else found.get("imagePullPolicy", "IfNotPresent"),
        port=int(found.get("port", 50051)),
        metrics_port=found.get("metricsPort", 9464),
        resources=found.get("resources"),
        node_selector=found.get("nodeSelector"),
        tolerations=found.get("tolerations", ()),
        pull_secrets=found.get("imagePullSecrets", ()),
        storage=found.get("storage"),
        tls_secret=found.get("tls", {}).get("secretName", ""),
    )
