"""Prepares a new run after its file has been checked: its name, executor, folders and journal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.journal.run_folder import is_own
from ensemble_core.journal.run_store import fit, new_tag
from ensemble_core.model.codec import NOTHING
from ensemble_core.plugin.executor import new_run_id
from ensemble_core.quick_dataclass import replace
from ensemble_core.session.earlier_folders import folder_warnings, folders_of
from ensemble_core.session.executor_choice import ExecutorChoice, build_executor
from ensemble_core.session.prepared_run import PreparedRun

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble
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
    tag = tag or new_tag(fit(ensemble.name))
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
    from ensemble_core.session.run_control import ControlledRun

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


def _output_warnings(place: Path, tag: str) -> Iterator[str]:
    """Yield a warning if the folder for the jobs' output has files of another run."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        if any(entries):
            yield (
                f"{place} has files of another run with the tag {tag}: jobs of this run write "
                "among them; choose another --tag or --output"
            )
