"""Chooses where a job's output goes: into files, or into Flux's key-value store (KVS).

With ``output=auto``, files are used only if every node sees the run's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ensemble_core import Job, shared_storage

_ENDINGS = {"stdout": "out", "stderr": "err"}
_EMPTIED = "flux-emptied"


def files(folder: str, job: str, streams: Iterable[str] = _ENDINGS) -> dict[str, str]:
    """Return the files of a job in the run's folder, by stream."""
    return {stream: os.path.join(folder, f"{job}.{_ENDINGS[stream]}") for stream in streams}


def seen_by_all(path: str, hosts: Iterable[str], here: str) -> bool:
    """Return whether ``path`` is the same folder on all ``hosts`` and on this host, ``here``."""
    if all(host.partition(".")[0] == here.partition(".")[0] for host in hosts):
        return True
    return shared_storage(path) is not None


@dataclass(slots=True)
class Output:
    """Chooses where the job shell writes a job's output, and removes empty files.

    If ``keep`` is ``"files"``, the folder ``folder`` receives the output of jobs that name no file.
    The folder ``state`` has a list of the files that the run has truncated, for later controllers.
    """

    folder: str
    keep: Literal["files", "kvs"]
    state: Path | None = None
    _emptied: set[str] = field(default_factory=set)
    _made: set[str] = field(default_factory=set)
    _used: bool | None = None

    def __post_init__(self) -> None:
        if self.state is not None:
            with suppress(FileNotFoundError):
                lines = (self.state / _EMPTIED).read_bytes().split(b"\0")
                self._emptied.update(map(os.fsdecode, lines))

    def prepare(self, job: Job, workdir: str) -> tuple[dict[str, Any], str | None, tuple[str, ...]]:
        """Return the job shell's option ``output``, the file of standard output, and the kept
        files.

        Creates missing folders. Raises :class:`OSError`.
        """
        if job.workdir is not None:
            self._make(workdir)
        option: dict[str, Any] = {"mode": "append"}
        kept: list[str] = []
        stdout: str | None = None
        for stream, named in (("stdout", job.stdout), ("stderr", job.stderr)):
            if named is not None:
                path = os.path.normpath(os.path.join(workdir, named))
                self._empty(path)  # only before the run's first write: jobs may share a file
                option[stream] = {"type": "file", "path": path}
            elif self.keep == "files":
                (path,) = files(self.folder, job.id, [stream]).values()
                self._clear(path)
                kept.append(path)
                option[stream] = {"type": "file", "path": path}
            else:
                option[stream] = {"type": "kvs"}
                continue
            if stream == "stdout":
                stdout = path
        if job.observe and max(job.tasks, job.nodes) == 1:
            # Flux passes stdout on by lines: a progress bar would be seen only at its end. Parts of
            # lines of several tasks would be mixed.
            option["stdout"]["buffer"] = {"type": "none"}
        return option, stdout, tuple(kept)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    def _clear(self, path: str) -> None:
        """Truncate output files that an earlier run left under the same name."""
        if self._used is None:
            self._make(self.folder)
            self._used = bool(os.listdir(self.folder))
        if self._used:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _empty(self, path: str) -> None:
        if path in self._emptied:
            return
        self._make(os.path.dirname(path))
        # Devices and pipes cannot be truncated; a folder raises an error.
        if not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
        if self.state is not None:  # before the first job that writes to it is submitted
            self._make(str(self.state))
            with open(self.state / _EMPTIED, "ab") as file:
                file.write(os.fsencode(path) + b"\0")
        self._emptied.add(path)


def remove_empty(paths: Iterable[str]) -> None:
    """Remove the files that are still empty."""
    for path in paths:
        try:
            if os.stat(path).st_size == 0:
                os.unlink(path)
        except OSError:
            continue
