"""Entry point of the installed script ``ensemble``.

It imports almost nothing at first. While it then imports the command line, Ctrl-C ends the process
with one line and exit code 130. With Python's own handler, Ctrl-C would print a traceback, or would
be ignored where the interpreter discards exceptions.
"""

import _signal  # type: ignore[import-not-found]  # ``signal`` imports ``enum``

from ensemble_core.cli import end_at_ctrl_c

__all__ = ["main"]


def main(prog_name: "str | None" = None) -> None:
    """Run the command line."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end_at_ctrl_c)
    from ensemble_core.cli.main import main as run

    run(prog_name=prog_name)
