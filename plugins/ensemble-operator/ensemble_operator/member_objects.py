"""Builds the Kubernetes objects of members and runs, such as MiniClusters and Jobs."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping
from typing import Any

from ensemble_operator.object_names import (
    FILE,
    RUN,
    TEMPLATE,
    Object,
    child,
    content,
    labels_of,
    member_object,
    run_tag,
)
from ensemble_operator.resource import Ensemble, Member
from ensemble_operator.service_objects import RESTRICTED, address, pod_security
from ensemble_operator.settings import Settings

# The objects depend on this behaviour of the Flux Operator:
#
# - The volume of a ConfigMap has the ConfigMap's name.
# - Every ``emptyDir`` is mounted at ``/dev/shm``.
# - The volume of the Flux view is mounted, writable, in every container.
# - The operator's script ends a container with exit code 0, whatever Flux's exit code is.
# - The operator keeps an existing Service. A Service that it creates lists only ready pods.

#: Name of the *shared run*, wherever a member's name is expected. If all members share one ensemble
#: file, its run is in no member, but in a Job (``Ensemble.outside``).
RUNNER = "run"
_ENTRY, _TOKEN, _STATE = "/ensemble-entrypoint", "/etc/ensemble/member", "/var/lib/ensemble"

_RUN = ("ensemble", "run", "--or-resume", "--no-progress")
#: Options of a run that cancels its jobs when it is stopped. A run in a member does so because Flux
#: ends with the pod: jobs left in Flux would be lost at the resume, while cancelled jobs are
#: submitted again. A shared run does so if no other pod can resume it, because its jobs
#: would run beside those of a new run.
_CANCELS = ("--set", "on_stop=cancel")

#: An autoscaler must not evict a run, because the work of its jobs would be lost.
_KEPT = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}

#: Script that starts the run on the lead broker. It reports the run's exit code to the operator in
#: the pod's termination message and exits with 0, because the pod must not restart if jobs failed.
#: If the run was killed or temporarily cannot continue, the script reports nothing, and the pod
#: fails. ``follow`` forwards signals to a child. A signal also leaves a stop file, so that no
#: further child starts. The child checks the file itself, because a signal just after the fork
#: would be lost.
_START = """\
#!/bin/sh
trap ': > "$ENSEMBLE_PID.stop"; kill -TERM "$run"' TERM INT
follow() {{
  ( [ -e "$ENSEMBLE_PID.stop" ] && exit 143; exec "$@" ) &
  run=$!
  echo "$run" > "$ENSEMBLE_PID"
  [ -e "$ENSEMBLE_PID.stop" ] && kill -TERM "$run"
  wait "$run"
  code=$?
  while kill -0 "$run" 2>/dev/null; do
    wait "$run"
    code=$?
  done
}}
{body}[ "$code" -gt 128 ] && [ ! -s "$ENSEMBLE_PID.over" ] && exit "$code"
printf 'ensemble: exit %s\\n' "$code" > /dev/termination-log
exit 0
"""

#: A run may be temporarily unable to continue: its service or queue is unreachable, or the previous
#: pod is still ending and holds the lock. Retry after a pause, unless the program is missing (127).
_RUN_SCRIPT = """\
for pause in 0 1 2 4 8 16 32; do
  follow sleep "$pause"
  [ "$code" = 0 ] && follow {command} --exit-file "$ENSEMBLE_PID.over"
  [ -s "$ENSEMBLE_PID.over" ] || [ "$code" -gt 125 ] && break
done
"""

#: After the last retry, fail the pod, so that another one with the run's journal retries.
_AGAIN = """\
[ -s "$ENSEMBLE_PID.over" ] || [ "$code" -gt 125 ] || exit 75
"""

#: Stops the run before a pod is deleted, because the pod's first process, a shell, forwards no
#: signals.
_STOP = """\
#!/bin/sh
: > "$ENSEMBLE_PID.stop"
[ -e "$ENSEMBLE_PID" ] || exit 0
run=$(cat "$ENSEMBLE_PID")
for second in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do
  [ "$second" = 1 ] && kill -TERM "$run" 2>/dev/null
  kill -0 "$run" 2>/dev/null || exit 0
  sleep 1
