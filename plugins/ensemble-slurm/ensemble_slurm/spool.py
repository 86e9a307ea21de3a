"""The folder that a run's controller and its jobs' wrappers share.

``address`` says where the controller of now listens, ``reports`` is where wrappers write what they
could not tell it, ``void`` names attempts to submit that were given up. It lies in the run's state
folder, which nodes must see for it to be of use; the token in it is for this user's eyes only.
Used by the loop's thread.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress

from ensemble_slurm.script import Address

__all__ = ["Spool"]


class Spool:
    """The shared folder of one run. Raises :class:`OSError` where it cannot be made."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._reports = os.path.join(folder, "reports")
        self._void = os.path.join(folder, "void")
        for path in (folder, self._reports, self._void):
            os.makedirs(path, mode=0o700, exist_ok=True)
        self.token = self._token()

    def _token(self) -> str:
        """The run's token: made once, so that a later controller knows the wrappers' reports."""
        path = os.path.join(self.folder, "token")
        with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            token = file.read().strip()
            if token:
                return token
        token = secrets.token_hex(16)
        self._put(path, token + "\n")
        return token

    def _put(self, path: str, text: str) -> None:
        """At once: a reader sees the old words or the new ones."""
        new = f"{path}.{secrets.token_hex(4)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, path)

    def announce(self, address: Address) -> None:
        """Wrappers report here from now on."""
        hosts = " ".join(address.hosts)
        self._put(os.path.join(self.folder, "address"), f"{address.port} {hosts}\n")

    def void(self, batch: str) -> None:
        """This attempt (``KEY.ATTEMPT``) must not run, if Slurm should have taken it after all."""
        self._put(os.path.join(self._void, batch), "")

    def reports(self) -> Iterator[tuple[str, list[bytes]]]:
        """The files that wrappers have written, each with its complete lines. Kept until
        :meth:`done`."""
        try:
            names = sorted(os.listdir(self._reports))
        except OSError:
            return
        for name in names:
            path = os.path.join(self._reports, name)
            try:
                with open(path, "rb") as file:
                    lines = file.read(64 * 1024).split(b"\n")
            except OSError:
                continue
            yield path, lines[:-1]

    def done(self, path: str) -> None:
        """What this file says is worked in."""
        with suppress(OSError):
            os.unlink(path)

    def remove(self) -> None:
        """Take the folder away; nobody is left who would use it."""
        for folder in (self._reports, self._void, self.folder):
            with suppress(OSError):
                for name in os.listdir(folder):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
                os.rmdir(folder)
