"""What the commands that look at kept runs have in common: their options, and a run's parts.

A run's journal says which plugins and which executor it was made with; the ensemble is bound anew
from the text that the journal has, never from the file, which may have changed since.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ensemble_core.journal.reader import Journal, Text
    from ensemble_core.journal.replay import Recovered
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.registry import Registry

__all__ = [
    "Past",
    "json_option",
    "put",
    "run_argument",
    "spell_size",
    "spell_when",
    "state_option",
    "tags",
    "telling",
    "width_of",
]

state_option = click.option(
    "--state",
    metavar="DIR",
    type=click.Path(),
    help="Where runs are kept.  [default: $ENSEMBLE_STATE, or the user's own folder]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def tags(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The runs that a shell may complete to, newest first."""
    from click.shell_completion import CompletionItem

    from ensemble_core.errors import EnsembleError
    from ensemble_core.journal.run_store import folders, state_folder

    try:
        names = [folder.name for folder in reversed(folders(state_folder(ctx.params.get("state"))))]
    except EnsembleError:
        return []
    return [CompletionItem(name) for name in ["last", *names] if name.startswith(incomplete)]


run_argument = click.argument("run", metavar="RUN", shell_complete=tags)


@contextlib.contextmanager
def telling(as_json: bool) -> Iterator[None]:
    """Errors of what is done inside are printed as JSON too, where JSON was asked for."""
    from ensemble_core.errors import EnsembleError

    try:
        yield
    except EnsembleError as error:
        if as_json:
            from ensemble_core.cli.error_format import flatten
            from ensemble_core.cli.json_lines import dump

            for each in flatten(error):
                put(dump({**each.to_dict(), "exit_code": error.exit_code}))
        sys.stdout.flush()  # what was shown comes before what was wrong
        raise


def put(text: str) -> None:
    """Print a line on stdout, in whatever encoding that has. Not flushed: there may be many."""
    out = sys.stdout
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def width_of(stream: TextIO) -> int | None:
    """How many columns a terminal has; ``None`` for what is none: a line may be any length."""
    from ensemble_core.cli.text_style import is_terminal

    if not is_terminal(stream):
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def spell_when(seconds: float | None) -> str:
    """A time since the epoch as people here write it: ``2026-03-01 14:05:09``."""
    if seconds is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def spell_size(size: float) -> str:
    """Bytes for people: ``812 B``, ``3.4 kB``, ``120 MB``."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while size >= 999.5 and power < len(units) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {units[power]}" if power and size < 9.95 else f"{size:.0f} {units[power]}"


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

    Raises :class:`EnsembleError` where there is no such run, or its journal cannot be read;
    ``salvage`` opens a damaged one as well, as far as that can be done.
    """

    def __init__(self, state: str | None, run: str, *, salvage: bool = False) -> None:
        from ensemble_core.journal.reader import NAME, Journal
        from ensemble_core.journal.run_store import find, state_folder

        self.folder: Path = find(state_folder(state), run)
        self.journal: Journal = Journal(self.folder / NAME, salvage=salvage)
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
        from ensemble_core.journal.replay import maker_of

        return maker_of(versions(self.registry))

    def recover(self, *, compare: bool = True, pending: bool = True) -> Recovered:
        """The engine as it was left; see ``recovery.recover``."""
        from ensemble_core.journal.replay import recover

        return recover(self.journal, self.loading, self.maker, compare=compare, pending=pending)
