"""``ensemble observe FILE``: shows the rows that observers make of a file, without a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from ensemble_core.cli.error_format import usage_errors
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import load_plugins, plugin_option
from ensemble_core.display.text_style import count_of, format_table, printable, style_of
from ensemble_core.errors import UsageError, call_plugin, raised_at
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ensemble_core.cli.pattern_proposals import LineKinds, Proposal
    from ensemble_core.model.job_group import JobGroup
    from ensemble_core.plugin.observer import Observer, Row
    from ensemble_core.plugin.registry import Registry

#: How many bytes are read at a time.
_PORTION = 1 << 16
#: How many columns are shown beside each other, and how many names are listed.
_MOST_COLUMNS, _MOST_NAMES = 10, 40
_EXAMPLE = "\"regex: {fields: {E: 'E = (\\S+)'}}\""
#: Observers that read each line by itself.
_LINE_BY_LINE: dict[str, None] = {"json-lines": None, "key-value": None}
#: Observers whose complaints are shown if no observer finds rows.
_GENERAL = (*_LINE_BY_LINE, "table")
#: How many patterns are proposed, and how many kinds of lines are looked at.
_MOST_PROPOSED, _MOST_KINDS = 3, 50
#: Programs that decompress, by the first bytes of a file.
_COMPRESSED = {b"\x1f\x8b": "zcat", b"BZh": "bzcat", b"\xfd7zXZ": "xzcat"}
#: A file that has a job group for the given observers.
_FILE = """
jobs: [{name: observed, command: "true"}]
rules: [{trigger: start, action: {name: submit, label: observed}}]
"""


@dataclass(slots=True)
class _Found:
    """The rows that one observer has made."""

    observer: str
    count: int = 0
    rows: list[Row] = field(default_factory=list)  #: The first ones.
    #: For each column, the number of values and the last one.
    columns: dict[str, tuple[int, float]] = field(default_factory=dict)
    clock: float | None = None  #: The latest one.
    complaint: str | None = None
    #: True if the observer has raised an error. It reads no further.
    failed: bool = False

    def take_from(self, rows: Callable[[], Iterable[Row]], most: int) -> None:
        """Take the rows that a method of the observer returns."""
        if self.failed:
            return
        try:
            for row in rows():
                self.take(row, most)
        except Exception as error:  # an error in a plugin's code, which must not hide other rows
            self.failed = True
            self.complaint = (
                f"the observer {self.observer!r} failed after {count_of(self.count, 'row')}: "
                f"{type(error).__name__}: {error} ({raised_at(error)})"
            )

    def take(self, row: Row, most: int) -> None:
        self.count += 1
        if len(self.rows) < most:
            self.rows.append(row)
        for name, value in row.values.items():
            self.columns[name] = (self.columns.get(name, (0, 0.0))[0] + 1, value)
        self.clock = self.clock if row.clock is None else row.clock


@click.command()
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
)
@click.option(
    "--with",
    "given",
    metavar="OBSERVER",
    help="What to write under 'observe:', such as 'key-value: {fields: [loss]}'. "
    "Default: try all observers that need no options.",
)
@click.option(
    "--in",
    "study",
    metavar="STUDY",
    type=click.Path(dir_okay=False),
    help="Use the observers of a job group of this ensemble file.",
)
@click.option("--group", metavar="GROUP", help="The job group. Default: the only one.")
@click.option(
    "--rows",
    "most",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="How many rows to show.",
)
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each observer.")
def observe(
    files: tuple[str, ...],
    given: str | None,
    study: str | None,
    group: str | None,
    most: int,
    plugins: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show the rows that observers make of a file, without a run.

    FILE is the output of a program, or - for standard input. Several files are parts of one
    output, and are read in the order of their numbers. The exit code is 0 only if there are rows.
    """
    if given is not None and study is not None:
        raise click.UsageError("--with cannot be combined with --in")
    if group is not None and study is None:
        raise click.UsageError("--group needs --in STUDY")
    registry = load_plugins(plugins)
    with usage_errors():
        chosen = _group(registry, given, study, group)
        observers = {} if chosen is None else _build(registry, chosen)
    if chosen is None:
        names = [
            name
            for name, each in registry.observers.items()
            if "required" not in each.options and ":" not in name
        ]
        observers = _build(registry, _observed(registry, dict.fromkeys(names)))
    from ensemble_core.cli.pattern_proposals import LineKinds
    from ensemble_core.runtime.tail.multi_file_output import in_order

    kinds = LineKinds() if chosen is None else None
    tried = found = _read(sorted(files, key=in_order), observers, most, kinds)
    if kinds is not None:
        found = sorted(
            (each for each in tried if each.count or each.failed), key=lambda each: -each.count
        )
    if as_json:
        for each in found:
            click.echo(to_json(_document(each)))
    else:
        for at, each in enumerate(found):
            _show(each, most, apart=at > 0)
        if kinds is not None:
            _propose(kinds, files, _build(registry, _observed(registry, _LINE_BY_LINE)), found)
            for each in () if found else tried:
                why = (each.complaint or "").partition("; ")[2]
                if each.observer in _GENERAL and why and "use the observer" not in why:
                    click.echo(f"{each.observer}: {printable(each.complaint or '')}", err=True)
    return 0 if any(each.count and not each.failed for each in found) else 1


