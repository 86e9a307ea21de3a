"""A run under the control of this process: access to the run's folder, lock and journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.run_folder import NAME
from ensemble_core.journal.run_state import write_began
from ensemble_core.journal.run_store import new_folder
from ensemble_core.plugin.executor import Executor
from ensemble_core.plugin.registry import Registry
from ensemble_core.posix import shared_storage
from ensemble_core.session.kept_run import versions

if TYPE_CHECKING:  # these are loaded while the executor prepares itself
    from ensemble_core.journal.writer import JournalWriter
    from ensemble_core.runtime.watcher import Outcome

#: Name of the executor's folder in the run's folder.
EXECUTOR = "executor"


class ControlledRun:
    """A run that this process controls: its folder, its lock, and the writer of its journal.

    Use it in a ``with`` statement, which always releases the lock.
    """

    def __init__(
        self, folder: Path, lock: Lock, journal: JournalWriter, registry: Registry
    ) -> None:
        from ensemble_core.journal.replay import maker_of

        self.folder = folder
        self.journal = journal
        self._lock = lock
        self._is_new = False
        self._is_empty = False
        self._versions = versions(registry)
        self.maker = maker_of(self._versions)
        #: Folder in which the executor stores what it needs to find its jobs again.
        self.executor_folder = folder / EXECUTOR
        #: Type of the file system if the journal is on a network file system, or ``None``.
        self.storage = shared_storage(folder)

    @classmethod
    def new(
        cls,
        state: Path,
        about: Mapping[str, Any],
        registry: Registry,
        text: str,
        overrides: Sequence[str],
        executor: Executor,
        attached: Mapping[str, str] | None = None,
    ) -> ControlledRun:
        """Create the folder and the journal of a new run, while the executor makes its
        preparations.

        Raises :class:`JournalError`; in that case, no files are left behind.
        """
        folder = new_folder(state, str(about["tag"]))
        lock = Lock(folder)
        try:
            lock.acquire()
        except EnsembleError as error:
            if error.code in ("full", "unwritable"):  # otherwise, another start owns the folder
                with contextlib.suppress(OSError):
                    lock.path.unlink(missing_ok=True)
                    folder.rmdir()
            raise
        try:
            # The executor makes its preparations during imports and the first writes of the
            # journal.
            executor.prepare(folder.name, folder / EXECUTOR, str(about.get("id", "")))
            from ensemble_core.journal.writer import JournalWriter

            journal = JournalWriter(folder / NAME)
            try:
                journal.describe({**about, "home": str(folder)})
                journal.store_file_version(str(about["file"]), text, overrides, attached)
                kept = cls(folder, lock, journal, registry)
                kept._is_new = True
                kept.begin()
                with contextlib.suppress(OSError):  # only for speed: the journal has the time too
                    write_began(folder, time.time())
            except BaseException:
                journal.close()
                raise
        except BaseException:
            lock.release()
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
            raise
        return kept

    def begin(self) -> None:
        """Record in the journal that this process now controls the run."""
        self.journal.begin(time.time(), self._versions)

    def end(self, outcome: Outcome | None) -> str | None:
        """Record in the journal how the controller ended. Return an error message if that fails."""
        if outcome is None and not self.journal.seq:
            # The executor could not be opened, so the run has no events.
            self._is_empty = self._is_new
            return None
        if outcome is None:
            record: dict[str, Any] = {"over": False, "reason": "the controller failed"}
        else:
            names = ("over", "stopped", "exit_code", "reason", "natural")
            record = {name: getattr(outcome, name) for name in names} | {"left": outcome.left > 0}
        try:
            self.journal.end(time.time(), record)
        except EnsembleError as error:
            return (
                f"the end of this run could not be recorded: {error}\n"
                f"  to continue from its last recorded event: ensemble resume {self.folder.name}"
            )
        return None

    def __enter__(self) -> ControlledRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        if self._is_empty:
            import shutil

            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()
