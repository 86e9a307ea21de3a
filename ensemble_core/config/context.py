"""Shared state of the checks of one file: the document, what is known, and what went wrong.

Made by the loader for a file, and by the binder for a specification that arrives while a run is
under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ensemble_core.config.document import Document, Path
from ensemble_core.config.explain import explain
from ensemble_core.config.schema import Validators
from ensemble_core.errors import EnsembleError, Location, PluginError, UsageError, raised_at
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.metrics.store import VARIABLES, MetricPath, parse_path
from ensemble_core.model.jobs import JobGroup
from ensemble_core.plugin.hookspecs import ExecutorPlugin, ObserverPlugin
from ensemble_core.plugin.registry import Registry

__all__ = ["Context", "Known", "cannot_be_built"]

_MANY = 50


@dataclass(slots=True)
class Known:
    """What names may refer to. A group that is ``None`` is there, but has errors of its own.

    ``functions`` and ``rules`` ``None`` mean that any name may be right. Of ``unfit`` statistics
    the cause says what is wrong; ``NAME`` in the hint stands for the path without its first word.
    """

    groups: dict[str, JobGroup | None] = field(default_factory=dict)
    statistics: Mapping[str, StatisticSpec] = field(default_factory=dict)
    #: Statistics of plugins that a path cannot name as they are, each with the reason.
    unfit: Mapping[str, EnsembleError] = field(default_factory=dict)
    functions: frozenset[str] | None = None
    rules: frozenset[str] | None = None
    here: str = "."


def cannot_be_built(what: str, error: Exception) -> EnsembleError:
    """What to tell of something of a plugin's that is asked for and raises when it is built."""
    if isinstance(error, EnsembleError):
        return EnsembleError(
            f"{what} cannot be built: {error.what}", cause=error.cause, hint=error.hint
        )
    place = raised_at(error)
    cause = f"{type(error).__name__}: {error}"[:300] + (f" ({place})" if place else "")
    return EnsembleError(f"{what} cannot be built", cause=cause, code="plugin-failed")


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
        self._broken: set[Path] = set()  # with every path around them
        self._paths: dict[str, MetricPath | EnsembleError] = {}

    # -- errors --------------------------------------------------------------------------------

    def check_shape(self, part: str = "") -> None:
        """Report what is wrong with the document by the schema, or by one of its ``$defs``."""
        try:
            found = list(self.validators.errors(self.document.data, part))
        except (ValueError, UnicodeError) as error:
            # jsonschema_rs refuses data that JSON cannot hold before it looks at any of it.
            self.report((), f"this cannot be checked: {error}", code="bad-value")
            return
        for one in found:
            for path, told in explain(one, self.document, self.validators):
                self._broken.update(path[:length] for length in range(len(path) + 1))
                self.errors.append(told)

    def report(
        self,
        path: Path,
        what: str,
        *,
        hint: str | None = None,
        code: str,
        where: Location | None = None,
    ) -> None:
        """Report an error at the value of this path, or at ``where``."""
        place = where or self.document.at(path)
        self.errors.append(UsageError(what, where=place, hint=hint, code=code))

    def attach(self, error: EnsembleError, path: Path) -> None:
        """Report an error that does not know its place yet."""
        self.errors.append(
            UsageError(
                error.what,
                where=error.where or self.document.at(path),
                cause=error.cause,
                hint=error.hint,
                code=error.code,
            )
        )

    def intact(self, path: Path) -> bool:
        """Whether the schema had nothing to say of the value at this path."""
        return path not in self._broken

    def unknown(self, path: Path, noun: str, name: str, names: Collection[str], code: str) -> None:
        """Report a name that refers to nothing, with the nearest that does."""
        near = get_close_matches(name, names, 1, 0.5)
        if near:
            hint = f"did you mean {near[0]!r}?"
        elif names:
            hint = f"known are {', '.join(sorted(names)[:15])}"
        else:
            hint = f"there are no {noun}s here"
        self.report(path, f"there is no {noun} {name!r}", hint=hint, code=code)

    def build(self, path: Path, what: str, function: Callable[[], Any]) -> Any:
        """Call a plugin's function; what it raises is reported. ``None`` if it raised."""
        try:
            return function()
        except EnsembleError as error:
            self.attach(error, path)
        except Exception as error:  # a plugin's fault, which must not be shown as a crash of ours
            self.attach(
                PluginError(f"{what} failed", cause=f"{type(error).__name__}: {error}"[:300]), path
            )
        return None

    # -- what is known -------------------------------------------------------------------------

    def group(self, name: object, path: Path) -> bool:
        """Whether there is such a job group; reported if not."""
        if not isinstance(name, str):
            return False
        if name not in self.known.groups:
            self.unknown(path, "job group", name, list(self.known.groups), "no-such-group")
            return False
        return True

    def parameters(self, group: str | None) -> set[str]:
        """Names of sweep parameters of the group, or of any group."""
        return {name for known in self._groups(group) if known for name in known.parameters}

    def variables(self, group: str | None) -> frozenset[str] | None:
        """What observers of the group (or of any) can yield; ``None``: it cannot be known."""
        found: set[str] = set()
        for known in self._groups(group):
            if known is None:
                return None
            for name, options in known.observe.items():
                names = self._yields(self.registry.observers[name], options)
                if names is None:
                    return None
                found |= names
        return frozenset(found)

    def observed(self, group: str | None, observer: str | None = None) -> bool:
        """Whether the group (or any) has this observer, or any, as far as can be known."""
        records = self.registry.observers
        return any(
            known is None or any(observer in (None, records[name].name) for name in known.observe)
            for known in self._groups(group)
        )

    def can_yield(self, group: str | None, name: str) -> bool:
        """Whether an observer of the group (or of any) can yield this variable, or may."""
        for known in self._groups(group):
            if known is None:
                return True
            for observer, options in known.observe.items():
                record = self.registry.observers[observer]
                if self._unasked(record, options, name) is not None:
                    continue
                names = self._yields(record, options)
                if names is None or name in names:
                    return True
        return False

    def how_to_yield(self, group: str | None, name: str) -> str | None:
        """What would make an observer of the group (or of any) yield this variable, if one could
        with other options."""
        for known in self._groups(group):
            for observer, options in known.observe.items() if known else ():
                hint = self._unasked(self.registry.observers[observer], options, name)
                if hint is not None:
                    return hint
        return None

    def left_out(self, name: str, group: str | None, path: Path) -> bool:
        """Whether an observer could yield this field with other options, and none does with these;
        reported if so."""
        if self.can_yield(group, name):
            return False
        hint = self.how_to_yield(group, name)
        if hint is None:
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
        """What an observer can yield with these options; ``None``: it cannot be known."""
        if record.variables is None:
            return None
        whose = self.registry.whose(record)
        shown = f"observer {record.name!r}" + (f" ({whose})" if whose else "")
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
            told = str(error) if isinstance(error, TypeError) else repr(error)
            self.warnings.append(
                f"{shown} cannot be used, so names of values are not checked: {told}"
                + (f" ({place})" if place and not place.startswith("ensemble_core/") else "")
            )
            return None

    def _groups(self, group: str | None) -> Iterable[JobGroup | None]:
        if group is None:
            return self.known.groups.values()
        return [self.known.groups.get(group)]

    def metric(self, text: str, path: Path) -> MetricPath | None:
        """The metric's checked path; reported if it can never exist."""
        found = self._paths.get(text)
        if found is None:
            found = self._paths[text] = self._parse(text)
        if isinstance(found, EnsembleError):
            self.attach(found, path)
            return None
        base = found.variable.partition(".")[0]
        if found.kind != "series" or base in VARIABLES:
            return found
        variables = self.variables(found.group)
        if self.can_yield(found.group, found.variable):
            return found
        variables = variables or frozenset()
        near = get_close_matches(found.variable, [*VARIABLES, *variables], 1, 0.5)
        asked = self.how_to_yield(found.group, found.variable)
        if asked is not None:
            hint = asked
        elif near:
            hint = f"did you mean '{found.statistic}.{found.group}-{near[0]}'?"
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

    def _parse(self, text: str) -> MetricPath | EnsembleError:
        groups: Collection[str] = self.known.groups
        if len(groups) > _MANY:
            # A path has its group's name in it; the nearest of very many paths costs seconds.
            inside = [group for group in groups if group in text]
            groups = inside or get_close_matches(text, groups, 5, 0.3)
        head, _, rest = text.partition(".")
        unfit = self.known.unfit.get(head)
        try:
            if unfit is None:
                found = parse_path(text, groups, self.known.statistics)
                return self._built(found) or found
            parse_path(text, groups, {head})
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
