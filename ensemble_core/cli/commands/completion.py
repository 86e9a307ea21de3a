"""``ensemble completion SHELL``: prints the shell completion script."""

from __future__ import annotations

import click

_HOW = {
    "bash": 'eval "$(ensemble completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(ensemble completion zsh)"       # in ~/.zshrc',
    "fish": "ensemble completion fish > ~/.config/fish/completions/ensemble.fish",
}


@click.command(
    epilog="\b\nTo enable it in every new shell:\n" + "\n".join(f"  {how}" for how in _HOW.values())
)
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has these three since 8.0
    script = kind(ctx.find_root().command, {}, "ensemble", "_ENSEMBLE_COMPLETE")
    # Use the template directly, because click would first start bash to check its version.
    click.echo(script.source_template % script.source_vars())
