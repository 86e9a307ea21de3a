"""A run that is stopped and killed many times has the same tables as an undisturbed one.

A short version of ``make soak``, which has a thousand rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STOPS = Path(__file__).parent / "crash" / "stops.py"


@pytest.mark.parametrize("seed", [0, 7])
def test_a_run_stopped_at_random_has_the_tables_of_an_undisturbed_one(
    tmp_path: Path, seed: int
) -> None:
    words = [sys.executable, str(STOPS), "--seed", str(seed), "--rounds", "2"]
    done = subprocess.run(
        [*words, "--base", str(tmp_path), "--", "--slots", "4"],
        capture_output=True,
        text=True,
        check=False,
    )
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["good"] for each in rounds] == [True, True], done.stdout + done.stderr
    assert any(each["killed"] for each in rounds)


def test_a_different_table_is_detected(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "import stops\n"
        "base = Path(sys.argv[2])\n"
        "expected = stops.undisturbed(base / 'one', 'local', ['--slots', '4'])\n"
        "assert [row['e'] for row in expected['sim']] == [107.0, 207.0, 307.0], expected\n"
        "expected['sim'][0]['e'] += 1\n"
        "found = stops.play_round(base / 'two', 0, 'local', ['--slots', '4'], expected)\n"
        "assert not found['good'] and 'table sim' in found['other'][0], found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(STOPS.parent), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
