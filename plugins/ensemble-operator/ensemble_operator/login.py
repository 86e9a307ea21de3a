"""Finds the address of the Kubernetes API, and the operator's credentials."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import kopf

from ensemble_core import UsageError

#: Folder of a pod's service account.
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_log = logging.getLogger("ensemble.operator")


def log_in(account: Path = _ACCOUNT) -> kopf.ConnectionInfo:
    """Return the connection for the pod's service account or, outside of a pod, for a kubeconfig.

    Raises :class:`UsageError` if neither exists.
    """
    found = _account_login(account) or kopf.login_with_kubeconfig(
        logger=_log, settings=kopf.OperatorSettings()
    )
    if found is None:
        raise UsageError(
            "cannot connect to Kubernetes",
            cause="no pod service account and no kubeconfig",
            hint="use --kubeconfig FILE or set KUBECONFIG",
            code="no-cluster",
        )
    return found


def _account_login(account: Path) -> kopf.ConnectionInfo | None:
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
