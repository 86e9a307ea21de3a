"""The recipes of the documentation, followed step by step: each file is written, each command run.

The output must contain the lines that the page shows, in the same order. A line ``…`` matches any
lines; ``…`` at the end of a line matches its rest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = sorted((DOCS / "cookbook").glob("*.md"))
_FILE = re.compile(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
_STUDY = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.M)


def missing(shown: str, printed: str) -> list[str]:
    """Return the lines that a page shows but that were not printed in this order."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    wanted = [" ".join(line.split()) for line in shown.splitlines() if line.strip() != "…"]
    return [
        line
        for line in wanted
        if not any(
            found.startswith(line[:-1].rstrip()) if line.endswith("…") else found == line
            for found in lines
        )
    ]


@pytest.mark.checkout
@pytest.mark.parametrize("recipe", [*RECIPES, DOCS / "start-laptop.md"], ids=lambda page: page.stem)
def test_a_recipe_prints_what_its_page_shows(recipe: Path, tmp_path: Path) -> None:
    page = recipe.read_text("utf-8")
    folder, programs = tmp_path / "study", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name, arguments in (("python", ""), ("ensemble", "-m ensemble_core.cli")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    (study,) = _STUDY.findall(page)
    (folder / "study.yaml").write_text(study, encoding="utf-8")
    for name, text in _FILE.findall(page):
        (folder / name).write_text(text, encoding="utf-8")
    commands = [found for block in _CONSOLE.findall(page) for found in _COMMAND.findall(block)]
    assert commands
    for command, shown in commands:
        done = subprocess.run(
            ["sh", "-c", command.replace("ensemble run ", "ensemble run --executor local ")],
            cwd=folder,
            env={
                **os.environ,
                "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", "")]),
                "ENSEMBLE_STATE": str(tmp_path / "state"),
                "COLUMNS": "120",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        assert missing(shown, done.stdout) == [], f"$ {command}\n{done.stdout}"


def test_there_are_at_least_fifteen_recipes() -> None:
    assert len(RECIPES) >= 15


def test_a_missing_line_is_detected() -> None:
    assert missing("a\n…\nc…\n", "a\nb\ncd\n") == []
    assert missing("b\na\n", "a\nb\n") == ["a"]
    assert missing("…\nx…\n", "a\n") == ["x…"]


@pytest.mark.checkout
def test_the_cookbook_links_to_every_recipe_under_its_title() -> None:
    """Plain Markdown does not show the toctree."""
    found = re.findall(
        r"^- \[(.+)\]\((cookbook/.+)\)$", (DOCS / "cookbook.md").read_text("utf-8"), re.M
    )
    titles = [
        (page.read_text("utf-8").partition("\n")[0][2:], f"cookbook/{page.name}")
        for page in RECIPES
    ]
    assert found == titles
