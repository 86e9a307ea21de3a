"""Plot the values that a run's jobs reported, and the firings of its rules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ensemble_core import EnsembleError, UsageError, closest, no_such
from ensemble_core.cli.toolkit import (
    KeptRun,
    complete_runs,
    errors_as_json,
    format_duration,
    json_option,
    parse_path,
    print_error,
    print_line,
    print_warning,
    printable,
    state_option,
    to_json,
)
from ensemble_plot.image_file import check_place, format_of, inches, need_matplotlib, render, write

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ensemble_core.cli.toolkit import BoundRule, Ensemble
    from ensemble_plot.generator_picture import ParallelPicture
    from ensemble_plot.picture import Axis, Picture
    from ensemble_plot.run_history import RunHistory
    from ensemble_plot.table_picture import TablePicture
    from ensemble_plot.timeline import Timeline


#: Default number of variables: if the rules use variables, and if they use none.
_OF_RULES, _FIRST = 6, 4
#: A variable that occurs in fewer than one of this many rows is not shown alone.
_DOTS, _RARE = 2, 10
#: Maximum number of panels in one picture.
_PANELS = 24
#: Number of rows to read when completing a name.
_LOOKED_AT = 4000

#: A comma between names, not one within brackets as in ``f_ave[1,2]``.
_COMMA = re.compile(r",(?![^\[\]()]*[\])])")


def _complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Return the shell completions of a variable, group or job name."""
    from click.shell_completion import CompletionItem

    names: dict[str, None] = {}
    before, comma, last = incomplete.rpartition(",")
    try:
        with KeptRun(ctx.params.get("state"), ctx.params.get("run") or "last") as kept:
            for row in kept.journal.rows(0, _LOOKED_AT):
                if row.type == "observed" and row.job is not None:
                    if parameter.name == "variable":
                        names.update(dict.fromkeys((row.data or {}).get("values") or ()))
                    else:
                        job = row.job
                        names[job if parameter.name == "job" else job.rpartition(".")[0]] = None
    except EnsembleError:
        return []
    found: list[CompletionItem] = [
        CompletionItem(before + comma + name) for name in names if name.startswith(last)
    ]
    return found


