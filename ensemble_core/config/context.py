"""Shared state of all checks of one file: the document, the defined names, and the errors.

Created by the loader for a file, and by the binder for a specification that arrives during the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from ensemble_core.config.document import Document, Path
from ensemble_core.config.schema import Validators
from ensemble_core.errors import (
    EnsembleError,
    Location,
    UsageError,
    closest,
    plugin_raised,
    raised_at,
    written_at,
)
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.metrics.store import (
    VARIABLES,
    MetricPath,
    generator_gauge,
    parse_path,
    split_filter,
)
from ensemble_core.model.compiler import Unfinished
from ensemble_core.model.durations import seconds
from ensemble_core.model.ensemble import AlgorithmInstance
from ensemble_core.model.jobs import JobGroup
from ensemble_core.model.tables import Table
from ensemble_core.plugin.hookspecs import (
    ExecutorPlugin,
    GeneratorPlugin,
    ObserverPlugin,
    StatisticPlugin,
    TriggerPlugin,
)
from ensemble_core.plugin.registry import Registry

if TYPE_CHECKING:
    from ensemble_core.model.generators import GeneratorSpec
    from ensemble_core.plugin.named_code import Purpose

__all__ = ["Context", "Known", "Use", "cannot_be_built", "nearest"]

_MANY = 50


@dataclass(slots=True)
class Known:
    """Names that are defined in the file. A group with the value ``None`` exists but has errors.

    If ``functions`` or ``rules`` is ``None``, any name is accepted. ``unfit`` maps statistics to
    the reason why paths cannot use them; ``NAME`` in the hint of such an error stands for the rest
    of the path.
    """

    groups: dict[str, JobGroup | None] = field(default_factory=dict)
    #: Parameters of all groups, cached because every rule needs them.
    parameters: frozenset[str] | None = None
    statistics: Mapping[str, StatisticSpec] = field(default_factory=dict)
    #: Plugin statistics that a path cannot name directly, each with the reason.
    unfit: Mapping[str, EnsembleError] = field(default_factory=dict)
    functions: frozenset[str] | None = None
    rules: frozenset[str] | None = None
    #: Names of instances under ``use:``.
    instances: frozenset[str] = frozenset()
    here: str = "."
    #: Texts of attached files by name. If ``reads`` is false, no other file may be read.
    attached: dict[str, str] = field(default_factory=dict)
    reads: bool = False
    #: Why the file is read; this decides whether code to which the file refers is loaded.
    purpose: Purpose = "check"
    #: Words in rules, tables and functions. A parameter whose name is among them counts as used.
    spoken: frozenset[str] = frozenset()
    tables: dict[str, Table] = field(default_factory=dict)
    generators: dict[str, GeneratorSpec | None] = field(default_factory=dict)
    #: Job groups whose fields rules may change during the run.
    changing: frozenset[str] = frozenset()


class Use(NamedTuple):
    """The options of an algorithm's instance as the user gave them, with their path and schema."""

    instance: str
    path: Path
    schema: Mapping[str, Any]
    given: Mapping[str, Any]


def cannot_be_built(what: str, error: Exception) -> EnsembleError:
    """Return the error for a plugin object whose constructor raised an exception."""
    if isinstance(error, EnsembleError):
        return EnsembleError(
            f"{what} cannot be built: {error.what}", cause=error.cause, hint=error.hint
        )
    found = plugin_raised(f"{what} cannot be built", error)
    found.hint = f"your file may be correct; {found.hint}"
    return found


def nearest(name: str, names: Collection[str], cutoff: float = 0.5) -> str | None:
    """Return the most similar name, which may differ only in case, or ``None``."""
    alike = [other for other in names if other.lower() == name.lower()]
    return alike[0] if alike else closest(name, names, cutoff)


