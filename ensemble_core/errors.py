"""Errors that a user can act on: what happened, where, why, and what to do. Their codes stand where
they are raised, and in ``docs/error-codes.md``.

Every error this project raises on purpose is an :class:`EnsembleError`; the command line prints
it without a traceback. Called by every other module; imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "EnsembleError",
    "ExecutorError",
    "FileErrors",
    "Location",
    "PluginError",
    "UsageError",
    "interrupted",
    "raised_at",
    "written_at",
]


class Location(NamedTuple):
    """A place in a file. ``line`` and ``column`` count from 1; 0 means the whole file. The line
    itself is not ``quoted`` where the file may be one that nobody meant to show."""

    file: str
    line: int = 0
    column: int = 0
    quoted: bool = True

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


class EnsembleError(Exception):
    """Something a user can act on.

    Parameters
    ----------
    what:
        One sentence: what is wrong, with the offending value.
    where:
        The place in the ensemble file, if there is one.
    cause:
        Why it is wrong, or the words of the part that refused.
    hint:
        What to do about it, an imperative sentence.
    code:
        A short stable name for programs (``unknown-key``, ``no-such-group`` …).
    transient:
        Whether the same request may succeed later without any change.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: Location | None = None,
        cause: str | None = None,
        hint: str | None = None,
        code: str = "error",
        transient: bool = False,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.cause = cause
        self.hint = hint
        self.code = code
        self.transient = transient

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.cause:
            parts.append(f"  because: {self.cause}")
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)

    def to_dict(self) -> dict[str, object]:
        """The error as plain data, for ``--json``."""
        return {
            "type": "error",
            "code": self.code,
            "what": self.what,
            "file": self.where.file if self.where else None,
            "line": self.where.line if self.where else None,
            "column": self.where.column if self.where else None,
            "cause": self.cause,
            "hint": self.hint,
            "transient": self.transient,
        }


class UsageError(EnsembleError):
    """A wrong command line, option or file: exit code 2, and nothing was submitted."""

    exit_code = 2


class FileErrors(UsageError):
    """Every error of one ensemble file, in the order of their places."""

    def __init__(self, errors: Iterable[EnsembleError]) -> None:
        self.errors: tuple[EnsembleError, ...] = tuple(
            sorted(errors, key=lambda e: (e.where or Location(""), e.what))
        )
        count = len(self.errors)
        super().__init__(
            f"{count} error{'s' if count != 1 else ''} in the ensemble file",
            where=Location(self.errors[0].where.file)
            if self.errors and self.errors[0].where
            else None,
            code="file",
        )

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class PluginError(UsageError):
    """A plugin that cannot be loaded, or two that claim one name."""


class ExecutorError(EnsembleError):
    """An executor refused a request or lost its queue."""


def interrupted(error: BaseException | None) -> bool:
    """True if this came of a Ctrl-C: before Python 3.12 one that comes while a class is made, as by
    an import, is raised as a ``RuntimeError``; and what it cuts off may fail on its way out."""
    passed: set[int] = set()  # a chain may be a ring
    while error is not None and not isinstance(error, KeyboardInterrupt):
        if id(error) in passed:
            return False
        passed.add(id(error))
        error = error.__cause__ or error.__context__
    return error is not None


def raised_at(error: BaseException) -> str:
    """Where in a plugin's code an error was raised: ``ensemble_anneal/actions.py:17``.

    Of the frames that led to it, it is the last one of the first package that is not ours: what
    the plugin called may lie below. The path begins at the package, so that it says the same
    wherever that is installed; it is empty for an error that was never raised.
    """
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        frames.append((name.partition(".")[0], _short(code.co_filename, name), trace.tb_lineno))
        trace = trace.tb_next
    theirs = [frame for frame in frames if frame[0] != "ensemble_core"]
    found = [frame for frame in theirs if frame[0] == theirs[0][0]] or frames
    return f"{found[-1][1]}:{found[-1][2]}" if found else ""


def written_at(function: object) -> str:
    """Where a plugin's function is written, told as :func:`raised_at` does; its module where it is
    not written in Python."""
    code = getattr(function, "__code__", None)
    module = str(getattr(function, "__module__", ""))
    return module if code is None else f"{_short(code.co_filename, module)}:{code.co_firstlineno}"


def _short(file: str, module: str) -> str:
    """A module's file from its package on; of a file that no package has, the name."""
    for tail in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
        if file.endswith(f"/{tail}"):
            return tail
    return file.rpartition("/")[2]
