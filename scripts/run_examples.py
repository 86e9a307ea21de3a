"""Runs the quick examples for the documentation site, and writes a section of a page on each run.

Used by ``scripts/build_site.py``, so that the output, result tables and job charts of a page always
match the documented code. Each example runs in a copy of ``examples/``, with an empty home folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml
from click.testing import CliRunner
from PIL import Image

from ensemble_core.cli.main import main as cli

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
#: Search path of programs: this environment first.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
#: Examples in folders that take less than ten seconds; ``pictures.py`` runs slower ones.
IN_FOLDERS = (
    "branches/ensemble.yaml",
    "parameters/bisect.yaml",
    "parameters/function.yaml",
    "phases/ensemble.yaml",
    "shape/shape.yaml --slots 4",
    "studies/restart/ensemble.yaml",
)
#: Examples with a link to their report, which has 0.1 MB.
REPORTED = ("hello-world", "failure-handling", "json-lines", "lammps-melt", "branches", "phases")
#: Examples of a quick build, for tests: files and folders, with and without a report.
QUICK = ("hello-world", "failure-handling", "terminate", "branches")
#: Number of concurrent examples: most of them wait for sleeping jobs.
AT_ONCE = 4
#: Longer outputs are shortened to their first and last lines.
MOST_LINES, FIRST_LINES, LAST_LINES = 70, 36, 24
STATE = Path(".local", "state", "ensemble")
_ROW = re.compile(r"^\| \[([\w-]+\.yaml)\].*?`ensemble run ([^`]+)`.*exit code (\d+)", re.M)


@dataclass(frozen=True)
class Example:
    """Arguments of ``ensemble run`` in the folder ``examples``, and the expected exit code."""

    arguments: tuple[str, ...]
    code: int = 0

    @property
    def file(self) -> Path:
        """The ensemble file, relative to ``examples``."""
        return Path(next(word for word in self.arguments if word.endswith(".yaml")))

    @property
    def name(self) -> str:
        """The name of its picture and report: its folder's, unless the folder has several files."""
        path = self.file.with_suffix("")
        return path.parent.name if path.name == "ensemble" else "-".join(path.parts)

    @property
    def able(self) -> bool:
        """True if its programs are installed and it needs no service."""
        if self.file.name == "two-members.yaml":
            return False
        return "lammps" not in self.name or shutil.which("lmp", path=PATH) is not None


@dataclass(frozen=True)
class Ran:
    """An example that ran: its section of a page, with its picture and report."""

    example: Example
    text: str
    picture: bytes
    report: bytes | None


def examples() -> Iterator[Example]:
    """Yield the examples of the table in ``examples/README.md``, and quick ones in folders."""
    table = (EXAMPLES / "README.md").read_text("utf-8")
    for _, command, code in _ROW.findall(table):
        yield Example(tuple(shlex.split(command)), int(code))
    for command in IN_FOLDERS:
        yield Example(tuple(command.split()))


def run_all(folder: Path, *, quick: bool = False) -> list[Ran]:
    """Run the examples, or only those of ``QUICK``, in ``folder``.

    Raises if an exit code is not the expected one.
    """
    able = [each for each in examples() if each.able and (not quick or each.name in QUICK)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outputs = list(pool.map(lambda example: run(example, folder), able))
    return [told(each, folder, output) for each, output in zip(able, outputs, strict=True)]


def run(example: Example, folder: Path) -> str:
    """Run an example, and return what it printed."""
    home = folder / example.name
    left_out = shutil.ignore_patterns("runs", "__pycache__")
    shutil.copytree(EXAMPLES, home / "examples", ignore=left_out)
    words = list(example.arguments)
    if "--executor" not in words:
        words += ["--executor", "local"]
    if example.name in REPORTED:
        words += ["--report", str(home / "report.html")]
    done = subprocess.run(
        [sys.executable, "-m", "ensemble_core.cli", "run", *words],
        cwd=home / "examples",
        env={
            **os.environ,
            "PATH": PATH,
            "HOME": str(home),
            "ENSEMBLE_STATE": str(home / STATE),
            "COLUMNS": "110",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != example.code:
        raise RuntimeError(
            f"{example.file}: exit code {done.returncode}, not {example.code}:\n{done.stdout}"
        )
    return done.stdout.replace(str(home), "~")


def told(example: Example, folder: Path, output: str) -> Ran:
    """Return the section of a page on an example that ran, with its picture and report."""
    home = folder / example.name
    state = str(home / STATE)
    picture = home / "timeline.png"
    called("plot", "last", "--timeline", "-o", str(picture), "--size", "800x380", "--state", state)
    with Image.open(picture) as image:  # reduces the size to a third
        image.convert("RGB").quantize(48).save(picture, optimize=True)
    # Omit the report's path and the chosen queue: they come from this script.
    shown = [line.rstrip() for line in output.splitlines() if "report.html" not in line]
    shown = [line.replace(": chosen with --executor;", ";") for line in shown]
    if len(shown) > MOST_LINES:
        left = len(shown) - FIRST_LINES - LAST_LINES
        shown[FIRST_LINES:-LAST_LINES] = [f"… {left} lines"]
    lines = ["```console", f"$ ensemble run {shlex.join(example.arguments)}", *shown]
    document = yaml.safe_load((EXAMPLES / example.file).read_text("utf-8"))
    for table in document.get("results") or ():
        lines += [f"$ ensemble results last {table}"]
        lines += called("results", "last", table, "--state", state).rstrip().splitlines()
    lines += ["```", ""]
    up = "../" * (len(example.file.parts) - 1)
    lines += [f"![Jobs over time, and when rules fired]({up}{example.name}.png)", ""]
    report = None
    if example.name in REPORTED:
        report = (home / "report.html").read_bytes()
        lines += [f'<a href="{up}../reports/{example.name}.html">The report of this run</a>', ""]
    return Ran(example, "\n".join(lines), picture.read_bytes(), report)


def called(*words: str) -> str:
    """Return the output of a command of ``ensemble``, called in this process."""
    done = CliRunner().invoke(cli, words, env={"COLUMNS": "110"}, catch_exceptions=False)
    if done.exit_code:
        raise RuntimeError(f"ensemble {shlex.join(words)}: {done.output}")
    return done.stdout


def as_code(lines: re.Match[str]) -> str:
    """Return indented lines as a code block."""
    return f"```sh\n{textwrap.dedent(lines[0]).rstrip()}\n```\n"


def page(file: Path, ran: Sequence[Ran]) -> str:
    """Return the page of a single-file example: its description, a run, and the file."""
    text = (EXAMPLES / file).read_text("utf-8")
    comment, _, content = text.partition("\n\n")
    about = re.sub(r"^# ?", "", comment, flags=re.M)
    about = re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", about)
    # Indented lines of the comment are commands: they become code blocks.
    about = re.sub(r"(?m)(?:^  +\S.*\n?)+", as_code, about)
    runs = [each.text for each in ran if each.example.file == file]
    return "\n".join(
        [
            "---\norphan: true\n---\n",
            f"# {file.name}\n",
            about,
            "\n## Output\n",
            *(runs or ["Not run for this page: see the comment in the file for what it needs.\n"]),
            "\n## File\n",
            f"```yaml\n{content.strip()}\n```",
        ]
    )  # fmt: skip
