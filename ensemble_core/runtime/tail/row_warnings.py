"""Texts for the user: why rows of a file may be missing, and why they came late."""

from __future__ import annotations

from collections.abc import Iterator

from ensemble_core.quick_dataclass import dataclass
from ensemble_core.runtime.tail.file_reading import ReadPosition
from ensemble_core.runtime.tail.observer_feed import ObserverFeed

#: If a job has run for at least this many seconds and has at least this many rows, all of them at
#: its end, it has probably buffered its output.
_LATE, _LATE_ROWS = 30.0, 10


@dataclass(slots=True)
class RowWarnings:
    """Why rows of a file may be missing or count twice."""

    #: Number of bytes that were skipped.
    skipped: int = 0
    #: What was done to the file.
    lost: str = ""
    #: Whether the file has changed without growing: then, lines may have been overwritten.
    suspect: bool = False

    def texts(self, path: str, position: ReadPosition, feed: ObserverFeed) -> Iterator[str]:
        """Yield what the user must know about the file at this path."""
        if self.skipped:
            yield (
                f"{self.skipped / 1e6:.0f} MB of {path} were skipped, because it grew faster "
                f"than the observer {feed.name!r} could read it"
            )
        if self.lost:
            yield f"{path} {self.lost}, so rows may be missing or count twice"
        elif self.suspect and position.is_overwritten_in(path):
            yield (
                f"lines of {path} that the observer {feed.name!r} had read were overwritten: "
                "their new values are unknown"
            )
        if feed.skip:
            yield (
                f"{path} has {feed.skip} fewer rows than before the resume, so it was renamed or "
                "truncated, and rows are missing"
            )


def lateness(path: str, feed: ObserverFeed, ran: float) -> str | None:
    """Return a text if all rows of a job came at its end. ``ran``: its time in seconds."""
    early, late = feed.rows
    if not early and late >= _LATE_ROWS and ran >= _LATE:
        return (
            f"all {late} rows of {path} came at its end, after {ran:.0f} s: programs "
            "buffer output that is not a terminal; use 'python -u' or 'stdbuf -oL'"
        )
    return None
