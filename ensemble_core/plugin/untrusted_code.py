"""Decides whether code that comes with an ensemble file, a rule test or a journal may be loaded.

These files may come from untrusted sources, so a command that only validates, shows or replays a
file must not run code that the file contains or names. Call :func:`require` or :func:`is_loaded`
before loading such code.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core.errors import EnsembleError, Location, UsageError, call_plugin
from ensemble_core.model.generators import Generator, Purpose

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.model.generators import Vocs
    from ensemble_core.plugin.records import GeneratorPlugin

__all__ = [
    "Kind",
    "Purpose",
    "build_generator",
    "check_class",
    "is_loaded",
    "load_source",
    "named_classes",
    "require",
    "require_code",
]

#: ``source``: Python source under ``custom:``; ``class``: an import path; ``plugin``: a file.
Kind = Literal["source", "class", "plugin"]

_LOADED: Mapping[Kind, frozenset[Purpose]] = {
    "source": frozenset({"rehearse", "run"}),
    "class": frozenset({"rehearse", "run"}),
    "plugin": frozenset({"look", "rehearse", "run"}),
}
_PATH = "write its Python import path: libensemble.gen_classes.UniformSample"


def is_loaded(kind: Kind, purpose: Purpose) -> bool:
    """Return True if code of this kind may be loaded for this purpose."""
    return purpose in _LOADED[kind]


def require(
    kind: Kind,
    what: str,
    purpose: Purpose,
    *,
    where: Location | None = None,
    instead: str = "",
) -> None:
    """Raise :class:`UsageError` if code of this kind may not be loaded for this purpose.

    ``what`` names the code in the message, and ``instead`` is a hint on how to do without it.
    """
    if is_loaded(kind, purpose):
        return
    other = f"; or {instead}" if instead else ""
    raise UsageError(
        f"{what} is not run without --run-code",
        where=where,
        hint=f"if you trust the file, add --run-code{other}",
        code="code-not-run",
    )


def require_code(ensemble: Ensemble, purpose: Purpose, *, recorded: bool = False) -> None:
    """Raise :class:`UsageError` if simulating or testing a file needs code that may not be loaded.

    With ``recorded``, results of functions come from a journal or test, so their code is not
    needed.
    """
    where = Location(ensemble.file) if ensemble.file else None
    for name, spec in ensemble.generators.items():
        for path in spec.classes:
            require("class", f"{path!r} of the generator {name!r}", purpose, where=where)
    if ensemble.custom and not recorded:
        called = ", ".join(sorted(ensemble.functions))
        other = "use the results of a run: --functions recorded --model-from RUN"
        require("source", f"'custom:' ({called})", purpose, where=where, instead=other)


def load_source(source: str, name: str, given: Mapping[str, Any], purpose: Purpose) -> Any:
    """Execute Python source and return its namespace.

    ``given`` has names that the source can use. ``name`` is the file name for tracebacks.
    """
    import linecache

    require("source", name, purpose)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "ensemble_custom", **given}
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102  (the user's own code, and the user asked to run it)
    return namespace


def check_class(path: str) -> None:
    """Check the import path of a class without importing anything.

    Raise :class:`EnsembleError` if the path is malformed or the library is not installed.
    """
    module, _, name = path.rpartition(".")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise EnsembleError(
            f"{path!r} is not the import path of a class", hint=_PATH, code="no-such-class"
        )
    top = module.partition(".")[0]
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        raise EnsembleError(
            f"cannot import the module {module!r}: {top!r} is not installed",
            hint=f"pip install {top}",
            code="no-library",
        )


def _load_class(path: str, base: str, purpose: Purpose) -> type:
    """Import a class and check that it is derived from ``base`` (an import path).

    Raise :class:`EnsembleError` if it is not, or if it cannot be imported.
    """
    require("class", repr(path), purpose)
    check_class(path)
    found = _import(path)
    if not (isinstance(found, type) and issubclass(found, _import(base))):
        raise EnsembleError(
            f"{path!r} is not a subclass of {base}",
            hint=f"name a subclass of {base}",
            code="wrong-class",
        )
    return found


def _import(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise EnsembleError(
            f"cannot import the module {module!r}: {error}",
            hint=f"pip install {module.partition('.')[0]}",
            code="no-library",
        ) from None
    except AttributeError:
        raise EnsembleError(
            f"the module {module!r} has no class {name!r}", hint=_PATH, code="no-such-class"
        ) from None


def named_classes(
    schema: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield each option that names a class: its key, and the import paths of the class and its
    base.
    """
    for key, inner in schema.get("properties", {}).items():
        if isinstance(inner, Mapping) and inner.get("x-ensemble") == "class":
            path = options.get(key)
            if isinstance(path, str):
                yield key, path, inner["x-ensemble-base"]


def build_generator(
    record: GeneratorPlugin, vocs: Vocs, options: Mapping[str, Any], purpose: Purpose
) -> Generator:
    """Build a generator. Options that name classes are replaced by the classes."""
    classes = {
        key: _load_class(path, base, purpose)
        for key, path, base in named_classes(record.options, options)
    }
    given = {**options, **classes}
    built: Generator = call_plugin(record.build, vocs, given, returns=Generator)
    return built
