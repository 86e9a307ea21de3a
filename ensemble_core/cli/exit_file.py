"""The exit code in a file, for whoever starts a run again with the same words: a pod, a batch job.

By an exit code alone nobody can tell a run that is over from one that could not go on just then.
Called by the command ``run``.
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
    """Yields what notes the exit code of the run with this tag in ``file``, if that is its last
    word: it is over, or was stopped and not by a signal. A wrong file or command line is noted too.
    Without ``file`` nothing is. The file is emptied first."""
    if file is None:
        yield lambda code: None
        return
    if not or_resume:
        raise click.UsageError("--exit-file goes with --or-resume")
    path = Path(file)

    def write(text: str) -> None:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            what = f"the exit code cannot be written to {file}"
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
