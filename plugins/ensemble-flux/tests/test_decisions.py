"""The same file leads to the same decisions on a Flux instance as on this machine's processes.

Every example, and every file of ``ENSEMBLE_COMPAT_DIR``, runs on both; the streams of decisions
must be equal, times apart. Which of several equal jobs happens to end first is chance in any
queue, so of the job that woke a rule only its group is compared.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "ensemble_core.cli"]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
#: What Flux refuses when the file is checked: a plain instance has a fixed size.
RESIZING = {"grow-shrink.yaml", "minicluster.yaml"}
#: What is for several queues.
MEMBERS = {"two-members.yaml"}
#: Where jobs (or functions) that take different times race one another: there the same decisions
#: are made, in an order that differs from run to run on any one queue as well.
RACING = {"custom-action.yaml", "json-lines.yaml", "lammps-melt.yaml", "lammps-sweep.yaml"}
#: Where time decides how many jobs there are, or which file the next one begins with: there the same
#: rules fire, for jobs of the same groups.
TIMED = {"lammps-converge.yaml", "lammps-restart.yaml", "lammps-shape.yaml"}
#: Rules that go by how quick this machine just was.
MEASURED = {"too-wide"}


def files() -> list[Path]:
    compat = os.environ.get("ENSEMBLE_COMPAT_DIR")
    found = sorted(file for file in (ROOT / "examples").glob("*.yaml") if file.name not in MEMBERS)
    if compat:
        found += sorted({*Path(compat).glob("*-example.yaml"), *Path(compat).glob("hello-*.yaml")})
    return found


def needs(file: Path) -> None:
    """Skip where something is missing that the file names."""
    if "lammps" in file.name:
        if importlib.util.find_spec("ensemble_lammps") is None:
            pytest.skip("no plugin: pip install ensemble-lammps to test this example")
        if shutil.which("lmp", path=PATH) is None:
            pytest.skip("no lmp on the PATH: pip install 'lammps[mpi]' to test this example")


def start(file: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    folder.mkdir()
    return subprocess.Popen(
        [*COMMAND, "run", "--json", "--output", str(folder / "output"), *options, str(file)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": PATH},
    )


def plain(line: dict[str, Any]) -> dict[str, Any]:
    """A decision without what chance decides: what was measured, and which equal job came first."""
    kept = {key: value for key, value in line.items() if key not in ("timestamp", "value")}
    if line["type"] == "fired" and line["job"] is not None:
        kept["job"] = line["job"].rpartition(".")[0]
    elif line["type"] == "log":
        kept["message"] = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", line["message"])
    return kept


def decisions(
    process: subprocess.Popen[str], *, racing: bool = False
) -> tuple[int, list[dict[str, Any]]]:
    output, errors = process.communicate(timeout=120)
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines, errors
    found = [plain(line) for line in lines if line.get("kind") == "decision"]
    assert found, errors
    if racing:
        for decision in found:
            decision.pop("firing", None)
        found.sort(key=lambda decision: json.dumps(decision, sort_keys=True))
    return process.returncode, found


def outline(code: int, found: list[dict[str, Any]]) -> tuple[int, set[tuple[str, ...]]]:
    """Which rules fired and which groups were submitted, however often."""
    return code, {
        tuple(str(line[key]) for key in ("type", "rule", "group") if key in line)
        for line in found
        if line["type"] in ("fired", "submit", "terminate") and line["rule"] not in MEASURED
    }


@pytest.mark.usefixtures("instance")
@pytest.mark.parametrize("file", files(), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_file_leads_to_the_same_decisions_as_on_this_machine(file: Path, tmp_path: Path) -> None:
    needs(file)
    if file.name in RESIZING:
        refused = start(file, tmp_path / "flux", "--executor", "flux")
        _, errors = refused.communicate(timeout=60)
        assert refused.returncode == 2
        assert "flux" in errors
        assert "resize" in errors or "grow" in errors
        return
    # As many cores as the instance has.
    local = start(file, tmp_path / "local", "--executor", "local", "--slots", "8")
    flux = start(file, tmp_path / "flux", "--executor", "flux")
    if file.name in TIMED:
        assert outline(*decisions(flux)) == outline(*decisions(local))
        return
    racing = file.name in RACING
    assert decisions(flux, racing=racing) == decisions(local, racing=racing)


@pytest.mark.usefixtures("instance")
def test_rules_see_output_that_only_flux_keeps(tmp_path: Path) -> None:
    """As where jobs run on nodes that do not have the run's folder."""
    file = ROOT / "examples" / "json-lines.yaml"
    if not file.exists():
        pytest.skip("the project's examples are not here")
    stored = start(file, tmp_path / "kvs", "--executor", "flux", "-o", "output=kvs")
    files = start(file, tmp_path / "files", "--executor", "flux", "-o", "output=files")
    assert decisions(stored, racing=True) == decisions(files, racing=True)
    for name in ("descend.0.out", "descend.2.out"):
        (kept,) = (tmp_path / "kvs" / "output").rglob(name)
        (same,) = (tmp_path / "files" / "output").rglob(name)
        assert kept.read_text() == same.read_text() != ""
