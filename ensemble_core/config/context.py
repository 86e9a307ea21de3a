"""State of the check of one file: the parsed file, the names that it defines, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from functools import partial
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
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.recent_counts import WITHIN
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.metrics.store import (
    PILOTS,
    ROWS,
    VARIABLES,
    MetricPath,
    generator_gauge,
    parse_path,
    split_filter,
)
from ensemble_core.model.conditions import (
    Condition,
    kind_of,
    misspelt_value,
    unlike_comparison,
    unlike_operand,
)
from ensemble_core.model.durations import seconds
from ensemble_core.model.ensemble import AlgorithmInstance
from ensemble_core.model.expressions import KINDS_OF_FIELDS
from ensemble_core.model.formula_compiler import IncompleteFormula
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.sweep_values import Range
from ensemble_core.model.tables import Table
from ensemble_core.plugin.hookspecs import (
    EnvironmentPlugin,
    ExecutorPlugin,
    GeneratorPlugin,
    ObserverPlugin,
    StatisticPlugin,
    TriggerPlugin,
)
from ensemble_core.plugin.registry import Registry
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ensemble_core.model.generators import GeneratorSpec
    from ensemble_core.plugin.untrusted_code import Purpose

_MANY = 50
#: A duration at the end of a filter, such as ``last 10m``.
_TIME = late_pattern(r"\b\d+(\.\d+)?[smhdw]$")


@dataclass(slots=True)
class Known:
    """Names that an ensemble file defines."""

    #: A group with the value ``None`` exists but has errors.
    groups: dict[str, JobGroup | None] = field(default_factory=dict)
    #: Names that groups with errors seem to define: rules that use them are not wrong.
    faulty: dict[str, set[str]] = field(default_factory=dict)
    #: The parameters of all groups; cached because every rule needs them.
    parameters: frozenset[str] | None = None
    statistics: Mapping[str, StatisticSpec] = field(default_factory=dict)
    #: Plugin statistics that paths cannot use, each with the reason. In its hint, ``NAME`` stands
    #: for the rest of the path.
    unfit: Mapping[str, EnsembleError] = field(default_factory=dict)
    #: If ``functions`` or ``rules`` is ``None``, any name is accepted.
    functions: frozenset[str] | None = None
    rules: frozenset[str] | None = None
    #: Options of the run's executor; ``None``: not known.
    options: Mapping[str, Any] | None = None
    #: Entries of ``pilots:``.
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Names of the instances under ``use:``.
    instances: frozenset[str] = frozenset()
    here: str = "."
    #: Texts of the attached files, by name. If ``reads`` is false, no further file may be read.
    attached: dict[str, str] = field(default_factory=dict)
    reads: bool = False
    #: Why the file is read. The purpose decides whether code that the file names may be loaded.
    purpose: Purpose = "check"
    #: Whether the user or the profile named the executor. If not, a check accepts a file that is
    #: for another one.
    is_named: bool = True
    #: All words in rules, tables and functions. A parameter whose name is one of these words is
    #: used.
    words_in_use: frozenset[str] = frozenset()
    tables: dict[str, Table] = field(default_factory=dict)
    generators: dict[str, GeneratorSpec | None] = field(default_factory=dict)
    #: Job groups that no submit has used yet as they are, each with the places of its entries.
    unused: dict[str, list[tuple[Path, Mapping[str, Any], JobGroup]]] = field(default_factory=dict)
    #: Job groups whose fields rules may change during the run.
    changing: frozenset[str] = frozenset()


class Use(NamedTuple):
    """The options of an algorithm's instance as written by the user, with their path and schema."""

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
    """Return the most similar name, or ``None``.

    A name that differs only in case counts as most similar.
    """
    alike = [other for other in names if other.lower() == name.lower()]
    return alike[0] if alike else closest(name, names, cutoff)


