"""Fixtures and hypothesis profiles of the core's tests.

Every test uses ``isolated``; ``permissions_hold`` is for tests of file permissions.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest
from ensemble_testing.isolation import isolated
from hypothesis import settings

__all__ = ["isolated", "permissions_hold"]

# ``ci`` is the default (``pyproject.toml``). ``make soak`` draws more, at random.
settings.register_profile("ci", settings.get_profile("ci"), max_examples=40)
settings.register_profile("soak", deadline=None, max_examples=1500)

#: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, and the version of the structs: linux/capability.h.
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
    """Apply file permissions to root, too.

    Drops the capabilities to ignore them, in this thread and in threads that it starts.
    """
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
