"""``ensemble-server init-tls`` and ``token``: create certificates and tokens."""

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
from ensemble_service.commands.options import (
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


@click.command("init-tls")
@tls_option
@state_option
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Another name or address of the service, in addition to those of this machine. "
    "Can be repeated.",
)
@click.option(
    "--days",
    default=365,
    show_default=True,
    type=click.IntRange(1, 36500),
    help="Days for which the service's certificate is valid.",
)
@click.option(
    "--renew",
    is_flag=True,
    help=(
        "Issue a new service certificate from the existing certificate authority, for the "
        "same names. A running service picks it up."
    ),
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
    """Create a certificate authority and a certificate for the service.

    Clients need ca.crt to check the service. Copy that file, and no other, to each client, and pass
    it with --ca or ENSEMBLE_CA.
    """
    from ensemble_service.certificates import CA, days_left, init

    if renew and force:
        raise click.UsageError("--renew cannot be combined with --force")
    folder = tls_folder(tls_dir, state)
    names = init(folder, hosts, days=days, force=force, renew=renew)
    good = round(days_left(folder))  # limited by the authority's lifetime
    click.echo(f"certificate for {', '.join(names)}, valid for {good} days, in {folder}")
    click.echo(f"clients trust it if ENSEMBLE_CA={folder / CA}")
    return 0


@click.group()
def token() -> None:
    """Create, list and remove access tokens."""


@token.command()
@click.argument("member", metavar="NS/NAME", required=False)
@click.option("--controller", metavar="NS", help="For controllers of runs in a namespace.")
@click.option("--viewer", metavar="NS", help="For read-only access to a namespace.")
@click.option("--admin", is_flag=True, help="For everything except being a member.")
@click.option(
    "--expires",
    metavar="DAYS",
    type=Finite(0, 36500, min_open=True),
    help="Days until the token expires.  [default: never]",
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
    """Create a token and print it.

    The token is shown only once, because the service keeps only its SHA-256. A running service
    accepts it immediately. Only with a token for NS/NAME can an agent connect as this member.
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
        raise click.UsageError(
            "give exactly one of NS/NAME, --controller NS, --viewer NS and --admin"
        )
    until = time.time() + expires * 86400 if expires else 0.0
    [(role, name)] = asked
    text, made = TokenFile(token_path(tokens, state)).add(role, name, expires=until)
    click.echo(text)
    # Only the token goes to stdout, so that it can be redirected to a file.
    click.echo(
        f"token {made.id} for {made.identity}{_validity_text(made)}; not shown again", err=True
    )
    return 0


@token.command("list")
@state_option
@tokens_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_tokens(state: str | None, tokens: str | None, as_json: bool) -> int:
    """List the tokens' IDs and what they allow, without the tokens themselves."""
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
    """Remove a token and disconnect everyone who uses it."""
    from ensemble_service.tokens import TokenFile

    gone = TokenFile(token_path(tokens, state)).remove(ident)
    click.echo(f"removed token {gone.id} for {gone.identity}")
    return 0


def _validity_text(made: Token) -> str:

    return f", valid until {format_time(made.expires)}" if made.expires else ""


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
