"""Tests of the service's tls_folder, with real sockets and TLS."""

from __future__ import annotations

import datetime as dt
import os
import socket
import ssl
import stat
from pathlib import Path

import pytest
from ensemble_service import certificates
from ensemble_service.client import ServiceClient, open_channel
from ensemble_service.server import Service, Settings, serving
from ensemble_service.tokens import TokenFile

from ensemble_core import EnsembleError, UsageError

NOW = dt.datetime.now(dt.timezone.utc)


@pytest.fixture(scope="session")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    certificates.init(folder, ["ensemble.lab.svc", "10.1.2.3"])
    return folder


def settings(state: Path, **more: object) -> Settings:
    return Settings(state=state, port=0, grace=1, **more)  # type: ignore[arg-type]  # as passed


def greeted(service: Service, folder: Path, name: str = "localhost") -> str:
    """Return the TLS version negotiated with a client that trusts the authority in ``folder``."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", service.port), 5) as plain,
        context.wrap_socket(plain, server_hostname=name) as secure,
    ):
        return secure.version() or ""


def test_keys_are_private(tls_folder: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tls_folder.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "server.crt": 0o644, "server.key": 0o600}


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "ensemble.lab.svc", "10.1.2.3"])
def test_the_service_is_trusted_under_each_of_its_names(
    tls_folder: Path, tmp_path: Path, name: str
) -> None:
    with serving(settings(tmp_path, tls=tls_folder)) as service:
        assert greeted(service, tls_folder, name) == "TLSv1.3"
        with pytest.raises(ssl.SSLCertVerificationError):
            greeted(service, tls_folder, "elsewhere.example")


def test_a_renewed_certificate_is_trusted_by_clients_of_the_old_authority(
    tmp_path: Path,
) -> None:
    certificates.init(tmp_path / "tls", days=1)
    authority = (tmp_path / "tls" / "ca.crt").read_bytes()
    before = (tmp_path / "tls" / "server.crt").read_bytes()
    certificates.init(tmp_path / "tls", days=9, renew=True)
    assert (tmp_path / "tls" / "ca.crt").read_bytes() == authority
    assert (tmp_path / "tls" / "server.crt").read_bytes() != before
    with serving(settings(tmp_path)) as service:
        assert greeted(service, tmp_path / "tls")


def test_a_renewed_certificate_also_covers_the_previous_names(tmp_path: Path) -> None:
    certificates.init(tmp_path, ["ensemble.lab.svc", "10.1.2.3"])
    names = certificates.init(tmp_path, ["new.lab.svc"], renew=True)
    assert {"ensemble.lab.svc", "10.1.2.3", "new.lab.svc", "localhost"} <= set(names)
    with serving(settings(tmp_path / "state", tls=tmp_path)) as service:
        for name in ("ensemble.lab.svc", "10.1.2.3", "new.lab.svc"):
            assert greeted(service, tmp_path, name)


def test_a_certificate_is_not_valid_longer_than_its_authority_and_that_is_shown(
    tmp_path: Path,
) -> None:
    certificates.init(tmp_path)
    certificates.init(tmp_path, renew=True, days=36500)
    assert 3640 < certificates.days_left(tmp_path) <= 3650


def test_an_expired_authority_cannot_renew(tmp_path: Path) -> None:
    certificates.init(tmp_path, now=NOW - dt.timedelta(days=4000))
    with pytest.raises(UsageError, match="expired"):
        certificates.init(tmp_path, renew=True)


@pytest.mark.parametrize(
    "host", ["", "a b", "-a", "a..b", "x" * 300, "http://a", "10.0.0.256", "0.0.0.0", "[::]"]
)
def test_an_invalid_host_gets_no_certificate(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError):
        certificates.init(tmp_path / "tls", [host])
    assert not (tmp_path / "tls").exists()


def shown(service: Service) -> bytes | None:
    """Return the certificate that the service presents."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", service.port), 5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.getpeercert(binary_form=True)


def test_a_running_service_uses_a_renewed_certificate_and_keeps_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_GLANCE", 0.0)
    certificates.init(tmp_path / "tls")
    token, _ = TokenFile(tmp_path / "tokens.json").add("admin")
    with serving(settings(tmp_path)) as service:
        ca = tmp_path / "tls" / "ca.crt"
        with ServiceClient("localhost", service.port, token=token, ca=ca) as client:
            assert client.status() == []
            before = shown(service)
            assert shown(service) == before
            certificates.init(tmp_path / "tls", renew=True)
            after = shown(service)
            assert after != before
            assert after == shown(service)
            assert greeted(service, tmp_path / "tls")
            assert client.status() == []


