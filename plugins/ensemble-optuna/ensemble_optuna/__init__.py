"""Plugin record of the generator ``optuna``: its options, and checks of them.

Does not import Optuna, because every run loads this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, GeneratorPlugin, hookimpl

if TYPE_CHECKING:
    from ensemble_core import Generator, Vocs

#: Optuna's classes of samplers and pruners, by their names in the ensemble file.
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
#: Libraries that some samplers need in addition to Optuna.
_LIBRARIES = {"gp": "torch", "cmaes": "cmaes", "qmc": "scipy"}
_SINGLE_OBJECTIVE = frozenset({"cmaes"})
_SEED_MISPLACED = "write 'seed' beside 'sampler', not in 'sampler_options'"


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
    if several and sampler in _SINGLE_OBJECTIVE:
        raise EnsembleError(
            f"Optuna's sampler {sampler!r} supports a single objective only; this generator has "
            f"{len(vocs.objectives)}",
            hint="use nsga2 or tpe",
            code="bad-value",
        )
    if several and vocs.prunes:
        raise EnsembleError(
            "Optuna can prune with a single objective only; this generator has "
            f"{len(vocs.objectives)}",
            hint="remove 'prune'",
            code="cannot-prune",
        )
    if "seed" in options["sampler_options"]:
        raise EnsembleError(_SEED_MISPLACED, code="bad-value")
    if options["pruner"] == "none" and options["pruner_options"]:
        given = ", ".join(map(repr, options["pruner_options"]))
        raise EnsembleError(
            f"'pruner: none' cannot be combined with 'pruner_options' ({given})",
            hint="remove 'pruner_options' (--set generators.NAME.with.pruner_options={})",
            code="bad-value",
        )
    if options["sampler_options"] or options["pruner_options"]:
        _build(vocs, options)  # check the arguments that only Optuna can check


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Return the generator ``optuna``."""
    keywords = {"type": "object", "default": {}}
    yield GeneratorPlugin(
        name="optuna",
        summary="Optuna's samplers, and its pruners with 'prune'",
        build=_build,
        check=_check,
        prunes=True,
        conditional=True,
        options={
            "type": "object",
            "properties": {
                "sampler": {
                    "description": "Algorithm that chooses the points.",
                    "enum": list(SAMPLERS),
                    "default": "tpe",
                },
                "seed": {
                    "description": "Seed of the random numbers.",
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                },
                "sampler_options": {
                    "description": "Other arguments of Optuna's sampler class.",
                    **keywords,
                },
                "pruner": {
                    "description": "Algorithm that cancels unpromising jobs.",
                    "enum": list(PRUNERS),
                    "default": "median",
                },
                "pruner_options": {
                    "description": "Arguments of Optuna's pruner class.",
                    **keywords,
                },
            },
        },
    )
