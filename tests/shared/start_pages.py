"""Runner of the commands in ``docs/start-*.md``, as a user would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def commands_of(page: str) -> str:
    """Return the commands of a page that a test runs."""
    text = (DOCS / page).read_text("utf-8")
    (block,) = re.findall(r"^```sh\n# run by [^\n]*\n(.*?)^```", text, re.M | re.S)
    return str(block)


def run_commands(commands: str, folder: Path, begin: Sequence[str] = ()) -> str:
    """Run shell commands in a folder, with this environment's ``ensemble``; return the output.

    ``begin`` starts the shell, such as ``["flux", "start"]``. Fails unless the exit code is 0.
    """
    program = folder / "ensemble"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ensemble_core.cli "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [*begin, "sh", "-ec", commands],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "ENSEMBLE_STATE": str(folder / "state"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