def test_an_unusable_new_certificate_changes_nothing_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_GLANCE", 0.0)
    told: list[str] = []
    monkeypatch.setattr(certificates, "tell", lambda event, *_more, **_fields: told.append(event))
    certificates.init(tmp_path / "tls")
    with serving(settings(tmp_path)) as service:
        before = shown(service)
        key = tmp_path / "tls" / "server.key"
        data = key.read_bytes()
        certificates.init(tmp_path / "other")
        key.write_bytes((tmp_path / "other" / "server.key").read_bytes())
        assert [shown(service) for _ in range(4)] == [before] * 4
        assert [each for each in told if "cannot use the new" in each] == told[:1] == told
        key.unlink()
        assert shown(service) == before
        key.write_bytes(data)
        os.chmod(key, 0o600)
        assert shown(service) is not None


# -- unusable files prevent the start ---------------------------------------------------------------


def start(chosen: Settings) -> EnsembleError:
    with pytest.raises(EnsembleError) as caught, serving(chosen):
        pytest.fail("it started")
    return caught.value


def test_a_service_with_an_expired_certificate_does_not_start(tmp_path: Path) -> None:
    certificates.init(tmp_path / "tls", days=10, now=NOW - dt.timedelta(days=11))
    error = start(settings(tmp_path))
    assert error.exit_code == 2
    assert "expired" in error.what
    assert "--renew" in (error.hint or "")


@pytest.mark.parametrize("lost", ["server.key", "server.crt"])
def test_a_missing_key_or_certificate_does_not_cause_plaintext(tmp_path: Path, lost: str) -> None:
    certificates.init(tmp_path / "tls")
    (tmp_path / "tls" / lost).unlink()
    assert lost in start(settings(tmp_path)).what


def test_a_key_of_another_certificate_is_rejected(tmp_path: Path) -> None:
    certificates.init(tmp_path / "tls")
    certificates.init(tmp_path / "other")
    (tmp_path / "tls" / "server.key").write_bytes((tmp_path / "other" / "server.key").read_bytes())
    assert "does not belong to" in start(settings(tmp_path)).what


def test_a_key_that_others_may_change_is_rejected(tmp_path: Path) -> None:
    certificates.init(tmp_path / "tls")
    os.chmod(tmp_path / "tls" / "server.key", 0o620)
    assert "other users can change" in start(settings(tmp_path)).what


def test_an_invalid_certificate_is_rejected(tmp_path: Path) -> None:
    certificates.init(tmp_path / "tls")
    (tmp_path / "tls" / "server.crt").write_text("garbage")
    error = start(settings(tmp_path))
    assert (error.exit_code, error.code) == (2, "bad-certificate")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_plaintext_is_allowed_on_this_machine_only(tmp_path: Path, host: str) -> None:
    error = start(settings(tmp_path, host=host))
    assert error.exit_code == 2
    assert "init-tls" in (error.hint or "")


def test_plaintext_for_other_machines_must_be_explicit(tmp_path: Path) -> None:
    with serving(settings(tmp_path, host="0.0.0.0", insecure=True)) as service:
        assert not service.secure


def test_insecure_with_certificates_is_rejected(tmp_path: Path, tls_folder: Path) -> None:
    assert start(settings(tmp_path, tls=tls_folder, insecure=True)).exit_code == 2


# -- clients ----------------------------------------------------------------------------------------


def test_the_authority_may_be_in_the_environment(
    tmp_path: Path, tls_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(settings(tmp_path, tls=tls_folder)) as service:
        token, _ = service.tokens.add("viewer", "lab")
        monkeypatch.setenv("ENSEMBLE_CA", str(tls_folder / "ca.crt"))
        assert ServiceClient("localhost", service.port, token=token).status() == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ca": "/nonexistent/ca.crt"}, "cannot read the certificate"),
        ({"ca": __file__ + "/x"}, "cannot read the certificate"),
        ({"token": "a\nb"}, "invalid characters in the token"),
        ({"token": "ü"}, "invalid characters in the token"),
        ({"port": 0}, "invalid service address"),
        ({"host": ""}, "invalid service address"),
    ],
)
def test_an_unusable_channel_is_rejected_at_once(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_channel(**given)  # type: ignore[arg-type]  # wrong on purpose


def test_a_token_can_be_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(settings(tmp_path)) as service:
        token, _ = service.tokens.add("viewer", "lab")
        (tmp_path / "token").write_text(token + "\n")
        monkeypatch.setenv("ENSEMBLE_TOKEN_FILE", str(tmp_path / "token"))
        assert ServiceClient(port=service.port).status() == []
        monkeypatch.setenv("ENSEMBLE_TOKEN_FILE", str(tmp_path / "nothing"))
        with pytest.raises(UsageError, match="cannot read the token"):
            ServiceClient(port=service.port)
