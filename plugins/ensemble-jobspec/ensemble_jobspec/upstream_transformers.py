"""Transformers of jobspec 0.0 and 0.1 that others wrote: packages ``jobspec_NAME``.

Each is imported and run in a process of its own, so that one that is broken hurts nobody else. It
needs upstream's ``jobspec`` for its base classes.
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
    """The package of a transformer of this name."""
    return f"jobspec_{name.replace('-', '_')}"


def is_installed(name: str) -> bool:
    """True if such a package is installed; it is not imported for that."""
    found = package(name)
    return found.isidentifier() and importlib.util.find_spec(found) is not None


def run_upstream(name: str, file: str) -> int:
    """Run a transformer on a jobspec; its exit code. What it prints is shown."""
    words = [sys.executable, "-c", _CODE, package(name), file]
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
