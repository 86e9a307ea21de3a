"""Tests of certificates and tokens: created once, kept, and repaired if a Secret is missing."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
from ensemble_operator.credential_issuance import make_secrets
from ensemble_operator.credential_renewal import needs_secrets, renewal_time, value
from ensemble_operator.object_names import Object
from ensemble_operator.resource import Ensemble, read
from ensemble_service import TokenFile
from fake_namespace import FILE, ensemble, member

from ensemble_core import EnsembleError

NOW = 1_800_000_000.0


def keys(found: Ensemble, secrets: dict[str, Object | None]) -> list[str]:
    """Create missing Secrets; return the names of all written Secrets."""
    written = make_secrets(found, secrets, NOW)
    secrets.update({each["metadata"]["name"]: each for each in written})
    return [each["metadata"]["name"] for each in written]


@pytest.fixture
def study() -> Ensemble:
    return read(ensemble(member(), member(name="b")))


@pytest.fixture
def secrets(study: Ensemble) -> dict[str, Object | None]:
    found: dict[str, Object | None] = {}
    keys(study, found)
    return found


def test_they_are_created_once(study: Ensemble) -> None:
    secrets: dict[str, Object | None] = {}
    assert needs_secrets(study, secrets, NOW)
    assert keys(study, secrets) == ["study-tls", "study-tokens", "study-0-token", "study-b-token"]
    assert not needs_secrets(study, secrets, NOW)
    assert keys(study, secrets) == []


def test_the_service_knows_each_tokens_owner_but_not_the_token_itself(
    study: Ensemble, secrets: dict[str, Object | None], tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(value(secrets["study-tokens"], "tokens.json"))
    file.chmod(0o600)
    known = TokenFile(file)
    for name, member_name in (
        ("study-0-token", "default/study-0"),
        ("study-b-token", "default/study-b"),
    ):
        text = value(secrets[name], "token")
        assert known.identify(text).member == member_name
        assert text not in file.read_text()
    viewer = known.identify(value(secrets["study-tokens"], "viewer"))
    assert (viewer.role, viewer.namespace) == ("viewer", "default")


@pytest.mark.parametrize("name", ["study-tls", "study-tokens", "study-0-token"])
def test_a_deleted_secret_is_recreated_and_the_other_tokens_stay(
    study: Ensemble, secrets: dict[str, Object | None], name: str
) -> None:
    before = {each: value(secrets[each], "token") for each in ("study-0-token", "study-b-token")}
    secrets[name] = None
    assert needs_secrets(study, secrets, NOW)
    assert name in keys(study, secrets)
    assert not needs_secrets(study, secrets, NOW)
    for each, text in before.items():
        assert (value(secrets[each], "token") == text) == (each != name)
    lines = json.loads(value(secrets["study-tokens"], "tokens.json"))["tokens"]
    assert len(lines) == 3


def test_a_token_of_a_removed_member_is_invalid(
    study: Ensemble, secrets: dict[str, Object | None]
) -> None:
    fewer = read(ensemble(member(name="b")))
    assert needs_secrets(fewer, secrets, NOW)
    keys(fewer, secrets)
    lines = json.loads(value(secrets["study-tokens"], "tokens.json"))["tokens"]
    assert {each["member"] for each in lines} == {None, "default/study-b"}


def test_certificates_are_renewed_at_two_thirds_of_their_lifetime_by_the_same_authority(
    study: Ensemble,
    secrets: dict[str, Object | None],
) -> None:
    before = secrets["study-tls"]
    at = renewal_time(before)
    assert NOW + 365 * 86400 * 0.6 < at < NOW + 365 * 86400 * 0.7
    assert not needs_secrets(study, secrets, at - 1)
    assert needs_secrets(study, secrets, at + 1)
    written = {each["metadata"]["name"]: each for each in make_secrets(study, secrets, at + 1)}
    assert value(written["study-tls"], "ca.crt") == value(before, "ca.crt")
    assert value(written["study-tls"], "server.crt") != value(before, "server.crt")


DAY = 86400


def test_a_token_is_renewed_at_two_thirds_of_its_lifetime_and_known_before_its_use(
    study: Ensemble, secrets: dict[str, Object | None], tmp_path: Path
) -> None:
    """Any write may be lost, because the operator is killed or a request fails. In all cases, the
    service knows the current and the previous token of each Secret.
    """
    holder_of = {"study-0-token": "token", "study-b-token": "token", "study-tokens": "viewer"}
    now, had = NOW, {name: [value(secrets[name], key)] for name, key in holder_of.items()}
    chance = random.Random(1)
    file, documents = tmp_path / "tokens.json", [(NOW, "")]
    while now < NOW + 900 * DAY:
        now += chance.choice([60, 700, 20 * DAY])
        for each in make_secrets(study, secrets, now) if needs_secrets(study, secrets, now) else ():
            if chance.random() < 0.3:
                break
            secrets[each["metadata"]["name"]] = each
        documents.append((now, value(secrets["study-tokens"], "tokens.json")))
        file.write_text(documents[-1][1])
        file.chmod(0o600)
        service = TokenFile(file, clock=partial(float, now))
        for name, key in holder_of.items():
            text = value(secrets[name], key)
            assert service.identify(text).member in (None, f"default/{name[:-6]}")
            if text != had[name][-1]:
                assert service.identify(had[name][-1]), "not all who have it have read it again"
                late = [words for at, words in documents if at <= now - 500][-1]
                assert text[9:17] in late, "files in pods are as they were a while ago"
                had[name].append(text)
    assert all(len(each) >= 3 for each in had.values()), had
    first = had["study-0-token"][0]
    with pytest.raises(EnsembleError, match=r"wrong or was removed|expired"):
        service.identify(first)
    assert len(json.loads(file.read_text())["tokens"]) <= 3 * len(had)


def test_a_token_whose_secret_was_deleted_is_invalid(
    study: Ensemble, secrets: dict[str, Object | None], tmp_path: Path
) -> None:
    text = value(secrets["study-0-token"], "token")
    secrets["study-0-token"] = None
    keys(study, secrets)
    assert text[9:17] not in value(secrets["study-tokens"], "tokens.json")


def test_with_the_users_certificates_only_tokens_are_created() -> None:
    found = read(ensemble(sidecar={"tls": {"secretName": "mine"}}))
    secrets: dict[str, Object | None] = {"mine": {"data": {}}}
    assert keys(found, secrets) == ["study-tokens", "study-0-token"]


def test_the_outside_run_may_use_all_members() -> None:
    shared = ensemble(member(), ensemble=FILE)
    del shared["spec"]["members"][0]["ensemble"]
    secrets: dict[str, Object | None] = {}
    assert "study-run-token" in keys(read(shared), secrets)
    lines = json.loads(value(secrets["study-tokens"], "tokens.json"))["tokens"]
    assert {each["role"] for each in lines} == {"viewer", "member", "controller"}
