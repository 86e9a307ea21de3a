"""The end of the program without the teardown of its modules, and when the teardown remains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from ensemble_core import StatisticPlugin, hookimpl

file = open({file!r}, "w")
file.write("one line")


@hookimpl
def ensemble_statistics():
    return []
"""
#: A script like the installed one, with an object that says when the modules are torn down.
SCRIPT = """
import atexit, sys
class Module:
    def __del__(self, write=sys.__stderr__.write): write("torn down")
module = Module()
sys.argv = ["ensemble", *sys.argv[1:]]
from ensemble_core.cli.entry import main
"""


def run(words: list[str], script: str = f"{SCRIPT}\nmain()") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_the_modules_are_not_torn_down() -> None:
    code, out, err = run(["--help"])
    assert (code, err) == (0, "")
    assert out.startswith("Usage: ensemble")
    code, out, err = run(["validate", "missing.yaml"])
    assert (code, out) == (2, "")
    assert "missing.yaml" in err
    assert "torn down" not in err


def test_a_file_that_a_plugin_did_not_close_is_complete(tmp_path: Path) -> None:
    file, plugin = tmp_path / "written", tmp_path / "plugin.py"
    plugin.write_text(PLUGIN.format(file=str(file)), encoding="utf-8")
    code, _, err = run(["schema", "--plugin", str(plugin)])
    assert (code, err) == (0, "torn down")
    assert file.read_text(encoding="utf-8") == "one line"


def test_functions_for_the_end_that_were_registered_before_are_called() -> None:
    script = f"{SCRIPT}\natexit.register(print, 'the last line')\nmain()"
    code, out, err = run(["--help"], script)
    assert (code, err) == (0, "torn down")
    assert out.endswith("the last line\n")


def test_a_program_that_goes_on_after_the_command_has_its_own_end() -> None:
    script = (
        f"{SCRIPT}\ndef call():\n    try: main()\n    except SystemExit: pass\ncall()\nsys.exit(3)"
    )
    code, _, err = run(["--help"], script)
    assert (code, err) == (3, "torn down")
