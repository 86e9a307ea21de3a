"""Runs recorded by version 1.0 can still be shown, replayed and resumed.

The commands must print the same as version 1.0. A run is only resumed if its executor is installed.
``data/version-1.0/README.md`` describes how the runs were made.
"""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.replay import recover
from ensemble_core.journal.snapshot import load
from ensemble_core.plugin.discovery import discover

DATA = Path(__file__).with_name("data") / "version-1.0"
#: Names of runs, which begin with the executor. Last are those that need plugins, which tests of the
#: core alone do not have.
RUNS = sorted(
    (path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz")),
    key=lambda name: (name.startswith(("remote", "mini")), name),
)
ELSEWHERE = ("flux-killed", "remote-killed", "slurm-killed")
#: The state folder when version 1.0 printed its output.
THEN = "/home/user/state"
#: The line about snapshots in a replay's output depends on the installed versions.
SNAPSHOTS = ("snapshots", "snapshots_of_other_versions")
#: Patterns of the output of `ensemble why` in version 1.0, with the current wording.
REWORDED = (
    ("so it is exhausted", "so its limit is reached"),
    (r"nothing that it waits for (\(.*?\)) happened after", r"no matching event \1 after"),
    (r"never woken: there was no (.+?)(?=, only of|\.$)", r"never triggered: no \1 occurred"),
    ("only of other groups", "only for other groups"),
    (r"\(at last ", "(last "),
    (r"disabled: rule (\S+) did that at", r"disabled: by rule \1 at"),
)


@dataclass
class Recorded:
    """One unpacked run: its state folder, and the output of version 1.0."""

    name: str
    state: Path

    @property
    def tag(self) -> str:
        return (self.state / "TAG").read_text().strip()

    @property
    def folder(self) -> Path:
        return self.state / "runs" / self.tag

    @property
    def journal(self) -> Path:
        return self.folder / NAME

    def expected(self, name: str) -> str:
        return (self.state / "expected" / name).read_text()

    def ensemble(self, *args: str, code: int | None = 0) -> str:
        """Return a command's output, with the original path of the state folder."""
        result = CliRunner().invoke(main, [*args, "--state", str(self.state)])
        assert code is None or result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.output.replace(str(self.state), THEN)


def marked(names: Sequence[str]) -> list[Any]:
    """Return runs as test parameters, with marks for those that need plugins."""
    return [
        pytest.param(
            name, marks=[pytest.mark.checkout] if name.startswith(("remote", "mini")) else []
        )
        for name in names
    ]


@pytest.fixture(params=marked(RUNS))
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Recorded:
    return unpacked(request.param, tmp_path)


def unpacked(name: str, folder: Path) -> Recorded:
    with tarfile.open(DATA / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return Recorded(name, folder)


def without_what_is_new(report: dict[str, Any]) -> None:
    """Remove parts that version 1.0 did not print: progress, causes of failures, instances of rules
    and their algorithms."""
    progress = report.pop("progress")
    assert progress["done"] <= progress["planned"]
    for group in report["groups"]:
        assert sum(group.pop("causes").values()) == group["failed"]
    for rule in report["rules"]:
        assert rule.pop("passed_over") == 0
        assert rule.pop("instance") is None
        for name in ("held_back", "lasts", "longest", "looks"):
            rule.pop(name)
        # Version 1.0 considered it once more, when a function added a rule on the same metric.
        rule["woken"] += rule["id"] == "shrink"


def test_there_is_a_run_of_each_executor() -> None:
    executors = {name.split("-")[0] for name in RUNS}
    assert executors == {"local", "minicluster", "flux", "slurm", "remote"}


def test_the_status_is_unchanged(recorded: Recorded) -> None:
    said = json.loads(recorded.ensemble("status", "--json", recorded.tag))
    without_what_is_new(said["report"])
    assert said.pop("left") is False
    assert said.pop("profile") is None
    assert said == json.loads(recorded.expected("status.json"))


def test_the_events_are_unchanged(recorded: Recorded) -> None:
    said = recorded.ensemble("events", "--json", recorded.tag)
    assert said.splitlines() == recorded.expected("events.jsonl").splitlines()


@cache
def different_rules() -> dict[str, list[str]]:
    """Return the rules of each run whose explanation differs from those of all earlier rules.

    Numbers and the rule's id are ignored.
    """
    seen: set[str] = set()
    found: dict[str, list[str]] = {name: [] for name in RUNS}
    for name in RUNS:
        with tarfile.open(DATA / f"{name}.tar.xz") as tar:
            explained = json.load(tar.extractfile("expected/why.json"))  # type: ignore[arg-type]
        for rule, explanations in explained.items():
            forms = {span["verdict"] for each in explanations for span in each["spans"]}
            for each in explanations:
                forms.add(re.sub(r"[\d.]+", "#", each["conclusion"]).replace(rule, "RULE"))
            if not forms <= seen:
                found[name].append(rule)
            seen |= forms
    assert all(found.values())
    return found


def test_the_explanations_of_rules_are_unchanged(recorded: Recorded) -> None:
    expected = json.loads(recorded.expected("why.json"))
    for rule in different_rules()[recorded.name]:
        wanted = expected[rule]
        said = recorded.ensemble("why", "--json", recorded.tag, rule, code=None)
        found = [json.loads(line) for line in said.splitlines()]
        for span in (span for one in found for span in one["spans"]):
            del span["job"], span["parameters"]  # missing in version 1.0
        for one in wanted:
            for then, now in REWORDED:
                one["conclusion"] = re.sub(then, now, one["conclusion"])
            # Version 1.0 also listed the group of a disabled rule.
            said, never, others = one["conclusion"].partition("it was never triggered")
            if never and "disabled" in one["verdicts"] and "refine 2" in others:
                why = "it was disabled twice when its trigger matched"
                one["conclusion"] = f"{said}{why}."
        assert found == wanted


def test_a_replay_makes_the_same_decisions(recorded: Recorded) -> None:
    said = json.loads(recorded.ensemble("replay", "--json", recorded.tag))
    wanted = json.loads(recorded.expected("replay.json"))
    assert said["same"] is True
    without_what_is_new(said["report"])
    assert {k: v for k, v in said.items() if k not in SNAPSHOTS} == {
        k: v for k, v in wanted.items() if k not in SNAPSHOTS
    }


def test_its_snapshots_are_ignored(recorded: Recorded) -> None:
    """They have no checksums and another layout."""
    registry = discover()

    def loading(text: Any) -> Any:
        return load_text(text.text, registry, file=text.file, overrides=text.overrides)

    with Journal(recorded.journal) as journal:
        kept = journal._connection.execute("SELECT seq, maker, state FROM snapshots").fetchall()
        assert kept
        assert not list(journal.snapshots())
        assert journal.damage is None
        for seq, _, state in kept:
            held = [text for text in journal.texts() if text.seq < seq]
            assert load(state, loading(held[-1])) is None
        found = recover(journal, loading, kept[0][1])
        assert found.replayed == found.seq == journal.last()


def moved(recorded: Recorded, work: Path) -> None:
    """Replace the recorded start folder of the run by ``work``."""
    with sqlite3.connect(recorded.journal) as journal:
        here = {"cwd": work, "output": recorded.folder / "output", "file": work / "study.yaml"}
        for key, place in here.items():
            value = json.dumps(str(place))
            journal.execute("UPDATE about SET value = ? WHERE key = ?", (value, key))
        journal.execute("UPDATE texts SET file = ?", (str(work / "study.yaml"),))
    journal.close()
    for ledger in recorded.folder.rglob("local.log"):
        host = json.dumps(socket.gethostname())
        ledger.write_text(ledger.read_text().replace('["k","node"', f'["k",{host}'))


@pytest.mark.parametrize("name", marked(["local-killed", "local-outlived", "minicluster-killed"]))
def test_a_resume_ends_as_in_version_1_0(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = unpacked(name, tmp_path)
    work = tmp_path / "work"
    moved(recorded, work)
    monkeypatch.chdir(work)
    recorded.ensemble("resume", "--json", recorded.tag)
    wanted = json.loads(recorded.expected("resume-status.json"))
    said = json.loads(recorded.ensemble("status", "--json", recorded.tag))
    assert (said["state"], said["exit_code"]) == ("ended", wanted["exit_code"])
    for group, then in zip(said["report"]["groups"], wanted["report"]["groups"], strict=True):
        for key in ("name", "submitted", "waiting", "running", "success", "failed", "cancelled"):
            assert group[key] == then[key], (group["name"], key)
    replayed = json.loads(recorded.ensemble("replay", "--json", recorded.tag))
    assert replayed["same"] is True


@pytest.mark.parametrize("name", marked(ELSEWHERE))
def test_without_its_queue_a_resume_fails_and_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = unpacked(name, tmp_path)
    work = tmp_path / "work"
    moved(recorded, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("FLUX_URI", raising=False)
    events = recorded.ensemble("events", "--json", recorded.tag)
    said = recorded.ensemble("resume", recorded.tag, code=None)
    assert "error: " in said
    assert "hint: " in said
    assert recorded.ensemble("events", "--json", recorded.tag) == events
    assert json.loads(recorded.ensemble("status", "--json", recorded.tag))["state"] == "interrupted"
