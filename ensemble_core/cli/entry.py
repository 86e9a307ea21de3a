"""Entry point of the installed script ``ensemble``."""

import _signal  # type: ignore[import-not-found]  # ``signal`` imports ``enum``

from ensemble_core.cli import end_at_ctrl_c

__all__ = ["main"]


def main(prog_name: "str | None" = None) -> None:
    """Run the command line."""
    # During the import of the command line, Python's own handler would print a traceback at Ctrl-C,
    # or ignore Ctrl-C where the interpreter discards exceptions.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end_at_ctrl_c)
    from ensemble_core.cli.main import main as run

    run(prog_name=prog_name)
