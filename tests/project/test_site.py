"""The documentation site, opened as files in a real browser, without a server."""

from __future__ import annotations

import fcntl
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ensemble_core

ROOT = Path(__file__).parents[2]
#: A page for each template or generator.
KINDS = {
    "front page": "index.html",
    "prose with tables": "how-it-works.html",
    "code and output": "start-laptop.html",
    "list of pages": "cookbook.html",
    "picture and list of files": "examples/README.html",
    "example": "examples/hello-world.html",
    "plugin": "plugins/ensemble-slurm/README.html",
    "keys of the file": "file-keys.html",
    "commands": "commands.html",
    "Python API": "api-model.html",
    "error codes": "error-codes.html",
    "search": "search.html?q=idle",
    "index": "genindex.html",
}

#: axe-core is slow on long pages: keep only the first of many similar elements in a row.
REMOVE_REPEATED = """() => document
  .querySelectorAll("article *, .toc-tree *, .sidebar-tree *").forEach(entry => {
    let same = 0;
    for (let before = entry; (before = before.previousElementSibling);)
      same += before.tagName === entry.tagName && before.className === entry.className;
    if (same >= 3 && entry.tagName !== "SECTION") entry.remove();
  })"""

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site. The first worker that needs it builds it.

    ``make docs`` runs all examples; ``test_examples.py`` checks their exit codes.
    """
    pytest.importorskip("sphinx")
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    with (common / "site").open("a+") as built:
        fcntl.flock(built, fcntl.LOCK_EX)
        built.seek(0)
        if not built.read():
            script = ROOT / "scripts" / "build_site.py"
            subprocess.run([sys.executable, script, "--quick"], check=True, cwd=ROOT)
            built.write("built")
    return ROOT / "build" / "site" / "html"


@pytest.fixture(scope="module")
def page(site: Path) -> Iterator[Any]:
    """Yield a browser page. All tests share it, because opening one takes as long as most tests."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on the PATH (Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as tools:
        chromium = tools.chromium.launch(executable_path=program, args=arguments)
        yield chromium.new_page()
        chromium.close()


