"""Names that two packages claim: errors and ``plugins list`` name both packages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main

STATISTIC = """
from ensemble_core.plugin.hookspecs import (
    Fragment, SourcePlugin, StatisticPlugin, TriggerPlugin, hookimpl,
)
from ensemble_core.model.rules import Trigger

class Middle:
    def update(self, value): self.value = value
    def get(self): return self.value

@hookimpl
def ensemble_statistics():
    yield StatisticPlugin(name="middle", summary="m", build=lambda options: Middle())

@hookimpl
def ensemble_triggers():
    yield TriggerPlugin(name="tide", summary="t", build=lambda n, o: Trigger(events=("tide",)))

@hookimpl
def ensemble_sources():
    yield SourcePlugin(name="list", summary="s", expand=lambda entry, view: Fragment())
"""
FILE = """\
jobs: [{name: sim, command: 'true'}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {RULE, action: {name: log, message: high}}
"""
CLAIMED = "is claimed by ensemble-bar and by ensemble-foo"
CHOOSE = "write 'ensemble-bar:NAME' or 'ensemble-foo:NAME' to choose, or uninstall one of them"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder, with two packages on the path that claim the same names."""
    for name in ("foo", "bar"):
        (tmp_path / f"ensemble_{name}.py").write_text(STATISTIC)
        info = tmp_path / f"ensemble_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: ensemble-{name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[ensemble]\n{name} = ensemble_{name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("ensemble_foo", "ensemble_bar"):  # other tests have modules of these names
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("rule", "kind", "name"),
    [
        ("trigger: metric, name: middle.sim-duration, when: '> 3'", "statistic", "middle"),
        ("trigger: job-done, name: sim, when: middle.duration > 3", "statistic", "middle"),
        ("trigger: tide", "trigger", "tide"),
    ],
)
def test_error_about_an_ambiguous_name_names_both_packages(
    rule: str, kind: str, name: str, study: Path
) -> None:
    (study / "f.yaml").write_text(FILE.replace("RULE", rule))
    told = CliRunner().invoke(main, ["validate", "f.yaml"])
    assert told.exit_code == 2
    words = " ".join(told.output.split())
    assert f"{kind} {name!r} {CLAIMED}" in words
    assert CHOOSE.replace("NAME", name) in words
    own = FILE.replace("RULE", rule.replace(name, f"ensemble-foo:{name}"))
    (study / "f.yaml").write_text(own)
    if kind != "statistic" or "metric" in rule:
        assert CliRunner().invoke(main, ["validate", "f.yaml"]).exit_code == 0


def test_entry_of_an_ambiguous_source_names_both_packages(study: Path) -> None:
    (study / "f.yaml").write_text("jobs: [{list: a.txt}]\n")
    told = CliRunner().invoke(main, ["validate", "f.yaml"])
    assert told.exit_code == 2
    words = " ".join(told.output.split())
    assert "f.yaml:1:9: the source 'list' is ambiguous" in words
    assert CLAIMED in words
    assert CHOOSE.replace("NAME", "list") in words


def test_statistic_of_the_file_may_use_an_ambiguous_name(study: Path) -> None:
    own = "statistics: {middle: {statistic: 'ensemble-bar:middle'}}\n"
    rule = "trigger: metric, name: middle.sim-duration, when: '> 3'"
    (study / "f.yaml").write_text(FILE.replace("RULE", rule) + own)
    told = CliRunner().invoke(main, ["validate", "f.yaml"])
    assert told.exit_code == 0, told.output


def test_plugins_list_shows_every_clash(study: Path) -> None:
    told = CliRunner().invoke(main, ["plugins", "list"])
    words = " ".join(told.output.split())
    for kind, name in (("statistic", "middle"), ("trigger", "tide"), ("source", "list")):
        assert words.count(f"{kind} {name!r} {CLAIMED}; {CHOOSE.replace('NAME', name)}") == 1
    listed = json.loads(CliRunner().invoke(main, ["plugins", "list", "--json"]).output)
    assert [text for text in listed["warnings"] if f"'middle' {CLAIMED}" in text]
