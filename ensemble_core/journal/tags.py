"""Makes the tags of runs."""

from __future__ import annotations

import os
import time

from ensemble_core.late_pattern import late_pattern

_UNFIT = late_pattern(r"[^A-Za-z0-9._-]+")


def fit(name: str) -> str:
    """Convert the name of an ensemble to a valid name for a folder."""
    return _UNFIT.sub("-", name).strip(".-") or "run"


def new_tag(name: str) -> str:
    """Return a unique name for a run, from the ensemble's name, the time and some random digits."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now))
    return f"{name}-{stamp}-{int(now % 1 * 1000):03x}{os.urandom(2).hex()}"
