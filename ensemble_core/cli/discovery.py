"""Plugins as a command sees them: found, and warned about on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ensemble_core.cli.text_style import clean, look_for
from ensemble_core.plugin.registry import Registry

__all__ = ["discover"]


def discover(files: Sequence[str], *, warn: bool = True) -> Registry:
    """The installed plugins and those in ``files``; what is wrong with any is said once."""
    from ensemble_core.plugin import discovery as plugins

    registry = plugins.discover(files)
    if warn:
        look = look_for(sys.stderr)
        for text in registry.warnings:
            sys.stderr.write(f"{look.paint('warning:', 'warning')} {clean(text)}\n")
    return registry
