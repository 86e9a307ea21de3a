"""``ensemble plugins``: lists plugins, including broken ones, and what they register."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ensemble_core.cli.error_format import print_warning
from ensemble_core.cli.main import COMMANDS
from ensemble_core.cli.options import load_plugins, plugin_option
from ensemble_core.cli.plugin_commands import find_commands, listed_commands
from ensemble_core.display.text_style import (
    TextStyle,
    format_table,
    print_table,
    printable,
    style_of,
)
from ensemble_core.errors import UsageError, did_you_mean
from ensemble_core.plugin.option_schemas import plain
from ensemble_core.plugin.registry import KINDS
from ensemble_core.session.executor_choice import probe


@click.group()
def plugins() -> None:
    """List plugins and describe what they register."""


@plugins.command("list")
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_plugins(plugins: tuple[str, ...], as_json: bool) -> None:
    """List all plugins. For a broken plugin, the reason is shown."""
    registry = load_plugins(plugins, warn=False)
    listed = [*registry.plugins, *listed_commands()]
    clashes = [clash for kind in KINDS for clash in registry.records(kind).unclear()]
    warnings = [
        *registry.warnings,
        *(f"{clash.what}; {clash.hint}" for clash in clashes),
        *find_commands(COMMANDS).warnings,
    ]
    if as_json:
        document = {"plugins": [plugin.to_dict() for plugin in listed], "warnings": warnings}
        click.echo(json.dumps(document, indent=2))
        return
    look = style_of(sys.stdout)
    rows = [("plugin", "distribution", "version", "registers")]
    broken: list[bool] = [False]
    for plugin in listed:
        told = [
            f"{kind if len(records) == 1 else kind + 's'}: "
            f"{', '.join(record.name for record in records)}"
            for kind, records in plugin.records.items()
            if records
        ]
        if plugin.error is not None:
            told = [f"broken: {plugin.error}"]
        first = (plugin.name, plugin.distribution, plugin.version)
        for number, text in enumerate(_wrap(told or ["nothing"])):
            rows.append((*(first if number == 0 else ("", "", "")), printable(text)))
            broken.append(plugin.error is not None)
    lines = format_table([tuple(printable(cell) for cell in row) for row in rows])
    shown = zip(lines, broken, strict=True)
    print_table([look.paint(line, "bad") if bad else line for line, bad in shown], look)
    said = {f"{plugin} is broken and was skipped: {plugin.error}" for plugin in registry.broken}
    for text in warnings:
        if text not in said:
            print_warning(text)


def _wrap(texts: list[str]) -> list[str]:
    """Wrap each text to the width of the last column of a table."""
    import shutil
    import textwrap

    width = max(40, shutil.get_terminal_size((120, 24)).columns - 50)
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [line for text in texts for line in wrapper.wrap(text)]


@plugins.command("show")
@click.argument("words", metavar="[KIND] NAME", nargs=-1, required=True)
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(words: tuple[str, ...], plugins: tuple[str, ...], as_json: bool) -> None:
    """Describe what a plugin registers (an executor, trigger, action …) and its options.

    KIND is needed only if, for example, an action and a trigger have the same NAME.
    """
    if len(words) > 2:
        raise click.UsageError(f"expected [KIND] NAME, got {' '.join(words)!r}")
    name = words[-1]
    registry = load_plugins(plugins, warn=False)
    kinds: list[str] = list(KINDS)
    if len(words) == 2:
        kind = words[0].lower()
        kind = kind[:-1] if kind.endswith("s") and kind[:-1] in kinds else kind
        if kind not in kinds:
            raise click.UsageError(f"unknown kind {words[0]!r}; kinds: {', '.join(kinds)}")
        kinds = [kind]
    found = [
        (kind, registry.records(kind)[name])  # raises an error if two plugins claim the name
        for kind in KINDS
        if kind in kinds
        and (name in registry.records(kind) or name in registry.records(kind).clashes)
    ]
    if not found:
        raise _missing(registry, kinds, name)
    described = [_describe(registry, kind, record) for kind, record in found]
    if as_json:
        click.echo(json.dumps(described, indent=2, default=str))
        return
    look = style_of(sys.stdout)
    for number, document in enumerate(described):
        if number:
            click.echo()
        for line in describe(document, look):
            click.echo(line, color=look.color)


def _missing(registry: Any, kinds: list[str], name: str) -> Exception:
    """Return the error for an unknown name.

    If it is the name of a plugin, list what that registers.
    """
    for plugin in registry.plugins:
        if name in (plugin.name, plugin.distribution):
            if plugin.error is not None:
                return UsageError(f"{plugin} is broken", cause=plugin.error, code="broken-plugin")
            names = [record.name for records in plugin.records.values() for record in records]
            return UsageError(
                f"{name!r} is the name of a plugin, not of an executor, action or other record",
                hint=f"the plugin registers {', '.join(names) or 'nothing'}",
                code="not-a-record",
            )
    if len(kinds) == 1:
        hint = registry.explain_missing(kinds[0], name)
    else:
        known = {each for kind in kinds for each in registry.records(kind)}
        hint = did_you_mean(name, known, "'ensemble plugins list' shows all names")
    what = kinds[0] if len(kinds) == 1 else f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
    return UsageError(f"there is no {what} named {name!r}", hint=hint, code="no-such-record")


def _describe(registry: Any, kind: str, record: Any) -> dict[str, Any]:
    """Return a record as plain data."""
    provider = registry.owner(record)
    document: dict[str, Any] = {
        "kind": kind,
        "name": record.name,
        "summary": record.summary,
        "plugin": getattr(provider, "name", None),
        "distribution": getattr(provider, "distribution", None),
        "version": getattr(provider, "version", None),
    }
    for key in ("capabilities", "needs", "fields"):
        if hasattr(record, key):
            document[key] = sorted(getattr(record, key))
    for key in ("shared", "priority", "name_means", "timed", "default"):
        if hasattr(record, key):
            document[key] = getattr(record, key)
    if kind == "executor" and record.available is not None:
        works, detail = probe(record)
        document["available"], document["available_detail"] = works, detail
    document["options"] = plain(record.options)
    return document


def describe(document: Mapping[str, Any], look: TextStyle) -> Iterator[str]:
    """Yield the lines that the command ``show`` prints."""
    yield look.paint(f"{document['kind']} {document['name']}", "bold")
    yield f"  {printable(document['summary'])}"
    if document.get("objective"):
        yield f"  objective: {printable(document['objective'])}"
    yield f"  from {document['distribution']} {document['version']}".rstrip()
    if "available" in document:
        detail = (
            f": {printable(document['available_detail'])}" if document["available_detail"] else ""
        )
        yield f"  {'works here' if document['available'] else 'unavailable here'}{detail}"
    words = {
        "capabilities": "can",
        "needs": "needs an executor that can",
        "fields": "fields",
        "supports": "works with",
    }
    for key, word in words.items():
        if document.get(key):
            yield f"  {word}: {', '.join(document[key])}"
    if document.get("name_means"):
        means = {
            "group": "a job group",
            "groups": "a job group, or a list of them",
            "metric": "a metric's path",
        }
        yield f"  name: {means.get(document['name_means'], document['name_means'])}"
    yield from _option_lines(document["options"], look)
    if document.get("example"):
        yield "  example:"
        yield from (f"    {printable(line)}" for line in document["example"].splitlines())


def _option_lines(schema: Any, look: TextStyle) -> Iterator[str]:
    """Yield the lines that describe the options in a schema."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not properties:
        yield "  no options"
        return
    required = schema.get("required", ())
    yield "  options:"
    for name, option in properties.items():
        option = option if isinstance(option, Mapping) else {}
        notes = [_type(option)]
        if name in required:
            notes.append("required")
        if "default" in option:
            notes.append(f"default {json.dumps(option['default'])}")
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "more than"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "less than"),
        ):
            if key in option:
                notes.append(f"{word} {option[key]:g}")
        told = ", ".join(note for note in notes if note)
        yield f"    {look.paint(name, 'action')}" + (f" ({printable(told)})" if told else "")
        if option.get("description"):
            yield f"        {printable(str(option['description']))}"


def _type(option: Mapping[str, Any]) -> str:
    if option.get("x-ensemble") == "action":
        return "an action, or a list of actions"
    if option.get("x-ensemble") == "expression":
        return "texts that begin with = are evaluated"
    if "enum" in option:
        return "one of " + ", ".join(json.dumps(value) for value in option["enum"])
    if "const" in option:
        return json.dumps(option["const"])
    kind = option.get("type")
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    if isinstance(kind, str):
        return kind
    for key in ("anyOf", "oneOf"):
        if key in option:
            found = [_type(part) for part in option[key] if isinstance(part, Mapping)]
            return " or ".join(dict.fromkeys(each for each in found if each))
    return ""
