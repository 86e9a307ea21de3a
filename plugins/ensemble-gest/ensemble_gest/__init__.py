"""The generator plugin ``gest``: any class of the standard gest-api, named by its import path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import GeneratorPlugin, hookimpl

if TYPE_CHECKING:
    from ensemble_core import Generator, Vocs


def _build(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_gest.generator import GestGenerator

    return GestGenerator(vocs, options)


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Return the generator ``gest``."""
    yield GeneratorPlugin(
        name="gest",
        summary="Any gest-api generator class: from libEnsemble, Optimas, Xopt …",
        build=_build,
        options={
            "type": "object",
            "required": ["class"],
            "properties": {
                "class": {
                    "description": "Import path of the class: "
                    "libensemble.gen_classes.UniformSample.",
                    "type": "string",
                    "minLength": 1,
                    "x-ensemble": "class",
                    "x-ensemble-base": "gest_api.generator.Generator",
                },
                "options": {
                    "description": "Arguments of the class, in addition to the problem.",
                    "type": "object",
                    "default": {},
                },
            },
        },
    )
