"""Simulate an ensemble file: real rules on a virtual clock, without running jobs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from ensemble_core import EnsembleError, ExecutorPlugin, Expression, UsageError
from ensemble_core.cli.toolkit import (
    Call,
    Display,
    Ensemble,
    KeptRun,
    Profile,
    Purpose,
    Registry,
    display_options,
    find_profile,
    key_value_option,
    load_plugins,
    load_text,
    parse_duration,
    plugin_option,
    print_line,
    print_warning,
    read_document,
    read_file,
    read_options,
    require_code,
    set_option,
    state_option,
    to_json,
)
from ensemble_simulate.distributions import formula, parse
from ensemble_simulate.executor import Machine
from ensemble_simulate.forecast import COST_NAMES, Figures, Study, simulate_all
from ensemble_simulate.model_file import read
from ensemble_simulate.models import Model, Result, without_model
from ensemble_simulate.recorded_model import learn
from ensemble_simulate.simulated_pilots import simulator_for
from ensemble_simulate.simulated_run import run_simulated
from ensemble_simulate.simulation_report import (
    compare_studies,
    figures_of,
    forecast_lines,
    once_lines,
    shown,
)

#: Maximum values of options that need memory or processes.
_MOST_NODES, _MOST_CORES, _MOST_RUNS, _MOST_WORKERS = 1_000_000, 100_000, 100_000, 1_024
#: Limits of a heartbeat or interval: maximum number of ticks in a run, and minimum period in
#: seconds. The period is limited because times in seconds since the epoch have limited precision.
_MOST_TICKS, _SHORTEST = 100_000_000, 1e-6


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--nodes", default=1, metavar="N", show_default=True, help="Nodes of the cluster.")
@click.option(
    "--cores-per-node", default=None, type=int, metavar="N", help="Cores of each node.  [default: "
    "those of this machine]",
)  # fmt: skip
@click.option(
    "--gpus-per-node", default=0, metavar="N", show_default=True, help="GPUs of each node."
)
@click.option(
    "--max-nodes",
    type=int,
    metavar="N",
    help="Limit up to which rules may grow the cluster.  [default: --nodes]",
)
@click.option(
    "--backfill",
    type=click.Choice(["easy", "none"]),
    default="easy",
    show_default=True,
    help="Whether jobs may start before an earlier job that waits for nodes, if this does not "
    "delay the earlier job.",
)
@click.option(
    "--wait",
    metavar="DRAW",
    help="Delay of each job by other users' jobs: 5m, lognormal(5m, 1.0) … With pilots: how long "
    "each pilot waits in the queue.",
)
@click.option(
    "--executor",
    metavar="NAME",
    help="Simulate the pilots of this executor, such as 'pilot', instead of a cluster.",
)
@key_value_option("An option of this executor, as for 'ensemble run'.")
@click.option(
    "--model",
    "model_file",
    metavar="MODEL",
    type=click.Path(),
    help="File with the model of jobs.  [default: the section 'simulate:' of FILE]",
)
@click.option("--model-from", metavar="RUN", help="Learn the model of jobs from a kept run.")
@click.option(
    "--functions",
    type=click.Choice(["called", "recorded"]),
    default="called",
    show_default=True,
    help="Call the file's functions, or use their recorded results from the run of --model-from.",
)
@click.option(
    "--run-code",
    is_flag=True,
    help="Run the code that FILE names: functions and generator classes. Otherwise, a file that "
    "needs its code is rejected.",
)
@click.option("--seed", default=0, metavar="N", show_default=True, help="First seed.")
@click.option("--runs", default=1, metavar="N", show_default=True, help="Number of simulated runs.")
@click.option("--workers", type=int, metavar="N", help="Processes for --runs.  [default: cores]")
@click.option(
    "--cost",
    metavar="EXPR",
    help="Formula of a run's cost, for its quantiles: '0.03 * core_hours + 2 * gpu_hours'.",
)
@click.option("--vs", metavar="OTHER", type=click.Path(), help="Compare with another file.")
@click.option(
    "--for",
    "length",
    default="30d",
    metavar="TIME",
    show_default=True,
    help="Give up a run after this (virtual) time.",
)
@click.option(
    "--reuse",
    metavar="RUN",
    multiple=True,
    help="Reuse jobs of RUN: they take no time.",
)
@click.option("--no-custom", is_flag=True, help="Reject a file with functions.")
@click.option(
    "--profile",
    "profile_name",
    metavar="NAME",
    help="Use the defaults of job groups and limits of this profile.  [default: no profile]",
)
@click.option("--tag", metavar="TAG", help="Name of the kept run.")
@click.option("--no-journal", is_flag=True, help="Write no journal.")
@set_option
@plugin_option
@state_option
@display_options
def simulate(
    file: str,
    nodes: int,
    cores_per_node: int | None,
    gpus_per_node: int,
    max_nodes: int | None,
    backfill: Any,
    wait: str | None,
    executor: str | None,
    options: tuple[str, ...],
    model_file: str | None,
    model_from: str | None,
    functions: str,
    run_code: bool,
    seed: int,
    runs: int,
    workers: int | None,
    cost: str | None,
    vs: str | None,
    length: str,
    reuse: tuple[str, ...],
    no_custom: bool,
    profile_name: str | None,
    tag: str | None,
    no_journal: bool,
    overrides: tuple[str, ...],
    plugins: tuple[str, ...],
    state: str | None,
    display: Display,
) -> int:
    """Simulate an ensemble file: real rules on a virtual clock, without running jobs.

    A model says what jobs do: the section 'simulate:' of FILE, --model, or an earlier run
    (--model-from).

    One simulated run is shown and kept like a real run, with the same exit code. With --runs, many
    runs are summarised, and the exit code is 1 if a run did not end within --for.
    """
    cores = len(os.sched_getaffinity(0)) if cores_per_node is None else cores_per_node
    for name, number, least, most in (
        ("--nodes", nodes, 1, _MOST_NODES),
        ("--cores-per-node", cores, 1, _MOST_CORES),
        ("--gpus-per-node", gpus_per_node, 0, _MOST_CORES),
        ("--runs", runs, 1, _MOST_RUNS),
        ("--workers", 1 if workers is None else workers, 1, _MOST_WORKERS),
        ("--max-nodes", nodes if max_nodes is None else max_nodes, nodes, _MOST_NODES),
    ):
        if not least <= number <= most:
            bound = f"{least} at least" if number < least else f"{most} at most"
            raise UsageError(f"{name} is {number}, expected {bound}", code="bad-option")
    held = None
    if wait is not None:
        try:
            held = parse(wait, ())
        except EnsembleError as error:
            raise UsageError(f"--wait: {error.what}", hint=error.hint, code=error.code) from None
    costs = None if cost is None else _costs(cost)
    machine = Machine(nodes, cores, gpus_per_node, backfill, held, max_nodes or nodes)
    registry = load_plugins(plugins)
    chosen = _pilots(registry, executor, options)
    cluster = (nodes, cores_per_node, gpus_per_node, max_nodes, backfill)
    if chosen is not None and cluster != (1, None, 0, None, "easy"):
        raise UsageError(
            "options of the cluster have no effect on pilots",
            cause="--nodes, --cores-per-node, --gpus-per-node, --max-nodes and --backfill describe "
            "a cluster that is there from the start",
            hint="describe the pilots with -o nodes=N, -o cores=N, -o gpus=N and -o most=N",
            code="bad-option",
        )
    recorded = functions == "recorded"
    purpose: Purpose = "rehearse" if run_code else "check"
    # A forecast must not depend on the user's files, unless the user asks for it.
    profile = None if profile_name is None else find_profile(registry, profile_name)
    files = _Files(
        registry,
        overrides,
        model_file,
        model_from,
        state,
        no_custom,
        recorded,
        purpose,
        profile,
        chosen,
    )
    until = parse_duration(length)
    first = replace(files.study(file, machine, until), cost=costs)
    if vs is None and runs == 1 and costs is None:
        return _simulate_once(
            first, files, display, seed, tag, state, not no_journal, plugins, reuse
        )
    if reuse:
        raise UsageError(
            "--reuse cannot be combined with --runs, --vs or --cost",
            hint="remove --reuse, which works for a single simulation only",
            code="bad-option",
        )
    studies = [first]
    if vs is not None:
        studies.append(replace(files.study(vs, machine, until), cost=costs))
    return _many(studies, [file, *([vs] if vs else [])], display, seed, runs, workers)


def _pilots(
    registry: Registry, name: str | None, given: Sequence[str]
) -> tuple[ExecutorPlugin, dict[str, Any]] | None:
    """Return the executor whose pilots are simulated, and its options."""
    if name is None:
        if given:
            raise UsageError(
                "-o needs --executor", hint="add --executor pilot, or remove it", code="bad-option"
            )
        return None
    record: ExecutorPlugin = registry.lookup("executor", name)
    if record.virtual is None:
        able = [each for each, other in registry.executors.items() if other.virtual]
        raise UsageError(
            f"jobs of the executor {name!r} are simulated on a cluster, without its options",
            hint="remove --executor, and describe the cluster with --nodes and --cores-per-node"
            + (f"; only {' and '.join(able)} can be simulated itself" if able else ""),
            code="bad-option",
        )
    return record, read_options(record, given, {})


def _costs(text: str) -> Expression:
    try:
        return formula(text, COST_NAMES, "the figures of a run")
    except EnsembleError as error:
        raise UsageError(f"--cost: {error.what}", hint=error.hint, code=error.code) from None


class _Files:
    """Ensemble files, each with the model of its jobs."""

    def __init__(
        self,
        registry: Registry,
        overrides: Sequence[str],
        model_file: str | None,
        model_from: str | None,
        state: str | None,
        no_custom: bool,
        recorded: bool,
        purpose: Purpose,
        profile: Profile | None,
        pilots: tuple[ExecutorPlugin, dict[str, Any]] | None = None,
    ) -> None:
        if model_file is not None and model_from is not None:
            raise UsageError("--model cannot be combined with --model-from", code="bad-option")
        if recorded and model_from is None:
            raise UsageError(
                "'--functions recorded' needs a run with recorded results",
                hint="choose the run with --model-from RUN",
                code="bad-option",
            )
        self.registry = registry
        self.overrides = list(overrides)
        self.text = ""
        self._model_file = model_file
        self._model_from = model_from
        self._state = state
        self._no_custom = no_custom
        self._recorded = recorded
        self._purpose: Purpose = purpose
        self.profile = profile
        self._pilots = pilots

    def study(self, file: str, machine: Machine, until: float) -> Study:
        """Return the ensemble of ``file`` with its model.

        Raises :class:`EnsembleError` with all mistakes.
        """
        text = read_file(file)
        record, options = self._pilots or (None, None)
        ensemble = load_text(
            text,
            self.registry,
            file=file,
            executor=record,
            options=options,
            overrides=self.overrides,
            profile=self.profile,
        )
        self.text = self.text or text
        _check_ticks(ensemble, text, file, until)
        if ensemble.custom:
            called = ", ".join(sorted(ensemble.functions))
            if self._no_custom:
                raise UsageError(
                    f"{file} has functions ({called}), which --no-custom rejects",
                    code="has-functions",
                )
        require_code(ensemble, self._purpose, recorded=self._recorded)
        if ensemble.custom:
            how = "return their recorded results" if self._recorded else "are called"
            print_warning(f"{file}: its functions {how}: {called}")
        if ensemble.limits.output is not None:
            print_warning(f"{file}: limits.output has no effect: simulated jobs write no files")
        model = self._model(file, text, ensemble, until)
        missing = without_model(ensemble, model)
        if missing:
            raise UsageError(
                f"no model for the jobs of {', '.join(map(repr, missing))}",
                cause=self._search_note(file),
                hint=f"write 'simulate: {{jobs: {{{missing[0]}: {{duration: 10m}}}}}}', "
                "or learn a model with --model-from RUN",
                code="no-model",
            )
        pilots = None
        if record is not None:
            kinds = {"kinds": ensemble.kinds} if ensemble.kinds else {}
            pilots = record, {**kinds, **(options or {})}
        return Study(
            ensemble, self.registry, model, machine, until, purpose=self._purpose, pilots=pilots
        )

    def _search_note(self, file: str) -> str:
        if self._model_from is not None:
            return f"none of their jobs ran in {self._model_from}"
        return f"searched in 'simulate: jobs:' of {self._model_file or file}"

    def _model(self, file: str, text: str, ensemble: Ensemble, until: float) -> Model:
        if self._model_from is not None:
            with KeptRun(self._state, self._model_from) as kept:
                _check_same_study(kept, file, ensemble)
                return replace(learn(kept, ensemble), functions_recorded=self._recorded)
        if self._model_file is not None:
            document = read_document(read_file(self._model_file), self._model_file)
            inside = isinstance(document.data, dict) and "simulate" in document.data
            path = ("simulate",) if inside else ()
            return read(document, ensemble, self.registry, path, until)
        return read(read_document(text, file), ensemble, self.registry, ("simulate",), until)


def _check_ticks(ensemble: Ensemble, text: str, file: str, until: float) -> None:
    """Raise :class:`UsageError` if a heartbeat or interval ticks too often within ``until``
    seconds.
    """
    length = min(until, ensemble.limits.wall or until)
    periods = [
        (rule.trigger.every, rule.repetitions, f"rule {rule.id!r}", rule.location)
        for rule in ensemble.rules
        if rule.trigger.every
    ]
    if ensemble.heartbeat:
        where = read_document(text, file).at(("logging", "heartbeat"))
        periods.append((ensemble.heartbeat, _MOST_TICKS + 1, "the heartbeat", where))
    for period, repetitions, what, where in periods:
        if period < _SHORTEST or min(length / period, repetitions) > _MOST_TICKS:
            raise UsageError(
                f"{what} would occur too often: {length / period:.3g} times",
                cause=f"its period is {period:g} s, and a run may take {length:g} s; the limits "
                f"are {_MOST_TICKS} times, and a period of at least {_SHORTEST:g} s",
                where=where,
                hint="shorten the runs (--for 1d), or increase the period",
                code="out-of-range",
            )


def _check_same_study(kept: KeptRun, file: str, ensemble: Ensemble) -> None:
    """Raise :class:`UsageError` if the kept run belongs to another study.

    Warn about groups whose command differs.
    """
    groups = kept.loading(kept.journal.texts()[-1]).groups
    if not set(groups) & set(ensemble.groups):
        raise UsageError(
            f"run {kept.tag} belongs to another study: its job groups are {', '.join(groups)}",
            cause=f"those of {file} are {', '.join(ensemble.groups)}",
            hint="choose a run of this file; 'ensemble runs' lists them",
            code="no-model",
        )
    changed = [
        name
        for name, group in ensemble.groups.items()
        if name in groups and groups[name].command != group.command
    ]
    if changed:
        print_warning(
            f"run {kept.tag} had another command for {', '.join(changed)}: its jobs may have "
            f"behaved differently"
        )


def _simulate_once(
    study: Study,
    files: _Files,
    display: Display,
    seed: int,
    tag: str | None,
    state: str | None,
    keep: bool,
    plugins: Sequence[str],
    reuse: Sequence[str],
) -> int:
    model = replace(study.model, seed=seed, until=study.until)
    simulator = simulator_for(study.machine, model, study.pilots)
    calls, stubbed = model.calls(), set[str]()

    def answer(call: Call) -> Result | None:
        found = calls.answer(call)
        if found is None and call.kind == "action":
            stubbed.add(call.name)
        return found

    code = run_simulated(
        study.ensemble,
        files.text,
        files.registry,
        simulator,
        display,
        said=f"{_machine(study)}, seed {seed}: simulated jobs",
        tag=tag,
        state=state,
        keep=keep,
        overrides=files.overrides,
        plugins=plugins,
        until=study.until,
        takes=calls.takes,
        answers=answer,
        purpose=study.purpose,
        reuse=reuse,
        profile=files.profile,
    )
    if not (display.quiet or display.as_json):
        for line in once_lines(simulator.used, simulator.offered, model, stubbed):
            print_line(line)
    return code


def _machine(study: Study) -> str:
    machine = study.machine
    if study.pilots is not None:
        wait = "do not wait" if machine.wait is None else "wait in the queue as --wait says"
        return f"pilots, which {wait}"
    nodes = f"{machine.nodes} node{'s' * (machine.nodes != 1)}"
    return f"{nodes} with {machine.cores} core{'s' * (machine.cores != 1)}"


def _many(
    studies: Sequence[Study],
    names: Sequence[str],
    display: Display,
    seed: int,
    runs: int,
    workers: int | None,
) -> int:
    found: list[list[Figures]] = [[] for _ in studies]
    seeds = range(seed, seed + runs)
    shown = sys.stderr.isatty() and not (display.quiet or display.as_json)
    total = runs * len(studies)
    with click.progressbar(length=total, file=sys.stderr, label="playing", hidden=not shown) as bar:
        for place, figures in simulate_all(studies, seeds, workers or len(os.sched_getaffinity(0))):
            found[place] += figures
            bar.update(len(figures))
    if display.as_json:
        told = [
            {"file": name, **figures_of(study, each)}
            for name, study, each in zip(names, studies, found, strict=True)
        ]
        print_line(to_json({"runs": told, "difference": compare_studies(found)}))
    else:
        for name, study, each in zip(names, studies, found, strict=True):
            for line in forecast_lines(name, study, each):
                print_line(line)
        for line in _difference(names, compare_studies(found)):
            print_line(line)
    return 0 if all(figures.over for each in found for figures in each) else 1


def _difference(names: Sequence[str], told: Any) -> list[str]:
    if not told:
        return []
    lines = [f"{names[1]} against {names[0]}, the same seeds:"]
    for what, (mean, half) in told.items():
        sign = "-" if mean < 0 else "+"
        margin = "" if math.isinf(half) else f" ± {shown(what, half)}"
        lines.append(f"  {what}: {sign}{shown(what, abs(mean))}{margin}")
    return lines
