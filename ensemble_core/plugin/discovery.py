"""Finds and loads all plugins, and collects what they register.

Plugins come from the entry-point group ``ensemble`` of installed distributions, and from files that
the user names. A broken installed plugin causes only a warning, because the user may not need it. A
broken file is an error. What a plugin prints while it is loaded goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pluggy

from ensemble_core.errors import Location, PluginError, closest, did_you_mean, is_interrupt
from ensemble_core.plugin import hookspecs
from ensemble_core.plugin.distributions import EntryPoint, entry_points, normalize
from ensemble_core.plugin.hookspecs import PROJECT, ExecutorPlugin, ObserverPlugin
from ensemble_core.plugin.record_validation import HOOKS, check_records
from ensemble_core.plugin.registry import BUILTIN, LoadedPlugin, Named, Registry

#: Name of the entry-point group.
GROUP = "ensemble"


#: Function that returns the installed plugins and those in the given files. That of the command
#: line also prints problems, and executes a file only once per command.
FindPlugins = Callable[[Sequence[str]], Registry]

#: Held while stdout is redirected. A thread that writes to stdout also holds it: its lines would
#: otherwise go to stderr while another thread loads plugins.
STDOUT = threading.RLock()


def discover(files: Sequence[str | Path] = ()) -> Registry:
    """Load every installed plugin and the plugin ``files``, and call the hooks of each.

    Raises :class:`PluginError` if one of the ``files`` is missing or broken.
    """
    loader = _Loader()
    plugins = [plugin for found in _installed_entry_points() if (plugin := loader.load(found))]
    plugins += [plugin for file in files if (plugin := loader.load_file(Path(file)))]
    return Registry(plugins, loader.warnings)


_installed = lru_cache(maxsize=1)(discover)


def find_plugins(files: Sequence[str]) -> Registry:
    """Return the installed plugins (loaded once per process) and those in these files.

    Raises :class:`PluginError` if a file is missing or broken.
    """
    return discover(files) if files else _installed()


def executor_record(name: str) -> ExecutorPlugin:
    """Return the record of the executor with this name, for plugins whose executor wraps another.

    Call it only in functions of a record, not while plugins are loaded. Raises
    :class:`PluginError` if no executor has this name, or if two distributions claim the name.
    """
    record: ExecutorPlugin = _registry().lookup("executor", name)
    return record


def observer_record(name: str) -> ObserverPlugin:
    """Return the record of the observer with this name, for plugins whose observer wraps another.

    Call it only in functions of a record, not while plugins are loaded. Raises
    :class:`PluginError` if no observer has this name, or if two distributions claim the name.
    """
    record: ObserverPlugin = _registry().lookup("observer", name)
    return record


#: The registry in which records are looked up within a ``with use_registry(…)`` block.
_active: ContextVar[Registry | None] = ContextVar("ensemble-registry", default=None)
#: The registries of the runs of this process, the newest last.
_of_runs: list[Registry] = []


@contextlib.contextmanager
def use_registry(registry: Registry, *, threads: bool = False) -> Iterator[None]:
    """Make :func:`executor_record` and :func:`observer_record` use this registry in the block.

    With ``threads``, other threads also use it, unless they use one of their own: a run calls
    functions of records on threads of its executor.
    """
    token = _active.set(registry)
    if threads:
        _of_runs.append(registry)
    try:
        yield
    finally:
        _active.reset(token)
        if threads:
            _of_runs.remove(registry)


def _registry() -> Registry:
    """Return the registry in use, or load the installed plugins if no run uses one."""
    return _active.get() or (_of_runs[-1] if _of_runs else discover())


def _installed_entry_points() -> list[EntryPoint]:
    """Return the entry points of the group: first the built-ins, then by distribution and name."""
    return sorted(entry_points(GROUP), key=lambda point: normalize(point.distribution) != BUILTIN)


class _Manager(pluggy.PluginManager):
    """Pluggy's manager for the hooks of Ensemble."""

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(hookspecs)

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        if inspect.ismodule(plugin):  # most names are not hooks, and pluggy's check is slower
            value = vars(plugin).get(name)
            if isinstance(value, type) or not callable(value):  # ``isroutine`` is slow for these
                return None
            if not (inspect.isroutine(value) and hasattr(value, f"{PROJECT}_impl")):
                return None
        return super().parse_hookimpl_opts(plugin, name)


