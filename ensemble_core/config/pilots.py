"""Checks ``pilots:``, the kinds of allocations inside which an executor runs jobs."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.errors import call_plugin, did_you_mean
from ensemble_core.plugin.records import ExecutorPlugin


def bind_pilots(context: Context, given: Any) -> None:
    """Check the entries, and add them to the options of the executor if it uses them."""
    if not isinstance(given, dict) or not context.is_valid(("pilots",)):
        return
    kinds = {name: entry for name, entry in given.items() if isinstance(entry, dict)}
    for name in kinds:
        if name in context.registry.executors:
            path: Path = ("pilots", name)
            context.report(
                path,
                f"a kind of pilot cannot have the name {name!r}, which is that of an executor",
                hint="choose another name",
                code="bad-name",
                where=context.document.at_key(path),
            )
    context.known.kinds = kinds
    executor, options = context.executor, context.known.options
    if executor is None or not executor.kinds or options is None or not kinds:
        return
    context.known.options = options = {"kinds": kinds, **options}
    if executor.check_kind is None:
        return
    wrong = False
    for name in options["kinds"]:
        task = f"check the kind of pilot {name!r}"
        found = ask_executor(executor, options, "check_kind", name, task)
        if found is not None:
            key, why, hint = found
            at: Path = ("pilots", name, key)
            where = at if key in kinds.get(name, {}) else at[:2]
            context.report(where, f"kind {name!r}: {why}", hint=hint, code="bad-option")
            wrong = True
    if wrong:
        context.known.options = None  # nothing more can be checked with them


def ask_executor(
    executor: ExecutorPlugin, options: Mapping[str, Any], method: str, given: object, task: str
) -> tuple[str, str, str] | None:
    """Call ``never``, ``never_here`` or ``check_kind`` of the executor's record.

    Return the key that is wrong, the reason and a hint, or ``None``. ``task`` describes the call in
    the error that is raised if it fails.
    """
    whose = f"executor {executor.name!r}"
    found: tuple[str, str, str] | None = call_plugin(
        getattr(executor, method),
        given,
        options,
        returns=(tuple, NoneType),
        method=method,
        whose=whose,
        failed=f"{whose} cannot {task}",
        expected="a key, a reason and a hint, or None",
    )
    return found


def check_pilot_of_group(context: Context, path: Path, group: str, name: str) -> bool:
    """Check the key ``executor`` of a group that may name a kind. Return False if it does not."""
    executor, known = context.executor, context.known
    if executor is None or not executor.kinds:
        if name not in known.kinds:
            return False
        if executor is not None:
            context.warnings.append(
                f"{group}: 'executor: {name}' names a kind of pilot, which has no effect with the "
                f"executor {executor.name}"
            )
        return True
    kinds = known.kinds if known.options is None else known.options.get("kinds", known.kinds)
    if name not in kinds and (kinds or known.options is not None):
        listed = f"the kinds are {', '.join(kinds)}" if kinds else "add it under 'pilots:'"
        context.report(
            path,
            f"the job group {group!r} names the kind of pilot {name!r}, which does not exist",
            hint=did_you_mean(name, kinds, listed),
            code="no-such-kind",
        )
    return True
