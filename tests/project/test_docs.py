"""The documentation: its ensemble files are valid, and its lists are complete."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from ensemble_core.config import load_text
from ensemble_core.model.job_group import JobGroup
from ensemble_core.plugin.discovery import discover

ROOT = Path(__file__).parents[2]
#: Without the tutorial, whose files need its plugin: tests/plugin/test_tutorial.py follows it.
PAGES = [
    ROOT / "README.md",
    *sorted(
        page
        for page in (ROOT / "docs").glob("*.md")
        if not page.name.startswith(("plugin-tutorial", "plugin-reference"))
    ),
]
#: Pages of the reference of the ensemble file.
REFERENCE = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "ensemble-file",
        "job-groups",
        "sweeps",
        "observers",
        "programs",
        "rules",
        "conditions",
        "causes",
        "actions",
        "metrics",
        "functions",
        "limits",
        "stopping",
    )
]
FILES = [
    pytest.param(
        page.name,
        number,
        block,
        id=f"{page.name}-{number}",
        # The files of such a page need plugins.
        marks=[pytest.mark.checkout] if "\nYou need ensemble-" in page.read_text("utf-8") else [],
    )
    for page in PAGES
    if page.is_file()
    for number, block in enumerate(
        re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    )
    if re.search(r"^jobs:", block, re.M)
]


@pytest.mark.parametrize(("page", "number", "text"), FILES)
def test_an_ensemble_file_in_the_documentation_is_valid(
    page: str, number: int, text: str, tmp_path: Path
) -> None:
    for program in re.findall(r"\{here\}/([\w.-]+)", text):
        (tmp_path / program).touch(0o755)
    assert load_text(text, discover(), file=str(tmp_path / page)).warnings == ()


PARTS = [
    (page.name, number, block)
    for page in REFERENCE
    for number, block in enumerate(
        re.findall(r"^ *```yaml\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S)
    )
    if not re.search(r"^jobs:", block, re.M)
]


@pytest.mark.parametrize(("page", "number", "text"), PARTS, ids=[f"{p}-{n}" for p, n, _ in PARTS])
def test_a_part_of_a_job_group_in_the_documentation_is_valid(
    page: str, number: int, text: str
) -> None:
    """Parts for an executor that is not installed are skipped."""
    group = "jobs:\n  - name: a\n    command: x\n" + textwrap.indent(textwrap.dedent(text), "    ")
    start = "rules: [{trigger: start, action: {name: submit}}]\n"
    if "flux:" in text and "flux" not in discover().executors:
        pytest.skip("ensemble-flux is not installed")
    load_text(group + start, discover(), file="part.yaml")


def test_the_algorithm_in_a_file_on_its_page_can_be_used(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
    (text,) = re.findall(r"^```yaml\n(summary: .*?)^```", page, re.M | re.S)
    (tmp_path / "demand.yaml").write_text(text)
    study = """
jobs: [{name: sim, command: "true"}]
use: [{algorithm: ./demand.yaml, with: {group: sim, then: {name: terminate}}}]
"""
    loaded = load_text(study, discover(), file=str(tmp_path / "study.yaml"))
    assert len(loaded.rules) == 2


@pytest.mark.checkout
def test_pictures_of_the_documentation_are_small_and_used() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md")]
    text = "".join(page.read_text("utf-8") for page in pages)
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert len(pictures) > 15
    assert [file.name for file in pictures if file.stat().st_size > 200_000] == []
    assert [file.name for file in pictures if f"pictures/{file.name})" not in text] == []


@pytest.mark.checkout
def test_no_page_is_too_long_to_read_in_one_sitting() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    pages += ROOT.glob("plugins/*/README.md")
    long = {page.name: words for page in pages if (words := len(page.read_text().split())) > 3500}
    assert long == {}
    assert len((ROOT / "docs" / "tour.md").read_text("utf-8").split()) <= 2000
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


@pytest.mark.checkout
def test_each_release_has_at_most_sixty_lines_in_the_changelog() -> None:
    _, *releases = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    assert releases
    assert [release.partition("\n")[0] for release in releases if release.count("\n") > 60] == []


def test_the_documentation_has_ensemble_files() -> None:
    assert {file.values[0] for file in FILES} >= {"README.md", "ensemble-file.md", "tour.md"}


def test_the_reference_names_every_job_field_trigger_action_and_statistic() -> None:
    text = "".join(page.read_text("utf-8") for page in REFERENCE)
    registry = discover()
    inner = {
        "text",
        "here",
        "run",
        "cwd",
        "replicated",
        "compared",
        "more",
        "reads",
        "at_once_each",
    }
    fields = set(JobGroup.__dataclass_fields__) - inner
    builtin = [plugin for plugin in registry.plugins if plugin.builtin]
    for kind in ("trigger", "action", "statistic"):
        names = {record.name for plugin in builtin for record in plugin.records.get(kind, ())}
        fields |= {name for name in names if not name.startswith("job-")}
    missing = sorted(
        name for name in fields if not re.search(rf"`[^`\n]*\b{re.escape(name)}\b", text)
    )
    assert missing == []


@pytest.mark.checkout
def test_the_map_for_contributors_names_existing_files_and_packages() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = set(re.findall(r"`((?:ensemble_core|plugins|tests|docs|scripts)/[a-z_\d./*-]+)`", page))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not list(ROOT.glob(path.rstrip("/")))] == []
    rooms = {path.parent.name for path in ROOT.glob("ensemble_core/*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in page} == set()


@pytest.mark.checkout
def test_workflows_call_make_on_each_supported_python() -> None:
    """So every CI step can be repeated in a checkout."""
    files = {
        file.stem: yaml.safe_load(file.read_text("utf-8"))
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
    }
    jobs = [job for file in files.values() for job in file["jobs"].values()]
    commands = {step["run"] for job in jobs for step in job["steps"] if "run" in step}
    assert {command.split()[0] for command in commands} == {"make"}
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert {command.split()[-1] for command in commands} == {"test", "docs", "dist"} <= {*targets}
    supported = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert files["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == supported


@pytest.mark.checkout
def test_the_map_of_the_code_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    files = {path.as_posix() for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    named = re.findall(r"`([\w/-]+\.py)`", text)
    assert len(named) > 50
    assert [name for name in named if not any(f"/{name}" in file for file in files)] == []


@pytest.mark.checkout
def test_the_map_of_the_code_names_modules_of_the_package() -> None:
    rows = re.findall(
        r"(?m)^\| `(\w+)/` \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    )
    assert len(rows) > 9
    others = {"run", "load", "open_run", "commands"}
    missing = [
        f"{package}/{name}"
        for package, content in rows
        for name in re.findall(r"`(\w+)/?`", content)
        if name not in others and not (ROOT / "ensemble_core" / package / f"{name}.py").exists()
    ]
    assert missing == []
