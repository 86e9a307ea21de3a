"""Logging in: how the cluster is reached, and who we are in it; for kopf and for ``api``."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import kopf

from ensemble_core import UsageError

__all__ = ["log_in"]

#: Where pods have the files of their service account.
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_log = logging.getLogger("ensemble.operator")


def log_in(account: Path = _ACCOUNT) -> kopf.ConnectionInfo:
    """How to reach the cluster: the pod's service account, whose files are in ``account``, else a
    kubeconfig. Raises :class:`UsageError`."""
    found = _of_account(account) or kopf.login_with_kubeconfig(
        logger=_log, settings=kopf.OperatorSettings()
    )
    if found is None:
        raise UsageError(
            "how to reach Kubernetes is not known",
            cause="this is no pod with a service account, and there is no kubeconfig",
            hint="--kubeconfig FILE, or KUBECONFIG",
            code="no-cluster",
        )
    return found


def _of_account(account: Path) -> kopf.ConnectionInfo | None:
    try:
        token = (account / "token").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = account / "ca.crt"
    return kopf.ConnectionInfo(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_path=str(authority) if authority.exists() else None,
        token=token,
    )
