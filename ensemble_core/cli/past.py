"""What the commands that look at kept runs have in common: their options, and a run's parts.

A run's journal says which plugins and which executor it was made with; the ensemble is bound anew
from the text that the journal has, never from the file, which may have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ensemble_core.ensemble import Ensemble
    from ensemble_core.journal import Journal, Text
    from ensemble_core.recovery import Recovered
    from ensemble_core.registry import Registry

__all__ = ["Past", "json_option", "run_argument", "state_option"]

state_option = click.option(
    "--state",
    metavar="DIR",
    type=click.Path(),
    help="Where runs are kept.  [default: $ENSEMBLE_STATE, or the user's own folder]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
run_argument = click.argument("run", metavar="RUN")


def versions(registry: Registry) -> dict[str, str]:
    """What decides how an engine behaves: versions of Ensemble, Python, river and the plugins."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {plugin.distribution: plugin.version for plugin in registry.plugins if plugin.version}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    for name in ("ensemble-core", "river"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


class Past:
    """One kept run, opened for reading. Use it with ``with``.

    Raises :class:`EnsembleError` where there is no such run, or its journal cannot be read.
    """

    def __init__(self, state: str | None, run: str) -> None:
        from ensemble_core.journal import NAME, Journal
        from ensemble_core.runs import find, state_folder

        self.folder: Path = find(state_folder(state), run)
        self.journal: Journal = Journal(self.folder / NAME)
        self._registry: Registry | None = None

    def __enter__(self) -> Past:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    @property
    def tag(self) -> str:
        return self.folder.name

    @property
    def registry(self) -> Registry:
        """The plugins that are installed now, with those files that the run named."""
        if self._registry is None:
            from ensemble_core.cli.discovery import discover

            self._registry = discover(tuple(self.journal.about.get("plugins", ())))
        return self._registry

    @property
    def executor(self) -> Mapping[str, Any]:
        """``name`` and ``options`` of the executor."""
        found: Mapping[str, Any] = self.journal.about.get("executor", {})
        return found

    @property
    def loading(self) -> Callable[[Text], Ensemble]:
        """How a text of the journal becomes an ensemble."""
        from ensemble_core.config import load_text

        record = self.registry.executors.get(str(self.executor.get("name")))

        def load(text: Text) -> Ensemble:
            return load_text(
                text.text,
                self.registry,
                file=text.file,
                executor=record,
                overrides=list(text.overrides),
            )

        return load

    @property
    def maker(self) -> str:
        """What this installation can read of snapshots."""
        from ensemble_core.recovery import maker_of

        return maker_of(versions(self.registry))

    def recover(self, *, compare: bool = True) -> Recovered:
        """The engine as it was left."""
        from ensemble_core.recovery import recover

        return recover(self.journal, self.loading, self.maker, compare=compare)
