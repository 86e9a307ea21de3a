"""``ensemble logs RUN [JOB]``: what jobs wrote, from where their ``start`` events say it went."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from ensemble_core.cli.json_lines import to_json
from ensemble_core.cli.kept_run import KeptRun
from ensemble_core.cli.options import kept_run_options
from ensemble_core.cli.text_style import (
    TextStyle,
    format_size,
    format_table,
    is_terminal,
    print_line,
    printable,
    style_of,
)
from ensemble_core.errors import UsageError

__all__ = ["logs"]

#: Outputs of all jobs up to these many files and bytes are shown; of more there is a list.
_MOST_FILES, _MOST_BYTES = 24, 64_000
_CHUNK = 1 << 16
#: Characters of one output that JSON has at most; the end of it where it is longer.
_MOST_JSON = 1 << 20


@dataclass(slots=True)
class _Job:
    """What the journal tells of one job's output."""

    id: str
    queue_id: object = None
    started: bool = False
    over: bool = False
    workdir: str = ""
    paths: dict[str, str | None] = field(
        default_factory=lambda: dict.fromkeys(("stdout", "stderr"))
    )
    trouble: str = ""
    #: What its member says of where its output is; nobody here reads there.
    at_member: str = ""

    def files(self) -> Iterator[tuple[str, Path]]:
        """Each stream that went to a file, and the file; one name for both where they share it."""
        out, err = self.paths["stdout"], self.paths["stderr"]
        if err is None and out is not None and out.endswith(f"{self.id}.out"):
            beside = Path(self.workdir, out[:-3] + "err")  # kept for a job that named neither
            err = str(beside) if beside.exists() else None
        if out is not None:
            yield ("stdout" if out != err else "output"), Path(self.workdir, out)
        if err is not None and err != out:
            yield "stderr", Path(self.workdir, err)


@click.command()
@kept_run_options()
@click.argument("job", metavar="[JOB]", required=False)
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each."
)
def logs(kept: KeptRun, job: str | None, tail: int | None, as_json: bool) -> int:
    """Show what a run's jobs wrote.

    RUN is the run's tag, a beginning or an end of it that fits no other, or 'last'. With JOB (such
    as sim.3), that job's standard output and error; without, those of all jobs, or a list of their
    files where there is much. With --json, one file a line. Exit code 1 if an output cannot be
    shown.
    """
    jobs = _jobs(kept, job)
    if as_json:
        return _as_json(kept, jobs, tail, whole=job is not None)
    if not jobs:
        click.echo(f"no job of run {kept.tag} was submitted", err=True)
        return 0
    style = style_of(sys.stdout)
    if job is None and tail is None and _much(jobs):
        return _list(kept, jobs, style)
    bad = [_show(kept, each, tail, style, alone=job is not None) for each in jobs]
    return int(any(bad))


def _jobs(kept: KeptRun, wanted: str | None) -> list[_Job]:
    """The jobs of a run, or the one that is wanted, in the order of their submits."""
    jobs: dict[str, _Job] = {}
    submits: dict[str, dict[str, Any]] = {}
    for row in kept.journal.rows():
        if row.decisions is not None and '"submit"' in row.decisions:
            _submitted(row.decisions, wanted, submits)
        if row.type != "job" or row.job is None or (wanted is not None and row.job != wanted):
            continue
        if row.name not in ("submit", "start", "exception", "clean"):
            continue
        job = jobs.setdefault(row.job, _Job(row.job))
        if row.name == "clean":
            job.over = True
            continue
        context = getattr(row.event(), "context", {})
        if row.name == "submit":
            job.queue_id = context.get("queue_id")
        elif row.name == "start":
            job.started = True
            job.workdir = str(context.get("workdir") or "")
            places = context.get("at_member")
            if isinstance(places, Mapping):
                parts = (str(places.get(name) or "") for name in ("workdir", "stdout"))
                job.at_member = os.path.join(*parts)
            for stream in job.paths:
                path = context.get(stream) or submits.get(row.job, {}).get(stream)
                job.paths[stream] = str(path) if path else None
        elif context.get("severity", 0) == 0 and not job.trouble:
            kind, note = str(context.get("type") or "exception"), str(context.get("note") or "")
            job.trouble = f"{kind}: {note}" if note else kind
    for name in submits.keys() - jobs.keys():
        jobs[name] = _Job(name)
    if wanted is not None and not jobs:
        raise UsageError(
            f"run {kept.tag} has no job {wanted!r}",
            hint=_near(kept, wanted),
            code="no-such-job",
        )
    return list(jobs.values())


def _submitted(text: str, wanted: str | None, submits: dict[str, dict[str, Any]]) -> None:
    for decision in json.loads(text):
        if decision.get("type") == "submit":
            for job in decision.get("jobs", ()):
                if wanted is None or job["id"] == wanted:
                    submits[job["id"]] = {k: job[k] for k in ("stdout", "stderr") if k in job}


def _near(kept: KeptRun, wanted: str) -> str:
    names = [job.id for job in _jobs(kept, None)]
    near = get_close_matches(wanted, names, 1)
    if near:
        return f"did you mean {near[0]}?"
    shown = ", ".join(names[:8]) + (f" … ({len(names)} jobs)" if len(names) > 8 else "")
    return f"its jobs are {shown}" if names else "no job was submitted"


