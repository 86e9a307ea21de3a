"""Entry point of the installed script ``ensemble``.

It imports almost nothing at first, and makes Ctrl-C end the process with exit code 130 and one line
while the command line is being imported. Otherwise, a ``KeyboardInterrupt`` would print a
traceback, or the interpreter would drop it.
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
