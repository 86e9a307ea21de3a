"""``python -m ensemble_core.cli``: the command line without the installed script."""

from ensemble_core.cli.entry import main

if __name__ == "__main__":
    main(prog_name="ensemble")
