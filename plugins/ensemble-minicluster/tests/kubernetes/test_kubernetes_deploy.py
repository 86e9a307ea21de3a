"""Tests of the files in ``deploy/``: they are valid, consistent, and grant no more than needed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import click
import ensemble_minicluster
import pytest
import yaml
from click.testing import CliRunner
from ensemble_minicluster.options import RESIZER_OPTIONS
from ensemble_service.commands.server import main as ensemble_server
from ensemble_testing import wait_until
from kubernetes_stand_in import Cluster, Operator, definition, job_of
from kubernetes_stand_in.kinds import FLUX, RBAC, of_definition
from kubernetes_stand_in.node import Node
from kubernetes_stand_in.schema import complete, errors
from resizer_checks import Build, on_record, seen, touch

from ensemble_core.cli.main import main as ensemble

DEPLOY = Path(__file__).parents[2] / "deploy"
ROOT = DEPLOY.parents[2]

Document = dict[str, Any]


def documents(name: str) -> list[Document]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def one(name: str, kind: str) -> Document:
    found: list[Document] = [each for each in documents(name) if each["kind"] == kind]
    assert len(found) == 1
    return found[0]


def pod() -> Document:
    found: Document = one("server.yaml", "Deployment")["spec"]["template"]
    return found


def container() -> Document:
    found: list[Document] = pod()["spec"]["containers"]
    assert len(found) == 1
    assert "initContainers" not in pod()["spec"]
    return found[0]


def test_everything_is_in_the_namespace_and_only_there() -> None:
    names = [path.name for path in DEPLOY.glob("*.yaml")]
    assert set(names) >= {"access.yaml", "server.yaml", "network.yaml", "minicluster.yaml"}
    for name in names:
        for each in documents(name):
            if each["kind"] != "Kustomization":
                assert each["metadata"]["namespace"] == "default", (name, each["kind"])
            assert not each["kind"].startswith("Cluster"), "nothing reaches beyond the namespace"


def test_everything_but_the_secrets_and_the_example_is_applied() -> None:
    applied = set(one("kustomization.yaml", "Kustomization")["resources"])
    assert applied == {"access.yaml", "server.yaml", "network.yaml"}


# -- access ------------------------------------------------------------------------------------------


def test_the_role_allows_exactly_the_resizers_requests(
    cluster: Cluster, build: Build, operator: Operator
) -> None:
    plurals = {"Role": (RBAC, "roles"), "RoleBinding": (RBAC, "rolebindings")}
    for each in documents("access.yaml"):
        kind = cluster.store.kinds[plurals.get(each["kind"], ("", "serviceaccounts"))]
        cluster.store.create(kind, "default", each)
    miniclusters = cluster.store.kinds[(FLUX, "miniclusters")]
    cluster.store.create(miniclusters, "default", one("minicluster.yaml", "MiniCluster"))
    seen(cluster)
    user = "system:serviceaccount:default:ensemble-server"
    resizer = build(token=cluster.access.token(user), namespace="default")
    assert [resizer.resize("default/ensemble", delta).granted for delta in (4, -1)] == [6, 5]
    operator.before_status = lambda: touch(cluster)  # the status write with the size fails
    assert resizer.resize("default/ensemble", 1).code == ""
    assert resizer.resize("default/ensemble", -1).code == ""
    assert resizer.size("default/ensemble") == on_record(cluster) == 5
    done = {(verb, what) for who, verb, what, _ in cluster.access.allowed if who == user}
    allowed = {
        (verb, what)
        for rule in one("access.yaml", "Role")["rules"]
        for verb in rule["verbs"]
        for what in rule["resources"]
    }
    assert done == allowed
    groups = {tuple(rule["apiGroups"]) for rule in one("access.yaml", "Role")["rules"]}
    assert groups == {(FLUX,), ("batch",)}


def test_the_binding_connects_the_role_with_the_pods_account() -> None:
    binding = one("access.yaml", "RoleBinding")
    account = one("access.yaml", "ServiceAccount")
    assert binding["roleRef"]["name"] == one("access.yaml", "Role")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", account["metadata"]["name"])
    assert pod()["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert pod()["spec"]["automountServiceAccountToken"] is True


# -- the service -------------------------------------------------------------------------------------


def test_the_service_runs_without_privileges() -> None:
    security = pod()["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container()["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in security
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod()["spec"])
    assert not any("hostPath" in each for each in pod()["spec"]["volumes"])


def test_the_service_has_limits_and_probes() -> None:
    resources = container()["resources"]
    for what in ("cpu", "memory", "ephemeral-storage"):
        assert what in resources["limits"]
        assert what in resources["requests"]
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container()[probe]
        assert asked["httpGet"] == {"path": "/healthz", "port": "metrics"}
        assert asked["timeoutSeconds"] < asked["periodSeconds"] * asked["failureThreshold"]
    assert f"--metrics-port={ports['metrics']}" in container()["args"]
    assert f"--port={ports['grpc']}" in container()["args"]


def test_the_services_arguments_are_valid() -> None:
    program, command = container()["command"]
    assert program == "ensemble-server"
    start = ensemble_server.commands[command]
    parsed = start.make_context(command, list(container()["args"])).params
    assert parsed["kubernetes"] is True
    assert parsed["insecure"] is False
    mounts = {each["mountPath"] for each in container()["volumeMounts"]}
    for given in ("state", "tls_dir", "tokens"):
        assert any(
            parsed[given].startswith(f"{mount}/") or parsed[given] == mount for mount in mounts
        )
    variables = {each["name"] for each in container()["env"]}
    used = re.findall(r"\$\((\w+)\)", " ".join(container()["args"]))
    assert set(used) <= variables


def test_a_stopping_service_is_not_killed_before_its_grace() -> None:
    start = ensemble_server.commands["start"]
    grace = start.make_context("start", list(container()["args"])).params["grace"]
    probe = container()["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > grace
    assert pod()["spec"]["terminationGracePeriodSeconds"] > grace


def test_mounted_files_exist_and_are_not_writable_by_others() -> None:
    volumes = {each["name"]: each for each in pod()["spec"]["volumes"]}
    assert {each["name"] for each in container()["volumeMounts"]} == set(volumes)
    secrets = {each["metadata"]["name"] for each in documents("secrets.example.yaml")}
    for name in ("tls", "tokens"):
        assert volumes[name]["secret"]["secretName"] in secrets
        assert volumes[name]["secret"]["defaultMode"] == 0o440
    claim = one("server.yaml", "PersistentVolumeClaim")["metadata"]["name"]
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim


def test_there_is_one_service_at_a_time() -> None:
    spec = one("server.yaml", "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_service_and_policy_select_the_services_pod() -> None:
    labels = pod()["metadata"]["labels"]
    service = one("server.yaml", "Service")
    assert service["spec"]["selector"] == labels
    assert service["spec"]["ports"][0]["targetPort"] in {
        each["name"] for each in container()["ports"]
    }
    policy = one("network.yaml", "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    for rule in policy["ingress"]:
        assert rule["from"], "nobody is let in without a name"
        assert rule["ports"]


def test_the_repository_contains_no_secrets() -> None:
    for path in DEPLOY.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "BEGIN" not in text
        assert not re.search(r"ensemble-[0-9A-Za-z_-]{16,}", text), path
    for each in documents("secrets.example.yaml"):
        assert all(value.startswith("REPLACE ") for value in each["stringData"].values())


# -- images ------------------------------------------------------------------------------------------


def test_images_are_pinned() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    bases = re.findall(r"(?m)^FROM (\S+)", text)
    assert bases
    assert all(re.fullmatch(r"\S+/python:3\.12\.\d+-slim-\w+", base) for base in bases)
    images = [container()["image"]]
    minicluster = one("minicluster.yaml", "MiniCluster")["spec"]
    images += [each["image"] for each in minicluster["containers"]]
    images.append(minicluster["flux"]["container"]["image"])
    for image in images:
        tag = image.rpartition("/")[2].partition(":")[2]
        assert tag, image
        assert tag != "latest", image


def test_the_image_runs_as_an_unprivileged_user() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    last = text[text.rindex("\nFROM ") :]
    user = re.findall(r"(?m)^USER (\S+)", last)[-1]
    security = pod()["spec"]["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"


def test_nothing_is_installed_when_a_pod_starts() -> None:
    installs = re.compile(r"\b(pip|apt|apt-get|dnf|yum|conda|curl|wget|git)\b")
    spec = one("minicluster.yaml", "MiniCluster")["spec"]
    for each in spec["containers"]:
        assert not installs.search(each["command"])
        assert "commands" not in each
    assert not installs.search(" ".join([*container()["command"], *container()["args"]]))


@pytest.mark.checkout
def test_every_package_of_the_image_has_the_projects_version() -> None:
    text = (DEPLOY / "requirements.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+) \\$", text))
    entries = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert len(pins) == len(entries) > 10
    assert all(block.count("--hash=sha256:") for block in re.split(r"(?m)^(?=[a-z])", text)[1:])
    lock = ROOT / "uv.lock"
    locked = set(
        re.findall(r'(?m)^name = "([^"]+)"\nversion = "([^"]+)"', lock.read_text(encoding="utf-8"))
    )
    assert not set(pins.items()) - locked


def test_the_image_has_the_projects_requirements() -> None:
    text = (DEPLOY / "requirements.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+) \\$", text))
    built = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    installed = {"ensemble-core": "", "ensemble-service": "", "ensemble-minicluster": "kubernetes"}
    for project, extra in installed.items():
        assert project == "ensemble-core" or f"./plugins/{project}" in built
        needed = requires(project)
        assert needed
        for each in needed:
            other = re.search(r"extra == ['\"](\w+)", each)
            name = re.split(r"[^A-Za-z0-9.-]", each)[0].lower()
            if (other is None or other[1] == extra) and not name.startswith("ensemble-"):
                assert name in pins, each


# -- the example -------------------------------------------------------------------------------------


def test_the_example_is_a_valid_minicluster() -> None:
    document = one("minicluster.yaml", "MiniCluster")
    kind = of_definition(yaml.safe_load(definition().read_text(encoding="utf-8")))
    assert kind.schema is not None
    assert document["apiVersion"] == kind.api_version
    spec = dict(kind.schema["properties"]["spec"])
    assert errors(document["spec"], spec, "spec") == []
    completed = complete(document["spec"], spec)
    assert lost(document["spec"], completed, "spec") == [], "the API server would leave these out"


def lost(given: Any, kept: Any, path: str) -> list[str]:
    """Return the paths of ``given`` that are missing or different in ``kept``."""
    if isinstance(given, dict):
        return [
            each
            for key, value in given.items()
            for each in (
                lost(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"]
            )
        ]
    if isinstance(given, list):
        pairs = zip(given, kept, strict=True)
        return [
            each for index, (a, b) in enumerate(pairs) for each in lost(a, b, f"{path}[{index}]")
        ]
    return [] if given == kept else [path]


def test_the_second_node_of_the_example_finds_the_first(
    cluster: Cluster, operator: Operator, tmp_path: Path
) -> None:
    """The Flux Operator's Service only has addresses of ready pods."""
    store = cluster.store
    files, minicluster = documents("minicluster.yaml")
    store.create(store.kinds[("", "configmaps")], "default", files)
    keys = {"metadata": {"name": "ensemble-member"}, "data": {"token": "", "ca.crt": ""}}
    store.create(store.kinds[("", "secrets")], "default", keys)
    store.create(store.kinds[(FLUX, "miniclusters")], "default", minicluster)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ensemble").write_text("#!/bin/sh\nexec sleep 600\n")
    (programs / "ensemble").chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    node = Node(cluster.kubeconfig(tmp_path / "config"), tmp_path / "node", environment)
    try:
        wait_until(lambda: node.joined("ensemble") == ["ensemble-1"])
    finally:
        node.close()


