"""Plugins of a session: the installed plugins, and the plugin files of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry

__all__ = ["FindPlugins", "find_plugins"]

#: Function that returns the installed plugins and those in the given files. The command line's
#: version also prints problems, and executes a file once for each command.
FindPlugins = Callable[[Sequence[str]], Registry]

_installed = lru_cache(maxsize=1)(discover)


def find_plugins(files: Sequence[str]) -> Registry:
    """Return the installed plugins, which are loaded once per process, and those in these files.

    Raises :class:`PluginError` if a file is missing or broken.
    """
    return discover(files) if files else _installed()
