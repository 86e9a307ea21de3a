"""Runs with algorithms keep their rules when they are killed and resumed.

A short version of ``scripts/soak.py --executor algorithms``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROUNDS = Path(__file__).parent / "crash" / "algorithms.py"


def test_a_killed_run_with_algorithms_resumes_with_its_rules_after_the_plugin_changed(
    tmp_path: Path,
) -> None:
    words = [sys.executable, str(ROUNDS), "--seed", "7", "--rounds", "1", "--base", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    (found,) = (json.loads(line) for line in done.stdout.splitlines())
    assert found["good"], done.stdout + done.stderr
    assert found["killed"]
