"""Loads an ensemble file: checks it and turns it into an immutable :class:`Ensemble`.

Precedence of a value, the strongest last: default (``ensemble.schema.json``); profile of the site,
then of the user (``read_profile`` in ``config.profile``); file (``apply_profile`` there fills in
only what the file does not say); ``--set`` (``apply`` in ``config.overrides``). For the executor
and its options: ``session.executor_choice`` (``profile_options``, ``read_options``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

from ensemble_core.config.action_entries import MatchContext, bind_action
from ensemble_core.config.algorithm_instances import check_uses, expand_uses, expanded_data
from ensemble_core.config.context import Context, Known
from ensemble_core.config.custom_source import functions_of, source_of
from ensemble_core.config.document import Document, Path, plain
from ensemble_core.config.file_text import read_file
from ensemble_core.config.group_changes import change_group
from ensemble_core.config.group_entries import make_group
from ensemble_core.config.job_options import convert_options
from ensemble_core.config.job_sources import expand_sources
from ensemble_core.config.limits import bind_limits, check_uses_of_limits, live_limits
from ensemble_core.config.outputs_and_discard import warn_of_shared_files
from ensemble_core.config.overrides import apply
from ensemble_core.config.pilots import bind_pilots
from ensemble_core.config.placeholder_check import TEXTS, words_of
from ensemble_core.config.profile import Profile, apply_profile
from ensemble_core.config.resolved_values import ResolvedValue, resolved_values
from ensemble_core.config.result_and_retry_entries import bind_fail_if, bind_result, bind_retry
from ensemble_core.config.rule_entries import bind_rule
from ensemble_core.config.rule_warnings import actions_of, warn_of_mistakes, warn_of_rows_meant
from ensemble_core.config.schema import Validators
from ensemble_core.config.schema_check import check_shape
from ensemble_core.config.startup_check import check_can_start
from ensemble_core.config.statistic_entries import bind_statistics
from ensemble_core.config.sweeps import check_functions
from ensemble_core.config.table_entries import bind_tables
from ensemble_core.config.yaml_reader import read_document
from ensemble_core.errors import EnsembleError, FileErrors, closest
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.store import parse_path
from ensemble_core.model.ensemble import Binder, Ensemble
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.rules import BoundRule
from ensemble_core.plugin.discovery import use_registry
from ensemble_core.plugin.hookspecs import ExecutorPlugin
from ensemble_core.plugin.registry import Registry, canonical_names
from ensemble_core.plugin.untrusted_code import Purpose
from ensemble_core.quick_dataclass import replace

if TYPE_CHECKING:
    from ensemble_core.model.generators import GeneratorSpec

_T = TypeVar("_T")

#: Keys whose values are names that plugins register, by section of the file.
_NAMING = {
    "jobs": ("executor", "observe"),
    "rules": ("trigger", "name"),
    "statistics": ("statistic",),
    "generators": ("use",),
}

#: Default heartbeat interval in seconds, if rules need heartbeats.
_HEARTBEAT = 60.0


def load(
    path: str | os.PathLike[str],
    registry: Registry,
    *,
    executor: ExecutorPlugin | None = None,
    options: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    must_begin: bool = False,
    profile: Profile | None = None,
) -> Ensemble:
    """Read and check an ensemble file.

    - ``executor``: if given, the file may use only capabilities of this executor.
    - ``options``: the executor's options; groups that can never run with them are rejected.
    - ``overrides``: changes of the form ``KEY=VALUE``, as in ``--set``.
    - ``must_begin``: reject a file if no rule and no generator can act before the first job.
    - ``profile``: defaults of job groups and limits.

    Raises :class:`FileErrors` with all errors of the file, or :class:`UsageError` if the file
    cannot be read.
    """
    return load_text(
        read_file(path),
        registry,
        file=os.fspath(path),
        executor=executor,
        options=options,
        overrides=overrides,
        must_begin=must_begin,
        profile=profile,
    )


def load_text(
    text: str,
    registry: Registry,
    *,
    file: str = "ensemble.yaml",
    executor: ExecutorPlugin | None = None,
    options: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    attached: Mapping[str, str] | None = None,
    functions: Collection[str] = (),
    here: str | None = None,
    must_begin: bool = False,
    purpose: Purpose = "check",
    profile: Profile | None = None,
    is_named: bool = True,
) -> Ensemble:
    """Check the text of an ensemble file. See :func:`load`.

    - ``file``: the name of the file in messages; empty if the text comes from a mapping in Python.
    - ``here``: the folder of the file.
    - ``attached``: the texts of the files that ``text`` names, or ``None`` to read these files.
    - ``functions``: functions that are available in addition to those under ``custom:``.
    - ``purpose``: why the file is loaded; decides whether classes that it names are loaded.
    - ``is_named``: whether the user or the profile named the executor.
    """
    with use_registry(registry):
        context, whole = _expand_file(text, registry, file, executor, overrides, attached, here)
        context.known.purpose, context.known.options = purpose, options
        context.known.is_named = is_named
        if whole:
            apply_profile(context, profile)
            if context.document.data.get("generators"):
                from ensemble_core.config.generator_entries import give_parameters

                give_parameters(context.document.data)
            check_shape(context)
            ensemble = _Loader(context, file, frozenset(functions), must_begin).load()
        _raise(context)
    return ensemble


def expanded(
    text: str,
    registry: Registry,
    *,
    file: str = "ensemble.yaml",
    overrides: Sequence[str] = (),
    attached: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the data of an equivalent ensemble file without references to sources and algorithms.

    Sources under ``jobs:`` are replaced by the groups and rules that they create, and algorithms
    under ``use:`` by their rules. Raises :class:`FileErrors` for an invalid file.
    """
    context, _ = _expand_file(text, registry, file, None, overrides, attached, None)
    _raise(context)
    return expanded_data(context)


