"""Runs that are stopped and killed many times have the same tables as undisturbed ones.

A short version of ``make soak``, which has a thousand rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

STOPS = Path(__file__).parent / "crash" / "stops.py"
#: Runs some rounds, the last one with a wrong expected table, and prints the result of each.
PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import stops

base, options = Path(sys.argv[2]), ["--slots", "4"]
expected = stops.undisturbed(base / "undisturbed", "local", options)
assert [row["e"] for row in expected["sim"]] == [107.0, 207.0, 307.0], expected
for seed in (0, 1, 7, 8):
    if seed == 8:
        expected["sim"][0]["e"] += 1
    print(json.dumps(stops.play_round(base / f"{seed}", seed, "local", options, expected)))
"""


def test_a_run_stopped_at_random_has_the_tables_of_an_undisturbed_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(STOPS.parent), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *same, different = map(json.loads, done.stdout.splitlines())
    assert [each["good"] for each in same] == [True] * 3, done.stdout + done.stderr
    assert any(each["killed"] for each in same)
    assert len(different["other"]) == 1, done.stdout + done.stderr
    (told,) = different["other"]
    assert told.startswith("table sim: ")
