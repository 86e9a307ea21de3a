"""What is vendored is what its authors published."""

from __future__ import annotations

import hashlib
import sys
from importlib.resources import files

import pytest

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
