"""Tests of the page in a real browser: each view, in light and dark colours, and on a phone."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from ensemble_dashboard.command import _listening
from ensemble_dashboard.report import page_of, write_report
from ensemble_dashboard.server import application

import ensemble_core

VIEWS = {
    "overview": "3 jobs failed",
    "failures": "T = 2.3(.|\n)*lost atoms at step 41\\s+3 times",
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
    """Yield the address of a dashboard that shows a run."""
    app = application(str(state), lambda: [run], "right", lambda: None)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with _listening(0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/#token=right"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


@pytest.fixture(scope="module")
def dashboard_url(state: Path) -> Iterator[str]:
    with served("study", state) as url:
        yield url


@pytest.fixture(params=["report", "dashboard"])
def url(request: pytest.FixtureRequest, browser: Any) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


class Page:
    """A page that records errors, and requests to other machines."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(150_000)
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
        new = self.page.url.partition("#")[0] != base
        query = f"{'&' if '?' in view else '?'}{token}" if new else ""
        self.page.goto(f"{base}#/study/{view}{query}")
        name = view.partition("?")[0]
        self.page.wait_for_function(
            f"() => document.querySelector('main.{name} h2')"
            " && !/reading …/.test(document.body.innerText)"
        )
        text: str = self.page.inner_text("body")
        return text


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Page]:
    tab = Page(browser)
    yield tab
    tab.context.close()


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    """Yield the page that all tests share: a new one takes longer than most tests."""
    tab.page.emulate_media(color_scheme="light")
    tab.page.set_viewport_size({"width": 1280, "height": 720})
    yield tab
    tab.page.goto("about:blank")
    tab.problems.clear()


# The width of a view does not depend on its colours.
@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 360)])
def test_each_view_shows_what_it_is_for(page: Page, url: str, scheme: str, width: int) -> None:
    page.page.emulate_media(color_scheme=scheme)
    page.page.set_viewport_size({"width": width, "height": 800})
    for view, words in VIEWS.items():
        text = page.show(url, view)
        assert re.search(words, text), (view, text)
        wide = page.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{view} is wider than the screen"
    assert page.problems == []


def test_markup_and_escape_codes_in_output_are_shown_as_text(page: Page, url: str) -> None:
    text = page.show(url, "job?id=sim.6")
    assert '<script>document.title="taken"</script>' in text
    assert "\x1b" not in text
    assert "red" in text
    assert page.page.title() != "taken"
    assert "<b>1</b>" in text
    assert page.page.query_selector("main b") is None


def test_names_with_markup_are_shown_as_text(page: Page, report_url: str, tmp_path: Path) -> None:
    # Ensemble files reject such names, but a forged journal may have them.
    text = Path(report_url.removeprefix("file://")).read_text()
    for name in ("sim", "energies", "never", "T"):
        text = text.replace(f'"{name}"', f'"<img src=x onerror=document.title=1>{name}"')
    (tmp_path / "other.html").write_text(text)
    for view in ("overview", "failures", "costs", "results", "rules", "timeline", "jobs"):
        assert "<img src=x" in page.show((tmp_path / "other.html").as_uri(), view), view
        assert page.page.query_selector("main img") is None
    assert page.page.title() != "1"
    assert page.problems == []


@pytest.mark.parametrize("name", ["__proto__", "constructor", "toString"])
def test_names_of_javascript_are_shown_as_any_other(
    page: Page, report_url: str, tmp_path: Path, name: str
) -> None:
    text = Path(report_url.removeprefix("file://")).read_text()
    for old in ("sim", "energies", "T"):
        text = text.replace(f'"{old}"', f'"{name}"')
    (tmp_path / "other.html").write_text(text)
    for view in ("failures", "results", "jobs"):
        assert name in page.show((tmp_path / "other.html").as_uri(), view), view
    page.page.goto(f"{(tmp_path / 'other.html').as_uri()}#/study/{name}")
    page.page.wait_for_selector("main h2")
    assert page.problems == []


