"""Checks the names in an action ``switch``: instances of algorithms, or generators."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path

if TYPE_CHECKING:
    from ensemble_core.model.generators import GeneratorSpec


def check_switch_target(context: Context, path: Path, name: str) -> bool:
    """Return True if this instance or generator exists; otherwise report an error."""
    generators, instances = context.known.generators, context.known.instances
    found = name in generators or name in instances
    if not found:
        noun = "instance or generator" if generators else "instance"
        context.unknown(path, noun, name, [*instances, *generators])
    return found


def check_learns(context: Context, path: Path, name: str, sources: Collection[str]) -> None:
    """Report an error if the generator ``name`` cannot learn from the points of other generators.

    ``sources`` lists these other generators. If it is empty, they are all others in the file.
    """
    known = context.known.generators
    learner = known.get(name)
    for source in sources or known:
        teacher = known.get(source)
        if learner is None or teacher is None or teacher is learner:
            continue
        lacks = _incompatibility(learner, teacher)
        if lacks is not None:
            context.report(
                path,
                f"the generator {name!r} cannot take over points of {teacher.name!r}: {lacks}",
                hint="give both the same variables and objectives, or list other generators under "
                "'from'",
                code="bad-value",
            )
            return


def _incompatibility(learner: GeneratorSpec, teacher: GeneratorSpec) -> str | None:
    own, other = learner.vocs, teacher.vocs
    for name in other.names:
        if name not in own.names:
            return f"it has no variable {name!r}"
    for what, names, others in (
        ("variable", own.names, other.names),
        ("value of", own.outputs, other.outputs),
    ):
        for name in names:
            if name not in others:
                return f"they have no {what} {name!r}"
    return None
