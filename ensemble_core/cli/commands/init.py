"""``ensemble init``: creates a small study that runs without changes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from ensemble_core.errors import UsageError

#: The templates, each with a description.
TEMPLATES: dict[str, str] = {
    "sweep": "one job per combination of parameters",
    "watch": "rules that react to the output of running jobs",
    "retry": "failed jobs retried with corrections by kind of error",
    "adaptive": "more points where the first results differ",
    "screening": "the best of many get a longer run, and a results table",
}


@click.command(epilog="Templates: " + "; ".join(f"{k}: {v}" for k, v in TEMPLATES.items()) + ".")
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@click.option(
    "--template",
    type=click.Choice(list(TEMPLATES)),
    default="sweep",
    show_default=True,
    help="Kind of study.",
)
def init(folder: str, template: str) -> None:
    """Create a small commented study: study.yaml and a program.

    The files are written to FOLDER (default: the current folder). 'ensemble run study.yaml' runs
    the study on this machine. Existing files are never overwritten.
    """
    target = Path(folder)
    sources = files("ensemble_core.cli") / "templates" / template
    texts = {name: (sources / name).read_bytes() for name in ("study.yaml", "sim.py")}
    for name in texts:
        if (target / name).exists() or (target / name).is_symlink():
            raise UsageError(
                f"{target / name} already exists; nothing was written",
                hint="choose another folder: ensemble init FOLDER",
                code="file-exists",
            )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (target / name).open("xb") as file:  # "x": fail if the file exists now
                file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write to {target}: {error.strerror}",
            hint="choose a writable folder: ensemble init FOLDER",
            code="folder-unwritable",
        ) from error
    for name in texts:
        click.echo(f"wrote {target / name}")
    click.echo(f"next: ensemble run {target / 'study.yaml'}")
