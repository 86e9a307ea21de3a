"""Writes a run's final exit code to a file, for a pod or batch job that restarts the run.

The pod or job restarts the run as long as the file is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ensemble_core.errors import UsageError
from ensemble_core.journal.run_store import read_info, state_folder


@contextmanager
def record_exit_code(
    file: str | None, tag: str | None, state: str | None, *, or_resume: bool
) -> Iterator[Callable[[int], None]]:
    """Empty ``file``, and yield a function that writes the run's exit code to it if it is final.

    The code is not final if a signal stopped the run, or if it is not the outcome of the run. After
    a :class:`UsageError`, the error's exit code is written.
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
        info = read_info(state_folder(state) / "runs" / str(tag))
        by_signal = info.state == "stopped" and code > 128
        if info.exit_code == code and not by_signal:
            write(f"{code}\n")

    write("")
    try:
        yield note
    except UsageError as error:
        write(f"{error.exit_code}\n")
        raise