done
"""


#: Last lines of the Flux Operator's script: if the first pod's run reported no end, fail the pod,
#: so that its Job creates another. Workers end with their broker.
_NOT_OVER = '[ "${JOB_COMPLETION_INDEX:-0}" != 0 ] || [ -s /dev/termination-log ] || exit 137'

#: Seconds within which the run's container must start after the program was copied.
_BEGINS = 900


def token_secret(ensemble: Ensemble, part: str) -> str:
    """Return the name of the Secret with the token of a member or of the run."""
    return f"{ensemble.name}-{part}-token"


def _mount(member: Member) -> str:
    """Return the mount path of the Flux view."""
    flux = member.minicluster.get("flux") or {}
    path: str = (flux.get("container") or {}).get("mountPath") or "/mnt/flux"
    return path


def _broker_command(ensemble: Ensemble, member: Member, tag: str) -> list[str]:
    """Return the command on the lead broker."""
    name = f"{ensemble.namespace}/{member_object(ensemble, member.name)}"
    options = [f"--option={key}={value}" for key, value in sorted(member.options.items())]
    where = ["--name", name, "--host", address(ensemble), "--port", str(ensemble.sidecar.port)]
    if ensemble.outside:
        # The agent acts as the member and reports its status. The agent's executor requests nodes.
        own = [f"--option=name={name}", f"--option=host={address(ensemble)}"]
        own += [f"--option=port={ensemble.sidecar.port}", "--option=report=false"]
        start = ["ensemble", "member", "start", "--executor", "minicluster"]
        return [*start, *where, *own, *options]
    return [
        *_RUN,
        *_CANCELS,
        "--tag",
        tag,
        "--executor",
        "minicluster",
        *where,
        *options,
        f"{_ENTRY}/ensemble.yaml",
    ]


def start_script(words: list[str], *, run: bool, resumed: bool) -> str:
    """Return the script that starts a pod's command.

    The flag ``run`` says whether the command runs an ensemble, and ``resumed`` whether another pod
    can resume this run.
    """
    body = f"follow {shlex.join(words)}\n"
    if run:
        body = _RUN_SCRIPT.format(command=shlex.join(words)) + (_AGAIN if resumed else "")
    return wrap_script(body)


def wrap_script(body: str) -> str:
    """Return the start script with this shell code as its body.

    The body runs commands with ``follow``, which forwards signals to them and sets ``$code`` to
    their exit code. The script reports ``$code``.
    """
    return _START.format(body=body)


def config_map(ensemble: Ensemble, part: str, words: list[str], text: str, digest: str) -> Object:
    """Return the ConfigMap from which a member or the run starts. It is immutable.

    The argument ``text`` is the run's ensemble file, or empty.
    """
    start = start_script(words, run=bool(text), resumed=ensemble.restart_policy == "Resume")
    data = {"start.sh": start, "stop.sh": _STOP}
    data |= {"ensemble.yaml": text} if text else {}
    # An immutable object with new content needs a new name.
    name = f"{ensemble.name}-{part}-{content(data)[:10]}"
    found = child(ensemble, "ConfigMap", name, "member", {"data": data, "immutable": True})
    found["metadata"]["annotations"][FILE] = digest
    return found


def member_objects(
    ensemble: Ensemble,
    member: Member,
    settings: Settings,
    text: str,
    digest: str,
    size: int | None = None,
) -> list[Object]:
    """Return the objects of a member, the MiniCluster last.

    The argument ``text`` is the member's ensemble file, empty if all members share one. Its hash is
    ``digest``. The MiniCluster is created with ``size`` nodes, within its bounds; default: as in
    the spec.
    """
    tag = run_tag(ensemble, member.name, digest)
    words = _broker_command(ensemble, member, tag)
    files = config_map(ensemble, member.name, words, text, digest)
    found = [files]
    if not (member.minicluster.get("network") or {}).get("headlessName"):
        found.append(_headless(ensemble, member))
    if "size" in ensemble.state:
        found.append(_claim(ensemble, member.name))
    if member.resize == "HPA":
        found.append(_autoscaler(ensemble, member))
    made = _minicluster(ensemble, member, settings, files["metadata"]["name"], tag, digest)
    if size is not None:
        bounds = made["spec"]
        bounds["size"] = min(max(size, bounds["minSize"]), bounds["maxSize"])
    return [*found, made]


def _headless(ensemble: Ensemble, member: Member) -> Object:
    """Return the Service through which brokers find each other, even before their pods are
    ready.
    """
    name = member_object(ensemble, member.name)
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"job-name": name},
    }
    return child(ensemble, "Service", f"{name}-flux", "member", {"spec": spec})


def _claim(ensemble: Ensemble, part: str) -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": ensemble.state["size"]}},
        "storageClassName": ensemble.state.get("storageClassName"),
    }
    name = member_object(ensemble, part)
    return child(ensemble, "PersistentVolumeClaim", name, "member", {"spec": spec})


def _claim_name(ensemble: Ensemble, part: str) -> str:
    """Return the name of the claim for a member's journals; empty if the member has no claim."""
    if "claim" in ensemble.state:
        name: str = ensemble.state["claim"]
        return name
    return member_object(ensemble, part) if "size" in ensemble.state else ""


