"""Replaces algorithms under ``use:`` by the rules that they generate.

Each entry under ``use:`` is an *instance* of an algorithm. An algorithm comes from a plugin, or
from a YAML file (``algorithm: ./demand.yaml``). Such a file has the keys ``summary``, ``options``
(a JSON Schema), ``rules`` and optionally ``statistics``. A value ``${NAME}`` stands for the value
of the option NAME.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ensemble_core.config.action_entries import MatchContext, OptionCheck, check_capabilities
from ensemble_core.config.context import Context, Use, nearest
from ensemble_core.config.document import Document, Path, spelled
from ensemble_core.config.file_text import read_attachment, sibling_path
from ensemble_core.config.job_sources import Kept, join, keep
from ensemble_core.config.schema import option_defaults
from ensemble_core.config.schema_check import check_shape
from ensemble_core.config.yaml_reader import read_document
from ensemble_core.errors import FileErrors, Location, PluginError, UsageError
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.ensemble import AlgorithmInstance
from ensemble_core.plugin.hookspecs import ActionPlugin, AlgorithmPlugin, AlgorithmView, Fragment
from ensemble_core.plugin.record_validation import check_record

#: ``${NAME}`` in an algorithm file; its keys, and those in which options are filled in.
_WHOLE = late_pattern(r"\$\{([^{}]*)\}")
_KEYS: Mapping[str, Any] = {
    "summary": str, "objective": str, "needs": list, "supports": list, "options": dict,
    "rules": list, "statistics": dict, "heartbeat": object, "example": str,
}  # fmt: skip
_FILLED = ("rules", "statistics", "heartbeat")
_TYPES: Mapping[Any, str] = {str: "a string", list: "a list", dict: "a mapping"}


def expand_uses(context: Context) -> None:
    """Replace ``use:`` in the data of the file by the rules of all instances."""
    document = context.document
    entries = document.data.pop("use", None)
    if entries is None:
        return
    if not isinstance(entries, list) or not entries:
        document.data["use"] = entries
        check_shape(context)
        del document.data["use"]
        return
    places: dict[str, Path] = {}
    made: list[tuple[Path, str, Kept]] = []
    for index, entry in enumerate(entries):
        path: Path = ("use", index)
        name = _instance_name(context, path, entry)
        if name is None:
            continue
        if name in places:
            first = document.at(places[name])
            context.report(
                _name_path(path, entry),
                f"duplicate instance {name!r}; the first is at {first}",
                hint="rename one of them with 'as: NAME'",
                code="duplicate-name",
            )
            continue
        places[name] = _name_path(path, entry)
        context.known.instances |= {name}
        kept = _expand_entry(context, path, name, entry)
        if kept:
            made.append((path, name, kept))
    _check_ids(context, places)
    for path, name, kept in made:
        _enter(context, path, name, kept, entries[path[1]])  # type: ignore[index]


def _instance_name(context: Context, path: Path, entry: Any) -> str | None:
    """Return the name of the instance, or ``None`` after reporting an invalid entry."""
    before = len(context.errors)
    context.document.data["use"] = {path[1]: entry}  # later checks read the entry from here
    check_shape(context, "use", path)
    del context.document.data["use"]
    if len(context.errors) > before:
        return None
    own = "rules" in entry
    if own == ("algorithm" in entry):
        what = "has both 'algorithm' and 'rules'" if own else "has neither 'algorithm' nor 'rules'"
        code = "bad-value" if own else "missing-key"
        hint = "write 'algorithm: workload-demand', or 'rules: […]' with 'as: NAME'"
        context.report(path, f"the entry of 'use' {what}", hint=hint, code=code)
    for key in ("with",) if own else ("statistics", "heartbeat"):
        if key in entry:
            whose = "'rules'" if own else "'algorithm'"
            context.report(
                (*path, key),
                f"{key!r} cannot be combined with {whose}",
                hint=f"remove {key!r}",
                code="unknown-key",
                where=context.document.at_key((*path, key)),
            )
    name = entry.get("as")
    if name is None and own:
        what = "an entry of 'use' with 'rules' needs a name"
        context.report(path, what, hint="write 'as: NAME'", code="missing-key")
    if len(context.errors) > before:
        return None
    if name is None:
        name = re.sub(r"\.ya?ml\Z", "", entry["algorithm"].rpartition("/")[2]).rpartition(":")[2]
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
            what = f"{name!r} is not a valid instance name"
            hint = "write 'as: NAME', with letters, digits, - and _"
            context.report((*path, "algorithm"), what, hint=hint, code="bad-name")
            return None
    return str(name)


def _name_path(path: Path, entry: Mapping[str, Any]) -> Path:
    return (*path, "as" if "as" in entry else "algorithm")


def _check_ids(context: Context, instances: Mapping[str, Path]) -> None:
    """Report a rule that has the same name as an instance, because ``enable`` could mean either."""
    rules = context.document.data.get("rules")
    for rule in rules if isinstance(rules, list) else ():
        name = rule.get("id") if isinstance(rule, dict) else None
        if isinstance(name, str) and name in instances:
            context.report(
                instances[name],
                f"the instance {name!r} has the same name as a rule",
                hint="rename it with 'as: NAME'",
                code="duplicate-name",
            )


# -- building an instance ------------------------------------------------------------------


def _expand_entry(context: Context, path: Path, name: str, entry: Mapping[str, Any]) -> Kept:
    """Return the expansion of an entry, or an empty expansion after reporting an error."""
    if "rules" in entry:
        return {
            "jobs": [],
            "rules": copy.deepcopy(entry["rules"]),
            "statistics": copy.deepcopy(entry.get("statistics") or {}),
            "heartbeat": entry.get("heartbeat"),
            "warnings": [],
            "places": [],
            "whose": "",
            "version": "",
        }
    record = _record(context, path, entry["algorithm"])
    if record is None:
        return {}
    part = f"algorithm-of-{path[1]}"
    context.validators.define(part, record.summary, record.options)
    before = len(context.errors)
    context.document.data["use"] = {path[1]: {"with": entry.get("with") or {}}}
    check_shape(context, part, (*path, "with"))
    del context.document.data["use"]
    given = entry.get("with") or {}
    options = option_defaults(record.options, given)
    _check_groups(context, (*path, "with"), record, given)
    _check_executor(context, (*path, "algorithm"), record)
    if len(context.errors) > before:
        return {}
    context.uses.append(Use(name, (*path, "with"), record.options, given))
    owner = context.registry.owner(record)
    whose = f"the algorithm {record.name!r}" + (f" ({owner})" if owner else "")
    jobs = context.document.data.get("jobs")
    view = AlgorithmView(
        instance=name,
        groups={
            each["name"]: copy.deepcopy(each)
            for each in (jobs if isinstance(jobs, list) else ())
            if isinstance(each, dict) and isinstance(each.get("name"), str)
        },
        statistics=frozenset(
            {*context.registry.statistics, *(context.document.data.get("statistics") or ())}
        ),
        capabilities=None if context.executor is None else context.executor.capabilities,
    )
    key = f"{spelled(path)} {record.name}"
    return keep(context, path, key, whose, owner, partial(record.build, options, view))


def _record(context: Context, path: Path, name: str) -> AlgorithmPlugin | None:
    """Return the algorithm with this name. If the name is that of a file, read the file."""
    place: Path = (*path, "algorithm")
    if _is_file(name):
        return _read_algorithm(context, place, name)
    algorithms = context.registry.algorithms
    if name not in algorithms:
        context.report(
            place,
            f"there is no algorithm {name!r}",
            hint=context.registry.explain_missing("algorithm", name),
            code="no-such-algorithm",
        )
        return None
    return algorithms[name]


def _check_groups(
    context: Context, path: Path, record: AlgorithmPlugin, given: Mapping[str, Any]
) -> None:
    """Check the job groups that options name. (Other names are checked later, with the rules.)"""
    jobs = context.document.data.get("jobs")
    entries = jobs if isinstance(jobs, list) else []
    known = [each.get("name") for each in entries if isinstance(each, dict)]
    names = [name for name in known if isinstance(name, str)]
    for key, schema in record.options.get("properties", {}).items():
        if not isinstance(schema, Mapping) or schema.get("x-ensemble") != "group":
            continue
        value = given.get(key)
        places = [((*path, key), value)]
        if isinstance(value, list):
            places = [((*path, key, index), item) for index, item in enumerate(value)]
        for place, name in places:
            if isinstance(name, str) and name not in names:
                context.unknown(place, "job group", name, names)


def _check_executor(context: Context, path: Path, record: AlgorithmPlugin) -> None:
    needs = ActionPlugin(name=record.name, summary=record.summary, needs=record.needs)
    check_capabilities(context, path, record.name, needs)
    executor = context.executor
    if executor is not None and record.supports and executor.name not in record.supports:
        able = " or ".join(repr(name) for name in sorted(record.supports))
        context.report(
            path,
            f"the algorithm {record.name!r} needs the executor {able}, but this run uses "
            f"{executor.name!r}",
            hint="choose the executor with --executor NAME",
            code="other-executor",
        )


# -- adding it to the file ---------------------------------------------------------------------


def _enter(context: Context, path: Path, name: str, kept: Kept, entry: Mapping[str, Any]) -> None:
    document = context.document
    context.expanded_uses.append(_expanded_data(name, kept, entry))
    own = "rules" in entry
    where = None if own else document.at((*path, "algorithm"))
    rules = document.data.get("rules")
    first = len(rules) if isinstance(rules, list) else 0
    jobs = document.data.get("jobs")
    groups = len(jobs) if isinstance(jobs, list) else 0
    if kept["jobs"] and isinstance(jobs, list):
        jobs += copy.deepcopy(kept["jobs"])
    apart = _prefix_names(context, name, kept)
    join(context, apart, where, groups)
    for index, rule in enumerate(apart["rules"]):
        place: Path = ("rules", first + index)
        context.of_instance[first + index] = name
        if own:
            document.copy_places((*path, "rules", index), place)
        elif isinstance(rule, dict):
            said = f"{kept['whose']}, instance {name!r}, rule {rule.get('id')!r}"
            context.made[place] = said
            for key, option in _option_keys(rule, entry.get("with") or {}):
                where = document.at((*path, "with", option))
                if where is not None and not kept["places"]:  # no algorithm file
                    part: Path = (*place, key)
                    document.overrides[part], context.made[part] = where, ""
    context.instances[name] = AlgorithmInstance(
        name=name,
        algorithm=str(entry.get("algorithm", "")),
        version=kept["version"],
        enabled=entry.get("enabled") is not False,
    )


def _option_keys(rule: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a rule whose value is the text of an option, each with the option's name.

    The user wrote these texts, so an error in one is an error of the user and not of the algorithm.
    """
    texts = {text: option for option, text in options.items() if isinstance(text, str)}
    for key, text in rule.items():
        if key != "id" and isinstance(text, str) and text in texts:
            yield key, texts[text]