def test_a_misspelled_key_of_a_minicluster_would_be_noticed() -> None:
    assert lost({"a": [{"b": 1, "x": 2}]}, {"a": [{"b": 1}]}, "spec") == ["spec.a[0].x"]


def test_the_example_can_grow_and_needs_no_kubernetes_itself() -> None:
    spec = one("minicluster.yaml", "MiniCluster")["spec"]
    assert spec["minSize"] <= spec["size"] < spec["maxSize"]
    assert spec["pod"]["automountServiceAccountToken"] is False
    labels = spec["pod"]["labels"]
    let_in = one("network.yaml", "NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"]
    assert let_in["matchLabels"].items() <= labels.items()


def test_the_example_runs_a_valid_command(tmp_path: Path) -> None:
    minicluster = one("minicluster.yaml", "MiniCluster")
    (found,) = minicluster["spec"]["containers"]
    program, command, *arguments = shlex.split(found["command"])
    assert (program, command) == ("ensemble", "run")
    volume = found["volumes"]["ensemble-study"]
    *options, file = arguments
    key = next(key for key, name in volume["items"].items() if file == f"{volume['path']}/{name}")
    study = tmp_path / "ensemble.yaml"
    study.write_text(one("minicluster.yaml", "ConfigMap")["data"][key], encoding="utf-8")
    done = CliRunner().invoke(ensemble, ["validate", str(study)])
    assert done.exit_code == 0, done.output
    context = click.Context(ensemble)
    run = ensemble.get_command(context, "run")
    assert run is not None
    parsed = run.make_context("run", [*options, str(study)], parent=context)
    flags = parsed.meta["ensemble.flags.given"]  # the executor's options
    given = {str(value) for value in (*parsed.params.values(), *flags.values())}
    name = f"{minicluster['metadata']['namespace']}/{minicluster['metadata']['name']}"
    service = one("server.yaml", "Service")
    assert {"minicluster", name, service["metadata"]["name"]} <= given


