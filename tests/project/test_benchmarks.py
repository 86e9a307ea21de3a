"""The comparison with peers, and the page of its figures. Only Ensemble runs here, without a network."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "performance.json"

pytestmark = pytest.mark.checkout


def compared(folder: Path, *words: str) -> dict[str, dict[str, object]]:
    """Return the workloads of a small comparison from its ``--json`` file."""
    file = folder / "found.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "peers"), "--json", str(file)]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = json.loads(file.read_text("utf-8"))["works"]
    return found


def test_a_comparison_measures_five_jobs_and_a_chain(tmp_path: Path) -> None:
    found = compared(
        tmp_path, "--works", "ac", "--only", "bare,ensemble", "--rounds", "1", "--jobs", "5",
        "--chain", "5",
    )  # fmt: skip
    for work in "ac":
        (only,) = found[work]["rounds"]
        assert set(only) == {"bare", "ensemble"}
    (chain,) = found["c"]["rounds"]
    assert 0 < chain["bare"]["reaction_ms"] <= chain["bare"]["worst_ms"]
    (no_ops,) = found["a"]["rounds"]
    assert no_ops["ensemble"]["cpu"] > no_ops["bare"]["cpu"] > 0
    assert found["a"]["size"] == 5


def test_a_resume_after_a_kill_starts_no_job_twice(tmp_path: Path) -> None:
    found = compared(
        tmp_path, "--works", "e", "--only", "ensemble", "--rounds", "1", "--kills", "20"
    )
    (only,) = found["e"]["rounds"]
    assert only["ensemble"]["again"] == 0
    assert only["ensemble"]["lost"] == 0
    assert only["ensemble"]["continues"] > 0


def test_a_peer_that_cannot_run_a_workload_is_left_out_with_the_reason(tmp_path: Path) -> None:
    found = compared(tmp_path, "--works", "e", "--only", "bare", "--rounds", "1")
    assert found["e"]["rounds"] == [{}]
    assert found["e"]["left_out"] == {"bare": "it stores no state, so it cannot resume"}


def test_pilots_on_slurm_are_measured_between_two_gates(tmp_path: Path) -> None:
    file = tmp_path / "pilots.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "peers" / "pilots.py")]
    words = ["--works", "jobs,nodes", "--only", "ensemble", "--jobs", "40", "--bare", "4"]
    done = subprocess.run(
        [*command, *words, "--json", str(file)], capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    if "no Slurm" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    works = json.loads(file.read_text("utf-8"))["works"]
    (only,) = works["pilots jobs"]["rounds"]
    ours, bare = only["ensemble"], only["sbatch --array"]
    assert 0 < ours["controller_ms"] < ours["cpu_per_job_ms"] < bare["cpu_per_job_ms"]
    assert works["pilots jobs"]["left_out"].keys() == {"hyperqueue"}
    (nodes,) = works["pilots nodes"]["rounds"]
    assert nodes["ensemble"]["us_1000"] < 10 * nodes["ensemble"]["us_10"]


def test_every_peer_has_its_setup_and_a_possible_objection_with_an_answer() -> None:
    script = (
        "import json, sys; sys.path.insert(0, 'benchmarks/peers')\n"
        "from pathlib import Path\n"
        "from importlib import import_module\n"
        "names = [p.stem for p in Path('benchmarks/peers').glob('run_*.py')]\n"
        "print(json.dumps([vars(import_module(n).PEER) for n in names]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    peers = json.loads(done.stdout)
    assert {"dask", "parsl", "hyperqueue", "libensemble", "optuna", "snakemake"} <= {
        each["name"] for each in peers
    }
    for each in peers:
        assert each["settings"]
        assert each["output"]
        assert each["durable"]
        if each["packages"]:
            assert each["objection"], each["name"]
            assert each["answer"], each["name"]


def test_a_simulation_with_two_sizes_has_two_points_per_curve(tmp_path: Path) -> None:
    file = tmp_path / "scale.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "scale.py"), "--most", "1000"]
    subprocess.run([*command, "--members", "10", "--json", str(file)], check=True, timeout=240)
    points = json.loads(file.read_text("utf-8"))["scale"]["points"]
    assert [(each["curve"], each["jobs"]) for each in points] == [
        ("members", 100),
        ("at once", 1_000),
        ("waves", 1_000),
    ]
    assert all(each["events"] >= 10 * each["jobs"] for each in points)


def test_the_figures_of_the_page_match_its_json(tmp_path: Path) -> None:
    """``scripts/performance.py`` would write the same page from the JSON."""
    script = ROOT / "scripts" / "performance.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=120)
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    for picture in re.findall(r"\]\((pictures/[^)]+)\)", page):
        assert (ROOT / "docs" / picture).is_file()
    assert json.loads(FIGURES.read_text("utf-8"))["machine"]["cores"]


def test_comparisons_in_the_pages_text_match_its_json() -> None:
    works = json.loads(FIGURES.read_text("utf-8"))["works"]

    def medians(work: str, figure: str) -> dict[str, float]:
        names = {name for one in works[work]["rounds"] for name in one}
        return {
            name: statistics.median(
                one[name][figure] for one in works[work]["rounds"] if figure in one.get(name, {})
            )
            for name in names
        }

    def below(work: str, figure: str) -> set[str]:
        found = medians(work, figure)
        return {name for name, value in found.items() if value < found["ensemble"]}

    page = " ".join((ROOT / "docs" / "performance.md").read_text("utf-8").split())
    sentences = {
        "less than Dask and HyperQueue, and more than libEnsemble and Parsl.": (
            below("a", "cpu_per_job_ms") == {"bare", "libensemble", "parsl"}
        ),
        "Parsl needs less time than Ensemble": (below("d", "cpu_per_job_ms") == {"bare", "parsl"}),
        "Optuna, Parsl and libEnsemble react sooner.": (
            below("c", "reaction_ms") == {"bare", "parsl", "optuna", "libensemble"}
        ),
        "and no job begins twice": medians("e", "again")["ensemble"] == 0,
        "even `bare` loses 4 % of the slots' time": (
            0.035 < 1 - medians("b", "utilisation")["bare"] < 0.045
        ),
        "HyperQueue, Optuna and a bare loop need less CPU time to start": (
            below("a", "start_cpu") == {"bare", "hyperqueue", "optuna"}
        ),
        "**A reaction within two milliseconds.**": (
            max(medians("c", "reaction_ms")[name] for name in ("optuna", "parsl")) < 2
        ),
    }
    assert {sentence for sentence in sentences if sentence not in page} == set()
    assert {sentence for sentence, true in sentences.items() if not true} == set()
