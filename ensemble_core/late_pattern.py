"""Regular expressions that are compiled when they are first used.

A run of one job uses a few of those in the modules that it imports. Compiling all of them took a
tenth of its time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

__all__ = ["late_pattern"]

if TYPE_CHECKING:
    from re import compile as late_pattern
else:

    class late_pattern:  # noqa: N801  (called like re.compile)
        """Pattern with the methods of ``re.Pattern``.

        Functions of ``re`` do not accept it, and the ``re`` of a match is another object.
        """

        def __init__(self, pattern, flags=0):
            self.pattern = pattern
            self._flags = flags

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            compiled = re.compile(self.pattern, self._flags)
            for each in dir(compiled):
                if not each.startswith("_"):
                    setattr(self, each, getattr(compiled, each))
            return getattr(compiled, name)
