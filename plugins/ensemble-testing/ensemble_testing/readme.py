"""The contract of a plugin's README, as a suite to inherit: its ensemble file is valid, and shows
every option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import metadata
from pathlib import Path
from typing import Any, ClassVar

from ensemble_core.cli.toolkit import load_text
from ensemble_core.plugin.discovery import discover

__all__ = ["ReadmeContract"]


class ReadmeContract:
    """``distribution`` is the plugin's name on PyPI, ``options`` the schema that the README's one
    ensemble file (a block of ``yaml``) shows all properties of, ``tests`` the folder of its tests:
    the README is in the one above, or else what was built into the wheel."""

    distribution: ClassVar[str]
    options: ClassVar[Mapping[str, Any]]
    tests: ClassVar[Path]

    def readme(self) -> str:
        """The README's text."""
        file = self.tests.parent / "README.md"
        if file.is_file():
            return file.read_text("utf-8")
        return str(metadata(self.distribution).json["description"])

    def test_the_ensemble_file_in_the_readme_is_valid_and_shows_every_option(self) -> None:
        (file,) = re.findall(r"^```yaml\n(.*?)^```", self.readme(), re.M | re.S)
        assert load_text(file, discover(), file="README.md").warnings == ()
        assert [name for name in self.options["properties"] if f"{name}:" not in file] == []
