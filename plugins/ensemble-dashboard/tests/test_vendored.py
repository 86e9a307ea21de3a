"""Tests of the page's files: vendored ones are unmodified, the rest is small."""

from __future__ import annotations

import hashlib
import sys
from importlib.resources import files

import pytest
from ensemble_dashboard.documents import CLIENT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


def test_vendored_files_are_unchanged() -> None:
    client = files("ensemble_dashboard").joinpath("client")
    listed = tomllib.loads(client.joinpath("VENDORED.toml").read_text())
    assert {each.name for each in client.joinpath("vendor").iterdir()} == {*listed, "LICENSES.txt"}
    for name, about in listed.items():
        content = client.joinpath("vendor").joinpath(name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == about["sha256"]


@pytest.mark.parametrize(("ending", "most"), [("js", 1250), ("css", 300)])
def test_the_page_is_no_larger_than_its_design_allows(ending: str, most: int) -> None:
    client = files("ensemble_dashboard").joinpath("client")
    own = [each.name for each in client.iterdir() if each.name.endswith(f".{ending}")]
    lines = [line for name in own for line in client.joinpath(name).read_text().splitlines()]
    assert len(lines) <= most
    assert [line for line in lines if len(line) > 100] == []


def test_every_file_of_the_page_is_served() -> None:
    client = files("ensemble_dashboard").joinpath("client")
    own = {each.name for each in client.iterdir() if each.is_file()} - {"VENDORED.toml"}
    assert own == {name for name in CLIENT if not name.startswith("vendor/")}