def _prefix_names(context: Context, instance: str, kept: Kept) -> Kept:
    """Return the expansion with unique names: ids of rules and names of statistics get a prefix.

    The prefix is the name of the instance. References to them are changed too.
    """
    ids: dict[str, str] = {}
    rules = copy.deepcopy(kept["rules"])
    for number, rule in enumerate(rules, 1):
        if isinstance(rule, dict):
            given = rule.get("id")
            own = given if isinstance(given, str) else str(number)
            rule["id"] = ids[own] = f"{instance}-{own}"
    word = re.sub(r"\W", "_", instance)
    statistics = {name: f"{word}_{name}" for name in kept["statistics"]}
    led = partial(_prefix_references, _pattern("count\\.rule\\.", ids), _pattern("", statistics))
    return {
        **kept,
        "rules": [
            _walk(context, rule, ids, partial(led, ids=ids, statistics=statistics))
            for rule in rules
        ],
        "statistics": {statistics[name]: spec for name, spec in kept["statistics"].items()},
    }


def _pattern(before: str, names: Mapping[str, str]) -> re.Pattern[str] | None:
    """Return a pattern that finds these names in a metric path, after the text ``before``.

    If ``before`` is empty, the pattern finds names before a dot.
    """
    if not names:
        return None
    either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    after = r"(?![\w-])" if before else r"(?=\.[A-Za-z_])"
    return re.compile(rf"(?<![\w.-])({before})({either}){after}")


