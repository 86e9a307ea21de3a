"""``--plugin FILE.py``: files as plugins, and the errors of broken ones."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from ensemble_core.errors import PluginError
from ensemble_core.plugin.discovery import discover

PING = """\
from dataclasses import dataclass

from ensemble_core import ActionPlugin, hookimpl


@dataclass
class Message:
    text: str


@hookimpl
def ensemble_actions():
    text = Message("{summary}").text
    return [ActionPlugin(name="ping", summary=text, run=lambda context: None)]
"""


def write(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def refused(path: Path) -> PluginError:
    before = set(sys.modules)
    with pytest.raises(PluginError) as caught:
        discover([path])
    left = {name for name in set(sys.modules) - before if name.startswith("ensemble_plugin_")}
    assert not left
    assert caught.value.exit_code == 2
    return caught.value


def test_file_is_loaded_as_a_plugin(tmp_path: Path) -> None:
    file = write(tmp_path / "ping.py", PING.format(summary="tell somebody"))
    registry = discover([file])
    assert registry.lookup("action", "ping").summary == "tell somebody"
    assert registry.lookup("action", "ping:ping").summary == "tell somebody"
    plugin = registry.plugins[-1]
    assert (plugin.name, plugin.distribution, plugin.module) == ("ping", "ping", str(file))


def test_file_is_compiled_each_time_without_cached_bytecode(tmp_path: Path) -> None:
    file = tmp_path / "ping.py"
    for summary in ("one", "two"):
        write(file, PING.format(summary=summary))
        assert discover([file]).lookup("action", "ping").summary == summary
    assert [path.name for path in tmp_path.iterdir()] == ["ping.py"]


def test_file_needs_no_py_suffix(tmp_path: Path) -> None:
    file = write(tmp_path / "ping.txt", PING.format(summary="x"))
    assert "ping" in discover([file]).actions


def test_file_given_twice_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "ping.py", PING.format(summary="x"))
    (tmp_path / "link.py").symlink_to(file)
    monkeypatch.chdir(tmp_path)
    registry = discover([file, "ping.py", tmp_path / "link.py"])
    assert registry.lookup("action", "ping").summary == "x"


def test_two_files_with_the_same_name_clash(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "ping.py", PING.format(summary=folder))
    registry = discover([tmp_path / "a" / "ping.py", tmp_path / "b" / "ping.py"])
    with pytest.raises(PluginError) as caught:
        registry.lookup("action", "ping")
    assert str(tmp_path / "a" / "ping.py") in str(caught.value)
    assert str(tmp_path / "b" / "ping.py") in str(caught.value)


def test_file_cannot_pose_as_a_built_in(tmp_path: Path) -> None:
    source = PING.format(summary="mine").replace('"ping"', '"submit"')
    file = write(tmp_path / "ensemble-core.py", source)
    registry = discover([file])
    assert registry.lookup("action", "submit").summary != "mine"
    assert registry.lookup("action", "ensemble-core.py:submit").summary == "mine"
    assert any("built-in" in text for text in registry.warnings)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    error = refused(tmp_path / "nowhere.py")
    assert "nowhere.py" in error.what
    assert "does not exist" in error.what
    assert "needs the plugin files that the run was started with" in (error.hint or "")


def test_folder_is_an_error(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path).what


def test_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "is not a regular file" in refused(tmp_path / "pipe.py").what
    assert "is not a regular file" in refused(Path("/dev/zero")).what


def test_syntax_error_is_reported_with_its_place(tmp_path: Path) -> None:
    file = write(tmp_path / "bad.py", "x = 1\ny = (2\ndef f(:\n    pass\n")
    error = refused(file)
    assert error.where is not None
    assert error.where.file == str(file)
    assert error.where.line in (2, 3)
    assert error.where.column > 0
    assert "does not parse" in error.what


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"x = 1\0\n"])
def test_binary_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.py"
    file.write_bytes(content)
    error = refused(file)
    assert "does not parse" in error.what
    assert error.where is not None
    assert error.where.file == str(file)


def test_import_error_is_reported_with_its_place_and_a_hint(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "bad.py", "import os\n\nimport no_such_module.deep\n"))
    assert error.where is not None
    assert error.where.line == 3
    assert "No module named 'no_such_module'" in error.what
    assert error.hint == "install the package that provides the module 'no_such_module'"


def test_import_of_a_module_in_the_same_folder_gets_a_hint(tmp_path: Path) -> None:
    write(tmp_path / "neighbor.py", "")
    error = refused(write(tmp_path / "bad.py", "import neighbor\n"))
    assert "cannot import modules of its folder" in (error.hint or "")


def test_error_during_the_import_is_reported_with_its_place(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "bad.py", "def f():\n    return 1 / 0\n\nf()\n"))
    assert error.where is not None
    assert error.where.line == 2
    assert "ZeroDivisionError" in error.what


def test_exit_during_a_load_does_not_end_the_program(tmp_path: Path) -> None:
    assert (
        "tried to exit the program"
        in refused(write(tmp_path / "bad.py", "raise SystemExit(3)\n")).what
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1\n", "no hook found"),
        ("def ensemble_actions():\n    return []\n", "not marked with @hookimpl"),
        (
            "from ensemble_core import hookimpl\n\n@hookimpl\ndef ensemble_action():\n    pass\n",
            "did you mean 'ensemble_actions'?",
        ),
    ],
)
def test_file_that_registers_nothing_is_rejected(tmp_path: Path, source: str, reason: str) -> None:
    assert reason in refused(write(tmp_path / "bad.py", source)).what


@pytest.mark.usefixtures("permissions_hold")
def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "bad.py", "")
    file.chmod(0)
    assert "cannot be read" in refused(file).what
