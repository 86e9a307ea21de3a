"""Runs with a lost, damaged or empty journal: finds their remaining jobs, and removes runs that
never began.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_core.errors import UsageError, call_plugin
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME, Journal, JournalError
from ensemble_core.journal.run_folder import is_own, remove_run_folder
from ensemble_core.journal.run_state import has_performed
from ensemble_core.session.controlled_run import EXECUTOR

if TYPE_CHECKING:
    from ensemble_core.plugin.discovery import FindPlugins
    from ensemble_core.plugin.records import ExecutorPlugin


def leftover_jobs(folder: Path, find_plugins: FindPlugins, *, end: bool = False) -> int:
    """Return how many jobs of a run may still be alive, according to the executors.

    If ``end`` is true, also end these jobs.
    """
    kept = folder / EXECUTOR
    if not kept.is_dir() or not is_own(folder):
        return 0
    # One of a plugin has two names: 'NAME' and 'DISTRIBUTION:NAME'.
    records = {id(record): record for record in find_plugins(()).executors.values()}.values()
    return sum(_remaining(record, folder.name, kept, end) for record in records)


def _remaining(record: ExecutorPlugin, tag: str, kept: Path, end: bool) -> int:
    if record.remains is None:
        return 0
    whose = f"executor {record.name!r}"
    failed = f"{whose} cannot tell which jobs of run {tag} may be alive"
    words = {"method": "remains", "expected": "a number of jobs", "whose": whose, "failed": failed}
    found: int = call_plugin(record.remains, tag, kept, end, returns=int, **words)
    return found


def check_not_lost(folder: Path, find_plugins: FindPlugins) -> None:
    """Raise :class:`JournalError` if a run has begun, but its journal is empty."""
    alive = leftover_jobs(folder, find_plugins)
    if not alive and not has_performed(folder):
        return
    jobs = f"{alive} job{'' if alive == 1 else 's'} may be alive" if alive else "it had begun"
    raise JournalError(
        f"the journal of run {folder.name} is lost: {folder}",
        cause=f"the journal is empty, but {jobs}",
        hint=f"'ensemble cancel {folder.name}' ends its jobs on this machine; cancel its jobs in "
        "other queues yourself",
        code="journal-lost",
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
        stays = remove_run_folder(folder)
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
