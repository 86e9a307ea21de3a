"""Fixtures: a finished run, a live run and a real browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ensemble_testing import wait_until

import ensemble_core
from ensemble_core import EnsembleError
from ensemble_core.cli.commands.cancel import cancel

SCRIPT = """
echo '<script>document.title="taken"</script>'
printf '\\033[31mred\\033[0m\\n'
printf '%03000d\\n' 7
echo energy={T}
if [ {T} = 2.3 ]; then echo 'lost atoms at step 41' >&2; exit 3; fi
"""
#: Its jobs print markup, colour codes and a long line, and fail for one value of T.
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
    """Yield a state folder with the run ``study``."""
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


SLOW = """
jobs: [{name: slow, command: sleep 600}, {name: quick, command: "false"}]
rules:
  - {trigger: start, action: {name: submit, label: slow}}
  - {trigger: start, action: {name: submit, label: quick}}
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the controller of the live run ``one``, which has a failed and a running job."""
    place = ["--state", str(tmp_path)]
    (tmp_path / "slow.yaml").write_text(SLOW)
    program = [sys.executable, "-m", "ensemble_core.cli", "run", str(tmp_path / "slow.yaml")]
    words = ["--executor", "local", "--option", "slots=2", "--tag", "one", "--quiet", *place]
    with subprocess.Popen([*program, *words]) as process:

        def has_failed_job() -> bool:
            with (
                contextlib.suppress(EnsembleError),
                ensemble_core.open_run("one", state=tmp_path).inspect() as look,
            ):
                return bool(look.failures())
            return False

        try:
            wait_until(has_failed_job)
            yield process
        finally:
            process.kill()
    CliRunner().invoke(cancel, ["one", *place])


def browser_path() -> str | None:
    """Return the path of the system's Chromium, or ``None``."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield a real browser."""
    path = browser_path()
    if path is None:
        missing = "no Chromium on the PATH (Debian: apt install chromium)"
        if "CI" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    playwright = pytest.importorskip("playwright.sync_api")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as tools:
        found = tools.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()
