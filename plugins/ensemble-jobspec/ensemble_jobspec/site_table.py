"""Reads a site file, which maps requirements in jobspecs to executor options at this site.

Example::

    requires:
      "system.cpu.target=amd64":
        slurm: {constraint: amd64}
        kubernetes: {nodeSelector: {kubernetes.io/arch: amd64}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core import FileErrors
from ensemble_core.cli.toolkit import read_document
from ensemble_jobspec.jobspec_errors import Faults


def read_site(text: str, file: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the section ``requires`` of a site file.

    Raises :class:`~ensemble_core.FileErrors` for an invalid file.
    """
    faults = Faults(read_document(text, file))
    if not faults.check("site"):
        raise FileErrors(faults.errors)
    table: Mapping[str, Mapping[str, Any]] = faults.document.data["requires"]
    return table
