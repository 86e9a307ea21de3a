"""Functions, actions, triggers and statistics that a Python program passes to its run as callables.

The run's journal stores only their names, so another process, such as ``ensemble resume``, cannot
call them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, NoReturn

from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.model.rules import Trigger
from ensemble_core.plugin.record_validation import check_records
from ensemble_core.plugin.records import ActionPlugin, StatisticPlugin, TriggerPlugin
from ensemble_core.plugin.registry import LoadedPlugin, Named, Registry
from ensemble_core.quick_dataclass import dataclass

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Schema of the options of a callable, which are not checked.
_ANY = {"type": "object", "additionalProperties": True}
_ON = {
    "type": "object",
    "properties": {
        "on": {
            "description": "The events for which the function is called, for example job-finish.",
            "type": ["string", "array"],
            "items": {"type": "string"},
        }
    },
}

_WHERE = "is defined in the Python program that started this run"
_HINT = (
    "resume the run in that program with ensemble_core.run(…, tag=…, or_resume=True), or open it "
    "there with ensemble_core.open_run"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Callables of a Python program, by name.

    - ``functions``: called like those of ``custom:``.
    - ``actions``: called with a ``CallContext``, outside the engine's thread.
    - ``triggers``: called with an event and its fields, on the engine's thread; they return whether
      the event matches.
    - ``statistics``: called with the options under the file's ``statistics:``, if any; they return
      an object with ``update`` and ``get``.

    A value in ``actions``, ``triggers`` or ``statistics`` can also be a plugin record.
    """

    functions: Mapping[str, Callable[..., object]] = field(default_factory=lambda: _NOTHING)
    actions: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    triggers: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    statistics: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    def __bool__(self) -> bool:
        return bool(self.functions or self.actions or self.triggers or self.statistics)

    def added_to(self, registry: Registry) -> Registry:
        """Return the registry with these callables added.

        Raises :class:`UsageError` if a callable cannot be used.
        """
        makers: dict[str, Callable[[str, Any], Named]] = {
            "action": _action,
            "trigger": _trigger,
            "statistic": _statistic,
        }
        found: dict[str, tuple[Named, ...]] = {}
        for kind, given in self._kinds().items():
            records = [makers[kind](name, each) for name, each in given.items()]
            if records:
                found[kind] = check_records(records, f"ensemble_{kind}s")
            for record in records:
                if record.name in registry.records(kind):
                    raise UsageError(
                        f"{kind} {record.name!r} already exists",
                        hint="give the callable another name",
                        code="duplicate-name",
                    )
        if not found:
            return registry
        mine = LoadedPlugin(
            name="program", distribution="program", version="", module="program", records=found
        )
        return Registry((*registry.plugins, mine), registry.warnings)

    def described(self) -> dict[str, Any]:
        """Return the names of the callables as plain data, for the run's journal."""
        return {
            "functions": list(self.functions),
            **{f"{kind}s": list(given) for kind, given in self._kinds().items()},
        }

    @classmethod
    def absent(cls, described: Mapping[str, Any]) -> Program:
        """Return a stand-in for a program, for use in another process.

        Calling one of its callables raises an error that says where the callable is.
        """

        def missing(kind: str, name: str) -> Callable[..., NoReturn]:
            def raised(*_: object, **__: object) -> NoReturn:
                raise EnsembleError(f"{kind} {name!r} {_WHERE}", hint=_HINT, code="program-absent")

            return raised

        return cls(
            **{
                f"{kind}s": {name: missing(kind, name) for name in described.get(f"{kind}s", ())}
                for kind in ("function", "action", "trigger")
            },
            statistics={
                name: lambda name=name, **_: _Absent(name)
                for name in described.get("statistics", ())
            },
        )

    def _kinds(self) -> dict[str, Mapping[str, Any]]:
        return {"action": self.actions, "trigger": self.triggers, "statistic": self.statistics}


def _need_callable(kind: str, name: str, given: object) -> None:
    if not callable(given):
        raise UsageError(
            f"{kind} {name!r} is {type(given).__name__}, which is not callable",
            hint=f"pass a function or an instance of {kind.title()}Plugin",
            code="wrong-type",
        )


def _summary(given: object, name: str) -> str:
    lines = (inspect.getdoc(given) or "").strip().splitlines()
    return lines[0] if lines else f"{name} of the program"


def _action(name: str, given: Any) -> ActionPlugin:
    if isinstance(given, ActionPlugin):
        return given
    _need_callable("action", name, given)
    return ActionPlugin(name=name, summary=_summary(given, name), run=given, options=_ANY)


def _trigger(name: str, given: Any) -> TriggerPlugin:
    if isinstance(given, TriggerPlugin):
        return given
    _need_callable("trigger", name, given)

    def build(group: str | None, options: Mapping[str, Any]) -> Trigger:
        on = options.get("on", "observed")
        events = (on,) if isinstance(on, str) else tuple(on)
        return Trigger(events=events, group=group, match=lambda *event: bool(given(*event)))

    return TriggerPlugin(
        name=name, summary=_summary(given, name), build=build, options=_ON, name_means="group"
    )


class _Absent:
    """Stand-in for a statistic of another process.

    It keeps the state in a snapshot, but takes no values.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def update(self, value: float) -> None:
        raise EnsembleError(f"statistic {self._name!r} {_WHERE}", hint=_HINT, code="program-absent")

    def get(self) -> float | None:
        return None


def _statistic(name: str, given: Any) -> StatisticPlugin:
    if isinstance(given, StatisticPlugin):
        return given
    _need_callable("statistic", name, given)
    return StatisticPlugin(
        name=name,
        summary=_summary(given, name),
        build=lambda options: given(**options),
        options=_ANY,
    )
