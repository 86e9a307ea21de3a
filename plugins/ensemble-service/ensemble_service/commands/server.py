"""Connect queues (members) with the runs that use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ensemble_core.cli.toolkit import (
    CommandGroup,
    build_resizer,
    key_value_option,
    load_plugins,
    plugin_option,
)
from ensemble_service.commands.credentials import init_tls, token
from ensemble_service.commands.options import (
    Finite,
    service_folder,
    state_option,
    tls_option,
    tokens_option,
)
from ensemble_service.commands.status import status

if TYPE_CHECKING:
    from ensemble_core import Resizer


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Start with 'ensemble-server init-tls', 'token add' and 'start'. Each command has "
        "its own --help."
    ),
)
@click.version_option(
    package_name="ensemble-core", prog_name="ensemble-server", message="%(prog)s %(version)s",
    help="Print the version and exit.",
)  # fmt: skip
def main() -> None:
    """Connect queues (members) with the runs that use them."""


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=50051,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free one.",
)
@state_option
@tls_option
@tokens_option
@click.option(
    "--insecure",
    is_flag=True,
    help="Use plaintext to other machines too: anyone on the network path can read the tokens.",
)
@click.option(
    "--resizer", metavar="NAME", help="Plugin that adds and removes nodes of members on request."
)
@click.option("--kubernetes", is_flag=True, help="Short for --resizer kubernetes.")
@key_value_option("Option of the resizer. Can be repeated.")
@click.option(
    "--legacy",
    metavar="NS/NAME",
    multiple=True,
    help="Let ensemble-python 0.0.16 clients resize this member without a token. Can be repeated.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics at /metrics, and /healthz, over HTTP.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address for metrics.")
@click.option(
    "--max-message-bytes",
    type=click.IntRange(1024, 1 << 30),
    help="Reject larger messages without reading them.  [default: 1114112]",
)
@click.option(
    "--rate",
    default=100.0,
    show_default=True,
    type=Finite(0),
    help="Allowed requests per second of one token; 0 for no limit.",
)
@click.option(
    "--grace",
    default=5.0,
    show_default=True,
    type=Finite(0, 3600),
    help="Seconds to wait for requests in progress when the service stops.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of log lines on stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level to log.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Accepted and ignored, with a warning: upstream's ensemble operator passes it.",
)
@plugin_option
def start(
    host: str,
    port: int,
    state: str | None,
    tls_dir: str | None,
    tokens: str | None,
    insecure: bool,
    resizer: str | None,
    kubernetes: bool,
    options: tuple[str, ...],
    legacy: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    max_message_bytes: int | None,
    rate: float,
    grace: float,
    log_format: str,
    log_level: str,
    workers: int | None,
    plugins: tuple[str, ...],
) -> int:
    """Start the service. SIGTERM or Ctrl-C stops it.

    It uses TLS if 'ensemble-server init-tls' has created certificates. Otherwise it listens on this
    machine only. Every caller needs a token: see 'ensemble-server token add'.
    """
    from ensemble_service.channel import load_grpc

    load_grpc()
    from ensemble_service.server import MAX_REQUEST, Service, Settings, run
    from ensemble_service.service_log import configure, tell

    if kubernetes and resizer not in (None, "kubernetes"):
        raise click.UsageError(f"--kubernetes cannot be combined with --resizer {resizer}")
    settings = Settings(
        state=service_folder(state),
        host=host,
        port=port,
        tokens=Path(tokens).expanduser().absolute() if tokens else None,
        tls=Path(tls_dir).expanduser().absolute() if tls_dir else None,
        insecure=insecure,
        legacy=legacy,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        max_message=max_message_bytes or MAX_REQUEST,
        rate=rate,
        grace=grace,
    )
    chosen = _resizer("kubernetes" if kubernetes else resizer, options, plugins)
    configure(
        "json" if log_format == "json" else "text",
        log_level,  # type: ignore[arg-type]  # click has checked it
    )

    if workers is not None:
        tell("--workers has no effect: the service has no worker threads", "warning")

    def ready(service: Service) -> None:
        if not service.tokens.tokens() and not legacy:
            hint = "create one with 'ensemble-server token add NS/NAME'"
            tell("no tokens defined: all connections will be refused", "warning", hint=hint)

    run(settings, chosen, ready)
    return 0


def _resizer(name: str | None, options: Sequence[str], plugins: Sequence[str]) -> Resizer | None:
    """Return the resizer of this name with these options."""
    if name is None:
        if options:
            raise click.UsageError("--option needs --resizer")
        return None
    return build_resizer(load_plugins(plugins), name, options)


main.add_command(init_tls)
main.add_command(token)
main.add_command(status)
