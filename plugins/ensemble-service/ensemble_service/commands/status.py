"""``ensemble-server status``: asks a service for the status of its members."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ensemble_core.cli.toolkit import (
    errors_as_json,
    format_duration,
    format_table,
    print_line,
    printable,
    style_of,
    to_json,
)
from ensemble_service.commands.options import (
    Finite,
    service_options,
    state_option,
    tls_folder,
    tls_option,
)

if TYPE_CHECKING:
    from ensemble_service.client import MemberStatus

_STATES = ("depend", "priority", "sched", "run", "cleanup")


@click.command()
@click.argument("member", metavar="[NS/NAME]", required=False)
@service_options
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=Finite(0, min_open=True),
    help="Seconds to wait for an answer.",
)
@state_option
@tls_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(
    member: str | None,
    host: str,
    port: int,
    token_file: str | None,
    ca: str | None,
    insecure: bool,
    timeout: float,
    state: str | None,
    tls_dir: str | None,
    as_json: bool,
) -> int:
    """Show the status of a member, or of all members that the token may see."""
    from ensemble_service.access import member_name
    from ensemble_service.channel import own_authority, read_token
    from ensemble_service.client import ServiceClient

    with errors_as_json(as_json):
        only = "" if member is None else member_name(member)
        token = read_token(token_file) if token_file else None
        own = None
        if (state or tls_dir) and not (ca or insecure or os.environ.get("ENSEMBLE_CA")):
            own = own_authority(host, tls_folder(tls_dir, state))
        with ServiceClient(
            host, port, token=token, ca=ca or own, insecure=insecure, timeout=timeout
        ) as client:
            members = client.status(only)
        if as_json:
            print_line(to_json({"members": [asdict(each) for each in members]}))
            return 0
        for line in _lines(members):
            print_line(line)
    return 0


def _lines(members: list[MemberStatus]) -> list[str]:

    if not members:
        return ["no member has connected yet"]
    look = style_of(sys.stdout)
    now = time.time()
    rows = [("member", "state", "heard of", "executor", "nodes", "cores", "queue", "runs")]
    for each in members:
        gauges = each.gauges
        size = f" of {each.size}" if each.size is not None else ""
        queue = [
            f"{gauges[f'queue.{name}']:g} {name}" for name in _STATES if gauges.get(f"queue.{name}")
        ]
        rows.append(
            (
                printable(each.member),
                "alive" if each.alive else "away",
                _ago(now - each.last_beat) if each.last_beat else "never",
                printable(each.executor) or "-",
                _share(gauges.get("nodes.free"), gauges.get("nodes.up")) + size,
                _share(gauges.get("cores.free"), gauges.get("cores.up")),
                ", ".join(queue) or "-",
                str(len(each.runs)),
            )
        )
    lines = format_table(rows)
    return [look.paint(lines[0], "bold")] + [
        line if each.alive else look.paint(line, "dim")
        for line, each in zip(lines[1:], members, strict=True)
    ]


def _share(free: float | None, up: float | None) -> str:
    if up is None:
        return "-"
    return f"{up:g} up" if free is None else f"{free:g}/{up:g} free"


def _ago(seconds: float) -> str:

    return f"{format_duration(max(0.0, seconds))} ago"
