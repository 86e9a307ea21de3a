"""Tests of the ``ensemble`` command: help, version, suggestions, errors and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ensemble_core.cli import command_group
from ensemble_core.cli.main import COMMANDS, main
from ensemble_core.errors import is_interrupt


def ensemble(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", *args],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, **environ},
    )


def test_help_lists_every_command_with_its_summary() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, text in COMMANDS.items():
        assert text in result.output
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.get_short_help_str(200).startswith(text.rstrip("."))


@pytest.mark.parametrize("args", [["version"], ["--version"]])
def test_version_is_that_of_the_installed_distribution(args: list[str]) -> None:
    from importlib.metadata import version

    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0
    assert result.output.startswith(f"ensemble {version('ensemble-core')}, Python ")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["study.yaml"], "Did you mean 'ensemble run study.yaml'?"),
        (["zzz"], "Commands are init, run, resume"),
        (["run", "x.yaml", "--exectuor", "local"], "--executor"),
        (["run"], "Missing argument 'FILE'"),
        (["validate"], "Missing argument 'FILE...'"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["run", "x.yaml", "--quiet", "--json"], "cannot be combined with"),
        (["run", "x.yaml", "--slots", "many"], "not a valid integer"),
    ],
)
def test_wrong_command_line_ends_with_2_and_a_suggestion(args: list[str], says: str) -> None:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_completion_scripts_name_the_command() -> None:
    for shell in ("bash", "zsh", "fish"):
        result = CliRunner().invoke(main, ["completion", shell])
        assert result.exit_code == 0
        assert "_ENSEMBLE_COMPLETE" in result.output
        assert "ensemble" in result.output


def test_commands_complete_in_bash() -> None:
    result = ensemble(_ENSEMBLE_COMPLETE="bash_complete", COMP_WORDS="ensemble va", COMP_CWORD="1")
    assert "validate" in result.stdout


def test_internal_error_ends_with_70_and_saves_the_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @click.command()
    def version() -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("ensemble_core.cli.commands.version.version", version)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("ENSEMBLE_DEBUG", raising=False)
    result = CliRunner().invoke(main, ["version"])
    assert result.exit_code == command_group.FAULT == 70
    assert "ZeroDivisionError: surprise" in result.stderr
    assert "Traceback" not in result.stderr
    (kept,) = tmp_path.glob("ensemble-fault-*.txt")
    assert str(kept) in result.stderr
    assert "Traceback" in kept.read_text()
    monkeypatch.setenv("ENSEMBLE_DEBUG", "1")
    assert "Traceback" in CliRunner().invoke(main, ["version"]).stderr


def test_ctrl_c_during_the_creation_of_a_class_is_a_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class CtrlC:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def imported() -> None:
        type("Imported", (), {"field": CtrlC()})

    monkeypatch.setattr("ensemble_core.cli.commands.version.text", imported)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            main(["version"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("defect", [ZeroDivisionError("surprise"), OSError(5, "surprise")])
def test_error_after_ctrl_c_is_saved_silently(
    defect: Exception,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise defect

    monkeypatch.setattr("ensemble_core.cli.commands.version.text", stopped)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("ENSEMBLE_DEBUG", raising=False)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            main(["version"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == 130
    assert capsys.readouterr().err == ""
    (kept,) = tmp_path.glob("ensemble-fault-*.txt")
    assert "surprise" in kept.read_text()


def test_circular_chain_of_errors_does_not_hang() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert not is_interrupt(one)


def test_closed_pipe_causes_no_traceback() -> None:
    command = f"{sys.executable} -m ensemble_core.cli schema --indent 8 | head -1"
    result = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert result.stdout == "{\n"
    assert result.stderr == ""
    assert result.returncode in (0, 141)


def test_schema_is_json_with_the_requested_indent() -> None:
    wide = CliRunner().invoke(main, ["schema", "--indent", "4"]).output
    line = CliRunner().invoke(main, ["schema", "--indent", "0"]).output
    assert json.loads(wide) == json.loads(line)
    assert len(line.splitlines()) == 1
    assert wide.splitlines()[1].startswith('    "')
    assert json.loads(line)["properties"]["jobs"]


def test_ctrl_c_ends_a_run_during_imports(tmp_path: Path) -> None:
    """The interpreter drops some KeyboardInterrupts, and then the run might never end."""
    (tmp_path / "deaf.py").write_text(
        "import sys, time\n"
        "print('importing', file=sys.stderr, flush=True)\n"
        "while True:\n"
        "    try: time.sleep(1)\n"
        "    except BaseException: pass\n"
    )
    (tmp_path / "e.yaml").write_text(
        "jobs: [{name: a, command: x}]\n"
        "rules: [{trigger: start, action: {name: submit, label: a}}]\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", "--plugin", "deaf.py"],
        cwd=tmp_path,
        env={**os.environ, "ENSEMBLE_STATE": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    finally:
        process.kill()


def test_signal_handler_is_restored_for_a_calling_program(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert CliRunner().invoke(main, ["run", str(tmp_path / "absent.yaml")]).exit_code == 2
    assert signal.getsignal(signal.SIGINT) is before


IMPORTS = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        print(name, flush=True)
        if name == chosen:
            os.kill(os.getpid(), signal.SIGINT)

chosen, script = sys.argv[1:]
sys.meta_path.insert(0, Finder())
sys.argv = ["ensemble", "version"]
runpy.run_path(script, run_name="__main__")
"""


def test_ctrl_c_during_the_import_is_one_line_and_exit_code_130() -> None:
    def interrupted_at(name: str) -> subprocess.CompletedProcess[str]:
        script = str(Path(sys.executable).with_name("ensemble"))
        return subprocess.run(
            [sys.executable, "-c", IMPORTS, name, script],
            capture_output=True,
            text=True,
            timeout=150,
        )

    whole = interrupted_at("none")
    assert whole.returncode == 0, whole.stderr
    names = [line for line in whole.stdout.splitlines() if line.replace(".", "").isidentifier()]
    # Skip imports before the entry point: of the interpreter and of the package.
    names = names[names.index("ensemble_core.cli.entry") + 1 :]
    chosen = {"ensemble_core.cli.main", "click", "ensemble_core.cli.commands.version"}
    assert chosen <= {*names}
    for name in sorted({*chosen, *names[:: len(names) // 6]}):
        found = interrupted_at(name)
        assert found.returncode == 130, f"{name}: {found.stderr}"
        assert found.stderr in ("", "\n", "interrupted\n"), name


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["schema"], ["plugins", "list"]])
def test_output_to_a_full_disk_is_an_error_and_no_internal_one(
    words: list[str], tmp_path: Path
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ensemble_core.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=150,
            env={**os.environ, "ENSEMBLE_STATE": str(tmp_path)},
        )
    told = "error: cannot write the output\n  because: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)
