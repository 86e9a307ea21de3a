"""The command line of Ensemble."""

import os


def end_at_ctrl_c(*_: object) -> None:
    """Signal handler that ends the process on Ctrl-C while the command line is being imported."""
    os.write(2, b"interrupted\n")
    os._exit(130)
