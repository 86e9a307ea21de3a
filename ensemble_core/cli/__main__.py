"""Makes ``python -m ensemble_core.cli`` run the command line."""

from ensemble_core.cli.entry import main

if __name__ == "__main__":
    main(prog_name="ensemble")