class Context:
    """State of one check: collects errors with their places and looks up defined names."""

    def __init__(
        self,
        document: Document,
        validators: Validators,
        executor: ExecutorPlugin | None,
        known: Known,
    ) -> None:
        self.document = document
        self.validators = validators
        self.registry: Registry = validators.registry
        self.executor = executor
        self.known = known
        self.errors: list[EnsembleError] = []
        self.warnings: list[str] = []
        #: Who made a part of the document, by path: the name of a plugin. If the user wrote a part
        #: within such a part, the name is empty.
        self.made: dict[Path, str] = {}
        #: Instances of algorithms by name, each with its options and its fully expanded entry.
        self.instances: dict[str, AlgorithmInstance] = {}
        self.uses: list[Use] = []
        self.expanded_uses: list[dict[str, Any]] = []
        #: Name of the instance that a rule belongs to, by the rule's index.
        self.of_instance: dict[int, str] = {}
        self._broken: set[Path] = set()  # including all parent paths
        self._paths: dict[str, MetricPath | EnsembleError] = {}

    # -- errors --------------------------------------------------------------------------------

    def report(
        self,
        path: Path,
        what: str,
        *,
        hint: str | None = None,
        code: str,
        where: Location | None = None,
        broken: bool = False,
    ) -> None:
        """Report an error at the value of this path, or at ``where``.

        If the part is ``broken``, it is not checked further, so that each error is reported once.
        """
        if broken:
            self._broken.update(path[:length] for length in range(len(path) + 1))
        place = where or self.document.at(path)
        self.errors.append(UsageError(self._by(path) + what, where=place, hint=hint, code=code))

    def attach(self, error: EnsembleError, path: Path) -> None:
        """Report an error. If it has no place yet, it gets the place of this path."""
        what = self._by(path) + error.what
        told = UsageError(what, cause=error.cause, hint=error.hint, code=error.code)
        place = self.document.at_end if isinstance(error, Unfinished) else self.document.at
        told.where = error.where or place(path)
        self.errors.append(told)

    def failed(self, path: Path, what: str, error: Exception) -> None:
        """Report an exception of a plugin's function, either deliberate or a bug in the plugin."""
        told = error if isinstance(error, EnsembleError) else cannot_be_built(what, error)
        self.attach(told, path)

    def _by(self, path: Path) -> str:
        """Return the prefix for messages about a part. It names the plugin that made the part, or
        is empty if the user wrote it."""
        for length in range(len(path), 0, -1) if self.made else ():
            whose = self.made.get(path[:length])
            if whose is not None:
                return f"invalid output of {whose}: " if whose else ""
        return ""

    def intact(self, path: Path) -> bool:
        """Return True if the schema accepted the value at this path."""
        return path not in self._broken

    def unknown(
        self,
        path: Path,
        noun: str,
        name: str,
        names: Collection[str],
        *,
        what: str | None = None,
        written: str = "'NAME'",
        where: Location | None = None,
    ) -> None:
        """Report an unknown name with a suggestion.

        ``what`` replaces the default message. ``written`` shows how the name is written in the
        file.
        """
        near = nearest(name, names)
        if near is not None:
            hint = f"did you mean {written.replace('NAME', near)}?"
        elif names:
            hint = f"known: {', '.join(sorted(names)[:15])}"
        else:
            hint = f"no {noun} is defined here"
        code = f"no-such-{noun.split()[-1]}"  # the last word: "group" for "job group"
        self.report(path, what or f"there is no {noun} {name!r}", hint=hint, code=code, where=where)

    def named(
        self, record: TriggerPlugin | StatisticPlugin | ObserverPlugin | GeneratorPlugin, name: str
    ) -> str:
        """Return a record's name for messages. It includes the plugin, unless that is built in."""
        kind = type(record).__name__.removesuffix("Plugin").lower()
        whose = self.registry.whose(record)
        return f"{kind} {name!r}" + (f" ({whose})" if whose else "")

    def duration(self, path: Path, value: object, above: float | None = None) -> float | None:
        """Return a duration in seconds, which must be greater than ``above``. After reporting an
        invalid value, return ``None``."""
        try:
            found = seconds(value)
        except EnsembleError as error:
            self.attach(error, path)
            return None
        if above is None or found > above:
            return found
        what = f"{path[-1]!r} must be more than {above}, got {value!r}"
        self.report(path, what, code="out-of-range")
        return None

    def build(self, path: Path, what: str, function: Callable[[], Any]) -> Any:
        """Return the result of a plugin's function, or ``None`` after reporting its exception."""
        try:
            return function()
        except Exception as error:  # a bug in the plugin, reported as such
            self.failed(path, what, error)
        return None

    # -- what is known -------------------------------------------------------------------------

    def group(self, name: object, path: Path) -> bool:
        """Return True if this job group exists; otherwise report it."""
        if not isinstance(name, str):
            return False
        if name not in self.known.groups:
            self.unknown(path, "job group", name, list(self.known.groups))
            return False
        return True

    def generator(self, name: object, path: Path) -> bool:
        """Return True if this generator exists; otherwise report it."""
        if isinstance(name, str) and name not in self.known.generators:
            self.unknown(path, "generator", name, list(self.known.generators))
        return name in self.known.generators

    def parameters(self, group: str | None) -> set[str]:
        """Return the sweep parameters of the group, or of all groups."""
        if group is None and self.known.parameters is not None:
            return set(self.known.parameters)
        return {name for known in self._groups(group) if known for name in known.names}

    def variables(self, group: str | None) -> frozenset[str] | None:
        """Return the fields that the observers of the group, or of all groups, can yield; ``None``
        if unknown."""
        found: set[str] = set()
        for observer in self._observers(group):
            names = observer and self._yields(*observer)
            if names is None:
                return None
            found |= names
        return frozenset(found)

    def results(self, group: str | None) -> set[str]:
        """Return the names under ``result`` of the group, or of all groups."""
        return {name for known in self._groups(group) if known for name in known.result}

    def scoped_variables(self, group: str | None) -> set[str] | None:
        """Return the names that are valid as NAME in ``STAT.NAME``, for the group or all groups.

        These are columns, results and durations. The result is ``None`` if they are unknown.
        """
        variables = self.variables(group)
        return None if variables is None else {*variables, *self.results(group), "duration"}

    def observed(self, group: str | None, name: str | None = None) -> bool:
        """Return True if the group (or any group) has the observer ``name``, or any observer if
        ``name`` is ``None``.

        A group with errors counts as having the observer, because its observers are unknown."""
        return any(
            observer is None or name in (None, observer[0].name)
            for observer in self._observers(group)
        )

    def prints_rows(self, group: str | None) -> bool:
        """Return True if an observer of the group, or of any group, is known to store its rows."""
        return any(each is None or each[1].get("rows") for each in self._observers(group))

    def why_not(self, group: str | None, name: str) -> str | None:
        """Return ``None`` if an observer of the group, or of any group, may yield this variable.

        Otherwise return a hint on how to configure an observer so that it yields the variable. The
        hint is empty if no observer can.
        """
        asked = ""
        for observer in self._observers(group):
            if observer is None:
                return None
            hint = self._unasked(*observer, name)
            if hint is None:
                names = self._yields(*observer)
                if names is None or name in names:
                    return None
            asked = asked or hint or ""
        return asked

    def left_out(self, name: str, group: str | None, path: Path) -> bool:
        """Report a field that an observer would only yield with other options. Return True if the
        field was reported."""
        hint = self.why_not(group, name)
        if not hint:
            return False
        whose = "any job group" if group is None else f"the job group {group!r}"
        self.report(
            path,
            f"no observer of {whose} yields {name!r} with the current options",
            hint=hint,
            code="not-observed",
            where=self.document.at_text(path, name),
        )
        return True

    @staticmethod
    def _unasked(record: ObserverPlugin, options: Mapping[str, Any], name: str) -> str | None:
        if record.unasked is None:
            return None
        try:
            return record.unasked(options).get(name)
        except Exception:  # the plugin cannot list its columns: skip the check
            return None

    def _yields(self, record: ObserverPlugin, options: Mapping[str, Any]) -> frozenset[str] | None:
        """Return the fields that an observer can yield with these options; ``None`` if unknown."""
        if record.variables is None:
            return None
        shown = self.named(record, record.name)
        return self.names(record.variables, options, f"{shown}: its 'variables'")

    def names(
        self,
        function: Callable[[Mapping[str, Any]], Collection[str] | None],
        options: Mapping[str, Any],
        shown: str,
    ) -> frozenset[str] | None:
        """Return the names that a plugin declares for these options.

        If the function fails, warn and return ``None``. The names are then not checked.
        """
        try:
            said: object = function(options)
            if said is None:
                return None
            if not isinstance(said, Collection) or isinstance(said, (str, bytes)):
                raise TypeError(f"{said!r:.80}, expected a set of names")
            wrong = [name for name in said if not isinstance(name, str)]
            if wrong:
                raise TypeError(f"{wrong[0]!r:.80} is not a name")
            return frozenset(said)
        except Exception as error:  # the plugin cannot list what it yields
            place = raised_at(error)
            if place.startswith("ensemble_core/"):
                place = written_at(function)
            told = str(error) if isinstance(error, TypeError) else repr(error)
            self.warnings.append(
                f"{shown} failed, so names of values are not checked: {told}"
                + (f" ({place})" if place else "")
            )
            return None

    def _groups(self, group: str | None) -> Iterable[JobGroup | None]:
        return self.known.groups.values() if group is None else [self.known.groups.get(group)]

    def _observers(
        self, group: str | None
    ) -> Iterator[tuple[ObserverPlugin, Mapping[str, Any]] | None]:
        """Yield the observers of the group, or of all groups, with their options. Yield ``None``
        for a group with errors."""
        for known in self._groups(group):
            if known is None:
                yield None
                continue
            for name, options in known.observe.items():
                yield self.registry.observers[name], options

    def metric(self, text: str, path: Path) -> MetricPath | None:
        """Return the metric's checked path; report one that cannot exist."""
        if "(" in text:
            path_of, condition = split_filter(text)
            name = path_of.rpartition("-")[2] if "-" in path_of else path_of.rpartition(".")[2]
            written = f"{path_of.partition('.')[0]}.{name}({condition})"
            self.report(
                path,
                f"the metric {text!r} takes no filter",
                hint=f"write {written}, in a rule whose trigger names the group",
                code="no-such-metric",
            )
            return None
        found = self._paths.get(text)
        if found is None:
            found = self._paths[text] = self._parse(text)
        if isinstance(found, EnsembleError):
            self.attach(found, path)
            return None
        if found.kind == "gauge" and not self._of_generator(text, path):
            return None
        base = found.variable.partition(".")[0]
        if found.kind != "series" or not found.group or base in VARIABLES:
            return found
        if found.variable in self.results(found.group):
            return found
        hint = self.why_not(found.group, found.variable)
        if hint is None:
            return found
        variables = self.variables(found.group) or frozenset()
        variables |= self.results(found.group)
        near = closest(found.variable, [*VARIABLES, *variables], 0.5)
        if hint:
            pass
        elif near:
            hint = f"did you mean '{found.statistic}.{found.group}-{near}'?"
        elif variables:
            hint = f"its observers yield {', '.join(sorted(variables)[:15])}"
        else:
            hint = f"add an observer to the job group ('observe:'), or use {' or '.join(VARIABLES)}"
        self.report(
            path,
            f"unknown metric {text!r}: nothing yields {found.variable!r} for the job group "
            f"{found.group!r}",
            hint=hint,
            code="no-such-metric",
        )
        return None

    def _of_generator(self, text: str, path: Path) -> bool:
        """Return False after reporting a gauge of an unknown generator or objective."""
        found = generator_gauge(text)
        if found is None or not self.generator(found[0], path):
            return found is None
        spec = self.known.generators[found[0]]
        if found[1] is None or spec is None or found[1] in spec.vocs.objectives:
            return True
        self.unknown(path, "objective", found[1], list(spec.vocs.objectives))
        return False

    def _parse(self, text: str) -> MetricPath | EnsembleError:
        groups: Collection[str] = self.known.groups
        if len(groups) > _MANY:
            # Compare only the part after the dot. Comparing very many whole paths takes seconds.
            rest = text.partition(".")[2]
            ends = [at for at, letter in enumerate(rest) if letter in ".-"]
            parts = [*(rest[:at] for at in ends), rest, rest.partition(".")[2]]
            inside = [part for part in parts if part in self.known.groups]
            groups = inside or get_close_matches(text, groups, 5, 0.3)
        head, _, rest = text.partition(".")
        unfit = self.known.unfit.get(head)
        try:
            if unfit is None:
                found = parse_path(text, groups, self.known.statistics, self.known.rules)
                return self._built(found) or found
            parse_path(text, groups, {head}, self.known.rules)
        except EnsembleError as error:
            return error
        hint = unfit.hint and unfit.hint.replace("NAME", rest)
        return EnsembleError(unfit.what, cause=unfit.cause, hint=hint, code=unfit.code)

    def _built(self, path: MetricPath) -> EnsembleError | None:
        """Return why this path's statistic cannot be built, or ``None``.

        Built-in statistics are not tried, because their imports would slow down every check.
        """
        spec = self.known.statistics.get(path.statistic)
        error = spec.fault() if spec is not None and spec.plugin else None
        return None if error is None else cannot_be_built(str(spec), error)
