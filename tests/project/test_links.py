"""Links in the documentation lead to existing files and headings. No network is needed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "plugins/*/**/*.md")
    for page in ROOT.glob(pattern)
)
_CODE = re.compile(r"^( *)```.*?^ *```$|`[^`\n]+`", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")

pytestmark = pytest.mark.checkout


def prose(page: Path) -> str:
    """Return a page without its code."""
    return _CODE.sub(lambda found: re.sub(r"[^\n]", "", found[0]), page.read_text("utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return the valid anchors of a page, or the functions of a module."""
    if page.suffix == ".py":
        return set(re.findall(r"^def (\w+)", page.read_text("utf-8"), re.M))
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    made = {
        re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")
        for heading in headings
    }
    return made | set(re.findall(r'<a id="([^"]+)">', text))


def broken(page: Path) -> list[str]:
    """Return the broken links of a page."""
    found = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_are_valid(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_detected(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# A heading\n")
    (tmp_path / "b.py").write_text("def hook(): ...\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[a](b.md) [b](b.md#a-heading) [c](c.md) [d](b.md#no) `[e](e.md)` [f](#g)"
        " [h](b.py#hook) [i](b.py#no)\n"
    )
    assert broken(page) == ["c.md", "b.md#no", "#g", "b.py#no"]
