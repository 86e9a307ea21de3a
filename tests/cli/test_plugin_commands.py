"""Tests of plugins' commands: they are listed without an import, and broken ones do no harm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import COMMANDS, main
from ensemble_core.cli.plugin_commands import GROUP, load_command, summary_of
from ensemble_core.plugin import distributions
from ensemble_core.plugin.distributions import entry_points
from ensemble_core.plugin.registry import KINDS

COMMAND = '''"""Ring a bell."""

import click

@click.command()
def bell():
    click.echo("ding")
'''


class Site:
    """Folder of installed distributions with one command each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, points: str, source: str = COMMAND) -> None:
        module = distribution.replace("-", "_")
        (self.folder / module).mkdir()
        (self.folder / module / "__init__.py").write_text("")
        (self.folder / module / "command.py").write_text(source)
        info = self.folder / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[ensemble.commands]\n{points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def ensemble(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def test_command_of_a_plugin_is_listed_in_help(site: Site) -> None:
    site.install("ensemble-bell", "bell = ensemble_bell.command:bell")
    listed = ensemble("--help").output
    assert listed.index("Commands of plugins:") < listed.index("bell ")
    assert "Ring a bell." in listed
    assert ensemble("bell").output == "ding\n"
    assert ensemble("ensemble-bell:bell").output == "ding\n"


def test_a_command_is_listed_with_the_first_words_of_its_help() -> None:
    """Help is listed from the docstring of the module, which is not imported."""
    for point in entry_points(GROUP):
        if point.distribution.startswith("ensemble-"):
            assert (load_command(point).help or "").startswith(summary_of(point).rstrip("."))


@pytest.mark.parametrize(
    "source", ["raise SystemExit(3)", '"""Breaks."""\nimport no_such_module', "bell = 5"]
)
def test_help_imports_no_commands_and_a_broken_one_names_its_plugin(
    site: Site, source: str
) -> None:
    site.install("ensemble-halved", "bell = ensemble_halved.command:bell", source)
    assert ensemble("--help").exit_code == 0
    assert "ensemble_halved.command" not in sys.modules
    result = ensemble("bell")
    assert result.exit_code == 2
    assert "command 'bell' of ensemble-halved 1.2 is broken" in result.stderr
    assert "Traceback" not in result.stderr
    assert ensemble("version").exit_code == 0
    listed = {
        row["name"]: row
        for row in json.loads(ensemble("plugins", "list", "--json").stdout)["plugins"]
    }
    assert listed["bell"]["error"]
    assert listed["bell"]["records"] == {}


def test_command_that_raises_is_an_internal_error_with_a_traceback(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    site.install(
        "ensemble-bell",
        "bell = ensemble_bell.command:bell",
        COMMAND.replace('click.echo("ding")', "1 / 0"),
    )
    result = ensemble("bell")
    assert result.exit_code == 70
    assert "ZeroDivisionError" in result.stderr


def test_ambiguous_command_names_both_plugins(
    site: Site,
) -> None:
    site.install("ensemble-big", "bell = ensemble_big.command:bell")
    site.install(
        "ensemble-small", "bell = ensemble_small.command:bell", COMMAND.replace("ding", "tinkle")
    )
    result = ensemble("bell")
    assert result.exit_code == 2
    assert "command 'bell' is claimed by ensemble-big and by ensemble-small" in result.stderr
    assert "'ensemble-big:bell' or 'ensemble-small:bell'" in result.stderr
    assert ensemble("ensemble-small:bell").output == "tinkle\n"
    assert "(of ensemble-big and of ensemble-small)" in ensemble("--help").output


def test_core_command_takes_precedence_with_a_warning(site: Site) -> None:
    site.install("ensemble-bell", "version = ensemble_bell.command:bell")
    assert ensemble("version").output.startswith("ensemble ")
    assert ensemble("ensemble-bell:version").output == "ding\n"
    warned = ensemble("plugins", "list").stderr
    assert "command 'version' of ensemble-bell has the name of a built-in" in warned


def test_misspelt_command_suggests_a_plugins_command(site: Site) -> None:
    site.install("ensemble-bell", "bell = ensemble_bell.command:bell")
    assert "Did you mean 'bell'?" in ensemble("bel").stderr
    found = main.shell_complete(click.Context(main), "be")
    assert [(item.value, item.help) for item in found] == [("bell", "Ring a bell.")]


def test_plugins_list_has_commands(site: Site) -> None:
    site.install("ensemble-bell", "bell = ensemble_bell.command:bell")
    listed = json.loads(ensemble("plugins", "list", "--json").output)["plugins"]
    assert {
        "name": "bell",
        "distribution": "ensemble-bell",
        "version": "1.2",
        "module": "ensemble_bell.command:bell",
        "builtin": False,
        "records": {"command": ["bell"]},
        "error": None,
    } in listed
    assert "command: bell" in ensemble("plugins", "list").output


def test_known_command_that_is_not_installed_gets_an_install_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "known.json"
    file.write_text(
        '{"ensemble-bell": {"install": "ensemble-core[bell]>=1.0", "command": ["bell"]}}'
    )
    monkeypatch.setattr(distributions, "FILE", file)
    result = ensemble("bell")
    assert result.exit_code == 2
    assert "It comes with ensemble-bell: pip install 'ensemble-core[bell]>=1.0'" in result.stderr


def test_missing_test_command_gets_an_install_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ensemble_core.cli.plugin_commands.entry_points", lambda group: [])
    result = ensemble("test", "study.ensemble-test.yaml")
    assert result.exit_code == 2
    assert "It comes with ensemble-testing: pip install " in result.stderr


def test_known_distributions_match_this_repository() -> None:
    for distribution, entry in json.loads(Path(distributions.FILE).read_text()).items():
        assert entry["install"].startswith(("ensemble-core[", distribution))
        assert set(entry) <= {"install", "command", *KINDS}
        assert not set(entry.get("command", ())) & set(COMMANDS)


def test_toolkit_imports_little_more_than_click() -> None:
    code = (
        "import ensemble_core.cli.toolkit, sys\n"
        "print([m for m in ('yaml', 'pluggy', 'sqlite3', 'river', 'jsonschema_rs') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_name_of_the_toolkit_exists() -> None:
    from ensemble_core.cli import toolkit

    named = set(re.findall(r"``(\w+)``", toolkit.__doc__ or ""))
    assert {"KeptRun", "JournalRow", "CommandGroup", "state_folder"} <= named
    for name in named - {"ensemble", "ensemble_core", "UsageError"}:
        assert getattr(toolkit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'KeptRnu'"):
        toolkit.KeptRnu  # noqa: B018


def test_ctrl_c_during_the_import_of_a_command_is_a_ctrl_c(site: Site) -> None:
    site.install(
        "slow-bell",
        "bell = slow_bell.command:bell",
        "raise RuntimeError('in a class') from KeyboardInterrupt()\n",
    )
    (point,) = (each for each in entry_points("ensemble.commands") if each.name == "bell")
    with pytest.raises(KeyboardInterrupt):
        load_command(point)
