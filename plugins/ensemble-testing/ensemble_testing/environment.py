"""Contract suite for environments of jobs (``within: {NAME: …}``)."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ensemble_core.errors import EnsembleError
from ensemble_core.model.causes import ENVIRONMENT_FAILED
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.hookspecs import EnvironmentPlugin
from ensemble_testing.plugin_record import RecordContract

#: Where Debian has the shell code of Environment Modules and of Lmod.
_MODULES = ("/usr/share/modules/init/bash", "/usr/share/lmod/lmod/init/bash")
#: Words that a shell would change.
_WORDS = (
    "two words", "$HOME", "${HOME}", "$(touch made)", "`touch made`", "; touch made", "it's", '"',
    "*", "\\", "\\n", "a\nb", "", "-x", "--", "é", "x=1",
)  # fmt: skip
#: Values of an option that must stay values.
_VALUES = ("no-such; touch made", "no-such' ; touch made; '", "$(touch made)", '"`touch made`"')
_SHOW = "import json, os, sys; print(json.dumps([os.getcwd(), os.environ['COLOR'], sys.argv[1:]]))"


class EnvironmentContract(RecordContract):
    """Tests of an environment plugin. Subclass it in your own tests::

        class TestSpack(EnvironmentContract):
            plugin = spack                    # your EnvironmentPlugin
            options = {"spack": "gromacs"}    # an environment that this machine has
            missing = {"spack": "no-such"}    # and one that no machine has

    - ``prepare``: makes the environment of ``options``, or skips the tests that run commands
    - ``python``: a Python in the environment
    """

    plugin: ClassVar[EnvironmentPlugin]
    missing: ClassVar[Mapping[str, Any]] = {}
    python: ClassVar[str] = sys.executable

    def prepare(self, folder: Path) -> Mapping[str, str]:
        """Return the variables with which jobs start, after creating the environment in
        ``folder``.
        """
        return os.environ

    @pytest.fixture
    def machine(self, tmp_path: Path) -> Mapping[str, str]:
        return {**self.prepare(tmp_path), "COLOR": "red"}

    @pytest.fixture
    def work(self, tmp_path: Path) -> Path:
        folder = tmp_path / "it's the work"
        folder.mkdir()
        return folder

    def wrap(self, *command: str, options: Mapping[str, Any] | None = None) -> list[str]:
        """Return the words of a command in the environment."""
        job = Job(
            id="a.0", group="a", index=0, command=command or ("true",), environment={"COLOR": "red"}
        )
        return list(self.plugin.wrap(job, self.options if options is None else options))

    def run(
        self, words: Sequence[str], machine: Mapping[str, str], work: Path
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words, cwd=work, env=machine, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert not [*work.rglob("made")], "a text was run as a command of the shell"
        return done

    def test_an_option_has_the_name_of_the_environment(self) -> None:
        name = self.plugin.name
        assert name in self.plugin.options.get("properties", {})
        assert not self._accepts({}), f"'within: {{{name}: …}}' must give {name!r}: require it"

    def test_wrap_is_a_pure_function(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Mapping[str, str]
    ) -> None:
        """It depends on the job and the options only, and changes neither."""
        options = copy.deepcopy(dict(self.options))
        words = self.wrap("echo", "a", options=options)
        assert words, "no command"
        assert all(isinstance(each, str) for each in words)
        assert options == self.options
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(os, "environ", {})
        monkeypatch.setattr(subprocess, "Popen", None)
        monkeypatch.setattr(os, "system", None)
        assert self.wrap("echo", "a", options=options) == words

    def test_the_command_keeps_its_words_folder_and_variables(
        self, machine: Mapping[str, str], work: Path
    ) -> None:
        done = self.run(self.wrap(self.python, "-c", _SHOW, *_WORDS), machine, work)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [str(work), "red", list(_WORDS)]

    @pytest.mark.parametrize("code", [0, 7, ENVIRONMENT_FAILED + 1])
    def test_the_command_keeps_its_exit_code(
        self, machine: Mapping[str, str], work: Path, code: int
    ) -> None:
        done = self.run(self.wrap(self.python, "-c", f"exit({code})"), machine, work)
        assert done.returncode == code, done.stderr

    def test_a_missing_environment_is_the_job_s_cause_with_words(
        self, machine: Mapping[str, str], work: Path
    ) -> None:
        if not self.missing:
            pytest.skip("the suite has no 'missing'")
        words = self.wrap(self.python, "-c", "print('ran')", options=self.missing)
        done = self.run(words, machine, work)
        assert (done.returncode, done.stdout) == (ENVIRONMENT_FAILED, ""), done.stderr
        assert done.stderr.strip(), "standard error says nothing"

    @pytest.mark.parametrize("value", _VALUES)
    def test_the_shell_runs_no_part_of_an_option(
        self, machine: Mapping[str, str], work: Path, value: str
    ) -> None:
        options = {**self.options, self.plugin.name: value}
        if not self._accepts(options):
            pytest.skip("the schema rejects the value")
        done = self.run(
            self.wrap(self.python, "-c", "print('ran')", options=options), machine, work
        )
        assert (done.returncode, done.stdout) == (ENVIRONMENT_FAILED, ""), done.stderr

    def test_check_runs_no_program_and_finds_what_is_missing(
        self, machine: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It need not find everything, but it must accept an environment that exists."""
        check = self.plugin.check
        if check is None:
            pytest.skip("the environment has no 'check'")
        monkeypatch.setattr(subprocess, "Popen", None)
        monkeypatch.setattr(os, "system", None)
        monkeypatch.setenv("PATH", machine.get("PATH", ""))
        for local in (True, False):
            check(self.options, local)
            if self.missing:
                with suppress(EnsembleError):
                    check(self.missing, local)


