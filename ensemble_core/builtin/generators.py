"""The built-in generators, which suggest sets of parameters for jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

from ensemble_core.plugin.hookspecs import GeneratorPlugin, hookimpl

_SEED = {
    "description": "Seed of the random numbers.",
    "type": "integer",
    "minimum": 0,
    "default": 0,
}


def _lazy(module: str, function: str) -> Callable[..., Any]:
    """Return a function that calls ``function`` of the module, and imports the module only then."""

    def called(*given: Any) -> Any:
        return getattr(import_module(f"ensemble_core.builtin.{module}"), function)(*given)

    return called


_points = partial(_lazy, "grid_random_sobol")


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Return the built-in generators."""
    yield GeneratorPlugin(
        name="grid",
        summary="all combinations of the variables' values; the last variable varies fastest",
        build=_points("grid"),
        conditional=True,
        check=_points("check_grid"),
        finite=lambda options: True,
        options={
            "type": "object",
            "properties": {
                "points": {
                    "description": "Number of values of a variable without values or a step.",
                    "type": "integer",
                    "minimum": 1,
                    "default": 5,
                }
            },
        },
    )
    yield GeneratorPlugin(
        name="random",
        summary="random points",
        build=_points("random_points"),
        conditional=True,
        options={"type": "object", "properties": {"seed": _SEED}},
    )
    yield GeneratorPlugin(
        name="sobol",
        summary="a Sobol' sequence: any number of points that fill the space evenly",
        build=_points("sobol"),
        conditional=True,
        check=_points("check_scipy"),
        options={
            "type": "object",
            "properties": {
                "seed": _SEED,
                "scramble": {
                    "description": "Scramble the sequence, by the seed.",
                    "type": "boolean",
                    "default": True,
                },
            },
        },
    )
    yield GeneratorPlugin(
        name="latin-hypercube",
        summary="a Latin hypercube: n points, one in each of n equal parts of every variable",
        build=_points("latin_hypercube"),
        conditional=True,
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
        summary="the simplex method: a local minimum near the start, without derivatives",
        build=_lazy("nelder_mead", "NelderMead"),
        check=_lazy("nelder_mead", "check_start"),
        finite=lambda options: True,
        options={
            "type": "object",
            "properties": {
                "start": {
                    "description": "Values of variables at the start. Default: the middle of the "
                    "range; after a switch from another generator, its best point.",
                    "type": "object",
                    "additionalProperties": {"type": "number"},
                    "default": {},
                },
                "step": {
                    "description": "Size of the first simplex, as a fraction of each range.",
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 0.5,
                    "default": 0.25,
                },
                "tolerance": {
                    "description": "Size of the simplex at which the search ends, as a fraction "
                    "of each range.",
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 0.5,
                    "default": 1e-4,
                },
            },
        },
    )
