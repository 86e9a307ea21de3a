"""Checks whether the tag of a run is valid and unused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_core.errors import UsageError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME, Journal, JournalError
from ensemble_core.journal.run_folder import is_own, remove
from ensemble_core.journal.run_store import is_taken, state_folder
from ensemble_core.session.lost_journal import check_not_lost

if TYPE_CHECKING:
    from ensemble_core.session.installed_plugins import FindPlugins

_TAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def check_tag(tag: str, state: str | None, *, new: bool) -> None:
    """Raise :class:`UsageError` if a tag is invalid or, for a ``new`` run, already in use."""
    if not _TAG.fullmatch(tag) or tag == "last":
        raise UsageError(
            f"{tag!r} cannot be the tag of a run",
            hint="use up to 200 letters, digits, '.', '_' and '-', but no '.' at the beginning; "
            "'last' is reserved",
            code="bad-tag",
        )
    if new and is_taken(state_folder(state), tag):
        raise UsageError(
            f"run {tag} already exists",
            hint=f"choose another --tag; --or-resume resumes it, 'ensemble clean {tag}' removes it",
            code="tag-taken",
        )


def remove_if_never_began(folder: Path, find_plugins: FindPlugins) -> bool:
    """Remove a run that was killed before its first event. Return whether it was removed."""
    if not is_own(folder):
        return False
    lock = Lock(folder)
    lock.acquire()
    try:
        if _has_begun(folder / NAME):
            return False
        check_not_lost(folder, find_plugins)
        stays = remove(folder)
        if stays:
            raise UsageError(
                f"cannot remove the folder of run {folder.name}, which never began: {folder}",
                cause=stays,
                hint="move the folder away, or choose another --tag",
                code="tag-taken",
            )
    finally:
        lock.release()
    return True


def _has_begun(path: Path) -> bool:
    """Return whether a journal exists and is not empty."""
    if not path.exists():
        return False
    try:
        with Journal(path) as journal:
            return bool(journal.texts())
    except JournalError as error:
        if error.code != "never-began":
            raise
        return False  # killed between creating the file and its tables
