"""Builds the Kubernetes objects of the ensemble service: Deployment, network policy and so on."""

from __future__ import annotations

import json
from typing import Any

from ensemble_operator.object_names import Object, child, labels_of, member_object
from ensemble_operator.resource import Ensemble
from ensemble_operator.settings import Settings

_STATE, _TLS, _TOKENS = "/var/lib/ensemble", "/etc/ensemble/tls", "/etc/ensemble/tokens"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod_security(settings: Settings) -> Object:
    """Return the security context of our pods, which satisfies Pod Security ``restricted``."""
    ids = ("runAsUser", "runAsGroup", "fsGroup")
    return {
        "runAsNonRoot": True,
        **dict.fromkeys(ids, settings.user),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def address(ensemble: Ensemble) -> str:
    """Return the host name at which pods and the operator reach the service."""
    return f"{ensemble.name}-grpc.{ensemble.namespace}.svc"


def tls_secret(ensemble: Ensemble) -> str:
    """Return the name of the Secret with the certificates."""
    return ensemble.sidecar.tls_secret or f"{ensemble.name}-tls"


def tokens_secret(ensemble: Ensemble) -> str:
    """Return the name of the Secret with the hashes of all tokens, and the operator's token."""
    return f"{ensemble.name}-tokens"


def service_objects(ensemble: Ensemble, settings: Settings, *, replicas: int) -> list[Object]:
    """Return all objects in the order of creation.

    The number ``replicas`` is 0 when the service is no longer needed.
    """
    name = ensemble.name
    found = [
        child(ensemble, "ServiceAccount", name, "service", {"automountServiceAccountToken": False})
    ]
    found += _rights(ensemble)
    if ensemble.sidecar.storage is not None:
        found.append(_claim(ensemble))
    found.append(_deployment(ensemble, settings, replicas))
    port = {"name": "grpc", "port": ensemble.sidecar.port, "targetPort": "grpc", "protocol": "TCP"}
    spec = {"type": "ClusterIP", "selector": _selector(ensemble), "ports": [port]}
    found.append(child(ensemble, "Service", f"{name}-grpc", "service", {"spec": spec}))
    found.append(_policy(ensemble))
    return found


def _selector(ensemble: Ensemble) -> dict[str, str]:
    labels = labels_of(ensemble, "service")
    return {key: labels[key] for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}


def _rights(ensemble: Ensemble) -> list[Object]:
    """Return the service's permissions: to resize its own members, and nothing else."""
    names = [member_object(ensemble, each.name) for each in ensemble.members]
    rules = [
        (["flux-framework.org"], ["miniclusters"], ["get"]),
        (["flux-framework.org"], ["miniclusters/scale"], ["patch"]),
        # The Job contains the size if the Flux Operator's report of the size was lost.
        (["batch"], ["jobs"], ["get"]),
    ]
    written = [
        {"apiGroups": groups, "resources": resources, "resourceNames": names, "verbs": verbs}
        for groups, resources, verbs in rules
    ]
    group = "rbac.authorization.k8s.io"
    return [
        child(ensemble, "Role", ensemble.name, "service", {"rules": written}),
        child(
            ensemble,
            "RoleBinding",
            ensemble.name,
            "service",
            {
                "roleRef": {"apiGroup": group, "kind": "Role", "name": ensemble.name},
                "subjects": [
                    {
                        "kind": "ServiceAccount",
                        "name": ensemble.name,
                        "namespace": ensemble.namespace,
                    }
                ],
            },
        ),
    ]


def _claim(ensemble: Ensemble) -> Object:
    storage = ensemble.sidecar.storage or {}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.get("size", "1Gi")}},
        "storageClassName": storage.get("storageClassName"),
    }
    return child(ensemble, "PersistentVolumeClaim", ensemble.name, "service", {"spec": spec})