def test_the_example_has_its_token_and_authority() -> None:
    (found,) = one("minicluster.yaml", "MiniCluster")["spec"]["containers"]
    volume = found["volumes"]["member"]
    (secret,) = (
        each
        for each in documents("secrets.example.yaml")
        if each["metadata"]["name"] == volume["secretName"]
    )
    files = {f"{volume['path']}/{key}" for key in secret["stringData"]}
    environment = found["environment"]
    assert {environment["ENSEMBLE_TOKEN_FILE"], environment["ENSEMBLE_CA"]} == files


# -- the pods of the example -------------------------------------------------------------------------


def job(change: Callable[[Document], None] = lambda spec: None) -> Document:
    """Return the Job of the shipped MiniCluster, whose spec is changed by ``change``."""
    minicluster = one("minicluster.yaml", "MiniCluster")
    change(minicluster["spec"])
    return job_of(minicluster)


def pod_of(job: Document) -> Document:
    found: Document = job["spec"]["template"]["spec"]
    return found


def mounted(container: Document) -> dict[str, str]:
    """Return the name of the volume at each mount path."""
    return {each["mountPath"]: each["name"] for each in container["volumeMounts"]}


def test_the_pods_of_the_example_start(cluster: Cluster, operator: Operator) -> None:
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    cluster.store.create(kind, "default", one("minicluster.yaml", "MiniCluster"))
    seen(cluster)
    assert operator.log == []
    pods = cluster.store.kinds[("", "pods")]
    wait_until(lambda: len(cluster.store.all(pods, "default")) == 2)