#: URLs that a browser loads with a page.
_LOADED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]* src="([^"]+)"|<link\b[^>]* href="([^"]+)"'
)


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    loaded = {
        url
        for file in pages
        for urls in _LOADED.findall(file.read_text("utf-8"))
        for url in urls
        if re.match("[a-z]+:|//", url)
    }
    assert {url for url in loaded if not url.startswith("data:")} == set()


@pytest.fixture
def asked(page: Any) -> Iterator[list[str]]:
    """Yield the URLs that the page requests during a test, and errors of its scripts."""
    found: list[str] = []
    listeners = {
        "request": lambda request: found.append(request.url),
        "pageerror": lambda error: found.append(f"error: {error}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield found
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_page_works_offline_and_is_accessible(
    site: Path, page: Any, asked: list[str], kind: str
) -> None:
    """With light colours; with dark ones, only the contrast differs."""
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme="light")
    page.goto(f"{site.as_uri()}/{KINDS[kind]}")
    if kind == "search":
        page.wait_for_selector("ul.search li")
    page.evaluate(REMOVE_REPEATED)
    assert len(asked) > 1
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    answers = [Axe().run(page).response]
    page.emulate_media(color_scheme="dark")
    answers.append(Axe().run(page, options={"runOnly": ["color-contrast"]}).response)
    found = [
        (problem["id"], [node["html"] for node in problem["nodes"]][:3])
        for answer in answers
        for problem in answer["violations"]
        if problem["impact"] in ("serious", "critical")
    ]
    assert found == []


def text_of(page: Path) -> str:
    """Return the text of a page, without the navigation."""
    article = re.search(r"<article.*?</article>", page.read_text("utf-8"), re.S)
    return html.unescape(re.sub(r"<[^>]+>", "", article[0])) if article else ""


def test_no_page_of_the_site_is_too_long_to_read_in_one_sitting(site: Path) -> None:
    pages = site.rglob("*.html")
    words = {str(page.relative_to(site)): len(text_of(page).split()) for page in pages}
    assert {page: count for page, count in words.items() if count > 3500} == {}


def test_the_api_has_each_public_name_on_one_page(site: Path) -> None:
    names = [
        name
        for page in site.glob("api*.html")
        for name in re.findall(r'<dt [^>]*id="ensemble_core\.(\w+)"', page.read_text("utf-8"))
    ]
    assert sorted(names) == sorted(ensemble_core.__all__)


def test_the_page_of_an_example_shows_its_run(site: Path) -> None:
    """The page shows the promised exit code, the file and a picture. A quick build runs only some."""
    files = [
        file for file in (ROOT / "examples").glob("*.yaml") if ".ensemble-test" not in file.name
    ]
    linked = set()
    shown = set()
    for file in files:
        page = site / "examples" / f"{file.stem}.html"
        source, text = page.read_text("utf-8"), text_of(page)
        linked |= set(re.findall(r'href="\.\./reports/([\w-]+)\.html"', source))
        assert "jobs:" in text
        if "Not run for this page" not in text:
            shown.add(file.stem)
            promised = re.search(r"exit\s+code\s+(\d)", text, re.I)
            assert promised is not None
            assert re.search(rf"^ exit code {promised[1]}: ", text, re.M), file.stem
            assert f"/{file.stem}.png" in source
    assert shown == {"failure-handling", "hello-world", "terminate"}
    assert linked == shown - {"terminate"}
    assert all((site / "reports" / f"{name}.html").is_file() for name in linked)


def test_the_page_of_a_study_has_its_file_and_a_picture(site: Path) -> None:
    """The build makes some of the pictures (``branches``); others are in the study's folder."""
    assert "/branches.png" in (site / "examples" / "branches" / "README.html").read_text("utf-8")
    for study in (ROOT / "examples" / "studies").glob("*/ensemble.yaml"):
        page = site / "examples" / "studies" / study.parent.name / "README.html"
        assert "observe:" in text_of(page), study
        made = study.parent.name == "restart"  # a quick build does not run it
        assert made or ".png" in page.read_text("utf-8"), study


def test_no_page_shows_a_folder_of_the_build_machine(site: Path) -> None:
    pages = [*(site / "examples").rglob("*.html"), *(site / "reports").rglob("*.html")]
    shown = re.compile(f"{tempfile.gettempdir()}/tmp|{Path.home()}/")
    assert [page.name for page in pages if shown.search(page.read_text("utf-8"))] == []


def test_the_search_finds_pages_without_a_server(site: Path, page: Any) -> None:
    page.goto((site / "index.html").as_uri())
    page.fill("input[name=q]", "core-hours limit")
    page.press("input[name=q]", "Enter")
    page.wait_for_selector("ul.search li a")
    found = page.eval_on_selector_all("ul.search li a", "links => links.map(link => link.href)")
    assert any("cookbook/limit-core-hours.html" in link for link in found)
    assert any("/limits.html" in link for link in found)


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("resume", "Resume a run"),
        ("idle", "Glossary"),
        ("core hours", "Limit core-hours"),
        ("write an executor", "Write an executor for your own queue"),
        ("why", "Find out why a rule did not fire"),
        ("exit code", "Stop, resume, and exit codes"),
        ("percent", "Start when most jobs have succeeded"),
        ("walltime", "Limits"),
        ("hang", "Cancel jobs that are too slow"),
        ("allocations", "Continue in the next allocation"),
    ],
)
def test_the_search_shows_first_the_page_that_answers_a_frequent_question(
    site: Path, page: Any, words: str, title: str
) -> None:
    page.goto(f"{site.as_uri()}/search.html?q={words}")
    page.wait_for_selector("ul.search li a")
    assert page.locator("ul.search li a").first.inner_text() == title


@pytest.mark.parametrize(
    ("link", "answer"),
    [
        ("Resume a run", "ensemble resume"),
        ("Glossary", "idle"),
        ("Limit core-hours", "core_hours"),
        ("Continue in the next allocation", "--or-resume"),
        ("write an executor", "BatchExecutor"),
        ("Find out why a rule did not fire", "ensemble why"),
        ("Get started in five minutes", "ensemble init"),
    ],
)
def test_answers_to_frequent_questions_are_one_click_from_the_front_page(
    site: Path, page: Any, link: str, answer: str
) -> None:
    page.goto((site / "index.html").as_uri())
    page.goto(page.locator(f"article a:has-text({link!r})").evaluate("link => link.href"))
    assert answer in page.inner_text("article")
