"""``ensemble init``: a small study to begin with, which runs as it is."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from ensemble_core.errors import UsageError

__all__ = ["TEMPLATES", "init"]

#: The templates, and what each shows.
TEMPLATES: dict[str, str] = {
    "sweep": "one job for each combination of parameters",
    "watch": "rules that act on what jobs print while they run",
    "retry": "errors corrected by kind, job by job",
    "adaptive": "further points where the first differ",
    "screening": "the best of many go on to a dearer look, and a table of them",
}


@click.command(epilog="Templates: " + "; ".join(f"{k}: {v}" for k, v in TEMPLATES.items()) + ".")
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@click.option(
    "--template",
    type=click.Choice(list(TEMPLATES)),
    default="sweep",
    show_default=True,
    help="What the study shows.",
)
def init(folder: str, template: str) -> None:
    """Write a small commented study: study.yaml and a program.

    They go into FOLDER (default: here).
    It runs as it is on this machine: 'ensemble run study.yaml'. No file is ever overwritten.
    """
    target = Path(folder)
    sources = files("ensemble_core.cli") / "templates" / template
    texts = {name: (sources / name).read_bytes() for name in ("study.yaml", "sim.py")}
    for name in texts:
        if (target / name).exists() or (target / name).is_symlink():
            raise UsageError(
                f"{target / name} is there already, and nothing was written",
                hint="name another folder: ensemble init FOLDER",
                code="file-exists",
            )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (target / name).open("xb") as file:  # never over one that came meanwhile
                file.write(text)
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written to: {error.strerror}",
            hint="name a folder that you may write to: ensemble init FOLDER",
            code="folder-unwritable",
        ) from error
    for name in texts:
        click.echo(f"wrote {target / name}")
    click.echo(f"next: ensemble run {target / 'study.yaml'}")
