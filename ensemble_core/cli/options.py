"""Options and arguments that several commands share, and functions that load plugins and runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from ensemble_core.cli.command_group import CommandGroup
from ensemble_core.cli.error_format import errors_as_json, print_warning
from ensemble_core.session import kept_run

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ensemble_core.plugin.registry import Registry

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_F = TypeVar("_F", bound=Callable[..., Any])


plugin_option = click.option(
    "--plugin",
    "plugins",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="Load a plugin from a Python file. May be repeated.",
)


class Display(NamedTuple):
    """Options for how to display a run."""

    debug: bool = False
    quiet: bool = False
    as_json: bool = False
    progress: bool | None = None  # ``None`` if the option is not given
    show: str | None = None  # a results table that stays in view
    metrics: bool = False  # print all metrics at the end


def display_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add ``--debug``, ``--quiet``, ``--json``, ``--progress``, ``--show`` and ``--metrics``.

    The command receives these options as ``display``. With ``--json``, errors are printed as JSON
    too.
    """

    @wraps(function)
    def command(**given: Any) -> int:
        display = Display(**{name: given.pop(name) for name in Display._fields})
        if display.quiet and (display.debug or display.as_json):
            other = "debug" if display.debug else "json"
            raise click.UsageError(f"--quiet cannot be combined with --{other}")
        with errors_as_json(display.as_json):
            return function(display=display, **given)

    for option in (
        click.option(
            "--progress/--no-progress",
            default=None,
            help="Show or hide the live table.  [default: show on a terminal]",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print one event or decision per line, as JSON."
        ),
        click.option("-q", "--quiet", is_flag=True, help="Print only errors and failed jobs."),
        click.option(
            "--metrics", is_flag=True, help="Show all metrics at the end (implied by --debug)."
        ),
        click.option(
            "--show",
            metavar="TABLE",
            help="Show this results table while the run is active and at its end.",
        ),
        click.option("--debug", is_flag=True, help="Print every event."),
    ):
        command = option(command)
    return command


def _complete_overrides(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from ensemble_core.config.file_text import read_file
    from ensemble_core.config.overrides import keys
    from ensemble_core.config.schema import compose
    from ensemble_core.config.yaml_reader import read_document
    from ensemble_core.errors import EnsembleError

    first = next((each.name for each in ctx.command.params if each.nargs == 1), None)
    given = ctx.params.get(str(first)) or (ctx.args[0] if ctx.args else "")
    try:
        if first == "run":
            with KeptRun(ctx.params.get("state"), given, salvage=True) as kept:
                text, registry = kept.journal.texts()[-1].text, kept.registry
        else:
            text, registry = read_file(given), load_plugins((), warn=False)
        data = read_document(text, "").data
        found = [*keys(data, compose(registry))] if isinstance(data, dict) else []
    except (EnsembleError, ValueError, LookupError):
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=_complete_overrides,
    help="Override a value of the file, such as jobs.sleep.count=3. May be repeated.",
)


allow_idle_option = click.option(
    "--allow-idle",
    is_flag=True,
    help="Accept a file in which no rule can start anything, for a run that only steers "
    "other jobs.",
)