def _group(
    registry: Registry, given: str | None, study: str | None, group: str | None
) -> JobGroup | None:
    """Return a job group with the observers to use, or ``None`` if no option names them."""
    if given is not None:
        from ensemble_core.config.yaml_reader import read_value

        data, _ = read_value(given, "--with")
        if isinstance(data, str):
            data = {data: None}
        return _observed(registry, data)
    if study is None:
        return None
    from ensemble_core import config

    groups = config.load(study, registry, must_begin=False).groups
    names = [name for name, each in groups.items() if each.observe]
    if group is None and len(names) == 1:
        group = names[0]
    if group not in names:
        what = "has no observer" if group in groups else "does not exist"
        raise UsageError(
            f"the job group {group!r} {what}" if group else f"{study} has several groups to choose",
            hint=f"choose one with --group: {', '.join(names)}"
            if names
            else "add 'observe:' to a job group",
            code="no-such-group",
        )
    return groups[group]


def _observed(registry: Registry, observers: Any) -> JobGroup:
    """Return a job group with these observers. Raises :class:`EnsembleError` if they are wrong."""
    from ensemble_core import config

    if isinstance(observers, dict):
        observers = {name: options or {} for name, options in observers.items()}
    ensemble = config.load_text(_FILE, registry)
    changed: JobGroup = ensemble.binder.group(ensemble.groups["observed"], {"observe": observers})
    return changed


def _build(registry: Registry, group: JobGroup) -> dict[str, Observer]:
    from ensemble_core.plugin.discovery import use_registry
    from ensemble_core.plugin.observer import Observer

    job = next(group.jobs(0))
    with use_registry(registry):
        return {
            name: call_plugin(
                registry.observers[name].build,
                job,
                options,
                returns=Observer,
                whose=f"the observer {name!r}",
            )
            for name, options in group.observe.items()
        }


def _propose(
    kinds: LineKinds,
    files: Sequence[str],
    observers: Mapping[str, Observer],
    found: Sequence[_Found],
) -> None:
    """Show patterns for lines that none of the observers has read."""
    names = printable(" ".join(map(shlex.quote, files)))
    tables = any(each.observer == "table" for each in found)
    proposals: list[Proposal] = []
    for each in islice(kinds.proposals(), _MOST_KINDS):
        line = f"{each.line}\n".encode()
        read = sum(len(row.values) for one in observers.values() for row in one.feed(line))
        if read < each.columns and (each.has_words or not tables):
            proposals.append(each)
    del proposals[_MOST_PROPOSED:]
    if not found:
        example = "" if proposals else ": write a pattern, as in --with " + _EXAMPLE
        click.echo(f"no observer without options finds rows in {names}{example}", err=True)
    for each in proposals:
        alike = "this line" if each.alike == 1 else f"{each.alike} lines such as this one"
        click.echo(
            f"to read {alike}, use a pattern (rename the columns in <> as you like):\n"
            f"  {each.line}\n"
            f"  ensemble observe {names} --with \"regex: {{fields: ['{each.pattern}']}}\"",
            err=True,
        )


