"""Pictures of the documentation: made from a real run of ``studies/peaks``, in a browser.

    python scripts/pictures.py

Runs the example (about a minute on two cores), writes its report and takes the pictures in
``docs/pictures``. Needs Chromium on the ``PATH``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
#: Each picture with its view and its height in pixels.
VIEWS = {"report-results": ("results", 820), "report-rules": ("rules", 620)}
MOST_BYTES = 200_000


def main() -> int:
    """Make all pictures; the exit code."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium on the PATH (Debian: apt install chromium)", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as tools:
        page = Path(folder, "ising.html")
        example = ROOT / "examples" / "studies" / "peaks" / "ensemble.yaml"
        program = [sys.executable, "-m", "ensemble_core.cli", "run", example, "--tag", "ising"]
        words = ["--quiet", "--state", folder, "--report", page]
        subprocess.run([*program, *words], check=True, cwd=folder)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = tools.chromium.launch(executable_path=browser, args=arguments)
        for name, (view, height) in VIEWS.items():
            shown = chromium.new_page(viewport={"width": 900, "height": height})
            shown.goto(f"{page.as_uri()}#/ising/{view}")
            shown.wait_for_selector("figure svg")
            path = PICTURES / f"{name}.png"
            shown.screenshot(path=path)
            if path.stat().st_size > MOST_BYTES:
                print(f"{path} is larger than {MOST_BYTES} bytes", file=sys.stderr)
                return 1
        chromium.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
