"""Every snippet of the documentation runs in a test or says why not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: All hand-written pages of the site.
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *sorted(ROOT.glob("plugins/*/docs/*.md")),
    *sorted(ROOT.glob("plugins/*/deploy/README.md")),
    *sorted(ROOT.glob("examples/**/README.md")),
]
#: Pages with a test that runs their snippets one by one.
FOLLOWED = {
    "docs/cookbook/": "tests/project/test_cookbook.py",
    "docs/start-laptop.md": "tests/project/test_cookbook.py",
    "docs/plugin-tutorial-program.md": "tests/plugin/test_tutorial_program.py",
    "docs/plugin-tutorial": "tests/plugin/test_tutorial.py",
    "docs/executor-tutorial.md": "plugins/ensemble-batch/tests/test_executor_tutorial.py",
    "docs/python.md": "tests/project/test_python_page.py",
    "docs/engine-alone.md": "tests/project/test_engine_page.py",
    "plugins/ensemble-espresso/README.md": "plugins/ensemble-espresso/tests/test_study.py",
    "plugins/ensemble-gromacs/README.md": "plugins/ensemble-gromacs/tests/test_study.py",
    "plugins/ensemble-openfoam/README.md": "plugins/ensemble-openfoam/tests/test_study.py",
    "plugins/ensemble-programs/README.md": "plugins/ensemble-programs/tests/test_contract.py",
    "docs/simulate.md": "plugins/ensemble-simulate/tests/test_worked_case.py",
}
#: Pages on the ensemble file, where ``test_docs.py`` also validates parts of files.
REFERENCE = re.findall(r"^[a-z-]+$", (ROOT / "docs" / "ensemble-file.md").read_text("utf-8"), re.M)
#: A block and the comment before it. The reason is in that comment or in the block's first line.
_BLOCK = re.compile(r"^(<!-- [^\n]* -->\n)?( *)```(\S*)\n(.*?)^ *```$", re.M | re.S)
#: Languages of blocks that cannot be run. A block without a language needs a reason.
_SHOWN = ("text", "mermaid", "{toctree}")
_REASON = re.compile(r"\s*(#+|<!--) (not )?run by ")

pytestmark = pytest.mark.checkout


def unexplained(text: str, yaml_part: bool = False) -> list[str]:
    """Return the first lines of snippets that no test runs and that do not say why.

    Complete ensemble files are validated by ``test_docs.py`` or by the plugin's tests; with
    ``yaml_part``, so are parts of files.
    """
    return [
        block.splitlines()[0]
        for comment, _, language, block in _BLOCK.findall(text)
        if language not in _SHOWN
        and not (language == "yaml" and (yaml_part or re.search(r"^jobs:", block, re.M)))
        and not _REASON.match(block)
        and not _REASON.match(comment)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_snippet_runs_in_a_test_or_says_why_not(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    if any(name.startswith(followed) for followed in FOLLOWED):
        return
    plugin_tests = [*page.parent.glob("tests/*.py"), *page.parent.glob("tests/*/*.py")]
    validated = page.stem in REFERENCE or any("README" in test.read_text() for test in plugin_tests)
    assert unexplained(page.read_text("utf-8"), yaml_part=validated) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_all_code_of_a_page_is_fenced(page: Path) -> None:
    """No test would find indented code without fences."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    assert re.findall(r"\n\n    .*", text) == []


def test_a_test_that_a_page_names_for_its_snippet_exists() -> None:
    named = {
        test
        for page in PAGES
        for test in re.findall(r"^(?:#|<!--) run by (\S+?),?\s", page.read_text("utf-8"), re.M)
    }
    assert len(named) > 3
    assert [test for test in sorted(named) if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize(("page", "test"), FOLLOWED.items(), ids=list(FOLLOWED))
def test_the_test_of_a_followed_page_reads_it(page: str, test: str) -> None:
    source = (ROOT / test).read_text("utf-8")
    assert Path(page).name.removesuffix(".md") in source


def test_a_snippet_without_a_reason_is_detected() -> None:
    text = "```sh\nrm a\n```\n```sh\n# not run by a test: why\nrm b\n```\n"
    assert unexplained(text) == ["rm a"]
    assert unexplained(f"<!-- not run by a test: why -->\n{text}") == []


def test_the_readme_shows_what_its_first_study_prints(tmp_path: Path) -> None:
    """Except for times, the run's tag and its folder."""
    readme = (ROOT / "README.md").read_text("utf-8")
    _, shown = re.search(r"\n\$ (ensemble run examples/hello.*?)\n(.*?)```", readme, re.S).groups()
    run = [sys.executable, "-m", "ensemble_core.cli", "run", "--executor", "local"]
    done = subprocess.run(
        [*run, ROOT / "examples" / "hello-world.yaml"],
        env={**os.environ, "ENSEMBLE_STATE": str(tmp_path), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0

    def alike(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if not line.startswith((" output", "executor"))]
        return [
            re.sub(r"sleep\.\d", "sleep.N", re.sub(r"[\d.:]+ s\b|at [\d:]+", "T", one)).split()
            for one in lines
        ]

    assert alike(done.stdout) == alike(shown)


def test_the_page_on_runs_shows_what_ensemble_why_prints(tmp_path: Path) -> None:
    """Except for numbers and times of events."""
    page = (ROOT / "docs" / "kept-runs.md").read_text("utf-8")
    (shown,) = re.findall(r"^\$ ensemble why last later\n(.*?)^```", page, re.M | re.S)
    # Ten times as long, so that a busy machine does not change which sleeps the backoff holds back.
    text = (ROOT / "examples" / "backoff.yaml").read_text("utf-8")
    study = tmp_path / "backoff.yaml"
    study.write_text(text.replace("sleep 0.{index}", "sleep {index}").replace("0.3s", "3s"))
    run = ["run", "--quiet", "--executor", "local", str(study)]
    for words in (run, ["why", "last", "later"]):
        done = subprocess.run(
            [sys.executable, "-m", "ensemble_core.cli", *words],
            env={**os.environ, "ENSEMBLE_STATE": str(tmp_path), "COLUMNS": "120"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr

    def alike(text: str) -> list[list[str]]:
        text = re.sub(r"\[ *[\d.]+\]|sleep\.\d", "N", text)
        return [re.sub(r"^ *\d+(–\d+)?|event \d+", "", line).split() for line in text.splitlines()]

    assert alike(done.stdout.replace("waiting 3.00 s", "waiting 0.30 s")) == alike(shown)
