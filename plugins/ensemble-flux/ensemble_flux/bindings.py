"""Finds Flux's Python bindings, and explains problems with them.

If ``import flux`` fails, the bindings are imported from the folder that ``flux env`` prints. So a
virtual environment need not contain them.
"""

from __future__ import annotations

import ctypes
import glob
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ensemble_core import ExecutorError

#: Oldest supported release.
OLDEST = (0, 66)
#: Import error that a missing library of Flux causes.
_MISSING = re.compile(r"(libflux-[a-z]+\.so\.\d+): cannot open shared object file")


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version as a tuple, for comparison.

    >>> release("0.88.0-59-g4a5e79f56")
    (0, 88, 0)
    """
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


def site_folders() -> list[str]:
    """Return the folders of the bindings that belong to the ``flux`` on the PATH."""
    command = shutil.which("flux")
    if command is None:
        return []
    try:
        answer = subprocess.run(
            [command, "env", "printenv", "PYTHONPATH"],
            capture_output=True,
            text=True,
            timeout=30,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    folders = [folder for folder in answer.stdout.strip().split(os.pathsep) if folder]
    return [folder for folder in folders if Path(folder, "flux").is_dir()]


def _library(name: str) -> str | None:
    """Return a library of the ``flux`` on the PATH, for bindings that cannot find it."""
    command = shutil.which("flux")
    if command is None:
        return None
    prefix = Path(os.path.realpath(command)).parent.parent
    found = [
        path
        for pattern in ("lib", "lib64", "lib/*-linux-gnu")
        for path in glob.glob(str(prefix / pattern / name))
    ]
    return found[0] if found else None


def bindings() -> Any:
    """Return the imported package ``flux``. Raises :class:`ExecutorError` with a hint."""
    # Called only when an executor opens, because importing flux takes 0.1 s.
    if "flux" in sys.modules:
        return _import_bindings()
    if importlib.util.find_spec("flux") is None:
        folders = site_folders()
        if not folders:
            found = shutil.which("flux")
            raise ExecutorError(
                "Flux's Python bindings were not found",
                cause=f"{found} reports no folder with bindings"
                if found
                else "'flux' is not on the PATH",
                hint="load the module that provides Flux, or 'pip install flux-python'",
                code="no-bindings",
            )
        # Append them, so that the site's other packages do not hide those of this environment.
        sys.path.extend(folders)
        importlib.invalidate_caches()
    return _import_bindings()


def _import_bindings() -> Any:
    loaded: set[str] = set()
    while True:
        try:
            return _import()
        except ImportError as error:
            # Bindings from PyPI look for Flux's libraries only on the system's path.
            missing = _MISSING.search(str(error))
            if missing is None or missing[1] in loaded or not _load(missing[1]):
                raise ExecutorError(
                    "Flux's Python bindings cannot be imported",
                    cause=str(error),
                    hint=_import_hint(str(error)),
                    code="broken-bindings",
                ) from None
            loaded.add(missing[1])


def _load(name: str) -> bool:
    """Load a library of the ``flux`` on the PATH. Return whether that worked."""
    library = _library(name)
    if library is None:
        return False
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    for module in [each for each in sys.modules if each.partition(".")[0] in ("flux", "_flux")]:
        del sys.modules[module]
    return True


def _import() -> Any:
    package = importlib.import_module("flux")
    importlib.import_module("flux.job")
    importlib.import_module("flux.constants")
    return package


def _import_hint(message: str) -> str:
    missing = _MISSING.search(message)
    if missing is not None:
        return (
            f"put the folder of {missing[1]} into LD_LIBRARY_PATH, or the 'flux' command on the "
            "PATH"
        )
    if "undefined symbol" in message:
        return (
            "the bindings are newer than the installed Flux: uninstall flux-python to use Flux's "
            "own bindings, or install the version that 'flux version' prints"
        )
    return "use bindings of Flux's version: compare 'flux version' and 'pip show flux-python'"


def connect(flux: Any, uri: str | None) -> Any:
    """Return a handle of the instance at ``uri``, or of the surrounding instance."""
    while True:
        try:
            return flux.Flux(uri) if uri else flux.Flux()
        except InterruptedError:  # any thread may receive a signal
            continue


def version(flux: Any) -> str:
    """Return the version of the bindings' library."""
    core = importlib.import_module("_flux._core")
    return str(core.ffi.string(core.lib.flux_core_version_string()).decode())
