"""The command ``ensemble-operator``: runs the operator, or checks Ensembles without a cluster.

Errors and exit codes are those of ``ensemble``. Only the subcommand ``run`` imports kopf.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ensemble_core import EnsembleError, FileErrors, UsageError
from ensemble_core.cli.toolkit import CommandGroup, print_line


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    package_name="ensemble-core", prog_name="ensemble-operator", message="%(prog)s %(version)s",
    help="Print the version and exit.",
)  # fmt: skip
def main() -> None:
    """Run ensembles in Kubernetes from one custom resource."""


@main.command()
def crd() -> int:
    """Print the definition of the custom resource, for 'kubectl apply --server-side -f -'."""
    print_line(crd_text().rstrip("\n"))
    return 0


def crd_text() -> str:
    """Return the text of ``crd.yaml``."""
    import yaml

    from ensemble_operator.crd_schema import definition

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = "# Made by 'ensemble-operator crd' from ensemble_operator/crd_schema.py: do not edit.\n"
    return head + yaml.dump(definition(), Dumper=Plain, sort_keys=False, width=100)


@main.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
def check(files: tuple[str, ...]) -> int:
    """Check Ensembles and their ensemble files without a cluster.

    Each ensemble file is checked as by 'ensemble validate'. The exit code is 2 if anything is
    wrong.
    """
    errors: list[EnsembleError] = []
    for file in files:
        for found in _ensembles(file):
            wrong = _file_errors(file, found)
            errors += wrong
            if not wrong:
                print_line(f"{file}: {found['metadata']['name']}: valid")
    if errors:
        raise FileErrors(errors)
    return 0


def _ensembles(file: str) -> list[dict[str, Any]]:
    """Return the Ensembles in a file. Raises :class:`UsageError`."""
    import yaml

    from ensemble_operator.crd_schema import KIND

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
            f"no object of kind {KIND} in {file}",
            cause=f"it contains {', '.join(kinds)}" if kinds else "it is empty",
            code="no-ensemble",
        )
    return found


def _file_errors(file: str, found: dict[str, Any]) -> list[EnsembleError]:
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
    """Print every object that the operator would create for the Ensembles in these files.

    Secrets are left out, because their contents are random and confidential.
    """
    import yaml

    from ensemble_operator.object_names import without_none

    errors: list[EnsembleError] = []
    documents: list[dict[str, Any]] = []
    for file in files:
        for found in _ensembles(file):
            wrong = _file_errors(file, found)
            errors += wrong
            documents += [] if wrong else _objects(found)
    if errors:
        raise FileErrors(errors)
    for each in documents:
        print_line("---")
        print_line(yaml.safe_dump(without_none(each), sort_keys=False).rstrip("\n"))
    return 0


def _objects(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of an Ensemble, in order.

    Ensemble files in ConfigMaps are unknown here and treated as empty.
    """
    from ensemble_operator.member_objects import member_objects, run_objects
    from ensemble_operator.object_names import content
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


@main.command()
@click.option(
    "--namespace",
    "namespaces",
    metavar="NS",
    multiple=True,
    help="Namespace to watch. Repeatable.  [default: the pod's own]",
)
@click.option("--all-namespaces", is_flag=True, help="Watch all namespaces.")
@click.option("--leader-elect", is_flag=True, help="Work only while holding the operators' Lease.")
@click.option(
    "--lease-namespace", metavar="NS", help="Namespace of that Lease.  [default: the pod's own]"
)
@click.option(
    "--image",
    envvar="ENSEMBLE_IMAGE",
    metavar="IMAGE",
    help="Default image of services and runs.  [env: ENSEMBLE_IMAGE]",
)
@click.option(
    "--view-image",
    envvar="ENSEMBLE_VIEW_IMAGE",
    metavar="IMAGE",
    help="Image with 'ensemble' as a folder to copy.  [env: ENSEMBLE_VIEW_IMAGE]",
)
@click.option(
    "--restrict-members",
    is_flag=True,
    help="Reject MiniClusters that use Secrets, host paths or privileges.",
)
@click.option(
    "--any-user", is_flag=True, help="Let the cluster choose the uid of pods (OpenShift)."
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig file, outside of the cluster.")
@click.option(
    "--health",
    metavar="URL",
    default="http://0.0.0.0:8081/healthz",
    show_default=True,
    help="Address of the liveness endpoint; empty to disable it.",
)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def run(
    namespaces: tuple[str, ...],
    all_namespaces: bool,
    leader_elect: bool,
    lease_namespace: str | None,
    image: str | None,
    view_image: str | None,
    restrict_members: bool,
    any_user: bool,
    kubeconfig: str | None,
    health: str,
    metrics_port: int | None,
    log_format: str,
) -> int:
    """Run the operator until SIGTERM or Ctrl-C."""
    import asyncio
    import os
    from dataclasses import replace

    if all_namespaces and namespaces:
        raise click.UsageError("--namespace cannot be combined with --all-namespaces")
    if kubeconfig:
        os.environ["KUBECONFIG"] = kubeconfig
    _log_to_stderr(log_format)
    from ensemble_operator.kopf_watch import Operator
    from ensemble_operator.settings import Settings

    own = _own_namespace()
    settings = Settings(restricted=restrict_members, user=None if any_user else Settings.user)
    if image:
        settings = replace(settings, image=image)
    if view_image:
        settings = replace(settings, view=view_image)
    operator = Operator(
        settings,
        () if all_namespaces else namespaces or (own,),
        lease=(lease_namespace or own) if leader_elect else "",
        health=health or None,
    )
    if metrics_port is not None:
        _serve_metrics(metrics_port, operator)
    asyncio.run(operator.run())
    return 0


def _own_namespace() -> str:
    """Return the pod's namespace; ``default`` outside of a pod."""
    file = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    try:
        return file.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _log_to_stderr(form: str) -> None:
    import json
    import logging
    import sys

    class AsJson(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            line = {
                "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
                "level": record.levelname.lower(),
                "message": record.getMessage(),
            }
            if record.exc_info:
                line["trace"] = self.formatException(record.exc_info)
            return json.dumps(line)

    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(AsJson() if form == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kopf").setLevel(logging.WARNING)


def _serve_metrics(port: int, operator: Any) -> None:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily

    class Counts:
        def collect(self) -> Iterator[Any]:
            work = CounterMetricFamily(
                "ensemble_operator_work", "Changes made, by kind", labels=("what",)
            )
            for what, count in dict(operator.loop.counts).items():
                work.add_metric((what,), count)
            yield work
            asked = CounterMetricFamily(
                "ensemble_operator_requests", "Requests to the API server", labels=("method",)
            )
            for method, count in dict(operator.counts).items():
                asked.add_metric((method,), count)
            yield asked

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Counts())
    start_http_server(port, registry=registry)
