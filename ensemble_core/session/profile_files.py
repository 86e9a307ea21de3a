"""Finds the configuration files of the site and of the user, and the profile of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_core.errors import EnsembleError, Location, UsageError

if TYPE_CHECKING:
    from ensemble_core.config.document import Document
    from ensemble_core.config.profile import Profile
    from ensemble_core.plugin.registry import Registry

_SITE = "/etc/ensemble/config.yaml"


def config_files() -> list[Path]:
    """Return the paths of the site's and the user's file. Later ones take precedence.

    A site without access to ``/etc`` names its file in ``ENSEMBLE_SITE_CONFIG``.
    """
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # Relative paths in this variable are invalid by the standard.
    user = Path(home) if os.path.isabs(home) else Path("~/.config").expanduser()
    site = os.environ.get("ENSEMBLE_SITE_CONFIG") or _SITE
    return [Path(site).absolute(), user.absolute() / "ensemble" / "config.yaml"]


def find_profile(
    registry: Registry, name: str | None, *, flag: str = "--profile "
) -> Profile | None:
    """Return the profile of a run: ``name``, else ``ENSEMBLE_PROFILE``, else the default profile.

    Return ``None`` without a profile, or for the name ``none``: no file is read then. Raises
    :class:`EnsembleError` for an unknown profile, and for a file that is invalid or unsafe.
    """
    variable = os.environ.get("ENSEMBLE_PROFILE") or None
    where = Location(f"{flag}{name}" if name is not None else f"ENSEMBLE_PROFILE={variable}")
    name = variable if name is None else name
    if name == "none" or (name is None and not any(_found())):
        return None
    from ensemble_core.config.profile import default_profile, read_profile

    files = _read(registry)
    if name is None:
        name, place = default_profile(files)
        if name is None or name == "none":
            return None
        where = place or where
    try:
        return read_profile(name, files, registry, where)
    except UsageError as error:
        if error.code == "no-such-profile" and not files:
            error.hint = f"define it in {config_files()[-1]}"
        raise


def known_profiles(registry: Registry) -> list[str]:
    """Return the names of all profiles, for completion. An invalid file has none."""
    from ensemble_core.config.profile import NO_PROFILE, profile_names

    try:
        return [*profile_names(_read(registry)), NO_PROFILE]
    except EnsembleError:
        return [NO_PROFILE]


def _found() -> Iterator[Path]:
    for path in config_files():
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if not path.is_symlink() and not _is_named(path):
                continue
        except (OSError, ValueError):
            pass  # exists, but cannot be read: read() says why
        yield path


def _is_named(path: Path) -> bool:
    """Return True if ``ENSEMBLE_SITE_CONFIG`` names the file, which must then exist."""
    return bool(os.environ.get("ENSEMBLE_SITE_CONFIG")) and path == config_files()[0]


def _read(registry: Registry) -> list[Document]:
    from ensemble_core.config.file_text import read_file
    from ensemble_core.config.profile import read_config

    files = []
    for path in _found():
        with contextlib.suppress(OSError):  # read() reports these
            _require_trusted(path)
        try:
            text = read_file(path)
        except UsageError as error:
            error.hint = f"{error.hint or 'mend it'}; '--profile none' reads no file"
            raise
        files.append(read_config(text, str(path), registry))
    return files


def _require_trusted(path: Path) -> None:
    """Raise :class:`UsageError` if other users can change a configuration file.

    Its environment variables and options decide what jobs execute.
    """
    from ensemble_core.journal.run_folder import is_trusted

    real = Path(os.path.realpath(path))
    for each in dict.fromkeys((real, real.parent, path.parent)):
        status = each.stat()
        if not is_trusted(status):
            whose = "the file" if each == real else f"its folder {each}"
            foreign = status.st_uid not in (0, os.geteuid())
            raise UsageError(
                f"{path} is not used: {whose} "
                + ("belongs to another user" if foreign else "can be changed by other users"),
                where=Location(str(path), quoted=False),
                cause="it decides what your jobs execute",
                hint=("its owner must be you or root" if foreign else f"run chmod go-w {each}")
                + "; '--profile none' runs without profiles",
                code="not-yours",
            )
