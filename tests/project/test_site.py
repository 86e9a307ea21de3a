"""The documentation site in a real browser, opened as files: no server and no other host.

Building it takes about 40 seconds, looking at all pages a few minutes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: A page of each kind, by what its template or its generator puts on it.
KINDS = {
    "front page": "index.html",
    "prose with tables": "how-it-works.html",
    "code and output": "start-laptop.html",
    "list of pages": "cookbook.html",
    "picture and list of files": "examples/README.html",
    "plugin": "plugins/ensemble-slurm/README.html",
    "keys of the file": "file-keys.html",
    "commands": "commands.html",
    "Python API": "api.html",
    "error codes": "error-codes.html",
    "search": "search.html?q=idle",
    "index": "genindex.html",
}

#: axe-core is slow on long pages. Of many entries of one kind, the first are enough.
REMOVE_REPEATED = """() => document
  .querySelectorAll("article *:nth-child(n + 20), .toc-tree li:nth-child(n + 20), "
    + ".sidebar-tree li li:nth-child(n + 10)")
  .forEach(entry => entry.remove())"""

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built as ``make docs`` builds it, by the first worker that needs it."""
    pytest.importorskip("sphinx")
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    with (common / "site").open("a+") as built:
        fcntl.flock(built, fcntl.LOCK_EX)
        built.seek(0)
        if not built.read():
            script = ROOT / "scripts" / "build_site.py"
            subprocess.run([sys.executable, script], check=True, cwd=ROOT)
            built.write("built")
    return ROOT / "build" / "site" / "html"


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on the PATH (Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as tools:
        chromium = tools.chromium.launch(executable_path=program, args=arguments)
        yield chromium
        chromium.close()


def test_no_page_asks_another_host_for_anything(site: Path, browser: Any) -> None:
    asked, errors = set(), []
    page = browser.new_page()
    page.on("request", lambda request: asked.add(request.url))
    page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    for file in pages:
        page.goto(file.as_uri())
    assert {url for url in asked if not url.startswith(("file:", "data:"))} == set()
    assert {file.as_uri() for file in pages} <= asked
    assert errors == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_page_has_no_serious_problem_of_accessibility(
    site: Path, browser: Any, kind: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(color_scheme=scheme)
    page.goto(f"{site.as_uri()}/{KINDS[kind]}")
    if kind == "search":
        page.wait_for_selector("ul.search li")
    page.evaluate(REMOVE_REPEATED)
    found = [
        (problem["id"], [node["html"] for node in problem["nodes"]][:3])
        for problem in Axe().run(page).response["violations"]
        if problem["impact"] in ("serious", "critical")
    ]
    assert found == []
    page.close()


def test_the_search_finds_pages_without_a_server(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.fill("input[name=q]", "core-hours limit")
    page.press("input[name=q]", "Enter")
    page.wait_for_selector("ul.search li a")
    found = page.eval_on_selector_all("ul.search li a", "links => links.map(link => link.href)")
    assert any("cookbook/limit-core-hours.html" in link for link in found)
    assert any("/limits.html" in link for link in found)
    page.close()


@pytest.mark.parametrize(
    ("link", "answer"),
    [
        ("Resume a run", "ensemble resume"),
        ("Glossary", "idle"),
        ("Limit core-hours", "core_hours"),
        ("write an executor", "BatchExecutor"),
        ("Find out why a rule did not fire", "ensemble why"),
        ("Get started in five minutes", "ensemble init"),
    ],
)
def test_a_frequent_question_is_answered_one_click_from_the_front_page(
    site: Path, browser: Any, link: str, answer: str
) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.goto(page.locator(f"article a:has-text({link!r})").evaluate("link => link.href"))
    assert answer in page.inner_text("article")
    page.close()
