"""Command-line flags that set options of executors, for ``run``, ``resume`` and ``cancel``.

An executor defines its flags with ``x-ensemble-flag`` in the schema of its options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from ensemble_core.errors import EnsembleError, UsageError

if TYPE_CHECKING:
    from ensemble_core.plugin.records import ExecutorPlugin
    from ensemble_core.plugin.registry import Registry

#: Keys in a click context's ``meta``: for the arguments, the available flags, and the given flags.
_ARGUMENTS, _FLAGS, _GIVEN = (f"ensemble.flags.{name}" for name in ("arguments", "all", "given"))
_TYPES = {"integer": int, "number": float}


class CommandWithFlags(click.Command):
    """A command that accepts the flags of installed executors."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        own = {name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
        # Loading plugins is slow, so load them only for an unknown flag.
        if any(each.startswith("--") and each.partition("=")[0] not in own for each in args):
            self._load(ctx, own)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(_FLAGS, ())]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        if incomplete.startswith("-"):
            self._load(ctx)
        return super().shell_complete(ctx, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._load(ctx)
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            shown = each.get_help_record(ctx)
            if shown is not None and not isinstance(each, click.Argument):
                title = each.section if isinstance(each, _Flag) else "Options"
                sections.setdefault(title, []).append(shown)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def _load(self, ctx: click.Context, own: set[str] | None = None) -> None:
        """Collect the flags of installed executors and of ``--plugin`` files."""
        if _FLAGS in ctx.meta:
            return
        from ensemble_core.cli.options import load_plugins

        if own is None:
            own = {name for each in super().get_params(ctx) for name in each.opts}
        try:
            registry = load_plugins(_plugin_files(ctx.meta.get(_ARGUMENTS, [])), warn=False)
        except EnsembleError:  # broken: the command reports that when it loads the file
            registry = load_plugins((), warn=False)
        # An option of the command itself takes precedence; -o sets that of the executor.
        flags = _flags(registry, str(self.name))
        ctx.meta[_FLAGS] = [flag for flag in flags if not own & set(flag.opts)]


class _Flag(click.Option):
    """A flag, with the schema of the option in each executor that has it."""

    def __init__(self, option: str, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        marks = {name: _mark(schema) for name, schema in schemas.items()}
        kinds = {str(schema.get("type")) for schema in schemas.values()}
        boolean = kinds == {"boolean"}
        helps = {name: mark["help"] for name, mark in marks.items() if "help" in mark} or {
            name: str(schema.get("description", "")) for name, schema in schemas.items()
        }
        text = next(iter(helps.values()))
        if len(set(helps.values())) > 1:
            text = "; ".join(f"{each.rstrip('.')} ({name})" for name, each in helps.items()) + "."
        super().__init__(
            [f"--{option.replace('_', '-')}"],
            is_flag=boolean,
            # If the schemas of the executors differ, the chosen executor's schema parses the text.
            type=None if boolean else _TYPES.get(" ".join(kinds), str),
            metavar=next((mark["metavar"] for mark in marks.values() if "metavar" in mark), None),
            help=text,
            expose_value=False,
            callback=_store_flag,
        )
        self.option = option
        self.executors = sorted(schemas)
        self.path = any(mark.get("path") for mark in marks.values())

    @property
    def section(self) -> str:
        """The heading under which ``--help`` shows the flag."""
        several = "s" if len(self.executors) > 1 else ""
        return f"Options of executor{several} {', '.join(self.executors)}"


def _store_flag(ctx: click.Context, flag: click.Parameter, value: Any) -> None:
    if value is None or value is False:
        return
    assert isinstance(flag, _Flag)
    if flag.path:
        if not value.strip():  # probably an unset shell variable: reject it
            raise click.BadParameter("the file name is empty", ctx, flag)
        # Make the path absolute, because a run may be resumed from another folder.
        value = os.path.abspath(os.path.expanduser(value))
    ctx.meta.setdefault(_GIVEN, {})[flag.option] = value


def given_flags(record: ExecutorPlugin, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the executor's options: ``before``, updated with the flags of the command line.

    Raises :class:`UsageError` for a flag that only other executors have.
    """
    ctx = click.get_current_context()
    given: dict[str, Any] = ctx.meta.get(_GIVEN, {})
    properties = record.options.get("properties", {})
    for flag in ctx.meta.get(_FLAGS, ()):
        if flag.option in given and flag.option not in properties:
            raise UsageError(
                f"{flag.opts[0]} does not apply to executor {record.name!r}",
                hint=f"use it with --executor {' or '.join(flag.executors)}",
                code="unknown-option",
            )
    replaced = {other for name in given for other in _mark(properties[name]).get("instead_of", ())}
    return {**{k: v for k, v in (before or {}).items() if k not in replaced}, **given}


def _flags(registry: Registry, command: str) -> Iterator[_Flag]:
    """Yield the flags that a command accepts, each with the executors that have it."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name in registry.executors.names:
        for option, schema in registry.executors[name].options.get("properties", {}).items():
            marked = isinstance(schema, Mapping) and schema.get("x-ensemble-flag")
            if marked and command in _mark(schema).get("commands", ("run",)):
                found.setdefault(option, {})[name] = schema
    for option, schemas in found.items():
        yield _Flag(option, schemas)


def _mark(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    mark = schema.get("x-ensemble-flag")
    return mark if isinstance(mark, Mapping) else {}


def _plugin_files(arguments: list[str]) -> list[str]:
    files = [each.partition("=")[2] for each in arguments if each.startswith("--plugin=")]
    return files + [file for word, file in pairwise(arguments) if word == "--plugin"]
