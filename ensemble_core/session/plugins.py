"""Plugins for a session: the installed ones, and the files that a run names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry

__all__ = ["FindPlugins", "find_plugins"]

#: Returns the installed plugins with those of these files. The command line also prints what is
#: wrong with any, and executes a file once for each command.
FindPlugins = Callable[[Sequence[str]], Registry]

_installed = lru_cache(maxsize=1)(discover)


def find_plugins(files: Sequence[str]) -> Registry:
    """Return the installed plugins, which are loaded once for each process, with those of these
    files. Raises :class:`PluginError` for a file that is missing or broken."""
    return discover(files) if files else _installed()
