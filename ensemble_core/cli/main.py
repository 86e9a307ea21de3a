"""The ``ensemble`` command: the subcommands that come with the core, and those of plugins.

The installed script calls :data:`main`. Subcommands are imported only when they are used, so that
``ensemble --help`` costs no more than click itself. What becomes of errors, and the exit codes,
stand in ``command_group``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from ensemble_core.cli.command_group import CommandGroup

__all__ = ["COMMANDS", "main"]

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


class LazyGroup(CommandGroup):
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

    def hint(self, name: str, known: Sequence[str]) -> str:
        if name.endswith((".yaml", ".yml")):
            return f"Did you mean 'ensemble run {name}'?"
        return super().hint(name, known)


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
