"""Finds the plugins of a session: the installed ones, and the plugin files of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry

#: Function that returns the installed plugins and those in the given files. That of the command
#: line also prints problems, and executes a file only once per command.
FindPlugins = Callable[[Sequence[str]], Registry]

_installed = lru_cache(maxsize=1)(discover)


def find_plugins(files: Sequence[str]) -> Registry:
    """Return the installed plugins (loaded once per process) and those in these files.

    Raises :class:`PluginError` if a file is missing or broken.
    """
    return discover(files) if files else _installed()
