"""The page in a real browser: each view, light, dark and on a telephone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ensemble_dashboard.report import write_report

import ensemble_core

VIEWS = {
    "overview": "3 jobs failed",
    "failures": "T = 2.3",
    "costs": "core-hours",
    "results": "energies",
    "rules": "was false",
    "timeline": "When 12 jobs ran",
    "jobs": "12 rows",
    "job?id=sim.6": "lost atoms at step 41",
}


@pytest.fixture(scope="module")
def report_url(state: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "study.html"
    write_report(None, "study", str(path), with_logs=True)
    return path.as_uri()


@contextmanager
def served(run: str, state: Path) -> Iterator[str]:
    """The address of a dashboard that shows a run."""
    command = [sys.executable, "-m", "ensemble_core.cli", "dashboard", run, "--state", str(state)]
    command += ["--no-open", "--no-socket"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(each for each in process.stdout if each.startswith("Dashboard: "))
        try:
            yield line.split()[1]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def dashboard_url(state: Path) -> Iterator[str]:
    with served("study", state) as url:
        yield url


@pytest.fixture(params=["report", "dashboard"])
def url(request: pytest.FixtureRequest, browser: Any) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


class Page:
    """A page that notes what must not happen: errors, and requests of other machines."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self._asked(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _asked(self, url: str) -> None:
        if not re.match(r"(file:|data:|blob:|http://127\.0\.0\.1:)", url):
            self.problems.append(f"a request left this machine: {url}")

    def show(self, url: str, view: str) -> str:
        base, _, token = url.partition("#")
        self.page.goto(f"{base}#/study/{view}{'&' if '?' in view else '?'}{token}")
        self.page.reload()
        self.page.wait_for_function(
            "() => document.querySelector('main h2') && !/reading …/.test(document.body.innerText)"
        )
        text: str = self.page.inner_text("body")
        return text


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1100), ("dark", 1100), ("light", 360), ("dark", 360)]
)
def test_each_view_shows_what_it_is_for(browser: Any, url: str, scheme: str, width: int) -> None:
    page = Page(browser, color_scheme=scheme, viewport={"width": width, "height": 800})
    for view, words in VIEWS.items():
        text = page.show(url, view)
        assert re.search(words, text), (view, text)
        wide = page.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{view} is wider than the screen"
    assert page.problems == []
    page.context.close()


def test_markup_and_codes_that_a_job_prints_are_text(browser: Any, url: str) -> None:
    page = Page(browser)
    text = page.show(url, "job?id=sim.6")
    assert '<script>document.title="taken"</script>' in text
    assert "\x1b" not in text
    assert "red" in text
    assert page.page.title() != "taken"
    assert "<b>1</b>" in text
    assert page.page.query_selector("main b") is None
    page.context.close()


def test_names_made_of_markup_are_text(browser: Any, report_url: str, tmp_path: Path) -> None:
    # No ensemble file can have such names, but a journal that somebody else made can.
    text = Path(report_url.removeprefix("file://")).read_text()
    for name in ("sim", "energies", "never", "T"):
        text = text.replace(f'"{name}"', f'"<img src=x onerror=document.title=1>{name}"')
    (tmp_path / "other.html").write_text(text)
    page = Page(browser)
    for view in ("overview", "failures", "costs", "results", "rules", "timeline", "jobs"):
        assert "<img src=x" in page.show((tmp_path / "other.html").as_uri(), view), view
        assert page.page.query_selector("main img") is None
    assert page.page.title() != "1"
    assert page.problems == []
    page.context.close()


def test_a_table_is_sorted_and_filtered_by_keyboard_and_its_address_keeps_that(
    browser: Any, url: str
) -> None:
    page = Page(browser)
    page.show(url, "jobs")
    page.page.get_by_role("button", name="T", exact=True).focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("th[aria-sort=ascending]")
    page.page.get_by_label("Filter").fill("failed")
    page.page.keyboard.press("Enter")
    page.page.get_by_text("3 rows").wait_for()
    again = page.page.url
    page.page.goto("about:blank")
    page.page.goto(again)
    page.page.get_by_text("3 rows").wait_for()
    page.context.close()


