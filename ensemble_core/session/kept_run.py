"""A stored run that is open for reading: its journal, plugins, executor and ensemble.

If the run belongs to another user, neither its snapshots nor its plugin files are loaded. Plugin
files could run any code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ensemble_core.journal.job_history import Jobs
    from ensemble_core.journal.reader import FileVersion, Journal, JournalError
    from ensemble_core.journal.replay import Replay
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.discovery import FindPlugins
    from ensemble_core.plugin.python_callables import Program
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.plugin.untrusted_code import Purpose

_Kept = TypeVar("_Kept", bound="KeptRun")


def versions(registry: Registry) -> dict[str, str]:
    """Return the versions of Ensemble, Python and plugins, which determine what the engine does."""
    import platform

    found = {plugin.distribution: plugin.version for plugin in registry.plugins if plugin.version}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    return dict(sorted(found.items()))


class KeptRun:
    """A stored run that is open for reading. Use it in a ``with`` statement.

    - ``salvage``: read as much of a damaged journal as possible. Damage then raises no error;
      :meth:`damage` returns it.
    - ``whole``: check all records of a small journal.
    - ``program``: the objects that a Python program passed to the run.
    - ``warn``: called with each warning.

    Raises :class:`EnsembleError` if the run does not exist or its journal cannot be read. Damage
    raises an error at the end of the ``with`` statement, even if the requested part could be read.
    """

    def __init__(
        self,
        state: str | None,
        run: str,
        *,
        find_plugins: FindPlugins,
        warn: Callable[[str], None],
        salvage: bool = False,
        whole: bool = False,
        program: Program | None = None,
    ) -> None:
        from ensemble_core.journal.reader import NAME, Journal
        from ensemble_core.journal.run_folder import RunFiles
        from ensemble_core.journal.run_store import find_run, state_folder

        self.folder: Path = find_run(state_folder(state), run)
        self.journal: Journal = Journal(self.folder / NAME, salvage=salvage)
        self._find_plugins = find_plugins
        self.warn = warn
        self._whole = whole
        self._damage_reported = salvage
        self.files = RunFiles(self.folder)
        self.has_program = program is not None
        self._program = program
        self._registry: Registry | None = None

    def __enter__(self: _Kept) -> _Kept:
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        try:
            damage = None if kind is not None or self._damage_reported else self.damage()
        finally:
            self.journal.close()
        if damage is not None:
            raise damage

    def damage(self) -> JournalError | None:
        """Return the error to show if a run can be read but has damaged or missing records."""
        from ensemble_core.journal.reader import JournalError

        self._damage_reported = True
        try:
            if self._whole and self.journal.is_small:
                self.journal.check_records()
            return self.journal.damage or self.journal.missing_tail()
        except JournalError as error:
            return error

    def warn_of_damage(self) -> bool:
        """Warn about missing or damaged records of a run that is resumed nevertheless.

        Return True if a snapshot is damaged.
        """
        self._damage_reported = True
        missing, damage = self.journal.missing_tail(), self.journal.damage
        if missing is not None:
            self.warn(
                f"{missing.what}\n  because: {missing.cause}\n  the run continues after event "
                f"{self.journal.last()} and asks the executor about the jobs known so far"
            )
        if damage is not None:
            self.warn(f"{damage.what}\n  because: {damage.cause}")
        return damage is not None

    @property
    def tag(self) -> str:
        return self.folder.name

    @property
    def run_id(self) -> str:
        """The run's identity. A simulated run has none."""
        return str(self.journal.about.get("id", ""))

    @property
    def state(self) -> str:
        """The state of the run: ``new``, ``running``, ``stopped``, ``interrupted``, ``ended`` …"""
        from ensemble_core.journal.run_state import read_info

        return read_info(self.folder).state

    @property
    def registry(self) -> Registry:
        """The installed plugins and the plugin files of the run."""
        if self._registry is None:
            from ensemble_core.plugin.untrusted_code import is_loaded

            files = tuple(self.journal.about.get("plugins", ()))
            loaded = is_loaded("plugin", "look" if self.files.own else "check")
            if files and not loaded:
                self.warn(
                    f"run {self.tag} belongs to another user: its plugin files are not loaded "
                    f"({', '.join(map(str, files))})"
                )
            registry = self._find_plugins(files if loaded else ())
            self._registry = self.program.added_to(registry)
        return self._registry

    @property
    def program(self) -> Program:
        """The objects that a Python program passed to the run.

        In another program, only their names.
        """
        from ensemble_core.plugin.python_callables import Program

        if self._program is None:
            self._program = Program.absent(self.journal.about.get("program", {}))
        return self._program

    @property
    def executor(self) -> Mapping[str, Any]:
        """The ``name`` and ``options`` of the executor."""
        found: Mapping[str, Any] = self.journal.about.get("executor", {})
        return found

    @property
    def loading(self) -> Callable[[FileVersion], Ensemble]:
        """A function that creates an ensemble from a text in the journal."""
        return self._loading("check", quoted=False)

    def loading_new(self, purpose: Purpose) -> Callable[[FileVersion], Ensemble]:
        """Return a function that creates an ensemble from a text that is not in the journal yet."""
        return self._loading(purpose, quoted=self.files.own)

    def _loading(self, purpose: Purpose, quoted: bool) -> Callable[[FileVersion], Ensemble]:
        """``quoted``: whether errors may quote the file on disk.

        A text in the journal may name any file, and its own file may have changed since.
        """
        from ensemble_core.config import load_text
        from ensemble_core.config.profile import Profile
        from ensemble_core.errors import EnsembleError

        profile = Profile.from_journal(self.journal.about.get("profile"))
        record = self.registry.executors.get(str(self.executor.get("name")))
        cwd = str(self.journal.about.get("cwd", "."))

        def load(text: FileVersion) -> Ensemble:
            try:
                return load_text(
                    text.text,
                    self.registry,
                    file=text.file,
                    executor=record,
                    overrides=list(text.overrides),
                    attached=text.attached,
                    functions=self.program.functions,
                    here=None if text.file else cwd,
                    purpose=purpose,
                    profile=profile,
                ).begun(self.tag, cwd, self.journal.about.get("reuse", ()), self.executor)
            except EnsembleError as error:
                if not quoted:
                    error.unquote()
                raise

        return load

    @property
    def maker(self) -> str | None:
        """The versions of the installed programs, or ``None`` if no snapshot may be read."""
        from ensemble_core.journal.replay import maker_of

        return maker_of(versions(self.registry)) if self.files.own else None

    def recover(self, *, compare: bool = True, pending: bool = True) -> Replay:
        """Return a replay at the last event of the run. See ``replay.recover``."""
        from ensemble_core.journal.replay import recover

        return recover(self.journal, self.loading, self.maker, compare=compare, pending=pending)

    def jobs(self, *, attempts: bool = False) -> Jobs:
        """Return the jobs of the run. Close the result after use.

        With ``attempts``, each attempt has a row, and all events are read.
        """
        if attempts:
            from ensemble_core.journal.job_history import Attempts

            return Attempts(self.journal, self.loading)
        from ensemble_core.journal.job_history import StoredJobs
        from ensemble_core.journal.job_rows import row_of

        sessions = self.journal.sessions()
        outcome = sessions[-1].outcome if sessions else None
        if outcome is not None and outcome.get("over") and not outcome.get("left"):
            loaded = self.loading(self.journal.texts()[-1])
            return StoredJobs(self.journal, loaded.groups, ())
        engine = self.recover(compare=False).engine
        active = [row_of(record) for record in engine.state.table.records.values()]
        return StoredJobs(self.journal, engine.state.ensemble.groups, active)
