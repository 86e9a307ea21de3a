"""Registers the actions of converted jobspecs, and jobspecs in ensemble files."""

from __future__ import annotations

from collections.abc import Iterable

from ensemble_core import ActionPlugin, SourcePlugin, hookimpl


@hookimpl
def ensemble_actions() -> Iterable[ActionPlugin]:
    """Return the actions ``jobspec-local`` and ``jobspec-files``."""
    from ensemble_jobspec.actions import FILES, LOCAL

    return [LOCAL, FILES]


@hookimpl
def ensemble_sources() -> Iterable[SourcePlugin]:
    """Return the source ``jobspec``."""
    from ensemble_jobspec.jobspec_entries import SOURCE

    return [SOURCE]
