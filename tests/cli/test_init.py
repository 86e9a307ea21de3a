"""Tests of ``ensemble init``: it writes a study that runs, and overwrites nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.commands.init import TEMPLATES
from ensemble_core.cli.main import main

#: Expected last lines of each template's run.
SAYS = {
    "sweep": "14 jobs done; lowest energy",
    "watch": "2 of 3 went well",
    "retry": "x = 9: done with 40 iterations, attempt 1",
    "adaptive": "refine",
    "screening": "lowest energy",
}


def adaptive(printed: str) -> None:
    """Check that further points are near the transition only."""
    asked = [line for line in printed.splitlines() if "submit sim" in line]
    assert any("(x:1.5" in line or "(x:2.5" in line for line in asked[1:]), printed
    assert not any("(x:0.5" in line or "(x:3.5" in line for line in asked), printed


def screening(printed: str) -> None:
    """Check that the best quarter runs again and that the table has the best."""
    found = {}
    for table in ("promising", "best"):
        words = ["results", "last", table, "--state", "state", "--json"]
        found[table] = [row["x"] for row in json.loads(CliRunner().invoke(main, words).output)]
    assert len(found["promising"]) == 4, "a quarter of 17, rounded down"
    (best,) = found["best"]
    assert best in found["promising"]
    assert abs(best - 1.7) < 0.3


#: Additional checks of a template's output.
MORE = {"adaptive": adaptive, "screening": screening}


@pytest.mark.parametrize("template", TEMPLATES)
def test_files_of_init_are_valid_and_run(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = CliRunner().invoke(main, ["init", "mine", "--template", template])
    assert written.exit_code == 0, written.output
    assert sorted(os.listdir("mine")) == ["sim.py", "study.yaml"]

    checked = CliRunner().invoke(main, ["validate", "mine/study.yaml"])
    assert checked.exit_code == 0
    assert "warning" not in checked.output

    run = ["run", "--executor", "local", "--state", "state", "mine/study.yaml"]
    done = CliRunner().invoke(main, run)
    assert done.exit_code == 0, done.output
    assert SAYS[template] in done.output
    if template in MORE:
        MORE[template](done.output)


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "sim.py").write_text("mine")

    done = CliRunner().invoke(main, ["init", str(tmp_path)])

    assert done.exit_code == 2
    assert "already exists; nothing was written" in done.output
    assert os.listdir(tmp_path) == ["sim.py"]
    assert (tmp_path / "sim.py").read_text() == "mine"


def test_unknown_template_is_rejected_with_the_known_ones(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["init", str(tmp_path / "new"), "--template", "swep"])
    assert done.exit_code == 2
    assert "sweep" in done.output
    assert not (tmp_path / "new").exists()
