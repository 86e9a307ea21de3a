"""Tests of executor options as flags of ``run``, ``resume`` and ``cancel``.

Annotations in the schemas define the flags. ``--help`` shows the flags, and the chosen executor
gets them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main
from ensemble_core.errors import PluginError
from ensemble_core.plugin.hookspecs import ExecutorPlugin
from ensemble_core.plugin.record_validation import check_record

FILE = 'rules: [{trigger: start, action: {name: submit, label: a}}]\njobs: [{name: a, command: "true"}]\n'
QUEUES = """
from ensemble_core import ExecutorError, ExecutorPlugin, hookimpl
from ensemble_testing import FakeExecutor


def record(name, **properties):
    class Queue(FakeExecutor):
        def open(self, run, emit):
            raise ExecutorError("closed")  # nothing is to run

    def build(options):
        print(name, dict(sorted(options.items())))
        return Queue()

    options = {"type": "object", "additionalProperties": False, "properties": properties}
    return ExecutorPlugin(name=name, summary="A queue", build=build, options=options)


@hookimpl
def ensemble_executors():
    flag = {"x-ensemble-flag": True}
    place = {"metavar": "PLACE", "help": "Where the queue is.", "commands": ["run", "resume"]}
    return [
        record(
            "north",
            lanes={"type": "integer", "description": "How many lanes.", **flag},
            place={"type": "string", "x-ensemble-flag": place},
            key={"type": "string", "x-ensemble-flag": {"path": True}},
            quick={"type": "boolean", **flag},
            output={"type": "string", **flag},
            inner={"type": "string"},
        ),
        record(
            "south",
            lanes={"type": "string", "description": "Names of lanes.", **flag},
            place={"type": "string", **flag},
        ),
    ]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("queues.py").write_text(QUEUES)
    Path("e.yaml").write_text(FILE)
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["run", "e.yaml", "--plugin", "queues.py", *args])


def built(result: Result) -> str:
    """Return the executor's options, from the line that the fixture's executor prints."""
    return result.output.splitlines()[0]


def test_annotated_option_is_a_flag_of_its_type(here: Path) -> None:
    result = run("--executor", "north", "--lanes", "3", "--quick", "--place", "top")
    assert built(result) == "north {'lanes': 3, 'place': 'top', 'quick': True}"
    assert built(run("--executor", "north")) == "north {}"


def test_shared_flag_is_parsed_by_the_chosen_executor(
    here: Path,
) -> None:
    assert built(run("--executor", "south", "--lanes", "3")) == "south {'lanes': '3'}"
    result = run("--executor", "north", "--lanes", "many")
    assert result.exit_code == 2
    assert "lanes" in result.stderr


def test_flag_of_another_executor_is_an_error_that_names_it(here: Path) -> None:
    result = run("--executor", "south", "--quick")
    assert result.exit_code == 2
    assert "--quick does not apply to executor 'south'" in result.stderr
    assert "use it with --executor north" in result.stderr


def test_path_flag_is_made_absolute_and_must_not_be_empty(here: Path) -> None:
    assert built(run("--executor", "north", "--key", "k")) == f"north {{'key': '{here / 'k'}'}}"
    result = run("--executor", "north", "--key", "")
    assert result.exit_code == 2
    assert "the file name is empty" in result.stderr


def test_option_of_the_command_takes_precedence(here: Path) -> None:
    assert built(run("--executor", "north", "--output", "out", "-o", "output=x")) == (
        "north {'output': 'x'}"
    )


@pytest.mark.parametrize("args", [["--inner", "x"], ["--lane", "1"]])
def test_options_without_annotation_are_not_flags(here: Path, args: list[str]) -> None:
    result = run("--executor", "north", *args)
    assert result.exit_code == 2
    assert f"No such option '{args[0]}'" in result.stderr.replace("option:", "option")


def test_flag_and_option_with_the_same_name_are_an_error(here: Path) -> None:
    result = run("--executor", "north", "--lanes", "1", "-o", "lanes=2")
    assert result.exit_code == 2
    assert "given twice" in result.stderr


def test_help_shows_flags_by_executor(here: Path) -> None:
    shown = " ".join(run("--help").output.split())
    assert "Options of executors north, south: --lanes" in shown
    assert "How many lanes (north); Names of lanes (south)." in shown
    assert "--place PLACE Where the queue is." in shown
    assert "Options of executor north: --key" in shown
    assert "--inner" not in shown
    assert "--slots" in shown


def test_command_takes_the_flags_annotated_for_it() -> None:
    assert "--slots" not in CliRunner().invoke(main, ["resume", "--help"]).output
    result = CliRunner().invoke(main, ["cancel", "last", "--slots", "3"])
    assert result.exit_code == 2
    assert "--slots" in result.stderr


def test_shell_completes_flags() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli"],
        capture_output=True,
        text=True,
        env={
            "_ENSEMBLE_COMPLETE": "bash_complete",
            "COMP_WORDS": "ensemble run --slo",
            "COMP_CWORD": "2",
        },
    )
    assert done.stdout == "plain,--slots\n"


def test_broken_plugin_file_is_reported_as_json(here: Path) -> None:
    Path("queues.py").write_text("1 / 0")
    result = run("--json", "--lanes", "3")
    assert result.exit_code == 2
    result = run("--json")
    assert json.loads(result.stdout.splitlines()[0])["code"] == "plugin-broken"


def test_plugin_file_is_executed_once(here: Path) -> None:
    with open("queues.py", "a") as file:
        file.write("\nprint('executed')\n")
    result = run("--executor", "north", "--lanes", "3")
    assert result.output.count("executed") == 1


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("yes", "a str, expected true, false or a mapping"),
        ({"metvar": "N"}, "'metvar' is unknown or invalid; known: commands, help"),
        ({"path": "yes"}, "'path' is unknown or invalid"),
        ({"commands": ["status"]}, "cannot add flags to the command 'status'"),
    ],
)
def test_wrong_flag_annotation_breaks_the_plugin(mark: object, says: str) -> None:
    schema = {"type": "object", "properties": {"lanes": {"x-ensemble-flag": mark}}}
    record = ExecutorPlugin(name="q", summary="q", build=lambda options: None, options=schema)
    with pytest.raises(PluginError) as caught:
        check_record(record)
    assert says in caught.value.what