def _deployment(ensemble: Ensemble, settings: Settings, replicas: int) -> Object:
    sidecar = ensemble.sidecar
    storage: Object = {"name": "state"}
    if sidecar.storage is None:
        storage |= {"emptyDir": {"sizeLimit": "1Gi"}, "persistentVolumeClaim": None}
    else:
        storage |= {"persistentVolumeClaim": {"claimName": ensemble.name}, "emptyDir": None}
    keys = [{"key": key, "path": key} for key in ("server.crt", "server.key")]
    secret = {"secretName": tls_secret(ensemble), "items": keys, "defaultMode": 0o440}
    hashes = {
        "secretName": tokens_secret(ensemble),
        "items": [{"key": "tokens.json", "path": "tokens.json"}],
        "defaultMode": 0o440,
    }
    pod = {
        "serviceAccountName": ensemble.name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            **pod_security(settings),
            "fsGroupChangePolicy": "OnRootMismatch",
        },
        "nodeSelector": sidecar.node_selector,
        "tolerations": list(sidecar.tolerations) or None,
        "imagePullSecrets": list(sidecar.pull_secrets) or None,
        "containers": [_container(ensemble, settings)],
        "volumes": [
            storage,
            {"name": "tls", "secret": secret},
            {"name": "tokens", "secret": hashes},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    # Without this label, the Flux Operator would give every pod its own index.
    labels = {**labels_of(ensemble, "service"), "job-index": "none"}
    spec = {
        "replicas": replicas,
        "strategy": {"type": "Recreate", "rollingUpdate": None},
        "selector": {"matchLabels": _selector(ensemble)},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return child(ensemble, "Deployment", ensemble.name, "service", {"spec": spec})


def _container(ensemble: Ensemble, settings: Settings) -> Object:
    sidecar = ensemble.sidecar
    fixed = [
        f"{ensemble.namespace}/{member_object(ensemble, each.name)}"
        for each in ensemble.members
        if each.resize != "Rules"
    ]
    arguments = [
        "--kubernetes",
        "--option=namespace=$(POD_NAMESPACE)",
        *([f"--option=fixed={json.dumps(fixed)}"] if fixed else []),
        "--host=0.0.0.0",
        f"--port={sidecar.port}",
        f"--state={_STATE}/service",
        f"--tls-dir={_TLS}",
        f"--tokens={_TOKENS}/tokens.json",
        "--metrics-host=0.0.0.0",
        f"--metrics-port={sidecar.metrics_port}",
        "--log-format=json",
    ]
    own: dict[str, Any] = {
        # A service with one member used at most 109 MiB.
        "requests": {"cpu": "100m", "memory": "192Mi", "ephemeral-storage": "64Mi"},
        "limits": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1200Mi"},
    }
    return {
        "name": "service",
        "image": sidecar.image or settings.image,
        "imagePullPolicy": sidecar.pull_policy,
        "command": ["ensemble-server", "start"],
        "args": arguments,
        "env": [
            {
                "name": "POD_NAMESPACE",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}},
            }
        ],
        "ports": [
            {"name": "grpc", "containerPort": sidecar.port, "protocol": "TCP"},
            {"name": "metrics", "containerPort": sidecar.metrics_port, "protocol": "TCP"},
        ],
        "startupProbe": _probe(2, 30, 2),
        "readinessProbe": _probe(5, 2, 2),
        # The service answers 503 while it stops. The probe takes longer than the grace period, so
        # that the service is not killed early.
        "livenessProbe": _probe(10, 3, 5),
        "resources": dict(sidecar.resources or own),
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": "state", "mountPath": _STATE},
            {"name": "tls", "mountPath": _TLS, "readOnly": True},
            {"name": "tokens", "mountPath": _TOKENS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _probe(period: int, failures: int, timeout: int) -> Object:
    return {
        "httpGet": {"path": "/healthz", "port": "metrics"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def _policy(ensemble: Ensemble) -> Object:
    """Return the service's network policy.

    Members, the run and the operator may connect to the service, and Prometheus to the metrics. The
    service may connect to DNS and to Kubernetes.
    """
    own = {"app.kubernetes.io/instance": ensemble.name, "app.kubernetes.io/part-of": "ensemble"}
    members = {"podSelector": {"matchLabels": own}}
    everywhere: Object = {"namespaceSelector": {}}

    def called(name: str) -> Object:
        return {**everywhere, "podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}

    def port(number: int, protocol: str = "TCP") -> Object:
        return {"port": number, "protocol": protocol}

    names = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    spec = {
        "podSelector": {"matchLabels": _selector(ensemble)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [members, called("ensemble-operator")],
                "ports": [port(ensemble.sidecar.port)],
            },
            {"from": [called("prometheus")], "ports": [port(ensemble.sidecar.metrics_port)]},
        ],
        "egress": [
            {"to": [{"namespaceSelector": names}], "ports": [port(53, "UDP"), port(53)]},
            # The API server is not a pod, and its address depends on the cluster.
            {"ports": [port(443), port(6443)]},
        ],
    }
    return child(ensemble, "NetworkPolicy", ensemble.name, "service", {"spec": spec})
