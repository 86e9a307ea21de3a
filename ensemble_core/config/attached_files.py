"""Reads text files that the ensemble file names, such as the CSV file of a sweep.

The text is stored with the run, so a resume does not read the files again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.file_text import LARGEST, read
from ensemble_core.errors import UsageError


def sibling_path(context: Context, name: str) -> str:
    """Return the path of a file in the ensemble file's folder, as messages show it."""
    return os.path.join(os.path.dirname(context.document.file), name)


def read_attachment(
    context: Context,
    path: Path,
    name: str,
    *,
    largest: int = LARGEST,
    suffixes: Sequence[str] = (),
) -> str | None:
    """Return the text of the file that the value at ``path`` names, or ``None`` after an error.

    If the file does not exist, the error suggests other files with one of the ``suffixes``.
    """
    known = context.known
    if name in known.attached:
        return known.attached[name]
    if not known.reads:
        context.report(
            path,
            f"the file {name!r} was not stored when the run began",
            hint="name the file in the ensemble file, so that the run stores it",
            code="no-such-file",
        )
        return None
    try:
        text = read(os.path.join(known.here, name), largest=largest, suffixes=suffixes)
    except UsageError as error:
        if error.code in ("no-such-file", "not-a-file"):
            # Report the error at the value that contains the file's name.
            context.report(
                path,
                f"there is no file {sibling_path(context, name)!r}",
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
