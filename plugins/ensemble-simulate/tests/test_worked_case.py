"""Tests of the worked case of ``docs/simulate.md``: they recompute each of its figures.

The simulation uses the journal of the page's pilot in ``data`` (with shortened paths) and is exact.
``make soak`` compares the page with real runs.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "simulate.md"
STUDY = ROOT / "examples" / "studies" / "peaks" / "ensemble.yaml"
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


def _simulated(folder: Path, cores: int, *options: str, runs: int = 20) -> Mapping[str, Any]:
    words = ("simulate", str(STUDY), "--model-from", "pilot", "--cores-per-node", str(cores))
    told = _ensemble(folder, *words, *LESS_WORK, *options, "--runs", str(runs), "--json")
    found: Mapping[str, Any] = json.loads(told.splitlines()[-1])["runs"][0]
    return found


def _median(simulated: Mapping[str, Any], what: str) -> float:
    return float(simulated["quantiles"][what][1])


#: The page's table: jobs at each threshold, simulated and real.
TABLE = {
    float(row[1]): (int(row[2]), int(row[3]))
    for row in re.finditer(r"^\| (0\.\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.M)
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the run of the page's pilot: 99 jobs in 22.5 s on two cores."""
    folder = tmp_path_factory.mktemp("kept")
    run = folder / "state" / "runs" / "pilot"
    run.mkdir(parents=True)
    with lzma.open(Path(__file__).parent / "data" / "pilot.db.xz") as journal:
        (run / "journal.db").write_bytes(journal.read())
    return folder


def test_the_model_reproduces_the_pilot(kept: Path) -> None:
    again = _simulated(kept, 2)
    assert _median(again, "jobs") == TABLE[0.043][0] == TABLE[0.043][1]
    assert _median(again, "length") == pytest.approx(22.5, rel=0.01)


@pytest.mark.parametrize("threshold", [0.043, 0.047])
def test_the_number_of_jobs_does_not_depend_on_the_order_of_their_ends(
    kept: Path, threshold: float
) -> None:
    found = _simulated(kept, 2, *_threshold(threshold), "--wait", "uniform(0, 3)")
    assert found["quantiles"]["jobs"] == [TABLE[threshold][0]] * 3
    low, _, high = found["quantiles"]["length"]
    assert high - low > 1.0  # runs differ in the order of jobs


@pytest.mark.parametrize("threshold", [0.047, 0.040])
def test_another_threshold_needs_the_jobs_listed_on_the_page(kept: Path, threshold: float) -> None:
    found = _simulated(kept, 2, *_threshold(threshold))
    assert _median(found, "jobs") == TABLE[threshold][0]


def test_more_cores_are_faster_and_idle_more(kept: Path) -> None:
    found = [_simulated(kept, cores, runs=2) for cores in (1, 2, 4, 8, 16)]
    lengths = [_median(each, "length") for each in found]
    assert lengths == sorted(lengths, reverse=True)
    idle = [
        _median(each, "idle core-hours")
        / (_median(each, "idle core-hours") + _median(each, "core-hours"))
        for each in found
    ]
    assert idle[1] < 0.1
    assert idle[4] > 1 / 3


@pytest.mark.skipif("ENSEMBLE_SOAK" not in os.environ, reason="part of make soak")
def test_the_real_runs_agree_with_the_page(tmp_path: Path) -> None:
    pilot = _really(tmp_path, "pilot")
    again = _simulated(tmp_path, 2)
    assert _median(again, "jobs") == _jobs(pilot) == TABLE[0.043][1]
    took = pilot["ended"] - pilot["began"]
    assert _median(again, "length") == pytest.approx(took, rel=0.15)
    chosen = _jobs(_really(tmp_path, "chosen", *_threshold(0.047)))
    foretold = _median(_simulated(tmp_path, 2, *_threshold(0.047)), "jobs")
    assert chosen == foretold == TABLE[0.047][1]
    assert chosen < 0.5 * _jobs(pilot)  # as the page says
    lower = _jobs(_really(tmp_path, "lower", *_threshold(0.040)))
    assert lower == TABLE[0.040][1]
