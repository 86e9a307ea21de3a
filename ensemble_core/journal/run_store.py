"""Run store: the folders of all runs, their tags, and look-up of a run by name.

The folder of a run is ``STATE/runs/TAG``.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from ensemble_core.errors import UsageError, did_you_mean
from ensemble_core.journal.lock import taken_error
from ensemble_core.journal.run_folder import NAME, PERFORMED, JournalError
from ensemble_core.journal.run_state import began
from ensemble_core.late_pattern import late_pattern
from ensemble_core.posix import private_folder


def state_folder(given: str | os.PathLike[str] | None) -> Path:
    """Return the folder ``STATE``, which contains all runs.

    It is ``given``, else the variable ``ENSEMBLE_STATE``, else the user's state folder.
    """
    named = given or os.environ.get("ENSEMBLE_STATE")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return platformdirs.user_state_path("ensemble").absolute()


def new_folder(state: Path, tag: str) -> Path:
    """Create and return the folder of a new run. Raises :class:`JournalError` if that fails."""
    folder = state / "runs" / tag
    try:
        # Other users must not be able to write here, regardless of the umask.
        private_folder(state / "runs")
        folder.mkdir(mode=0o700)
    except OSError as error:
        if isinstance(error, FileExistsError) and folder.exists():
            raise taken_error(folder) from error
        raise JournalError(
            f"cannot create the folder of the run: {folder}",
            cause=error.strerror or str(error),
            hint="choose another place with --state or ENSEMBLE_STATE, or run without a journal "
            "with --no-journal",
            code="no-state",
        ) from error
    return folder


def run_folders(state: Path) -> list[Path]:
    """Return the folders of all runs, by start time. Runs without a known start come first."""
    try:
        with os.scandir(state / "runs") as entries:
            found = [
                Path(entry) for entry in entries if entry.is_dir() and _has_run_files(Path(entry))
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(state, error) from error
    return sorted(found, key=lambda folder: (began(folder) or 0.0, folder.name))


def _unreadable(state: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read the folder of runs: {state / 'runs'}",
        cause=error.strerror or str(error),
        hint="make it readable, or choose another with --state or ENSEMBLE_STATE",
        code="no-state",
    )


def is_taken(state: Path, tag: str) -> bool:
    """Return whether a folder has the name of this tag. Raises :class:`UsageError`."""
    try:
        (state / "runs" / tag).stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(state, error) from error
    return True


def _has_run_files(folder: Path) -> bool:
    """Return True if the folder belongs to a run, even if its journal is lost.

    Private folders of other users are not shown.
    """
    with contextlib.suppress(PermissionError):
        return (folder / NAME).exists() or (folder / PERFORMED).exists()
    return False


def _check_readable(folder: Path) -> None:
    try:
        (folder / NAME).stat()
    except PermissionError as error:
        raise UsageError(
            f"cannot read the run's folder: {folder}",
            cause=error.strerror,
            hint="only its owner can read it: make the folder and its files readable",
            code="no-such-run",
        ) from error
    except OSError:
        pass


def find_run(state: Path, name: str) -> Path:
    """Return the folder of a run. Raises :class:`UsageError`.

    ``name`` is the run's tag, a unique beginning or end of the tag, ``last`` for the newest run, or
    a path.
    """
    runs = run_folders(state)
    if name == "last" and runs:
        return runs[-1]
    if os.sep in name or name in (".", ".."):
        folder = Path(name).absolute()
        if folder.name == NAME:
            folder = folder.parent
        if _has_run_files(folder):
            return folder
        _check_readable(folder)
        raise UsageError(
            f"there is no run in {folder}",
            hint="'ensemble runs' lists all runs",
            code="no-such-run",
        )
    for folder in runs:
        if folder.name == name:
            return folder
    fitting = [r for r in runs if r.name.startswith(name) or r.name.endswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = ", ".join(run.name for run in fitting[-5:])
        raise UsageError(
            f"{name!r} matches {len(fitting)} runs",
            hint=f"choose one: {shown}; or 'last' for the newest run of all",
            code="ambiguous-run",
        )
    _check_readable(state / "runs" / name)
    names, form = [run.name for run in runs], "did you mean {}?"
    hint = did_you_mean(name, names, "'ensemble runs' lists all runs", form=form)
    raise UsageError(f"there is no run {name!r} in {state / 'runs'}", hint=hint, code="no-such-run")


_UNFIT = late_pattern(r"[^A-Za-z0-9._-]+")


def fit_tag(name: str) -> str:
    """Convert the name of an ensemble to a valid name for a folder."""
    return _UNFIT.sub("-", name).strip(".-") or "run"


def new_tag(name: str) -> str:
    """Return a unique name for a run, from the ensemble's name, the time and some random digits."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now))
    return f"{name}-{stamp}-{int(now % 1 * 1000):03x}{os.urandom(2).hex()}"
