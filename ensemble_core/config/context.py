"""Shared state of the checks of one file: the document, what is known, and what went wrong.

Made by the loader for a file, and by the binder for a specification that arrives while a run is
under way.
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
    """The names that exist. A group that is ``None`` is there, but has errors of its own.

    ``functions`` and ``rules`` ``None`` mean that any name may be right. Of ``unfit`` statistics
    the cause says what is wrong; ``NAME`` in the hint stands for the path without its first word.
    """

    groups: dict[str, JobGroup | None] = field(default_factory=dict)
    #: Parameters of all groups, kept when the last group is read: each rule asks for them.
    parameters: frozenset[str] | None = None
    statistics: Mapping[str, StatisticSpec] = field(default_factory=dict)
    #: Statistics of plugins that a path cannot name as they are, each with the reason.
    unfit: Mapping[str, EnsembleError] = field(default_factory=dict)
    functions: frozenset[str] | None = None
    rules: frozenset[str] | None = None
    #: Names of what is under ``use:``.
    instances: frozenset[str] = frozenset()
    here: str = "."
    #: Texts of the files that this one names, and whether further ones may be read.
    attached: dict[str, str] = field(default_factory=dict)
    reads: bool = False
    #: Why the file is read, which decides whether code that it names is loaded.
    purpose: Purpose = "check"
    #: Words of rules, tables and functions, any of which may be the name of a parameter.
    spoken: frozenset[str] = frozenset()
    tables: dict[str, Table] = field(default_factory=dict)
    generators: dict[str, GeneratorSpec | None] = field(default_factory=dict)
    #: Job groups whose fields rules may change while the run is under way.
    changing: frozenset[str] = frozenset()


class Use(NamedTuple):
    """The options that an instance of an algorithm was given, at a path of the file, and their
    schema."""

    instance: str
    path: Path
    schema: Mapping[str, Any]
    given: Mapping[str, Any]


def cannot_be_built(what: str, error: Exception) -> EnsembleError:
    """The error for something of a plugin's that raises when it is built."""
    if isinstance(error, EnsembleError):
        return EnsembleError(
            f"{what} cannot be built: {error.what}", cause=error.cause, hint=error.hint
        )
    found = plugin_raised(f"{what} cannot be built", error)
    found.hint = f"your file may be correct; {found.hint}"
    return found


def nearest(name: str, names: Collection[str], cutoff: float = 0.5) -> str | None:
    """The name that may have been meant: one that differs in its capitals, or looks much alike."""
    alike = [other for other in names if other.lower() == name.lower()]
    return alike[0] if alike else closest(name, names, cutoff)


