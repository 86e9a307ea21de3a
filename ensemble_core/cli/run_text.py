"""Runs the text of an ensemble file on a queue and displays the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ensemble_core import config
from ensemble_core.cli.options import Display
from ensemble_core.journal.run_store import fit_tag, new_tag, state_folder
from ensemble_core.session.executor_choice import ExecutorChoice
from ensemble_core.session.new_run import new_run
from ensemble_core.session.required_variables import check_environment

if TYPE_CHECKING:
    from ensemble_core.plugin.registry import Registry


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
