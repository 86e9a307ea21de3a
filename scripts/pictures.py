"""Takes pictures for the documentation: charts from reports of real runs, in a browser.

    python scripts/pictures.py [STUDY …]

Runs each study (about eight minutes for all on two cores), writes its report and takes pictures in
``docs/pictures``. Needs Chromium on the ``PATH``. Examples that end within seconds have no picture
here: ``make docs`` runs them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PICTURES = ROOT / "docs" / "pictures"
#: Views of the report of ``ising``, with their height in pixels.
VIEWS = {"report-results": ("results", 880), "report-rules": ("rules", 560)}
#: Studies, with the table, generator or group of their chart, and its x, y and curves.
CHARTS = {
    "ams/ensemble": ("answers", "x", "y", ""),
    "ising/ensemble": ("ising", "T", "U", "L"),
    "parameters/optimise": ("measure", "x", "y", ""),
    "potential/ensemble": ("fit", "sigma", "miss", ""),
    "retrain/ensemble": ("sim", "k", "dt", "outcome"),
    "studies/asha/ensemble": ("train", "config", "rung", ""),
    "studies/bayes/ensemble": ("search", "alpha", "E", ""),
    "studies/errors/ensemble": ("gas", "g", "E", "algo"),
    "studies/fan-in/ensemble": ("sim", "T", "time", ""),
    "studies/ladder/ensemble": ("oscillator", "n", "E", "g"),
    "studies/mlmc/ensemble": ("levels", "l", "done", ""),
    "studies/peaks/ensemble": ("ising", "T", "susceptibility", "L"),
    "studies/refine/ensemble": ("lattice", "p", "fraction", ""),
    "studies/replica-exchange/ensemble": ("walk", "iteration", "left", "T"),
    "studies/screening/ensemble": ("exact", "seed", "E", ""),
    "studies/simplex/ensemble": ("downhill", "a", "E", ""),
    "studies/weighted-ensemble/ensemble": ("resample", "iteration", "rate", ""),
}
MOST_BYTES = 200_000


def main() -> int:
    """Make the pictures; return the exit code."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("no Chromium on the PATH (Debian: apt install chromium)", file=sys.stderr)
        return 2
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=program, args=arguments)
        for study in sys.argv[1:] or CHARTS:
            take(study, browser, Path(folder))
        browser.close()
    large = [path for path in PICTURES.iterdir() if path.stat().st_size > MOST_BYTES]
    for path in large:
        print(f"{path} is larger than {MOST_BYTES} bytes", file=sys.stderr)
    return int(bool(large))


def take(study: str, browser: Browser, folder: Path) -> None:
    """Run a study, and take the pictures of its report."""
    tag = name_of(study)
    report = folder / f"{tag}.html"
    subprocess.run(
        [
            *(sys.executable, "-m", "ensemble_core.cli", "run", EXAMPLES / f"{study}.yaml"),
            *("--executor", "local", "--tag", tag, "--quiet", "--state", folder),
            *("--report", report),
        ],
        check=True,
        cwd=folder,
    )
    table, x, y, by = CHARTS[study]
    page = browser.new_page(viewport={"width": 760, "height": 600})
    asked = f"{table}-x={x}&{table}-y={y}&{table}-by={by or 'none'}"
    page.goto(f"{report.as_uri()}#/{tag}/results?{asked}")
    chart = page.get_by_role("img", name=f"{table}: {y} against {x}").first
    chart.screenshot(path=PICTURES / f"{tag}.png")
    print(f"docs/pictures/{tag}.png")
    if tag == "ising":
        for name, (view, height) in VIEWS.items():
            page = browser.new_page(viewport={"width": 900, "height": height})
            page.goto(f"{report.as_uri()}#/{tag}/{view}")
            page.wait_for_selector("figure svg")
            page.screenshot(path=PICTURES / f"{name}.png")


def name_of(study: str) -> str:
    """Return the name of a study's picture: its folder, and its file if not ``ensemble``."""
    *_, folder, file = study.split("/")
    return folder if file == "ensemble" else f"{folder}-{file}"


if __name__ == "__main__":
    sys.exit(main())
