"""The command line."""

import os

__all__ = ["end_at_ctrl_c"]


def end_at_ctrl_c(*_: object) -> None:
    """Handle SIGINT while the command line is imported: end the process. Nothing was begun or
    printed. ``entry`` installs it, ``command_group`` takes it away."""
    os.write(2, b"interrupted\n")
    os._exit(130)
