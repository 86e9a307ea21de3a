"""``ensemble validate FILE…``: checks ensemble files without running them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ensemble_core.cli.error_format import flatten, format_error
from ensemble_core.cli.options import (
    allow_idle_option,
    executor_option,
    key_value_option,
    load_plugins,
    plugin_option,
    profile_option,
    set_option,
    state_option,
)
from ensemble_core.display.text_style import count_of, format_table, print_line, printable, style_of
from ensemble_core.errors import EnsembleError
from ensemble_core.quick_dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ensemble_core.config.resolved_values import ResolvedValue
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.session.executor_choice import ExecutorChoice
    from ensemble_core.session.reuse_explanations import Preview

#: How many compared files of a group are listed at most.
_FILES = 10


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@executor_option
@profile_option
@key_value_option("An option of the executor, as for 'ensemble run'.")
@plugin_option
@set_option
@allow_idle_option
@click.option(
    "--expanded",
    is_flag=True,
    help="Print the fully expanded file.",
)
@click.option(
    "--resolved",
    is_flag=True,
    help="Print the executor, its options, the limits and the fields of job groups, each with its "
    "source.",
)
@click.option(
    "--reuse",
    metavar="RUN",
    multiple=True,
    help="Show how many jobs of each group 'ensemble run --reuse RUN' would reuse.",
)
@state_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def validate(
    files: tuple[str, ...],
    executor: str | None,
    profile: str | None,
    options: tuple[str, ...],
    plugins: tuple[str, ...],
    overrides: tuple[str, ...],
    allow_idle: bool,
    expanded: bool,
    resolved: bool,
    reuse: tuple[str, ...],
    state: str | None,
    as_json: bool,
) -> int:
    """Check ensemble files without running them.

    Each error is shown as FILE:LINE:COLUMN with a hint. If --executor or a profile names an
    executor, the command also checks whether it supports the rules' actions. The exit code is 2 if
    a file is invalid.
    """
    from ensemble_core import config
    from ensemble_core.session.executor_choice import (
        build_executor,
        choose_executor,
        profile_options,
        read_options,
    )
    from ensemble_core.session.profile_files import find_profile

    registry = load_plugins(plugins)
    settings = find_profile(registry, profile)
    name = executor or (settings and settings.executor)
    record = registry.lookup("executor", name) if name else None
    choice = None
    chosen: dict[str, Any] | None = None
    if resolved or (options and record is None):
        choice = choose_executor(registry, executor, settings)
        record = choice.record
    if record is not None:
        defaults = profile_options(registry, record, settings)
        given = read_options(record, options, {})
        chosen = {**defaults, **given}
        # Without options, it may lack some that it needs. Others may be in the file ('pilots').
        if chosen and not record.kinds:
            build_executor(registry, record, chosen)
    if resolved:
        if len(files) > 1 or expanded:
            raise click.UsageError("--resolved takes a single file, and not --expanded")
        assert choice is not None
        return _print_resolved(
            files[0],
            registry,
            replace(choice, options=chosen or {}),
            named=executor is not None,
            flags=given,
            overrides=overrides,
            allow_idle=allow_idle,
            as_json=as_json,
        )
    if expanded:
        return _print_expanded(files, registry, record, chosen, overrides, allow_idle, as_json)
    look, warned = style_of(sys.stdout), style_of(sys.stderr)
    documents: list[dict[str, Any]] = []
    wrong = 0
    for file in files:
        try:
            ensemble = config.load(
                file,
                registry,
                executor=record,
                options=chosen,
                overrides=list(overrides),
                must_begin=not allow_idle,
                profile=settings,
            )
            if record is not None and record.kinds and (chosen or ensemble.kinds):
                kinds = {"kinds": ensemble.kinds} if ensemble.kinds else {}
                build_executor(registry, record, {**kinds, **(chosen or {})})
            previews = _previews(ensemble, reuse, state) if reuse else []
        except EnsembleError as error:
            errors = flatten(error)
            wrong += len(errors)
            documents.append(
                {"file": file, "valid": False, "errors": [each.to_dict() for each in errors]}
            )
            if not as_json:
                sources: dict[str, list[str]] = {}
                for each in errors:
                    click.echo(format_error(each, warned, sources), err=True)
            continue
        groups, rules = len(ensemble.groups), len(ensemble.rules)
        documents.append(
            {
                "file": file,
                "valid": True,
                "name": ensemble.name,
                "profile": settings.name if settings else None,
                "groups": list(ensemble.groups),
                "jobs": {name: group.size for name, group in ensemble.groups.items()},
                "rules": [rule.id for rule in ensemble.rules],
                "warnings": list(ensemble.warnings),
                "errors": [],
                **({"reuse": [each._asdict() for each in previews]} if reuse else {}),
            }
        )
        if not as_json:
            for text in ensemble.warnings:
                click.echo(warned.warning(printable(text)), err=True)
            valid = look.paint("valid", "good")
            has = f"{count_of(groups, 'job group')}, {count_of(rules, 'rule')}"
            using = f" (profile {settings.name})" if settings else ""
            click.echo(f"{printable(file)}: {valid}: {has}{using}")
            for name, group in ensemble.groups.items():
                if group.size > 1:
                    click.echo(f"  each submit of {name} creates {count_of(group.size, 'job')}")
            for shown in previews:
                told = f"  {shown.group}: {shown.reused} of {shown.jobs} reused"
                parts = ", ".join(f"{count} {part}" for part, count in shown.missing.items())
                click.echo(printable(f"{told}; not: {parts}" if parts else told))
                compared = ", ".join(shown.files[:_FILES]) or "no file"
                more = len(shown.files) - _FILES
                click.echo(printable(f"    compares {compared}{f' and {more} more' * (more > 0)}"))
    if as_json:
        click.echo(json.dumps({"valid": not wrong, "files": documents}, indent=2))
    elif wrong:
        bad = sum(not document["valid"] for document in documents)
        click.echo(f"{count_of(wrong, 'error')} in {count_of(bad, 'file')}", err=True)
    return 2 if wrong else 0


def _previews(ensemble: Ensemble, reuse: tuple[str, ...], state: str | None) -> list[Preview]:
    """Return a preview of the jobs that a run of this file would reuse from these runs."""
    from ensemble_core.cli.error_format import print_warning
    from ensemble_core.journal.run_store import state_folder
    from ensemble_core.session.reuse_explanations import preview

    return preview(ensemble, state_folder(state), reuse, print_warning)


def _print_expanded(
    files: tuple[str, ...],
    registry: Any,
    record: Any,
    options: Mapping[str, Any] | None,
    overrides: tuple[str, ...],
    allow_idle: bool,
    as_json: bool,
) -> int:
    """Print a file with its sources and instances expanded. Raises :class:`EnsembleError`."""
    from ensemble_core import config
    from ensemble_core.config.file_text import read_file
    from ensemble_core.config.yaml_reader import write_yaml

    if len(files) > 1:
        raise click.UsageError("--expanded takes a single file")
    (file,) = files
    text = read_file(file)
    ensemble = config.load_text(
        text,
        registry,
        file=file,
        executor=record,
        options=options,
        overrides=list(overrides),
        must_begin=not allow_idle,
    )
    for warning in ensemble.warnings:
        click.echo(style_of(sys.stderr).warning(printable(warning)), err=True)
    data = config.expanded(
        text, registry, file=file, overrides=list(overrides), attached=ensemble.attached
    )
    click.echo(json.dumps(data, indent=2) if as_json else write_yaml(data), nl=as_json)
    return 0


def _print_resolved(
    file: str,
    registry: Registry,
    choice: ExecutorChoice,
    *,
    named: bool,
    flags: Collection[str],
    overrides: Sequence[str],
    allow_idle: bool,
    as_json: bool,
) -> int:
    """Print the values and their sources. Raises :class:`EnsembleError` for an invalid file.

    ``named`` says whether the executor was given on the command line, and ``flags`` which of its
    options were.
    """
    from ensemble_core import config
    from ensemble_core.config.file_text import read_file

    text = read_file(file)
    ensemble = config.load_text(
        text,
        registry,
        file=file,
        executor=choice.record,
        options=choice.options,
        overrides=list(overrides),
        must_begin=not allow_idle,
        profile=choice.profile,
    )
    for warning in ensemble.warnings:
        click.echo(style_of(sys.stderr).warning(printable(warning)), err=True)
    values = [
        *_executor_values(choice, named, flags),
        *config.resolved(
            text,
            registry,
            file=file,
            overrides=list(overrides),
            attached=ensemble.attached,
            profile=choice.profile,
        ),
    ]
    if as_json:
        rows = [{"key": key, "value": value, "source": source} for key, value, source, _ in values]
        profile = choice.profile.name if choice.profile else None
        click.echo(json.dumps({"profile": profile, "values": rows}, indent=2))
        return 0
    print_line(f"profile: {choice.profile.name if choice.profile else 'none'}")
    for line in format_table([(each.key, each.shown, each.source) for each in values]):
        print_line(printable(line))
    return 0


def _executor_values(
    choice: ExecutorChoice, named: bool, flags: Collection[str]
) -> Iterator[ResolvedValue]:
    from ensemble_core.config.resolved_values import BUILT_IN, ResolvedValue
    from ensemble_core.config.schema import option_defaults
    from ensemble_core.model.option_values import leaves

    profile, source = choice.profile, "--executor" if named else BUILT_IN
    if not named and profile is not None and profile.executor is not None:
        source = str(profile.at("executor"))
    yield ResolvedValue.of("executor", choice.name, source)
    for path, value in leaves(option_defaults(choice.record.options, choice.options)):
        source = BUILT_IN
        if path[0] in flags:
            source = "-o"
        elif path[0] in choice.options and profile is not None:
            source = str(profile.at("options", *path))
        yield ResolvedValue.of(".".join(("options", *path)), value, source)
