"""The built-in generators, registered through the same hook that a plugin uses. All but
``nelder-mead`` give points that do not depend on results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.plugin.hookspecs import GeneratorPlugin, hookimpl

if TYPE_CHECKING:
    from ensemble_core.model.generators import Generator, Vocs

__all__ = ["ensemble_generators"]

_SEED = {"description": "What points are drawn by.", "type": "integer", "minimum": 0, "default": 0}


def _grid(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_core.builtin.numbered_points import grid

    return grid(vocs, options)


def _check_grid(vocs: Vocs, options: Mapping[str, Any]) -> None:
    from ensemble_core.builtin.numbered_points import check_grid

    check_grid(vocs, options)


def _random(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_core.builtin.numbered_points import random_points

    return random_points(vocs, options)


def _sobol(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_core.builtin.numbered_points import sobol

    return sobol(vocs, options)


def _latin_hypercube(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_core.builtin.numbered_points import latin_hypercube

    return latin_hypercube(vocs, options)


def _check_scipy(vocs: Vocs, options: Mapping[str, Any]) -> None:
    from ensemble_core.builtin.numbered_points import check_scipy

    check_scipy()


def _nelder_mead(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_core.builtin.nelder_mead import NelderMead

    return NelderMead(vocs, options)


def _check_start(vocs: Vocs, options: Mapping[str, Any]) -> None:
    from ensemble_core.builtin.nelder_mead import check_start

    check_start(vocs, options)


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Points that do not depend on results, and the simplex."""
    yield GeneratorPlugin(
        name="grid",
        summary="every combination of the variables' values, the last variable the fastest",
        build=_grid,
        check=_check_grid,
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
        build=_random,
        options={"type": "object", "properties": {"seed": _SEED}},
    )
    yield GeneratorPlugin(
        name="sobol",
        summary="a Sobol' sequence: points that fill the space evenly, however many are taken",
        build=_sobol,
        check=_check_scipy,
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
        build=_latin_hypercube,
        check=_check_scipy,
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
        build=_nelder_mead,
        check=_check_start,
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
