"""Writes the exit code to a file, for a caller that restarts a run with the same command.

A pod or batch job cannot tell from the exit code alone whether the run has finished or should be
restarted. The file exists for this purpose: it has content only if the exit code is final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ensemble_core.errors import UsageError
from ensemble_core.journal.run_store import look, state_folder

__all__ = ["record_exit_code"]


@contextmanager
def record_exit_code(
    file: str | None, tag: str | None, state: str | None, *, or_resume: bool
) -> Iterator[Callable[[int], None]]:
    """Return a context manager that yields a function, which writes the exit code to ``file``.

    It writes only a final exit code, after which the run should not be restarted. The code is not
    final if a signal stopped the run or killed its controller. The context manager first empties
    ``file``; for an invalid ensemble file or command line, it writes the exit code itself. If
    ``file`` is ``None``, nothing is written.
    """
    if file is None:
        yield lambda code: None
        return
    if not or_resume:
        raise click.UsageError("--exit-file needs --or-resume")
    path = Path(file)

    def write(text: str) -> None:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            what = f"cannot write the exit code to {file}"
            raise UsageError(what, cause=error.strerror or str(error), code="unwritable") from error

    def note(code: int) -> None:
        info = look(state_folder(state) / "runs" / str(tag))
        by_signal = info.state == "stopped" and code > 128
        if info.exit_code == code and not by_signal:
            write(f"{code}\n")

    write("")
    try:
        yield note
    except UsageError as error:
        write(f"{error.exit_code}\n")
        raise
