"""Runs third-party transformers: plugins of the original program ``jobspec``.

A transformer submits a jobspec to one kind of queue; its package is called ``jobspec_NAME``. It
runs in a separate process, so that a broken one does no harm. It needs the package ``jobspec`` for
its base classes.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

__all__ = ["is_installed", "run_upstream"]

_CODE = """\
import importlib, sys
module = importlib.import_module(sys.argv[1])
sys.exit(module.Transformer().run(sys.argv[2]))
"""


def package(name: str) -> str:
    """Return the package of a transformer."""
    return f"jobspec_{name.replace('-', '_')}"


def is_installed(name: str) -> bool:
    """Return whether the package is installed, without importing it."""
    found = package(name)
    return found.isidentifier() and importlib.util.find_spec(found) is not None


def run_upstream(name: str, file: str) -> int:
    """Run a transformer on a jobspec, show its output, and return its exit code."""
    words = [sys.executable, "-c", _CODE, package(name), file]
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
