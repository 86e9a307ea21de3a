"""What every test of the core may count on: a home of its own, and no setting from outside."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator

import pytest

# Whoever runs the tests may ignore signals (nohup does); what the tests start is to heed them.
for _signal in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(
            _signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL
        )


@pytest.fixture(autouse=True)
def _nothing_from_outside(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs keep their state in a folder of the test's own; colours and widths are the test's.

    They are in no queue either: inside a Flux instance the plugin would choose that.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    looks = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
    for name in (*looks, "FLUX_URI"):
        monkeypatch.delenv(name, raising=False)


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
