"""Live table of a run below a notebook cell."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ensemble_core.display.text_style import format_duration

if TYPE_CHECKING:
    from ensemble_core.engine.report import Report

_COLUMNS = ("submitted", "waiting", "running", "success", "failed", "cancelled")
#: Columns that are shown only if a group has such jobs.
_RARE = ("suspended", "reused")


class _Run(Protocol):
    """The part of an ``EnsembleRun`` that a notebook shows."""

    tag: str

    @property
    def state(self) -> str: ...

    @property
    def exit_code(self) -> int | None: ...

    @property
    def reason(self) -> str: ...

    def report(self) -> Report: ...


def in_notebook() -> bool:
    """Return True if this code runs in a notebook cell (in an IPython with a kernel)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def progress(run: _Run) -> Callable[[], None]:
    """Show the state of a run below the cell. Return a function that updates it."""
    from importlib import import_module

    display: Any = import_module("IPython.display")
    began = time.monotonic()

    def frame() -> Any:
        return display.HTML(as_html(run, time.monotonic() - began))

    handle = display.display(frame(), display_id=True)
    return lambda: handle.update(frame())


def as_html(run: _Run, elapsed: float | None = None) -> str:
    """Return the state of a run as HTML, with a row for each group."""
    state, code = run.state, run.exit_code
    said = [f"<b>{html.escape(run.tag)}</b>", state]
    if code is not None:
        said.append(f"exit code {code}" + (f": {html.escape(run.reason)}" if run.reason else ""))
    if elapsed is not None:
        said.append(format_duration(elapsed))
    if state == "failed":
        return f"<p>{' · '.join(said)}</p>"
    report = run.report()
    said.append(f"rules fired {report.firings}")
    rare = [each for each in _RARE if any(getattr(group, each) for group in report.groups)]
    counts = (*_COLUMNS, *rare)
    head = "".join(f"<th>{name}</th>" for name in ("group", *counts, "mean time"))
    body = "".join(
        f"<tr><td>{html.escape(group.name)}</td>"
        + "".join(f"<td>{getattr(group, name)}</td>" for name in counts)
        + f"<td>{format_duration(group.mean_duration)}</td></tr>"
        for group in report.groups
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p>{' · '.join(said)}</p>{table}"
