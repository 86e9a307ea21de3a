"""Optuna for Ensemble: ``use: optuna`` under ``generators:``. Every run loads this module, so it
imports nothing that takes long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, GeneratorPlugin, hookimpl

if TYPE_CHECKING:
    from ensemble_core import Generator, Vocs

__all__ = ["ensemble_generators"]

#: Samplers and pruners by the names that a file has, and the libraries that some need besides.
SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "qmc": "QMCSampler",
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
}
PRUNERS = {
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "successive-halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
    "none": "NopPruner",
}
_LIBRARIES = {"gp": "torch", "cmaes": "cmaes", "qmc": "scipy"}
_OF_ONE_OBJECTIVE = frozenset({"cmaes"})
_TAKE_NO_SEED_FOR = "'seed' stands beside 'sampler', not among its options"


def _build(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    from ensemble_optuna.generator import OptunaGenerator

    return OptunaGenerator(vocs, options)


def _check(vocs: Vocs, options: Mapping[str, Any]) -> None:
    sampler = options["sampler"]
    library = _LIBRARIES.get(sampler)
    if library is not None and find_spec(library) is None:
        raise EnsembleError(
            f"Optuna's sampler {sampler!r} needs the library {library!r}, which is not installed",
            hint=f"pip install {library}",
            code="no-library",
        )
    several = len(vocs.objectives) > 1
    if several and sampler in _OF_ONE_OBJECTIVE:
        raise EnsembleError(
            f"Optuna's sampler {sampler!r} takes one objective, and there are several",
            hint="use nsga2 or tpe",
            code="bad-value",
        )
    if several and vocs.prunes:
        raise EnsembleError(
            "Optuna prunes by one objective, and there are several",
            hint="leave 'prune' out",
            code="cannot-prune",
        )
    if "seed" in options["sampler_options"]:
        raise EnsembleError(_TAKE_NO_SEED_FOR, code="bad-value")
    if options["pruner"] == "none" and options["pruner_options"]:
        given = ", ".join(map(repr, options["pruner_options"]))
        raise EnsembleError(
            f"'pruner: none' takes no 'pruner_options', and here are {given}",
            hint="leave 'pruner_options' out (--set generators.NAME.with.pruner_options={})",
            code="bad-value",
        )
    if options["sampler_options"] or options["pruner_options"]:
        _build(vocs, options)  # arguments that only Optuna's classes know


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Optuna's samplers, with its pruners where the file has ``prune``."""
    keywords = {"type": "object", "default": {}}
    yield GeneratorPlugin(
        name="optuna",
        summary="Optuna's samplers; with 'prune' its pruners",
        build=_build,
        check=_check,
        prunes=True,
        options={
            "type": "object",
            "properties": {
                "sampler": {
                    "description": "What chooses the points.",
                    "enum": list(SAMPLERS),
                    "default": "tpe",
                },
                "seed": {
                    "description": "What it draws by.",
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                },
                "sampler_options": {
                    "description": "Further arguments of the sampler's class, as Optuna has them.",
                    **keywords,
                },
                "pruner": {
                    "description": "What says that a running job will not be good.",
                    "enum": list(PRUNERS),
                    "default": "median",
                },
                "pruner_options": {
                    "description": "Arguments of the pruner's class, as Optuna has them.",
                    **keywords,
                },
            },
        },
    )
