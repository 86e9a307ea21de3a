"""Runs the command line as ``python -m ensemble_core.cli``, without the installed script."""

from ensemble_core.cli.entry import main

if __name__ == "__main__":
    main(prog_name="ensemble")
