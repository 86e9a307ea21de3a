"""No command in the documentation or a message installs another project's ``ensemble-core``, which is
0.1.2 on PyPI until our first release. Pages name the plugins that their commands need."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ensemble_core.plugin.distributions import FILE

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


#: Pages that show commands and options of plugins.
GUIDES = sorted(
    page
    for pattern in ("docs/**/*.md", "examples/**/README.md")
    for page in ROOT.glob(pattern)
    # Pages about all plugins: they need no "You need" line.
    if page.name not in ("install.md", "security.md") and page.parent.name != "examples"
)
KNOWN = json.loads(Path(FILE).read_text("utf-8"))
_NEEDS = re.compile(r"^You need (.*) \(\[install\]\([./]*(docs/)?install\.md\)\)\.", re.M)
_CODE = re.compile(r"^ *```(?:console|sh)\n(.*?)^ *```|`([^`\n]+)`", re.M | re.S)


def unnamed(text: str) -> set[str]:
    """Return plugins that the page's commands need but that its "You need" line does not name."""
    code = "\n".join(block + inline for block, inline in _CODE.findall(text))
    used = {
        distribution
        for distribution, known in KNOWN.items()
        for kind, prefix in (("command", "ensemble[ -]"), ("executor", "--executor "))
        for name in known.get(kind, ())
        if re.search(rf"(?<![\w/-]){prefix}{name}(?![\w.-])", code)
    }
    needs = _NEEDS.search("\n".join(text.splitlines()[:6]))
    return used - set(re.findall(r"ensemble-\w+", needs[1] if needs else ""))


def unbounded(text: str) -> list[str]:
    """Return install commands that accept any version of the core."""
    return [
        command
        for command in _INSTALL.findall(text)
        if re.search(r"(?<![\w/.-])ensemble-core(?!\w|-\w)(?!(\[\w+\])?>=1)", command)
    ]


def test_unbounded_install_commands_are_detected() -> None:
    assert unbounded("pip install ensemble-core ensemble-flux")
    assert unbounded("pip install 'ensemble-core[plot]'")
    assert not unbounded("pip install 'ensemble-core[plot]>=1.0' './ensemble-core'")


def test_each_install_command_requires_our_versions() -> None:
    found = {str(page.relative_to(ROOT)): unbounded(page.read_text("utf-8")) for page in PAGES}
    # The README warns against this command.
    assert {page: commands for page, commands in found.items() if commands} == {
        "README.md": ["pip install ensemble-core"]
    }


def test_the_warning_comes_before_the_first_install_command() -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("## Install")[2]
    assert section.index("of another project") < section.index("```")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_at_its_top_which_plugins_its_commands_need(page: Path) -> None:
    assert unnamed(page.read_text("utf-8")) == set()


def test_a_plugin_missing_at_the_top_of_a_page_is_detected() -> None:
    text = "# A page\n\n{}\n\nWith `ensemble plot last`:\n\n```sh\nensemble-server start\n```\n"
    assert unnamed(text) == {"ensemble-plot", "ensemble-service"}
    line = "You need ensemble-plot for `ensemble plot`, ensemble-service ([install](install.md))."
    assert unnamed(text.format(line)) == set()
