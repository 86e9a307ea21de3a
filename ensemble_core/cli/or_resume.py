"""``ensemble run --or-resume --tag TAG``: what is there already of the run decides.

For whoever is started again with the same words: a pod's container, a batch job that is requeued.
Called by the command ``run``.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.remains import check_not_lost
from ensemble_core.config.source import read
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.reader import NAME, Journal, JournalError
from ensemble_core.journal.removal import remove
from ensemble_core.journal.run_store import Lock, is_own, look, state_folder

if TYPE_CHECKING:
    from ensemble_core.cli.options import Display

__all__ = ["check_tag", "go_on", "never_began"]

_TAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def check_tag(tag: str, state: str | None, *, new: bool) -> None:
    """Raise :class:`UsageError` if a tag is invalid, or if a ``new`` run's tag is already in
    use."""
    if not _TAG.fullmatch(tag) or tag == "last":
        raise UsageError(
            f"{tag!r} cannot be the tag of a run",
            hint="letters, digits, '.', '_' and '-', at most 200, no '.' first, and not 'last'",
            code="bad-tag",
        )
    if new and (state_folder(state) / "runs" / tag).exists():
        raise UsageError(
            f"there is a run {tag} already",
            hint=f"choose another --tag; --or-resume goes on with it, 'ensemble clean {tag}' "
            "removes it",
            code="tag-taken",
        )


def go_on(
    tag: str, file: str, state: str | None, display: Display, wall: float | None = None
) -> int | None:
    """The exit code of the run with this tag, once it is over; ``None`` where it has yet to begin.

    A run that was killed before anything happened is removed, to begin anew. Raises
    :class:`UsageError` for a run of another file, and what ``ensemble resume`` raises.
    """
    folder = state_folder(state) / "runs" / tag
    if not folder.exists() or never_began(folder):
        return None
    info = look(folder)
    if info.file and info.file != os.path.abspath(file):
        raise UsageError(
            f"run {tag} is one of {info.file}, not of {file}",
            hint="choose another --tag",
            code="tag-taken",
        )
    if info.state == "ended":
        reason = f": {info.reason}" if info.reason else ""
        if not display.as_json:
            click.echo(f"run {tag} is over, with exit code {info.exit_code}{reason}", err=True)
            if _has_changed(folder / NAME, file):
                print_warning(
                    f"{file} has changed since run {tag} read it\n"
                    f"  hint: 'ensemble resume {tag} --accept-changes' opens it again where the "
                    "change gives it something to do; another --tag begins another"
                )
        return info.exit_code or 0
    from ensemble_core.cli.commands.resume import take_up

    return take_up(str(folder), state, display, wall=wall)


def _has_changed(journal: Path, file: str) -> bool:
    """True if a run's file says something else by now; it need not be there any more."""
    with suppress(EnsembleError), Journal(journal) as kept:
        return any(text.text != read(file) for text in kept.texts()[-1:])
    return False


def never_began(folder: Path) -> bool:
    """True if nothing had happened in the run when it was killed; it is gone then."""
    if not is_own(folder):
        return False
    lock = Lock(folder)
    lock.acquire()
    try:
        if _has_begun(folder / NAME):
            return False
        check_not_lost(folder)
        stays = remove(folder)
        if stays:
            raise UsageError(
                f"the folder of run {folder.name} is taken: {folder}",
                cause=stays,
                hint="move that elsewhere, or give the run another --tag",
                code="tag-taken",
            )
    finally:
        lock.release()
    return True


def _has_begun(path: Path) -> bool:
    """True if a journal is there that has anything on record."""
    if not path.exists():
        return False
    try:
        with Journal(path) as journal:
            return bool(journal.texts())
    except JournalError as error:
        if error.code != "never-began":
            raise
        return False  # killed between the making of the file and that of its tables
