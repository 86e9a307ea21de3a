"""``ensemble run FILE``: puts a run together, shows it, and ends with its exit code."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ensemble_core import config
from ensemble_core.cli.earlier_folders import folders_of, reused
from ensemble_core.cli.executor_choice import (
    ExecutorChoice,
    build_executor,
    check_environment,
    choose_executor,
    read_options,
)
from ensemble_core.cli.executor_flags import CommandWithFlags, given_flags
from ensemble_core.cli.options import (
    Display,
    display_options,
    executor_option,
    key_value_option,
    load_plugins,
    plugin_option,
    set_option,
    state_option,
    wall_option,
)
from ensemble_core.cli.run_control import ControlledRun
from ensemble_core.config.source import read
from ensemble_core.journal.run_store import fit, new_tag, state_folder

if TYPE_CHECKING:
    from ensemble_core.cli.run_session import RunSession
    from ensemble_core.model.ensemble import Ensemble

__all__ = ["run"]


@click.command(cls=CommandWithFlags)
@click.argument("file", metavar="FILE", type=click.Path())
@executor_option
@key_value_option("An option of the executor; 'ensemble plugins show NAME' describes them.")
@set_option
@plugin_option
@display_options
@click.option(
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(),
    help="Keep jobs' output in a folder of this run's own below DIR."
    "  [default: beside the run's journal]",
)
@state_option
@wall_option
@click.option(
    "--no-journal",
    is_flag=True,
    help="Keep no record: the run cannot be looked at later, nor resumed.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be submitted at the start, and what the queue would be handed for the "
    "first jobs; submit nothing.",
)
@click.option(
    "--tag", metavar="TAG", help="The run's name.  [default: the ensemble's, with the time]"
)
@click.option(
    "--or-resume",
    is_flag=True,
    help="Where there is a run --tag TAG already: resume it, or end with its exit code if it is "
    "over.",
)
def run(
    file: str,
    executor: str | None,
    options: tuple[str, ...],
    overrides: tuple[str, ...],
    plugins: tuple[str, ...],
    display: Display,
    folder: str | None,
    state: str | None,
    wall: float | None,
    no_journal: bool,
    dry_run: bool,
    tag: str | None,
    or_resume: bool,
) -> int:
    """Run an ensemble file.

    The exit code is 0 when all went well, 1 when jobs failed and no rule concerned itself with
    that, 2 for a wrong file or command line, 5 when the run was stopped by 'ensemble stop' or
    because its time was over, 128 + N after signal N (130 after Ctrl-C), and otherwise what the
    file's terminate action says.

    Every event and decision goes into a journal: 'ensemble resume' goes on with a run that was
    stopped, by Ctrl-C too, or whose controller was killed, and 'ensemble runs' lists all that are
    kept. What a stop does with jobs, the file's 'on_stop' says; another Ctrl-C leaves at once.
    Whoever is started again with the same words, as a pod is, says '--tag TAG --or-resume'.
    """
    if (tag is not None or or_resume) and not dry_run:
        from ensemble_core.cli.or_resume import check_tag, go_on

        check_tag(tag, state, or_resume=or_resume, no_journal=no_journal)
        code = go_on(str(tag), file, state, display, wall) if or_resume else None
        if code is not None:
            return code
    registry = load_plugins(plugins)
    choice = choose_executor(registry, executor)
    chosen = read_options(choice.record, options, given_flags(choice.record))
    choice = replace(choice, options=dict(chosen))
    text = read(file)
    ensemble = config.load_text(
        text, registry, file=file, executor=choice.record, overrides=list(overrides)
    )
    if display.show is not None:
        from ensemble_core.cli.shown_table import check_table

        check_table(ensemble, display.show)
    check_environment(ensemble)
    if dry_run:
        from ensemble_core.cli.dry_run import dry_run as show

        begun = ensemble.begun(tag or new_tag(fit(ensemble.name)), os.getcwd())
        return show(begun, choice, as_json=display.as_json)
    if choice.record.members:
        # An empty name where a group names none.
        named = {group.executor or "" for group in ensemble.groups.values()}
        chosen.setdefault("members", sorted(named))
    built = build_executor(registry, choice.record, chosen)
    tag = tag or new_tag(fit(ensemble.name))
    used = folders_of(ensemble.begun("{run}", os.getcwd()))
    ensemble = ensemble.begun(tag, os.getcwd())
    home = state_folder(state)
    ensemble = replace(ensemble, warnings=(*ensemble.warnings, *reused(home, used)))
    output = Path(folder).absolute() / tag if folder else home / "runs" / tag / "output"
    if no_journal:
        built.prepare(tag, None)
        return _session(ensemble, choice, display).run(registry, built, output, tag, wall=wall)
    about = {
        "tag": tag,
        "name": ensemble.name,
        "file": os.path.abspath(file),
        "executor": {"name": choice.name, "options": dict(chosen)},
        "plugins": [os.path.abspath(plugin) for plugin in plugins],
        "cwd": os.getcwd(),
        "folders": list(used),
        "output": str(output),
        "shared": built.shared,
    }
    with ControlledRun.new(
        home, about, registry, text, list(overrides), built, ensemble.attached
    ) as kept:
        return _session(ensemble, choice, display).run(
            registry, built, output, tag, kept, wall=wall
        )


def _session(ensemble: Ensemble, choice: ExecutorChoice, display: Display) -> RunSession:
    """The observers that show the run, loaded while the executor prepares itself."""
    from ensemble_core.cli.run_session import RunSession

    return RunSession(ensemble, choice, display)
