"""A folder that a run's controller shares with its jobs' wrappers, which nodes must see.

It is for this user's eyes only. Used by ``Spool`` and ``ReportSpool``.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

__all__ = ["SharedFolder"]


class SharedFolder:
    """A folder with subfolders, of which ``scripts`` has the batches'. Raises :class:`OSError` if
    they cannot be made or written."""

    def __init__(self, folder: str, *parts: str) -> None:
        self.folder = folder
        self._folders = [*(os.path.join(folder, part) for part in parts), folder]
        for path in reversed(self._folders):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def put(self, path: str, text: bytes) -> None:
        """Write a file at once: a reader sees the old words or the new ones."""
        new = f"{path}.{secrets.token_hex(4)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(text)
        os.replace(new, path)

    def script(self, key: str, text: bytes) -> str:
        """Write a batch's script; its path."""
        path = self._script(key)
        self.put(path, text)
        os.chmod(path, 0o700)
        return path

    def drop_script(self, key: str) -> None:
        """No job of this batch is left."""
        with suppress(OSError):
            os.unlink(self._script(key))

    def _script(self, key: str) -> str:
        return os.path.join(self.folder, "scripts", f"{key}.sh")

    def remove(self) -> None:
        """Remove the folder; nobody is left who would use it."""
        for folder in self._folders:
            with suppress(OSError):
                for name in os.listdir(folder):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
                os.rmdir(folder)
