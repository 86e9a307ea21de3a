"""Configuration of Sphinx for the documentation site; ``scripts/site.py`` builds it."""

from importlib.metadata import version as installed_version

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
