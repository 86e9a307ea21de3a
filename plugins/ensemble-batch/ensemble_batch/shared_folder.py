"""Folder through which a run's controller and the wrapper scripts of its jobs exchange files.

Only the run's user may read it.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress


def script_name(key: str) -> str:
    """Return the unique file name of a batch's script."""
    return f"{key}.sh"


def script_of_batch(name: str) -> str:
    """Return the file name of a batch's script, from a name under which it was submitted.

    >>> script_of_batch("ens_3f9c2a11_0123456789_2")
    '0123456789.sh'
    """
    return script_name(name.split("_")[-2])


class SharedFolder:
    """A folder with subfolders; the subfolder ``scripts`` has the batches' scripts.

    Raises :class:`OSError` if the folders cannot be created.
    """

    def __init__(self, folder: str, *parts: str) -> None:
        self.folder = folder
        self._folders = [*(os.path.join(folder, part) for part in parts), folder]
        for path in reversed(self._folders):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def listing(self, part: str) -> list[str]:
        """Return the names of the files in a subfolder."""
        path = os.path.join(self.folder, part)
        # An NFS client may show an outdated listing for half a minute unless it changes the folder.
        os.utime(path)
        return os.listdir(path)

    def put(self, path: str, text: bytes) -> None:
        """Write a file atomically."""
        new = f"{path}.{secrets.token_hex(4)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(text)
        os.replace(new, path)

    def script(self, key: str, text: bytes) -> str:
        """Write a batch's script; return its path."""
        path = self._script(key)
        self.put(path, text)
        os.chmod(path, 0o700)
        return path

    def has_script(self, key: str) -> bool:
        return os.path.exists(self._script(key))

    def drop_script(self, key: str) -> None:
        """Remove a batch's script."""
        with suppress(OSError):
            os.unlink(self._script(key))

    def _script(self, key: str) -> str:
        return os.path.join(self.folder, "scripts", script_name(key))

    def remove(self) -> None:
        """Remove the folder, after its last user has ended."""
        for folder in self._folders:
            with suppress(OSError):
                for name in os.listdir(folder):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
                os.rmdir(folder)