def _prefix_references(
    rules: re.Pattern[str] | None,
    stats: re.Pattern[str] | None,
    text: str,
    *,
    ids: Mapping[str, str],
    statistics: Mapping[str, str],
) -> str:
    if rules is not None:
        text = rules.sub(lambda found: found[1] + ids[found[2]], text)
    if stats is not None:
        text = stats.sub(lambda found: statistics[found[2]], text)
    return text


def _walk(context: Context, value: Any, ids: Mapping[str, str], led: Any) -> Any:
    if isinstance(value, str):
        return led(value)
    if isinstance(value, list):
        return [_walk(context, item, ids, led) for item in value]
    if not isinstance(value, dict):
        return value
    of_rules = set(_rule_options(context, value.get("name")))
    found: dict[str, Any] = {}
    for key, item in value.items():
        if key == "id":
            found[key] = item
        elif key in of_rules and isinstance(item, str):
            found[key] = ids.get(item, item)
        elif key in of_rules and isinstance(item, list):
            found[key] = [ids.get(one, one) if isinstance(one, str) else one for one in item]
        else:
            found[key] = _walk(context, item, ids, led)
    return found


def _rule_options(context: Context, action: object) -> Iterator[str]:
    """Yield the names of an action's options that refer to rules."""
    actions = context.registry.actions
    if isinstance(action, str) and action in actions:
        for key, schema in actions[action].options.get("properties", {}).items():
            if isinstance(schema, Mapping) and schema.get("x-ensemble") == "rule":
                yield key


