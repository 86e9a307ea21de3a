"""``ensemble-server init-tls`` and ``token``: by what callers and the service know each other."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ensemble_core.cli.toolkit import (
    errors_as_json,
    format_table,
    format_time,
    print_line,
    style_of,
    to_json,
)
from ensemble_service.commands.path_options import (
    Finite,
    state_option,
    tls_folder,
    tls_option,
    token_path,
    tokens_option,
)

if TYPE_CHECKING:
    from ensemble_service.access import Role
    from ensemble_service.tokens import Token

__all__ = ["init_tls", "token"]


@click.command("init-tls")
@tls_option
@state_option
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name or address by which the service is called, beside this machine's own. May be "
    "repeated.",
)
@click.option(
    "--days",
    default=365,
    show_default=True,
    type=click.IntRange(1, 36500),
    help="How long the service's certificate is good.",
)
@click.option(
    "--renew",
    is_flag=True,
    help="Make a new certificate for the service from the authority that there is, for the names "
    "of the one before too. A running service takes it by itself.",
)
@click.option("--force", is_flag=True, help="Replace everything; clients then need the new ca.crt.")
def init_tls(
    tls_dir: str | None,
    state: str | None,
    hosts: tuple[str, ...],
    days: int,
    renew: bool,
    force: bool,
) -> int:
    """Make an authority of its own and a certificate for the service.

    Clients check the service by ca.crt: copy that file, and no other, to where they are, and name
    it with --ca or ENSEMBLE_CA.
    """
    from ensemble_service.certificate_authority import init
    from ensemble_service.tls import CA, days_left

    if renew and force:
        raise click.UsageError("--renew and --force exclude each other")
    folder = tls_folder(tls_dir, state)
    names = init(folder, hosts, days=days, force=force, renew=renew)
    good = round(days_left(folder))  # not beyond the authority's own
    click.echo(f"certificate for {', '.join(names)}, good for {good} days, in {folder}")
    click.echo(f"clients trust it with ENSEMBLE_CA={folder / CA}")
    return 0


@click.group()
def token() -> None:
    """Make, list and remove the tokens by which callers are known."""


@token.command()
@click.argument("member", metavar="NS/NAME", required=False)
@click.option("--controller", metavar="NS", help="For controllers of runs in a namespace.")
@click.option("--viewer", metavar="NS", help="For who only looks at a namespace.")
@click.option("--admin", is_flag=True, help="For everything but being a member.")
@click.option(
    "--expires",
    metavar="DAYS",
    type=Finite(0, 36500, min_open=True),
    help="How many days it is good.  [default: until it is removed]",
)
@state_option
@tokens_option
def add(
    member: str | None,
    controller: str | None,
    viewer: str | None,
    admin: bool,
    expires: float | None,
    state: str | None,
    tokens: str | None,
) -> int:
    """Make a token and print it, this once: only its SHA-256 is kept.

    With NS/NAME it is for that member, and no other may connect under its name. A running service
    knows it at once.
    """
    from ensemble_service.tokens import TokenFile

    asked: list[tuple[Role, str]] = []
    if member is not None:
        asked.append(("member", member))
    if controller is not None:
        asked.append(("controller", controller))
    if viewer is not None:
        asked.append(("viewer", viewer))
    if admin:
        asked.append(("admin", ""))
    if len(asked) != 1:
        raise click.UsageError("give one of NS/NAME, --controller NS, --viewer NS and --admin")
    until = time.time() + expires * 86400 if expires else 0.0
    [(role, name)] = asked
    text, made = TokenFile(token_path(tokens, state)).add(role, name, expires=until)
    click.echo(text)
    # The token alone on stdout, so that it can be put into a file as it is.
    click.echo(f"token {made.id} for {made.identity}{_until(made)}; not shown again", err=True)
    return 0


@token.command("list")
@state_option
@tokens_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_tokens(state: str | None, tokens: str | None, as_json: bool) -> int:
    """List the tokens: for whom they are, never the tokens themselves."""
    from ensemble_service.tokens import TokenFile

    with errors_as_json(as_json):
        now = time.time()
        kept = TokenFile(token_path(tokens, state)).tokens()
        if as_json:
            print_line(to_json({"tokens": [_data(each, now) for each in kept]}))
            return 0
        rows = [("id", "for", "created", "expires")]
        rows += [
            (
                each.id,
                str(each.identity),
                format_time(each.created),
                "expired" if each.expired(now) else format_time(each.expires or None),
            )
            for each in kept
        ]
        look = style_of(sys.stdout)
        lines = format_table(rows)
        print_line(look.paint(lines[0], "bold"))
        for line, each in zip(lines[1:], kept, strict=True):
            print_line(look.paint(line, "dim") if each.expired(now) else line)
    return 0


@token.command()
@click.argument("ident", metavar="ID")
@state_option
@tokens_option
def remove(ident: str, state: str | None, tokens: str | None) -> int:
    """Remove a token; whoever is connected with it is sent away."""
    from ensemble_service.tokens import TokenFile

    gone = TokenFile(token_path(tokens, state)).remove(ident)
    click.echo(f"removed token {gone.id} for {gone.identity}")
    return 0


def _until(made: Token) -> str:

    return f", good until {format_time(made.expires)}" if made.expires else ""


def _data(each: Token, now: float) -> dict[str, Any]:
    return {
        "id": each.id,
        "role": each.role,
        "namespace": each.namespace or None,
        "member": each.member,
        "created": each.created,
        "expires": each.expires or None,
        "expired": each.expired(now),
    }
