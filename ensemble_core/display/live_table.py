"""Live table of a run's job groups, which stays at the bottom of the terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from ensemble_core.display.summary import cost_text, group_table, progress_text
from ensemble_core.display.text_style import TextStyle, format_duration, is_terminal, shorten
from ensemble_core.engine.report import Report
from ensemble_core.late_pattern import late_pattern

_STYLE = late_pattern(r"\x1b\[[0-9;]*m")
#: Minimum height in rows: on a smaller terminal, the table would leave no room for other lines.
_FEWEST_ROWS = 5
_FEWEST_COLUMNS = 20
#: Counts of jobs that are not over.
_BUSY = ("waiting", "running", "suspended")


def can_be_live(out: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if this stream can show a live table."""
    return is_terminal(out) and environ.get("TERM", "dumb") not in ("dumb", "")


# The output thread writes the text of a frame and the lines above it in one piece, so that nothing
# flickers. The cursor stays at the start of the line below the table.
class LiveTable:
    """Generates the text of the live table. ``size`` returns the size of the terminal."""

    def __init__(
        self,
        look: TextStyle,
        size: Callable[[], os.terminal_size],
        *,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._look = look
        self._size = size
        self._clock = clock
        self._began = clock()
        #: False for xterm, which cuts off lines when its window becomes narrower. Other terminals
        #: wrap them.
        self._rewraps = "XTERM_VERSION" not in environ
        self._lengths: list[int] = []
        self._columns = 0
        self.report: Report | None = None
        #: The lines of a results table that is shown below, beginning with the headings.
        self.table: list[str] = []
        #: A last line that stays, for example after a first Ctrl-C.
        self.note = ""

    def begin(self) -> None:
        """Start the clock of the run, after plugins and the file have been loaded."""
        self._began = self._clock()

    def erase(self) -> str:
        """Return the escape sequence that erases the last frame and moves the cursor back."""
        height = self._height(self._size().columns)
        self._lengths = []
        return f"\r\x1b[{height}A\x1b[J" if height else ""

    def draw(self) -> str:
        """Return the next frame, if no frame is on the screen."""
        lines = self._frame()
        return "".join(f"{line}\n" for line in lines)

    def refresh(self) -> str:
        """Return the escape sequences that replace the last frame by the next one."""
        columns = self._size().columns
        if columns != self._columns or not self._lengths:
            return self.erase() + self.draw()
        height = self._height(columns)
        lines = self._frame()
        return f"\r\x1b[{height}A" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"

    def _height(self, columns: int) -> int:
        """Return how many rows the last frame occupies now."""
        if columns >= self._columns or not self._rewraps:
            return len(self._lengths)
        return sum(max(1, -(-length // max(1, columns))) for length in self._lengths)

    def _frame(self) -> list[str]:
        size = self._size()
        lines: list[str] = []
        if (
            self.report is not None
            and size.lines >= _FEWEST_ROWS
            and size.columns >= _FEWEST_COLUMNS
        ):
            # Keep one column free, because a full line would wrap at the next character.
            lines = self._lines(self.report, size.columns - 1, size.lines - 2)
        self._lengths = [len(_STYLE.sub("", line)) for line in lines]
        self._columns = size.columns
        return lines

    def _lines(self, report: Report, width: int, height: int) -> list[str]:
        foot = self._foot(report, width)
        room = height - len(foot) - 1
        groups = report.groups
        total = len(groups) > 1 and room > 2
        fitting = room - (1 if total else 0)
        shown = list(range(len(groups)))
        if len(groups) > fitting:
            # Prefer groups with active jobs, in order. One line counts the other groups.
            busy = sorted(shown, key=lambda i: not any(getattr(groups[i], each) for each in _BUSY))
            shown = sorted(busy[: max(1, fitting - 1)])
        table = [groups[place] for place in shown]
        sums = groups if total else None
        lines = group_table(table, self._look, width, total=sums) if table else []
        if len(shown) < len(groups):
            told = f" {self._look.ellipsis} and {len(groups) - len(shown)} more groups"
            lines.insert(1 + len(shown), self._look.paint(shorten(told, width, self._look), "dim"))
        return [*lines, *self._shown_table(width, room - len(lines)), *foot]

    def _shown_table(self, width: int, room: int) -> list[str]:
        """Return as many lines of the results table as fit."""
        if not self.table or room < 3:
            return []
        lines = [shorten(f" {line}", width, self._look) for line in self.table]
        lines[0] = self._look.paint(lines[0], "bold")
        if len(lines) > room - 1:
            told = f" {self._look.ellipsis} and {len(lines) - room + 2} more rows"
            lines[room - 2 :] = [self._look.paint(shorten(told, width, self._look), "dim")]
        return ["", *lines]

    def _foot(self, report: Report, width: int) -> list[str]:
        parts = [f"elapsed {format_duration(self._clock() - self._began)}"]
        parts += [progress_text(report.progress), cost_text(report.progress)]
        parts = [part for part in parts if part]
        parts += [f"rules fired {report.firings}", f"events {report.events}"]
        if report.errors:
            parts.append(f"errors {report.errors}")
        separator = " · " if self._look.unicode else ", "
        told = " " + separator.join(parts)
        while len(told) > width and len(parts) > 1:
            parts.pop()
            told = " " + separator.join(parts)
        foot = [self._look.paint(shorten(told, width, self._look), "dim")]
        if self.note:
            note = shorten(f" {self.note}", width, self._look)
            foot.append(self._look.paint(note, "warning"))
        return foot
