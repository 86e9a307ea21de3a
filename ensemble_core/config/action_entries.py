"""Checks the actions of rules: their options, and what they need from the trigger and the executor.

The annotation ``x-ensemble`` of an option in the action's schema says how to check the option.
Actions of plugins can use the same annotations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.group_changes import change_group, check_merge, known_at_load
from ensemble_core.config.group_entries import check_used, restore_spelling
from ensemble_core.config.placeholder_check import report_unfilled, report_unpaired
from ensemble_core.config.schema import option_defaults
from ensemble_core.config.statistic_names import Over, check_rows, scoped_names
from ensemble_core.config.switch_targets import check_learns, check_switch_target
from ensemble_core.errors import EnsembleError, closest, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.store import AWAY, BACKLOG, GAUGES, GENERATOR, is_gauge
from ensemble_core.model.expressions import EVENT_FIELDS, check_names, expression
from ensemble_core.model.filters import ALL
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import JOB_FIELDS
from ensemble_core.model.placeholders import (
    FIELD_PLACEHOLDER,
    format_value,
    is_format,
    metric_path,
    other_braces,
    placeholders,
    unpaired_braces,
)
from ensemble_core.model.rules import BoundAction, BoundSpec
from ensemble_core.model.tables import table_column
from ensemble_core.plugin.hookspecs import ActionPlugin
from ensemble_core.plugin.untrusted_code import check_class

#: Valid names of environment variables.
_VARIABLE = late_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
#: Valid mail addresses, including local users. No valid address looks like an option of sendmail.
_MAIL = late_pattern(r"[^-\s\x00-\x1f\x7f,;:<>\"'()\[\]\\][^\s\x00-\x1f\x7f,;:<>\"'()\[\]\\]*")
#: A name, or the path of a metric, in other text.
_NAME = late_pattern(r"[A-Za-z_]\w*(?:\.\w+(?:-\w+)*)*")
_QUOTE = late_pattern(r"[\"']")
#: First parts of the paths of gauges.
_GAUGES = frozenset(path.partition(".")[0] for path in (*GAUGES, BACKLOG, AWAY, GENERATOR))
#: Keys of an action that are not options.
ACTION_KEYS = frozenset({"name", "repetitions", "backoff", "on_error"})


class MatchContext(NamedTuple):
    """Facts about a rule's trigger that limit what the rule's actions can use."""

    #: Name of the trigger, for messages.
    trigger: str = ""
    #: Whether the event can have a job of this run.
    job: bool = True
    #: Fields of the event, or ``None`` if unknown.
    names: Collection[str] | None = None
    #: Fields of the event that do not depend on observers.
    own: Collection[str] = ()
    #: Whether the event is a row that an observer read from a job's output.
    observed: bool = False
    #: Group of the event's job (``None``: any group).
    group: str | None = None
    #: Groups whose jobs a statistic ``STAT.NAME`` may cover.
    over: Over = (None,)
    #: Parameters in the rule's ``each``.
    slices: tuple[str, ...] = ()
    #: Whether ``STAT.NAME`` covers only the event's job.
    of_job: bool = False
    #: Whether the rule can fire after the run has ended.
    ends: bool = False

    def knowing(self, names: Collection[str]) -> MatchContext:
        """Return the same context with additional fields."""
        if not names:
            return self
        known = None if self.names is None else {*self.names, *names}
        return self._replace(names=known, own={*self.own, *names})


def bind_action(
    context: Context, path: Path, spec: Mapping[str, Any], matched: MatchContext
) -> BoundAction | None:
    """Return the checked action.

    Return ``None`` if the action's name is unknown or if the action violates the schema.
    """
    name = spec.get("name")
    if not isinstance(name, str) or name not in context.registry.actions:
        return None
    record = context.registry.actions[name]
    check_capabilities(context, (*path, "name"), name, record)
    if matched.ends and not record.options.get("x-ensemble-at-end"):
        actions = context.registry.actions
        able = [each for each in actions if actions[each].options.get("x-ensemble-at-end")]
        context.report(
            (*path, "name"),
            f"the action {name!r} is not possible after the end of the run",
            hint=f"with the trigger {matched.trigger!r}, use one of these actions: "
            f"{', '.join(sorted(able))}",
            code="after-end",
        )
    given = {key: copy.deepcopy(value) for key, value in spec.items() if key not in ACTION_KEYS}
    if not _check_job(context, path, name, record, spec, matched):
        matched = matched._replace(names=None)  # avoid follow-up errors
    check = OptionCheck(context, record.options, _with_rows(context, record, given, matched))
    options = check.options(path, given)
    _check_values(context, path, record, given, check.group)
    if "submit" in record.needs:
        _check_submitted(context, record, check.group)
    if not context.is_valid(path):
        return None
    return BoundAction(
        name=name,
        options=options,
        plan=record.plan,
        metrics=frozenset(check.metrics),
        reads=frozenset(check.reads),
        metric_names=frozenset(check.metric_names),
        submits=record.plan is None or name == "custom" or "submit" in record.needs,
        retries=record.options.get("x-ensemble-retries") is True,
        resizes="resize" in record.needs,
        varies=_varied_groups(context, record, given, check.group, matched),
        nested=tuple(check.nested),
        messages=tuple(place[len(path) :] for place in check.messages),
        tolerated=spec.get("on_error") == "warn",
    )


def _with_rows(
    context: Context, record: ActionPlugin, given: Mapping[str, Any], matched: MatchContext
) -> MatchContext:
    """Return the context extended by the columns of the table in the action's option ``rows``."""
    properties = record.options.get("properties", {})
    named = [value for key, value in given.items() if _annotation(properties.get(key)) == "rows"]
    if named == ["job"]:
        return matched._replace(names=None)
    text = named[0] if named and isinstance(named[0], str) else ""
    table = context.known.tables.get(text.partition("(")[0].removeprefix(ALL))
    return matched if table is None else matched.knowing(table.row_names)


