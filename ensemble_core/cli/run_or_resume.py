"""Implements ``ensemble run --or-resume --tag TAG``, which resumes the run if it exists."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.options import load_plugins
from ensemble_core.config.file_text import read
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.run_store import is_taken, read_info, state_folder
from ensemble_core.session.tag_check import remove_if_never_began

if TYPE_CHECKING:
    from ensemble_core.cli.options import Display


def resume_or_none(
    tag: str, file: str, state: str | None, display: Display, wall: float | None = None
) -> int | None:
    """Resume the run with this tag and return its exit code, or ``None`` if it does not exist.

    If the run has ended, only return its exit code. If the run was killed before its first event,
    remove it and return ``None``. Raises :class:`UsageError` for a run of another file, and the
    errors of ``ensemble resume``.
    """
    folder = state_folder(state) / "runs" / tag
    if not is_taken(state_folder(state), tag) or remove_if_never_began(folder, load_plugins):
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
        return any(text.text != read(file) for text in kept.texts()[-1:])
    return False
