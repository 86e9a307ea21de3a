"""The built-in generators, registered through the same hook that a plugin uses. All but
``nelder-mead`` give points that do not depend on results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

from ensemble_core.plugin.hookspecs import GeneratorPlugin, hookimpl

__all__ = ["ensemble_generators"]

_SEED = {"description": "What points are drawn by.", "type": "integer", "minimum": 0, "default": 0}


def _later(module: str, function: str) -> Callable[..., Any]:
    """A function of this module here, which is imported once the function is called."""

    def called(*given: Any) -> Any:
        return getattr(import_module(f"ensemble_core.builtin.{module}"), function)(*given)

    return called


_points = partial(_later, "numbered_points")


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Points that do not depend on results, and the simplex."""
    yield GeneratorPlugin(
        name="grid",
        summary="every combination of the variables' values, the last variable the fastest",
        build=_points("grid"),
        check=_points("check_grid"),
        finite=lambda options: True,
        options={
            "type": "object",
            "properties": {
                "points": {
                    "description": "Values of each variable that has neither values nor a step.",
                    "type": "integer",
                    "minimum": 1,
                    "default": 5,
                }
            },
        },
    )
    yield GeneratorPlugin(
        name="random",
        summary="points drawn at random",
        build=_points("random_points"),
        options={"type": "object", "properties": {"seed": _SEED}},
    )
    yield GeneratorPlugin(
        name="sobol",
        summary="a Sobol' sequence: points that fill the space evenly, however many are taken",
        build=_points("sobol"),
        check=_points("check_scipy"),
        options={
            "type": "object",
            "properties": {
                "seed": _SEED,
                "scramble": {
                    "description": "Whether the sequence is scrambled, by the seed.",
                    "type": "boolean",
                    "default": True,
                },
            },
        },
    )
    yield GeneratorPlugin(
        name="latin-hypercube",
        summary="so many points, one in each of as many equal shares of every variable",
        build=_points("latin_hypercube"),
        check=_points("check_scipy"),
        finite=lambda options: True,
        options={
            "type": "object",
            "required": ["points"],
            "properties": {
                "points": {
                    "description": "How many points.",
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 1_000_000,
                },
                "seed": _SEED,
            },
        },
    )
    yield GeneratorPlugin(
        name="nelder-mead",
        summary="a simplex that goes downhill to a minimum near its start, without derivatives",
        build=_later("nelder_mead", "NelderMead"),
        check=_later("nelder_mead", "check_start"),
        finite=lambda options: True,
        options={
            "type": "object",
            "properties": {
                "start": {
                    "description": "Where it starts: values of variables. Of others the middle of "
                    "the range; after a switch from another generator its best point.",
                    "type": "object",
                    "additionalProperties": {"type": "number"},
                    "default": {},
                },
                "step": {
                    "description": "The first simplex's size, as a share of each range.",
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 0.5,
                    "default": 0.25,
                },
                "tolerance": {
                    "description": "It ends once the simplex is smaller, as a share of each range.",
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 0.5,
                    "default": 1e-4,
                },
            },
        },
    )