def _autoscaler(ensemble: Ensemble, member: Member) -> Object:
    name = member_object(ensemble, member.name)
    target = {"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": name}
    bounds = {"minReplicas": member.minicluster.get("minSize", 1), "maxReplicas": member.most}
    spec = {**bounds, **(member.autoscaling or {}), "scaleTargetRef": target}
    return child(ensemble, "HorizontalPodAutoscaler", name, "member", {"spec": spec})


def _minicluster(
    ensemble: Ensemble, member: Member, settings: Settings, files: str, tag: str, digest: str
) -> Object:
    """Return the MiniCluster: the spec that the user wrote, with additions for the run."""
    name = member_object(ensemble, member.name)
    spec: Object = copy.deepcopy(dict(member.minicluster))
    size = member.size
    spec["size"] = size
    spec.setdefault("minSize", 1)
    spec.setdefault("maxSize", size)
    spec.setdefault("backoffLimit", 6 if ensemble.restart_policy == "Resume" else 1)
    spec.setdefault("flux", {}).setdefault("completeWorkers", True)
    # Each MiniCluster gets a separate Service: the Flux Operator's default is shared in the
    # namespace, and is deleted with the first MiniCluster that used it.
    spec.setdefault("network", {}).setdefault("headlessName", f"{name}-flux")
    pod = spec.setdefault("pod", {})
    pod.setdefault("restartPolicy", "Never")
    pod["labels"] = {**pod.get("labels", {}), **labels_of(ensemble, "member")}
    pod["annotations"] = {**_KEPT, **pod.get("annotations", {})}
    spec["jobLabels"] = {**spec.get("jobLabels", {}), **labels_of(ensemble, "member")}
    _add_run(ensemble, member, spec["containers"][member.container], files)
    if ensemble.install["method"] == "View":
        spec["containers"].append(_view(member, ensemble, settings))
    found = child(ensemble, "MiniCluster", name, "member", {"spec": spec})
    # Rules or an autoscaler change the size later, so the size is not part of the content hash.
    made = {key: each for key, each in spec.items() if key not in ("size", "minSize", "maxSize")}
    found["metadata"]["annotations"] |= {FILE: digest, RUN: tag, TEMPLATE: content(made)}
    return found