def _expanded_data(name: str, kept: Kept, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with the generated rules in place of the algorithm, as in an ensemble
    file.
    """
    found: dict[str, Any] = {"as": name}
    if entry.get("enabled") is False:
        found["enabled"] = False
    for key in ("heartbeat", "statistics", "rules"):
        if kept[key]:
            found[key] = kept[key]
    return found


def expanded_data(context: Context) -> dict[str, Any]:
    """Return the data of the fully expanded file. It is equivalent to the original file."""
    data: dict[str, Any] = copy.deepcopy(context.document.data)
    rules = data.get("rules", [])
    data["rules"] = [rule for index, rule in enumerate(rules) if index not in context.of_instance]
    if not data["rules"]:
        del data["rules"]
    if context.expanded_uses:
        data["use"] = copy.deepcopy(context.expanded_uses)
        own = {name for entry in context.expanded_uses for name in _statistic_names(entry)}
        for name in own & {*(data.get("statistics") or {})}:
            del data["statistics"][name]
        if not data.get("statistics"):
            data.pop("statistics", None)
    return data


def _statistic_names(entry: Mapping[str, Any]) -> Iterator[str]:
    word = re.sub(r"\W", "_", entry["as"])
    yield from (f"{word}_{name}" for name in entry.get("statistics", {}))


# -- checks that need the whole file -----------------------------------------------------------


def check_uses(context: Context) -> frozenset[str]:
    """Check the names in the options of instances. Return the instances with invalid options.

    The rules of these instances need no further check.
    """
    wrong: set[str] = set()
    for use in context.uses:
        before = len(context.errors)
        check = OptionCheck(context, use.schema, MatchContext(names=None))
        check.options(use.path, copy.deepcopy(dict(use.given)))
        if len(context.errors) > before:
            wrong.add(use.instance)
    return frozenset(wrong)


def _is_file(name: str) -> bool:
    """Return True if the name of an algorithm is the name of a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def _read_algorithm(context: Context, path: Path, name: str) -> AlgorithmPlugin | None:
    """Return the algorithm that the file defines, or ``None`` after reporting errors."""
    text = read_attachment(context, path, name)
    if text is None:
        return None
    errors: list[Any] = []
    try:
        document = read_document(text, sibling_path(context, name))
        errors = _key_errors(document)
    except FileErrors as found:
        errors = list(found.errors)
    if errors:
        context.errors += errors
        return None
    data = document.data
    record = AlgorithmPlugin(
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789") or "file",
        summary=data["summary"],
        objective=data.get("objective", ""),
        options=data.get("options") or {},
        needs=frozenset(data.get("needs", ())),
        supports=frozenset(data.get("supports", ())),
        build=lambda options, view: _fill_options(document, options, view),
    )
    try:
        check_record(record)
    except PluginError as error:
        context.errors.append(
            UsageError(error.what, where=document.at(("options",)), code="bad-algorithm")
        )
        return None
    return record


def _key_errors(document: Document) -> list[UsageError]:
    data = document.data
    if not isinstance(data, dict):
        return [_type_error("an algorithm file must be a mapping", document.at(()))]
    found: list[UsageError] = []
    for key, value in data.items():
        if key not in _KEYS:
            near = nearest(key, list(_KEYS))
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(_KEYS)}"
            what = f"unknown key {key!r} in the algorithm file"
            found.append(
                UsageError(what, where=document.at_key((key,)), hint=hint, code="unknown-key")
            )
        elif not isinstance(value, _KEYS[key]):
            what = f"{key!r} is not {_TYPES[_KEYS[key]]}"
            found.append(_type_error(what, document.at((key,))))
    for key in ("summary", "rules"):
        if not data.get(key):
            what = f"the algorithm file has no {key!r}"
            found.append(UsageError(what, where=document.at(()), code="missing-key"))
    return found


