"""Formats text output: colors, times, sizes and aligned tables."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

_STYLES = {
    "trigger": "94",  # the blue, cyan and purple of ensemble-python
    "action": "96",
    "fields": "95",
    "good": "92",
    "warning": "93",
    "bad": "91",
    "dim": "2",
    "bold": "1",
}
_CONTROL = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)},
    # Line separators, and bidirectional controls, which would reorder the rest of a line.
    **{
        code: f"\\u{code:04x}"
        for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    },
}


class TextStyle(NamedTuple):
    """Capabilities of a stream: whether it can show colors, and characters outside ASCII."""

    color: bool = False
    unicode: bool = False

    def paint(self, text: str, style: str) -> str:
        """Return the text in a style, if the stream shows colors."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color and text else text

    def warning(self, text: str) -> str:
        """Return the text as a warning."""
        return f"{self.paint('warning:', 'warning')} {text}"

    @property
    def ellipsis(self) -> str:
        return "…" if self.unicode else "..."


def style_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> TextStyle:
    """Return the style of a stream.

    ``NO_COLOR`` takes precedence over ``FORCE_COLOR``, which takes precedence over ``TERM=dumb``.
    """
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("_", "-")
    if environ.get("NO_COLOR"):
        color = False
    elif environ.get("FORCE_COLOR", "0") not in ("", "0"):
        color = True
    elif environ.get("TERM") == "dumb":
        color = False
    else:
        color = is_terminal(stream)
    return TextStyle(color=color, unicode=encoding in ("utf-8", "utf8"))


def is_terminal(stream: Any) -> bool:
    """Return True if the stream is an open terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def printable(text: str) -> str:
    """Return the text with control characters escaped.

    Otherwise, the output of a job could control the terminal.
    """
    return text if text.isprintable() else text.translate(_CONTROL)


def in_one_line(text: str) -> str:
    """Return the text as by :func:`printable`, with line breaks escaped too."""
    return printable(text).replace("\n", "\\x0a")


def shorten(text: str, width: int, look: TextStyle) -> str:
    """Cut the text to ``width`` characters, and mark the cut."""
    if len(text) <= width:
        return text
    mark = look.ellipsis
    return text[: max(0, width - len(mark))] + mark[: max(0, width)]


def format_clock(timestamp: float, since: float | None = None) -> str:
    """Return the local time of day, such as ``14:03:27``.

    If the date differs from that of ``since``, include the date.
    """
    then = time.localtime(timestamp)
    day = None if since is None else time.localtime(since)[:3]
    clock = time.strftime("%H:%M:%S", then)
    if day is not None and day == then[:3]:
        return clock
    return f"{then.tm_mday} {time.strftime('%b', then)} {clock}" if since is not None else clock


def format_duration(seconds: float | None) -> str:
    """Return a duration as text: ``0.04 s``, ``12.3 s``, ``3m 20s``, ``2h 05m``, ``3d 04h``."""
    if seconds is None or seconds != seconds or abs(seconds) == float("inf"):
        return "-"
    sign, rest = ("-", -seconds) if seconds < 0 else ("", seconds)
    if rest < 9.995:
        return f"{sign}{rest:.2f} s"
    if rest < 59.95:
        return f"{sign}{rest:.1f} s"
    whole = round(rest)
    minutes, secs = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d {hours:02d}h"
    if hours:
        return f"{sign}{hours}h {minutes:02d}m"
    return f"{sign}{minutes}m {secs:02d}s"


def count_of(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 job``, ``3 jobs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_times(count: int) -> str:
    """Return a count as an adverb: ``once``, ``twice``, ``3 times``."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count:,} times")


def format_fields(fields: Mapping[str, Any]) -> str:
    """Return fields of a job group as text: ``tasks=2, retry.times=3``.

    Whole floats, which expressions may give for sizes, are shown as integers.
    """
    from ensemble_core.model.option_values import nodes

    return ", ".join(
        f"{'.'.join(path)}="
        f"{int(value) if isinstance(value, float) and value.is_integer() else value}"
        for path, value in nodes(fields)
        if not value or not isinstance(value, Mapping)
    )


def format_table(
    rows: Sequence[Sequence[str]], right: Sequence[bool] = (), indent: str = ""
) -> list[str]:
    """Return rows as aligned columns, two spaces apart. ``right`` says which are right-aligned."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column < len(right) and right[column] else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def format_time(seconds: float | None) -> str:
    """Return the local date and time: ``2026-03-01 14:05:09``."""
    if seconds is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def format_size(size: float) -> str:
    """Return a number of bytes as text: ``812 B``, ``3.4 kB``, ``120 MB``."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while size >= 999.5 and power < len(units) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {units[power]}" if power and size < 9.95 else f"{size:.0f} {units[power]}"


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of a terminal in columns, or ``None`` for other streams."""
    if not is_terminal(stream):
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def encodable(text: str, stream: TextIO) -> str:
    """Return the text with escapes for characters that the stream cannot encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_line(text: str) -> None:
    """Print a line on stdout, in the encoding of stdout, without flushing."""
    sys.stdout.write(encodable(text, sys.stdout) + "\n")


def print_table(lines: Sequence[str], look: TextStyle) -> None:
    """Print the lines of a table on stdout. The first line is the heading."""
    print_line(look.paint(lines[0], "bold"))
    for line in lines[1:]:
        print_line(line)


def close_quietly(stream: TextIO) -> None:
    """Redirect a stream whose reader has exited to ``/dev/null``.

    Otherwise, Python would print an error about buffered text at exit.
    """
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