class Context:
    """One check: reports errors with their places, and answers what is known."""

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
        #: Whose doing parts of the document are, where they are not the user's; of those within
        #: that are, nobody's.
        self.made: dict[Path, str] = {}
        #: Instances of algorithms by name, their options, and their entries with all rules.
        self.instances: dict[str, AlgorithmInstance] = {}
        self.uses: list[Use] = []
        self.spelt_out: list[dict[str, Any]] = []
        #: The instance that a rule belongs to, by the rule's number.
        self.of_instance: dict[int, str] = {}
        self._broken: set[Path] = set()  # with every path around them
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
        """Report an error at the value of this path, or at ``where``. What is ``broken`` is not
        looked at again, lest it is reported twice."""
        if broken:
            self._broken.update(path[:length] for length in range(len(path) + 1))
        place = where or self.document.at(path)
        self.errors.append(UsageError(self._by(path) + what, where=place, hint=hint, code=code))

    def attach(self, error: EnsembleError, path: Path) -> None:
        """Report an error that does not know its place yet."""
        what = self._by(path) + error.what
        told = UsageError(what, cause=error.cause, hint=error.hint, code=error.code)
        place = self.document.at_end if isinstance(error, Unfinished) else self.document.at
        told.where = error.where or place(path)
        self.errors.append(told)

    def failed(self, path: Path, what: str, error: Exception) -> None:
        """Report what a plugin's function raised: an error that it tells, or a fault of its own."""
        told = error if isinstance(error, EnsembleError) else cannot_be_built(what, error)
        self.attach(told, path)

    def _by(self, path: Path) -> str:
        """Beginning of a message about a part that is a plugin's doing: whose; else empty."""
        for length in range(len(path), 0, -1) if self.made else ():
            whose = self.made.get(path[:length])
            if whose is not None:
                return f"{whose} made what is wrong: " if whose else ""
        return ""

    def intact(self, path: Path) -> bool:
        """True if the schema accepted the value at this path."""
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
        """Report a name that refers to nothing, with the nearest that does.

        ``what`` is said instead of "there is no …"; ``written`` is how a name stands in the file.
        """
        near = nearest(name, names)
        if near is not None:
            hint = f"did you mean {written.replace('NAME', near)}?"
        elif names:
            hint = f"known are {', '.join(sorted(names)[:15])}"
        else:
            hint = f"there are no {noun}s here"
        code = f"no-such-{noun.split()[-1]}"  # a job group's is that of a group
        self.report(path, what or f"there is no {noun} {name!r}", hint=hint, code=code, where=where)

    def named(
        self, record: TriggerPlugin | StatisticPlugin | ObserverPlugin | GeneratorPlugin, name: str
    ) -> str:
        """A plugin's record in a message, with the plugin where it is not built in."""
        kind = type(record).__name__.removesuffix("Plugin").lower()
        whose = self.registry.whose(record)
        return f"{kind} {name!r}" + (f" ({whose})" if whose else "")

    def duration(self, path: Path, value: object, above: float | None = None) -> float | None:
        """The value in seconds; ``None`` if it is no duration (``above`` so many), which is
        reported."""
        try:
            found = seconds(value)
        except EnsembleError as error:
            self.attach(error, path)
            return None
        if above is None or found > above:
            return found
        what = f"{path[-1]!r} is {value!r}, it must be more than {above}"
        self.report(path, what, code="out-of-range")
        return None

    def build(self, path: Path, what: str, function: Callable[[], Any]) -> Any:
        """Call a plugin's function; what it raises is reported. ``None`` if it raised."""
        try:
            return function()
        except Exception as error:  # a plugin's fault, which must not be shown as a crash of ours
            self.failed(path, what, error)
        return None

    # -- what is known -------------------------------------------------------------------------

    def group(self, name: object, path: Path) -> bool:
        """True if there is such a job group; reported if not."""
        if not isinstance(name, str):
            return False
        if name not in self.known.groups:
            self.unknown(path, "job group", name, list(self.known.groups))
            return False
        return True

    def generator(self, name: object, path: Path) -> bool:
        """True if there is such a generator; reported if not."""
        if isinstance(name, str) and name not in self.known.generators:
            self.unknown(path, "generator", name, list(self.known.generators))
        return name in self.known.generators

    def parameters(self, group: str | None) -> set[str]:
        """Names of sweep parameters of the group, or of any group."""
        if group is None and self.known.parameters is not None:
            return set(self.known.parameters)
        return {name for known in self._groups(group) if known for name in known.names}

    def variables(self, group: str | None) -> frozenset[str] | None:
        """The fields that observers of the group (or of any) can yield; ``None``: not known."""
        found: set[str] = set()
        for observer in self._observers(group):
            names = observer and self._yields(*observer)
            if names is None:
                return None
            found |= names
        return frozenset(found)

    def results(self, group: str | None) -> set[str]:
        """Names that the ``result`` of the group has, or of any group."""
        return {name for known in self._groups(group) if known for name in known.result}

    def scoped_variables(self, group: str | None) -> set[str] | None:
        """Names that ``STAT.NAME`` may have in jobs of the group (or of any): columns, results, how
        long attempts ran; ``None``: not known."""
        variables = self.variables(group)
        return None if variables is None else {*variables, *self.results(group), "duration"}

    def observed(self, group: str | None, name: str | None = None) -> bool:
        """True if the group (or any) has this observer, or any, as far as can be known."""
        return any(
            observer is None or name in (None, observer[0].name)
            for observer in self._observers(group)
        )

    def prints_rows(self, group: str | None) -> bool:
        """True if an observer of the group (or of any) keeps its rows, as far as can be known."""
        return any(each is None or each[1].get("rows") for each in self._observers(group))

    def why_not(self, group: str | None, name: str) -> str | None:
        """``None`` if an observer of the group (or of any) yields this variable, or may. Else what
        would make one yield it; empty if nothing would."""
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
        """True if an observer could yield this field with other options, and none does with these;
        reported if so."""
        hint = self.why_not(group, name)
        if not hint:
            return False
        whose = "any job group" if group is None else f"the job group {group!r}"
        self.report(
            path,
            f"no observer of {whose} yields {name!r} with the options that it has",
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
        except Exception:  # a plugin that cannot say what it leaves out: then nothing is checked
            return None

    def _yields(self, record: ObserverPlugin, options: Mapping[str, Any]) -> frozenset[str] | None:
        """The fields that an observer can yield with these options; ``None``: not known."""
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
        """The names that a plugin says with these options; ``None`` where it cannot, which leaves
        what speaks of them unchecked: there is a warning of that."""
        try:
            said: object = function(options)
            if said is None:
                return None
            if not isinstance(said, Collection) or isinstance(said, (str, bytes)):
                raise TypeError(f"{said!r:.80}, expected a set of names")
            wrong = [name for name in said if not isinstance(name, str)]
            if wrong:
                raise TypeError(f"{wrong[0]!r:.80} is no name")
            return frozenset(said)
        except Exception as error:  # a plugin that cannot say what it yields
            place = raised_at(error)
            if place.startswith("ensemble_core/"):
                place = written_at(function)
            told = str(error) if isinstance(error, TypeError) else repr(error)
            self.warnings.append(
                f"{shown} cannot be used, so names of values are not checked: {told}"
                + (f" ({place})" if place else "")
            )
            return None

    def _groups(self, group: str | None) -> Iterable[JobGroup | None]:
        return self.known.groups.values() if group is None else [self.known.groups.get(group)]

    def _observers(
        self, group: str | None
    ) -> Iterator[tuple[ObserverPlugin, Mapping[str, Any]] | None]:
        """The observers of the group (or of all) with their options; ``None`` for those of a group
        that has errors."""
        for known in self._groups(group):
            if known is None:
                yield None
                continue
            for name, options in known.observe.items():
                yield self.registry.observers[name], options

    def metric(self, text: str, path: Path) -> MetricPath | None:
        """The metric's checked path; reported if it can never exist."""
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
            hint = f"give the job group an observer ('observe:'), or use {' or '.join(VARIABLES)}"
        self.report(
            path,
            f"no metric {text!r} can ever exist: nothing yields {found.variable!r} "
            f"for the job group {found.group!r}",
            hint=hint,
            code="no-such-metric",
        )
        return None

    def _of_generator(self, text: str, path: Path) -> bool:
        """True but for a gauge of a generator, or of an objective, that is not there; reported."""
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
            # A path names its group after a dot; the nearest of very many paths costs seconds.
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
        """Why there can be none of the statistic that this path names. Our own are not tried, lest
        what they import makes every check slow."""
        spec = self.known.statistics.get(path.statistic)
        error = spec.fault() if spec is not None and spec.plugin else None
        return None if error is None else cannot_be_built(str(spec), error)
