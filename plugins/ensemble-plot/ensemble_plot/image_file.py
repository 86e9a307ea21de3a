"""Output file and size of a picture, and checks of both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_core import EnsembleError, UsageError
from ensemble_core.cli.toolkit import replace_file

if TYPE_CHECKING:
    from ensemble_plot.generator_picture import ParallelPicture
    from ensemble_plot.picture import Picture
    from ensemble_plot.table_picture import TablePicture
    from ensemble_plot.timeline import Timeline

_FORMATS = ("png", "svg", "pdf")
#: Pixels per inch for a size in pixels, and limits in inches.
_DPI, _SMALLEST, _LARGEST = 160, 1.0, 60.0


def format_of(path: str) -> str:
    """Return the picture format for a file name. Raises :class:`UsageError` if it is unknown."""

    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in _FORMATS:
        raise UsageError(
            f"unknown picture format of {path!r}",
            hint=f"use one of these endings: {', '.join('.' + each for each in _FORMATS)}",
            code="bad-format",
        )
    return ending


def inches(size: str) -> tuple[float, float]:
    """Return the size ``WxH`` in inches. Raises :class:`UsageError`."""

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*[x×]\s*(\d+(?:\.\d+)?)\s*(px|in|cm|mm)?\s*", size)
    if match is None:
        raise UsageError(
            f"--size {size!r} is not a width and height",
            hint="for example 1600x1000 (pixels), 16x10cm or 6x4in",
            code="bad-size",
        )
    by = {"in": 1.0, "cm": 2.54, "mm": 25.4}.get(match[3] or "px", float(_DPI))
    width, height = float(match[1]) / by, float(match[2]) / by
    if not (_SMALLEST <= width <= _LARGEST and _SMALLEST <= height <= _LARGEST):
        raise UsageError(
            f"--size {size!r} is out of range: {width:.3g} by {height:.3g} inches",
            hint=f"width and height may be {_SMALLEST:g} to {_LARGEST:g} inches; numbers without a "
            f"unit are pixels, {_DPI} to the inch",
            code="bad-size",
        )
    return width, height


def need_matplotlib() -> None:
    """Raise :class:`UsageError` if matplotlib is not installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise _no_matplotlib("it is not installed for this Python")


def render(
    picture: Picture | TablePicture | ParallelPicture | Timeline,
    form: str,
    size: tuple[float, float] | None,
) -> bytes:
    """Return the picture as bytes. Raises :class:`UsageError` if matplotlib cannot be imported."""
    try:
        from ensemble_plot.drawing import draw
    except ImportError as error:
        raise _no_matplotlib(str(error)) from error
    from ensemble_plot.generator_picture import ParallelPicture, draw_parallel
    from ensemble_plot.table_picture import TablePicture, draw_table
    from ensemble_plot.timeline import Timeline, draw_timeline

    if isinstance(picture, TablePicture):
        return draw_table(picture, form, size)
    if isinstance(picture, ParallelPicture):
        return draw_parallel(picture, form, size)
    if isinstance(picture, Timeline):
        return draw_timeline(picture, form, size)
    return draw(picture, form, size)


def _no_matplotlib(cause: str) -> EnsembleError:

    return UsageError(
        "cannot import matplotlib, which pictures need",
        cause=cause,
        hint="pip install 'ensemble-core[plot]>=1.0'; --json prints the data without it",
        code="no-matplotlib",
    )


def check_place(path: Path) -> None:
    """Raise :class:`UsageError` if the path is a folder, or if its folder does not exist."""
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    if not path.parent.is_dir():
        raise _unwritable(path, f"the folder {path.parent} does not exist")


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically. Raises :class:`UsageError`."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _unwritable(path: Path, cause: str) -> EnsembleError:

    return UsageError(
        f"cannot write the picture {path}",
        cause=cause,
        hint="choose another file with -o",
        code="unwritable",
    )
