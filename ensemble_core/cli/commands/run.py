"""``ensemble run FILE``: runs an ensemble, displays it, and exits with the exit code of the run.

For commands of plugins, :func:`run_text` runs a generated file in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from ensemble_core import config
from ensemble_core.cli.command_group import CommandGroup
from ensemble_core.cli.executor_flags import CommandWithFlags, given_flags
from ensemble_core.cli.options import (
    Display,
    allow_idle_option,
    display_options,
    executor_option,
    key_value_option,
    load_plugins,
    plugin_option,
    profile_option,
    set_option,
    state_option,
    wall_option,
)
from ensemble_core.cli.run_or_resume import record_exit_code, resume_instead
from ensemble_core.config.file_text import read_file
from ensemble_core.journal.run_store import fit_tag, new_tag, state_folder
from ensemble_core.quick_dataclass import replace
from ensemble_core.session.executor_choice import (
    ExecutorChoice,
    choose_executor,
    profile_options,
    read_options,
)
from ensemble_core.session.new_run import new_run
from ensemble_core.session.profile_files import find_profile
from ensemble_core.session.required_variables import check_environment

if TYPE_CHECKING:
    from ensemble_core.plugin.registry import Registry


@click.command(cls=CommandWithFlags)
@click.argument("file", metavar="FILE", type=click.Path())
@executor_option
@profile_option
@key_value_option("An option of the executor; 'ensemble plugins show NAME' describes them.")
@set_option
@plugin_option
@allow_idle_option
@display_options
@click.option(
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(),
    help="Write jobs' output to a folder for this run below DIR.  [default: the run's folder]",
)
@state_option
@wall_option
@click.option(
    "--no-journal",
    is_flag=True,
    help="Do not write a journal: the run can be neither inspected later nor resumed.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be submitted first, and the first jobs as the queue would receive them "
    "(--debug: all); submit nothing.",
)
@click.option(
    "--tag", metavar="TAG", help="Name of the run.  [default: the ensemble's, with the time]"
)
@click.option(
    "--or-resume",
    is_flag=True,
    help="If run --tag TAG exists, resume it; if it has ended, return its exit code.",
)
@click.option(
    "--exit-file",
    metavar="FILE",
    type=click.Path(),
    help="With --or-resume: write the exit code to FILE if it is final, not after a kill, a "
    "signal or a transient error.",
)
@click.option(
    "--reuse",
    metavar="RUN",
    multiple=True,
    help="Reuse results of identical jobs of RUN. May be repeated; the first run that has the "
    "job is used.",
)
@click.option(
    "--report",
    "page",
    metavar="FILE",
    type=click.Path(),
    help="Write a report to FILE at the end, like 'ensemble report'.",
)
def run(
    file: str,
    executor: str | None,
    profile: str | None,
    options: tuple[str, ...],
    overrides: tuple[str, ...],
    plugins: tuple[str, ...],
    allow_idle: bool,
    display: Display,
    folder: str | None,
    state: str | None,
    wall: float | None,
    no_journal: bool,
    dry_run: bool,
    tag: str | None,
    or_resume: bool,
    exit_file: str | None,
    reuse: tuple[str, ...],
    page: str | None,
) -> int:
    """Run an ensemble file.

    The exit code is 0 for success, 1 if jobs failed and no rule handled them, 2 for an invalid file
    or command line, 4 if a limit holds all remaining jobs, 5 after 'ensemble stop' or at the time
    limit, 128 + N after signal N (130 after Ctrl-C), or the code of a 'terminate' action in the
    file.

    Every event and decision is recorded in a journal. 'ensemble resume' resumes a stopped or
    interrupted run; 'ensemble runs' lists all runs. On a stop, including Ctrl-C, jobs are handled
    according to 'on_stop' in the file. After a second Ctrl-C, the command exits without waiting. In
    a pod or batch job that is restarted with the same command, use '--tag TAG --or-resume'; with
    '--exit-file FILE', the caller can tell whether the run has ended.
    """
    if reuse and dry_run:
        raise click.UsageError(
            "--reuse cannot be combined with --dry-run; use 'ensemble validate FILE --reuse RUN'"
        )
    write_page = None if page is None else _page_writer(page, state, no_journal or dry_run)
    with record_exit_code(exit_file, tag, state, or_resume=or_resume) as note:
        code = None
        if not dry_run:
            code = resume_instead(
                file,
                display,
                tag=tag,
                or_resume=or_resume,
                keep=not no_journal,
                state=state,
                wall=wall,
            )
        if code is None:
            registry = load_plugins(plugins)
            choice = choose_executor(registry, executor, find_profile(registry, profile))
            flags = read_options(choice.record, options, given_flags(choice.record))
            defaults = given_flags(
                choice.record, profile_options(registry, choice.record, choice.profile)
            )
            code = run_text(
                read_file(file),
                file,
                registry,
                replace(choice, options={**defaults, **flags}),
                display,
                tag=tag,
                state=state,
                folder=folder,
                wall=wall,
                keep=not no_journal,
                dry_run=dry_run,
                overrides=overrides,
                plugins=plugins,
                allow_idle=allow_idle,
                ended=write_page,
                reuse=reuse,
            )
        elif write_page is not None and tag is not None:
            write_page(tag)
        note(code)
        return code


def _page_writer(page: str, state: str | None, unkept: bool) -> Callable[[str], None]:
    """Return a function that writes the report of a run to a file, using the command ``report``.

    Raises :class:`UsageError` if no plugin provides that command.
    """
    from ensemble_core.cli.error_format import print_error
    from ensemble_core.errors import EnsembleError, UsageError

    if unkept:
        raise click.UsageError("--report cannot be combined with --no-journal or --dry-run")
    root = click.get_current_context().find_root()
    assert isinstance(root.command, CommandGroup)
    command = root.command.get_command(root, "report")
    if command is None:
        hint = root.command.hint("report", ())
        raise UsageError(
            "--report needs the command 'ensemble report'", hint=hint, code="no-command"
        )
    words = ["-o", page, *(["--state", state] if state else [])]

    def write(tag: str) -> None:
        # The run has ended, so a failed report does not change the exit code.
        try:
            command.main([tag, *words], "ensemble report", standalone_mode=False)
        except EnsembleError as error:
            print_error(error)

    return write


def run_text(
    text: str,
    file: str,
    registry: Registry,
    choice: ExecutorChoice,
    display: Display,
    *,
    tag: str | None = None,
    state: str | None = None,
    folder: str | None = None,
    wall: float | None = None,
    keep: bool = True,
    dry_run: bool = False,
    made: bool = False,
    overrides: Sequence[str] = (),
    plugins: Sequence[str] = (),
    allow_idle: bool = False,
    ended: Callable[[str], None] | None = None,
    reuse: Sequence[str] = (),
) -> int:
    """Run the text of an ensemble file on the chosen executor, and return the exit code.

    - ``file``: the file from which the text comes; its folder is ``{here}``.
    - ``folder``: the folder for the output of jobs.
    - ``wall``: the number of seconds after which the run is stopped.
    - ``tag``: the name of the run; by default, a tag is generated.
    - ``made``: whether the text was generated from ``file``. A resume then uses the text and does
      not compare it with the file.
    - ``allow_idle``: accept a file in which no rule can fire at the start of the run.
    - ``ended``: called with the tag after the run.
    - ``reuse``: earlier runs whose jobs are reused.

    Raises :class:`EnsembleError` for problems that are found before the run begins.
    """
    ensemble = config.load_text(
        text,
        registry,
        file=file,
        executor=choice.record,
        options=choice.options,
        overrides=list(overrides),
        must_begin=not allow_idle,
        purpose="check" if dry_run else "run",
        profile=choice.profile,
        is_named=choice.named,
    )
    if display.show is not None:
        from ensemble_core.cli.run_session import check_table

        check_table(ensemble, display.show)
    check_environment(ensemble)
    if dry_run:
        from ensemble_core.cli.dry_run import dry_run as show
        from ensemble_core.cli.error_format import print_warning

        for warning in () if display.as_json else ensemble.warnings:
            print_warning(warning)
        begun = ensemble.begun(tag or new_tag(fit_tag(ensemble.name)), os.getcwd())
        return show(begun, choice, as_json=display.as_json, every=display.debug)
    new = new_run(
        ensemble,
        registry,
        choice,
        choice.options,
        file=file,
        text=text,
        overrides=overrides,
        plugins=plugins,
        state=state_folder(state),
        tag=tag,
        output=folder,
        keep=keep,
        more={"made": True} if made else {},
        reuse=reuse,
    )
    # Load the display while the executor starts.
    from ensemble_core.cli.run_session import RunSession

    with new.kept or nullcontext():
        code = RunSession(new.ensemble, choice, display).run(new, wall=wall)
    if ended is not None:
        ended(new.tag)
    return code
