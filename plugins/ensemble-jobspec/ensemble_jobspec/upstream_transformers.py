"""Runs third-party transformers, which submit jobspecs to further kinds of queues.

The transformer NAME is in the Python package ``jobspec_NAME``, a plugin of the package ``jobspec``.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

#: The transformer's base classes are in the package ``jobspec``, which its process imports. After a
#: failed step, they print the exception and call ``sys.exit()``, which would be exit code 0.
_CODE = """\
import importlib, sys
module = importlib.import_module(sys.argv[1])
try:
    code = module.Transformer().run(sys.argv[2])
except SystemExit as end:
    failed = end.code in (None, 0) and isinstance(end.__context__, Exception)
    code = 1 if failed else end.code
sys.exit(not code if isinstance(code, bool) else code)
"""


def package(name: str) -> str:
    """Return the name of the Python package that has this transformer."""
    return f"jobspec_{name.replace('-', '_')}"


def is_installed(name: str) -> bool:
    """Return whether this transformer is installed, without importing it."""
    found = package(name)
    return found.isidentifier() and importlib.util.find_spec(found) is not None


def run_upstream(name: str, file: str) -> int:
    """Run a transformer on a jobspec in a separate process, and return its exit code."""
    words = [sys.executable, "-c", _CODE, package(name), file]
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
