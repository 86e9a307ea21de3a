"""Attachments: text files that an ensemble file names, found beside it.

Points of a sweep and functions are read once, when the file is loaded, and kept with the run: a
resume goes by what they said then.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.source import LARGEST, read
from ensemble_core.errors import UsageError

__all__ = ["attached", "beside"]


def beside(context: Context, name: str) -> str:
    """The file of this name, as it is called in messages: from where the ensemble file is."""
    return os.path.join(os.path.dirname(context.document.file), name)


def attached(
    context: Context,
    path: Path,
    name: str,
    *,
    largest: int = LARGEST,
    suffixes: Sequence[str] = (),
) -> str | None:
    """The text of the file that the value at ``path`` names; ``None`` where it cannot be read,
    which is reported. ``suffixes`` are those of files that may have been meant instead."""
    known = context.known
    if name in known.attached:
        return known.attached[name]
    if not known.reads:
        context.report(
            path,
            f"the file {name!r} was not read when the run began",
            hint="name files in the ensemble file, so that the run keeps them",
            code="no-such-file",
        )
        return None
    try:
        text = read(os.path.join(known.here, name), largest=largest, suffixes=suffixes)
    except UsageError as error:
        if error.code in ("no-such-file", "not-a-file"):
            # Told where it is named, not where it would be.
            context.report(
                path,
                f"there is no file {beside(context, name)!r}",
                hint=error.hint,
                code=error.code,
            )
        else:
            if error.where is not None:
                error.where = error.where._replace(quoted=False)
            context.errors.append(error)
        return None
    known.attached[name] = text
    return text