def wall_option(function: _F) -> _F:
    """Add ``--wall DURATION``. The command receives seconds."""

    def read(ctx: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
        from ensemble_core.errors import EnsembleError
        from ensemble_core.model.durations import seconds

        if given is None:
            return None
        try:
            found = seconds(given)
        except EnsembleError as error:
            raise click.BadParameter(f"{error.what} ({error.hint})") from None
        if not found:
            raise click.BadParameter("the run would stop at once")
        return found

    return click.option(
        "--wall",
        metavar="DURATION",
        callback=read,
        help="Stop the run after this time, such as 3h50m; 'ensemble resume' continues it.  "
        "[default: limits.wall of the file]",
    )(function)


executor_option = click.option(
    "--executor",
    metavar="NAME",
    help="Use this executor; 'ensemble plugins list' shows all.",
)


def _complete_profiles(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from ensemble_core.session.profile_files import known_profiles

    names = known_profiles(load_plugins((), warn=False))
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


profile_option = click.option(
    "--profile",
    metavar="NAME",
    shell_complete=_complete_profiles,
    help="Use this profile; 'none' uses none.  [default: $ENSEMBLE_PROFILE, or the files' default]",
)


def key_value_option(what: str) -> Callable[[_F], _F]:
    """Add ``-o KEY=VALUE``, which may be repeated. Pass ``options`` to ``read_options``."""
    return click.option("-o", "--option", "options", metavar="KEY=VALUE", multiple=True, help=what)


state_option = click.option(
    "--state",
    metavar="DIR",
    type=click.Path(),
    help="Folder of runs.  [default: $ENSEMBLE_STATE, or the user's state folder]",
)
take_over_option = click.option(
    "--take-over",
    is_flag=True,
    help="Assume that the controller is dead if that cannot be determined.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def complete_runs(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the runs that match an incomplete name, newest first, for shell completion."""
    from click.shell_completion import CompletionItem

    from ensemble_core.errors import EnsembleError
    from ensemble_core.journal.run_store import run_folders, state_folder

    try:
        names = [
            folder.name for folder in reversed(run_folders(state_folder(ctx.params.get("state"))))
        ]
    except EnsembleError:
        return []
    return [CompletionItem(name) for name in ["last", *names] if name.startswith(incomplete)]


def complete_names(names: Callable[..., Iterable[str]], *of: str) -> Completer:
    """Return a function that completes names of the run, such as its jobs, in a shell.

    ``names`` is a function of ``name_completion``, and ``of`` are parameters of the command whose
    values it also gets. Names that were given already are left out.
    """

    def complete(
        ctx: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from ensemble_core.errors import EnsembleError

        # At the value of an option, click leaves the arguments before it in ``args``.
        arguments = [str(each.name) for each in ctx.command.params if each.nargs == 1]
        arguments = [name for name in arguments if name in ("run", "group")]
        params = dict(zip(arguments, ctx.args, strict=False))
        params |= {name: value for name, value in ctx.params.items() if value is not None}
        try:
            with KeptRun(params.get("state"), str(params.get("run")), salvage=True) as kept:
                found = list(names(kept, *(params.get(each) for each in of)))
        except (EnsembleError, ValueError, LookupError):
            return []  # a damaged run, or one without a file
        given = params.get(str(parameter.name)) or ()
        return [
            CompletionItem(name)
            for name in found
            if name.startswith(incomplete) and name not in given
        ]

    return complete


class KeptRun(kept_run.KeptRun):
    """A stored run that prints its warnings on stderr."""

    def __init__(
        self, state: str | None, run: str, *, salvage: bool = False, whole: bool = False
    ) -> None:
        super().__init__(
            state, run, find_plugins=load_plugins, warn=print_warning, salvage=salvage, whole=whole
        )


run_argument = click.argument("run", metavar="RUN", shell_complete=complete_runs)


def kept_run_options(*, salvage: bool = False) -> Callable[[_F], _F]:
    """Add RUN, ``--state`` and ``--json`` to a command that reads a stored run.

    The command receives the arguments ``kept`` (the open run) and ``as_json``. With ``salvage``, a
    damaged run is opened as far as possible.
    """

    def decorate(function: _F) -> _F:
        @wraps(function)
        def command(run: str, state: str | None, as_json: bool, **others: Any) -> Any:
            with errors_as_json(as_json), KeptRun(state, run, salvage=salvage, whole=True) as kept:
                return function(kept=kept, as_json=as_json, **others)

        between = command.__dict__.pop("__click_params__", [])
        json_option(command)
        state_option(command)
        command.__dict__["__click_params__"] += between
        return run_argument(cast("_F", command))

    return decorate


def load_plugins(files: Sequence[str], *, warn: bool = True) -> Registry:
    """Load the installed plugins and those in ``files``. Report each problem once."""
    from ensemble_core.plugin.discovery import discover

    # Execute a plugin file only once, even if its flags were read before.
    ctx = click.get_current_context(silent=True)
    loaded = {} if ctx is None else ctx.meta.setdefault("ensemble.plugins", {})
    registry = loaded.get(tuple(files)) or discover(files)
    loaded[tuple(files)] = registry
    if CommandGroup.is_program and not files and not gc.get_freeze_count():
        # Modules live until the end, so the garbage collector need not scan them. Later objects of
        # user code are still collected, because an open file may have to be closed.
        gc.freeze()
    for text in registry.warnings if warn else ():
        print_warning(text)
    return registry
