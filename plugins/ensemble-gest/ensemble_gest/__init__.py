"""Generators of the standard gest-api for Ensemble: ``use: gest`` under ``generators:``, with a
class by its import path. Every run loads this module, so it imports nothing that takes long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, GeneratorPlugin, hookimpl

if TYPE_CHECKING:
    from ensemble_core import Generator, Vocs

__all__ = ["ensemble_generators", "found_class"]

_PATH = "write the path that Python imports it by: libensemble.gen_classes.UniformSample"


def found_class(path: str) -> Any:
    """The class at an import path. Raises :class:`EnsembleError` with what to install."""
    module, _, name = path.rpartition(".")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise EnsembleError(
            f"{path!r} is not the import path of a class", hint=_PATH, code="no-such-class"
        )
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        top = module.partition(".")[0]
        raise EnsembleError(
            f"the module {module!r} cannot be imported: {error}",
            hint=f"pip install {top}",
            code="no-library",
        ) from None
    except AttributeError:
        raise EnsembleError(
            f"the module {module!r} has no class {name!r}",
            hint=_PATH,
            code="no-such-class",
        ) from None


def _build(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_gest.generator import GestGenerator

    return GestGenerator(vocs, options)


def _check(vocs: Vocs, options: Mapping[str, Any]) -> None:
    _build(vocs, options)


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Any class of the standard."""
    yield GeneratorPlugin(
        name="gest",
        summary="a generator of the standard gest-api: libEnsemble's, Optimas', Xopt's …",
        build=_build,
        check=_check,
        options={
            "type": "object",
            "required": ["class"],
            "properties": {
                "class": {
                    "description": "Its import path: libensemble.gen_classes.UniformSample.",
                    "type": "string",
                    "minLength": 1,
                },
                "options": {
                    "description": "Arguments of the class beside the problem.",
                    "type": "object",
                    "default": {},
                },
            },
        },
    )