def test_a_volume_not_named_like_its_config_map_starts_no_pod(
    cluster: Cluster, operator: Operator
) -> None:
    """Regression: pods of the example's first version were rejected, and no status said so."""
    minicluster = one("minicluster.yaml", "MiniCluster")
    volumes = minicluster["spec"]["containers"][0]["volumes"]
    volumes["study"] = volumes.pop("ensemble-study")
    cluster.store.create(cluster.store.kinds[(FLUX, "miniclusters")], "default", minicluster)
    wait_until(lambda: len(operator.log) > 1)
    assert 'volumeMounts[5].name: Not found: "study"' in operator.log[0]
    assert cluster.store.all(cluster.store.kinds[("", "pods")], "default") == []
    found = cluster.store.get(cluster.store.kinds[(FLUX, "miniclusters")], "default", "ensemble")
    assert "status" not in found


def test_flux_is_prepared_and_run_by_the_same_unprivileged_user() -> None:
    pod = pod_of(job())
    assert pod["securityContext"] == {"fsGroup": 65532}, "the operator copies nothing else"
    for each in (*pod["initContainers"], *pod["containers"]):
        security = each["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"]) == (65532, 65532), each["name"]
        # Requirements of PodSecurity's profile "restricted".
        assert security["runAsNonRoot"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_runs_state_outlives_its_container() -> None:
    pod = pod_of(job())
    (container,) = pod["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    kept = {
        path: name
        for path, name in mounted(container).items()
        if environment["ENSEMBLE_STATE"].startswith(f"{path}/")
    }
    assert kept, "not on what is mounted: it goes with the container"
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert all("emptyDir" in volumes[name] for name in kept.values())
    (given,) = one("minicluster.yaml", "MiniCluster")["spec"]["containers"]
    assert {"--or-resume", "--tag"} <= set(shlex.split(given["command"]))
    # A failed container is restarted in the same pod.
    assert pod["restartPolicy"] == "OnFailure"


def test_an_empty_dir_is_not_mounted_at_its_path() -> None:
    """Regression: in the example's first version, the state was lost with the container."""

    def change(spec: Document) -> None:
        state = {"emptyDir": True, "path": "/home/ensemble/state"}
        spec["containers"][0]["volumes"]["state"] = state

    (container,) = pod_of(job(change))["containers"]
    assert "/home/ensemble/state" not in mounted(container)
    assert mounted(container)["/dev/shm"] == "state"


def test_the_example_logs_lines_instead_of_a_live_table() -> None:
    (container,) = pod_of(job())["containers"]
    assert container["tty"], "the operator gives every container a terminal"
    (given,) = one("minicluster.yaml", "MiniCluster")["spec"]["containers"]
    assert "--no-progress" in shlex.split(given["command"])


def test_no_example_uses_the_minicluster_name_for_the_service() -> None:
    """The operator creates a headless Service with the MiniCluster's name."""
    service = one("server.yaml", "Service")["metadata"]["name"]
    assert service != pod_of(job())["subdomain"]
    pages = [DEPLOY.parent / "README.md", DEPLOY / "README.md", DEPLOY / "minicluster.yaml"]
    for page in pages:
        for name, host in re.findall(
            r"--name (?:default/)?([\w-]+)\s+--host (\S+)", page.read_text(encoding="utf-8")
        ):
            assert host != name, page
            assert host == service, page


# -- the page ----------------------------------------------------------------------------------------


def test_the_page_lists_every_option_and_every_answer() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for name in RESIZER_OPTIONS["properties"]:
        assert f"`{name.replace('_', '-')}=" in page, name
    package = Path(ensemble_minicluster.__file__).parent
    source = "".join(
        (package / f"{each}.py").read_text() for each in ("api", "resizer", "resize_plan")
    )
    calls = re.findall(r"""(?:Fault|NotResizable)\(\s*"([a-z-]+)",""", source)
    refusals = re.findall(r"""\d{3}: \("([a-z-]+)",""", source)
    assert len(calls) > 10
    assert len(refusals) > 5
    for code in {*calls, *refusals, "at-maximum", "at-minimum", "overridden", "unconfirmed"}:
        assert f"`{code}`" in page, code


def test_the_page_lists_every_file() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for path in DEPLOY.iterdir():
        if path.name != "README.md":
            assert f"`{path.name}`" in page
