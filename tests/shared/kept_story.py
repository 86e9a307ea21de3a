"""Runs whose journal is written by a story, without a controller or jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ensemble_testing import Story

from ensemble_core.journal.reader import NAME
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event
from ensemble_core.plugin.discovery import discover
from ensemble_core.session.kept_run import versions

__all__ = ["KeptStory"]

_VERSIONS = versions(discover())


class KeptStory(Story):
    """Story that is written to the journal of the run ``tag`` below ``state``.

    ``about`` is added to the description of the run. ``began`` is its start in seconds since the
    epoch (default: the story's).
    """

    def __init__(
        self, state: Path, text: str, tag: str, *, began: float | None = None, **about: Any
    ) -> None:
        super().__init__(text)
        self.folder = state / "runs" / tag
        self.folder.mkdir(parents=True)
        self.path = self.folder / NAME
        self.writer = JournalWriter(self.path)
        known = {"tag": tag, "name": tag, "file": "/e.yaml", "executor": {"name": "local"}}
        self.writer.describe({**known, "plugins": [], "shared": False, **about})
        self.writer.store_file_version("/e.yaml", text, ())
        self.writer.begin(self.now if began is None else began, _VERSIONS)

    def tell(self, event: Event) -> list[Decision]:
        decisions = super().tell(event)
        self.writer.append(event, decisions)
        return decisions
