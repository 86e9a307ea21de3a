"""One command line whose process is killed at a place: ``one.py KIND NUMBER run e.yaml …``."""

from __future__ import annotations

import random
import sys

import doomed
import points

from ensemble_core.cli.main import main

if __name__ == "__main__":
    doomed.arm(random.Random(0))
    points.doom(sys.argv[1] or None, int(sys.argv[2]))
    main(sys.argv[3:])
