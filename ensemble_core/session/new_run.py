"""Prepares a new run after its file has been checked: its tag, executor, folders and journal.

Warns if the run would write to the same folders as an earlier run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.run_folder import NAME, is_own
from ensemble_core.journal.run_store import fit_tag, is_taken, new_tag, run_folders, state_folder
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.placeholders import fill, placeholders
from ensemble_core.plugin.executor import new_run_id
from ensemble_core.quick_dataclass import replace
from ensemble_core.session.executor_choice import ExecutorChoice, build_executor
from ensemble_core.session.prepared_run import PreparedRun

if TYPE_CHECKING:
    from ensemble_core.plugin.registry import Registry


def new_run(
    ensemble: Ensemble,
    registry: Registry,
    choice: ExecutorChoice,
    options: Mapping[str, Any],
    *,
    file: str,
    text: str,
    overrides: Sequence[str],
    plugins: Sequence[str],
    state: Path,
    tag: str | None,
    output: str | os.PathLike[str] | None,
    keep: bool,
    more: Mapping[str, Any] = NOTHING,
    reuse: Sequence[str] = (),
) -> PreparedRun:
    """Build and prepare the executor of a new run, and create the run's journal.

    ``more`` is added to the description of the run in the journal. ``reuse`` lists earlier runs.
    Raises :class:`EnsembleError`; in that case, no files are left behind.
    """
    folders: tuple[str, ...] = ()
    earlier = None
    if any(each.first_from for each in ensemble.generators.values()):
        from ensemble_core.session.earlier_points import with_earlier_points

        told: list[str] = []
        ensemble = with_earlier_points(ensemble, state, told.append)
        ensemble = replace(ensemble, warnings=(*ensemble.warnings, *told))
    if reuse:
        from ensemble_core.session.reuse_explanations import open_earlier

        warnings: list[str] = []
        folders, earlier = open_earlier(state, reuse, ensemble, warnings.append)
        ensemble = replace(ensemble, warnings=(*ensemble.warnings, *warnings))
    options = dict(options)
    if choice.record.members:
        # The name is empty for groups without a member.
        named = {group.executor or "" for group in ensemble.groups.values()}
        options.setdefault("members", sorted(named))
    if choice.record.kinds and ensemble.kinds:
        options.setdefault("kinds", ensemble.kinds)
    executor = build_executor(registry, choice.record, options)
    tag = tag or new_tag(fit_tag(ensemble.name))
    used = folders_of(ensemble.begun("{run}", os.getcwd()))
    described = {"name": choice.name, "options": options}
    ensemble = ensemble.begun(tag, os.getcwd(), folders, described)
    place = Path(output).absolute() / tag if output else state / "runs" / tag / "output"
    found = [*folder_warnings(state, used), *_output_warnings(place, tag)]
    ensemble = replace(ensemble, warnings=(*ensemble.warnings, *found))
    run_id = new_run_id()
    if not keep:
        executor.prepare(tag, None, run_id)
        return PreparedRun(ensemble, registry, choice, executor, tag, place, None, run_id, earlier)
    about = {
        "tag": tag,
        "id": run_id,
        "name": ensemble.name,
        "file": os.path.abspath(file) if file else "",
        "executor": described,
        "plugins": [os.path.abspath(plugin) for plugin in plugins],
        "cwd": os.getcwd(),
        "folders": list(used),
        "output": str(place),
        "shared": executor.shared,
        **({"reuse": list(folders)} if folders else {}),
        **({"profile": choice.profile.described()} if choice.profile else {}),
        **more,
    }
    from ensemble_core.session.controlled_run import ControlledRun

    kept = ControlledRun.new(
        state, about, registry, text, list(overrides), executor, ensemble.attached
    )
    if not is_own(kept.folder):
        unsafe = (
            f"others may write in the run's folder {kept.folder}, perhaps because its file system "
            "has no owners: commands that stop, steer, resume or clean will refuse this run; "
            "choose a folder on another file system with --state"
        )
        ensemble = replace(ensemble, warnings=(*ensemble.warnings, unsafe))
    return PreparedRun(ensemble, registry, choice, executor, tag, place, kept, run_id, earlier)


_TAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def check_tag(tag: str, state: str | None, *, new: bool) -> None:
    """Raise :class:`UsageError` if a tag is invalid or, for a ``new`` run, already in use."""
    if not _TAG.fullmatch(tag) or tag == "last":
        raise UsageError(
            f"{tag!r} cannot be the tag of a run",
            hint="use up to 200 letters, digits, '.', '_' and '-', but no '.' at the beginning; "
            "'last' is reserved",
            code="bad-tag",
        )
    if new and is_taken(state_folder(state), tag):
        raise UsageError(
            f"run {tag} already exists",
            hint=f"choose another --tag; --or-resume resumes it, 'ensemble clean {tag}' removes it",
            code="tag-taken",
        )


def _output_warnings(place: Path, tag: str) -> Iterator[str]:
    """Yield a warning if the folder for the jobs' output has files of another run."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        if any(entries):
            yield (
                f"{place} has files of another run with the tag {tag}: jobs of this run write "
                "among them; choose another --tag or --output"
            )


#: How many runs are compared, beginning with the newest.
_COMPARED = 50


def folders_of(ensemble: Ensemble) -> dict[str, str]:
    """Return the paths of jobs (workdir, stdout, stderr) that are the same in every run.

    The keys are absolute paths. They may contain placeholders, but not ``{run}``. The values are
    the fields that set the paths, such as ``stdout of 'sim'``.
    """
    found: dict[str, str] = {}
    for first in ensemble.groups.values():
        for group in (first, *first.more):
            workdir = group.workdir or ""
            if any(placeholders(_shared(group, workdir))):
                found.setdefault(_shared(group, workdir), f"workdir of {group.name!r}")
            for field in ("stdout", "stderr"):
                file = getattr(group, field)
                if file is not None:
                    path = _shared(group, os.path.join(workdir, file))
                    found.setdefault(path, f"{field} of {group.name!r}")
    return {
        path: whose
        for path, whose in found.items()
        if path != os.devnull and all(one.name != "run" for one in placeholders(path))
    }


def _shared(group: JobGroup, path: str) -> str:
    """Fill in those placeholders of a path that have the same value for all jobs and runs."""
    known = {"group": group.name, "here": group.here, "cwd": group.cwd}
    left = {name: value for name, value in known.items() if name not in group.names}
    return os.path.normpath(os.path.join(group.cwd, fill(path, left)))


def folder_warnings(state: Path, used: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each of these folders to which an earlier run has written."""
    left = {path: whose for path, whose in used.items() if os.path.isdir(_fixed_parent(path))}
    if not left:
        return
    from ensemble_core.journal.reader import Journal

    for folder in reversed(run_folders(state)[-_COMPARED:]):
        try:
            with Journal(folder / NAME) as journal:
                earlier = set(journal.about.get("folders", ()))
        except (EnsembleError, OSError):
            continue
        for path in [path for path in left if path in earlier]:
            shown = os.path.relpath(path)
            yield (
                f"{shown if not shown.startswith('../..') else path} was used by the run "
                f"{folder.name}: jobs of this run would write among its files; give each run its "
                f"own folder, with {{run}} in {left.pop(path)}"
            )


def _fixed_parent(path: str) -> str:
    """Return the folder that must exist if any job has written below this path."""
    first = next(placeholders(path), None)
    return os.path.dirname(path[: first.start] if first else path)
