"""Options that several ``ensemble jobspec`` commands share."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ensemble_core import UsageError, shared_storage
from ensemble_core.cli.toolkit import ExecutorChoice, Registry, print_warning, read_file

if TYPE_CHECKING:
    from ensemble_jobspec.conversion import Converted, Options
    from ensemble_jobspec.workload import Workload

_LETTERS = {"A": "flux", "B": "transform", "C": "nextgen"}
form_option = click.option(
    "--form",
    type=click.Choice(["flux", "transform", "nextgen", "A", "B", "C"], case_sensitive=False),
    callback=lambda ctx, parameter, given: _LETTERS.get(str(given).upper(), given),
    help="Form of the file.  [default: detected]",
)


def conversion_options(function: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with conversion options, which it gets as its argument ``how``."""

    def command(**given: Any) -> int:
        how = {
            name: given.pop(name) for name in ("groups", "copies", "skip", "site", "strict", "form")
        }
        return function(how=how, **given)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__dict__.update(function.__dict__)
    for option in (
        form_option,
        click.option(
            "--groups",
            type=click.Choice(["nested", "flat"]),
            help="Run each group as one job with a nested ensemble, or submit its tasks one by "
            "one.  [default: nested on flux and slurm]",
        ),
        click.option(
            "--copies",
            type=click.Choice(["slots", "cores"]),
            default="slots",
            show_default=True,
            help="One task for each slot, or for each core (as in jobspec 0.0 and 0.1).",
        ),
        click.option(
            "--skip",
            metavar="STEP",
            multiple=True,
            help="Skip the steps with this name. Repeatable.",
        ),
        click.option(
            "--site",
            metavar="FILE",
            type=click.Path(),
            help="File with the options that meet requirements at this site: 'requires: "
            "{NAME: {EXECUTOR: {OPTION: …}}}'.",
        ),
        click.option(
            "--strict", is_flag=True, help="Reject requirements that the site file does not list."
        ),
    ):
        command = option(command)
    return command


def read_workload(file: str, form: str | None) -> Workload:
    """Return the workload of a file. Raises :class:`~ensemble_core.FileErrors`."""
    from ensemble_jobspec.jobspec_reader import read_jobspec

    return read_jobspec(read_file(file), file, form)  # type: ignore[arg-type]


def conversion_settings(
    how: Mapping[str, Any], registry: Registry, executor: str | None, file: str
) -> Options:
    """Return the values of :func:`conversion_options` as ``Options``."""
    from ensemble_jobspec.conversion import Options
    from ensemble_jobspec.schemas import STEPS
    from ensemble_jobspec.site_requirements import read_site

    for step in how["skip"]:
        if step not in STEPS:
            raise UsageError(f"unknown step {step!r}", code="no-such-step")
    return Options(
        executor=executor,
        executors=frozenset(registry.executors),
        groups=how["groups"],
        copies=how["copies"],
        skip=frozenset(how["skip"]),
        site=read_site(read_file(how["site"]), how["site"]) if how["site"] else {},
        strict=how["strict"],
        file=os.path.abspath(file),
        flux=(shutil.which("flux") or "") if "flux" in registry.executors else "",
        contents=read_file,
    )


def run_options(
    registry: Registry,
    choice: ExecutorChoice,
    workload: Workload,
    file: str | os.PathLike[str],
    state: str | None,
    how: Mapping[str, Any],
) -> Options:
    """Return the options for running a workload, with the queue's gauges if it needs them."""
    from ensemble_jobspec.resource_shapes import needs_gauges, read_gauges

    name = choice.record.name
    return replace(
        conversion_settings(how, registry, name, os.fspath(file)),
        program=(ensemble_command(),),
        state=os.path.abspath(state) if state else "",
        shared=name not in ("flux", "slurm") or shared_storage(os.getcwd()) is not None,
        gauges=read_gauges(registry, choice, workload) if needs_gauges(workload) else None,
        firm=name == "local",
    )


def convert_workload(workload: Workload, options: Options) -> Converted:
    """Return the converted workload, and print its warnings."""
    from ensemble_jobspec.conversion import convert

    converted = convert(workload, options)
    for warning in converted.warnings:
        print_warning(warning)
    return converted


def ensemble_command() -> str:
    """Return the path of this process's ``ensemble`` command, for jobs on other nodes."""
    beside = Path(sys.executable).with_name("ensemble")
    return str(beside) if beside.exists() else "ensemble"
