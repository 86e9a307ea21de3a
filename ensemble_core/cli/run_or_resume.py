"""Implements ``ensemble run --or-resume --tag TAG``, which resumes the run if it exists.

Also writes the exit code to ``--exit-file``. A pod or batch script restarts the run while that file
is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ensemble_core.config.file_text import read_file
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.run_state import read_info
from ensemble_core.journal.run_store import is_taken, state_folder

if TYPE_CHECKING:
    from ensemble_core.cli.options import Display


def resume_instead(
    file: str,
    display: Display,
    *,
    tag: str | None,
    or_resume: bool,
    keep: bool = True,
    state: str | None = None,
    wall: float | None = None,
) -> int | None:
    """Resume the run with this tag if ``or_resume`` is true, and return its exit code.

    Return ``None`` if a new run must be started. If the run has ended, only return its exit code.
    If the run was killed before its first event, remove it and return ``None``. Raises
    :class:`UsageError` for an unusable tag or a run of another file, and the errors of
    ``ensemble resume``.
    """
    if tag is None and not or_resume:
        return None
    from ensemble_core.session.new_run import check_tag

    if tag is None or (or_resume and not keep):
        wrong = "needs --tag TAG" if tag is None else "cannot be combined with --no-journal"
        raise click.UsageError(f"--or-resume {wrong}")
    check_tag(tag, state, new=keep and not or_resume)
    if not or_resume or not is_taken(state_folder(state), tag):
        return None
    from ensemble_core.cli.options import load_plugins
    from ensemble_core.session.lost_journal import remove_if_never_began

    folder = state_folder(state) / "runs" / tag
    if remove_if_never_began(folder, load_plugins):
        return None
    info = read_info(folder)
    if info.file and info.file != os.path.abspath(file):
        raise UsageError(
            f"run {tag} was started from {info.file}, not from {file}",
            hint="choose another --tag",
            code="tag-taken",
        )
    if info.state == "ended":
        reason = f": {info.reason}" if info.reason else ""
        if not display.as_json:
            click.echo(
                f"run {tag} has already ended with exit code {info.exit_code}{reason}", err=True
            )
            if _has_changed(folder / NAME, file):
                from ensemble_core.cli.error_format import print_warning

                print_warning(
                    f"{file} has changed since run {tag} read it\n  hint: 'ensemble resume {tag} "
                    "--accept-changes' reopens it if the change adds work; use another --tag for "
                    "a new run"
                )
        return info.exit_code or 0
    from ensemble_core.cli.commands.resume import resume_run

    return resume_run(str(folder), state, display, wall=wall)


def _has_changed(journal: Path, file: str) -> bool:
    """Return True if the run's file has changed. The file may be missing."""
    with suppress(EnsembleError), Journal(journal) as kept:
        return any(text.text != read_file(file) for text in kept.texts()[-1:])
    return False


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
