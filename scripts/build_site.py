"""Builds the documentation site in ``build/site/html``: run by ``make docs``.

Copies the Markdown files of the repository to ``build/site/source``, with ``docs/`` as the root of
the site. Generates reference pages from the code: keys of the ensemble file, commands, the Python
API and hooks. No step needs a network.

With ``--quick``, only a few examples run; the pages of the others show no output.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import run_examples

import ensemble_core
from ensemble_core.cli.main import COMMANDS
from ensemble_core.cli.main import main as cli
from ensemble_core.plugin import hookspecs
from ensemble_core.plugin.discovery import discover

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
SOURCE = SITE / "source"
HTML = SITE / "html"
#: Markdown files outside ``docs/`` that are pages of the site.
PAGES = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "plugins/*/README.md",
    "plugins/*/docs/*.md",
    "plugins/*/deploy/README.md",
    "examples/README.md",
    "examples/*/README.md",
    "examples/studies/*/README.md",
)
#: Code files that pages link to, with the pages that are generated from them.
GENERATED = {"ensemble_core/plugin/hookspecs.py": "hooks"}
#: Examples that are one file: each gets a page with its output.
SINGLE = {
    run_examples.EXAMPLES / each.file
    for each in run_examples.examples()
    if each.file.parent == Path()
}
#: Search words by page; those of the glossary are added.
FOUND_BY = {
    "docs/cookbook/cancel-slow-jobs.md": ("hang", "slow jobs"),
    "docs/cookbook/chain-of-allocations.md": ("allocations", "several allocations"),
    "docs/cookbook/limit-core-hours.md": ("core hours", "core-hours", "budget"),
    "docs/cookbook/part-of-the-jobs.md": ("percent", "fraction", "share"),
    "docs/cookbook/resume.md": ("resume", "continue"),
    "docs/cookbook/retry-by-cause.md": ("retry",),
    "docs/cookbook/several-queues.md": ("several queues",),
    "docs/cookbook/sweep.md": ("sweep",),
    "docs/cookbook/why-a-rule-did-not-fire.md": ("rule did not fire", "why", "debug"),
    "docs/howto-notify.md": ("notify", "mail", "message"),
    "docs/executor-tutorial.md": ("executor", "write executor", "write an executor", "own queue"),
    "docs/install.md": ("install", "pip install"),
    "docs/limits.md": ("walltime",),
    "docs/stopping.md": ("exit code", "stop"),
}
MOST_BYTES = 12_000_000
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def main() -> int:
    """Build the site; return Sphinx's exit code, or 1 if the site is too large."""
    shutil.rmtree(SITE, ignore_errors=True)
    outside = [path for pattern in PAGES for path in ROOT.glob(pattern)]
    for page in outside:
        copy(page)
    for page in outside:
        if page.name == "README.md":
            add_toctree(page, outside)
    for page in (ROOT / "docs").rglob("*"):
        if page.suffix in (".md", ".png", ".svg"):
            copy(page)
    generate("file-keys", file_keys())
    generate("file-options", file_options())
    generate("commands", commands())
    generate("commands-look", commands_that_look())
    generate("commands-plugins", commands_of_plugins())
    for page in API:
        generate(page, api(page))
    generate("hooks", hooks())
    with tempfile.TemporaryDirectory() as folder:
        ran = run_examples.run_all(Path(folder), quick="--quick" in sys.argv)
    add_examples(ran)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "sphinx",
                "-b",
                "html",
                "-q",
                "-W",
                "--keep-going",
                "-j",
                "auto",
            ),
            *("-c", ROOT / "docs" / "site", "-d", SITE / "doctrees", SOURCE, HTML),
        ],
        check=False,
    )
    for each in ran:
        if each.report is not None:
            (HTML / "reports").mkdir(exist_ok=True)
            (HTML / "reports" / f"{each.example.name}.html").write_bytes(each.report)
    size = sum(file.stat().st_size for file in HTML.rglob("*") if file.is_file())
    print(f"{HTML.relative_to(ROOT)}/index.html  {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        print(f"the site is larger than {MOST_BYTES / 1e6:.0f} MB", file=sys.stderr)
        return 1
    return done.returncode


def place(path: Path) -> Path:
    """Return where a file of the repository is in the sources of the site."""
    inner = path.relative_to(ROOT)
    return SOURCE / (inner.relative_to("docs") if inner.parts[0] == "docs" else inner)


def copy(path: Path) -> None:
    """Copy a file into the sources; redirect a page's links, and copy the files it links to."""
    target = place(path)
    generated = {ROOT / file: ROOT / "docs" / f"{page}.md" for file, page in GENERATED.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".md":
        shutil.copy(path, target)
        return

    def redirected(link: re.Match[str]) -> str:
        linked = (path.parent / link[2]).resolve()
        if linked == ROOT / "README.md":
            linked = ROOT / "docs" / "index.md"
        if linked in generated:
            linked = generated[linked]
        if linked in SINGLE:
            linked = linked.with_suffix(".md")
        if linked.is_dir():
            linked = next((page for page in (linked / "README.md",) if page.is_file()), linked)
        if linked.is_file() and linked.suffix != ".md":
            copy(linked)
        up = "../" * len(target.relative_to(SOURCE).parent.parts)
        return f"{link[1]}{up}{place(linked).relative_to(SOURCE).as_posix()}{link[3]}"

    text = _LINK.sub(redirected, path.read_text("utf-8"))
    if path.name == "error-codes.md":  # each code is an anchor
        text = re.sub(r"(?m)^\| (`[^|]*`) \|", lambda row: f"| {anchored(row[1])} |", text)
    if path.name == "glossary.md":
        words = re.findall(r"(?m)^\| ([a-z, ]+) \| (?!meaning)", text)
        text = indexed([word for cell in words for word in cell.split(", ")]) + text
    text = indexed(FOUND_BY.get(path.relative_to(ROOT).as_posix(), ())) + text
    # Navigation, for the site only.
    text = re.sub(r"(?ms)^<!-- only in the site\n(.*?)^-->\n", r"\1", text)
    # Sphinx cannot draw these diagrams; their text is readable.
    target.write_text(text.replace("```mermaid", "```text"), encoding="utf-8")


def indexed(words: Iterable[str]) -> str:
    """Return directives that make the search rank this page first for these words."""
    return "".join(f"```{{index}} ! {word}\n```\n" for word in words)


def add_toctree(page: Path, pages: Sequence[Path]) -> None:
    """Make the pages below a README its children in the navigation."""
    deeper = {other.parent for other in pages if other.name == "README.md"} - {page.parent}
    below = [
        other.relative_to(page.parent).with_suffix("").as_posix()
        for other in pages
        if other != page
        and other.is_relative_to(page.parent)
        and not any(
            folder.is_relative_to(page.parent) and other.is_relative_to(folder)
            for folder in deeper
            if other != folder / "README.md"
        )
    ]
    if below:
        with place(page).open("a", encoding="utf-8") as file:
            file.write("\n```{toctree}\n:hidden:\n\n" + "\n".join(sorted(below)) + "\n```\n")


def add_examples(ran: Sequence[run_examples.Ran]) -> None:
    """Write a page for each single-file example, and add runs to the pages of the others."""
    below = SOURCE / "examples"
    for each in ran:
        (below / f"{each.example.name}.png").write_bytes(each.picture)
        if each.example.file.parent != Path():
            readme = below / each.example.file.parent / "README.md"
            with readme.open("a", encoding="utf-8") as page:
                page.write(f"\n## Output of `{each.example.file.name}`\n\n{each.text}")
    for file in sorted(
        [*run_examples.EXAMPLES.glob("*/*.yaml"), *run_examples.EXAMPLES.glob("studies/*/*.yaml")]
    ):
        with (place(file.parent) / "README.md").open("a", encoding="utf-8") as page:
            page.write(f"\n## File `{file.name}`\n\n```yaml\n{file.read_text('utf-8')}```\n")
    for file in SINGLE:
        text = run_examples.page(file.relative_to(run_examples.EXAMPLES), ran)
        (below / f"{file.stem}.md").write_text(text, encoding="utf-8")


def anchored(codes: str) -> str:
    """Return a table's cell of error codes with an anchor before each."""
    return re.sub(r"`([a-z0-9-]+)`", r'<span id="\1"></span>`\1`', codes)


def generate(name: str, text: Iterator[str]) -> None:
    """Write a generated page."""
    (SOURCE / f"{name}.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def cell(text: str) -> str:
    """Return a text escaped for a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")


# ── keys of the ensemble file ─────────────────────────────────────────────────────────────────────

#: Sections of the page, each with the name of its definition in the schema.
PARTS = {
    "A job group": "job",
    "A range of a parameter": "range",
    "A rule": "rule",
    "An action": "action",
    "A table of results": "table",
    "A generator": "generator",
    "A variable of a generator": "variable",
    "A statistic": "statistic",
    "An instance of an algorithm": "use",
}
#: Kinds of plugins with options in the schema.
KINDS = {"rule": "Trigger", "action": "Action", "statistic": "Statistic", "generator": "Generator"}


@cache
def schema_of_files() -> dict[str, Any]:
    """Return the JSON Schema that ``ensemble schema`` prints."""
    command = [sys.executable, "-m", "ensemble_core.cli", "schema"]
    schema: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return schema


def file_keys() -> Iterator[str]:
    """Yield the reference of all keys."""
    schema = schema_of_files()
    definitions = schema["$defs"]
    yield "# All keys of the ensemble file\n"
    yield "This page is made from the JSON Schema that `ensemble schema` prints."
    yield "[The ensemble file](ensemble-file.md) explains how the parts work together."
    yield "[Options of triggers, actions, statistics and generators](file-options.md) have a page"
    yield "of their own.\n"
    yield from keys("Top level", schema)
    for key in ("logging", "limits"):
        yield from keys(f"`{key}`", schema["properties"][key])
    for title, name in PARTS.items():
        yield from keys(title, definitions[name])
        for key in ("retry", "plot", "prune"):
            if inner := definitions[name]["properties"].get(key):
                yield from keys(f"`{key}` of {title[0].lower()}{title[1:]}", inner)
    yield children("file-options")


def file_options() -> Iterator[str]:
    """Yield the reference of the options of triggers, actions, statistics and generators."""
    definitions = schema_of_files()["$defs"]
    yield "# Options of triggers, actions, statistics and generators\n"
    yield "This page is made from the JSON Schema that `ensemble schema` prints. It includes the"
    yield "plugins of this repository. [All other keys](file-keys.md) are on a page of their own.\n"
    triggers = discover().triggers
    for prefix, kind in KINDS.items():
        for name, part in sorted(definitions.items()):
            if name.startswith(f"{prefix}-") and ":" not in name and not name.endswith("-options"):
                own = definitions.get(f"{name}-options", part)
                short = name.removeprefix(f"{prefix}-")
                summary = triggers[short].summary if prefix == "rule" else part["description"]
                yield from keys(f"{kind} `{short}`", {**own, "description": summary})


def keys(title: str, part: Mapping[str, Any]) -> Iterator[str]:
    """Yield a section: a table of the part's keys."""
    description = part.get("description", "")
    yield f"## {title}\n"
    if description:
        yield f"{description[0].upper()}{description[1:].rstrip('.')}.\n".replace("<", "&lt;")
    known = {k: v for k, v in part.get("properties", {}).items() if isinstance(v, dict)}
    if not known:
        return
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    for name, value in known.items():
        default = json.dumps(value["default"]) if "default" in value else ""
        default = (
            "required" if name in part.get("required", ()) else cell(f"`{default}`" * bool(default))
        )
        yield f"| `{name}` | {kind_of(value)} | {default} | {cell(value.get('description', ''))} |"
    yield ""


def kind_of(value: Mapping[str, Any]) -> str:
    """Return the type of a value in words."""
    if "enum" in value:
        words = [str(word) for word in value["enum"] if ":" not in str(word)]
        return ", ".join(f"`{word}`" for word in words) if len(words) <= 6 else "a name"
    if value.get("x-ensemble") == "duration":
        return "duration"
    types = value.get("type", ())
    words = [types] if isinstance(types, str) else [word for word in types if word != "null"]
    return " or ".join({"object": "mapping", "array": "list"}.get(w, w) for w in words)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


#: The commands up to this one start and steer runs; the others look at runs and files.
_LAST_TO_STEER = "watch"


def commands() -> Iterator[str]:
    """Yield the reference of the command line, from click."""
    yield "# All commands\n"
    yield "This page has the commands that start and steer runs, made from the commands:"
    yield "`ensemble COMMAND --help` prints the same. [Commands that look](commands-look.md)"
    yield "at runs and files, and [commands of plugins](commands-plugins.md), have own pages.\n"
    names = list(COMMANDS)[: list(COMMANDS).index(_LAST_TO_STEER) + 1]
    yield from command(cli, click.Context(cli, info_name="ensemble"), 2, names)
    yield children("commands-look", "commands-plugins")


def commands_that_look() -> Iterator[str]:
    """Yield the reference of the commands that look at runs and files."""
    yield "# Commands that look at runs and files\n"
    yield "This page is made from the commands: `ensemble COMMAND --help` prints the same.\n"
    context = click.Context(cli, info_name="ensemble")
    for name in list(COMMANDS)[list(COMMANDS).index(_LAST_TO_STEER) + 1 :]:
        found = cli.get_command(context, name)
        if found is not None and not found.hidden:
            yield from command(found, click.Context(found, info_name=name, parent=context), 2)


def commands_of_plugins() -> Iterator[str]:
    """Yield the reference of the commands of this repository's plugins."""
    yield "# Commands of plugins\n"
    yield "This page is made from the commands: `ensemble COMMAND --help` prints the same. Each"
    yield "command needs its [plugin](install.md). [The other commands](commands.md) are on pages"
    yield "of their own.\n"
    context = click.Context(cli, info_name="ensemble")
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        if name not in COMMANDS and found is not None and not found.hidden:
            yield from command(found, click.Context(found, info_name=name, parent=context), 2)


def command(
    given: click.Command,
    context: click.Context,
    level: int,
    names: Collection[str] | None = None,
) -> Iterator[str]:
    """Yield the sections of a command and its subcommands (``names``: only of these)."""
    yield f"{'#' * min(level, 4)} {context.command_path}\n"
    yield f"```text\n{' '.join(given.get_usage(context).removeprefix('Usage:').split())}\n```\n"
    yield inspect.cleandoc(given.help or "").replace("\b", "").replace("<", "&lt;") + "\n"
    records = [item.get_help_record(context) for item in given.get_params(context)]
    # Skip arguments, which have no help and are in the usage line, and --help.
    options = [found for found in records if found and found[1] and "--help" not in found[0]]
    if options:
        yield "| option | |"
        yield "|---|---|"
        for flags, text in options:
            # A list of choices is broken into lines at its blanks only.
            yield f"| `{flags.replace('|', ' / ')}` | {cell(text)} |"
        yield ""
    if isinstance(given, click.Group):
        for name in names or given.list_commands(context):
            inner = given.get_command(context, name)
            if inner is not None and not inner.hidden:
                below = click.Context(inner, info_name=name, parent=context)
                yield from command(inner, below, level + 1)


# ── Python ────────────────────────────────────────────────────────────────────────────────────────


#: Pages of the Python API: title, summary, and modules and aliases. The first page has all names
#: that are on no other page.
API: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "api": (
        "Python API",
        (
            "Start, read and steer runs, and errors: public names of `ensemble_core`. "
            "[From Python](python.md) shows how they are used. Other pages have "
            "[jobs and rules](api-model.md), "
            "[events, generators and simulations](api-events.md), "
            "[executors](api-executors.md) "
            "and [records of plugins](api-plugins.md)."
        ),
        (),
    ),
    "api-model": (
        "Python API: jobs and rules",
        "What rules, conditions and functions work with. All names are in `ensemble_core`.",
        ("model.job_group", "model.jobs", "model.rules", "model.expressions"),
    ),
    "api-events": (
        "Python API: events, generators and simulations",
        (
            "What happens in a run, as executors report it, what generators receive, and what a "
            "simulation asks an executor. All names are in `ensemble_core`."
        ),
        (
            "model.events",
            "model.generators",
            "model.decisions",
            "model.causes",
            *("CAUSES", "Cause", "WhenBusy"),
            *("VirtualAnswer", "VirtualExecutor", "VirtualPilots", "VirtualTurn"),
        ),
    ),
    "api-executors": (
        "Python API: executors",
        (
            "What an executor implements. All names are in `ensemble_core`. "
            "[Write an executor](executor-tutorial.md) is step by step."
        ),
        (
            *("plugin.executor", "plugin.resizer", "model."),
            *("Emit", "private_folder", "shared_storage"),
        ),
    ),
    "api-plugins": (
        "Python API: records of plugins",
        (
            "What [hooks](hooks.md) return, and what their functions get. All names are in "
            "`ensemble_core`. [Write a plugin](plugin-tutorial.md) is step by step."
        ),
        ("plugin.", "metrics.", "hookimpl"),
    ),
}


def api(page: str) -> Iterator[str]:
    """Yield a page of the reference of the public names, by autodoc."""
    title, about, _ = API[page]
    yield f"# {title}\n"
    yield f"{about}\n"
    for name in sorted(ensemble_core.__all__):
        value = getattr(ensemble_core, name)
        if page_of(name, value) == page:
            yield from autodoc(name, value, "ensemble_core")
    if page == "api":
        yield children(*(other for other in API if other != page))


def page_of(name: str, value: object) -> str:
    """Return the page of a public name, by the module that defines it; of an alias, by its name."""
    module = str(getattr(value, "__module__", "")).removeprefix("ensemble_core.")
    for page, (_, _, homes) in API.items():
        if name in homes or module.startswith(tuple(home for home in homes if "." in home)):
            return page
    return "api"


def children(*pages: str) -> str:
    """Return the directive that puts pages below this one in the navigation."""
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def autodoc(name: str, value: object, module: str) -> Iterator[str]:
    """Yield the directive that documents one name."""
    kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
    if inspect.isclass(value) and issubclass(value, BaseException):
        kind = "exception"
    yield f"```{{eval-rst}}\n.. auto{kind}:: {module}.{name}"
    if kind in ("class", "exception"):
        yield "   :members:\n"
    yield "```\n"


def hooks() -> Iterator[str]:
    """Yield the reference of hooks, from their docstrings: these are Markdown."""
    yield "# Hooks\n"
    yield "This page is made from `ensemble_core/plugin/hookspecs.py`, the manual for plugin"
    yield "authors; a test runs each example. The [tutorial](plugin-tutorial.md) is step by step.\n"
    yield markdown(hookspecs)
    for name, hook in vars(hookspecs).items():
        if name.startswith("ensemble_"):
            yield f"## {name}\n\n{markdown(hook)}\n"


def markdown(documented: object) -> str:
    """Return a docstring as Markdown.

    Roles become code, pages of the documentation become links, and the ``::`` before a literal
    block becomes a single colon.
    """
    text = inspect.getdoc(documented) or ""
    text = re.sub(r"(?:``)?docs/([\w-]+\.md)(?:``)?", r"[\1](\1)", text)
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", text).replace("::\n\n", ":\n\n")


if __name__ == "__main__":
    sys.exit(main())
