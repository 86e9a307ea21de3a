"""Hooks of the plugin: the actions of converted jobspecs."""

from __future__ import annotations

from collections.abc import Iterable

from ensemble_core import ActionPlugin, hookimpl

__all__ = ["ensemble_actions"]


@hookimpl
def ensemble_actions() -> Iterable[ActionPlugin]:
    """The actions ``jobspec-local`` and ``jobspec-files``."""
    from ensemble_jobspec.actions import FILES, LOCAL

    return [LOCAL, FILES]
