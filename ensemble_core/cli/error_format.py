"""Errors as people read them: what, where, the line of the file with a caret, cause and hint.

Used by every command that can refuse something.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from ensemble_core.cli.text_style import Look, clean, look_for
from ensemble_core.errors import EnsembleError, FileErrors, Location

__all__ = ["complain", "explain", "flatten"]

_WIDEST = 100
_LARGEST = 4_000_000


def flatten(error: EnsembleError) -> tuple[EnsembleError, ...]:
    """The single errors that this one stands for."""
    return error.errors or (error,) if isinstance(error, FileErrors) else (error,)


def complain(error: EnsembleError, stream: TextIO | None = None) -> None:
    """Print an error, or every error of a file, on stderr."""
    out = stream or sys.stderr
    look = look_for(out)
    errors = flatten(error)
    sources: dict[str, list[str]] = {}
    text = "\n".join(explain(each, look, sources) for each in errors)
    if len(errors) > 1:
        text += f"\n{len(errors)} errors; nothing was submitted"
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    out.flush()


def explain(error: EnsembleError, look: Look, sources: dict[str, list[str]] | None = None) -> str:
    """One error in a few lines. ``sources`` remembers the lines of files between calls."""
    where = f"{clean(str(error.where))}: " if error.where else ""
    head = "" if error.where and error.where.line else look.paint("error: ", "bad")
    parts = [f"{look.paint(where, 'bold')}{head}{clean(error.what)}"]
    if error.where:
        parts += _excerpt(error.where, look, {} if sources is None else sources)
    for word, text in (("because", error.cause), ("hint", error.hint)):
        if text:
            shown = clean(text).rstrip().replace("\n", "\n" + " " * (len(word) + 4))
            parts.append(f"  {look.paint(word, 'action')}: {shown}")
    return "\n".join(parts)


def _excerpt(where: Location, look: Look, sources: dict[str, list[str]]) -> list[str]:
    """The offending line and a caret below its column; nothing where it cannot be read."""
    if where.line < 1:
        return []
    if where.file not in sources:
        sources[where.file] = _lines(Path(where.file))
    lines = sources[where.file]
    if where.line > len(lines):
        return []
    line = lines[where.line - 1].replace("\t", " ")
    column = max(1, min(where.column, len(line) + 1))
    start = 0 if column <= _WIDEST - 20 else column - _WIDEST // 2
    shown = clean(line[start : start + _WIDEST])
    caret = len(clean(line[start : column - 1]))
    number = str(where.line)
    return [
        f"  {look.paint(f'{number} |', 'dim')} {shown}".rstrip(),
        f"  {look.paint(' ' * len(number) + ' |', 'dim')} {' ' * caret}{look.paint('^', 'bad')}",
    ]


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return []
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return []
    return text.split("\n")
