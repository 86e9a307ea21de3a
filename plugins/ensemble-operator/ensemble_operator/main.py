"""``ensemble-operator``: the operator, and what can be known of its resources without a cluster.

Errors and exit codes are those of ``ensemble``. What needs kopf is imported by ``run`` alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ensemble_core import EnsembleError, FileErrors, UsageError
from ensemble_core.cli.toolkit import CommandGroup, print_line

__all__ = ["main"]


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ensemble_core import __version__

        click.echo(f"ensemble-operator {__version__}")
        ctx.exit()


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """Runs ensembles in Kubernetes from one custom resource."""


@main.command()
def crd() -> int:
    """Print the definition of the custom resource, for 'kubectl apply -f -'."""
    print_line(crd_text().rstrip("\n"))
    return 0


def crd_text() -> str:
    """``crd.yaml``."""
    import yaml

    from ensemble_operator.schema import definition

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = "# Made by 'ensemble-operator crd' from ensemble_operator/schema.py: do not edit.\n"
    return head + yaml.dump(definition(), Dumper=Plain, sort_keys=False, width=100)


@main.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
def check(files: tuple[str, ...]) -> int:
    """Check Ensembles and their ensemble files, without a cluster.

    Each is held against the definition's schema and rules, and each ensemble file that is in it is
    checked as 'ensemble validate' does. Exit code 2 if anything is wrong.
    """
    errors: list[EnsembleError] = []
    for file in files:
        for found in _ensembles(file):
            wrong = _errors_of(file, found)
            errors += wrong
            if not wrong:
                print_line(f"{file}: {found['metadata']['name']}: valid")
    if errors:
        raise FileErrors(errors)
    return 0


def _ensembles(file: str) -> list[dict[str, Any]]:
    """The Ensembles in a file. Raises :class:`UsageError`."""
    import yaml

    from ensemble_operator.schema import KIND

    try:
        documents = list(yaml.safe_load_all(Path(file).read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(
            f"cannot read {file}", cause=error.strerror, code="unreadable-file"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8", cause=error.reason, code="not-utf-8") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not YAML", cause=str(error), code="bad-yaml") from None
    found = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    if not found:
        kinds = [str(each.get("kind")) for each in documents if isinstance(each, dict)]
        raise UsageError(
            f"there is no {KIND} in {file}",
            cause=f"there is {', '.join(kinds)}" if kinds else "it is empty",
            code="no-ensemble",
        )
    return found


def _errors_of(file: str, found: dict[str, Any]) -> list[EnsembleError]:
    from ensemble_operator.file_check import errors_of
    from ensemble_operator.resource import problems, read

    wrong = problems(found)
    if wrong:
        return [
            EnsembleError(f"{file}: {each.path}: {each.message}", code="bad-resource")
            for each in wrong
        ]
    ensemble = read(found)
    errors = []
    if isinstance(ensemble.file, str):
        errors += errors_of(ensemble.file, "remote", f"{file}[spec.ensemble]")
    for index, member in enumerate(ensemble.members):
        if isinstance(member.file, str):
            name = f"{file}[spec.members[{index}].ensemble]"
            errors += errors_of(member.file, "minicluster", name)
    return errors


@main.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
def render(files: tuple[str, ...]) -> int:
    """Print every object that would be made for the Ensembles of these files.

    Secrets are left out: what is in them is made by chance, and meant for nobody's eyes.
    """
    import yaml

    from ensemble_operator.names import without_nothing

    errors: list[EnsembleError] = []
    documents: list[dict[str, Any]] = []
    for file in files:
        for found in _ensembles(file):
            wrong = _errors_of(file, found)
            errors += wrong
            documents += [] if wrong else _objects(found)
    if errors:
        raise FileErrors(errors)
    for each in documents:
        print_line("---")
        print_line(yaml.safe_dump(without_nothing(each), sort_keys=False).rstrip("\n"))
    return 0


def _objects(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What is made for an Ensemble, in order. A file in a ConfigMap is not known here: empty."""
    from ensemble_operator.member_objects import member_objects, run_objects
    from ensemble_operator.names import content
    from ensemble_operator.resource import read
    from ensemble_operator.service_objects import service_objects
    from ensemble_operator.settings import Settings

    ensemble, settings = read(found), Settings()
    objects = service_objects(ensemble, settings, replicas=1)
    for member in ensemble.members:
        text = member.file if isinstance(member.file, str) else ""
        objects += member_objects(ensemble, member, settings, text, content(text))
    if ensemble.outside:
        text = ensemble.file if isinstance(ensemble.file, str) else ""
        objects += run_objects(ensemble, settings, text, content(text))
    return objects
