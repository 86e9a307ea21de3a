"""Plugins that print or exit when they are imported: messages name them, and others still work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
jobs: [{name: work, command: "true"}]
rules: [{trigger: start, action: {name: log, message: here}}]
"""
GOOD = """
from ensemble_core import ActionPlugin, hookimpl

@hookimpl
def ensemble_actions():
    yield ActionPlugin(name="nothing", summary="Does nothing", plan=lambda firing, options: ())
"""
PRINTS = """
import os, subprocess, sys
print("a banner")
os.write(1, b"of compiled code\\n")
subprocess.run([sys.executable, "-c", "print('of a child')"])
"""


def ensemble(folder: Path, *args: str, path: Path | None = None) -> subprocess.Popen[str]:
    paths = os.pathsep.join(map(str, filter(None, (path, os.environ.get("PYTHONPATH")))))
    return subprocess.Popen(
        [sys.executable, "-m", "ensemble_core.cli", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def run(folder: Path, *args: str, path: Path | None = None) -> subprocess.Popen[str]:
    (folder / "e.yaml").write_text(FILE)
    words = ("run", "e.yaml", "--executor", "local", "--no-journal", "--json")
    return ensemble(folder, *words, *args, path=path)


def single(folder: Path, code: str) -> tuple[str, str]:
    (folder / "odd.py").write_text(code + GOOD)
    return "--plugin", "odd.py"


def install(folder: Path, code: str) -> Path:
    """Install a distribution with a plugin in a separate folder."""
    site = folder / "site"
    about = site / "ensemble_odd-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: ensemble-odd\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ensemble]\nodd = odd_plugin\n")
    (site / "odd_plugin.py").write_text(code + GOOD)
    return site


def test_output_of_a_plugin_goes_to_stderr_with_a_warning(tmp_path: Path) -> None:
    code, out, err = done(run(tmp_path, *single(tmp_path, PRINTS)))
    assert code == 0, err
    assert all(json.loads(line) for line in out.splitlines())
    for said in ("a banner", "of compiled code", "of a child"):
        assert said in err
    assert "plugin 'odd.py' prints while it is loaded" in err

    site = install(tmp_path, PRINTS)
    code, out, err = done(ensemble(tmp_path, "plugins", "list", "--json", path=site))
    assert code == 0, err
    (told,) = json.loads(out)["warnings"]
    assert told.startswith("plugin 'odd' of ensemble-odd 1.0 prints")


def test_plugin_file_that_exits_is_an_error(tmp_path: Path) -> None:
    ended, _, err = done(run(tmp_path, *single(tmp_path, "import sys\nsys.exit(0)\n")))
    assert ended == 2
    assert "odd.py" in err
    assert "it tried to exit the program (exit code 0)" in err


def test_installed_plugin_that_exits_is_listed_as_broken(tmp_path: Path) -> None:
    site = install(tmp_path, "import sys\nsys.exit(0)\n")
    ended, out, err = done(run(tmp_path, path=site))
    assert ended == 0
    assert out  # the command did not need the plugin
    assert "ensemble-odd" in err
    ended, out, _ = done(ensemble(tmp_path, "plugins", "list", path=site))
    assert ended == 0
    assert "it tried to exit the program (exit code 0)" in " ".join(out.split())


@pytest.mark.parametrize("path", ["", ":", None])
def test_command_imports_nothing_from_the_current_folder(tmp_path: Path, path: str | None) -> None:
    """Others may be able to write there."""
    (tmp_path / "yaml.py").write_text("open('ran', 'w')")
    (tmp_path / "evil-1.dist-info").mkdir()
    (tmp_path / "evil-1.dist-info/METADATA").write_text("Name: ensemble-evil\nVersion: 1\n")
    (tmp_path / "evil-1.dist-info/entry_points.txt").write_text("[ensemble]\nevil = evil\n")
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    (tmp_path / "e.yaml").write_text(FILE)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = path
    words = [sys.executable, "-m", "ensemble_core.cli", "validate", "e.yaml"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_command_imports_from_the_current_folder_if_the_path_names_it(tmp_path: Path) -> None:
    (tmp_path / "local_module.py").write_text("")
    (tmp_path / "plugin.py").write_text(f"import local_module\n{GOOD}")
    (tmp_path / "e.yaml").write_text(FILE)
    words = [sys.executable, "-m", "ensemble_core.cli", "validate", "e.yaml", "--plugin"]
    env = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run([*words, "plugin.py"], cwd=tmp_path, env=env, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
