"""Finds the plugins and asks each, once, what it has: the result is a :class:`Registry`.

Called by the command line and the runtime, through :func:`discover`. Plugins come from the
entry-point group ``ensemble`` of installed distributions, the built-ins among them, and from single
files that the user names. An installed plugin that is broken is left out, listed with the reason
and warned about: it must not keep anybody from working who does not use it. A file that the user
named and that is broken is an error, because somebody asked for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pluggy

from ensemble_core.errors import Location, PluginError, interrupted
from ensemble_core.plugin.entry_points import EntryPoint, entry_points, normalize
from ensemble_core.plugin.hookspecs import PROJECT, ExecutorPlugin
from ensemble_core.plugin.load_guard import guarded, together
from ensemble_core.plugin.registry import BUILTIN, LoadedPlugin, Named, Registry
from ensemble_core.plugin.validation import FORMER_HOOKS, HOOKS, check_records

__all__ = ["GROUP", "discover", "executor_record", "explain_failure", "looking_in"]

#: The entry-point group.
GROUP = "ensemble"


def discover(files: Sequence[str | Path] = ()) -> Registry:
    """Load every installed plugin and the plugin ``files``, and call the hooks of each.

    Raises :class:`PluginError` for a file that is missing or broken, with the place in it; never
    because of an installed plugin.
    """
    loader = _Loader()
    with together():
        plugins = [plugin for found in _installed() if (plugin := loader.load(found))]
        for file in files:
            plugin = loader.load_file(Path(file))
            if plugin:
                plugins.append(plugin)
    return Registry(plugins, loader.warnings)


def executor_record(name: str) -> ExecutorPlugin:
    """The record of an executor, for a plugin whose own executor composes another.

    To be called while that one is built: executors of the files of ``--plugin`` are found then, and
    else only what is installed. Raises :class:`PluginError` where there is none, or where two
    distributions claim the name.
    """
    record: ExecutorPlugin = (_looked_in.get() or discover()).lookup("executor", name)
    return record


#: What :func:`executor_record` looks in, while somebody has said so.
_looked_in: ContextVar[Registry | None] = ContextVar("ensemble-registry", default=None)


@contextlib.contextmanager
def looking_in(registry: Registry) -> Iterator[None]:
    """Have :func:`executor_record` look in this registry: what is built here may compose."""
    token = _looked_in.set(registry)
    try:
        yield
    finally:
        _looked_in.reset(token)


def _installed() -> list[EntryPoint]:
    """The entry points of the group: built-ins first, then by distribution and name."""
    return sorted(entry_points(GROUP), key=lambda point: normalize(point.distribution) != BUILTIN)


class _Loader:
    """Loads plugins one after another and remembers what was registered already."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._plugins: list[object] = []
        #: Hook functions that were asked, lest a module that imports one asks it again.
        self._asked: set[object] = set()
        self._files: set[Path] = set()

    def load(self, found: EntryPoint) -> LoadedPlugin | None:
        """Load an installed plugin; ``None`` if this very object was loaded already."""
        done = partial(
            LoadedPlugin,
            name=found.name,
            distribution=found.distribution,
            version=found.version,
            module=found.value,
            builtin=normalize(found.distribution) == BUILTIN,
        )
        if found.error is not None:
            return done(error=found.error)
        try:
            shown = str(done())
            with contextlib.nullcontext() if done().builtin else self._guarded(shown):
                plugin = found.load()
                if any(plugin is each for each in self._plugins):
                    return None
                records, notes = self._ask(plugin, shown)
        except BaseException as error:  # SystemExit and the panics of compiled modules included
            return done(error=_reason(error))
        file = getattr(plugin, "__file__", None)
        if file:
            self._files.add(_real(Path(file)))
        return done(records=records, notes=notes)

    def load_file(self, path: Path) -> LoadedPlugin | None:
        """Load a single file; ``None`` if it was loaded already. Raises :class:`PluginError`."""
        file = str(path)
        if path.is_dir():
            raise PluginError(
                f"plugin {file!r} is a folder",
                hint="give a Python file; a package has to be installed",
                code="plugin-file",
            )
        if not path.exists():
            raise PluginError(
                f"plugin file {file!r} does not exist",
                hint="put it there, or check its path: a run is resumed with the plugin files that "
                "it was started with",
                code="plugin-file",
            )
        if not path.is_file():
            raise PluginError(
                f"plugin {file!r} is not a regular file",
                hint="write the plugin to a file first",
                code="plugin-file",
            )
        if _real(path) in self._files:
            return None
        shown = f"plugin {file!r}"
        with self._guarded(shown):
            module = _import_file(path)
        try:
            with self._guarded(shown):
                records, notes = self._ask(module, shown)
        except BaseException as error:  # whatever a plugin's code can raise
            sys.modules.pop(module.__name__, None)
            raise PluginError(
                f"plugin {path.name!r} is broken: {_reason(error)}",
                where=Location(file),
                code="plugin-broken",
            ) from error
        self._files.add(_real(path))
        # A file may not pass for the built-ins, whatever it is called.
        distribution = path.name if normalize(path.stem) == BUILTIN else path.stem
        return LoadedPlugin(
            name=path.stem,
            distribution=distribution,
            version="",
            module=file,
            records=records,
            notes=notes,
        )

    @contextlib.contextmanager
    def _guarded(self, shown: str) -> Iterator[None]:
        with guarded(shown) as printed:
            yield
        told = f"{shown} prints while it is loaded; that went to the standard error"
        if printed.anything and told not in self.warnings:
            self.warnings.append(told)

    def _ask(
        self, plugin: object, shown: str
    ) -> tuple[dict[str, tuple[Named, ...]], tuple[str, ...]]:
        """Call the plugin's hooks; what they return, by kind, and notes for its author. Raises
        :class:`PluginError`, and what the plugin's own code raises while it is looked at."""
        hooks: list[tuple[str, Any]] = []
        notes: list[str] = []
        names: Iterable[str] = dir(plugin)
        if inspect.ismodule(plugin):  # most of what a module has is not worth a question
            names = sorted(name for name, each in vars(plugin).items() if inspect.isroutine(each))
        for name in names:
            mark = _parse_mark(plugin, name)
            if mark is None:
                continue
            hook = mark["specname"] or name
            if (former := hook) in FORMER_HOOKS:
                hook = FORMER_HOOKS[former]
                if hasattr(plugin, hook):  # it works with an earlier version of Ensemble as well
                    continue
                notes.append(f"hook {former} is deprecated: rename it to {hook}")
            if hook in HOOKS:
                if mark["wrapper"] or mark["hookwrapper"]:
                    raise PluginError(f"{hook} is a hook wrapper, which is not supported")
                hooks.append((hook, getattr(plugin, name)))
            elif not mark["optionalhook"]:
                raise PluginError(f"no hook {hook!r}{_near_hook(hook)}")
        self._check_unmarked(plugin, {hook for hook, _ in hooks}, shown)
        if not hooks:
            raise PluginError(
                f"it has no hook: mark a function named {' or '.join(sorted(HOOKS))} with @hookimpl"
            )
        # Our own tests hold the built-ins to their contracts; looking again would only cost time.
        thorough = not getattr(plugin, "__name__", "").startswith("ensemble_core.")
        records: dict[str, tuple[Named, ...]] = {}
        asked: set[object] = set()
        for hook, function in sorted(hooks, key=lambda each: list(HOOKS).index(each[0])):
            if function in self._asked:
                continue
            if strange := _required_arguments(function):
                raise PluginError(
                    f"{hook} takes the arguments {strange}, which the hook does not have"
                )
            try:
                returned = check_records(function(), hook, thorough=thorough)
            except PluginError:
                raise
            except BaseException as error:  # whatever a plugin's code can raise
                raise PluginError(f"{hook} raised {_reason(error)}") from error
            kind = HOOKS[hook][0]
            records[kind] = records.get(kind, ()) + returned
            asked.add(function)
        self._asked |= asked
        self._plugins.append(plugin)
        return records, tuple(notes)

    def _check_unmarked(self, plugin: object, implemented: set[str], shown: str) -> None:
        """A function that looks like a hook but is not marked would register nothing, silently."""
        home = getattr(plugin, "__name__", None) if inspect.ismodule(plugin) else None
        for name in dir(plugin):
            value = getattr(plugin, name, None) if "ensemble" in name else None
            if not inspect.isroutine(value) or name in implemented:
                continue
            if hasattr(value, f"{PROJECT}_impl") or hasattr(value, f"{PROJECT}_spec"):
                continue
            if home is not None and getattr(value, "__module__", home) != home:
                continue
            if name in HOOKS or name in FORMER_HOOKS:
                raise PluginError(f"{name} is not marked with @hookimpl, so it would do nothing")
            near = get_close_matches(name, HOOKS, 1, 0.85) if name.startswith("ensemble") else []
            if near and not implemented:
                raise PluginError(
                    f"{name} is no hook and not marked with @hookimpl; did you mean {near[0]!r}?"
                )
            if near:
                self.warnings.append(
                    f"{shown}: {name} is no hook; if it was meant to be one, name it {near[0]!r} "
                    "and mark it with @hookimpl"
                )


