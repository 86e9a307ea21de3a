"""Tests of the search for Flux's Python bindings, and of the error if they are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ensemble_flux.bindings import OLDEST, connect, release, site_folders

TRY = """
from ensemble_core import ExecutorError
from ensemble_flux.bindings import bindings
try:
    print(bindings().__file__)
except ExecutorError as error:
    print(error.code, error.what, error.cause, error.hint, sep="|")
"""


def fake_flux(folder: Path, script: str) -> Path:
    """Create a ``flux`` with this script; return its folder, for the PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "flux"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return folder


def bound(site: Path, init: str = "") -> Path:
    """Create bindings in this site folder."""
    package = site / "flux"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(init)
    (package / "job.py").write_text("")
    (package / "constants.py").write_text("")
    return site


def tried(path: Path, python_path: Path | None = None) -> str:
    """Look for bindings in a new Python with only this folder on the PATH; return its output."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PATH": str(path)} | ({"PYTHONPATH": str(python_path)} if python_path else {})
    words = [sys.executable, "-c", TRY]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.88.0-59-g4a5e79f56", (0, 88, 0)),
        ("0.66", (0, 66)),
        ("1.0rc1", (1, 0)),
        ("unknown", ()),
    ],
)
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers
    assert (release(text) < OLDEST) is (text == "unknown")


def test_the_bindings_that_the_flux_command_reports_are_used(tmp_path: Path) -> None:
    site = bound(tmp_path / "site")
    path = fake_flux(tmp_path / "bin", f"echo {tmp_path}/none:{site}")
    assert tried(path) == str(site / "flux" / "__init__.py")


def test_only_folders_with_bindings_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = bound(tmp_path / "site")
    path = fake_flux(tmp_path / "bin", f'[ -z "$PYTHONPATH" ] && echo {tmp_path}::{site}')
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("PYTHONPATH", "/of/this/process")
    assert site_folders() == [str(site)]


def test_bindings_of_the_environment_come_first(tmp_path: Path) -> None:
    own, other = bound(tmp_path / "own"), bound(tmp_path / "other")
    path = fake_flux(tmp_path / "bin", f"echo {other}")
    assert tried(path, own) == str(own / "flux" / "__init__.py")


def test_without_flux_the_message_says_where_to_get_it(tmp_path: Path) -> None:
    code, message, cause, hint = tried(tmp_path).split("|")
    assert code == "no-bindings"
    assert message == "Flux's Python bindings were not found"
    assert cause == "'flux' is not on the PATH"
    assert hint == "load the module that provides Flux, or 'pip install flux-python'"


@pytest.mark.parametrize("script", ["exit 1", "echo /nowhere", "echo"])
def test_a_flux_without_bindings_is_reported_by_name(tmp_path: Path, script: str) -> None:
    path = fake_flux(tmp_path / "bin", script)
    code, _, cause, hint = tried(path).split("|")
    assert (code, cause) == ("no-bindings", f"{path}/flux reports no folder with bindings")
    assert "pip install flux-python" in hint


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "libflux-core.so.2: cannot open shared object file: No such file or directory",
            "put the folder of libflux-core.so.2 into LD_LIBRARY_PATH",
        ),
        ("_core.so: undefined symbol: flux_new_thing", "uninstall flux-python"),
        ("No module named 'ply'", "compare 'flux version' and 'pip show flux-python'"),
    ],
)
def test_bindings_that_cannot_be_imported_are_an_error_with_a_hint(
    tmp_path: Path, error: str, told: str
) -> None:
    site = bound(tmp_path / "site", f"raise ImportError({error!r})")
    (tmp_path / "bin").mkdir()
    code, _, cause, hint = tried(tmp_path / "bin", site).split("|")
    assert (code, cause) == ("broken-bindings", error)
    assert told in hint


def test_a_signal_during_the_connection_is_harmless() -> None:
    asked: list[tuple[str, ...]] = []

    class Bindings:
        def Flux(self, *uri: str) -> str:  # noqa: N802 (as the bindings have it)
            asked.append(uri)
            if len(asked) < 3:
                raise InterruptedError(4, "Unable to connect to Flux: Interrupted system call")
            return "handle"

    flux = Bindings()
    assert connect(flux, "local:///run/flux") == "handle"
    assert asked == [("local:///run/flux",)] * 3
    assert connect(flux, None) == "handle"
    assert asked[-1] == ()
