"""The command line."""

import os

__all__ = ["end_at_ctrl_c"]


def end_at_ctrl_c(*_: object) -> None:
    """End the process on SIGINT while the command line is being imported.

    Nothing has started or been printed by then. Installed by ``entry``, removed by
    ``command_group``.
    """
    os.write(2, b"interrupted\n")
    os._exit(130)
