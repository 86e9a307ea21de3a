"""Claims of output files: jobs of two runs must not write to one file at the same time.

Jobs run on other machines, and continue when their controller is killed. So a claim is a file
beside the output file, from the submission of the first job that writes there until the end of the
last.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import Counter
from contextlib import suppress


class OutputClaims:
    """Output files that a run has claimed.

    The claims of a run whose folder ``state`` was removed are void. Files in folders that this
    machine does not see cannot be claimed.
    """

    def __init__(self, run_id: str, tag: str, state: str) -> None:
        self._run_id = run_id
        self._text = f"{run_id}\n{tag}\n{state}\n"
        #: Number of jobs by claimed file.
        self._jobs: Counter[str] = Counter()

    def take(self, path: str) -> None:
        """Claim a file for a job. Raise :class:`OSError` if another run has claimed it."""
        if not self._jobs[path]:
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(path).st_mode):
                    return  # a device or a pipe
            if not self._claim(path):
                return
        self._jobs[path] += 1

    def _claim(self, path: str) -> bool:
        """Create the claim. Return False if this machine cannot create it."""
        mark = _mark(path)
        new = f"{mark}-{secrets.token_hex(4)}"
        try:
            with open(new, "x", encoding="utf-8", errors="surrogateescape") as file:
                file.write(self._text)
        except OSError:
            return False
        try:
            try:
                os.link(new, mark)
            except FileExistsError:
                if (tag := self._other_run(mark)) is not None:
                    why = (
                        f"jobs of run {tag} that are not over write to it (or remove {mark}); give "
                        "each run its own files, as with workdir: runs/{run}/{index}"
                    )
                    raise OSError(errno.EBUSY, why, path) from None
                os.replace(new, mark)
                return True
            except OSError:
                return False  # a file system without hard links
        finally:
            with suppress(OSError):
                os.unlink(new)
        return True

    def _other_run(self, mark: str) -> str | None:
        """Return the tag of the other run that has a claim, unless its folder was removed."""
        try:
            with open(mark, encoding="utf-8", errors="surrogateescape") as file:
                run_id, tag, state = file.read().split("\n")[:3]
        except (OSError, ValueError):
            return None
        if run_id == self._run_id:
            return None
        try:
            os.stat(state)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            pass  # another user's folder
        return tag

    def release(self, path: str) -> None:
        """Release the claim if a file's last job is over."""
        if self._jobs[path] > 1:
            self._jobs[path] -= 1
        elif self._jobs.pop(path, 0):
            with suppress(OSError):
                os.unlink(_mark(path))


def _mark(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:200]}.ensemble")
