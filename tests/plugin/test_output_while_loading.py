"""Plugins that print or exit when they are imported: messages name them, and others still work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ensemble_core.display.output_thread import Output
from ensemble_core.plugin.discovery import stdout_to_stderr

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


WRAPS = """
import time
from ensemble_core import ExecutorPlugin, ObserverPlugin, executor_record, hookimpl, observer_record

@hookimpl
def ensemble_observers():
    yield ObserverPlugin(
        name="inner", summary="Reads JSON",
        build=lambda job, options: observer_record("json-lines").build(job, options),
    )
    yield ObserverPlugin(
        name="outer", summary="Reads JSON with the other one",
        build=lambda job, options: observer_record("inner").build(job, options),
    )

@hookimpl
def ensemble_executors():
    yield ExecutorPlugin(
        name="mine", summary="Runs jobs here",
        build=lambda options: executor_record("local").build({"slots": 1, "grace": 1.0}),
        never=lambda group, options: executor_record("mine") and None,
    )
"""
WATCHED = """
jobs:
  - {name: work, command: "echo '{\\"loss\\": 3}'", observe: {outer: {}}}
limits: {output: 1MB}
rules:
  - trigger: start
    action: {name: submit, label: work}
  - {trigger: metric, name: last.work-loss, when: 3, action: {name: log, message: seen}}
"""


def test_functions_of_a_plugin_file_find_its_records_while_jobs_run(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(WATCHED)
    (tmp_path / "wraps.py").write_text(WRAPS)
    begun = ensemble(tmp_path, *["run", "--plugin", "wraps.py", "--executor", "mine", "e.yaml"])
    output, errors = begun.communicate(timeout=60)
    assert begun.returncode == 0, output + errors
    assert "seen" in output
    assert "warning" not in errors


def test_lines_of_a_run_stay_on_stdout_while_another_thread_loads_plugins(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with open(1, "w", closefd=False) as stdout:
        output = Output(lambda item: (), stdout, sys.stderr, redirects=False)
        with output:
            with stdout_to_stderr():
                output.say("a line")
                output.close(patience=0.5)  # it may have written the line until then
            output.close()
    assert capfd.readouterr() == ("a line\n", "")
