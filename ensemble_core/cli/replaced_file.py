"""Writes the file that an option such as ``-o`` names, as a whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the content of a file. Raises :class:`OSError`; the old content is then unchanged."""
    with draft_of(path) as draft, open(draft, "wb") as file:
        file.write(content)


@contextmanager
def draft_of(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the path of a draft that replaces the file at the end, with the file's permissions.

    Links are followed, so that a link stays one. Devices and pipes, such as ``/dev/stdout``, are no
    files to replace: they are their own drafts.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = stat.S_IFREG | (0o666 & ~mask)
    if not stat.S_ISREG(mode):
        yield os.fspath(path)
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(0, f"the folder {target.parent} does not exist")
    draft = target.with_name(f".{target.name[:40]}.{os.getpid()}")
    try:
        yield str(draft)
        os.chmod(draft, stat.S_IMODE(mode))
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
