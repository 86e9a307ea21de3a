"""Registry of everything that plugins provide, by kind and name.

- A bare name (``nightly``) is enough if exactly one distribution has a record with this name.
- A qualified name (``DISTRIBUTION:NAME``, such as ``ensemble-foo:nightly``) always works. For a
  plugin file, the distribution is the file's name without ``.py``.
- A built-in always keeps its bare name. A plugin's record with the same name is available only by
  its qualified name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from ensemble_core.errors import PluginError, closest
from ensemble_core.plugin.distributions import normalize
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ensemble_core.plugin.records import (
        ActionPlugin,
        AlgorithmPlugin,
        EnvironmentPlugin,
        ExecutorPlugin,
        GeneratorPlugin,
        ObserverPlugin,
        ResizerPlugin,
        SourcePlugin,
        StatisticPlugin,
        TriggerPlugin,
    )


Kind = Literal[
    "executor",
    "trigger",
    "action",
    "statistic",
    "observer",
    "resizer",
    "source",
    "algorithm",
    "generator",
    "environment",
]


class Named(Protocol):
    """Any record of a plugin: an object with a name."""

    @property
    def name(self) -> str: ...


_R = TypeVar("_R", bound=Named)

#: The distribution of the built-ins, whose records keep their bare names.
BUILTIN = "ensemble-core"
#: All kinds of records, in the order in which they are shown.
KINDS: tuple[Kind, ...] = (
    "executor", "trigger", "action", "statistic", "observer", "resizer", "source", "algorithm",
    "generator", "environment",
)  # fmt: skip

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugin:
    """A plugin that was found, whether it works or is broken."""

    name: str  #: The name of the entry point; for a file, its name without ``.py``.
    distribution: str
    version: str
    module: str  #: The object to which the entry point refers; for a file, its path.
    #: By kind; empty if the plugin is broken.
    records: Mapping[str, tuple[Named, ...]] = field(default_factory=lambda: _NOTHING)
    error: str | None = None  #: Why the plugin is broken.
    builtin: bool = False

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version}".rstrip()

    def to_dict(self) -> dict[str, object]:
        """Return the plugin as plain data, for ``--json``."""
        return {
            "name": self.name,
            "distribution": self.distribution,
            "version": self.version,
            "module": self.module,
            "builtin": self.builtin,
            "records": {
                kind: [record.name for record in records] for kind, records in self.records.items()
            },
            "error": self.error,
        }


class PluginRecords(Mapping[str, _R], Generic[_R]):
    """The records of one kind, as a mapping from names.

    Iteration yields the bare names, and the qualified names of all records that are not built in. A
    name that two distributions claim is not ``in`` the mapping, and looking it up raises
    :class:`PluginError`.
    """

    def __init__(self, kind: str, claims: Iterable[tuple[LoadedPlugin, _R]]) -> None:
        self.kind = kind
        self.warnings: list[str] = []
        by_name: dict[str, list[tuple[LoadedPlugin, _R]]] = {}
        for plugin, record in claims:
            by_name.setdefault(record.name, []).append((plugin, record))
        self._all: dict[str, _R] = {}
        self._listed: list[str] = []
        #: The shortest name of each record.
        self.names: list[str] = []
        #: Ambiguous names, each with the plugins that claim it.
        self.clashes: dict[str, tuple[LoadedPlugin, ...]] = {}
        for name, claimants in by_name.items():
            self._place(name, claimants)

    def _place(self, name: str, claimants: list[tuple[LoadedPlugin, _R]]) -> None:
        owners: dict[str, list[tuple[LoadedPlugin, _R]]] = {}
        for claim in claimants:
            owners.setdefault(f"{normalize(claim[0].distribution)}:{name}", []).append(claim)
        for qualified, claims in owners.items():
            if len(claims) == 1:
                self._all[qualified] = claims[0][1]
            else:
                self.clashes[qualified] = tuple(plugin for plugin, _ in claims)
        builtin = [claim for claim in claimants if claim[0].builtin]
        bare: tuple[LoadedPlugin, _R] | None = None
        if len(claimants) == 1 or len(builtin) == 1:
            bare = claimants[0] if len(claimants) == 1 else builtin[0]
            self._all[name] = bare[1]
            self._listed.append(name)
            self.names.append(name)
        else:
            self.clashes[name] = tuple(plugin for plugin, _ in claimants)
        for qualified, claims in owners.items():
            if qualified in self._all and not claims[0][0].builtin:
                self._listed.append(qualified)
            if bare in claims:
                continue
            if qualified in self._all:
                self.names.append(qualified)
            if bare is not None:
                self.warnings.append(
                    f"{self.kind} {name!r} of {claims[0][0].distribution} has the name of a "
                    f"built-in, which takes precedence; write {qualified!r} to use the plugin's"
                )

    @staticmethod
    def _key(name: str) -> str:
        distribution, colon, rest = name.rpartition(":")
        return f"{normalize(distribution)}:{rest}" if colon else name

    def __getitem__(self, name: str) -> _R:
        if self.clashes and (clash := self.clash(name)) is not None:
            raise clash
        return self._all[self._key(name)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._key(name) in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def unclear(self) -> list[PluginError]:
        """Return an error for each ambiguous name."""
        found = (self.clash(name) for name in self.clashes)
        return list({each.what: each for each in found if each is not None}.values())

    def clash(self, name: str) -> PluginError | None:
        """Return the error for an ambiguous name, or ``None`` if the name is not ambiguous."""
        plugins = self.clashes.get(self._key(name))
        if plugins is None:
            return None
        distributions = sorted({plugin.distribution for plugin in plugins})
        bare = name.rpartition(":")[2]
        if ":" in name or len(distributions) == 1:
            who = " and ".join(f"{plugin.name!r} ({plugin.module})" for plugin in plugins)
            what = f"{distributions[0]} has two {self.kind}s named {bare!r}, in its plugins {who}"
            hint = f"report this to the authors of {distributions[0]}, or use only one of the two"
        else:
            choices = sorted({f"{normalize(plugin.distribution)}:{bare}" for plugin in plugins})
            what = f"{self.kind} {bare!r} is claimed by {' and by '.join(distributions)}"
            hint = f"write {' or '.join(map(repr, choices))} to choose, or uninstall one of them"
        return PluginError(what, hint=hint, code="plugin-clash")


def _is_compared(option: object) -> bool:
    return isinstance(option, Mapping) and option.get("x-ensemble-compared") is True


class Registry:
    """The records of all plugins, and the list of all plugins that were found."""

    def __init__(self, plugins: Iterable[LoadedPlugin], warnings: Iterable[str] = ()) -> None:
        self.plugins: tuple[LoadedPlugin, ...] = tuple(plugins)
        self._records: dict[str, PluginRecords[Any]] = {
            kind: PluginRecords(
                kind,
                [(each, record) for each in self.plugins for record in each.records.get(kind, ())],
            )
            for kind in KINDS
        }
        self.executors: PluginRecords[ExecutorPlugin] = self._records["executor"]
        self.triggers: PluginRecords[TriggerPlugin] = self._records["trigger"]
        self.actions: PluginRecords[ActionPlugin] = self._records["action"]
        self.statistics: PluginRecords[StatisticPlugin] = self._records["statistic"]
        self.observers: PluginRecords[ObserverPlugin] = self._records["observer"]
        self.resizers: PluginRecords[ResizerPlugin] = self._records["resizer"]
        self.sources: PluginRecords[SourcePlugin] = self._records["source"]
        self.algorithms: PluginRecords[AlgorithmPlugin] = self._records["algorithm"]
        self.generators: PluginRecords[GeneratorPlugin] = self._records["generator"]
        self.environments: PluginRecords[EnvironmentPlugin] = self._records["environment"]
        self.warnings: tuple[str, ...] = tuple(
            dict.fromkeys(
                [
                    *(f"{p} is broken and left out: {p.error}" for p in self.broken),
                    *warnings,
                    *(text for records in self._records.values() for text in records.warnings),
                ]
            )
        )

    @cached_property
    def compared_options(self) -> dict[str, dict[str, None]]:
        """The names of the options of each executor that ``--reuse`` compares."""
        found = {}
        for executor, record in self.executors.items():
            options = record.job_options.get("properties", {})
            names = [name for name, option in options.items() if _is_compared(option)]
            if names:
                found[executor] = dict.fromkeys(names)
        return found

    def owner(self, record: Named) -> LoadedPlugin | None:
        """Return the plugin that registered this record."""
        for plugin in self.plugins:
            for records in plugin.records.values():
                if any(one is record for one in records):
                    return plugin
        return None

    def whose(self, record: Named) -> str:
        """Return the name of the plugin that registered this record, for messages.

        Empty for a built-in.
        """
        plugin = self.owner(record)
        return "" if plugin is None or plugin.builtin else str(plugin)

    @property
    def broken(self) -> tuple[LoadedPlugin, ...]:
        """The plugins that were left out. The field ``error`` of each says why."""
        return tuple(plugin for plugin in self.plugins if plugin.error is not None)

    def records(self, kind: str) -> PluginRecords[Any]:
        """Return the records of one kind, which is given in the singular (``executor``)."""
        return self._records[kind]

    def lookup(self, kind: str, name: str) -> Any:
        """Return the record with this kind and name.

        Raises :class:`PluginError` with a hint if no record has the name (``no-such-executor`` …)
        or if two distributions claim it (``plugin-clash``).
        """
        try:
            return self._records[kind][name]
        except KeyError:
            raise PluginError(
                f"there is no {kind} {name!r}",
                hint=self.explain_missing(kind, name),
                code=f"no-such-{kind}",
            ) from None

    def explain_missing(self, kind: str, name: str) -> str:
        """Return a hint for a name that no record has. The hint is never empty."""

        from ensemble_core.plugin.distributions import known_provider

        records = self._records[kind]
        clash = records.clash(name)
        if clash is not None:
            return f"{clash.what}; {clash.hint}"
        said: list[str] = []
        broken = list(self.broken)
        bare = name.rpartition(":")[2]
        home, install = known_provider(kind, bare) or (None, "")
        if home and all(normalize(plugin.distribution) != home for plugin in self.plugins):
            said.append(install)
        else:
            known = [
                *records.names,
                *(claimed for claimed in records.clashes if ":" not in claimed),
            ]
            near = closest(name, known) or closest(bare, known)
            if near:
                said.append(f"did you mean {near!r}?")
            elif not home:
                said.append(
                    f"known: {', '.join(sorted(known))}" if known else f"no {kind}s are installed"
                )
        if home:
            broken = [p for p in broken if normalize(p.distribution) == home] or broken
        said += [f"{plugin} is broken: {plugin.error}" for plugin in broken]
        return "; ".join(said)


def canonical_names(value: Any, registry: Registry, keys: Collection[str]) -> None:
    """Replace names that are qualified by a distribution by canonical names, at any depth."""
    if isinstance(value, list):
        for item in value:
            canonical_names(item, registry, keys)
    elif isinstance(value, dict):
        records: Mapping[str, Mapping[str, object]] = {
            "trigger": registry.triggers,
            "name": registry.actions,
            "statistic": registry.statistics,
            "executor": registry.executors,
            "use": registry.generators,
            "observe": registry.observers,
        }
        for key, inner in value.items():
            if key in keys and isinstance(inner, str):
                value[key] = _listed_name(inner, records[key])
            elif key == "observe" and key in keys and isinstance(inner, dict):
                value[key] = {_listed_name(name, records[key]): inner[name] for name in inner}
            else:
                canonical_names(inner, registry, keys)


def _listed_name(name: str, records: Mapping[str, object]) -> str:
    if ":" not in name or name not in records:
        return name
    record = records[name]
    return next((known for known in records if records[known] is record), name)
