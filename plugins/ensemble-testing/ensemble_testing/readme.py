"""Contract suite for a plugin's README: checks that its ensemble files are valid and that it lists
every option.
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
    """Tests of a plugin's README.

    - ``options``: schema whose options must occur in the README's ensemble files (``yaml`` blocks)
    - ``executor_options``: schema whose options must be rows of a table in the README. Each row
      starts with ``| `NAME=``
    - ``tests``: folder of the plugin's tests, beside the README
    - ``distribution``: the plugin's name on PyPI. If ``README.md`` is missing, its text is read
      from the metadata of the installed distribution
    """

    distribution: ClassVar[str]
    options: ClassVar[Mapping[str, Any]]
    executor_options: ClassVar[Mapping[str, Any]] = {"properties": {}}
    tests: ClassVar[Path]

    def readme(self) -> str:
        """Return the README's text."""
        file = self.tests.parent / "README.md"
        if file.is_file():
            return file.read_text("utf-8")
        return str(metadata(self.distribution).json["description"])

    def test_readme_files_are_valid_and_every_option_is_listed(self) -> None:
        text = self.readme()
        files = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
        assert files
        for file in files:
            assert load_text(file, discover(), file="README.md").warnings == ()
        shown = "".join(files)
        assert [name for name in self.options["properties"] if f"{name}:" not in shown] == []
        rows = self.executor_options["properties"]
        assert [name for name in rows if f"| `{name}=" not in text] == []
