"""``ensemble init`` writes a study that runs as it is, and overwrites nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.commands.init import TEMPLATES
from ensemble_core.cli.main import main

#: What the run of each says at its end.
SAYS = {
    "sweep": "14 jobs done; lowest energy",
    "watch": "2 of 3 went well",
    "retry": "x = 9: done with 40 iterations, attempt 1",
    "adaptive": "refine",
    "screening": "lowest energy",
}


def adaptive(printed: str) -> None:
    """It asks for further points around the transition alone."""
    asked = [line for line in printed.splitlines() if "submit sim" in line]
    assert any("(x:1.5" in line or "(x:2.5" in line for line in asked[1:]), printed
    assert not any("(x:0.5" in line or "(x:3.5" in line for line in asked), printed


def screening(printed: str) -> None:
    """It looks at the best quarter again, and its table has the best."""
    found = {}
    for table in ("promising", "best"):
        words = ["results", "last", table, "--state", "state", "--json"]
        found[table] = [row["x"] for row in json.loads(CliRunner().invoke(main, words).output)]
    assert len(found["promising"]) == 4, "a quarter of 17, rounded down"
    (best,) = found["best"]
    assert best in found["promising"]
    assert abs(best - 1.7) < 0.3


#: What else is looked at after the run.
MORE = {"adaptive": adaptive, "screening": screening}


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_init_writes_is_valid_without_a_warning_and_runs(
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


def test_init_overwrites_nothing_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "sim.py").write_text("mine")

    done = CliRunner().invoke(main, ["init", str(tmp_path)])

    assert done.exit_code == 2
    assert "already exists; nothing was written" in done.output
    assert os.listdir(tmp_path) == ["sim.py"]
    assert (tmp_path / "sim.py").read_text() == "mine"


def test_an_unknown_template_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["init", str(tmp_path / "new"), "--template", "swep"])
    assert done.exit_code == 2
    assert "sweep" in done.output
    assert not (tmp_path / "new").exists()