_FILE = """
jobs:
  - name: plain
    command: &show [sh, -c, 'echo "$LOADEDMODULES $COLOR $VIRTUAL_ENV $PWD" > {index}-$0', a]
    workdir: plain
  - {name: md, command: *show, workdir: md, within: {module: [md/2024], use: '{here}/modules'}}
  - {name: fit, command: *show, workdir: fit, within: {venv: '{here}/venv'}, tasks: 1, count: 2}
  - {name: none, command: *show, workdir: none, within: {module: [md/2099], use: '{here}/modules'}}
rules:
  - trigger: start
    action: [{name: submit, label: plain}, {name: submit, label: md}, {name: submit, label: fit},
             {name: submit, label: none}]
"""


def check_environments(executor: str, options: Sequence[str], folder: Path) -> None:
    """Check that jobs on a real queue start in a module and in a virtual environment.

    Needs Environment Modules or Lmod, and ensemble-environments.
    """
    pytest.importorskip("ensemble_environments", reason="no plugin: ensemble-environments")
    if not any(map(os.path.exists, _MODULES)):
        pytest.skip("neither Environment Modules nor Lmod is installed")
    (folder / "modules" / "md").mkdir(parents=True)
    (folder / "modules" / "md" / "2024").write_text("#%Module\nsetenv COLOR red\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (folder / "e.yaml").write_text(_FILE)
    command = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", "--state", "state"]
    # Jobs inherit the environment of the run, which may be a virtual one.
    plain = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(
        [*command, "--executor", executor, *options],
        cwd=folder, env=plain, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    shown = {path.parent.name: path.read_text().split() for path in folder.glob("*/*-a")}
    assert shown == {
        "plain": [str(folder / "plain")],
        "md": ["md/2024", "red", str(folder / "md")],
        "fit": [str(folder / "venv"), str(folder / "fit")],
    }
    assert len([*(folder / "fit").iterdir()]) == 2
    (told,) = [line for line in done.stderr.splitlines() if "failed none.0: environment" in line]
    assert "md/2099" in told
