"""Contract suite for a plugin's README: checks that its ensemble file is valid and shows every
option.
"""

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
    """Tests of a README.

    The attribute ``distribution`` is the plugin's name on PyPI. The attribute ``options`` is the
    schema whose properties the README's only ensemble file (a ``yaml`` block) must show. The
    attribute ``tests`` is the folder of the tests: the README is in its parent, or in the wheel.
    """

    distribution: ClassVar[str]
    options: ClassVar[Mapping[str, Any]]
    tests: ClassVar[Path]

    def readme(self) -> str:
        """Return the README's text."""
        file = self.tests.parent / "README.md"
        if file.is_file():
            return file.read_text("utf-8")
        return str(metadata(self.distribution).json["description"])

    def test_the_ensemble_file_in_the_readme_is_valid_and_shows_every_option(self) -> None:
        (file,) = re.findall(r"^```yaml\n(.*?)^```", self.readme(), re.M | re.S)
        assert load_text(file, discover(), file="README.md").warnings == ()
        assert [name for name in self.options["properties"] if f"{name}:" not in file] == []