# -- telling -----------------------------------------------------------------------------------


def _much(jobs: list[_Job]) -> bool:
    files = [path for job in jobs for _, path in job.files()]
    return len(files) > _MOST_FILES or sum(_size(path) or 0 for path in files) > _MOST_BYTES


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _absent(kept: KeptRun, job: _Job) -> str:
    """Why there is no file of this job, and what to do."""
    if not job.started:
        if job.trouble:
            return f"it never started ({job.trouble})"
        return "it never started" if job.over else "it has not started yet"
    name = str(kept.executor.get("name"))
    id_ = job.queue_id
    if job.at_member:
        return f"its output is where its member runs, in {job.at_member}"
    if name == "flux":
        return "its output is in Flux's own store: " + (
            f"flux job attach {id_}" if id_ else f"flux jobs -a --name={job.id} has its id"
        )
    known = f", which knows it as {id_}" if id_ else ""
    return f"executor {name} did not say where its output goes: ask its queue{known}"


def _missing(path: Path, job: _Job) -> str:
    if path.exists():
        return "no ordinary file"
    if job.at_member:
        return f"no such file here; its member says that it is in {job.at_member}"
    return "no such file: it wrote nothing, or somebody removed it" if job.over else "no such file"


def _list(kept: KeptRun, jobs: list[_Job], style: TextStyle) -> int:
    rows = []
    for job in jobs:
        files = list(job.files())
        if not files:
            rows.append((printable(job.id), "-", "-", printable(_absent(kept, job))))
        for stream, path in files:
            size = _size(path)
            told = "missing" if size is None else format_size(size)
            rows.append((printable(job.id), stream, told, printable(str(path))))
    for line in format_table(rows, right=[False, False, True]):
        print_line(line)
    if is_terminal(sys.stdout):
        print_line(style.paint(f"'ensemble logs {kept.tag} JOB' shows one", "dim"))
    return 0


def _show(kept: KeptRun, job: _Job, tail: int | None, style: TextStyle, *, alone: bool) -> bool:
    """Print a job's output; whether something of it could not be shown."""
    files = list(job.files())
    if not files:
        # Of a job that never ran there is nothing to miss, unless it is the one asked for.
        _aside(f"{printable(job.id)}: {printable(_absent(kept, job))}")
        return alone or job.started
    bad = False
    for place, (stream, path) in enumerate(files):
        headed = not alone or len(files) > 1
        if _size(path) is None:
            # Empty files of jobs that are over are taken away: nothing is wrong with that.
            if not (job.over and not path.exists()):
                bad = True
            elif not alone:
                continue
            _aside(f"{printable(job.id)} {stream}: {printable(str(path))}: {_missing(path, job)}")
            continue
        if headed:
            gap = "" if alone and not place else "\n"
            head = f"==> {printable(job.id)} {stream}: {printable(str(path))} <=="
            print_line(gap + style.paint(head, "bold"))
        try:
            _print(path, tail)
        except OSError as error:
            if error.filename is None:
                raise  # whoever reads this has gone
            bad = True
            _aside(f"{printable(job.id)} {stream}: {printable(str(path))}: {error.strerror}")
    return bad


def _aside(text: str) -> None:
    """A line on stderr, after what came before it on stdout."""
    sys.stdout.flush()
    click.echo(text, err=True)


def _print(path: Path, tail: int | None) -> None:
    """A file as it is; on a terminal, without what would steer it."""
    sys.stdout.flush()
    if is_terminal(sys.stdout):
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for line in file if tail is None else deque(file, tail):
                print_line(printable(line.rstrip("\r\n")))
        return
    with path.open("rb") as raw:
        if tail is not None:
            for data in deque(raw, tail):
                click.echo(data, nl=False)
            return
        while chunk := raw.read(_CHUNK):
            click.echo(chunk, nl=False)


def _as_json(kept: KeptRun, jobs: list[_Job], tail: int | None, *, whole: bool) -> int:
    bad = False
    whole = whole or tail is not None or not _much(jobs)
    for job in jobs:
        base = {"job": job.id, "queue_id": job.queue_id, "started": job.started, "over": job.over}
        files = list(job.files())
        if not files:
            bad = bad or job.started
            nothing = {"stream": None, "path": None, "bytes": None, "note": _absent(kept, job)}
            print_line(to_json({**base, **nothing}))
        for stream, path in files:
            size = _size(path)
            told: dict[str, Any] = {"stream": stream, "path": os.fspath(path), "bytes": size}
            if size is None:
                told["note"] = _missing(path, job)
                bad = bad or not job.over or path.exists()
            elif whole:
                try:
                    told["text"] = _text(path, tail)
                except OSError as error:
                    told["note"], bad = error.strerror, True
            print_line(to_json({**base, **told}))
    return int(bad)


def _text(path: Path, tail: int | None) -> str:
    """A file's end as text, as far as one line of JSON should have it."""
    with path.open("rb") as file:
        if tail is not None:
            text = b"".join(deque(file, tail))
        else:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_JSON))
            text = file.read(_MOST_JSON)
    return text.decode("utf-8", "replace")
