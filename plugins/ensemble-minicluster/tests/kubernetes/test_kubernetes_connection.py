"""Tests of the resizer's connection: a kubeconfig, the pod's service account, and TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_stand_in import Cluster, definition
from kubernetes_stand_in.kinds import FLUX
from resizer_checks import MEMBER

from ensemble_core import EnsembleError, UsageError

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")
pytest.importorskip("cryptography", reason="there is nothing to make certificates with")

from ensemble_minicluster.resizer import build as build_resizer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "standin")])
    now = dt.datetime.now(dt.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "ca.crt", folder / "ca.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


@pytest.fixture
def secure(certificate: tuple[Path, Path]) -> Iterator[Cluster]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    cluster = Cluster(definition(), context)
    kind = cluster.store.kinds[(FLUX, "miniclusters")]
    spec = {"size": 2, "maxSize": 4, "containers": [{}]}
    cluster.store.create(kind, "default", {"metadata": {"name": "ensemble"}, "spec": spec})
    yield cluster
    cluster.stop()


@pytest.fixture
def in_pod(
    secure: Cluster,
    certificate: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Simulate a pod with a service account; return the file of its token."""
    from kubernetes.config import incluster_config

    token = tmp_path / "token"
    token.write_text(secure.token, encoding="utf-8")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(secure.port))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate[0]))
    return token


def test_in_a_pod_the_service_account_is_used(in_pod: Path) -> None:
    resizer = build_resizer({})
    assert resizer.size(MEMBER) == 2
    resizer.close()


def test_a_token_replaced_by_the_kubelet_is_read_again(
    secure: Cluster, in_pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.config.incluster_config import InClusterConfigLoader

    begin = InClusterConfigLoader.__init__

    def begin_soon(self: Any, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        self._token_refresh_period = dt.timedelta(0)  # default: a minute

    monkeypatch.setattr(InClusterConfigLoader, "__init__", begin_soon)
    resizer = build_resizer({})
    assert resizer.size(MEMBER) == 2
    in_pod.write_text(secure.access.token("system:admin"), encoding="utf-8")
    secure.access.revoke(secure.token)
    assert resizer.resize(MEMBER, 1).outcome == "granted"
    assert resizer.size(MEMBER) == 3
    resizer.close()


def test_a_pod_without_a_token_has_a_hint(in_pod: Path) -> None:
    in_pod.unlink()
    with pytest.raises(UsageError) as raised:
        build_resizer({})
    assert "service account" in raised.value.what
    assert "automountServiceAccountToken" in (raised.value.hint or "")


def test_a_kubeconfig_takes_precedence_over_the_pod(
    in_pod: Path, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config")))
    assert build_resizer({}).size(MEMBER) is None
    assert [path for _, path in cluster.log], "the cluster of the file was asked"


def test_an_untrusted_api_server_is_rejected(secure: Cluster, tmp_path: Path) -> None:
    file = secure.kubeconfig(tmp_path / "config")
    answer = build_resizer({"kubeconfig": str(file)}).resize(MEMBER, 1)
    assert (answer.outcome, answer.code, answer.transient) == ("denied", "untrusted", False)
    assert "certificate" in answer.reason
    assert secure.log == []


def test_the_context_chooses_among_clusters(cluster: Cluster, tmp_path: Path) -> None:
    file = cluster.kubeconfig(tmp_path / "config")
    document = json.loads(file.read_text(encoding="utf-8"))
    document["contexts"].append({**document["contexts"][0], "name": "other"})
    document["current-context"] = "nowhere"
    file.write_text(json.dumps(document), encoding="utf-8")
    build_resizer({"kubeconfig": str(file), "context": "other"}).size(MEMBER)
    assert cluster.log
    with pytest.raises(UsageError, match="no usable Kubernetes cluster"):
        build_resizer({"kubeconfig": str(file)})


@pytest.mark.parametrize(
    "text", [None, "", "a: [", "clusters: 3", "apiVersion: v1\nkind: Config\n"]
)
def test_an_invalid_kubeconfig_is_reported(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        build_resizer({"kubeconfig": str(file)})
    assert str(file) in raised.value.what
    assert raised.value.cause
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"map": "{"}, "not JSON"),
        ({"map": "[]"}, "not a JSON object"),
        ({"map": {"a/b/c": "x"}}, "invalid member name"),
        ({"map": {"a/b": "X!"}}, "invalid MiniCluster name"),
        ({"map": {"a/b": 3}}, "invalid MiniCluster name"),
        ({"map": {"b": "x", "default/b": "y"}}, "twice"),
        ({"map": {"a/b": "x"}, "namespace": "c"}, "members of namespace c, not a/b"),
        ({"namespace": "A"}, "invalid namespace"),
        ({"namespace": "a/b"}, "invalid namespace"),
    ],
)
def test_invalid_options_are_rejected_at_the_start(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_resizer(options)


def test_without_the_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(EnsembleError) as raised:
        build_resizer({})
    assert "ensemble-minicluster[kubernetes]" in (raised.value.hint or "")


def test_nothing_heavy_is_loaded_before_a_resizer_is_built() -> None:
    code = (
        "import sys\n"
        "import ensemble_minicluster\n"
        "import ensemble_minicluster.options, ensemble_minicluster.resizer\n"
        "print([name for name in ('kubernetes', 'urllib3', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
