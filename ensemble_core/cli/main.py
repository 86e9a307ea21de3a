"""The ``ensemble`` command with the subcommands of the core and of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from ensemble_core.cli.command_group import CommandGroup

#: Subcommands, each with its help text. Each is a function in a module of the same name.
COMMANDS: dict[str, str] = {
    "init": "Create a small commented study: study.yaml and a program.",
    "run": "Run an ensemble file.",
    "resume": "Resume a stopped or interrupted run.",
    "stop": "Stop a run; 'ensemble resume' continues it.",
    "cancel": "End a run and cancel its jobs.",
    "submit": "Submit jobs in a live run.",
    "retry": "Run failed jobs of a run again.",
    "set": "Change fields of a job group, or limits, of a live run.",
    "enable": "Enable rules of a live run.",
    "disable": "Disable rules of a live run.",
    "watch": "Show a queue's gauges and events, without a run.",
    "runs": "List runs.",
    "status": "Show the state of a run.",
    "results": "Show a table of a run's results.",
    "jobs": "List the jobs of a run.",
    "metrics": "Show the metrics of a run.",
    "events": "Show a run's events and decisions.",
    "logs": "Show the output of a run's jobs.",
    "why": "Explain why a rule fired or did not fire.",
    "replay": "Re-run the engine on the journal and check its decisions.",
    "clean": "Delete the folders of finished runs.",
    "validate": "Check ensemble files without running them.",
    "observe": "Show the rows that observers make of a file.",
    "schema": "Print the JSON Schema of ensemble files, for editors.",
    "algorithms": "List algorithms for 'use:' and show their rules.",
    "plugins": "List plugins and describe what they register.",
    "version": "Print the version.",
    "completion": "Print a shell completion script.",
}


class EnsembleGroup(CommandGroup):
    """Group of all subcommands. A subcommand is imported when it is called."""

    handle_signals = frozenset({"run", "resume", "retry"})

    def commands_of_plugins(self) -> dict[str, str]:
        """Return the commands of plugins with their help texts.

        For an ambiguous name, the text says which plugins claim it.
        """
        from ensemble_core.cli.plugin_commands import find_commands, summary_of

        found = find_commands(COMMANDS)
        listed = {name: summary_of(found[name]) for name in found.names if name not in COMMANDS}
        for name, plugins in found.clashes.items():
            listed[name] = f"(of {' and of '.join(plugin.distribution for plugin in plugins)})"
        return dict(sorted(listed.items()))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *self.commands_of_plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = import_module(f"ensemble_core.cli.commands.{cmd_name}")
            command: click.Command = getattr(module, cmd_name)
            return command
        from ensemble_core.cli.plugin_commands import find_commands, load_command

        try:
            return load_command(find_commands(COMMANDS)[cmd_name])
        except KeyError:
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        plugins = self.commands_of_plugins()
        if plugins:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(list(plugins.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found: list[Any] = [
            CompletionItem(name, help=text)
            for name, text in {**COMMANDS, **self.commands_of_plugins()}.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def hint(self, name: str, known: Sequence[str]) -> str:
        from ensemble_core.plugin.distributions import known_provider

        if name.endswith((".yaml", ".yml")):
            return f"Did you mean 'ensemble run {name}'?"
        provider = known_provider("command", name)
        return (
            f"It comes with {provider[0]}: {provider[1]}" if provider else super().hint(name, known)
        )


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ensemble_core.cli.commands.version import text

        click.echo(text())
        ctx.exit()


@click.group(
    cls=EnsembleGroup,
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
