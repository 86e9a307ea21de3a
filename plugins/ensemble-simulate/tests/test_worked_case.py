"""The worked case of ``docs/simulate.md``: each of its figures, made anew.

The seeds are fixed, but not the order in which jobs end: figures are held to what the page says of
their spread.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "simulate.md"
STUDY = ROOT / "examples" / "ising" / "ensemble.yaml"
LESS_WORK = ("--set", "jobs.ising.parameters.clusters=200")

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(600)]


def _ensemble(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "ensemble_core.cli", *words, "--state", str(folder / "state")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _threshold(value: float) -> tuple[str, str]:
    return "--set", f"rules.refine.when=mean.scaled > {value:.3f} - 0.065 * d and d > 0.03"


def _really(folder: Path, tag: str, *options: str) -> Mapping[str, Any]:
    run = ("run", "-q", "--executor", "local", "--slots", "2", "--tag", tag)
    _ensemble(folder, *run, *LESS_WORK, *options, str(STUDY))
    told: Mapping[str, Any] = json.loads(_ensemble(folder, "status", tag, "--json"))
    return told


def _jobs(status: Mapping[str, Any]) -> int:
    return sum(group["submitted"] for group in status["report"]["groups"])


def _simulated(folder: Path, cores: int, *options: str) -> Mapping[str, Any]:
    words = ("simulate", str(STUDY), "--model-from", "pilot", "--cores-per-node", str(cores))
    told = _ensemble(folder, *words, *LESS_WORK, *options, "--runs", "20", "--json")
    found: Mapping[str, Any] = json.loads(told.splitlines()[-1])["runs"][0]
    return found


def _median(simulated: Mapping[str, Any], what: str) -> float:
    return float(simulated["quantiles"][what][1])


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    folder = tmp_path_factory.mktemp("worked")
    return folder, _really(folder, "pilot")


#: The table of the page: jobs at each threshold, simulated and for real.
TABLE = {
    float(row[1]): (int(row[2]), int(row[3]))
    for row in re.finditer(r"^\| (0\.\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.M)
}


def test_the_model_gives_the_pilot_again(pilot: tuple[Path, Mapping[str, Any]]) -> None:
    folder, status = pilot
    again = _simulated(folder, 2)
    assert _jobs(status) == pytest.approx(TABLE[0.043][1], rel=0.05)
    assert _median(again, "jobs") == _jobs(status)
    took = status["ended"] - status["began"]
    assert _median(again, "length") == pytest.approx(took, rel=0.15)


def test_the_threshold_that_is_chosen_takes_as_many_jobs_for_real(
    pilot: tuple[Path, Mapping[str, Any]],
) -> None:
    folder, _ = pilot
    simulated = _median(_simulated(folder, 2, *_threshold(0.047)), "jobs")
    real = _jobs(_really(folder, "chosen", *_threshold(0.047)))
    before = _median(_simulated(folder, 2), "jobs")
    assert 0.9 * TABLE[0.047][0] <= simulated <= 1.5 * TABLE[0.047][0]  # "half as many again"
    assert real == pytest.approx(TABLE[0.047][1], rel=0.05)
    assert real < 0.5 * before  # "less than half of the jobs"


def test_what_the_pilot_did_not_see_is_a_guess(pilot: tuple[Path, Mapping[str, Any]]) -> None:
    folder, _ = pilot
    simulated = _median(_simulated(folder, 2, *_threshold(0.040)), "jobs")
    assert simulated == pytest.approx(TABLE[0.040][0], rel=0.05)
    assert _jobs(_really(folder, "lower", *_threshold(0.040))) == pytest.approx(
        TABLE[0.040][1], rel=0.05
    )


def test_more_cores_are_shorter_and_stand_idle(pilot: tuple[Path, Mapping[str, Any]]) -> None:
    folder, _ = pilot
    found = [_simulated(folder, cores) for cores in (1, 2, 4, 8, 16)]
    lengths = [_median(each, "length") for each in found]
    assert lengths == sorted(lengths, reverse=True)
    idle = [
        _median(each, "idle core-hours")
        / (_median(each, "idle core-hours") + _median(each, "core-hours"))
        for each in found
    ]
    assert idle[1] < 0.1
    assert idle[4] > 1 / 3
