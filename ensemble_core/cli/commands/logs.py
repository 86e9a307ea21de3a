"""``ensemble logs RUN [JOB]``: prints the output files of jobs."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

import click

from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.name_completion import all_jobs, no_such_job
from ensemble_core.cli.options import KeptRun, complete_names, kept_run_options
from ensemble_core.display.text_style import (
    format_size,
    format_table,
    is_terminal,
    print_line,
    printable,
    style_of,
)
from ensemble_core.journal.run_folder import RunFiles
from ensemble_core.quick_dataclass import dataclass

#: How many files and how many bytes are printed at most. If there are more, the files are listed.
_MOST_FILES, _MOST_BYTES = 24, 64_000
_CHUNK = 1 << 16
_STREAMS = ("stdout", "stderr")
#: How many characters of one file are printed as JSON. Of a longer file, only the end is printed.
_MOST_JSON = 1 << 20


@dataclass(slots=True)
class _Job:
    """A job, with facts from the journal that help to find its output files."""

    id: str
    queue_id: object = None
    started: bool = False
    over: bool = False
    workdir: str = ""
    #: ``named``: the job's output files as in the ensemble file. ``paths``: those in its start
    #: event.
    named: Mapping[str, Any] = field(default_factory=dict)
    paths: Mapping[str, str | None] = field(default_factory=dict)
    trouble: str = ""
    #: Path of the output on another machine, as reported by the job's member.
    at_member: str = ""

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield each stream with its file, or only one if both streams share the file."""
        out, err = self.paths.get("stdout"), self.paths.get("stderr")
        if err is None and out is not None and out.endswith(f"{self.id}.out"):
            beside = Path(self.workdir, out[:-3] + "err")  # the default, if the job names no file
            err = str(beside) if beside.exists() else None
        if out is not None:
            yield ("stdout" if out != err else "output"), Path(self.workdir, out)
        if err is not None and err != out:
            yield "stderr", Path(self.workdir, err)


@dataclass(slots=True)
class _Output:
    """The output file of a job, or the reason why it has none."""

    job: _Job
    files: RunFiles
    stream: str | None = None
    path: Path | None = None
    size: int | None = None
    #: ``note``: why the file cannot be shown. ``missed``: whether that is an error.
    note: str = ""
    missed: bool = False

    def __str__(self) -> str:
        where = "" if self.path is None else f" {self.stream}: {self.path}"
        return printable(f"{self.job.id}{where}")

    def open(self) -> BinaryIO:
        """Open the file. Raises :class:`OSError`."""
        assert self.path is not None
        return self.files.open(self.path)

    def fail(self, error: OSError) -> None:
        """Note that the file exists but cannot be read."""
        self.note, self.missed = str(error.strerror), True


@click.command()
@kept_run_options()
@click.argument("job", metavar="[JOB]", required=False, shell_complete=complete_names(all_jobs))
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each output."
)
def logs(kept: KeptRun, job: str | None, tail: int | None, as_json: bool) -> int:
    """Show the output of a run's jobs.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. With JOB (such as sim.3), the
    command shows the standard output and error of that job. Without JOB, it shows the output of all
    jobs, or a list of the files if there is much output. With --json, each line is an object that
    describes one file. The exit code is 1 if an output cannot be shown.
    """
    alone = job is not None
    outputs = [each for one in _jobs(kept, job) for each in _outputs(kept, one, alone)]
    whole = alone or tail is not None or not _is_large(outputs)
    if not outputs and not as_json:
        click.echo(f"no job of run {kept.tag} was submitted", err=True)
    elif as_json:
        _as_json(outputs, tail, whole)
    elif whole:
        empty = [each for each in outputs if each.note and each.path and not each.missed]
        if len(empty) < len(outputs):  # omit an empty stream if the other one has output
            outputs = [each for each in outputs if each not in empty]
        _show(outputs, tail, alone)
    else:
        _list(outputs, kept.tag)
        return 0
    return int(any(output.missed for output in outputs))


def _jobs(kept: KeptRun, wanted: str | None) -> list[_Job]:
    """Return the jobs of a run in the order of submission, or only the requested job."""
    jobs: dict[str, _Job] = {}
    for row in kept.journal.rows():
        for job in _submitted_jobs(row.decisions):
            jobs[job.id] = job
        if row.type != "job" or row.name not in ("submit", "start", "exception", "clean"):
            continue
        job = jobs.setdefault(str(row.job), _Job(str(row.job)))
        context = row.data or {}
        if row.name == "clean":
            job.over = True
        elif row.name == "submit":
            job.queue_id = context.get("queue_id")
        elif row.name == "start":
            job.started = True
            job.workdir = str(context.get("workdir") or "")
            places = context.get("at_member")
            if isinstance(places, Mapping):
                parts = (str(places.get(name) or "") for name in ("workdir", "stdout"))
                job.at_member = os.path.join(*parts)
            paths = {name: context.get(name) or job.named.get(name) for name in _STREAMS}
            job.paths = {name: str(path) if path else None for name, path in paths.items()}
        elif context.get("severity", 0) == 0 and not job.trouble:
            kind, note = str(context.get("type") or "exception"), str(context.get("note") or "")
            job.trouble = f"{kind}: {note}" if note else kind
    if wanted is None:
        return list(jobs.values())
    if wanted not in jobs:
        raise no_such_job(kept, wanted, jobs)
    return [jobs[wanted]]


