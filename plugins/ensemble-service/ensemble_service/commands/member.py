"""Make a queue available to runs elsewhere."""

from __future__ import annotations

import logging
import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ensemble_core import UsageError
from ensemble_core.cli.toolkit import (
    build_executor,
    choose_executor,
    executor_option,
    key_value_option,
    load_plugins,
    plugin_option,
    read_options,
    state_folder,
)
from ensemble_service.commands.options import service_options

if TYPE_CHECKING:
    from ensemble_core import EnsembleError, Executor


@click.group()
def member() -> None:
    """Make a queue available to runs elsewhere."""


@member.command()
@executor_option
@key_value_option("Option of the executor; see 'ensemble plugins show NAME'.")
@service_options
@click.option(
    "--name",
    metavar="NAMESPACE/NAME",
    required=True,
    help="Name of this member; a bare NAME is in 'default'.",
)
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(),
    help=(
        "Folder of the member's records, with which it finds its jobs again.  [default: "
        "ENSEMBLE_STATE, "
        "or the user's state folder]"
    ),
)
@plugin_option
def start(
    executor: str | None,
    options: tuple[str, ...],
    host: str,
    port: int,
    token_file: str | None,
    ca: str | None,
    insecure: bool,
    name: str,
    state: str | None,
    plugins: tuple[str, ...],
) -> int:
    """Run a member agent until SIGTERM or Ctrl-C.

    The agent connects to the ensemble service, and runs the jobs of 'ensemble run --executor
    remote' on its queue. While the service is unavailable, jobs continue and their events are kept.
    If the service rejects the agent at the start, the agent exits with an error.

    When an agent stops, its jobs stay in the queue if that is possible. The next agent with the
    same --name and --state finds them. If the jobs end with the agent's allocation, SIGTERM ends
    running jobs; the next agent runs them again.
    """
    from ensemble_core import __version__
    from ensemble_service.access import member_name
    from ensemble_service.call_errors import diagnose
    from ensemble_service.channel import address, load_grpc, open_channel, read_token

    load_grpc()
    full = member_name(name)
    registry = load_plugins(plugins)
    choice = choose_executor(registry, executor)
    if choice.record.members:
        raise UsageError(
            f"a member cannot use executor {choice.name!r}, which itself sends jobs to members",
            code="bad-option",
        )
    folder = state_folder(state) / "members" / full
    chosen = read_options(choice.record, options, {})
    for option, schema in choice.record.options.get("properties", {}).items():
        # All runs of this member share these files.
        if schema.get("x-ensemble-member") == "file" and chosen.get(option) is None:
            chosen = {**chosen, option: str(folder / option)}

    def built() -> Executor:
        return build_executor(registry, choice.record, chosen)

    from ensemble_service.agent import Agent

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )

    def channel() -> Any:
        token = read_token(token_file) if token_file else None
        return open_channel(host, port, token=token, ca=ca, insecure=insecure)

    channel().close()
    ended = threading.Event()
    failed: list[EnsembleError] = []

    def gave_up(error: EnsembleError) -> None:
        failed.append(error)
        ended.set()

    agent = Agent(
        full,
        built,
        folder,
        channel,
        address(host, port),
        executor=choice.name,
        version=__version__,
        away=partial(diagnose, host, port, ca=ca, insecure=insecure),
        gave_up=gave_up,
    )
    asked, hurry, drains = threading.Event(), threading.Event(), threading.Event()

    def on_signal(number: int, _: object) -> None:
        if number != signal.SIGINT:
            drains.set()
        # A Flux instance that ends sends SIGHUP to its program, which may also get SIGTERM.
        if number != signal.SIGHUP:
            (hurry if asked.is_set() else asked).set()
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, on_signal)
    click.echo(f"member {full}, process {os.getpid()}, {choice}", err=True)
    agent.start()
    ended.wait()
    if drains.is_set():
        agent.drain(hurry)
    agent.stop()
    if failed:
        raise failed[0]
    return 0