def test_copied_tables_keep_each_value_in_its_cell(page: Page, report_url: str) -> None:
    page.show(report_url, "overview")
    lone, broken = "a\\rb", "a | b \\\\\\n| c |"
    made = page.page.evaluate(f"csv(['x', 'y'], [['{lone}', 1]])")
    assert made == 'x,y\n"a\rb",1'
    made = page.page.evaluate(f"markdown(['x'], [['{broken}']])")
    assert made.split("\n") == ["| x |", "| --- |", "| a \\| b \\\\ \\| c \\| |"]


def test_sorting_and_filtering_work_by_keyboard_and_are_kept_in_the_address(
    page: Page, url: str
) -> None:
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


def test_the_filter_has_one_meaning_and_says_what_it_found(page: Page, url: str) -> None:
    page.show(url, "jobs")
    field = page.page.get_by_label("Filter")
    # Each time of a job contains 17, but times are not searched.
    field.press_sequentially("17")
    page.page.get_by_text("No row has “17”").wait_for()
    page.page.get_by_role("button", name="Clear the filter").click()
    page.page.get_by_text("12 rows").wait_for()
    # Filters while typing, without Enter.
    field.press_sequentially("sim.11")
    page.page.get_by_text("1 row", exact=True).wait_for()
    field.fill("T = 2.3")
    field.press("Enter")
    page.page.get_by_role("button", name="Show others than T = 2.3 too").wait_for()
    page.page.get_by_text("3 rows").wait_for()
    assert field.input_value() == ""


def test_numbers_in_tables_can_be_copied_into_the_filter(altered: Any) -> None:
    page = altered(lambda data: data["jobs"]["rows"][0].__setitem__(1, 14016), "jobs")
    page.get_by_role("link", name="14016", exact=True).wait_for()
    page.get_by_label("Filter").press_sequentially("14016")
    page.get_by_text("1 row", exact=True).wait_for()


def test_headings_and_pages_stay_in_sight(altered: Any) -> None:
    def change(data: dict[str, Any]) -> None:
        data["jobs"]["rows"] *= 12

    page = altered(change, "jobs")
    page.get_by_role("navigation", name="Pages above").wait_for()
    page.get_by_role("navigation", name="Pages below").wait_for()
    page.locator("tbody tr").last.scroll_into_view_if_needed()
    table = page.get_by_role("region", name="Jobs")
    assert table.evaluate("each => each.scrollTop") > 0
    heading = page.get_by_role("columnheader", name="outcome")
    assert abs(heading.bounding_box()["y"] - table.bounding_box()["y"]) < 3


def test_a_report_says_which_logs_and_commands_it_has(altered: Any) -> None:
    def without(data: dict[str, Any], *names: str) -> None:
        for name in names:
            data[name].pop("sim.6", None)

    page = altered(lambda data: without(data, "logs", "details"), "job?id=sim.6")
    page.get_by_text("This log is not in the report, which has those of 2 jobs").first.wait_for()
    page.get_by_text("leaves out the command, node and events of this job").wait_for()
    page = altered(lambda data: data["logs"].clear(), "job?id=sim.6")
    page.get_by_text("without logs: ensemble report study --with-logs").first.wait_for()


def test_commands_name_the_folder_of_the_run(page: Page, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "runs" / "study", tmp_path / "runs" / "study")
    with served("study", tmp_path) as url:
        assert f"ensemble why study never --state {tmp_path}" in page.show(url, "rules")


def test_a_wrong_token_is_reported_with_a_hint(page: Page, dashboard_url: str) -> None:
    page.page.goto(dashboard_url.partition("#")[0] + "#token=wrong")
    page.page.get_by_text("Open the address that").wait_for()


def test_the_token_is_removed_from_the_address(page: Page, dashboard_url: str) -> None:
    page.page.goto(dashboard_url)
    page.page.get_by_role("heading", name="study").wait_for()
    assert "token" not in page.page.url


