"""Contract suites for a plugin's README: its ensemble files are valid, it lists every option, and
its study runs.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Set
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ensemble_core.cli.toolkit import load_text
from ensemble_core.plugin.discovery import discover

if TYPE_CHECKING:
    from ensemble_programs import Program

#: A file of a study: a block after a line that begins or ends with the file's name.
_FILE = re.compile(r"`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```", re.M | re.S)


class ReadmeContract:
    """Tests of a plugin's README.

    - ``options``: schema whose options must occur in the README's ensemble files (``yaml`` blocks)
    - ``executor_options``: schema whose options must be rows of a table in the README. Each row
      starts with ``| `NAME=``
    - ``tests``: folder of the plugin's tests, beside the README
    - ``distribution``: the plugin's name on PyPI. If ``README.md`` is missing, its text is read
      from the metadata of the installed distribution
    """

    distribution: ClassVar[str]
    options: ClassVar[Mapping[str, Any]]
    executor_options: ClassVar[Mapping[str, Any]] = {"properties": {}}
    tests: ClassVar[Path]

    def readme(self) -> str:
        """Return the README's text."""
        file = self.tests.parent / "README.md"
        if file.is_file():
            return file.read_text("utf-8")
        return str(metadata(self.distribution).json["description"])

    def test_readme_files_are_valid_and_every_option_is_listed(self) -> None:
        text = self.readme()
        files = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
        assert files
        for file in files:
            assert load_text(file, discover(), file="README.md").warnings == ()
        shown = "".join(files)
        assert [name for name in self.options["properties"] if f"{name}:" not in shown] == []
        rows = self.executor_options["properties"]
        assert [name for name in rows if f"| `{name}=" not in text] == []


class StudyContract(ReadmeContract):
    """Tests of the README of a simulation program's plugin, and help for tests that run its study.

    Besides ``distribution`` and ``tests``:

    - ``program``: the plugin's :class:`~ensemble_programs.Program`. Each option of its observer and
      actions must be a row of a table in the README, which starts with ``| `NAME` |``, and each
      column must be named in backquotes
    - ``files``: names of the study's files. In the README, each is a block after a line with its
      name in backquotes
    """

    program: ClassVar[Program]
    files: ClassVar[Set[str]]

    def test_readme_files_are_valid_and_every_option_is_listed(  # type: ignore[override]
        self, study: Path
    ) -> None:
        for file in study.glob("*.yaml"):
            checked = self.ensemble(study, "validate", "--json", file.name)
            (found,) = json.loads(checked.stdout)["files"]
            assert (found["errors"], found["warnings"]) == ([], [])
        text = self.readme()
        records: list[Any] = [*self.program.observers(), *self.program.actions()]
        for record in records:
            for name, option in record.options["properties"].items():
                assert f"| `{name}` |" in text
                for column in option.get("items", {}).get("enum", ()):
                    assert f"`{column}`" in text

    def test_the_readme_has_all_files_of_the_study(self, study: Path) -> None:
        assert {file.name for file in study.iterdir()} == self.files

    @pytest.fixture
    def study(self, tmp_path: Path) -> Path:
        """Return a folder with the files of the study."""
        folder = tmp_path / "study"
        folder.mkdir()
        for name, content in _FILE.findall(self.readme()):
            (folder / name).write_text(content, "utf-8")
        return folder

    @staticmethod
    def change(file: Path, old: str, new: str) -> None:
        """Replace a text that occurs once in a file of the study."""
        text = file.read_text("utf-8")
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file.name}"
        file.write_text(text.replace(old, new), "utf-8")

    def run(
        self, folder: Path, file: str, *, tag: str = "study"
    ) -> subprocess.CompletedProcess[str]:
        """Run an ensemble file of the study. Fail unless it succeeds."""
        done = self.ensemble(folder, "run", "--tag", tag, file)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def table(self, folder: Path, name: str, *, tag: str = "study") -> list[dict[str, str]]:
        """Return the rows of a table of a run."""
        shown = self.ensemble(folder, "results", tag, name, "--csv")
        return list(csv.DictReader(shown.stdout.splitlines()))

    def ensemble(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``ensemble`` in a folder, which then also has the state of its runs."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return subprocess.run(
            [sys.executable, "-m", "ensemble_core.cli", *words],
            cwd=folder,
            env={**os.environ, "PATH": path, "XDG_STATE_HOME": str(folder / "state")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
