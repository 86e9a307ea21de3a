"""What every test of the service may count on: a home of its own, and no setting from outside."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator

import pytest
from ensemble_testing.isolation import isolated

__all__ = ["isolated"]


@pytest.fixture
def full_disk() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A block in which nothing more fits into the files of this process."""

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full