@pytest.fixture
def altered(
    page: Page, report_url: str, tmp_path: Path
) -> Iterator[Callable[[Callable[[dict[str, Any]], object], str], Any]]:
    """Return a function that shows a view of the report after a change to its data."""
    numbers = itertools.count()

    def show(change: Callable[[dict[str, Any]], object], view: str) -> Any:
        text = Path(report_url.removeprefix("file://")).read_text()
        data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
        change(data)
        path = tmp_path / f"altered{next(numbers)}.html"
        path.write_text(page_of(data))
        page.show(path.as_uri(), view)
        return page.page

    yield show
    assert page.problems == []


def test_bars_distinguish_held_and_lost_jobs(altered: Any) -> None:
    group = {
        "submitted": 16,
        "waiting": 5,
        "held": 2,
        "failed": 3,
        "causes": {"lost": 1, "exit": 2},
    }
    page = altered(lambda data: data["overview"]["groups"][0].update(group), "overview")
    bar = page.locator(".bar").first
    words = "9 done, 3 waiting, 2 held, 2 failed, 1 lost"
    assert bar.get_attribute("aria-label") == words
    # Failed jobs are also striped, for people who cannot tell the colours apart.
    striped = bar.locator(".fill.failed").evaluate("each => getComputedStyle(each).backgroundImage")
    assert "gradient" in striped


def test_the_timeline_has_a_lane_for_each_node(altered: Any) -> None:
    nodes = {f"sim.{index}": f"node{index % 3}" for index in range(11)}
    page = altered(lambda data: data.update(nodes=nodes), "timeline")
    page.get_by_role("combobox", name="Lines by").select_option("node")
    labels = page.locator("figure svg[role=group] > text").all_text_contents()
    assert labels[:4] == ["node0", "node1", "node2", "unknown"]


def test_pilots_are_shown_with_their_states_and_how_much_of_them_was_used(altered: Any) -> None:
    pilot = {"kind": "cpu", "queue_id": "17", "cores": 4, "core_hours": 2.0, "hosts": ["n1", "n2"],
             "used_core_hours": 0.5, "requested": 0.0, "began": 10.0, "ready": 12.0,
             "ended": None, "why": None}  # fmt: skip
    pilots = [{**pilot, "pilot": n, "state": name} for n, name in enumerate(("ready", "draining"))]
    queue = {"core_hours": 4.0, "used_core_hours": 1.0, "none_requested": "two wait",
             "pilots": pilots}  # fmt: skip

    def change(data: dict[str, Any]) -> None:
        data["queue"] = queue
        data["overview"].update(has_pilots=True, state="running", began=0.0, until=7210.0)

    page = altered(change, "pilots")
    text = page.locator("main").inner_text()
    assert "2 pilots requested so far." in text, text
    assert "Jobs used 1 of the 4 core-hours of pilots (25 %); 3 were unused." in text
    assert "No other pilot is requested: two wait." in text
    assert page.locator(".bar").first.get_attribute("aria-label") == "1 ready, 1 draining"
    assert page.locator("figure rect").count() == 8
    assert "17" in page.locator("table").inner_text()
    page = altered(lambda data: data["overview"].update(has_pilots=False), "overview")
    assert page.get_by_role("link", name="Pilots").count() == 0


def test_tables_have_error_bars_if_the_file_says_so(altered: Any) -> None:
    table = {
        "name": "binder",
        "kind": "table",
        "of": "sim",
        "names": ["T", "U[16]", "U[32]", "e[16]", "e[32]"],
        "rows": [[2.1, 0.6, 0.62, 0.01, 0.02], [2.2, 0.5, 0.4, 0.01, 0.02]],
        "plot": {"x": "T", "y": ["U[16]", "U[32]"], "errors": {"U[16]": "e[16]", "U[32]": "e[32]"}},
    }
    page = altered(lambda data: data.update(tables=[table]), "results")
    titles = page.locator("figure").first.locator("g title").all_text_contents()
    assert "U[16]: 2.1, 0.6 ± 0.01" in titles
    assert "U[32]: 2.2, 0.4 ± 0.02" in titles
    page.get_by_role("combobox", name="y", exact=True).first.select_option("U[16]")
    page.get_by_text("binder: U[16] against T").wait_for()


