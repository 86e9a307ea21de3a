"""``ensemble algorithms``: lists the algorithms for ``use:``, with their options and rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from ensemble_core.cli.commands.plugins import describe
from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.options import load_plugins, plugin_option
from ensemble_core.display.text_style import format_table, print_table, printable, style_of
from ensemble_core.plugin.option_schemas import plain


@click.group()
def algorithms() -> None:
    """List algorithms for 'use:' and show their rules."""


@algorithms.command("list")
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_algorithms(plugins: tuple[str, ...], as_json: bool) -> None:
    """List every algorithm with a one-line description."""
    registry = load_plugins(plugins)
    found = [(name, registry.algorithms[name]) for name in registry.algorithms.names]
    if as_json:
        described = [_describe(registry, name, record) for name, record in found]
        click.echo(json.dumps({"algorithms": described}, indent=2))
        return
    rows = [("algorithm", "what it does")]
    rows += [(name, printable(record.summary)) for name, record in found]
    print_table(format_table(rows), style_of(sys.stdout))


def _describe(registry: Any, name: str, record: Any) -> dict[str, Any]:
    owner = registry.owner(record)
    return {
        "name": name,
        "summary": record.summary,
        "objective": record.objective,
        "needs": sorted(record.needs),
        "supports": sorted(record.supports),
        "distribution": owner.distribution if owner else None,
        "version": owner.version if owner else None,
        "options": plain(record.options),
        "example": record.example,
    }


@algorithms.command("show")
@click.argument("name")
@click.option(
    "--with",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set an option and print the resulting rules. May be repeated.",
)
@click.option("--as", "instance", metavar="NAME", help="Name of the instance.  [default: NAME]")
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(
    name: str,
    given: tuple[str, ...],
    instance: str | None,
    plugins: tuple[str, ...],
    as_json: bool,
) -> None:
    """Describe an algorithm, or print its rules for given options.

    With --with, the rules are printed as an entry that you can copy into 'use:'.
    """
    registry = load_plugins(plugins)
    if given or instance is not None:
        data = _expanded_entry(registry, name, given, instance)
        if as_json:
            click.echo(json.dumps(data, indent=2))
            return
        from ensemble_core.config.yaml_reader import write_yaml

        click.echo(write_yaml(data), nl=False)
        return
    record = registry.lookup("algorithm", name)
    document = _describe(registry, name, record)
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    look = style_of(sys.stdout)
    for line in describe({"kind": "algorithm", **document}, look):
        click.echo(line, color=look.color)


def _expanded_entry(
    registry: Any, name: str, given: tuple[str, ...], instance: str | None
) -> dict[str, Any]:
    """Return the entry under ``use:`` with all its rules, for the groups that its options name."""
    from ensemble_core import config
    from ensemble_core.cli.control_requests import given_values
    from ensemble_core.config.yaml_reader import write_yaml

    options = given_values(given, "group=sim", "--with")
    record = registry.algorithms.get(name)
    properties: Mapping[str, Any] = {} if record is None else record.options.get("properties", {})
    groups: dict[str, None] = {}
    for key, schema in properties.items():
        if isinstance(schema, Mapping) and schema.get("x-ensemble") == "group" and key in options:
            value = options[key]
            groups.update(dict.fromkeys(value if isinstance(value, list) else [value]))
    jobs = [{"name": str(each), "command": "true"} for each in groups or {"sim": None}]
    entry = {"algorithm": name, "with": options}
    if instance is not None:
        entry["as"] = instance
    text = write_yaml({"jobs": jobs, "use": [entry]})
    data = config.expanded(text, registry, file="")
    for warning in registry.warnings:
        print_warning(warning)
    return {key: data[key] for key in ("logging", "use") if key in data}
