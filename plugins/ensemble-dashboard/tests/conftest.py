"""Runs to look at, made once: one that succeeds in part, and what a browser needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ensemble_core

SCRIPT = """
echo '<script>document.title="taken"</script>'
printf '\\033[31mred\\033[0m\\n'
printf '%03000d\\n' 7
echo energy={T}
if [ {T} = 2.3 ]; then echo 'lost atoms at step 41' >&2; exit 3; fi
"""
#: Jobs print markup, colour codes and a long line; they fail at one value of T.
STUDY: dict[str, Any] = {
    "jobs": [
        {
            "name": "sim",
            "command": [
                "sh",
                "-c",
                SCRIPT,
            ],
            "parameters": {"T": [2.1, 2.2, 2.3, 2.4], "s": ["<b>1</b>", "2", "3"]},
            "environment": {"SEED": "{s}", "SECRET": "do-not-show"},
            "observe": {"key-value": {"fields": ["energy"]}},
            "result": {"E": "last.energy"},
        },
        {"name": "other", "command": "true"},
    ],
    "rules": [
        {"trigger": "start", "action": {"name": "submit", "label": "sim"}},
        {
            "id": "never",
            "trigger": "metric",
            "name": "mean.sim-energy",
            "when": "> 99",
            "action": {"name": "submit", "label": "other"},
        },
    ],
    "results": {"energies": {"of": "sim", "by": ["T"], "columns": {"E": "mean.E"}}},
}


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of runs with the run ``study``."""
    folder = tmp_path_factory.mktemp("state")
    before = os.environ.get("ENSEMBLE_STATE")
    os.environ["ENSEMBLE_STATE"] = str(folder)
    try:
        ensemble_core.run(STUDY, executor="local", tag="study", options={"slots": 2}, wait=True)
        yield folder
    finally:
        if before is None:
            del os.environ["ENSEMBLE_STATE"]
        else:
            os.environ["ENSEMBLE_STATE"] = before


def browser_path() -> str | None:
    """The system's Chromium, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser."""
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium on the PATH (Debian: apt install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as tools:
        found = tools.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()