def _submitted_jobs(decisions: str | None) -> Iterator[_Job]:
    """Yield the submitted jobs, with the output files that they name."""
    for decision in json.loads(decisions) if decisions and '"submit"' in decisions else ():
        for job in decision.get("jobs", ()) if decision.get("type") == "submit" else ():
            yield _Job(job["id"], named={name: job.get(name) for name in _STREAMS})


# -- output ------------------------------------------------------------------------------------


def _is_large(outputs: list[_Output]) -> bool:
    sizes = [output.size or 0 for output in outputs if output.path is not None]
    return len(sizes) > _MOST_FILES or sum(sizes) > _MOST_BYTES


def _size(path: Path, files: RunFiles) -> int | None:
    """Return the size of a file, or ``None`` if the file does not exist.

    Raises :class:`PermissionError` if the file must not be read.
    """
    try:
        with files.open(path) as file:
            return os.fstat(file.fileno()).st_size
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None


def _explain_missing(kept: KeptRun, job: _Job) -> str:
    """Explain why a job has no output file on this machine, and what to do."""
    if not job.started:
        if job.trouble:
            return f"it never started ({job.trouble})"
        return "it never started" if job.over else "it has not started yet"
    name = str(kept.executor.get("name"))
    id_ = job.queue_id
    if job.at_member:
        return f"its output is on its member's machine, in {job.at_member}"
    if name == "flux":
        return "its output is in Flux's KVS: " + (
            f"flux job attach {id_}" if id_ else f"find its id with flux jobs -a --name={job.id}"
        )
    known = f" about job {id_}" if id_ else ""
    return f"executor {name} did not report where its output is; ask the queue{known}"


def _missing(path: Path, job: _Job) -> str:
    if path.exists():
        return "not a regular file"
    if job.at_member:
        return f"no such file here; its member reports {job.at_member}"
    if job.over:
        return "no such file: the job wrote nothing, or the file was removed"
    return "no such file"


def _outputs(kept: KeptRun, job: _Job, alone: bool) -> Iterator[_Output]:
    files = list(job.files())
    if not files:
        # A job that never ran has no output. Report this only if the user has asked for this job.
        yield _Output(
            job, kept.files, note=_explain_missing(kept, job), missed=alone or job.started
        )
    for stream, path in files:
        output = _Output(job, kept.files, stream, path)
        try:
            output.size = _size(path, kept.files)
        except PermissionError as error:
            output.fail(error)
        else:
            output.note = _missing(path, job) if output.size is None else ""
            # Empty files of finished jobs are deleted, so a missing file is normal.
            output.missed = bool(output.note) and (not job.over or path.exists())
        yield output


def _list(outputs: list[_Output], tag: str) -> None:
    rows = []
    for each in outputs:
        size = (
            "-" if each.path is None else "missing" if each.size is None else format_size(each.size)
        )
        where = each.note if each.path is None else str(each.path)
        rows.append((printable(each.job.id), each.stream or "-", size, printable(where)))
    for line in format_table(rows, right=[False, False, True]):
        print_line(line)
    if is_terminal(sys.stdout):
        print_line(style_of(sys.stdout).paint(f"'ensemble logs {tag} JOB' shows one", "dim"))


def _show(outputs: list[_Output], tail: int | None, alone: bool) -> None:
    """Print each output under its name. A single output is printed without a name."""
    for place, each in enumerate(outputs):
        if each.path is not None and not each.note:
            if not alone or len(outputs) > 1:
                head = style_of(sys.stdout).paint(f"==> {each} <==", "bold")
                print_line(head if alone and not place else f"\n{head}")
            try:
                _print(each, tail)
            except OSError as error:
                if error.filename is None:
                    raise  # the reader of the pipe has closed it
                each.fail(error)
        if each.note and (alone or each.missed or each.path is None):
            sys.stdout.flush()  # earlier output comes first
            click.echo(f"{each}: {each.note}", err=True)


def _print(output: _Output, tail: int | None) -> None:
    """Print a file as it is or, on a terminal, without control sequences."""
    sys.stdout.flush()
    with output.open() as raw:
        if is_terminal(sys.stdout):
            file = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="")
            for line in file if tail is None else deque(file, tail):
                print_line(printable(line.rstrip("\r\n")))
        elif tail is not None:
            for data in deque(raw, tail):
                click.echo(data, nl=False)
        else:
            while chunk := raw.read(_CHUNK):
                click.echo(chunk, nl=False)


def _as_json(outputs: list[_Output], tail: int | None, whole: bool) -> None:
    for each in outputs:
        job, text = each.job, None
        if whole and each.path is not None and not each.note:
            try:
                text = _text(each, tail)
            except OSError as error:
                each.fail(error)
        path = None if each.path is None else os.fspath(each.path)
        told = {"job": job.id, "queue_id": job.queue_id, "started": job.started, "over": job.over}
        told |= {"stream": each.stream, "path": path, "bytes": each.size}
        more = {"note": each.note} if each.note else {} if text is None else {"text": text}
        print_line(to_json(told | more))


def _text(output: _Output, tail: int | None) -> str:
    """Return the end of a file that fits into one line of JSON."""
    with output.open() as file:
        if tail is not None:
            text = b"".join(deque(file, tail))
        else:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_JSON))
            text = file.read(_MOST_JSON)
    return text.decode("utf-8", "replace")
