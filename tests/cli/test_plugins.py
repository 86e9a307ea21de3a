"""Tests of ``ensemble plugins``: installed and broken plugins, and descriptions of records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main

PLUGIN = """
from ensemble_core.plugin.hookspecs import ActionPlugin, ObserverPlugin, hookimpl

@hookimpl
def ensemble_actions():
    return [ActionPlugin(
        name="ring", summary="Ring a bell", run=lambda context: None,
        options={"type": "object", "additionalProperties": False, "required": ["times"],
                 "properties": {
                     "times": {"type": "integer", "minimum": 1, "description": "How often."},
                     "tone": {"enum": ["high", "low"], "default": "low"}}},
    )]
"""


def plugins(*args: str) -> Result:
    return CliRunner().invoke(main, ["plugins", *args])


@pytest.fixture
def ring(tmp_path: Path) -> str:
    file = tmp_path / "ring.py"
    file.write_text(PLUGIN)
    return str(file)


def test_list_shows_what_each_plugin_registers_in_aligned_columns(ring: str) -> None:
    result = plugins("list", "--plugin", ring)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    column = lines[0].index("registers")
    (row,) = [line for line in lines if line.startswith("ring ")]
    assert row[column:] == "action: ring"
    (local,) = [line for line in lines if line.startswith("local ")]
    assert local[column:] == "executor: local"


def test_list_as_json_has_the_same_content_with_versions(ring: str) -> None:
    document = json.loads(plugins("list", "--json", "--plugin", ring).output)
    by_name = {plugin["name"]: plugin for plugin in document["plugins"]}
    assert by_name["ring"]["records"] == {"action": ["ring"]}
    assert by_name["local"]["distribution"] == "ensemble-core"
    assert by_name["local"]["version"]


def test_broken_plugin_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "halved-1.5.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: halved\nVersion: 1.5\n")
    (information / "entry_points.txt").write_text("[ensemble]\nhalved = halved_module\n")
    misspelt = PLUGIN.replace("def ensemble_actions", "def ensemble_action")
    (tmp_path / "halved_module.py").write_text(misspelt)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = plugins("list")
    assert result.exit_code == 0
    (row,) = [line for line in result.output.splitlines() if line.startswith("halved ")]
    assert row.split()[:4] == ["halved", "halved", "1.5", "broken:"]
    assert "ensemble_actions" in result.output
    document = json.loads(plugins("list", "--json").output)
    (broken,) = [plugin for plugin in document["plugins"] if plugin["name"] == "halved"]
    assert "ensemble_actions" in broken["error"]


def test_show_documents_every_option(ring: str) -> None:
    result = plugins("show", "ring", "--plugin", ring)
    assert result.exit_code == 0
    assert "Ring a bell" in result.output
    assert "times (integer, required, at least 1)" in result.output
    assert "How often." in result.output
    assert 'tone (one of "high", "low", default "low")' in result.output


def test_show_of_a_shared_name_shows_all_kinds_or_the_given_one(ring: str) -> None:
    Path(ring).write_text(
        PLUGIN
        + "\nfrom ensemble_testing import FakeExecutor\n"
        + "from ensemble_core.plugin.hookspecs import ExecutorPlugin\n"
        + "@hookimpl\ndef ensemble_executors():\n"
        + "    return [ExecutorPlugin(name='ring', summary='r', build=lambda o: FakeExecutor())]\n"
    )
    both = json.loads(plugins("show", "ring", "--json", "--plugin", ring).output)
    assert [each["kind"] for each in both] == ["executor", "action"]
    one = json.loads(plugins("show", "action", "ring", "--json", "--plugin", ring).output)
    assert [each["kind"] for each in one] == ["action"]
    assert one[0]["distribution"] == "ring"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["show", "submti"], "did you mean 'submit'?"),
        (["show", "executor", "lcoal"], "did you mean 'local'?"),
        (["show", "queue", "local"], "kinds: executor, trigger"),
        (["show", "executor", "local", "more"], "expected [KIND] NAME"),
        (["show", "builtin-actions"], "the plugin registers submit"),
        (["lst"], "No such command 'lst'"),
    ],
)
def test_unknown_name_ends_with_2_and_a_suggestion(args: list[str], says: str) -> None:
    result = plugins(*args)
    assert result.exit_code == 2
    assert says in result.stderr