def _add_run(ensemble: Ensemble, member: Member, container: Object, files: str) -> None:
    mount = _mount(member)
    container["runFlux"] = True
    container["launcher"] = True
    container["command"] = f"/bin/sh {_ENTRY}/start.sh"
    volumes = container.setdefault("volumes", {})
    paths = {each: each for each in ("start.sh", "stop.sh")}
    if not ensemble.outside:
        paths["ensemble.yaml"] = "ensemble.yaml"
    volumes[files] = {"configMapName": files, "path": _ENTRY, "items": paths}
    secret = token_secret(ensemble, member.name)
    volumes["ensemble-member"] = {"secretName": secret, "path": _TOKEN, "readOnly": True}
    claim = _claim_name(ensemble, member.name)
    if claim:
        volumes["ensemble-state"] = {"claimName": claim, "path": _STATE}
    state = (
        f"{_STATE}/{member_object(ensemble, member.name)}" if claim else f"{mount}/ensemble-state"
    )
    container["environment"] = {
        **container.get("environment", {}),
        "ENSEMBLE_STATE": state,
        "ENSEMBLE_TOKEN_FILE": f"{_TOKEN}/token",
        "ENSEMBLE_CA": f"{_TOKEN}/ca.crt",
        "ENSEMBLE_PID": f"{mount}/ensemble.pid",
    }
    cycle = container.setdefault("lifeCycle", {})
    cycle.setdefault("preStopExec", f"{mount}/ensemble-stop")
    commands = container.setdefault("commands", {})
    commands["post"] = "\n".join(filter(None, [commands.get("post", "").rstrip(), _NOT_OVER]))
    if ensemble.install["method"] == "View":
        # This file is open as long as anything in this container runs. The view container waits
        # until the file is closed.
        alive = f"{mount}/ensemble.alive"
        held = [
            f"mkfifo -m 666 {alive} 2> /dev/null",
            f"[ -p {alive} ] && exec 9<> {alive}",
            "true",
        ]
        commands["init"] = "\n".join(filter(None, [*held[:2], commands.get("init", ""), held[2]]))
    # A restarted container must ignore the files of the previous one.
    fresh = f"rm -f {mount}/ensemble.pid*"
    stop = f"cp {_ENTRY}/stop.sh {mount}/ensemble-stop && chmod 755 {mount}/ensemble-stop"
    added = [fresh, stop, *_path_lines(ensemble, mount)]
    commands["pre"] = "\n".join(filter(None, [commands.get("pre", "").rstrip(), *added]))


def _path_lines(ensemble: Ensemble, mount: str) -> list[str]:
    """Return shell lines that put ``ensemble`` on the PATH."""
    method = ensemble.install["method"]
    if method == "View":
        return [
            f"until [ -e {mount}/ensemble/ready ]; do sleep 0.2; done",
            f"export PATH={mount}/ensemble/bin:$PATH",
        ]
    if method == "Pip":
        lines = f"cat > {mount}/requirements.txt <<'END_OF_REQUIREMENTS'\n"
        lines += f"{ensemble.install['requirements'].rstrip()}\nEND_OF_REQUIREMENTS"
        pip = f"python3 -m pip install --require-hashes --target {mount}/ensemble"
        return [
            lines,
            f"{pip} -r {mount}/requirements.txt",
            f"export PATH={mount}/ensemble/bin:$PATH PYTHONPATH={mount}/ensemble:${{PYTHONPATH:-}}",
        ]
    return []


