"""Fixtures of the service's tests: a separate home folder, and no settings from outside."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator

import pytest
from ensemble_testing.isolation import isolated

__all__ = ["isolated"]


@pytest.fixture
def full_disk() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context in which files of this process cannot grow."""

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full
