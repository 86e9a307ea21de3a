"""Configuration of Sphinx for the documentation site; ``scripts/build_site.py`` builds it."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import Any

from bs4 import BeautifulSoup

project = "Ensemble"
author = "The Ensemble developers"
copyright = author  # noqa: A001
release = version = installed_version("ensemble-core")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
html_theme = "furo"
html_title = "Ensemble"
html_show_sourcelink = False
html_copy_source = False
# Fetching pages for excerpts of search results does not work from file://.
html_show_search_summary = False
# Options and quotes stay as they are typed: readers copy them.
smartquotes = False


#: Entries of the navigation whose children only their own pages show: these are many.
LONG = ("examples/", "plugins/", "api", "commands", "file-keys")


def shortened(navigation: str) -> str:
    """Return the navigation without entries that few pages need: it is repeated on each page."""
    tree = BeautifulSoup(navigation, "html.parser")
    for entry in tree.select("li.has-children:not(.current)"):
        link = entry.a["href"].replace("../", "") if entry.a else ""
        if link.startswith(LONG):
            entry["class"].remove("has-children")
            for part in entry.find_all(["ul", "input", "label"], recursive=False):
                part.decompose()
    return str(tree)


def make_accessible(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Add what screen readers and keyboards need and Sphinx leaves out."""
    navigation = shortened(context.get("furo_navigation_tree", ""))
    context["furo_navigation_tree"] = navigation.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )
    # Blocks that are too wide scroll: by keyboard only if they can have the focus.
    context["body"] = context.get("body", "").replace("<pre>", '<pre tabindex="0">')


def setup(app: Any) -> None:
    """Called by Sphinx; runs after Furo has made the navigation."""
    app.connect("html-page-context", make_accessible, priority=900)