def _view(member: Member, ensemble: Ensemble, settings: Settings) -> Object:
    """Return a container that copies the program to the view's volume.

    After the copy, the container waits for the end of the run's container, because a pod with an
    ended container is never ready.
    """
    mount = _mount(member)
    alive = f"{mount}/ensemble.alive"
    copied = (
        f"rm -rf {mount}/ensemble {mount}/ensemble.new && "
        f"cp -R /opt/ensemble {mount}/ensemble.new && touch {mount}/ensemble.new/ready && "
        f"mv {mount}/ensemble.new {mount}/ensemble || exit 1\n"
        f"mkfifo -m 666 {alive} 2> /dev/null\n"
        f"timeout {_BEGINS} sh -c ': < {alive}' && cat {alive} > /dev/null\n"
        "exit 0"
    )
    given = member.minicluster["containers"][member.container]
    found = {
        "name": "ensemble-view",
        "image": ensemble.install.get("image") or settings.view,
        # First, before anything that the Flux Operator adds.
        "commands": {"init": copied},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    if "securityContext" in given:
        found["securityContext"] = given["securityContext"]
    return found


def run_objects(ensemble: Ensemble, settings: Settings, text: str, digest: str) -> list[Object]:
    """Return the objects of a run that all members share: ConfigMap, PersistentVolumeClaim, Job."""
    tag = run_tag(ensemble, RUNNER, digest)
    where = ["--host", address(ensemble), "--port", str(ensemble.sidecar.port)]
    words = [
        *_RUN,
        *(() if ensemble.durable else _CANCELS),
        "--tag",
        tag,
        "--executor",
        "remote",
        *where,
    ]
    words += ["--name", ensemble.namespace]
    files = config_map(ensemble, RUNNER, [*words, f"{_ENTRY}/ensemble.yaml"], text, digest)
    claim = _claim_name(ensemble, RUNNER)
    volume: Mapping[str, Any] = {"emptyDir": {"sizeLimit": "4Gi"}}
    if claim:
        volume = {"persistentVolumeClaim": {"claimName": claim}}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": pod_security(settings),
        "nodeSelector": ensemble.sidecar.node_selector,
        "tolerations": list(ensemble.sidecar.tolerations) or None,
        "imagePullSecrets": list(ensemble.sidecar.pull_secrets) or None,
        "containers": [
            {
                "name": "run",
                "image": ensemble.sidecar.image or settings.image,
                "imagePullPolicy": ensemble.sidecar.pull_policy,
                "command": ["/bin/sh", f"{_ENTRY}/start.sh"],
                "env": [
                    {"name": key, "value": value}
                    for key, value in (
                        ("ENSEMBLE_STATE", f"{_STATE}/{member_object(ensemble, RUNNER)}"),
                        ("ENSEMBLE_TOKEN_FILE", f"{_TOKEN}/token"),
                        ("ENSEMBLE_CA", f"{_TOKEN}/ca.crt"),
                        ("ENSEMBLE_PID", "/tmp/ensemble.pid"),
                    )
                ],
                "resources": {
                    "requests": {"cpu": "250m", "memory": "256Mi"},
                    "limits": {"cpu": "2", "memory": "2Gi"},
                },
                "securityContext": RESTRICTED,
                "volumeMounts": [
                    {"name": "files", "mountPath": _ENTRY, "readOnly": True},
                    {"name": "token", "mountPath": _TOKEN, "readOnly": True},
                    {"name": "state", "mountPath": _STATE},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "files", "configMap": {"name": files["metadata"]["name"]}},
            {
                "name": "token",
                "secret": {"secretName": token_secret(ensemble, RUNNER), "defaultMode": 0o440},
            },
            {"name": "state", **volume},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    labels = {**labels_of(ensemble, "run"), "job-index": "none"}
    spec = {
        "backoffLimit": 6 if ensemble.restart_policy == "Resume" else 0,
        "template": {"metadata": {"labels": labels, "annotations": dict(_KEPT)}, "spec": pod},
    }
    job = child(ensemble, "Job", member_object(ensemble, RUNNER), "run", {"spec": spec})
    job["metadata"]["annotations"] |= {FILE: digest, RUN: tag, TEMPLATE: content(spec)}
    claims = [_claim(ensemble, RUNNER)] if "size" in ensemble.state else []
    return [files, *claims, job]
