"""Formats errors and warnings as text or as JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ensemble_core.display.text_style import TextStyle, encodable, print_line, printable, style_of
from ensemble_core.errors import EnsembleError, FileErrors, Location, UsageError

_WIDEST = 100
_LARGEST = 4_000_000


def flatten(error: EnsembleError) -> tuple[EnsembleError, ...]:
    """Return the errors that a :class:`FileErrors` contains, or any other error itself."""
    return error.errors or (error,) if isinstance(error, FileErrors) else (error,)


def print_error(error: EnsembleError, stream: TextIO | None = None) -> None:
    """Print an error on stderr, or all errors of a file."""
    out = stream or sys.stderr
    look = style_of(out)
    errors = flatten(error)
    sources: dict[str, list[str]] = {}
    text = "\n".join(format_error(each, look, sources) for each in errors)
    if len(errors) > 1:
        text += f"\n{len(errors)} errors; nothing was submitted"
    out.write(encodable(text, out) + "\n")
    out.flush()


def format_error(
    error: EnsembleError, look: TextStyle, sources: dict[str, list[str]] | None = None
) -> str:
    """Return one error as a few lines. ``sources`` caches the content of files between calls."""
    where = f"{printable(str(error.where))}: " if error.where else ""
    head = "" if error.where and error.where.line else look.paint("error: ", "bad")
    parts = [f"{look.paint(where, 'bold')}{head}{printable(error.what)}"]
    if error.where:
        parts += _excerpt(error.where, look, {} if sources is None else sources)
    for word, text in (("because", error.cause), ("hint", error.hint)):
        if text:
            shown = printable(text).rstrip().replace("\n", "\n" + " " * (len(word) + 4))
            parts.append(f"  {look.paint(word, 'action')}: {shown}")
    return "\n".join(parts)


def _excerpt(where: Location, look: TextStyle, sources: dict[str, list[str]]) -> list[str]:
    """Return the offending line and a caret below its column, or nothing if the file is
    unreadable.
    """
    if where.line < 1 or not where.quoted:
        return []
    if where.file not in sources:
        sources[where.file] = _lines(Path(where.file))
    lines = sources[where.file]
    if where.line > len(lines):
        return []
    line = lines[where.line - 1].replace("\t", " ")
    column = max(1, min(where.column, len(line) + 1))
    start = 0 if column <= _WIDEST - 20 else column - _WIDEST // 2
    shown = printable(line[start : start + _WIDEST])
    caret = len(printable(line[start : column - 1]))
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


@contextlib.contextmanager
def errors_as_json(as_json: bool) -> Iterator[None]:
    """Print errors within the ``with`` block as JSON, if the command prints JSON."""
    try:
        yield
    except EnsembleError as error:
        if as_json:
            from ensemble_core.cli.json_output import to_json

            for each in flatten(error):
                print_line(to_json({**each.to_dict(), "exit_code": error.exit_code}))
        sys.stdout.flush()  # earlier output comes before the error
        raise


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Give errors within the ``with`` block exit code 2, because they come from the command
    line.
    """
    try:
        yield
    except EnsembleError as error:
        raise UsageError(
            error.what, where=error.where, cause=error.cause, hint=error.hint, code=error.code
        ) from None


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    sys.stderr.write(style_of(sys.stderr).warning(printable(text)) + "\n")
