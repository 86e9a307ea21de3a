"""A run's journal and lock, as whoever controls a run holds them."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.filesystem import shared_storage
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.run_store import Lock, new_folder, write_began
from ensemble_core.plugin.executor import Executor
from ensemble_core.plugin.registry import Registry
from ensemble_core.session.kept_run import versions

if TYPE_CHECKING:  # loaded while the executor prepares itself
    from ensemble_core.journal.writer import JournalWriter
    from ensemble_core.runtime.watcher import Outcome

__all__ = ["ControlledRun"]

#: The executor's folder within a run's.
EXECUTOR = "executor"


class ControlledRun:
    """A run that this process controls and keeps: its folder, its lock and its journal's writer.

    Use it with ``with``: the lock is let go at the end, whatever happens.
    """

    def __init__(
        self, folder: Path, lock: Lock, journal: JournalWriter, registry: Registry
    ) -> None:
        from ensemble_core.journal.replay import maker_of

        self.folder = folder
        self.journal = journal
        self._lock = lock
        self._is_new = False
        self._nothing = False
        self._versions = versions(registry)
        self.maker = maker_of(self._versions)
        #: Where the executor keeps what it needs to find its jobs again.
        self.executor_folder = folder / EXECUTOR
        #: The kind of network file system that the journal lies on, if it does.
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
        """Begin to keep a run of this executor, which prepares itself meanwhile. Raises
        :class:`JournalError`; then nothing is left behind."""
        folder = new_folder(state, str(about["tag"]))
        lock = Lock(folder)
        try:
            lock.acquire()
            # In parallel with imports and with the first writes of the journal.
            executor.prepare(folder.name, folder / EXECUTOR)
            from ensemble_core.journal.writer import JournalWriter

            journal = JournalWriter(folder / NAME)
            try:
                journal.describe(about)
                journal.text(str(about["file"]), text, overrides, attached)
                kept = cls(folder, lock, journal, registry)
                kept._is_new = True
                kept.begin()
                with contextlib.suppress(OSError):  # the journal says it too
                    write_began(folder, time.time())
            except BaseException:
                journal.close()
                raise
        except BaseException:
            lock.release()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return kept

    def begin(self) -> None:
        """Write down that this process controls the run from now on."""
        self.journal.begin(time.time(), self._versions)

    def end(self, outcome: Outcome | None) -> str | None:
        """Write down how the run was left; what went wrong with that, if anything did."""
        if outcome is None and not self.journal.seq:
            # The queue could not be opened: nothing ever happened.
            self._nothing = self._is_new
            return None
        if outcome is None:
            said: dict[str, Any] = {"over": False, "reason": "the controller failed"}
        else:
            told = ("over", "stopped", "exit_code", "reason", "natural")
            said = {name: getattr(outcome, name) for name in told} | {"left": outcome.left > 0}
        try:
            self.journal.end(time.time(), said)
        except EnsembleError as error:
            return (
                f"the end of this run could not be written down: {error}\n"
                f"  to go on from what is on record: ensemble resume {self.folder.name}"
            )
        return None

    def __enter__(self) -> ControlledRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        if self._nothing:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()
