"""Tests of the images, without building them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILE = Path(__file__).parents[1] / "deploy" / "Containerfile"


def steps() -> list[str]:
    """Return the instructions, each on one line."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def lines(file: Path) -> list[str]:
    found = file.read_text(encoding="utf-8").splitlines()
    return [each for each in found if each and not each.startswith("#")]


def uv() -> str | None:
    own = [str(each) for each in (ROOT / ".uv" / "bin" / "uv", ROOT / ".uv" / "uv")]
    return next((each for each in own if Path(each).is_file()), None) or shutil.which("uv")


def version(program: str) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return tuple(map(int, re.findall(r"\d+", done.stdout)[:3]))


OWN = {"grpcio", "ply", "cryptography"}


@pytest.mark.checkout
@pytest.mark.parametrize(
    ("image", "has", "lacks"),
    [(0, {"kopf", "kubernetes", *OWN}, {"scipy"}), (1, {"grpcio", "ply"}, {"kopf", "kubernetes", "aiohttp"})],
    ids=["operator", "view"],
)  # fmt: skip
def test_images_install_what_the_lock_file_lists_for_these_packages(
    tmp_path: Path, image: int, has: set[str], lacks: set[str]
) -> None:
    line = [each for each in steps() if each.startswith("RUN uv export")][image]
    (pinned,) = re.findall(r"uv==([0-9.]+)", FILE.read_text(encoding="utf-8"))
    program = uv()
    if program is None or version(program) < tuple(map(int, pinned.split("."))):
        pytest.skip(f"no uv {pinned} or newer here")
    words = shlex.split(line.removeprefix("RUN uv "))
    words[words.index("-o") + 1] = str(tmp_path / "requirements.txt")
    done = subprocess.run(
        [program, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "requirements.txt").read_text(encoding="utf-8")
    named = set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE))
    assert has <= named
    assert not lacks & named, "members need none of it, and each would have a copy"
    assert not [each for each in named if each.startswith("ensemble-")], "those are built"


@pytest.mark.checkout
def test_the_built_folders_exist_and_are_those_needed() -> None:
    (line,) = [each for each in steps() if each.startswith("RUN pip wheel")]
    folders = [each for each in shlex.split(line) if each.startswith(".")]
    assert all((ROOT / each / "pyproject.toml").is_file() for each in folders)
    named = {Path(each).name for each in folders if each != "."}
    wanted = {"ensemble-flux", "ensemble-minicluster", "ensemble-operator", "ensemble-service"}
    assert named == wanted


@pytest.mark.checkout
def test_images_are_built_without_the_history_and_ignored_files() -> None:
    """Otherwise the build would copy virtual environments and other large folders."""
    ignored = [f"**/{each.rstrip('/')}" for each in lines(ROOT / ".gitignore")]
    assert lines(ROOT / ".dockerignore") == [".git", *ignored]
