"""The tutorial for plugin authors, followed step by step: each file is written, each command run.

Each command must print what the page shows, except times, tags and temporary folders. A line ``…``
matches any lines. ``pip install -e`` is simulated, because a test has no network: the entry points
of ``pyproject.toml`` are registered as by an editable installation.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ensemble_testing import Story

from ensemble_core.model.rules import Firing, Trigger
from ensemble_core.plugin.records import CallContext

DOCS = Path(__file__).parents[2] / "docs"
#: The pages of the tutorial in order.
PAGES = [
    DOCS / f"{name}.md"
    for name in ("plugin-tutorial", "plugin-tutorial-rules", "plugin-tutorial-study")
]
_FENCE = re.compile(
    r"^(?:`(?P<path>[\w./-]+)`:\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
#: Metadata of an editable installation, as far as needed for entry points.
_PIP = """
import configparser, pathlib, re, sys
assert sys.argv[1:] == ["install", "-q", "-e", ".[test]"], sys.argv
text = pathlib.Path("pyproject.toml").read_text("utf-8")
site = pathlib.Path({site!r})
name, version = (re.search(rf'^{{key}} = "(.*)"$', text, re.M)[1] for key in ("name", "version"))
info = site / f"{{name.replace('-', '_')}}-{{version}}.dist-info"
info.mkdir(parents=True, exist_ok=True)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: {{version}}\\n")
points = text.partition("[project.entry-points.")[2].replace('"', "")
points = points.replace("[project.entry-points.", "[")
(info / "entry_points.txt").write_text("[" + points)
"""


@dataclass(frozen=True)
class Command:
    """A command of the page with the output that the page shows."""

    place: str
    text: str
    printed: str


@dataclass(frozen=True)
class File:
    """A file of the page."""

    path: str
    text: str


def steps(page: Path) -> Iterator[File | Command]:
    """Yield the steps of the page in order."""
    text = page.read_text("utf-8")
    for found in _FENCE.finditer(text):
        if found["path"] is not None:
            yield File(found["path"], found["text"])
        elif found["kind"] == "console":
            first = text.count("\n", 0, found.start("text")) + 1
            for part in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", found["text"], re.M):
                line = first + found["text"].count("\n", 0, part.start())
                yield Command(f"{page.name}:{line}", part[1], part[2])


class Reader:
    """A reader who follows the page in a separate folder."""

    def __init__(self, folder: Path, name: str = "ensemble-anneal") -> None:
        self.folder, site, programs = folder / name, folder / "site", folder / "bin"
        for made in (self.folder, site, programs):
            made.mkdir()
        (folder / "pip.py").write_text(_PIP.format(site=str(site)), encoding="utf-8")
        for name, arguments in (
            ("python", ""),
            ("ensemble", "-m ensemble_core.cli"),
            ("pip", str(folder / "pip.py")),
        ):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            program.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(site), str(self.folder)]),
            "XDG_STATE_HOME": str(folder / "state"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # not needed, and slow
            "COLUMNS": "120",
        }

    def write(self, file: File) -> None:
        path = self.folder / file.path
        path.parent.mkdir(exist_ok=True)
        path.write_text(file.text, encoding="utf-8")

    def run(self, command: str) -> str:
        """Return the command's stdout and stderr."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=150,
        )
        return done.stdout.replace(str(self.folder), f"~/{self.folder.name}")


def plain(printed: str) -> str:
    """Return output without the parts that differ each time."""
    text = re.sub(r"\b\d+\.\d+ ?s\b", "N s", printed)
    text = re.sub(r"\b\d+ events gave|after event \d+", "N events", text)  # rows of cancelled jobs
    text = re.sub(r", at \d\d:\d\d:\d\d$", "", text, flags=re.M)
    text = re.sub(r"\d{8}T\d{6}-[0-9a-f]+", "TAG", text)
    text = re.sub(r"\S+/ensemble/runs/", "~/.local/state/ensemble/runs/", text)
    # Without the reasons against other executors.
    text = re.sub(r"(?m)^(executor local \(slots=1\)): .*", r"\1", text)
    return "".join(re.sub(r" +", " ", line).strip() + "\n" for line in text.splitlines())


def fits(told: str, printed: str) -> bool:
    """Return whether the output matches the page. Lines of a run may be in another order, because a
    function's result and the end of a job can arrive in either order."""
    lines = plain(told).splitlines()
    if lines and lines[0].startswith("executor local") and "…" not in lines:
        return sorted(lines) == sorted(plain(printed).splitlines())
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else re.escape(line) + r"\n" for line in lines)
    return re.fullmatch(pattern, plain(printed)) is not None


def test_commands_of_the_tutorial_print_what_it_shows(tmp_path: Path) -> None:
    reader, commands = Reader(tmp_path), 0
    for step in (step for page in PAGES for step in steps(page)):
        if isinstance(step, File):
            reader.write(step)
            continue
        printed = reader.run(step.text)
        assert fits(step.printed, printed), (
            f"{step.place}: $ {step.text}\nprinted\n{printed}and not\n{step.printed}"
        )
        commands += 1
    assert commands > 15


@pytest.mark.parametrize(
    ("told", "printed", "same"),
    [
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nb\nc\n", False),
        ("took 0.93 s\n", "took 12.5 s\n", True),
        ("3 passed\n", "2 passed\n", False),
        ("", "error\n", False),
    ],
)
def test_only_times_and_tags_are_ignored_in_comparisons(
    told: str, printed: str, same: bool
) -> None:
    assert fits(told, printed) == same


def test_only_commands_that_need_the_network_are_skipped() -> None:
    shown = [
        found["text"]
        for page in PAGES
        for found in _FENCE.finditer(page.read_text("utf-8"))
        if found["kind"] == "sh"
    ]
    assert len(shown) == 2
    assert all(re.search(r"^pip install (?!-e)", text, re.M) for text in shown)


@pytest.mark.parametrize("kind", [Trigger, Firing, CallContext, Story])
def test_reference_lists_all_attributes_and_methods(kind: type) -> None:
    """The page must list all attributes and methods, and no others."""
    page = (DOCS / "plugin-reference.md").read_text("utf-8")
    table = re.split(rf"\| attribute (?:or method )?of an? `{kind.__name__}\b", page)[1]
    table = table.partition("\n\n")[0]
    told = {
        name
        for line in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)(?:\([^`]*\))?`", line.split("|")[1])
    }
    names = {name for name in (*vars(kind), *inspect.get_annotations(kind)) if name[0] != "_"}
    if kind is Story:
        names |= {"ensemble", "engine", "now", "decisions", "events"}
    assert told == names
