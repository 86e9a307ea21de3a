"""``ensemble-server status``: how the members of a service stand, asked of the service."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ensemble_core.cli.server_places import Finite, state_option, tls_option

if TYPE_CHECKING:
    from ensemble_core.service.client import MemberStatus

__all__ = ["status"]

_STATES = ("depend", "priority", "sched", "run", "cleanup")


@click.command()
@click.argument("member", metavar="[NS/NAME]", required=False)
@click.option("--host", default="localhost", show_default=True, help="Where the service is.")
@click.option(
    "--port", default=50051, show_default=True, type=click.IntRange(1, 65535), help="Its port."
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(),
    help="A file with the token.  [default: $ENSEMBLE_TOKEN, or the file $ENSEMBLE_TOKEN_FILE]",
)
@click.option(
    "--ca",
    metavar="FILE",
    type=click.Path(),
    help="The authority to check the service by.  [default: $ENSEMBLE_CA; of a service on this "
    "machine, the ca.crt in its own folder]",
)
@click.option("--insecure", is_flag=True, help="Speak plaintext also to another machine.")
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
    """Show how a member stands, or every member that the token may see."""
    from ensemble_core.cli.json_lines import dump
    from ensemble_core.cli.past import put, telling
    from ensemble_core.service.access import member_name
    from ensemble_core.service.channel import quiet_grpc, read_token
    from ensemble_core.service.client import ServiceClient

    quiet_grpc()
    with telling(as_json):
        only = "" if member is None else member_name(member)
        token = read_token(token_file) if token_file else None
        ca = ca or _own_authority(host, insecure, state, tls_dir)
        with ServiceClient(
            host, port, token=token, ca=ca, insecure=insecure, timeout=timeout
        ) as client:
            members = client.status(only)
        if as_json:
            put(dump({"members": [asdict(each) for each in members]}))
            return 0
        for line in _lines(members):
            put(line)
    return 0


def _own_authority(host: str, insecure: bool, state: str | None, tls_dir: str | None) -> str | None:
    """The authority of the service on this machine, where nothing else says which to trust."""
    import os

    from ensemble_core.cli.server_places import tls_folder
    from ensemble_core.service.channel import is_loopback

    if insecure or os.environ.get("ENSEMBLE_CA") or not is_loopback(host):
        return None
    own = tls_folder(tls_dir, state) / "ca.crt"
    return str(own) if own.exists() else None


def _lines(members: list[MemberStatus]) -> list[str]:
    from ensemble_core.cli.look import clean, look_for, table

    if not members:
        return ["no member has connected yet"]
    look = look_for(sys.stdout)
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
                clean(each.member),
                "alive" if each.alive else "away",
                _ago(now - each.last_beat) if each.last_beat else "never",
                clean(each.executor) or "-",
                _share(gauges.get("nodes.free"), gauges.get("nodes.up")) + size,
                _share(gauges.get("cores.free"), gauges.get("cores.up")),
                ", ".join(queue) or "-",
                str(len(each.runs)),
            )
        )
    lines = table(rows)
    return [look.paint(lines[0], "bold")] + [
        line if each.alive else look.paint(line, "dim")
        for line, each in zip(lines[1:], members, strict=True)
    ]


def _share(free: float | None, up: float | None) -> str:
    if up is None:
        return "-"
    return f"{up:g} up" if free is None else f"{free:g}/{up:g} free"


def _ago(seconds: float) -> str:
    from ensemble_core.cli.look import spell_time

    return f"{spell_time(max(0.0, seconds))} ago"