def resolved(
    text: str,
    registry: Registry,
    *,
    file: str = "ensemble.yaml",
    overrides: Sequence[str] = (),
    attached: Mapping[str, str] | None = None,
    profile: Profile | None = None,
) -> list[ResolvedValue]:
    """Return the limits and fields of job groups of a valid file, each with its source."""
    context, _ = _expand_file(text, registry, file, None, overrides, attached, None)
    _raise(context)
    apply_profile(context, profile)
    return list(resolved_values(context.document))


def _expand_file(
    text: str,
    registry: Registry,
    file: str,
    executor: ExecutorPlugin | None,
    overrides: Sequence[str],
    attached: Mapping[str, str] | None,
    here: str | None,
) -> tuple[Context, bool]:
    """Return the file with all entries expanded but not checked, and whether the expansion
    succeeded.

    If an entry cannot be expanded, the error is reported. Names that the entry defines may then be
    missing.
    """
    document = read_document(text, file)
    document.by_path = not file
    if not isinstance(document.data, dict):
        found = "a list" if isinstance(document.data, list) else "a single value"
        what = f"the file is {found}, expected a mapping with 'jobs' and 'rules'"
        raise FileErrors([EnsembleError(what, where=document.at(()), code="wrong-type")])
    unset = apply(document, overrides)
    known = Known(
        here=os.path.abspath(here or os.path.dirname(file)),
        attached=dict(attached or {}),
        reads=attached is None,
    )
    context = Context(document, Validators(registry), executor, known)
    expand_sources(context)
    if not context.errors:
        expand_uses(context)
    whole = not context.errors
    for part, keys in _NAMING.items():
        canonical_names(document.data.get(part), registry, keys)
    for change, error in apply(document, unset).items():  # the expansion may have added the keys
        # ``use`` is already expanded.
        context.errors.append(unset[change] if change.startswith("use.") else error)
    known.words_in_use = _words_in_use(document.data)
    return context, whole