class Context:
    """State of one check: collects errors with their positions, and looks up names."""

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
        #: Which plugin generated a part of the document, by path. For a part that the user wrote
        #: within a generated part, the plugin's name is empty.
        self.made: dict[Path, str] = {}
        #: The instances of algorithms by name, each with its options and its fully expanded entry.
        self.instances: dict[str, AlgorithmInstance] = {}
        self.uses: list[Use] = []
        self.expanded_uses: list[dict[str, Any]] = []
        #: The name of the instance that a rule belongs to, by the rule's index.
        self.of_instance: dict[int, str] = {}
        self._broken: set[Path] = set()  # with all parent paths
        self._paths: dict[str, MetricPath | EnsembleError] = {}
        self._kinds: dict[tuple[str | None, str], str] = {}

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
        """Report an error at the value with this path, or at the location ``where``.

        Set ``broken`` to skip later checks of this part, so that each error is reported only once.
        """
        if broken:
            self._broken.update(path[:length] for length in range(len(path) + 1))
        place = where or self.document.at(path)
        self.errors.append(
            UsageError(self._origin_prefix(path) + what, where=place, hint=hint, code=code)
        )

    def attach(self, error: EnsembleError, path: Path) -> None:
        """Report an error. If it has no location yet, it gets that of the value at this path."""
        what = self._origin_prefix(path) + error.what
        reported = UsageError(what, cause=error.cause, hint=error.hint, code=error.code)
        place = self.document.at_end if isinstance(error, IncompleteFormula) else self.document.at
        reported.where = error.where or place(path)
        self.errors.append(reported)

    def failed(self, path: Path, what: str, error: Exception) -> None:
        """Report an exception of a plugin's function.

        It may be deliberate, or due to a bug in the plugin.
        """
        reported = error if isinstance(error, EnsembleError) else cannot_be_built(what, error)
        self.attach(reported, path)

    def _origin_prefix(self, path: Path) -> str:
        """Return the prefix of messages about a part: the plugin that generated it, or empty for
        the user's.
        """
        for length in range(len(path), 0, -1) if self.made else ():
            whose = self.made.get(path[:length])
            if whose is not None:
                return f"invalid output of {whose}: " if whose else ""
        return ""

    def is_valid(self, path: Path) -> bool:
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
        """Report an unknown name, and suggest a known one.

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
        self,
        record: TriggerPlugin
        | StatisticPlugin
        | ObserverPlugin
        | GeneratorPlugin
        | EnvironmentPlugin,
        name: str,
    ) -> str:
        """Return the name of a trigger, statistic, observer or generator as messages show it.

        The name of its plugin is included, unless the plugin is built in.
        """
        kind = type(record).__name__.removesuffix("Plugin").lower()
        whose = self.registry.whose(record)
        return f"{kind} {name!r}" + (f" ({whose})" if whose else "")

    def duration(self, path: Path, value: object, above: float | None = None) -> float | None:
        """Return a duration in seconds, or ``None`` after reporting an invalid value.

        If ``above`` is given, the duration must be greater.
        """
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
        """Return the result of a plugin's function, or ``None`` after reporting an exception."""
        try:
            return function()
        except Exception as error:  # a bug in the plugin, reported as such
            self.failed(path, what, error)
        return None

    # -- what is known -------------------------------------------------------------------------

    def group(self, name: object, path: Path) -> bool:
        """Return True if this job group exists; otherwise report an error."""
        if not isinstance(name, str):
            return False
        if name not in self.known.groups:
            self.unknown(path, "job group", name, list(self.known.groups))
            return False
        return True

    def generator(self, name: object, path: Path) -> bool:
        """Return True if this generator exists; otherwise report an error."""
        if isinstance(name, str) and name not in self.known.generators:
            self.unknown(path, "generator", name, list(self.known.generators))
        return name in self.known.generators

    def parameters(self, group: str | None) -> set[str]:
        """Return the sweep parameters of a group, or of all groups if ``group`` is ``None``."""
        if group is None and self.known.parameters is not None:
            return set(self.known.parameters)
        found = {name for known in self._groups(group) if known for name in known.names}
        faulty = self.known.faulty
        return found.union(*(faulty.values() if group is None else [faulty.get(group, ())]))

    def warn_of_kinds(
        self, path: Path, condition: Condition, group: str | None, columns: Collection[str] = ()
    ) -> None:
        """Warn if the condition compares a number with a text, or with a misspelt value.

        ``group``: the group whose parameters it names, or ``None`` for any group. ``columns`` are
        names that mean something else.
        """
        if condition.tree is None or not condition.names.isdisjoint(columns):
            return
        where = self.document.at(path)
        why = unlike_comparison(condition.tree, partial(self._kind, group))
        if why is not None:
            self.warnings.append(
                f"{where}: {condition.text!r} compares a number with a text, "
                f"which are never equal: {why}"
            )
        why = unlike_operand(condition.tree, partial(self._kind, group))
        if why is not None:
            self.warnings.append(
                f"{where}: {condition.text!r} computes with a text, which has no result: {why}"
            )
        why = misspelt_value(condition.tree, partial(self._values, group))
        if why is not None:
            self.warnings.append(f"{where}: {condition.text!r}: {why}")

    def _values(self, group: str | None, name: str) -> list[object]:
        """Return the values of a parameter in the sweeps; of ``group``, the groups' names."""
        found: list[object] = []
        for known in self._groups(group):
            for values in (known.points.get(name), known.parameters.get(name)) if known else ():
                found += () if isinstance(values, Range) else values or ()
        return list(self.known.groups) if name == "group" and not found else found

    def _kind(self, group: str | None, name: str) -> str:
        """Return ``number`` or ``text`` if all values of this name are that."""
        found = self._kinds.get((group, name))
        if found is None:
            kinds = set()
            for known in self._groups(group):
                for values in (known.points.get(name), known.parameters.get(name)) if known else ():
                    whole = isinstance(values, Range)
                    kinds |= {"number"} if whole else set(map(kind_of, values or ()))
            if not kinds:
                kinds = {KINDS_OF_FIELDS.get(name, "")}
            found = self._kinds[group, name] = kinds.pop() if len(kinds) == 1 else ""
        return found

    def variables(self, group: str | None) -> frozenset[str] | None:
        """Return the fields that observers can yield, for a group or (``None``) for all groups.

        Return ``None`` if the fields are unknown.
        """
        found: set[str] = set()
        for observer in self._observers(group):
            names = observer and self.yields(*observer)
            if names is None:
                return None
            found |= names
        return frozenset(found)

    def results(self, group: str | None) -> set[str]:
        """Return the names under ``result`` of a group, or of all groups if ``group`` is
        ``None``.
        """
        return {name for known in self._groups(group) if known for name in known.result}

    def split_rows(self, group: str | None, variable: str) -> tuple[bool, str]:
        """Return whether a variable is the rows of a column (``rows.E``), and the column's name.

        A column with exactly this name takes precedence.
        """
        column = variable.removeprefix(ROWS)
        if column == variable or variable in (self.variables(group) or ()):
            return False, variable
        return True, column

    def scoped_variables(self, group: str | None) -> set[str] | None:
        """Return the names that can be NAME in ``STAT.NAME``, for a group or (``None``) for all
        groups.

        These are columns, results and ``duration``. Return ``None`` if they are unknown.
        """
        variables = self.variables(group)
        return None if variables is None else {*variables, *self.results(group), "duration"}

    def observed(self, group: str | None, name: str | None = None) -> bool:
        """Return True if a group, or any group, has the observer ``name`` (``None``: any observer).

        The observers of a group with errors are unknown, so such a group counts as having the
        observer.
        """
        return any(
            observer is None or name in (None, observer[0].name)
            for observer in self._observers(group)
        )

    def prints_rows(self, group: str | None) -> bool:
        """Return True if an observer of a group, or of any group, stores its rows.

        The observers of a group with errors are unknown, so they count as storing their rows.
        """
        return any(each is None or each[1].get("rows") for each in self._observers(group))

    def why_not_observed(self, group: str | None, name: str) -> str | None:
        """Return ``None`` if an observer of a group, or of any group, can yield this variable.

        Otherwise, return a hint on how to configure an observer so that it yields the variable. The
        hint is empty if no observer can.
        """
        asked = ""
        for observer in self._observers(group):
            if observer is None:
                return None
            hint = self._unasked_column(*observer, name)
            if hint is None:
                names = self.yields(*observer)
                if names is None or name in names:
                    return None
            asked = asked or hint or ""
        return asked

    def left_out(self, name: str, group: str | None, path: Path) -> bool:
        """Report a field that an observer would yield only with other options.

        Return True if the field was reported.
        """
        hint = self.why_not_observed(group, name)
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
    def _unasked_column(
        record: ObserverPlugin, options: Mapping[str, Any], name: str
    ) -> str | None:
        if record.unasked is None:
            return None
        try:
            return record.unasked(options).get(name)
        except Exception:  # the plugin cannot list its columns: skip this check
            return None

    def yields(self, record: ObserverPlugin, options: Mapping[str, Any]) -> frozenset[str] | None:
        """Return the fields that an observer can yield with these options, or ``None`` if
        unknown.
        """
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
        """Return the names that a plugin's function declares for these options.

        If the function fails, warn and return ``None``. The names are then not checked.
        """
        try:
            said: object = function(options)
            if said is None:
                return None
            if not isinstance(said, Collection) or isinstance(said, (str, bytes)):
                raise TypeError(f"it returned {said!r:.80}, expected a set of names")
            wrong = [name for name in said if not isinstance(name, str)]
            if wrong:
                raise TypeError(f"it returned a set with {wrong[0]!r:.80}, which is not a name")
            return frozenset(said)
        except Exception as error:  # the plugin cannot list its names
            place = raised_at(error)
            if place.startswith("ensemble_core/"):
                place = written_at(function)
            reason = str(error) if isinstance(error, TypeError) else repr(error)
            self.warnings.append(
                f"{shown} failed, so names of values are not checked: {reason}"
                + (f" ({place})" if place else "")
            )
            return None

    def _groups(self, group: str | None) -> Iterable[JobGroup | None]:
        return self.known.groups.values() if group is None else [self.known.groups.get(group)]

    def _observers(
        self, group: str | None
    ) -> Iterator[tuple[ObserverPlugin, Mapping[str, Any]] | None]:
        """Yield each observer of a group, or of all groups, with its options.

        Yield ``None`` for a group with errors.
        """
        for known in self._groups(group):
            if known is None:
                yield None
                continue
            for name, options in known.observe.items():
                yield self.registry.observers[name], options

    def metric(self, text: str, path: Path) -> MetricPath | None:
        """Return the parsed path of a metric, or ``None`` after reporting a metric that cannot
        exist.
        """
        if "(" in text:
            path_of, condition = split_filter(text)
            if WITHIN in condition and text.endswith(")"):
                return self._recent_count(text, condition.partition(WITHIN)[2], path)
            name = path_of.rpartition("-")[2] if "-" in path_of else path_of.rpartition(".")[2]
            written = f"{path_of.partition('.')[0]}.{name}({condition})"
            better = f"write {written} in a rule with 'name: GROUP'"
            time = _TIME.search(condition)
            if not text.endswith(")"):
                better = "close the bracket"
            elif time is not None and path_of.startswith("count."):
                better = f"for a count within a time, write '{path_of}({WITHIN}{time.group()})'"
            what = f"the metric {text!r} takes no filter"
            self.report(path, what, hint=better, code="no-such-metric")
            return None
        found = self._paths.get(text)
        if found is None:
            found = self._paths[text] = self._parse(text)
        if isinstance(found, EnsembleError):
            self.attach(found, path)
            return None
        if found.kind == "gauge" and not self._check_generator_gauge(text, path):
            return None
        if not found.group and not self._check_pilots(text, found.variable or text, path):
            return None
        base = found.variable.partition(".")[0]
        if found.kind != "series" or not found.group or base in VARIABLES:
            return found
        rows, variable = self.split_rows(found.group, found.variable)
        if not rows and variable in self.results(found.group):
            if self.known.statistics[found.statistic].accepts != "unreadable":
                return found
            self.report(
                path,
                f"{text!r} can never have a value: {variable!r} is a result, and results are never "
                "unreadable",
                hint=f"write {found.statistic}.{found.group}-{ROWS}{variable}",
                code="no-such-metric",
                where=self.document.at_text(path, text),
            )
            return None
        hint = self.why_not_observed(found.group, variable)
        if hint is None:
            return found
        variables = self.variables(found.group) or frozenset()
        variables |= self.results(found.group)
        near = closest(variable, [*VARIABLES, *variables], 0.5)
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
            f"unknown metric {text!r}: the job group {found.group!r} has no column "
            + ("" if rows else "or result ")
            + repr(variable),
            hint=hint,
            code="no-such-metric",
        )
        return None

    def _recent_count(self, text: str, time: str, path: Path) -> MetricPath | None:
        """Return the path of a count within a time, or ``None`` after reporting an error."""
        found: MetricPath | EnsembleError | None
        found = self._paths[text] = self._paths.get(text) or self._parse(text)
        try:
            if isinstance(found, EnsembleError):
                raise found
            if not found.recent:
                count = found.kind == "count"
                better = text.partition("(")[0] if count else "a path such as count.GROUP.failed"
                raise EnsembleError(
                    f"{text!r} is no count within a time: 'within' takes one time, alone"
                    if count
                    else f"{text!r} is no count: only counts have 'within'",
                    hint=f"write {better}({WITHIN}{time.strip()})",
                    code="no-such-metric",
                )
            if not seconds(time):
                raise EnsembleError(
                    f"the time in {text!r} is 0", hint=f"write {WITHIN}10m", code="out-of-range"
                )
        except EnsembleError as error:
            self.attach(error, path)
            return None
        return found

    def _check_pilots(self, text: str, gauge: str, path: Path) -> bool:
        """Return False after reporting a gauge of pilots if the executor has none."""
        executor = self.executor
        if not gauge.startswith(PILOTS) or executor is None or executor.kinds or executor.members:
            return True
        executors = self.registry.executors
        able = [f"--executor {name}" for name in executors.names if executors[name].kinds]
        what = f"{text!r} can never have a value: the executor {executor.name!r} has no pilots"
        hint = f"run it with {' or '.join(able) or 'an executor that has pilots'}"
        if self.known.purpose == "check" and not self.known.is_named:
            where = self.document.at_text(path, text)
            self.warnings.append(f"{f'{where}: ' if where else ''}{what}\n  hint: {hint}")
            return True
        self.report(
            path,
            what,
            hint=hint,
            code="no-such-metric",
            where=self.document.at_text(path, text),
        )
        return False

    def _check_generator_gauge(self, text: str, path: Path) -> bool:
        """Return False after reporting a gauge whose generator or objective does not exist."""
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
            from difflib import get_close_matches

            # Compare only the part after the dot, because comparing very many full paths takes
            # seconds.
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
                return self._build_failure(found) or found
            parse_path(text, groups, {head}, self.known.rules)
        except EnsembleError as error:
            return error
        hint = unfit.hint and unfit.hint.replace("NAME", rest)
        return EnsembleError(unfit.what, cause=unfit.cause, hint=hint, code=unfit.code)

    def _build_failure(self, path: MetricPath) -> EnsembleError | None:
        """Return the reason why this path's statistic cannot be built, or ``None``.

        Built-in statistics are not built here, because their imports would slow down every check.
        """
        spec = self.known.statistics.get(path.statistic)
        error = spec.fault() if spec is not None and spec.plugin else None
        return None if error is None else cannot_be_built(str(spec), error)
