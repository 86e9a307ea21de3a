"""Write a report of a run: one HTML file for a browser."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click

from ensemble_core import UsageError
from ensemble_core.cli.toolkit import (
    Inspection,
    KeptRun,
    errors_as_json,
    json_option,
    print_line,
    print_warning,
    printable,
    replace_file,
    run_argument,
    state_option,
    to_json,
)
from ensemble_dashboard.documents import FORMAT, NAMES, client_file, document, dumps

#: Maximum number of jobs in a report. For larger runs, only failed and cancelled jobs are listed.
MOST_JOBS = 20_000
#: Maximum number of bytes of a failed job's log, and of jobs with logs in a report.
_LOG, _LOGS = 4096, 200
#: Maximum number of jobs with details (attempts, events and values) in a report, and of points of a
#: value.
_DETAILS, _POINTS = 100, 100
#: In runs with more jobs than the first number, only failed jobs have details: at most the second
#: number of each kind of failure, and at most the third number of kinds.
_DETAILED, _OF_A_KIND, _KINDS = 2_000, 3, 5

_LINK = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_SCRIPT = re.compile(r'<script src="([^"]+)"></script>')


@click.command()
@run_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Write to this file.  [default: the run's tag, with .html]",
)
@click.option(
    "--with-logs",
    is_flag=True,
    help="Add the last 4 kB of failed jobs' output (50 jobs of each kind of failure, 200 in all).",
)
@state_option
@json_option
def report(run: str, output: str | None, with_logs: bool, state: str | None, as_json: bool) -> None:
    """Write a report of a run: one HTML file for a browser.

    RUN is the run's tag, a unique beginning or end of it, or 'last'; the run may still be active.
    The file needs no server and no network, so it can be sent, or archived with a paper. It shows
    the run's jobs, results and rules, and the last line of output of failed jobs. It leaves out
    the jobs' environment, and writes your home folder as ~.
    """
    with errors_as_json(as_json):
        path, tag, problem, size = write_report(state, run, output, with_logs=with_logs)
        if as_json:
            told = {"run": tag, "file": str(path.absolute()), "bytes": size, "problem": problem}
            print_line(to_json(told))
            return
        print_line(printable(f"{path}: report of {tag}, {max(1, size // 1000):,} kB"))
        if problem:
            print_warning(f"the report is not complete: {problem}")


def write_report(
    state: str | None, run: str, output: str | None, *, with_logs: bool = False
) -> tuple[Path, str, str, int]:
    """Write a report. Return its path, the run's tag, the damage of the journal, if any, and the
    size in bytes.

    Raises :class:`EnsembleError` if the run cannot be read or the file cannot be written.
    """
    with Inspection(KeptRun(state, run, salvage=True)) as inspection:
        tag = inspection.overview()["tag"]
        path = Path(output or f"{tag}.html")
        if path.is_dir():
            raise UsageError(
                f"{path} is a folder", hint="name a file: -o report.html", code="bad-option"
            )
        page = page_of(_data(inspection, with_logs)).encode()
        problem = inspection.problem
    _write(path, page)
    return path, tag, problem, len(page)


def _data(inspection: Inspection, with_logs: bool) -> dict[str, Any]:
    found = {name: document(inspection, name, {}) for name in NAMES}
    jobs = inspection.jobs(limit=MOST_JOBS)
    left_out = ""
    if jobs["total"] > MOST_JOBS:
        rows: list[Any] = []
        for outcome in ("failed", "cancelled"):
            least = MOST_JOBS - len(rows)
            rows += inspection.jobs({"outcome": outcome}, limit=least)["rows"]
        left_out = (
            f"This run has {jobs['total']:,} jobs. This report lists {len(rows):,} that failed or "
            f"were cancelled; 'ensemble dashboard' shows all."
        )
        jobs = {**jobs, "rows": rows, "total": len(rows)}
    logs: dict[str, Any] = {}
    if with_logs:
        for kind in found["failures"]:
            for example in kind["examples"]:
                if len(logs) < _LOGS:
                    name = example["attempt"]
                    streams = ("stdout", "stderr")
                    logs[name] = {each: inspection.log(name, each, _LOG) for each in streams}
    details: dict[str, Any] = {}
    examples = [[each["id"] for each in kind["examples"]] for kind in found["failures"]]
    if jobs["total"] <= _DETAILED and not left_out:
        names = [*chain.from_iterable(examples), *_ids(jobs)]
    else:
        names = [name for some in examples[:_KINDS] for name in some[:_OF_A_KIND]]
    for name in names:
        if name not in details and len(details) < _DETAILS:
            group, _, index = name.rpartition(".")
            details[name] = inspection.job(group, int(index))
            values = details[name]["values"]
            details[name]["values"] = values[:: max(1, -(-len(values) // _POINTS))]
    # Reading any part may have found damage.
    found["overview"]["problem"] = found["overview"]["problem"] or inspection.problem
    # A report does not disclose the controller's host and user.
    found["overview"]["controller"] = {}
    return {
        **found,
        "format": FORMAT,
        "made": time.time(),
        "jobs": jobs,
        "logs": logs,
        "details": details,
        "left_out": left_out,
    }


def _ids(jobs: dict[str, Any]) -> Iterator[str]:
    group, index = jobs["names"].index("group"), jobs["names"].index("index")
    return (f"{row[group]}.{row[index]}" for row in jobs["rows"])


def page_of(data: dict[str, Any]) -> str:
    """Return the page as one text, with data, styles and scripts."""
    text = dumps(data)
    home = os.path.expanduser("~")
    for place in dict.fromkeys((os.path.realpath(home), home)):
        if len(place) > 1:
            text = re.sub(re.escape(dumps(place)[1:-1]) + r"(?!\w)", "~", text)
    # No text in the data may end the script element that contains the data.
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def inlined(kind: str, name: str) -> str:
        content = client_file(name).replace("</script", "<\\/script")
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
        return f"<{kind}>{content}</{kind}>"

    page = _LINK.sub(lambda found: inlined("style", found[1]), client_file("index.html"))
    head, _, body = page.partition('<script src="')
    scripts = _SCRIPT.sub(lambda found: inlined("script", found[1]), f'<script src="{body}')
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])} 'unsafe-hashes'; img-src data: blob:"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>'
    data_element = f'<script type="application/json" id="data">{text}</script>\n'
    return head.replace("<title>", meta, 1) + data_element + scripts


def _write(path: Path, page: bytes) -> None:
    try:
        replace_file(path, page)
    except OSError as error:
        raise UsageError(
            f"cannot write the report {path}",
            cause=error.strerror or str(error),
            hint="write to another file: -o FILE",
            code="unwritable",
        ) from error