def test_the_reader_chooses_the_error_bars_of_a_table(altered: Any) -> None:
    table = {
        "name": "curve",
        "kind": "table",
        "of": "sim",
        "names": ["T", "U", "spread"],
        "rows": [[2.1, 0.6, 0.01], [2.2, 0.5, 0.02]],
        "plot": {},
    }
    page = altered(lambda data: data.update(tables=[table]), "results")
    figure = page.locator("figure").first
    assert not [t for t in figure.locator("g title").all_text_contents() if "±" in t]
    choice = page.get_by_role("combobox", name="errors", exact=True).first
    choice.select_option("spread")
    page.get_by_text("U: 2.1, 0.6 ± 0.01", exact=True).wait_for(state="attached")
    choice.select_option("")
    page.get_by_text("U: 2.1, 0.6", exact=True).wait_for(state="attached")


def test_a_generator_shows_its_best_point_so_far(altered: Any) -> None:
    points = {
        "name": "search",
        "kind": "generator",
        "of": "search",
        "names": ["point", "state", "x", "f"],
        "rows": [  # the best one first, then those that violate a constraint, then lost ones
            [3, "done", 0.3, 1.0],
            [0, "done", 0.0, 3.0],
            [1, "done", 0.1, 5.0],
            [4, "done", 0.4, 0.5],
            [2, "lost", 0.2, None],
        ],
        "plot": {},
        "objectives": {"f": "minimize"},
        "feasible": [0, 1, 3],
    }
    page = altered(lambda data: data.update(tables=[points]), "results")
    page.get_by_text("Best f so far (minimize): 1", exact=True).wait_for()
    titles = page.locator("figure").first.locator("g title").all_text_contents()
    assert [each for each in titles if each.startswith("best so far:")] == [
        "best so far: 0, 3",
        "best so far: 1, 3",
        "best so far: 3, 1",
    ]
    assert "points: 4, 0.5" in titles


def test_values_that_differ_late_are_different_curves(altered: Any) -> None:
    table = {
        "name": "curve",
        "kind": "table",
        "of": "sim",
        "names": ["T", "U", "seed"],
        "rows": [[2.1, 0.6, 0.1000001], [2.1, 0.5, 0.1000002]],
        "plot": {"by": "seed"},
    }
    page = altered(lambda data: data.update(tables=[table]), "results")
    page.get_by_text("seed = 0.1000001", exact=True).first.wait_for(state="attached")
    page.get_by_text("seed = 0.1000002", exact=True).first.wait_for(state="attached")


def test_a_firing_shows_its_condition_and_costs_show_the_idle_share(altered: Any) -> None:
    def change(data: dict[str, Any]) -> None:
        data["overview"]["rules"][0]["when"] = "attempt < 3"
        data["capacity"] = {"cores": {"up": 8.0, "free": 2.0}}

    page = altered(change, "rules")
    page.get_by_text("start when attempt < 3 → submit sim").wait_for()
    page = altered(change, "costs")
    row = page.get_by_role("row", name="core-hours")
    assert row.first.inner_text().split()[-2:] == ["25", "%"]


def test_costs_have_no_column_without_a_value(altered: Any) -> None:
    page = altered(lambda data: data.update(capacity={}), "costs")
    page.get_by_text("This queue reports no free cores.").wait_for()
    headings = page.get_by_role("columnheader").all_inner_texts()
    assert headings[:3] == ["of the run", "used", "group"]
    assert "time limit" not in headings


