"""Commands of plugins: entry points of the group ``ensemble.commands``.

The core's commands take precedence. If two distributions have a command of the same name,
``ensemble DISTRIBUTION:NAME`` selects one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder

import click

from ensemble_core.errors import PluginError, is_interrupt
from ensemble_core.plugin.distributions import EntryPoint, entry_points
from ensemble_core.plugin.registry import BUILTIN, LoadedPlugin, PluginRecords

#: Name of the entry-point group.
GROUP = "ensemble.commands"

_DOCSTRING = re.compile(r"""(?:\s*#[^\n]*\n)*\s*[rRuU]?(\"""|'''|"|')\s*(.*?)\s*(?:\1|\n|$)""")
#: How many characters are read to find the docstring of a module.
_HEAD = 4096


def find_commands(own: Iterable[str]) -> PluginRecords[EntryPoint]:
    """Return the core's commands, whose names are ``own``, and the commands of plugins."""
    points = [EntryPoint(name, "", BUILTIN, "") for name in own] + entry_points(GROUP)
    return PluginRecords("command", [(_provider(point), point) for point in points])


def _provider(point: EntryPoint, error: str | None = None) -> LoadedPlugin:
    return LoadedPlugin(
        name=point.name,
        distribution=point.distribution,
        version=point.version,
        module=point.value,
        records={} if error else {"command": (point,)},
        error=error,
        builtin=not point.value,
    )


def listed_commands() -> list[LoadedPlugin]:
    """Return the plugins' commands. The ``error`` of a broken one says why it is broken."""
    listed = []
    for point in entry_points(GROUP):
        try:
            load_command(point)
        except PluginError as error:
            listed.append(_provider(point, error.cause or error.what))
        else:
            listed.append(_provider(point))
    return listed


def load_command(point: EntryPoint) -> click.Command:
    """Import a command. Raises :class:`PluginError` if that fails."""
    try:
        if point.error is not None:
            raise PluginError(point.error)
        from ensemble_core.plugin.discovery import stdout_to_stderr

        with stdout_to_stderr():
            command: object = point.load()
        if not isinstance(command, click.Command):
            raise PluginError(f"{point.value!r} is not a click command")
    except BaseException as error:  # a plugin's code can raise anything
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        from ensemble_core.plugin.discovery import explain_failure

        raise PluginError(
            f"command {point.name!r} of {point.distribution} {point.version} is broken",
            cause=error.what if isinstance(error, PluginError) else explain_failure(error),
            hint=f"reinstall {point.distribution}, or report the error to the plugin's authors",
            code="plugin-broken",
        ) from error
    return command


def summary_of(point: EntryPoint) -> str:
    """Return the first line of a command module's docstring, without importing the module."""
    top, *inner = point.module.split(".")
    try:
        spec = PathFinder.find_spec(top, sys.path)
        if spec is None:
            return ""
        file = spec.origin or ""
        if inner:
            folder = os.path.join(next(iter(spec.submodule_search_locations or ())), *inner)
            file = f"{folder}.py" if not os.path.isdir(folder) else f"{folder}/__init__.py"
        with open(file, encoding="utf-8") as lines:
            match = _DOCSTRING.match(lines.read(_HEAD))
    except (OSError, ValueError, StopIteration):
        return ""
    return match[2].replace("``", "") if match else ""
