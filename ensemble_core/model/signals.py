"""The signals that users can send to jobs."""

from __future__ import annotations

#: Names without ``SIG``. Other signals either end, stop or continue a process whatever the program
#: does, or have a meaning of their own. PBS lets jobs ignore SIGHUP.
SIGNALS = ("USR1", "USR2", "INT", "TERM", "QUIT")
