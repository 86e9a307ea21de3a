"""Finding Flux's Python bindings, and saying what is wrong where they cannot be used.

Each installation of Flux has bindings of its own version, for the Python that it was built with and
usually for any other; ``flux env`` says where. They are taken where ``import flux`` finds none, so
that a virtual environment needs nothing but this package. Nothing here is imported before an
executor is opened: ``import flux`` takes a tenth of a second.
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

__all__ = ["OLDEST", "bindings", "release", "site_folders", "version"]

#: The oldest release that has everything that is used here.
OLDEST = (0, 66)
_LIBRARY = "libflux-core.so.2"


def release(text: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing.

    >>> release("0.88.0-59-g4a5e79f56")
    (0, 88, 0)
    """
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


def site_folders() -> list[str]:
    """Where the installation of Flux whose ``flux`` is on the PATH keeps its bindings."""
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


def _library() -> str | None:
    """The library of the ``flux`` on the PATH, for bindings that do not know where it is."""
    command = shutil.which("flux")
    if command is None:
        return None
    prefix = Path(os.path.realpath(command)).parent.parent
    found = [
        path
        for pattern in ("lib", "lib64", "lib/*-linux-gnu")
        for path in glob.glob(str(prefix / pattern / _LIBRARY))
    ]
    return found[0] if found else None


def bindings() -> Any:
    """The package ``flux``, imported. Raises :class:`ExecutorError` that says what to do."""
    if "flux" in sys.modules:
        return _imported()
    if importlib.util.find_spec("flux") is None:
        folders = site_folders()
        if not folders:
            found = shutil.which("flux")
            raise ExecutorError(
                "Flux's Python bindings were not found",
                cause=f"{found} names none" if found else "and there is no 'flux' on the PATH",
                hint="load the module that provides Flux, or 'pip install flux-python'",
                code="no-bindings",
            )
        # Last, so that nothing else that the site keeps there comes before this environment's own.
        sys.path.extend(folders)
        importlib.invalidate_caches()
    return _imported()


def _imported() -> Any:
    try:
        return _import()
    except ImportError as error:
        library = _library() if _LIBRARY in str(error) else None
        if library is not None:
            # Bindings from PyPI look for the library on the system's path only.
            for name in [
                name for name in sys.modules if name.partition(".")[0] in ("flux", "_flux")
            ]:
                del sys.modules[name]
            try:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
                return _import()
            except (ImportError, OSError) as second:
                error = ImportError(str(second))
        raise ExecutorError(
            "Flux's Python bindings cannot be imported",
            cause=str(error),
            hint=_import_hint(str(error)),
            code="broken-bindings",
        ) from None


def _import() -> Any:
    package = importlib.import_module("flux")
    importlib.import_module("flux.job")
    importlib.import_module("flux.constants")
    return package


def _import_hint(message: str) -> str:
    if _LIBRARY in message:
        return (
            f"put the folder of {_LIBRARY} into LD_LIBRARY_PATH, or the 'flux' command on the PATH"
        )
    if "undefined symbol" in message:
        return (
            "the bindings are newer than the installed Flux: uninstall flux-python, so that Flux's "
            "own are used, or install the version of 'flux version'"
        )
    return "they must fit the installed Flux: 'flux version' and 'pip show flux-python' tell"


def version(flux: Any) -> str:
    """The version of the library that the bindings use."""
    core = importlib.import_module("_flux._core")
    return str(core.ffi.string(core.lib.flux_core_version_string()).decode())