def _varied_groups(
    context: Context,
    record: ActionPlugin,
    given: Mapping[str, Any],
    group: JobGroup | None,
    matched: MatchContext,
) -> frozenset[str]:
    """Return the groups for which the action submits new combinations of parameters."""
    if not _merges(record.options, given):
        return frozenset()
    if group is not None:
        return frozenset({group.name})
    own = {name for name in matched.over if name is not None}
    return frozenset(own or context.known.groups)


def _merges(schema: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return True if the parameters in the action are merged with existing ones."""
    mark = schema.get("x-ensemble-varies")
    return mark is True or (isinstance(mark, str) and mark in given)


def check_capabilities(context: Context, path: Path, name: str, record: ActionPlugin) -> None:
    """Report capabilities that the action requires but the executor does not have."""
    executor = context.executor
    if executor is None:
        return
    for need in sorted(record.needs - executor.capabilities):
        able = sorted(
            other
            for other in context.registry.executors.names
            if need in context.registry.executors[other].capabilities
        )
        can = ", ".join(f"'{other}'" for other in able)
        context.report(
            path,
            f"'{name}' needs an executor that can {need}; '{executor.name}' cannot",
            hint=f"{can} can" if able else f"no installed executor can {need}",
            code="cannot-" + need,
        )


def _check_submitted(context: Context, record: ActionPlugin, group: JobGroup | None) -> None:
    """Check the size of the groups that an action submits as they are."""
    groups = context.known.groups
    if group is not None:
        used = groups.get(group.name)
        names = [group.name] if used is not None and used.sizes == group.sizes else []
    else:  # without a group, an action takes the event's job or submits every group
        names = [] if "x-ensemble-job-unless" in record.options else [*groups]
    for name in names:
        check_used(context, name)


def _check_job(
    context: Context,
    path: Path,
    name: str,
    record: ActionPlugin,
    spec: Mapping[str, Any],
    matched: MatchContext,
) -> bool:
    """Return True if the action needs no job of an event, or has one. Otherwise report an error."""
    other = record.options.get("x-ensemble-job-unless")
    if matched.job or not isinstance(other, str) or other in spec:
        return True
    if matched.slices and _merges(record.options, spec):
        return True  # the action submits jobs like those of the slice, so the event needs no job
    without = f" without {other!r}" if other else ""
    hint = "use a trigger that concerns a job, such as job-clean or observed"
    if other:
        hint = f"add {other}: with a job group"
    elif matched.trigger == "idle" and _merges(record.options, spec):
        given = spec.get("parameters") or {}
        varied = set(given) - {name for each in given.values() for name in _names_in(each)}
        swept = [name for one in matched.over if one for name in _sweep_names(context, one, varied)]
        if swept:
            hint = f"add each: [{', '.join(dict.fromkeys(swept))}] beside the trigger: "
            hint += "the rule then fires separately for each value"
        else:
            label = next((one for one in matched.over if one), "GROUP")
            hint = f"write {{name: submit, label: {label}, with: {{parameters: …}}}}, "
            hint += "which needs no job"
    context.report(
        (*path, "name"),
        f"'{name}'{without} acts on the event's job, but the trigger {matched.trigger!r} has no "
        "job",
        hint=hint,
        code="no-job",
    )
    return False


def _names_in(value: Any) -> Collection[str]:
    """Return the names in a value if it is a valid expression, and an empty collection
    otherwise.
    """
    if not isinstance(value, str) or not value.startswith("="):
        return ()
    try:
        return expression(value).names
    except EnsembleError:
        return ()


def _sweep_names(context: Context, group: str, varied: Collection[str]) -> list[str]:
    """Return the group's parameters that have several values, except those in ``varied``."""
    found = context.known.groups.get(group)
    if found is None:
        return []
    values = {**found.parameters, **found.points}
    return [name for name in found.names if name not in varied and len(values[name]) > 1]


def _check_values(
    context: Context,
    path: Path,
    record: ActionPlugin,
    given: Mapping[str, Any],
    group: JobGroup | None,
) -> None:
    """Report a parameter that would have no value when the action submits jobs of the group."""
    properties = record.options.get("properties", {})
    kinds = {_annotation(properties.get(key)) for key in given}
    if _merges(record.options, given):
        return  # the other values come from the copied job or the slice
    if group is None or "submit" not in record.needs or not kinds <= {"group", "fields"}:
        return
    if context.known.functions or group.name in context.known.changing or not group.missing:
        return
    name = group.missing[0]
    context.report(
        path,
        f"the parameter {name!r} of {group.name!r} is null, and the action gives it no value",
        hint=f"add 'with: {{parameters: {{{name}: …}}}}' to the action",
        code="no-value",
    )


class OptionCheck:
    """Checks and converts the options of an action, according to the annotations in their schema.

    While checking, it collects what the options contain: the ``metrics``, the ``STAT.NAME``
    references (``reads``), the ``nested`` actions, and the places of messages with placeholders
    (``messages``).
    """

    def __init__(self, context: Context, schema: Mapping[str, Any], matched: MatchContext) -> None:
        self.metrics: set[str] = set()
        #: Names of statistics and metrics in messages.
        self.metric_names: set[str] = set()
        self.reads: set[str] = set()
        self.nested: list[BoundAction] = []
        self.messages: list[Path] = []
        #: The group that the action submits or changes, with the action's changes.
        self.group: JobGroup | None = None
        self._context = context
        self._schema = schema
        self._matched = matched

    def options(self, path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the converted options, completed with defaults."""
        options = option_defaults(self._schema, given)
        properties = self._schema.get("properties", {})
        for key, value in [*options.items()]:
            schema = self._resolve_reference(properties.get(key))
            holds = _annotation(schema) == "action"
            # Defaults are checked too. After an error in one nested action, the next one is still
            # checked.
            is_valid = key in given and self._context.is_valid((*path, key))
            if key in properties and (holds or is_valid):
                inner = (*path, key)
                options[key] = self._check(inner, properties[key], value, options, properties)
            elif key not in given:
                self._fill_later(schema, (*path, key), value)
        return options

    def _fill_later(self, schema: object, path: Path, value: Any) -> None:
        """Register a message whose placeholders the engine has to fill in when the rule fires.

        Messages that the action fills in itself are skipped.
        """
        if _annotation(schema) == "message" and not cast(Any, schema).get("x-ensemble-fills"):
            self.messages += [place for place, _ in _strings(path, value)]

    def _check(
        self,
        path: Path,
        schema: object,
        value: Any,
        around: Mapping[str, Any],
        properties: Mapping[str, Any],
    ) -> Any:
        """Check and convert one value.

        ``around`` has the option's siblings, and ``properties`` has the schemas of all of them.
        """
        schema = self._resolve_reference(schema)
        if not isinstance(schema, Mapping):
            return value
        kind = _annotation(schema)
        if isinstance(value, str) and value.startswith("=") and _accepts_expression(schema):
            self._expressions(path, value)
            return value
        if kind == "duration":
            return self._context.duration(path, value, above=schema.get("exclusiveMinimum"))
        if kind == "fields" and isinstance(value, dict):
            return self._fields(path, value, around, properties)
        if kind == "parameters" and isinstance(value, dict):
            self._fields(path[:-1], {"parameters": value}, around, properties)
            return value
        if kind == "action":
            matched = self._matched.knowing(schema.get("x-ensemble-fields", ()))
            return self._actions(path, value, matched)
        if kind == "expression":
            self._expressions(path, value)
        elif kind == "phase":
            learns_from = schema.get("x-ensemble-learns-from")
            for place, name in _strings(path, value):
                if check_switch_target(self._context, place, name) and learns_from is not None:
                    sources = [each for _, each in _strings((), around.get(learns_from))]
                    check_learns(self._context, place, name, sources)
        elif kind is not None:
            for place, name in _strings(path, value):
                self._name(place, str(kind), name)
            self._fill_later(schema, path, value)
        elif isinstance(value, dict):
            inner = schema.get("properties", {})
            others = schema.get("additionalProperties")
            return {
                key: self._check((*path, key), inner.get(key, others), item, value, inner)
                for key, item in value.items()
            }
        elif isinstance(value, list):
            return [
                self._check((*path, i), schema.get("items"), item, around, properties)
                for i, item in enumerate(value)
            ]
        return value

    def _resolve_reference(self, schema: object) -> object:
        """Resolve the reference in a schema (``$ref``) within the plugin's own schema."""
        definitions = self._schema.get("$defs", {})
        for _ in range(len(definitions) + 1):
            target = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(target, str) or not target.startswith("#/$defs/"):
                break
            assert isinstance(schema, Mapping)
            own = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**definitions.get(target.removeprefix("#/$defs/"), {}), **own}
        return schema

    def _actions(self, path: Path, value: Any, matched: MatchContext) -> Any:
        """Bind an action, or a list of actions, that is part of the options."""
        if isinstance(value, list):
            return [self._actions((*path, i), one, matched) for i, one in enumerate(value)]
        bound = None
        if isinstance(value, dict):
            bound = bind_action(self._context, path, value, matched)
        if bound is None:
            return value
        self.nested.append(bound)
        tolerated = {"on_error": "warn"} if bound.tolerated else {}
        return BoundSpec({"name": bound.name, **tolerated, **bound.options}, bound)

    def _expressions(self, path: Path, value: Any, *, texts: bool = False) -> None:
        """Parse every string in the value that begins with ``=``.

        Options of executors may be true or false, so there a condition is an expression, too.
        """
        context, matched = self._context, self._matched
        if isinstance(value, (dict, list)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                self._expressions((*path, key), item, texts=texts)
        elif isinstance(value, str) and value.startswith("="):
            try:
                parsed = expression(value, texts=texts, conditions="options" in path)
                scoped = self.scoped(path, parsed.names)
                if scoped is None:
                    return
                plain = parsed.names - scoped
                if report_unlisted(context, path, plain, matched):
                    return
                if matched.names is not None:
                    check_names(parsed.text, plain, matched.names)
            except EnsembleError as error:
                context.attach(error, path)
                return
            if matched.job:
                warn_of_fields_meant(context, path, value, plain, matched)
            for text in sorted(parsed.metrics):
                self._name(path, "metric", text)

    def _is_metric(self, name: str) -> bool:
        """Return True if a name in a message is the path of a metric of a group.

        Other names with a dot are columns, ``STAT.NAME`` or plain text.
        """
        names, known = self._matched.names, self._context.known
        statistic, _, rest = name.partition(".")
        if names is not None and name in names:
            return False
        if name.startswith("metric("):
            return True
        if statistic == "count":
            return rest.rpartition(".")[0] in known.groups
        if table_column(name.partition("(")[0], known.tables):
            return False
        if is_gauge(name, known.groups, known.rules):
            return False  # see scoped_names
        if statistic in known.statistics and is_gauge(rest, known.groups, known.rules):
            return True
        if "-" in rest.partition("(")[0]:  # a hyphen stands after the group in a metric's path
            of_group = any(rest.startswith(f"{group}-") for group in known.groups)
            return of_group or statistic in known.statistics
        return statistic in _GAUGES

    def scoped(self, path: Path, names: Collection[str]) -> frozenset[str] | None:
        """Return the names that have the form ``STAT.NAME``, and add them to ``reads``.

        Return ``None`` if one of them is invalid.
        """
        matched = self._matched
        found = scoped_names(
            self._context,
            path,
            names,
            matched.names,
            matched.over,
            matched.slices,
            of_job=matched.of_job,
        )
        self.reads |= found or set()
        return found

    def _name(self, path: Path, kind: str, name: str) -> None:
        """Check a message, or a name that refers to a group, rule, metric or similar."""
        context = self._context
        if kind == "group":
            if context.group(name, path):
                self.group = self.group or context.known.groups[name]
        elif kind == "metric":
            if context.metric(name, path) is not None:
                self.metrics.add(name)
        elif kind == "message":
            named = {one.name for one in placeholders(name, FIELD_PLACEHOLDER)}
            of_job = self._job_fields(path, named)
            metrics = {each for each in named - of_job if self._is_metric(each)}
            for each in sorted(metrics):
                if context.metric(metric_path(each), path) is not None:
                    self.metrics.add(metric_path(each))
                    self.metric_names.add(each)
            scoped = self.scoped(path, named - of_job - metrics)
            if scoped is not None:
                known = scoped | of_job | metrics
                self.metric_names |= scoped
                if self._matched.job:
                    warn_of_fields_meant(context, path, name, named, self._matched)
                _check_message(context, path, name, self._matched.knowing(known))
        elif kind == "rows":
            self._rows(path, name)
        elif kind == "mail" and not _MAIL.fullmatch(name):
            context.report(
                path,
                f"{name!r} is not a mail address",
                hint="write a single address, such as 'mail: me@uni.edu'",
                code="bad-value",
            )
        elif kind == "variable" and not _VARIABLE.fullmatch(name):
            is_url = "/" in name or ":" in name
            context.report(
                path,
                "a URL would be stored in the journal"
                if is_url
                else f"{name!r} is not the name of an environment variable",
                hint="store the URL in an environment variable and write its name, such as "
                "'webhook: TEAM_HOOK'",
                code="bad-value",
            )
        elif kind == "instance":
            if name not in context.known.instances:
                context.unknown(path, kind, name, context.known.instances)
        elif kind == "generator":
            context.generator(name, path)
        elif kind == "class":
            if context.known.reads:
                try:
                    check_class(name)
                except EnsembleError as error:
                    context.attach(error, path)
        elif kind in ("rule", "function"):
            names = context.known.rules if kind == "rule" else context.known.functions
            if names is not None and kind == "rule":
                names |= context.known.instances
            if names is not None and name not in names:
                context.unknown(path, kind, name, names)

    def _rows(self, path: Path, name: str) -> None:
        """Check the value of an option ``rows``: a table's name or ``job``."""
        context, matched = self._context, self._matched
        if name != "job":
            check_rows(context, path, name)
        elif not matched.job:
            context.report(
                path,
                f"'rows: job' needs the event's job, but the trigger {matched.trigger!r} has no "
                "job",
                hint="use a trigger that concerns a job, such as job-done",
                code="no-job",
            )
        elif not context.prints_rows(matched.group):
            whose = "any job group" if matched.group is None else repr(matched.group)
            context.report(
                path,
                f"'rows: job' needs stored rows, but no observer of {whose} stores them",
                hint="set 'rows: true' in the observer's options, such as "
                "'observe: {json-lines: {rows: true}}'",
                code="not-observed",
            )

    def _fields(
        self,
        path: Path,
        fields: dict[str, Any],
        around: Mapping[str, Any],
        properties: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Check the changes that the action makes to its group.

        If the action names no group, the group is that of the event's job.
        """
        context = self._context
        now = known_at_load(path, fields, self._check_deferred)
        targets = self._targets(around, properties)
        if _merges(self._schema, around):
            changed = check_merge(context, path, now, targets, single=False)
            if self.group is not None and changed is not None:
                self.group = changed
        elif self._schema.get("x-ensemble-retries"):
            check_merge(context, path, now, targets, single=True)
        elif len(targets) == 1:
            self.group = change_group(context, path, targets[0], now)
        return restore_spelling(context, path, fields)

    def _targets(self, around: Mapping[str, Any], properties: Mapping[str, Any]) -> list[JobGroup]:
        """Return the groups that the action submits or changes, as far as they are known."""
        groups = self._context.known.groups
        named = [around.get(key) for key, of in properties.items() if _annotation(of) == "group"]
        name = next((one for one in named if isinstance(one, str)), self._matched.group)
        found = groups.values() if name is None else [groups.get(name)]
        return [group for group in found if group is not None]

    def _job_fields(self, path: Path, names: Collection[str]) -> frozenset[str]:
        """Check those names that have the form ``job.NAME``, and return them."""
        found = frozenset(name for name in names if name.startswith("job."))
        for name in sorted(found):
            _check_job_field(self._context, path, name, self._matched)
        return found

    def _check_deferred(self, path: Path, text: str, pattern: re.Pattern[str]) -> None:
        """Check a string that is evaluated when the rule fires."""
        if text.startswith("="):
            self._expressions(path, text, texts=True)
            return
        context, matched = self._context, self._matched
        names = {one.name for one in placeholders(text, pattern)}
        bare = names - self._job_fields(path, names)
        scoped = self.scoped(path, bare)
        if scoped is None or report_unlisted(context, path, bare - scoped, matched):
            return
        if matched.job:
            warn_of_fields_meant(context, path, text, bare, matched)
        if matched.names is not None:
            for name in sorted(bare - scoped - {*matched.names}):
                meant = did_you_mean(name, matched.names, "", form="did you mean {{{}}}? Or ")
                context.report(
                    path,
                    f"the event of trigger {matched.trigger!r} has no field {name!r}",
                    hint=f"{meant}write {{{{{name}}}}} for literal braces",
                    code="no-such-field",
                    where=context.document.at_text(path, f"{{{name}"),
                )


def report_unlisted(
    context: Context, path: Path, names: Collection[str], matched: MatchContext
) -> bool:
    """Report names that an observer would yield only with other options.

    Return True if a name was reported.
    """
    if not matched.observed:
        return False
    asked = sorted(set(names) - {"value", *matched.own, *EVENT_FIELDS})
    return bool(
        [
            name
            for name in asked
            # A misspelt event field is not a column.
            if not closest(name, matched.own, 0.75) and context.left_out(name, matched.group, path)
        ]
    )


#: Fields that each event of a job has, and those that it also has at the end of the job.
_ALWAYS = {"job", "name", "timestamp"}
_AT_END = {"duration", "exit_code", "pending", "status"}


def warn_of_fields_meant(
    context: Context, place: Path, text: str, names: Collection[str], matched: MatchContext
) -> None:
    """Warn about each parameter that a text seems to mean, although the event of the job always
    has a field of this name.

    ``names``: the names in the text.
    """
    fields = _ALWAYS | _AT_END if "status" in matched.own else _ALWAYS
    for name in sorted(fields & context.parameters(matched.group) & {*names}):
        where = context.document.at_text(place, name)
        context.warnings.append(
            f"{f'{where}: ' if where else ''}{name!r} in {text!r} is a field of the "
            "event, not the parameter of this name: rename the parameter"
        )


def _check_job_field(context: Context, path: Path, name: str, matched: MatchContext) -> None:
    """Check that the field ``job.NAME`` exists and will have a value when the rule fires."""
    where = context.document.at_text(path, f"{{{name}")
    own = name.removeprefix("job.")
    groups = context.known.groups
    mine = groups.values() if matched.group is None else [groups.get(matched.group)]
    most = max((len(each.outputs) for each in mine if each is not None), default=0)
    known = JOB_FIELDS | context.parameters(matched.group)
    known |= {f"outputs[{number}]" for number in range(most)}
    if not matched.job:
        context.report(
            path,
            f"{{{name}}} needs the event's job, but the trigger {matched.trigger!r} has no job",
            hint="use a trigger that concerns a job, such as job-fail or observed",
            code="no-job",
            where=where,
        )
    elif own not in known:
        what = f"unknown field {{{name}}}: a job has no {own!r}"
        context.unknown(path, "field", own, known, what=what, written="{job.NAME}", where=where)
    elif own.partition("[")[0] in ("workdir", "stdout", "stderr", "outputs"):
        executor = context.executor
        relative = [g for g in mine if g is not None and not (g.workdir or "").startswith("/")]
        if executor is not None and executor.members and relative:
            context.report(
                path,
                f"{{{name}}} is unknown: a member's jobs run on the member's machine, and "
                f"{relative[0].name!r} has no absolute workdir",
                hint="give the job group an absolute workdir",
                code="not-known",
                where=where,
            )


def _accepts_expression(schema: Mapping[str, Any]) -> bool:
    """Return True if the option accepts an expression (text that begins with ``=``) for a
    number.
    """
    return bool(schema.get("x-ensemble-expression"))


def _annotation(schema: object) -> object:
    return schema.get("x-ensemble") if isinstance(schema, Mapping) else None


def _strings(path: Path, value: Any) -> list[tuple[Path, str]]:
    if isinstance(value, str):
        return [(path, value)]
    if isinstance(value, list):
        return [((*path, i), item) for i, item in enumerate(value) if isinstance(item, str)]
    return []


def _check_message(context: Context, path: Path, text: str, matched: MatchContext) -> None:
    for one in placeholders(text, FIELD_PLACEHOLDER):
        name, form = one.name, one.form
        if form is not None and (matched.names is None or name in matched.names):
            if not any(_fits(value, form) for value in (1, 1.5, "text")):
                context.report(
                    path,
                    f"invalid format in {one.text}: {form!r}",
                    hint=f"use {{{name}:.2f}} for two decimals, or {{{name}}}",
                    code="bad-format",
                    where=context.document.at_text(path, one.text),
                )
            continue
        if form is not None and not is_format(form):  # {other:80/tcp} is probably plain text
            continue
        if report_unlisted(context, path, (name,), matched):
            continue
        if matched.names is None or name in matched.names:
            continue
        near = closest(name, matched.names)
        if near:
            meant = f"did you mean {{{near}}}? Or"
        else:
            meant = f"{_field_hint(context, name, matched)}; if it is not a field,"
        context.report(
            path,
            f"the event of trigger {matched.trigger!r} has no field {name!r}",
            hint=f"{meant} write {{{{{name}}}}} for literal braces",
            code="no-such-field",
            where=context.document.at_text(path, one.text),
        )
    known = set(matched.own if matched.names is None else matched.names)
    known |= context.parameters(matched.group) | (context.variables(matched.group) or set())
    for content in other_braces(text, FIELD_PLACEHOLDER):
        words = [] if _QUOTE.search(content) else _NAME.findall(content)
        names = [word for word in words if word in known or _is_path(context, word)]
        if names:
            report_unfilled(context, path, content, names[0])
    for name, found in unpaired_braces(text):
        if name in known or _is_path(context, name):
            report_unpaired(context, path, found, name)


def _is_path(context: Context, name: str) -> bool:
    """Return True if this is probably the path of a metric, or a statistic of a column."""
    head, dot, _ = name.partition(".")
    return bool(dot) and (head in context.known.statistics or head in {"count", *_GAUGES})


def _fits(value: object, form: str) -> bool:
    try:
        format_value(value, form)
    except ValueError:
        return False
    return True


def _field_hint(context: Context, name: str, matched: MatchContext) -> str:
    """Return a hint that says which triggers or observers provide a field that this event does not
    have.
    """
    variables = context.variables(matched.group)
    if matched.observed:
        if not variables:
            return "give the job group an observer that yields it ('observe:')"
        return f"its observers yield {', '.join(sorted(variables)[:15])}"
    if matched.job and variables and name in variables:
        return f"only rows of output have {name!r} (trigger: observed)"
    return f"its fields are {', '.join(sorted(matched.names or ())[:15]) or 'none'}"