#: The mark that ``@hookimpl`` left on an attribute of a plugin, if it did.
_parse_mark = pluggy.PluginManager(PROJECT).parse_hookimpl_opts


def _required_arguments(function: Callable[..., object]) -> set[str]:
    return {
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    }


def _near_hook(name: str) -> str:
    near = get_close_matches(name, HOOKS, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; the hooks are {', '.join(HOOKS)}"


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


class _Source(SourceFileLoader):
    """Compiles the file itself: no bytecode that is left beside it, none that is out of date."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import_file(path: Path) -> ModuleType:
    real = _real(path)
    name = "ensemble_plugin_" + re.sub(r"\W", "_", str(real).strip("/"))
    spec = importlib.util.spec_from_file_location(name, real, loader=_Source(name, str(real)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # whatever a plugin's code can raise
        del sys.modules[name]
        if interrupted(error):
            raise KeyboardInterrupt from error
        raise _file_error(path, real, error) from error
    return module


def _file_error(path: Path, real: Path, error: BaseException) -> PluginError:
    if isinstance(error, OSError) and error.filename == str(real):
        return PluginError(
            f"plugin file {str(path)!r} cannot be read: {error.strerror}", code="plugin-file"
        )
    import traceback

    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((frame.lineno or 0 for frame in frames if frame.filename == str(real)), 0)
    where = Location(str(path), line, 1) if line else Location(str(path))
    what = f"cannot be loaded: {explain_failure(error, place=False)}"
    hint = None
    if isinstance(error, SyntaxError) and error.filename in (str(real), None):
        what = f"does not parse: {error.msg}"
        where = Location(str(path), error.lineno or 0, error.offset or 0)
    elif isinstance(error, ModuleNotFoundError) and error.name:
        neighbour = real.parent / error.name.partition(".")[0]
        if neighbour.is_dir() or neighbour.with_suffix(".py").exists():
            hint = "a single file cannot import its neighbours: make them a package and install it"
        else:
            hint = f"install what provides the module {error.name!r}"
    elif isinstance(error, ValueError) and not line:
        what = f"does not parse: {error}"
    return PluginError(f"plugin {path.name!r} {what}", where=where, hint=hint, code="plugin-broken")


def _reason(error: BaseException) -> str:
    """Why a plugin is broken, of whatever its code raised; Ctrl-C goes on."""
    if interrupted(error):
        raise KeyboardInterrupt from error
    return error.what if isinstance(error, PluginError) else explain_failure(error)


def explain_failure(error: BaseException, *, place: bool = True) -> str:
    """An error in a plugin's code, in one line, with the place in that code."""
    import traceback

    text = " ".join(str(error).split()) or "no reason given"
    if isinstance(error, SystemExit):
        text = f"it ended the program (exit code {error.code})"
    reason = f"{type(error).__name__}: {text}"
    if isinstance(error, SyntaxError) or not place:
        return reason
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
        and "importlib" not in Path(frame.filename).parts
        and Path(frame.filename).parent != Path(__file__).parent
    ]
    return f"{reason} ({frames[-1].filename}:{frames[-1].lineno})" if frames else reason
