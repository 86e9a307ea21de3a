"""However often a run with algorithms is killed, it goes by the rules that it began with.

A short version of ``scripts/soak.py --executor algorithms``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROUNDS = Path(__file__).parent / "crash" / "algorithms.py"


def test_an_algorithm_goes_on_where_it_was_killed_though_its_plugin_was_replaced(
    tmp_path: Path,
) -> None:
    words = [sys.executable, str(ROUNDS), "--seed", "7", "--rounds", "1", "--base", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    (found,) = (json.loads(line) for line in done.stdout.splitlines())
    assert found["good"], done.stdout + done.stderr
    assert found["killed"]
