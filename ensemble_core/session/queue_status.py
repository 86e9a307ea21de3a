"""Status of a run's queue, as its executor tells it: for commands, reports and dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, call_plugin
from ensemble_core.session.controlled_run import EXECUTOR

if TYPE_CHECKING:
    from ensemble_core.session.kept_run import KeptRun


def queue_status(kept: KeptRun) -> tuple[Sequence[str], Any]:
    """Return the status as lines, and as plain data: ``None`` if the executor has none.

    The lines may have characters that are not printable.
    """
    try:
        record = kept.registry.executors.get(str(kept.executor.get("name")))
    except EnsembleError:  # it is reported with the engine, which needs the plugins, too
        return (), None
    if record is None or record.status is None or not kept.folder.joinpath(EXECUTOR).is_dir():
        return (), None
    whose = f"executor {record.name!r}"
    failed = f"{whose} cannot tell the state of its queue"
    try:
        words = {"method": "status", "expected": "a pair", "whose": whose, "failed": failed}
        lines, data = call_plugin(record.status, kept.folder / EXECUTOR, returns=tuple, **words)
    except EnsembleError as error:  # all the rest can be shown
        return [" " + " ".join(str(error).split())], None
    return lines, data
