"""``ensemble run FILE``: puts a run together, shows it, and ends with its exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import click

from ensemble_core.cli.command_group import CommandGroup
from ensemble_core.cli.executor_flags import CommandWithFlags, given_flags
from ensemble_core.cli.exit_file import record_exit_code
from ensemble_core.cli.options import (
    Display,
    allow_idle_option,
    display_options,
    executor_option,
    key_value_option,
    load_plugins,
    plugin_option,
    set_option,
    state_option,
    wall_option,
)
from ensemble_core.cli.queue_run import resume_instead, run_text
from ensemble_core.config.source import read
from ensemble_core.session.executor_choice import choose_executor, read_options

__all__ = ["run"]


@click.command(cls=CommandWithFlags)
@click.argument("file", metavar="FILE", type=click.Path())
@executor_option
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
    "first jobs (--debug: for each); submit nothing.",
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
@click.option(
    "--exit-file",
    metavar="FILE",
    type=click.Path(),
    help="With --or-resume: write the exit code to FILE, unless the same words are to go on with "
    "the run: after a kill, a signal, or an error that may pass.",
)
@click.option(
    "--reuse",
    metavar="RUN",
    multiple=True,
    help="Take results of jobs that RUN did already instead of running the same again; may be "
    "given more than once, and the first run that has the job counts.",
)
@click.option(
    "--report",
    "page",
    metavar="FILE",
    type=click.Path(),
    help="When the run is over, write it as a page to FILE, as 'ensemble report' does.",
)
def run(
    file: str,
    executor: str | None,
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

    The exit code is 0 when all went well, 1 when jobs failed and no rule concerned itself with
    that, 2 for a wrong file or command line, 5 when the run was stopped by 'ensemble stop' or
    because its time was over, 128 + N after signal N (130 after Ctrl-C), and otherwise what the
    file's terminate action says.

    Every event and decision goes into a journal: 'ensemble resume' goes on with a run that was
    stopped, by Ctrl-C too, or whose controller was killed, and 'ensemble runs' lists all that are
    kept. What a stop does with jobs, the file's 'on_stop' says; another Ctrl-C leaves at once.
    Whoever is started again with the same words, as a pod is, says '--tag TAG --or-resume'; with
    '--exit-file FILE' whoever starts it knows that this was the end.
    """
    if reuse and dry_run:
        raise click.UsageError(
            "--reuse cannot be combined with --dry-run: 'ensemble validate FILE --reuse RUN' says "
            "what would be reused"
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
            choice = choose_executor(registry, executor)
            chosen = read_options(choice.record, options, given_flags(choice.record))
            code = run_text(
                read(file),
                file,
                registry,
                replace(choice, options=dict(chosen)),
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
    """A function that writes the run with a tag as a page, by the command ``report``. Raises
    :class:`UsageError` if no plugin has that command."""
    from ensemble_core.cli.error_format import print_error
    from ensemble_core.errors import EnsembleError, UsageError

    if unkept:
        raise click.UsageError("--report needs a run that is kept: no --no-journal, no --dry-run")
    root = click.get_current_context().find_root()
    assert isinstance(root.command, CommandGroup)
    command = root.command.get_command(root, "report")
    if command is None:
        hint = root.command.hint("report", ())
        raise UsageError("--report needs the command 'report'", hint=hint, code="no-command")
    words = ["-o", page, *(["--state", state] if state else [])]

    def write(tag: str) -> None:
        # The run is over, and its exit code stands, whatever becomes of the page.
        try:
            command.main([tag, *words], "ensemble report", standalone_mode=False)
        except EnsembleError as error:
            print_error(error)

    return write
