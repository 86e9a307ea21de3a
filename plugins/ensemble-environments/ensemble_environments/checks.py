"""Checks, before anything is submitted, that what ``within:`` names exists."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from ensemble_core import EnsembleError
from ensemble_environments.containers import is_file


def check(options: Mapping[str, Any], local: bool) -> None:
    """Raise :class:`EnsembleError` if an environment does not exist.

    With ``local``, jobs run on this machine, which must have the program of a container.
    """
    for each in options.get("bind", ()):
        _check_path(each.partition(":")[0], "folder or file")
    if "venv" in options:
        folder = options["venv"]
        _check_path(folder, "virtual environment", f"python3 -m venv {folder}")
        if not os.access(os.path.join(folder, "bin", "python"), os.X_OK):
            # '--clear' removes everything in the folder, so only what is broken gets this hint.
            broken = os.path.exists(os.path.join(folder, "pyvenv.cfg"))
            raise _missing(
                f"{folder!r} is not a virtual environment: it has no bin/python",
                f"python3 -m venv {f'--clear {folder}' if broken else f'{folder}/venv'}",
            )
    elif "conda" in options and "/" in options["conda"]:
        folder = options["conda"]
        _check_path(folder, "environment of conda", f"conda create -p {folder} …")
        if not os.path.isdir(os.path.join(folder, "conda-meta")):
            raise _missing(f"{folder!r} is not an environment of conda: it has no conda-meta")
    elif "apptainer" in options:
        if is_file(options["apptainer"]):
            _check_path(options["apptainer"], "image")
        if local and not (shutil.which("apptainer") or shutil.which("singularity")):
            raise _missing("neither apptainer nor singularity is installed on this machine")
    elif "podman" in options and local and not shutil.which("podman"):
        raise _missing("podman is not installed on this machine")


def _check_path(path: str, noun: str, create: str = "") -> None:
    if not os.path.isabs(path):
        expanded = os.path.expanduser(os.path.expandvars(path))
        other = expanded if os.path.isabs(expanded) else f"{{here}}/{path}"
        raise EnsembleError(
            f"the path of the {noun}, {path!r}, is not absolute"
            + (", and no shell expands it" if other == expanded else ""),
            hint=f"write {other}",
            code="bad-value",
        )
    if not os.path.exists(path):
        raise _missing(f"there is no {noun} {path!r}", create)


def _missing(what: str, create: str = "") -> EnsembleError:
    return EnsembleError(what, hint=create and f"create it: {create}", code="no-such-environment")
