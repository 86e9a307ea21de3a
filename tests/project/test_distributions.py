"""The wheels are complete, and never install another project's ``ensemble-core``.

``make test`` builds the distributions and names their folder in ENSEMBLE_DIST.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

_DIST = os.environ.get("ENSEMBLE_DIST", "")
DIST = Path(_DIST) if _DIST else Path("no folder of distributions")
UV = os.environ.get("UV") or shutil.which("uv")
WHEELS = sorted(DIST.glob("*.whl"))
PLUGINS = [wheel for wheel in WHEELS if not wheel.name.startswith("ensemble_core-")]

pytestmark = [
    pytest.mark.checkout,
    pytest.mark.skipif(
        not _DIST,
        reason="ENSEMBLE_DIST is not set: no distributions to look into (make test builds them)",
    ),
]
needs_uv = pytest.mark.skipif(not UV, reason="uv is not on the PATH")


def name_of(wheel: Path) -> str:
    return wheel.name.partition("-")[0]


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def read(wheel: Path, ending: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(ending))
        return archive.read(name).decode()


def metadata(wheel: Path) -> Message:
    return HeaderParser().parsestr(read(wheel, ".dist-info/METADATA"))


def stand_in(folder: Path, name: str, version: str) -> None:
    """Create an almost empty wheel."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"of_a_stranger_{module}.py", "")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def stranger(folder: Path, version: str) -> None:
    """Create another project's wheel with the core's name."""
    stand_in(folder, "ensemble-core", version)


def satisfy_others(folder: Path, wheel: Path) -> None:
    """Create stand-ins for all requirements of the wheel except the core."""
    for line in metadata(wheel).get_all("Requires-Dist", []):
        (name,) = re.findall(r"^[\w-]+", line)
        if name != "ensemble-core" and "extra ==" not in line:
            at_least = re.search(r">=([\d.]+)", line)
            stand_in(folder, name, at_least[1] if at_least else "999")


def resolve(folder: Path, *requirements: str) -> subprocess.CompletedProcess[str]:
    """Resolve with one folder of wheels and no index."""
    assert UV
    return subprocess.run(
        [UV, "pip", "compile", "-q", "--no-config", "--no-index", "--find-links", folder, "-"],
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=150,
        env={k: v for k, v in os.environ.items() if k != "UV_FIND_LINKS"},
    )


def test_every_distribution_has_a_wheel_and_a_source_distribution() -> None:
    names = {name_of(wheel) for wheel in WHEELS}
    assert {"ensemble_core", "ensemble_flux", "ensemble_lammps"} <= names
    assert names == {name_of(source) for source in DIST.glob("*.tar.gz")}


@pytest.mark.parametrize("wheel", WHEELS, ids=name_of)
def test_a_wheel_is_complete_and_has_no_other_files(wheel: Path) -> None:
    name, files = name_of(wheel), contents(wheel)
    assert {f"{name}/__init__.py", f"{name}/py.typed"} <= files
    assert "MIT" in read(wheel, ".dist-info/licenses/LICENSE")
    assert {file.split("/")[0].partition("-")[0] for file in files} == {name}
    assert not [
        file for file in files if file.endswith((".pyc", ".orig", "~")) or "/tests/" in file
    ]


def test_the_wheel_of_the_core_has_the_schema() -> None:
    (core,) = (wheel for wheel in WHEELS if name_of(wheel) == "ensemble_core")
    assert "ensemble_core/config/ensemble.schema.json" in contents(core)
    assert "ensemble = ensemble_core.cli.entry:main" in read(core, "entry_points.txt")


@pytest.mark.parametrize("wheel", PLUGINS, ids=name_of)
def test_a_plugin_requires_our_core_and_has_entry_points(wheel: Path) -> None:
    needed = metadata(wheel).get_all("Requires-Dist", [])
    (core,) = (line for line in needed if line.startswith("ensemble-core"))
    versions = core.removeprefix("ensemble-core").removeprefix("[service]")
    assert set(versions.strip(" ()").split(",")) == {">=1.0", "<2"}
    if name_of(wheel) in ("ensemble_batch", "ensemble_programs"):  # bases: they register nothing
        return
    assert re.search(
        r"^\[(ensemble|ensemble\.commands|console_scripts)\]$",
        read(wheel, "entry_points.txt"),
        re.M,
    )


@needs_uv
@pytest.mark.parametrize("wheel", PLUGINS, ids=name_of)
@pytest.mark.parametrize("version", ["0.1.2", "2.0"])
def test_another_projects_core_is_never_installed(
    wheel: Path, version: str, tmp_path: Path
) -> None:
    shutil.copy(wheel, tmp_path)
    satisfy_others(tmp_path, wheel)
    stranger(tmp_path, version)

    refused = resolve(tmp_path, name_of(wheel))

    assert refused.returncode != 0
    assert "ensemble-core>=1.0,<2" in refused.stderr.replace("[service]", "")


@needs_uv
@pytest.mark.parametrize("wheel", PLUGINS, ids=name_of)
def test_a_core_with_a_matching_version_is_installed(wheel: Path, tmp_path: Path) -> None:
    shutil.copy(wheel, tmp_path)
    satisfy_others(tmp_path, wheel)
    for version in ("0.1.2", "1.0.0", "2.0"):
        stranger(tmp_path, version)

    taken = resolve(tmp_path, name_of(wheel))

    assert taken.returncode == 0, taken.stderr
    assert "ensemble-core==1.0.0" in taken.stdout