def _type_error(what: str, where: Location | None) -> UsageError:
    return UsageError(what, where=where, code="wrong-type")


def _fill_options(document: Document, options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    """Return the fragment with the options filled in, including the positions of its parts."""
    errors: list[UsageError] = []
    given = {**options, "instance": view.instance}
    parts = {key: _fill(document, (key,), document.data.get(key), given, errors) for key in _FILLED}
    if errors:
        raise FileErrors(errors)
    places = {path: document.at(path) for path in document.values if path[:1] == ("rules",)}
    return Fragment(
        rules=parts["rules"],
        statistics=parts["statistics"] or {},
        heartbeat=parts["heartbeat"],
        places=places,
    )


def _fill(
    document: Document,
    path: Path,
    value: Any,
    given: Mapping[str, Any],
    errors: list[UsageError],
) -> Any:
    if isinstance(value, dict):
        filled = {k: _fill(document, (*path, k), v, given, errors) for k, v in value.items()}
        return {key: item for key, item in filled.items() if item is not _ABSENT}
    if isinstance(value, list):
        items = [_fill(document, (*path, i), v, given, errors) for i, v in enumerate(value)]
        return [item for item in items if item is not _ABSENT]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _WHOLE.fullmatch(value)
    if whole is None:
        errors.append(
            UsageError(
                f"a placeholder must be the whole value, not part of {value!r}",
                where=document.at(path),
                hint="write '${NAME}' alone, and put the text around it into the option's value",
                code="bad-placeholder",
            )
        )
        return value
    name = whole[1]
    if name in given:
        return copy.deepcopy(given[name])
    known = [*(document.data.get("options") or {}).get("properties", {}), "instance"]
    if name in known:
        return _ABSENT  # the option has no value and no default: omit the key
    near = nearest(name, known)
    hint = f"did you mean ${{{near}}}?" if near else f"its options are {', '.join(known)}"
    errors.append(
        UsageError(
            f"the algorithm has no option {name!r}",
            where=document.at(path),
            hint=hint,
            code="no-such-key",
        )
    )
    return value


class _Absent:
    pass


_ABSENT = _Absent()