class _Loader:
    """Loads plugins one by one and collects their records."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._manager = _Manager()
        #: Hook functions that were called already. If another module imports such a function, it is
        #: not called again.
        self._called: set[object] = set()
        self._files: set[Path] = set()

    def load(self, found: EntryPoint) -> LoadedPlugin | None:
        """Load an installed plugin. Return ``None`` if the same object has been loaded before."""
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
            with contextlib.nullcontext() if done().builtin else self._guard(shown):
                plugin = found.load()
                if self._manager.is_registered(plugin):
                    return None
                records = self._register(plugin, shown, found.value)
        except BaseException as error:  # also SystemExit, and panics of compiled modules
            return done(error=_reason(error))
        file = getattr(plugin, "__file__", None)
        if file:
            self._files.add(_real(Path(file)))
        return done(records=records)

    def load_file(self, path: Path) -> LoadedPlugin | None:
        """Load a plugin file.

        Return ``None`` if it is loaded already. Raises :class:`PluginError`.
        """
        file = str(path)
        if path.is_dir():
            raise PluginError(
                f"plugin {file!r} is a folder",
                hint="give a Python file, or install the folder as a package",
                code="plugin-file",
            )
        if not path.exists():
            raise PluginError(
                f"plugin file {file!r} does not exist",
                hint="check the path; a resume needs the plugin files that the run was started "
                "with",
                code="plugin-file",
            )
        if not path.is_file():
            raise PluginError(
                f"plugin {file!r} is not a regular file",
                hint="save the plugin as a regular file",
                code="plugin-file",
            )
        if _real(path) in self._files:
            return None
        shown = f"plugin {file!r}"
        with self._guard(shown):
            module = _import_file(path)
            try:
                records = self._register(module, shown, file)
            except BaseException as error:  # a plugin's code can raise anything
                sys.modules.pop(module.__name__, None)
                raise PluginError(
                    f"plugin {path.name!r} is broken: {_reason(error)}",
                    where=Location(file),
                    code="plugin-broken",
                ) from error
        self._files.add(_real(path))
        # The name of a file must not be that of the built-ins' distribution.
        distribution = path.name if normalize(path.stem) == BUILTIN else path.stem
        return LoadedPlugin(
            name=path.stem,
            distribution=distribution,
            version="",
            module=file,
            records=records,
        )

    @contextlib.contextmanager
    def _guard(self, shown: str) -> Iterator[None]:
        with stdout_to_stderr() as printed:
            yield
        if printed.anything:
            self.warnings.append(f"{shown} prints while it is loaded; its output went to stderr")

    def _register(self, plugin: object, shown: str, module: str) -> dict[str, tuple[Named, ...]]:
        """Register a plugin and call its hooks. Return the records by kind.

        If anything fails, unregister the plugin and raise :class:`PluginError` or the error of the
        plugin's code.
        """
        name = f"{shown} ({module})"
        try:
            self._manager.register(plugin, name)
            return self._collect(plugin, shown)
        except BaseException as error:  # a plugin's code can raise anything
            self._manager.unregister(plugin, name)
            if isinstance(error, pluggy.PluginValidationError):
                # Drop pluggy's first line, because our messages already name the plugin and the
                # hook.
                raise PluginError("; ".join(str(error).splitlines()[1:])) from error
            raise

    def _collect(self, plugin: object, shown: str) -> dict[str, tuple[Named, ...]]:
        hooks = [
            (caller.name, hook)
            for caller in self._manager.get_hookcallers(plugin) or ()
            for hook in caller.get_hookimpls()
            if hook.plugin is plugin
        ]
        for name, hook in hooks:
            if name not in HOOKS and not hook.optionalhook:
                raise PluginError(f"there is no hook {name!r}{_near_hook(name)}")
            if hook.wrapper or hook.hookwrapper:
                raise PluginError(f"{name} is a hook wrapper, which is not supported")
        hooks = [(name, hook) for name, hook in hooks if name in HOOKS]
        self._check_unmarked(plugin, {name for name, _ in hooks}, shown)
        if not hooks:
            raise PluginError(
                f"no hook found: mark a function named {' or '.join(sorted(HOOKS))} with @hookimpl"
            )
        # Built-ins are checked by our tests. Checking them at each start would only take time.
        thorough = not getattr(plugin, "__name__", "").startswith("ensemble_core.")
        records: dict[str, tuple[Named, ...]] = {}
        for name, hook in sorted(hooks, key=lambda each: list(HOOKS).index(each[0])):
            if hook.function in self._called:
                continue
            try:
                # Not through ``manager.hook``, which calls the hooks of all plugins at once: an
                # exception names this plugin, and the others are still loaded.
                returned = check_records(hook.function(), name, thorough=thorough)
            except PluginError:
                raise
            except BaseException as error:  # a plugin's code can raise anything
                raise PluginError(f"{name} raised {_reason(error)}") from error
            kind = HOOKS[name][0]
            records[kind] = records.get(kind, ()) + returned
        self._called.update(hook.function for _, hook in hooks)
        return records

    def _check_unmarked(self, plugin: object, implemented: set[str], shown: str) -> None:
        """Raise an error or warn about a function that looks like a hook but is not marked as
        one.
        """
        home = getattr(plugin, "__name__", None) if inspect.ismodule(plugin) else None
        for name in dir(plugin):
            if "ensemble" not in name or name in implemented:
                continue
            value = getattr(plugin, name, None)
            if not inspect.isroutine(value):
                continue
            if hasattr(value, f"{PROJECT}_impl") or hasattr(value, f"{PROJECT}_spec"):
                continue
            if home is not None and getattr(value, "__module__", home) != home:
                continue
            if name in HOOKS:
                raise PluginError(f"{name} is not marked with @hookimpl, so it would do nothing")
            near = closest(name, HOOKS, 0.85) if name.startswith("ensemble") else None
            if near and not implemented:
                raise PluginError(
                    f"{name} is not a hook and not marked with @hookimpl; did you mean {near!r}?"
                )
            if near:
                self.warnings.append(
                    f"{shown}: {name} is not a hook; if it should be, rename it to {near!r} and "
                    "mark it with @hookimpl"
                )


def _near_hook(name: str) -> str:
    listed = f"; the hooks are {', '.join(HOOKS)}"
    return did_you_mean(name, HOOKS, listed, form="; did you mean {!r}?")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


class _Source(SourceFileLoader):
    """Module loader that always compiles the file, and neither reads nor writes cached bytecode."""

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
    sys.modules[name] = module  # the decorator ``dataclass`` looks up the module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # a plugin's code can raise anything
        del sys.modules[name]
        if is_interrupt(error):
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
            hint = (
                "a plugin file cannot import modules of its folder: make them a package and "
                "install it"
            )
        else:
            hint = f"install the package that provides the module {error.name!r}"
    elif isinstance(error, ValueError) and not line:
        what = f"does not parse: {error}"
    return PluginError(f"plugin {path.name!r} {what}", where=where, hint=hint, code="plugin-broken")


def _reason(error: BaseException) -> str:
    """Return why a plugin is broken, from the error that its code raised. Re-raise Ctrl-C."""
    if is_interrupt(error):
        raise KeyboardInterrupt from error
    return error.what if isinstance(error, PluginError) else explain_failure(error)


def explain_failure(error: BaseException, *, place: bool = True) -> str:
    """Describe an error in a plugin's code in one line, with the position in that code."""
    import traceback

    text = " ".join(str(error).split()) or "no reason given"
    if isinstance(error, SystemExit):
        text = f"it tried to exit the program (exit code {error.code})"
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


class StdoutReplacement:
    """Replacement for ``sys.stdout`` that writes to stderr while a plugin is loaded."""

    def __init__(self) -> None:
        #: True once text was written.
        self.anything = False

    def write(self, text: str) -> int:
        self.anything = self.anything or bool(text)
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[StdoutReplacement]:
    """Redirect stdout to stderr, because a command's own output (``--json``) goes to stdout.

    The file descriptor is redirected, to include the output of compiled code and child processes.
    """
    with STDOUT, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # stdout may be closed
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        yield stack.enter_context(contextlib.redirect_stdout(StdoutReplacement()))
