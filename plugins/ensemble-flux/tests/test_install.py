"""Tests of installed bindings that do not know where Flux is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Bindings whose parts each need a library, like the wheels of flux-python on PyPI.
PART = """
import ctypes
try:
    ctypes.CDLL({library!r})
except OSError as error:
    raise ImportError(str(error)) from None
"""
TRY = """
from ensemble_core import ExecutorError
from ensemble_flux.bindings import bindings
try:
    print(bindings().__file__)
except ExecutorError as error:
    print(error.cause, error.hint)
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    package = tmp_path / "site" / "flux"
    package.mkdir(parents=True)
    for part, library in (
        ("__init__", "libflux-core.so.2"),
        ("job", "libflux-hostlist.so.1"),
        ("constants", "libflux-idset.so.1"),
    ):
        (package / f"{part}.py").write_text(PART.format(library=library))
    return package.parent


def tried(site: Path, path: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(site), "PATH": path}
    env.pop("LD_LIBRARY_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", TRY], env=env, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("flux_command")
def test_all_libraries_are_found_beside_the_flux_command(wheel: Path) -> None:
    assert tried(wheel, os.environ["PATH"]) == str(wheel / "flux" / "__init__.py")


def test_a_missing_library_is_an_error_with_its_name_and_a_hint(
    wheel: Path, tmp_path: Path
) -> None:
    (wheel / "flux" / "job.py").write_text(PART.format(library="libflux-nowhere.so.9"))
    (wheel / "flux" / "__init__.py").write_text("")
    told = tried(wheel, str(tmp_path))
    assert told.startswith("libflux-nowhere.so.9: cannot open shared object file")
    assert "put the folder of libflux-nowhere.so.9 into LD_LIBRARY_PATH" in told