def _raise(context: Context) -> None:
    if context.errors:
        distinct = {(error.where, error.what): error for error in context.errors}
        raise FileErrors(distinct.values())


#: A placeholder in one of these keys may be a parameter of a group with errors.
_TEXT_KEYS = ("command", "environment", *TEXTS)
_PLACEHOLDER = late_pattern(r"\{(\w+)")

#: Keys of a job group that use parameters only through placeholders.
_SILENT = frozenset(
    {"name", "command", "environment", "parameters", "points", "observe", "options", *TEXTS}
)


def _words_in_use(data: Mapping[str, Any]) -> frozenset[str]:
    """Return the words in all sections, without keys of groups that use only placeholders.

    A parameter whose name is one of them is used.
    """
    apart = ("jobs", "pilots", "simulate")
    parts: list[Any] = [value for key, value in data.items() if key not in apart]
    for group in _entries(data.get("jobs")):
        if isinstance(group, dict):
            parts += [value for key, value in group.items() if key not in _SILENT]
    return frozenset(words_of(parts))


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


class _Loader:
    """Builds the ensemble section by section. Each section comes after those that it refers to."""

    def __init__(
        self, context: Context, file: str, functions: frozenset[str], must_begin: bool
    ) -> None:
        self._context = context
        self._must_begin = must_begin
        self._functions = functions
        self._data: dict[str, Any] = context.document.data
        self._file = file

    def load(self) -> Ensemble:
        context, data = self._context, self._data
        # Each section can use names that the earlier ones define.
        bind_statistics(context, data.get("statistics"))
        bind_pilots(context, data.get("pilots"))
        groups = self._groups()
        tables = bind_tables(context, data.get("results"))
        found = source_of(context)
        source, beside = found or ("", None)
        if found is not None or data.get("custom") is None:
            own = functions_of(context, source, beside)
            context.known.functions = None if own is None else own | self._functions
        check_functions(context, enumerate(_entries(data.get("jobs"))))
        generators: Mapping[str, GeneratorSpec] = {}
        if data.get("generators"):
            from ensemble_core.config.generator_entries import bind_generators

            generators = bind_generators(context, data["generators"])
        context.known.changing = frozenset(self._changed_groups(data.get("rules")))
        rules = self._rules()
        logging = data.get("logging")
        limits = bind_limits(context, data.get("limits"), groups.values())
        check_uses_of_limits(context, data.get("jobs"), data.get("limits"))
        heartbeat = self._heartbeat(logging if isinstance(logging, dict) else {}, rules)
        if not context.errors:
            warn_of_mistakes(context, rules, heartbeat=heartbeat > 0)
            if self._must_begin:
                check_can_start(context, rules, heartbeat=heartbeat > 0)
        if not context.errors:
            context.warnings += warn_of_shared_files(groups.values(), context.registry.observers)
        name = data.get("name")
        return Ensemble(
            name=name if isinstance(name, str) else FilePath(self._file).stem or "ensemble",
            groups=groups,
            rules=tuple(rules),
            statistics=context.known.statistics,
            binder=_binder(context),
            tables=tables,
            environments={n: each.wrap for n, each in context.registry.environments.items()},
            instances=context.instances,
            generators=generators,
            limits=limits,
            kinds=context.known.kinds,
            on_stop=data.get("on_stop") if context.is_valid(("on_stop",)) else None,
            heartbeat=heartbeat,
            debug=isinstance(logging, dict) and logging.get("debug") is True,
            custom=source,
            attached=dict(context.known.attached),
            functions=context.known.functions or frozenset(),
            file=self._file,
            warnings=tuple(dict.fromkeys(context.warnings)),
        )

    def _groups(self) -> dict[str, JobGroup]:
        context = self._context
        seen: dict[str, Path] = {}
        groups: dict[str, JobGroup] = {}
        entries: dict[str, list[tuple[Path, Mapping[str, Any]]]] = {}
        for index, spec in enumerate(_entries(self._data.get("jobs"))):
            if not isinstance(spec, dict):
                continue
            path: Path = ("jobs", index)
            name = spec.get("name")
            group = make_group(context, path, spec)
            if not isinstance(name, str):
                # The misspelt key has been reported; rules that name the group are not wrong.
                meant = spec.get(closest("name", spec))
                if isinstance(meant, str):
                    context.known.groups.setdefault(meant, None)
                continue
            first = context.known.groups.get(name)
            if name in seen:
                context.warnings.append(
                    f"{context.document.at((*path, 'name'))}: duplicate job group {name!r} "
                    f"(first at {context.document.at(seen[name])}): a submit includes both"
                )
                if group is not None and first is not None:
                    group = replace(first, more=(*first.more, group))
            seen.setdefault(name, (*path, "name"))
            context.known.groups[name] = group
            if group is None:
                names = context.known.faulty.setdefault(name, set())
                for given in (spec.get("parameters"), spec.get("result")):
                    names.update(given if isinstance(given, dict) else ())
                names.update(_PLACEHOLDER.findall(str([spec.get(key) for key in _TEXT_KEYS])))
            else:
                groups[name] = group
                entries.setdefault(name, []).append((path, spec))
        # These keys can name columns of any group, so all groups are checked before.
        for add in (bind_result, bind_fail_if, bind_retry):
            for name, group in groups.items():
                parts = (group, *group.more)
                done = [
                    add(context, *where, replace(part, more=()))
                    for where, part in zip(entries[name], parts, strict=False)
                ]
                first = replace(done[0], more=tuple(done[1:]))
                reads = frozenset().union(*(part.reads for part in done))
                groups[name] = context.known.groups[name] = replace(first, reads=reads)
        context.known.parameters = frozenset(context.parameters(None))
        return groups

    def _changed_groups(self, value: Any) -> Iterator[str]:
        """Yield the groups that actions in this section of the file change."""
        if isinstance(value, dict):
            record = self._context.registry.actions.get(str(value.get("name")))
            kinds = (
                {
                    schema.get("x-ensemble"): value.get(key)
                    for key, schema in record.options.get("properties", {}).items()
                }
                if record is not None and "submit" not in record.needs
                else {}
            )
            group = kinds.get("group")
            if "fields" in kinds and isinstance(group, str):
                yield group
            value = list(value.values())
        for inner in value if isinstance(value, list) else ():
            yield from self._changed_groups(inner)

    def _report_duplicate(self, path: Path, noun: str, name: str, first: Path) -> None:
        place = self._context.document.at(first)
        where = f"; the first is at {place}" if place else ""
        self._context.report(
            path,
            f"duplicate {noun} {name!r}{where}",
            hint="rename one of them",
            code="duplicate-name",
        )

    def _rules(self) -> list[BoundRule]:
        context = self._context
        entries = _entries(self._data.get("rules"))
        places: dict[str, Path] = {}
        ids: list[str] = []
        for index, spec in enumerate(entries):
            given = spec.get("id") if isinstance(spec, dict) else None
            ids.append(given if isinstance(given, str) else f"rule-{index + 1}")
            path: Path = ("rules", index, "id") if isinstance(given, str) else ("rules", index)
            if ids[-1] in places:
                later = path if isinstance(given, str) else places[ids[-1]]
                first = places[ids[-1]] if later is path else path
                self._report_duplicate(later, "rule", ids[-1], first)
            places.setdefault(ids[-1], path)
        context.known.rules = frozenset(ids)
        wrong, bound = check_uses(context), list[BoundRule]()
        for index, spec in enumerate(entries):
            instance = context.of_instance.get(index)
            if not isinstance(spec, dict) or instance in wrong:
                continue
            rule = bind_rule(context, ("rules", index), spec, ids[index])
            if rule is not None:
                warn_of_rows_meant(context, ("rules", index), rule)
                bound.append(rule if instance is None else replace(rule, instance=instance))
        return bound

    def _heartbeat(self, logging: Mapping[str, Any], rules: Sequence[BoundRule]) -> float:
        context = self._context
        path: Path = ("logging", "heartbeat")
        if "heartbeat" in logging and context.is_valid(path):
            given = context.duration(path, logging["heartbeat"])
            if given is None or given > 0:
                return given or 0.0
        actions = context.registry.actions
        if any("resize" in actions[action.name].needs for action in actions_of(rules)):
            return _HEARTBEAT
        needed = self._heartbeat_reason(rules)
        if needed is not None:
            if "heartbeat" in logging:
                context.report(
                    path,
                    f"the heartbeat is off, but a rule {needed}",
                    hint="set 'heartbeat' to a positive number of seconds, or remove the rule",
                    code="no-heartbeat",
                )
            return _HEARTBEAT
        return 0.0

    def _heartbeat_reason(self, rules: Sequence[BoundRule]) -> str | None:
        """Describe what needs heartbeats in a rule, or return ``None`` if no rule needs them."""
        known = self._context.known
        for rule in rules:
            if "heartbeat" in rule.trigger.events:
                return "has the trigger 'heartbeat'"
            for text in rule.metrics:
                path = parse_path(text, known.groups, known.statistics)
                if path.kind == "series" and not path.group:
                    return f"uses {text!r}, which is sampled at each heartbeat"
        return None


