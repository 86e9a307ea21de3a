"""Snapshots of the engine's state as bytes, so that a resume need not replay every event.

- Only the same versions of Ensemble, Python and plugins can read a snapshot.
- Reading a snapshot cannot run code.
- Rules and statistics are stored by name, because the ensemble file and plugins define them.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from itertools import chain, islice, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.state import State
from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.metrics.statistic_state import NoState
from ensemble_core.model import conditions
from ensemble_core.model.codec import dumps
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.expressions import Formula, expression
from ensemble_core.model.option_values import OptionText
from ensemble_core.model.retry_policy import RetryPolicy
from ensemble_core.model.rules import BoundRule, BoundSpec

#: Increase this number if a field of the engine's state changes its meaning. (New and removed
#: fields are detected automatically.)
FORMAT = 32

#: Modules that define the classes of the state.
_MODULES = (
    "engine.at_once engine.bad_nodes engine.budget engine.done_jobs engine.firing_records "
    "engine.for_duration engine.foreign_jobs engine.generator_state engine.group_state "
    "engine.job_metrics engine.job_record engine.job_table engine.past_submits "
    "engine.rate_limit engine.repeated_rows engine.replicas engine.rule_index engine.rule_set "
    "engine.scopes engine.shared_files engine.silent_jobs engine.state engine.timers "
    "metrics.recent_counts metrics.series metrics.store model.decisions model.events "
    "model.generators model.job_group model.jobs model.sweep_values"
)
_CLASSES: dict[str, type[Any]] = {
    f"{found.__module__.rpartition('.')[2]}.{name}": found
    for module in (import_module(f"ensemble_core.{each}") for each in _MODULES.split())
    for name, found in vars(module).items()
    if isinstance(found, type)
    and found.__module__ == module.__name__
    and not issubclass(found, (Enum, StatisticSpec))
} | {"retry_policy.RetryPolicy": RetryPolicy}
_CONTAINERS: dict[str, type[Any]] = {
    each.__name__: each for each in (dict, list, set, deque, MappingProxyType)
}
_NAMES: dict[type[Any], str] = {
    **{found: name for name, found in (_CLASSES | _CONTAINERS).items()},
    BoundSpec: "dict",  # copied as plain data
}
_SCALARS = {type(None), bool, int, float, str}
#: Fields that contain functions or derived values. They are not stored, but rebuilt.
_REBUILT = {
    "State": ("all_tables",),
    "Watch": ("read",),
    "Series": ("_problems",),
    "_Cell": ("statistic", "get", "update", "update_all"),
}


def _slots(cls: type[Any]) -> tuple[str, ...]:
    left_out = _REBUILT.get(cls.__name__, ())
    slots = (vars(base).get("__slots__", ()) for base in cls.__mro__)
    return tuple(name for name in chain.from_iterable(slots) if name not in left_out)


class _Writer:
    """Writes all objects of a state, class by class."""

    def __init__(self, ensemble: Ensemble, statistics: Mapping[str, StatisticSpec]) -> None:
        self._own = {id(rule) for rule in ensemble.rules}
        self._statistics = statistics
        self._objects: dict[str, list[Any]] = {}
        self._numbers: dict[int, int] = {}

    def chunks(self) -> Iterator[tuple[str, int, Any]]:
        """Yield all objects, class by class, until there are no new ones."""
        written: dict[str, int] = {}
        while any(len(found) > written.get(name, 0) for name, found in self._objects.items()):
            for name, found in list(self._objects.items()):
                objects = found[written.get(name, 0) :]
                if objects:
                    written[name] = len(found)
                    yield name, len(objects), self._contents(name, objects)

    def _contents(self, name: str, objects: list[Any]) -> Any:
        if name in _CLASSES:
            slots = _slots(_CLASSES[name])
            names = slots or tuple(vars(objects[0]))
            found = {each: self.column(list(map(attrgetter(each), objects))) for each in names}
            if _CLASSES[name] is Series:
                found["states"] = self.column([each.states(self._statistics) for each in objects])
            return found
        contents = {"n": self.column(list(map(len, objects)))}
        contents["items"] = self.column(list(chain.from_iterable(objects)))
        if name in ("dict", "mappingproxy"):
            values = chain.from_iterable(each.values() for each in objects)
            contents["values"] = self.column(list(values))
        if name == "deque":
            contents["longest"] = self.column([each.maxlen for each in objects])
        return contents

    def column(self, values: Sequence[Any]) -> Any:
        """Return values in a form that JSON can hold: scalars as they are, others with their
        type.
        """
        kinds = set(map(type, values))
        if kinds <= _SCALARS:
            if len(kinds) == 1 and float not in kinds and len(set(values)) == 1:
                return {"all": values[0]}
            return values
        if len(kinds) > 1:
            return self._encode_mixed(values)
        (kind,) = kinds
        if kind is tuple:
            flat = list(chain.from_iterable(values))
            return {"tuple": self.column(list(map(len, values))), "of": self.column(flat)}
        if kind is frozenset:
            return {"frozenset": self.column([tuple(sorted(each, key=repr)) for each in values])}
        if kind in _NAMES:
            if issubclass(kind, tuple):
                return {"made": _NAMES[kind], "of": self.column(list(chain.from_iterable(values)))}
            return {"object": _NAMES[kind], "of": self.column(self._number(_NAMES[kind], values))}
        if kind is Ensemble:
            return {"ensemble": len(values)}
        if kind is StatisticSpec:
            return {"statistic": [spec.name for spec in values]}
        if kind is BoundRule:
            specs = [None if id(rule) in self._own else dict(rule.spec) for rule in values]
            return {"rule": [rule.id for rule in values], "spec": json.loads(dumps(specs))}
        if issubclass(kind, Formula):
            return {"formula": kind.__name__, "text": [formula.text for formula in values]}
        if kind is bytes:
            return {"bytes": [b64encode(value).decode() for value in values]}
        if kind is OptionText:
            return {"option": list(map(str, values)), "types": [[*each.types] for each in values]}
        if kind.__module__.startswith("ensemble_core."):
            raise TypeError(f"a snapshot cannot contain a {kind.__name__}")
        # A plugin's object in an event is stored as in the journal.
        plain: list[Any] = json.loads(dumps(values))
        return self.column(plain)

    def _encode_mixed(self, values: Sequence[Any]) -> Any:
        parts: dict[type[Any], list[Any]] = {}
        for value in values:
            kind = type(value)
            parts.setdefault(object if kind in _SCALARS else kind, []).append(value)
        places = {kind: place for place, kind in enumerate(parts)}
        scalar = places.get(object, 0)
        which = [places.get(type(value), scalar) for value in values]
        return {"which": which, "of": [self.column(part) for part in parts.values()]}

    def _number(self, name: str, values: Iterable[Any]) -> list[int]:
        numbers, objects = self._numbers, self._objects.setdefault(name, [])
        found = []
        for value in values:
            number = numbers.get(id(value))
            if number is None:
                number = numbers[id(value)] = len(objects)
                objects.append(value)  # keeps the object alive, so that its id stays unique
            found.append(number)
        return found


class _Reader:
    """Reads the objects of a state. First it creates all of them, then it fills them."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._rules = {rule.id: rule for rule in ensemble.rules}
        self._objects: dict[str, list[Any]] = {}
        self._series: list[tuple[Series, Any]] = []
        #: An empty state, from which the field names of classes without slots are taken.
        like = State(ensemble)
        parts = (getattr(like, name) for name in _slots(State))
        self._like = {type(each): vars(each).keys() for each in parts if hasattr(each, "__dict__")}

    def read(self, data: Any) -> State:
        made = []
        for name, count, contents in data["chunks"]:
            objects = list(self._new(name, count, contents))
            known = self._objects.setdefault(name, [])
            if name == "mappingproxy":
                known += map(MappingProxyType, objects)
            else:
                known += objects
            made.append((name, objects, contents))
        for name, objects, contents in made:
            self._fill(name, objects, contents)
        (state,) = self.column(data["state"], 1)
        if type(state) is not State:
            raise TypeError("not a saved engine state")
        for each, states in self._series:
            each.restore(state.metrics.statistics, states)
        state.tabulate()
        state.metrics.connect_fault_reports()
        for watch in state.rules.index.watches.values():
            watch.read = state.metrics.reader(watch.path)
        return state

    def _new(self, name: str, count: int, contents: Any) -> Iterable[Any]:
        if name in _CLASSES:
            return map(object.__new__, repeat(_CLASSES[name], count))
        if name == "deque":
            return [deque(maxlen=most) for most in self.column(contents["longest"], count)]
        make: Callable[[], Any] = dict if name == "mappingproxy" else _CONTAINERS[name]
        return (make() for _ in range(count))

    def _fill(self, name: str, objects: list[Any], contents: Any) -> None:
        count = len(objects)
        if name in _CLASSES:
            cls = _CLASSES[name]
            contents = dict(contents)
            if cls is Series:
                self._series += zip(
                    objects, self.column(contents.pop("states"), count), strict=True
                )
            if contents.keys() != set(_slots(cls) or self._like[cls]):
                raise TypeError(
                    f"the fields of {name} in the snapshot differ from those of this version"
                )
            for field, column in contents.items():
                values = self.column(column, count)
                deque(map(object.__setattr__, objects, repeat(field), values), maxlen=0)
            return
        sizes = list(self.column(contents["n"], count))
        items = iter(self.column(contents["items"], sum(sizes)))
        if "values" in contents:
            values = iter(self.column(contents["values"], sum(sizes)))
            items = zip(items, values, strict=True)
        for each, size in zip(objects, sizes, strict=True):
            if size:
                (each.extend if name in ("list", "deque") else each.update)(islice(items, size))

    def column(self, column: Any, count: int) -> Iterable[Any]:
        """Return the ``count`` values of a column."""
        if isinstance(column, list):
            if len(column) != count:
                raise ValueError(
                    f"a column of the snapshot has {len(column)} values, expected {count}"
                )
            return column
        if "all" in column:
            return repeat(column["all"], count)
        if "which" in column:
            which = column["which"]
            parts = [
                iter(self.column(part, which.count(place)))
                for place, part in enumerate(column["of"])
            ]
            return [next(parts[place]) for place in which]
        if "tuple" in column:
            sizes = list(self.column(column["tuple"], count))
            flat = iter(self.column(column["of"], sum(sizes)))
            return [tuple(islice(flat, size)) for size in sizes]
        if "frozenset" in column:
            return map(frozenset, self.column(column["frozenset"], count))
        if "made" in column:
            cls = _CLASSES[column["made"]]
            width = len(cls._fields)
            flat = iter(self.column(column["of"], count * width))
            return map(cls._make, zip(*[flat] * width, strict=True))
        if "object" in column:
            numbers = self.column(column["of"], count)
            return map(self._objects[column["object"]].__getitem__, numbers)
        return self._decode_named(column)

    def _decode_named(self, column: Any) -> Iterable[Any]:
        if "ensemble" in column:
            return [self._ensemble] * column["ensemble"]
        if "statistic" in column:
            return [self._ensemble.statistics[name] for name in column["statistic"]]
        if column.get("formula") == "Condition":
            return [conditions.parse(text, has_value=False) for text in column["text"]]
        if "formula" in column:
            return [expression(text, texts=True) for text in column["text"]]
        if "bytes" in column:
            return map(b64decode, column["bytes"])
        if "option" in column:
            return map(OptionText, column["option"], column["types"])
        return [
            self._rules[name] if spec is None else self._ensemble.binder.rule(spec, name)
            for name, spec in zip(column["rule"], column["spec"], strict=True)
        ]


def dump(engine: Engine) -> bytes:
    """Return the state of an engine as bytes.

    Raises :class:`NoState` if that is impossible, usually because of a plugin's statistic.
    """
    writer = _Writer(engine.state.ensemble, engine.state.metrics.statistics)
    try:
        state = writer.column([engine.state])
        return json.dumps({"state": state, "chunks": list(writer.chunks())}).encode()
    except NoState:
        raise
    except Exception as error:  # an object of a plugin: continue without a snapshot
        raise NoState(f"cannot write a snapshot of the run: {error!r}") from error


def load(state: bytes, ensemble: Ensemble) -> Engine | None:
    """Return an engine with a state from :func:`dump`, or ``None`` if the state cannot be read."""
    try:
        return Engine(_Reader(ensemble).read(json.loads(state)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a plugin's statistic may raise anything, even a Rust panic
        return None
