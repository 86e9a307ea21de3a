"""``ensemble schema``: prints the JSON Schema of ensemble files, with the options of plugins."""

from __future__ import annotations

import json

import click

from ensemble_core import config
from ensemble_core.cli.options import load_plugins, plugin_option


@click.command()
@click.option(
    "--indent",
    type=click.IntRange(0, 16),
    default=2,
    show_default=True,
    metavar="N",
    help="Spaces of indentation; 0 prints one line.",
)
@click.option(
    "--config",
    "of_config",
    is_flag=True,
    help="Print the schema of configuration files, which have profiles, instead.",
)
@plugin_option
def schema(indent: int, of_config: bool, plugins: tuple[str, ...]) -> None:
    """Print the JSON Schema of ensemble files, for editors.

    The schema includes the options of installed plugins. An editor with a YAML language server uses
    it for a file whose first line is "# yaml-language-server: $schema=ensemble.schema.json".
    """
    compose = config.config_schema if of_config else config.schema
    composed = compose(load_plugins(plugins))
    click.echo(json.dumps(composed, indent=indent or None, ensure_ascii=False))