def _read(
    files: Sequence[str], observers: Mapping[str, Observer], most: int, kinds: LineKinds | None
) -> list[_Found]:
    """Feed the files to each observer."""
    found = {name: _Found(name) for name in observers}
    for file in files:
        try:
            with click.open_file(file, "rb") as stream:
                if not _feed(file, stream, observers, found, most, kinds) and file != files[-1]:
                    for name, observer in observers.items():
                        found[name].take_from(partial(observer.feed, b"\n"), most)
        except OSError as error:
            raise UsageError(
                f"cannot read {file}: {error.strerror or error}",
                hint="check the path",
                code="unreadable-file",
            ) from None
    for name, observer in observers.items():
        found[name].take_from(observer.finish, most)
        if not found[name].failed:
            found[name].complaint = observer.complaint()
    return [*found.values()]


def _feed(
    file: str,
    stream: IO[bytes],
    observers: Mapping[str, Observer],
    found: Mapping[str, _Found],
    most: int,
    kinds: LineKinds | None,
) -> bool:
    """Feed a file to each observer. Return whether its last line has an end."""
    begun, ends = False, True
    while data := stream.read(_PORTION):
        program = next((name for sign, name in _COMPRESSED.items() if data.startswith(sign)), "")
        if program and not begun:
            raise UsageError(
                f"{file} is compressed",
                hint=f"decompress it first: {program} {file} | ensemble observe -",
                code="not-utf-8",
            )
        begun, ends = True, data.endswith(b"\n")
        if kinds is not None:
            kinds.feed(data)
        for name, observer in observers.items():
            found[name].take_from(partial(observer.feed, data), most)
    return ends


def _document(found: _Found) -> dict[str, Any]:
    rows = [{"clock": row.clock, "values": dict(row.values)} for row in found.rows]
    return {
        "observer": found.observer,
        "count": found.count,
        "columns": {name: count for name, (count, _) in found.columns.items()},
        "rows": rows,
        "problem": found.complaint,
    }


def _show(found: _Found, most: int, *, apart: bool) -> None:
    look = style_of(sys.stdout)
    if apart:
        click.echo()
    has = f"{count_of(found.count, 'row')}, {count_of(len(found.columns), 'column')}"
    click.echo(f"{look.paint(printable(found.observer), 'good')}: {has}")
    clocks = found.clock is not None
    names = [*found.columns][:_MOST_COLUMNS]
    if found.rows:
        head = [*(["clock"] if clocks else []), *map(printable, names)]
        lines = [[_cell(row.clock)] * clocks + [_cell(row.values.get(name)) for name in names]
                 for row in found.rows]  # fmt: skip
        for line in format_table([head, *lines], [True] * len(head), "  "):
            click.echo(line)
        if found.count > len(found.rows) and most:
            last = [_cell(found.clock)] * clocks + [_cell(found.columns[name][1]) for name in names]
            told = ", ".join(f"{a} {b}" for a, b in zip(head, last, strict=True))
            click.echo(f"  and {found.count - len(found.rows)} more; last values: {told}")
    more = [*found.columns][_MOST_COLUMNS:]
    if more:
        listed = ", ".join(map(printable, more[:_MOST_NAMES]))
        click.echo(f"  more columns: {listed}{' …' * (len(more) > _MOST_NAMES)}")
    if found.complaint is not None:
        click.echo(style_of(sys.stderr).warning(printable(found.complaint)), err=True)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value}"