def test_cancelled_jobs_do_not_count_as_failed_core_hours(altered: Any) -> None:
    hours = {"success": 6.0, "failed": 1.0, "cancelled": 3.0}
    page = altered(lambda data: data["costs"][0].update(core_hours=hours), "costs")
    row = page.get_by_role("row", name="sim").inner_text().split()
    assert row[:5] == ["sim", "10", "1", "10", "%"]


def test_cancelled_jobs_do_not_count_as_failed_jobs(altered: Any) -> None:
    def change(data: dict[str, Any]) -> None:
        for group in data["overview"]["groups"]:
            group.update(failed=0, cancelled=0, lost=0, causes={})
        group.update(failed=1, cancelled=2, lost=1, causes={"exit": 1})

    page = altered(change, "overview")
    page.get_by_role("link", name="1 job failed").wait_for()


def test_a_rule_shows_its_action_and_the_reason_of_ensemble_why(altered: Any) -> None:
    page = altered(lambda data: data["reasons"].update(never="It never fired: so."), "rules")
    page.get_by_text("mean.sim-energy when > 99 → submit other").wait_for()
    page.get_by_text("It never fired: so.").wait_for()
    # No chart for a single firing.
    assert page.locator("figure").count() == 0


def test_a_rule_shows_for_how_long_and_when_its_condition_becomes_true(
    page: Page, tmp_path: Path
) -> None:
    checked = "metric('count.sim.failed') > 4"
    rules = [
        {"trigger": "start", "action": {"name": "submit", "label": "sim"}},
        {"trigger": "metric", "name": "count.sim.failed(within 10m)", "when": ">= 3", "for": "5m"},
        {"trigger": "metric", "name": "count.sim.failed", "crosses": "> 1"},
        {"trigger": "metric", "name": "mean.sim-duration", "crosses": "> 2", "at_first": True},
        {"trigger": "heartbeat", "when": checked, "for": 3, "enabled": False},
    ]
    study = {
        "limits": {"at_once": {"gpu": 1}},
        "jobs": [
            {
                "name": "sim",
                "command": "true {T}",
                "parameters": {"T": [1, 2]},
                "uses": "gpu",
                "at_once": {"jobs": 1, "each": "T"},
            }
        ],
        "rules": [{"action": {"name": "log", "message": "m"}, **rule} for rule in rules],
    }
    ensemble_core.run(study, executor="local", tag="study", state=str(tmp_path), wait=True)
    path = tmp_path / "report.html"
    write_report(str(tmp_path), "study", str(path))
    text = page.show(path.as_uri(), "rules")
    for words in (
        "count.sim.failed(within 10m) when >= 3 for 5 min → log message=m",
        "count.sim.failed when > 1 becomes true → log message=m",
        "mean.sim-duration when > 2 becomes true, or is true at first → log message=m",
        f"heartbeat when {checked} at 3 checks in a row → log message=m",
    ):
        assert words in text
    assert page.problems == []


def test_a_pair_of_values_replaces_its_single_values(altered: Any) -> None:
    def change(data: dict[str, Any]) -> None:
        kind = data["failures"][0]
        pair = {"name": "T", "value": 2.3, "with": {"s": "2"}, "failed": 50, "total": 50}
        single = {"name": "T", "value": 2.3, "failed": 51, "total": 150}
        other = {"name": "s", "value": "3", "failed": 9, "total": 12}
        kind.update(count=62, parameters=[pair, single, other])

    page = altered(change, "failures")
    found = page.locator("article ul").first.locator("li").all_inner_texts()
    assert [" ".join(each.split()) for each in found] == [
        "T = 2.3 and s = 2: 50 of 50 failed (81 % of these failures)",
        "s = 3: 9 of 12 failed (15 % of these failures)",
    ]


