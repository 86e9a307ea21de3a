"""Takes the first points of a search from an earlier run: ``first: {run: RUN, best: 10}``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ensemble_core.errors import UsageError, did_you_mean
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.generators import EarlierPoints, GeneratorSpec
from ensemble_core.plugin.discovery import find_plugins
from ensemble_core.quick_dataclass import replace
from ensemble_core.session.kept_run import KeptRun


def with_earlier_points(
    ensemble: Ensemble,
    state: Path,
    warn: Callable[[str], None],
    kept: Mapping[str, str] = NOTHING,
) -> Ensemble:
    """Return the ensemble with the points that its generators take from earlier runs.

    The points are stored with the run, so a resume needs no earlier run: ``kept`` has those of the
    last resume. Raises :class:`UsageError` for an unknown run, or one without such points.
    """
    generators, attached = dict(ensemble.generators), dict(ensemble.attached)
    for name, spec in ensemble.generators.items():
        wanted = spec.first_from
        if wanted is None:
            continue
        text = kept.get(wanted.key)
        found = _best(wanted, state, warn) if text is None else json.loads(text)
        points = [spec.vocs.filled(each) for each in found if {*spec.vocs.names} <= each.keys()]
        points = [each for each in points if spec.vocs.refused(each) is None]
        if not points:
            raise UsageError(
                f"no point of {wanted.run} is a first point of the generator {name!r}",
                hint=f"a first point has valid values of {', '.join(spec.vocs.names)}",
                code="no-points",
            )
        if len(points) < wanted.best:
            warn(f"generator {name}: {wanted.run} has only {len(points)} points to suggest first")
        attached[wanted.key] = json.dumps(points)
        generators[name] = replace(spec, first=tuple(map(spec.vocs.clipped, points)))
    return replace(ensemble, generators=generators, attached=attached)


def _best(wanted: EarlierPoints, state: Path, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the best points of a generator of an earlier run, the best one first."""
    with KeptRun(str(state), wanted.run, find_plugins=find_plugins, warn=warn) as kept:
        engine = kept.recover(compare=False).engine
    known: Mapping[str, GeneratorSpec] = engine.state.ensemble.generators
    name = wanted.generator
    if name not in known and len(known) == 1 and not wanted.named:
        (name,) = known
    if name not in known:
        listed = f"its generators: {', '.join(known) or 'none'}"
        raise UsageError(
            f"the run {wanted.run} has no generator {name!r}",
            hint=did_you_mean(name, known, listed),
            code="no-such-generator",
        )
    vocs = known[name].vocs
    _, rows = engine.state.generators[name].table(vocs)
    done = [each for each in rows if each["state"] == "done" and vocs.feasible(each)]
    return [{each: row[each] for each in vocs.names} for row in done[: wanted.best]]
