"""The ``ensemble`` command: finds the subcommand, and turns every error into words and a number.

The installed script calls :data:`main`. Subcommands are imported only when they are used, so that
``ensemble --help`` costs no more than click itself. Exit codes: 0 done; 1 the run or its jobs
failed; 2 a wrong command line or file; 70 a fault in Ensemble or a plugin; 128 + N ended by
signal N; and whatever a rule's ``terminate`` says.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from ensemble_core.errors import EnsembleError

__all__ = ["COMMANDS", "FAULT", "main"]

#: Exit code for a fault that is not the user's (``EX_SOFTWARE`` of sysexits.h).
FAULT = 70

#: Subcommands, each a function of this name in the module of this name, and what ``--help`` says.
COMMANDS: dict[str, str] = {
    "run": "Run an ensemble file.",
    "resume": "Go on with a run whose controller was stopped or killed.",
    "cancel": "Stop a run: cancel its jobs and end it.",
    "runs": "List the runs that are kept.",
    "status": "Show how a run stands, or how it ended.",
    "events": "Show what happened in a run, and what was decided.",
    "logs": "Show what a run's jobs wrote.",
    "why": "Say why a rule fired, or did not.",
    "replay": "Check a run: decide everything anew from its journal and compare.",
    "clean": "Remove the records of runs that are over.",
    "validate": "Check ensemble files without running anything.",
    "schema": "Print the JSON Schema of ensemble files, for editors.",
    "plugins": "List and describe plugins and what they register.",
    "version": "Print the version.",
    "completion": "Print a shell completion script.",
}


def _of_plugins() -> dict[str, Any]:
    """Commands of plugins: the entry points of the group ``ensemble.commands``."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="ensemble.commands")}


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_of_plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            entry = _of_plugins().get(cmd_name)
            return None if entry is None else entry.load()
        module = import_module(f"ensemble_core.cli.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found: list[Any] = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            if name.endswith((".yaml", ".yml")):
                hint = f"Did you mean 'ensemble run {name}'?"
            else:
                near = get_close_matches(name, COMMANDS, 1)
                hint = (
                    f"Did you mean {near[0]!r}?" if near else f"Commands are {', '.join(COMMANDS)}."
                )
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; unless told otherwise, exit with its exit code."""
        run = super().main
        if not standalone_mode:
            return run(args, prog_name, complete_var, standalone_mode=False, **extra)
        _open_what_was_closed()
        try:
            code = run(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (KeyboardInterrupt, EOFError, click.Abort):
            code = 130
        except EnsembleError as error:
            from ensemble_core.cli.error_format import complain

            complain(error)
            code = error.exit_code
        except OSError as error:
            if error.errno != errno.EPIPE:
                _fault(error)
            close_quietly()
            code = 141
        except Exception as error:  # the last line of defence: words instead of a traceback
            _fault(error)
        if code == 130 and threading.current_thread() is threading.main_thread():
            # It is over: another Ctrl-C must not end the interpreter on its way out by a signal.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(code if isinstance(code, int) else 0)


def _open_what_was_closed() -> None:
    """Give us the three standard streams where they were closed (``>&-``): else the first files
    that are opened, such as a job's output, would take their places."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            stream = open(descriptor, mode, closefd=False, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def close_quietly() -> None:
    """Point stdout at nothing after its reader went away, so that the exit says nothing."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def _fault(error: BaseException) -> NoReturn:
    """Say that this is our fault, keep the traceback in a file, exit 70."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    lines = [f"error: this is a fault in Ensemble or a plugin: {type(error).__name__}: {error}"]
    if os.environ.get("ENSEMBLE_DEBUG") or "--debug" in sys.argv:
        lines.append(text.rstrip())
    else:
        try:
            with tempfile.NamedTemporaryFile(
                "w", prefix="ensemble-fault-", suffix=".txt", delete=False, errors="replace"
            ) as file:
                file.write(f"{' '.join(sys.argv)}\npython {sys.version}\n{text}")
            lines.append(f"  hint: please report it with the traceback in {file.name}")
        except OSError:
            lines.append(text.rstrip())
    click.echo("\n".join(lines), err=True)
    sys.exit(FAULT)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ensemble_core.cli.commands.version import text

        click.echo(text())
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with 'ensemble run FILE'. Each command has its own --help.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """Run HPC ensembles: many jobs steered by rules instead of a fixed graph."""
