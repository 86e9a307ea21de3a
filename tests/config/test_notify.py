"""Errors in rules on ``end`` and in the addresses of ``notify``."""

from __future__ import annotations

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover


def problem(rule: str) -> str:
    text = f"""
jobs: [{{name: g, command: "true"}}]
rules:
  - {{trigger: start, action: {{name: submit, label: g}}}}
  - {rule}
"""
    with pytest.raises(EnsembleError) as found:
        load_text(text, discover(), file="e.yaml")
    return str(found.value)


def to(address: str) -> str:
    return f"{{trigger: end, action: {{name: notify, message: x, to: {address}}}}}"


@pytest.mark.parametrize(
    ("address", "words", "hint"),
    [
        ("bel", "e.yaml:5:59: 'to' is 'bel', expected one of bell, desktop", "did you mean 'bell'"),
        ("[bell, slack]", "item 2 of 'to' is 'slack', expected one of bell, desktop", ""),
        ("[]", "'to' is empty", ""),
        ("3", "'to' is the number 3, expected", ""),
        ("{slack: me}", "unknown key 'slack' in 'to'", "known: mail, webhook, format"),
        ("{mail: me, webhook: HOOK}", "'to' is a mapping, which is not allowed", "a list of two"),
        ("{mail: me, format: text}", "'to' has no 'webhook'", ""),
        ("{webhook: HOOK, format: xml}", "expected one of json, discord, text", ""),
        (
            '{webhook: "https://discord.com/api/webhooks/1/secret"}',
            "a URL would be stored in the journal",
            "webhook: TEAM_HOOK",
        ),
        ("{webhook: discord.com/x}", "a URL would be stored in the journal", "webhook: TEAM_HOOK"),
        ("{webhook: TEAM-HOOK}", "not the name of an environment variable", "webhook: TEAM_HOOK"),
        ('{mail: "me@uni.edu, all@uni.edu"}', "is not a mail address", "mail: me@uni.edu"),
        ('{mail: "me@uni.edu\\nBcc: all"}', "is not a mail address", ""),
        ("{mail: -Cfile}", "is not a mail address", ""),
    ],
)
def test_wrong_address_is_reported_with_its_place(address: str, words: str, hint: str) -> None:
    told = problem(to(address))
    assert words in told
    assert hint in told


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "{trigger: end, action: {name: submit, label: g}}",
            "e.yaml:5:35: the action 'submit' is not possible after the end of the run",
        ),
        (
            "{trigger: end, action: {name: terminate}}",
            "with the trigger 'end', use one of these actions: log, notify",
        ),
        ("{trigger: end, each: job, action: {name: log, message: x}}", "'each: job'"),
        ("{trigger: end, when: exit_cod > 0, action: {name: log, message: x}}", "exit_code"),
        ("{trigger: end, action: {name: log, message: '{stat}'}}", "did you mean {state}?"),
        ("{trigger: start, action: {name: notify, to: bell}}", "has no 'message'"),
    ],
)
def test_wrong_rule_on_end_is_reported_with_its_place(rule: str, words: str) -> None:
    assert words in problem(rule)


def test_file_with_only_an_end_rule_cannot_start() -> None:
    text = """
jobs: [{name: g, command: "true"}]
rules: [{trigger: end, action: {name: log, message: x}}]
"""
    with pytest.raises(EnsembleError, match="no rule can start the run"):
        load_text(text, discover(), file="e.yaml", must_begin=True)