def test_a_wrong_token_says_what_to_do(browser: Any, dashboard_url: str) -> None:
    page = Page(browser)
    page.page.goto(dashboard_url.partition("#")[0] + "#token=wrong")
    page.page.get_by_text("Open the address that").wait_for()
    page.context.close()


def test_the_token_is_not_left_in_the_address(browser: Any, dashboard_url: str) -> None:
    page = Page(browser)
    page.page.goto(dashboard_url)
    page.page.get_by_role("heading", name="study").wait_for()
    assert "token" not in page.page.url
    page.context.close()


def test_the_failing_parameter_is_two_clicks_from_the_start(browser: Any, url: str) -> None:
    page = Page(browser)
    page.show(url, "overview")
    page.page.get_by_role("link", name="3 jobs failed").click()
    page.page.get_by_role("link", name="T = 2.3").click()
    page.page.get_by_text("3 rows").wait_for()
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_accessibility_problem(
    browser: Any, report_url: str, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = Page(browser, color_scheme=scheme, bypass_csp=True)
    # In the dark, only the colours are others.
    options = {"runOnly": ["color-contrast"]} if scheme == "dark" else None
    for view in VIEWS:
        page.show(report_url, view)
        found = axe.run(page.page, options=options).response["violations"]
        serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
        assert serious == [], (view, found)
    page.context.close()


def press_until(page: Any, name: str) -> None:
    """Press Tab until the link or button of this name has the focus, then Enter."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            page.keyboard.press("Enter")
            return
    pytest.fail(f"Tab never reaches {name!r}")


def test_the_failing_jobs_log_is_reached_by_keyboard_alone(browser: Any, url: str) -> None:
    page = Page(browser)
    page.show(url, "overview")
    press_until(page.page, "3 jobs failed")
    page.page.get_by_role("heading", name="Failures").wait_for()
    press_until(page.page, "T = 2.3")
    page.page.get_by_text("3 rows").wait_for()
    press_until(page.page, "sim")
    page.page.get_by_role("heading", name="Output").wait_for()
    assert page.problems == []
    page.context.close()


def test_a_chart_is_saved_as_svg(browser: Any, url: str) -> None:
    page = Page(browser)
    page.show(url, "timeline")
    with page.page.expect_download() as waiting:
        page.page.get_by_role("button", name="Save SVG").first.click()
    picture = Path(waiting.value.path()).read_text()
    assert 'xmlns="http://www.w3.org/2000/svg"' in picture
    assert waiting.value.suggested_filename.endswith(".svg")
    page.context.close()


def test_a_job_in_a_report_has_its_command_and_events(browser: Any, report_url: str) -> None:
    page = Page(browser)
    text = page.show(report_url, "job?id=sim.6")
    assert "echo energy=2.3" in text
    assert "Rules that touched it" in text
    assert "do-not-show" not in text
    page.context.close()


def test_a_page_follows_a_live_run_until_it_is_stopped(
    browser: Any, live: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with served("one", tmp_path) as url:
        page = Page(browser)
        page.page.goto(url)
        page.page.get_by_text("1 running").first.wait_for()
        page.page.get_by_role("link", name="Jobs", exact=True).click()
        page.page.get_by_text("2 rows").wait_for()
        run = ensemble_core.open_run("one", state=tmp_path)
        run.submit("quick")
        page.page.get_by_text("3 rows").wait_for()
        run.stop()
        live.wait(60)
        page.page.get_by_text("stopped", exact=True).wait_for()
        page.page.get_by_role("link", name="Overview").click()
        page.page.get_by_text("ensemble resume one").wait_for()
        assert page.problems == []
        page.context.close()