@click.command()
@click.argument("run", metavar="[RUN]", default="last", shell_complete=complete_runs)
@click.argument("table", metavar="[TABLE]", required=False)
@click.option("--timeline", is_flag=True, help="Draw the jobs over time, and where rules fired.")
@click.option("--parallel", is_flag=True, help="Draw a generator's points as parallel coordinates.")
@click.option(
    "--variable",
    metavar="NAME,…",
    multiple=True,
    shell_complete=_complete,
    help="Variables to show, one panel each.  [default: those in the rules, or the first four]",
)
@click.option(
    "--group",
    metavar="GROUP,…",
    multiple=True,
    shell_complete=_complete,
    help="Only jobs of these groups.",
)
@click.option(
    "--job", metavar="JOB,…", multiple=True, shell_complete=_complete, help="Only these jobs."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Output file: .png, .svg or .pdf.  [default: the run's tag, with .png]",
)
@click.option(
    "--x",
    "axis",
    type=click.Choice(["step", "time"]),
    help="Horizontal axis: the rows' own clock, or the time since the run's start."
    "  [default: step, if rows have one]",
)
@click.option(
    "--size",
    metavar="WxH",
    help="1600x1000 (pixels), 16x10cm or 6x4in.  [default: depends on the panels]",
)
@click.option(
    "--title",
    metavar="TEXT",
    help="Title.  [default: the ensemble's name and the run's tag; for a table or timeline, none]",
)
@state_option
@json_option
def plot(
    run: str,
    table: str | None,
    timeline: bool,
    parallel: bool,
    variable: tuple[str, ...],
    group: tuple[str, ...],
    job: tuple[str, ...],
    output: str | None,
    axis: Axis | None,
    size: str | None,
    title: str | None,
    state: str | None,
    as_json: bool,
) -> int:
    """Plot the values that a run's jobs reported, and the firings of its rules.

    RUN is the run's tag, its unique beginning or end, or 'last' (the default). The run may still be
    active.

    Without TABLE, each variable in the jobs' output is a panel, and each job a curve. Marks show
    where rules fired, and where jobs were cancelled or failed.

    TABLE names a table of results or a generator. The table's key 'plot' chooses the columns to
    draw. Two objectives of a generator are drawn against each other, with the Pareto front;
    otherwise, each objective is drawn with the best value so far. With --parallel, each point is a
    line over its parameters and results.

    With --json, the data are printed, and a picture is only written if -o is given.

    Needs matplotlib: pip install 'ensemble-core[plot]>=1.0'.
    """

    with errors_as_json(as_json):
        measures = None if size is None else inches(size)
        draws = output is not None or not as_json
        beside = (("--variable", variable), ("--job", job), ("--x", axis))
        wrong = [name for name, value in beside if value and (table is not None or timeline)]
        wrong += ["--group"] if group and table is not None else []
        wrong += ["--timeline"] if timeline and table is not None else []
        if parallel and table is None:
            raise click.UsageError("--parallel needs the name of a generator")
        if wrong:
            said = "a table of results" if table is not None else "--timeline"
            raise click.UsageError(f"{wrong[0]} cannot be combined with {said}")
        if output is not None:
            format_of(output)
            check_place(Path(output))
        if draws:
            need_matplotlib()
        if table is not None or timeline:
            with KeptRun(state, run) as kept:
                other = (
                    _table_picture(kept, table, title, parallel)
                    if table
                    else _timeline(kept, group, title)
                )
                tag, standing = kept.tag, kept.state
            path = Path(output or f"{table or tag}.png") if draws else None
            if path is not None:
                write(path, render(other, format_of(str(path)), measures))
            if as_json:
                file = None if path is None else str(path.absolute())
                told = {"run": tag, "state": standing, "file": file, **other.to_dict()}
                print_line(to_json(told))
            elif path is not None:
                print_line(printable(f"{path}: {table or 'timeline'} of {tag}"))
                for y, count in getattr(other, "gaps", {}).items():
                    if count:
                        some = "value is" if count == 1 else "values are"
                        print_line(printable(f" gaps: {count:,} {some} missing in {y}"))
            return 0
        with KeptRun(state, run, salvage=True) as kept:
            selection = _Selection(kept, _names(variable), _names(group), _names(job))
            picture = selection.picture(axis, title)
            path = Path(output or f"{kept.tag}.png") if draws else None
            damage = selection.history.damage or kept.damage()
        if path is not None:
            write(path, render(picture, format_of(str(path)), measures))
        if as_json:
            file = None if path is None else str(path.absolute())
            print_line(
                to_json(
                    {"run": kept.tag, "state": selection.state, "file": file, **picture.to_dict()}
                )
            )
        elif path is not None:
            for line in _summary_lines(path, picture, selection):
                print_line(line)
        if damage is not None:
            sys.stdout.flush()

            print_error(damage)
            return 1
    return 0


def _table_picture(
    kept: KeptRun, name: str, title: str | None, parallel: bool
) -> TablePicture | ParallelPicture:
    from ensemble_plot.table_picture import table_picture

    engine = kept.recover(compare=False).engine
    tables, generators = engine.state.ensemble.tables, engine.state.ensemble.generators
    if name in generators and name in engine.state.generators:
        from ensemble_plot.generator_picture import generator_picture, parallel_picture

        standing = engine.state.generators[name]
        if parallel:
            return parallel_picture(name, generators[name].vocs, standing, title)
        return generator_picture(name, generators[name].vocs, standing, title)
    if name not in tables:
        if_empty = "its file has no 'results:'"
        raise no_such("the run", "table", name, [*tables, *generators], if_empty)
    if parallel:
        raise click.UsageError("--parallel needs a generator, not a table")
    found = engine.tables()
    return table_picture(name, tables[name], found[name], title, found.pivot_values(name))


def _timeline(kept: KeptRun, groups: Iterable[str], title: str | None) -> Timeline:
    from contextlib import closing

    from ensemble_plot.timeline import timeline_of

    with closing(kept.jobs(attempts=True)) as jobs:
        return timeline_of(jobs.rows(), kept.journal, _names(groups), title)


class _Selection:
    """History of a run, as selected on the command line, and the variables to show."""

    def __init__(
        self, kept: KeptRun, variables: list[str], groups: list[str], jobs: list[str]
    ) -> None:
        self._kept = kept
        self.state = kept.state
        self._groups, self._jobs = groups, jobs
        self._speaks: dict[str, tuple[str, ...]] = self._rules({})
        wanted = variables or [name for names in self._speaks.values() for name in names]
        self.history = self._read(wanted or None)
        if self.history.added:
            self._speaks = self._rules(self.history.added)
            more = [name for names in self._speaks.values() for name in names]
            if not variables and not set(more) <= set(wanted):
                wanted = more
                self.history = self._read(wanted)
        self._check()
        if variables:
            self.shown = self._check_variables(variables)
        else:
            self.shown = self._choose(wanted, _OF_RULES)
            if not self.shown:
                if wanted:  # none of the requested variables had a value
                    self.history = self._read(None)
                self.shown = self._choose(self.history.variables(), _FIRST)
            elif self._is_sparse():
                self.history = self._read(None)
                first = self._choose(self.history.variables(), _FIRST + len(self.shown))
                self.shown = list(dict.fromkeys([*self.shown, *first]))[: _FIRST + 1]
        if not self.shown:
            raise self._no_values_error()
        self.history.keep(self.shown)

    def _read(self, variables: list[str] | None) -> RunHistory:
        from ensemble_plot.run_history import read

        return read(self._kept.journal, variables=variables, groups=self._groups, jobs=self._jobs)

    def _rules(self, added: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        """Return the names that each rule uses, in all versions of the ensemble file."""

        found: dict[str, tuple[str, ...]] = {}
        try:
            for text in self._kept.journal.texts():
                found.update(variables_of_rules(self._kept.loading(text), added))
        except EnsembleError as error:
            print_warning(f"cannot read the ensemble file here: {error}")
        return found

    def _choose(self, names: Iterable[str], most: int) -> list[str]:
        """Return the first ``most`` of these names that occur in rows.

        The variable that is the rows' clock is used only if no other name occurs.
        """
        kept = set(self.history.variables())
        found = [name for name in dict.fromkeys(names) if name in kept]
        moving = [name for name in found if name != self.history.clock]
        return (moving or found)[:most]

    def _is_sparse(self) -> bool:
        """Return whether the shown values occur in only a few of very many rows, like marks of
        events.

        Without other variables, the picture would then show only dots.
        """
        rows = [one.rows for key, one in self.history.curves.items() if key.variable in self.shown]
        return max(rows) <= _DOTS and self.history.rows > _RARE * sum(rows)

    def _check_variables(self, variables: list[str]) -> list[str]:

        seen = self.history.seen
        if not seen:
            raise self._no_values_error()
        if len(variables) > _PANELS:
            raise UsageError(
                f"{len(variables)} variables are too many for one picture",
                hint=f"choose at most {_PANELS} of them with --variable",
                code="too-many",
            )
        for name in variables:
            if name not in seen:
                raise self._unknown("variable", name, seen)
        return variables

    def _check(self) -> None:
        """Raise :class:`UsageError` for a group or job that the run does not have."""
        tracks = self.history.tracks
        groups = dict.fromkeys(track.group for track in tracks.values())
        for name in self._groups:
            if name not in groups:
                raise self._unknown("group", name, groups)
        for name in self._jobs:
            if name not in tracks:
                raise self._unknown("job", name, tracks)

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> EnsembleError:

        names = list(known)
        lower = {each.lower(): each for each in reversed(names)}
        near = lower.get(closest(name.lower(), lower) or "")
        shown = ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
        what = {
            "variable": f"no job of run {self._kept.tag} reported {name!r}",
            "group": f"run {self._kept.tag} has no jobs of a group {name!r}",
            "job": f"run {self._kept.tag} has no job {name!r}",
        }[kind]
        listed = f"there {'is' if len(names) == 1 else 'are'} {shown or 'none'}"
        return UsageError(
            what,
            hint=f"did you mean {near!r}? {listed}" if near else listed,
            code=f"no-such-{kind}",
        )

    def _no_values_error(self) -> EnsembleError:

        some = " of these jobs" if self._groups or self._jobs else ""
        hint = "values come from jobs whose group has 'observe:'"
        if self._kept.journal.about and not self.history.rows:
            hint += "; 'ensemble status' shows the state of the run"
        return EnsembleError(
            f"nothing to draw: run {self._kept.tag} has no values{some}",
            hint=hint,
            code="nothing-to-draw",
        )

    def picture(self, axis: Axis | None, title: str | None) -> Picture:
        from ensemble_plot.picture import compose

        picture = compose(
            self.history,
            self.shown,
            axis=axis,
            speaks=self._speaks,
            title=title,
            state=self._standing(),
        )
        if not any(panel.lines for panel in picture.panels):
            raise EnsembleError(
                "nothing to draw: the rows of these variables have no 'clock' (step or time)",
                hint="use '--x time' to draw over the time since the run's start",
                code="no-clock",
            )
        return picture

    def _standing(self) -> str:
        """Return the state of the run, if it is not over."""

        history = self.history
        words = {"running": "running", "limited": "held by its limits"}.get(self.state, self.state)
        if self.state in ("ended", "new", "unreadable") or history.began is None:
            return ""
        after = format_duration((history.newest or history.began) - history.began)
        return f"{words}, {after} after its start"

    @property
    def others(self) -> list[str]:
        """The variables that are not shown, except the clock."""
        hidden = {*self.shown, self.history.clock}
        return [name for name in self.history.seen if name not in hidden]


def _summary_lines(path: Path, picture: Picture, selection: _Selection) -> list[str]:
    """Return the summary of what was drawn and what was omitted."""

    jobs = len(picture.jobs)
    shown = ", ".join(panel.variable for panel in picture.panels)
    lines = [f"{path}: {shown} of {jobs} job{'' if jobs == 1 else 's'}"]
    gaps = sum(line.gaps for panel in picture.panels for line in panel.lines)
    if gaps:
        lines.append(f" gaps: {gaps:,} value{'s are' if gaps > 1 else ' is'} not finite")
    if selection.others:
        lines.append(f" not shown: {_join_names(selection.others)} (--variable)")
    if picture.unplaced:
        rules = _join_names(list(picture.unplaced))
        lines.append(f" fired on none of the rows shown: {rules} (--x time shows when)")
    return [printable(line) for line in lines]


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _names(given: Iterable[str]) -> list[str]:
    """Return the names in options that may be repeated and may contain several names."""
    found = [name.strip() for text in given for name in _COMMA.split(text)]
    return list(dict.fromkeys(name for name in found if name))


def variables_of_rules(
    ensemble: Ensemble,
    added: Mapping[str, Mapping[str, Any]] | None = None,  # rules added during the run, by id
) -> dict[str, tuple[str, ...]]:
    """Return the variables that each rule uses, by rule id.

    They include event fields and parameters that the rule's condition uses.
    """
    rules = list(ensemble.rules)
    for name, spec in (added or {}).items():
        try:
            rules.append(ensemble.binder.rule(spec, name))
        except EnsembleError:  # a plugin that the rule needs may be missing
            continue
    return {rule.id: _variables(rule, ensemble) for rule in rules}


def _variables(rule: BoundRule, ensemble: Ensemble) -> tuple[str, ...]:
    found: dict[str, None] = {}
    paths = []
    condition = rule.condition
    if rule.trigger.metric is not None:
        paths.append(rule.trigger.metric)
    if condition is not None:
        text = condition.text
        for name in sorted(condition.names, key=lambda name: (text.find(name), name)):
            found[name] = None
        paths += sorted(condition.metrics, key=lambda path: (text.find(path), path))
    for path in paths:
        try:
            metric = parse_path(path, ensemble.groups, ensemble.statistics)
        except EnsembleError:
            continue
        if metric.kind == "series" and metric.group:
            found[metric.variable.removeprefix("rows.")] = None
    return tuple(found)
