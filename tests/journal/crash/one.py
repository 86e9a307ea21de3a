"""Runs one command, and kills it at a given place: ``one.py KIND NUMBER run e.yaml …``."""

from __future__ import annotations

import random
import sys

from ensemble_testing.crash.kill_points import instrument, kill_at

from ensemble_core.cli.main import main

if __name__ == "__main__":
    instrument(random.Random(0))
    kill_at(sys.argv[1] or None, int(sys.argv[2]))
    main(sys.argv[3:])