def test_a_jobs_log_comes_first(page: Page, url: str) -> None:
    page.show(url, "job?id=sim.6")
    headings = page.page.locator("main h3").all_inner_texts()
    assert headings[:3] == ["Output (stderr)", "Output (stdout)", "Command"]
    assert "status" not in page.page.get_by_role("region", name="Events").inner_text()


def test_results_without_tables_need_one_line(altered: Any) -> None:
    page = altered(lambda data: data.update(tables=[], curves=[]), "results")
    assert page.get_by_text("This run has no tables of results").count() == 1
    assert page.get_by_text("What jobs reported while they ran").count() == 0


def test_every_view_reports_damage_of_the_run(page: Page, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "runs" / "study", tmp_path / "runs" / "study")
    with sqlite3.connect(tmp_path / "runs" / "study" / "journal.db") as journal:
        # The engine's state comes from a later snapshot, firings do not.
        journal.execute(
            "UPDATE event_lists SET list = replace(list, 'submit', 'sxbmit') WHERE first = 1"
        )
    with served("study", tmp_path) as url:
        page.show(url, "rules")
        page.page.get_by_role("alert").get_by_text("the journal is damaged").wait_for()
        page.page.get_by_role("link", name="Overview").click()
        page.page.get_by_role("heading", name="Progress").wait_for()
        page.page.get_by_role("alert").get_by_text("the journal is damaged").wait_for()


def test_no_view_has_a_serious_accessibility_problem(browser: Any, report_url: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = Page(browser, bypass_csp=True)
    # The dark theme differs only in its colours.
    for view in VIEWS:
        page.show(report_url, view)
        for scheme, options in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
            page.page.emulate_media(color_scheme=scheme)
            found = axe.run(page.page, options=options).response["violations"]
            serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
            assert serious == [], (view, scheme, found)
    page.context.close()


def press_until(page: Any, name: str) -> None:
    """Move the focus to the link or button with this name by Tab, and press Enter."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            page.keyboard.press("Enter")
            return
    pytest.fail(f"Tab never reaches {name!r}")


def test_a_failed_jobs_log_can_be_reached_by_keyboard(page: Page, url: str) -> None:
    page.show(url, "overview")
    press_until(page.page, "3 jobs failed")
    page.page.get_by_role("heading", name="Failures").wait_for()
    press_until(page.page, "T = 2.3")
    page.page.get_by_text("3 rows").wait_for()
    press_until(page.page, "sim")
    page.page.get_by_role("heading", name="Output (stderr)").wait_for()
    assert page.problems == []


def test_a_chart_is_saved_as_svg(page: Page, report_url: str) -> None:
    page.show(report_url, "timeline")
    with page.page.expect_download() as waiting:
        page.page.get_by_role("button", name="Save SVG").first.click()
    picture = Path(waiting.value.path()).read_text()
    assert 'xmlns="http://www.w3.org/2000/svg"' in picture
    assert waiting.value.suggested_filename.endswith(".svg")


def test_a_report_has_the_commands_and_events_of_jobs(page: Page, report_url: str) -> None:
    text = page.show(report_url, "job?id=sim.6")
    assert "echo energy=2.3" in text
    assert """sh -c '\necho '"'"'<script>""" in text, "a shell can read the command"
    assert "Rules that touched it" in text
    assert "do-not-show" not in text


def test_the_page_follows_a_live_run_until_it_stops(
    page: Page, live: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with served("one", tmp_path) as url:
        page.page.goto(url)
        page.page.get_by_text("1 running").first.wait_for()
        page.page.get_by_role("link", name="Jobs", exact=True).click()
        page.page.get_by_text("2 rows").wait_for()
        run = ensemble_core.open_run("one", state=tmp_path)
        run.submit("quick")
        page.page.get_by_text("3 rows").wait_for()
        run.stop()
        live.wait(150)
        page.page.get_by_text("stopped", exact=True).wait_for()
        page.page.get_by_role("link", name="Overview").click()
        page.page.get_by_text("ensemble resume one").wait_for()
        assert page.problems == []
