"""Read, convert and run jobspecs of Flux, jobspec 0.0 (transform) and jobspec 0.1 (nextgen)."""

from __future__ import annotations

import click

from ensemble_core import EnsembleError, FileErrors
from ensemble_core.cli.toolkit import print_error, print_line, print_warning, to_json

__all__ = ["jobspec"]

_LETTERS = {"A": "flux", "B": "transform", "C": "nextgen"}
form_option = click.option(
    "--form",
    type=click.Choice(["flux", "transform", "nextgen", "A", "B", "C"], case_sensitive=False),
    callback=lambda ctx, parameter, given: _LETTERS.get(str(given).upper(), given),
    help="The form of the file.  [default: told by its shape]",
)


@click.group()
def jobspec() -> None:
    """Read, convert and run jobspecs: one description of work, carried out by any queue.

    Three forms are read: Flux's own (RFC 14 and 25), that of jobspec 0.0 with 'task.transform'
    (transform), and that of jobspec 0.1 with tasks and groups (nextgen).
    """


@jobspec.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path())
@form_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one file or mistake a line.")
def validate(files: tuple[str, ...], form: str | None, as_json: bool) -> int:
    """Check jobspecs: every mistake with its place. The exit code is 2 where there is any."""
    from ensemble_core.cli.toolkit import read_file
    from ensemble_jobspec.reading import read_jobspec

    code = 0
    for file in files:
        try:
            workload = read_jobspec(read_file(file), file, form)  # type: ignore[arg-type]
        except FileErrors as errors:
            code = 2
            for error in errors.errors:
                _tell(error, as_json)
            continue
        except EnsembleError as error:
            code = 2
            _tell(error, as_json)
            continue
        tasks, groups = len(list(workload.every_task())), len(list(workload.every_group()))
        if as_json:
            print_line(
                to_json(
                    {
                        "type": "jobspec", "file": file, "form": workload.form, "tasks": tasks,
                        "groups": groups, "warnings": list(workload.warnings),
                    }
                )
            )  # fmt: skip
            continue
        for warning in workload.warnings:
            print_warning(warning)
        counts = f"{tasks} task{'s' * (tasks != 1)}"
        if groups:
            counts += f" in {groups} group{'s' * (groups != 1)} and outside"
        print_line(f"{file}: valid, form {workload.form}: {counts}")
    return code


def _tell(error: EnsembleError, as_json: bool) -> None:
    if as_json:
        print_line(to_json(error.to_dict()))
    else:
        print_error(error)
