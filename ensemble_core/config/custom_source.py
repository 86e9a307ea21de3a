"""Checks the Python source under the key ``custom:`` of an ensemble file, without executing it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.file_text import read_attachment, sibling_path
from ensemble_core.errors import Location
from ensemble_core.late_pattern import late_pattern

_PATH: Path = ("custom",)
_LITERAL = late_pattern(r"(?:[&!]\S*[ \t]+)*\|[^\n]*\n")


#: Matches the name of a Python file, but no source code.
_FILE = late_pattern(r"[^\n]*\.py\s*")


def source_of(context: Context) -> tuple[str, str | None] | None:
    """Return the Python source, and the name of its file if it is in a separate file.

    Return ``None`` if the source is missing or invalid.
    """
    value = context.document.data.get("custom")
    path: Path = _PATH
    if isinstance(value, dict):
        path, value = (*path, "file"), value.get("file")
    elif not isinstance(value, str) or not _FILE.fullmatch(value):
        return (value, None) if isinstance(value, str) else None
    if not isinstance(value, str) or not context.is_valid(path):
        return None
    name = value.strip()
    text = read_attachment(context, path, name, suffixes=(".py",))
    return None if text is None else (text, sibling_path(context, name))


def functions_of(context: Context, source: str, file: str | None = None) -> frozenset[str] | None:
    """Return the names of functions that custom actions may call, or ``None`` after a syntax
    error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, "custom", "exec")
            compile(tree, "custom", "exec", dont_inherit=True)
    except SyntaxError as error:
        context.report(
            _PATH,
            f"'custom' is not valid Python: {error.msg}",
            # Don't quote a separate file: it may not be Python, and it may be confidential.
            hint=f"look at: {error.text.strip()[:80]}" if error.text and file is None else None,
            code="bad-python",
            where=_place(context, source, error.lineno or 1, error.offset or 1)
            if file is None
            else Location(file, error.lineno or 1, error.offset or 1, quoted=False),
        )
        return None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "too deeply nested"
        context.report(_PATH, f"'custom' is not valid Python: {reason}", code="bad-python")
        return None
    return frozenset(_names(tree.body))


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name) and not isinstance(statement.value, ast.Constant):
                    yield target.id
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                if alias.name != "*":
                    yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _names(statement.body)
            yield from _names(getattr(statement, "orelse", ()))
            yield from _names(getattr(statement, "finalbody", ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _names(handler.body)


def _place(context: Context, source: str, line: int, column: int) -> Location | None:
    """Convert a position in the source to one in the file, if the source is a literal block."""
    document = context.document
    value, span = document.at(_PATH), document.spans.get(_PATH)
    if value is None or span is None or not value.line:
        return value
    header = _LITERAL.match(document.text, span[0])
    if header is None:
        return value
    inside = source.splitlines()
    written = document.text[header.end() : span[1]].splitlines()
    indent = 0
    for mine, raw in zip(inside, written, strict=False):
        if mine.strip():
            indent = len(raw) - len(mine)
            break
    return Location(document.file, value.line + line, max(1, column + indent))
