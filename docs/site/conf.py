"""Configuration of Sphinx for the documentation site; ``scripts/build_site.py`` builds it."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import Any

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


def shorten(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Show in the navigation, which each page repeats, only the subpages near the page."""
    whole = context["toctree"]
    context["toctree"] = lambda **options: whole(**{**options, "collapse": True})


def make_accessible(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Add what screen readers and keyboards need and Sphinx leaves out."""
    navigation = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = navigation.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )
    # Blocks that are too wide scroll: by keyboard only if they can have the focus.
    context["body"] = context.get("body", "").replace("<pre>", '<pre tabindex="0">')


def setup(app: Any) -> None:
    """Called by Sphinx. Furo makes the navigation with the default priority, 500."""
    app.connect("html-page-context", shorten, priority=100)
    app.connect("html-page-context", make_accessible, priority=900)
