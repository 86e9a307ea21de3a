"""Tests of access control: names of members, rights of identities, and the token file."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from ensemble_service.access import Identity, Unauthenticated, member_name
from ensemble_service.tokens import TokenFile

from ensemble_core import EnsembleError, UsageError


@pytest.fixture
def now() -> list[float]:
    return [1_000_000.0]


@pytest.fixture
def tokens(tmp_path: Path, now: list[float]) -> TokenFile:
    return TokenFile(tmp_path / "service" / "tokens.json", lambda: now[0])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("one", "default/one"),
        ("lab/one", "lab/one"),
        ("a-1/b-2", "a-1/b-2"),
        ("a" * 63, f"default/{'a' * 63}"),
    ],
)
def test_a_member_is_identified_by_its_namespace_and_name(text: str, name: str) -> None:
    assert member_name(text) == name


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "a/b/c", "A/b", "a_b", "-a", "a-", "a b", "a/b\n", "a" * 64, "ä", "a/../b", "a.b", "x" * 100_000],
)  # fmt: skip
def test_a_malformed_name_is_rejected_with_the_reason(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        member_name(text)
    assert caught.value.cause
    assert len(str(caught.value)) < 600


MEMBER = Identity("member", "lab", "lab/one")
CONTROLLER = Identity("controller", "lab")
VIEWER = Identity("viewer", "lab")
ADMIN = Identity("admin", "")


@pytest.mark.parametrize(
    ("who", "member", "rights"),
    [
        (MEMBER, "lab/one", {"be", "see", "resize"}),
        (MEMBER, "lab/two", set()),
        (CONTROLLER, "lab/one", {"see", "steer", "resize"}),
        (CONTROLLER, "laboratory/one", set()),
        (CONTROLLER, "other/one", set()),
        (VIEWER, "lab/one", {"see"}),
        (VIEWER, "other/one", set()),
        (ADMIN, "lab/one", {"see", "steer", "resize"}),
    ],
)
def test_each_role_has_its_rights(who: Identity, member: str, rights: set[str]) -> None:
    asked = {
        "be": who.may_be,
        "see": who.may_see,
        "steer": who.may_steer,
        "resize": who.may_resize,
    }
    assert {right for right, may in asked.items() if may(member)} == rights


@pytest.mark.parametrize(
    ("who", "tag", "may"),
    [
        (CONTROLLER, "study-1", True),
        (ADMIN, "study-1", True),
        (CONTROLLER, "", False),
        (CONTROLLER, "../x", False),
        (CONTROLLER, "x" * 300, False),
        (VIEWER, "study-1", False),
        (MEMBER, "study-1", False),
    ],
)
def test_only_controllers_start_runs_and_only_with_valid_tags(
    who: Identity, tag: str, may: bool
) -> None:
    assert who.may_run(tag) is may


def test_a_token_identifies_its_member(tokens: TokenFile) -> None:
    text, made = tokens.add("member", "lab/one")
    assert tokens.identify(text) == Identity("member", "lab", "lab/one", made.id)


def test_the_file_contains_no_token_and_is_private(tokens: TokenFile) -> None:
    text, _ = tokens.add("member", "lab/one")
    secret = text.rpartition(text.split("-")[1])[2].lstrip("-")
    assert secret not in tokens.path.read_text()
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("wrong", ["", "x", "ensemble-00000000-" + "A" * 43, "\udcff", "é" * 50])
def test_a_wrong_token_is_rejected_and_never_shown(tokens: TokenFile, wrong: str) -> None:
    tokens.add("member", "lab/one")
    with pytest.raises(Unauthenticated) as caught:
        tokens.identify(wrong)
    assert not wrong or wrong not in str(caught.value).replace("ensemble", "")


def test_a_token_with_one_wrong_character_is_rejected(tokens: TokenFile) -> None:
    text, _ = tokens.add("admin")
    for place in (9, 20, len(text) - 1):
        changed = text[:place] + ("a" if text[place] != "a" else "b") + text[place + 1 :]
        with pytest.raises(Unauthenticated):
            tokens.identify(changed)


def test_a_token_expires(tokens: TokenFile, now: list[float]) -> None:
    text, _ = tokens.add("viewer", "lab", expires=now[0] + 10)
    identity = tokens.identify(text)
    assert tokens.stands(identity)
    now[0] += 10
    assert not tokens.stands(identity)
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.identify(text)


def test_a_running_service_sees_what_another_process_changed(tokens: TokenFile) -> None:
    running = TokenFile(tokens.path)
    with pytest.raises(Unauthenticated):
        running.identify("ensemble-00000000-" + "A" * 43)
    text, made = tokens.add("member", "lab/one")
    running._next_glance = 0
    identity = running.identify(text)
    tokens.remove(made.id)
    running._next_glance = 0
    assert not running.stands(identity)
    with pytest.raises(Unauthenticated):
        running.identify(text)


def test_a_file_that_becomes_invalid_changes_nothing(tokens: TokenFile) -> None:
    text, _ = tokens.add("member", "lab/one")
    running = TokenFile(tokens.path)
    running.identify(text)
    tokens.path.write_text("{ not json")
    running._next_glance = 0
    assert running.identify(text).member == "lab/one"
    assert "tokens.json" in running.trouble


@pytest.mark.parametrize(
    "change",
    [
        {"role": "root"},
        {"member": "lab/one"},
        {"namespace": ""},
        {"namespace": "a/b"},
        {"sha256": ""},
        {"expires": "never"},
        {"extra": 1},
    ],
)
def test_an_invalid_entry_makes_the_file_invalid(
    tokens: TokenFile, change: dict[str, object]
) -> None:
    tokens.add("controller", "lab")
    document = json.loads(tokens.path.read_text())
    document["tokens"][0].update(change)
    tokens.path.write_text(json.dumps(document))
    with pytest.raises(EnsembleError) as caught:
        tokens.tokens()
    assert caught.value.code == "bad-token-file"
    assert caught.value.exit_code == 2


def test_a_file_that_others_may_change_is_rejected(tokens: TokenFile) -> None:
    tokens.add("controller", "lab")
    os.chmod(tokens.path, 0o622)
    with pytest.raises(UsageError) as caught:
        tokens.tokens()
    assert "chmod 600" in (caught.value.hint or "")


def test_concurrently_added_tokens_are_all_kept(tokens: TokenFile) -> None:
    def add(number: int) -> None:
        for each in range(5):
            TokenFile(tokens.path).add("member", f"lab/m{number}-{each}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens.tokens()) == 20
    assert [each for each in os.listdir(tokens.path.parent) if each.startswith(".")] == []


def test_an_unknown_token_cannot_be_removed(tokens: TokenFile) -> None:
    with pytest.raises(UsageError, match="no token"):
        tokens.remove("00000000")


def test_a_new_token_is_accepted_at_once(tokens: TokenFile) -> None:
    running = TokenFile(tokens.path)
    for _ in range(20):
        text, made = tokens.add("viewer", "lab")
        assert running.identify(text) == made.identity
