"""Collects the statistics that a file can use, from plugins and its section ``statistics:``."""

from __future__ import annotations

from typing import Any

from ensemble_core.config.context import Context, cannot_be_built
from ensemble_core.config.document import Path
from ensemble_core.config.schema import option_defaults
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.plugin.hookspecs import StatisticPlugin
from ensemble_core.plugin.option_schemas import required_options
from ensemble_core.quick_dataclass import replace


def bind_statistics(context: Context, given: object) -> None:
    """Register the statistics of plugins and those that the file defines."""
    registry = context.registry.statistics
    known: dict[str, StatisticSpec] = {}
    unfit: dict[str, EnsembleError] = {}
    for name, record in registry.items():
        spec = _plain_statistic(context, name, record)
        if isinstance(spec, EnsembleError):
            unfit[name] = spec  # reported only if a path uses this statistic
        else:
            known[name] = spec
    for name in registry.clashes:
        clash = registry.clash(name)
        if clash is not None:
            unfit[name] = clash
    for name, spec in given.items() if isinstance(given, dict) else ():
        path: Path = ("statistics", name)
        if name in known or name == "count":
            context.report(
                path,
                f"the statistic {name!r} already exists",
                hint="choose another name",
                code="duplicate-name",
                where=context.document.at_key(path),
            )
            continue
        unfit.pop(name, None)
        # Paths that use the statistic are not wrong, even if its definition has errors.
        known[name] = _bind_own_statistic(context, path, name, spec) or StatisticSpec(
            name=name, build=_raise_unusable
        )
    context.known.statistics = known
    context.known.unfit = unfit


def _bind_own_statistic(context: Context, path: Path, name: str, spec: Any) -> StatisticSpec | None:
    """Return a statistic that the file defines. A reducer is built to check the options."""
    registry = context.registry
    kind = spec.get("statistic") if isinstance(spec, dict) else None
    if not isinstance(kind, str) or kind not in registry.statistics or not context.is_valid(path):
        return None
    record = registry.statistics[kind]
    given = {key: value for key, value in spec.items() if key != "statistic"}

    def tried() -> StatisticSpec:
        options = option_defaults(record.options, given)
        found = replace(record.spec(options, name), plugin=registry.whose(record))
        error = found.fault()
        if error is not None:
            raise error
        return found

    built: StatisticSpec | None = context.build(path, context.named(record, name), tried)
    return built


def _plain_statistic(
    context: Context, name: str, record: StatisticPlugin
) -> StatisticSpec | EnsembleError:
    """Return a plugin's statistic without options, as paths use it.

    Return an error instead if the statistic needs options.
    """
    shown = context.named(record, name)
    missing = required_options(record.options)
    if missing:
        own = name.rpartition(":")[2]
        given = ", ".join(f"{key}: …" for key in missing)
        listed = " and ".join(map(repr, missing))
        return EnsembleError(
            f"{shown} needs the option{'s' * (len(missing) > 1)} {listed}, which a metric's "
            "name cannot contain",
            hint=f"write 'statistics: {{{own}: {{statistic: {name}, {given}}}}}' "
            f"at the top level of the file, and use the metric {own + '.NAME'!r}",
            code="statistic-needs-options",
        )
    try:
        spec = record.spec(option_defaults(record.options, {}), name)
    except Exception as error:  # an error in a plugin's ``timed_when``
        return cannot_be_built(shown, error)
    return replace(spec, plugin=context.registry.whose(record))


def _raise_unusable() -> Any:
    raise EnsembleError(
        "internal error: a statistic whose definition has errors was used", code="internal"
    )
