"""Environments of the peers: one for each, because their requirements conflict."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from task import Peer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "peers"
UV = ROOT / ".uv" / "uv"


def python(peer: Peer) -> tuple[str, str]:
    """Return the interpreter with a peer, and the peer's version; install it if necessary.

    Raises ``RuntimeError`` with the installer's last line if the peer cannot be installed."""
    if not peer.packages:
        return sys.executable, metadata.version("ensemble-core") if peer.name == "ensemble" else ""
    folder = FOLDER / peer.name
    program = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = str(UV) if UV.exists() else "uv"
        install = [uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(program)]
        for words in ([uv, "venv", "-q", "-p", sys.executable, str(folder)],
                      [*install, *peer.packages]):  # fmt: skip
            try:
                subprocess.run(words, check=True, capture_output=True, text=True)
            except FileNotFoundError:
                raise RuntimeError("uv is missing: run 'make setup' first") from None
            except subprocess.CalledProcessError as error:
                lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
                raise RuntimeError(f"cannot be installed: {lines[-1].strip()}") from None
        done.touch()
    ask = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    found = subprocess.run(
        [program, "-c", ask, peer.packages[0].partition("==")[0]],
        check=True,
        capture_output=True,
        text=True,
    )
    return str(program), found.stdout.strip()
