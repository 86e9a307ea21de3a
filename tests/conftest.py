"""The surroundings of every test of the core: a home of its own, and no setting from outside.

Besides, file permissions that hold for root as well, where a test asks for them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest
from ensemble_testing.isolation import isolated
from hypothesis import settings

__all__ = ["isolated", "permissions_hold"]

# A verdict depends neither on how fast the machine is nor on chance; ``make soak`` draws anew, and
# many more.
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("soak", deadline=None, max_examples=1500)
settings.load_profile("gate")

#: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of linux/capability.h, and the version of its structs.
_PASS_OVER = 1 << 1 | 1 << 2
_VERSION = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@pytest.fixture
def permissions_hold() -> Iterator[None]:
    """What a file's mode forbids its owner fails in this test, also for root: the capabilities that
    pass over it are put aside, in this thread and in those that begin meanwhile."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    if libc.capget(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capget")
    before = sets[0].effective

    def effective(bits: int) -> None:
        sets[0].effective = bits
        if libc.capset(ctypes.byref(header), sets):
            raise OSError(ctypes.get_errno(), "capset")

    effective(before & ~_PASS_OVER)
    try:
        yield
    finally:
        effective(before)
