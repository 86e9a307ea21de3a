"""Generators of the standard gest-api for Ensemble: ``use: gest`` under ``generators:``, with a
class by its import path. Every run loads this module, so it imports nothing that takes long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import GeneratorPlugin, hookimpl

if TYPE_CHECKING:
    from ensemble_core import Generator, Vocs

__all__ = ["ensemble_generators"]


def _build(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_gest.generator import GestGenerator

    return GestGenerator(vocs, options)


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Any class of the standard."""
    yield GeneratorPlugin(
        name="gest",
        summary="a generator of the standard gest-api: libEnsemble's, Optimas', Xopt's …",
        build=_build,
        options={
            "type": "object",
            "required": ["class"],
            "properties": {
                "class": {
                    "description": "Its import path: libensemble.gen_classes.UniformSample.",
                    "type": "string",
                    "minLength": 1,
                    "x-ensemble": "class",
                    "x-ensemble-base": "gest_api.generator.Generator",
                },
                "options": {
                    "description": "Arguments of the class beside the problem.",
                    "type": "object",
                    "default": {},
                },
            },
        },
    )