def _binder(context: Context) -> Binder:
    """Return the functions that check specifications that arrive during the run."""
    known = replace(context.known, rules=None, reads=False)
    #: For each group, the last change of its fields, and the result: rules often repeat it.
    last: dict[str, tuple[JobGroup, str, JobGroup]] = {}

    def changed(group: JobGroup, fields: Mapping[str, Any]) -> JobGroup:
        before, given, found = last.get(group.name, (None, "", group))
        written = repr(fields)  # 1, 1.0 and true are equal, but not the same value of a parameter
        if group is not before or written != given:
            found = checked(
                "job-fields", fields, lambda inner, data: change_group(inner, (), group, data)
            )
            last[group.name] = group, written, found
        return found

    def checked(part: str, spec: object, bind: Callable[[Context, Any], _T | None]) -> _T:
        inner = Context(Document(plain(spec)), context.validators, context.executor, known)
        data = inner.document.data
        if part in ("rule", "action"):
            canonical_names(data, inner.registry, _NAMING["rules"])
        elif isinstance(data, dict) and "options" in data:
            data["options"] = convert_options(inner.registry, data["options"])
        check_shape(inner, part)
        bound = bind(inner, data) if isinstance(data, dict) else None
        if inner.errors:
            first = inner.errors[0]
            raise EnsembleError(
                "; ".join(dict.fromkeys(error.what for error in inner.errors)),
                cause=first.cause,
                hint=first.hint,
                code=first.code,
            )
        if bound is None:
            raise EnsembleError(
                f"the {part} is not complete",
                code=f"bad-{part}" if part in ("rule", "action") else "bad-fields",
            )
        return bound

    return Binder(
        rule=lambda spec, default_id: checked(
            "rule", spec, lambda inner, data: bind_rule(inner, (), data, default_id)
        ),
        action=lambda spec: checked(
            "action", spec, lambda inner, data: bind_action(inner, (), data, MatchContext())
        ),
        group=changed,
        options=lambda options: checked(
            "job-fields", {"options": options}, lambda inner, data: data
        ),
        settings=lambda group, fields: checked(
            "group-fields", fields, lambda inner, data: change_group(inner, (), group, data)
        ),
        limits=lambda limits, groups: checked(
            "live-limits", limits, lambda inner, data: live_limits(inner, data, groups)
        ),
    )
