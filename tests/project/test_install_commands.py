"""No command in the documentation or in a message installs a stranger's ``ensemble-core``: until our first release
PyPI has another project's 0.1.2 under that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in (
        "*.md",
        "docs/*.md",
        "examples/*",
        "plugins/*/README.md",
        "plugins/*/deploy/*",
        "plugins/*/ensemble_*/*.py",
        "ensemble_core/**/*.py",
    )
    for page in ROOT.glob(pattern)
    if page.is_file()
)

pytestmark = pytest.mark.checkout
_INSTALL = re.compile(r"pip install[^`#\n]*")


def unbounded(text: str) -> list[str]:
    """Install commands that would take any version of the core."""
    return [
        command
        for command in _INSTALL.findall(text)
        if re.search(r"(?<![\w/.-])ensemble-core(?!\w|-\w)(?!(\[\w+\])?>=1)", command)
    ]


def test_the_check_finds_what_it_looks_for() -> None:
    assert unbounded("pip install ensemble-core ensemble-flux")
    assert unbounded("pip install 'ensemble-core[plot]'")
    assert not unbounded("pip install 'ensemble-core[plot]>=1.0' './ensemble-core'")


def test_each_install_command_asks_for_our_versions() -> None:
    found = {str(page.relative_to(ROOT)): unbounded(page.read_text("utf-8")) for page in PAGES}
    # The README warns of the one command.
    assert {page: commands for page, commands in found.items() if commands} == {
        "README.md": ["pip install ensemble-core"]
    }


def test_the_warning_comes_before_the_first_install_command() -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("## Install")[2]
    assert section.index("belongs to another project") < section.index("```")
