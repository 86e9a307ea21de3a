"""Supervisors of controllers that start slowly or end early."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ensemble_core.local import supervisor
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.protocol import Splitter, line


def test_a_supervisor_waits_for_a_slow_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE", 0.01)
    mine, its = socket.socketpair()
    with mine, its:
        hello = line(["hello", {"tag": "slow"}])
        later = threading.Timer(0.5, mine.sendall, [hello])
        later.start()
        assert supervisor._hello(its, Splitter()) == {"tag": "slow"}
        later.join()


def test_a_supervisor_exits_if_its_controller_has_ended() -> None:
    mine, its = socket.socketpair()
    with its:
        mine.close()
        assert supervisor._hello(its, Splitter()) is None


#: A controller with a fork that keeps its socket open, as a process pool does.
FORKED = """\
import os, socket, sys
mine, its = socket.socketpair()
if os.fork() == 0:
    its.close()
    sys.stdin.read()
    os._exit(0)
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"."], [its.fileno()])
os.kill(os.getpid(), 9)
"""


def test_a_supervisor_exits_if_a_fork_of_a_killed_controller_keeps_the_socket_open() -> None:
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-c", FORKED, str(theirs.fileno())]
    heard: list[object] = []
    with (
        ours,
        theirs,
        subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()]) as controller,
    ):
        _, (line_of_it, *_), _, _ = socket.recv_fds(ours, 1, 1)
        with socket.socket(fileno=line_of_it) as its:
            for _ in range(2):  # before and after the controller is reaped
                waiting = threading.Thread(
                    target=lambda: heard.append(supervisor._hello(its, Splitter())), daemon=True
                )
                waiting.start()
                waiting.join(60)
                assert heard == [None]
                heard.clear()
                controller.wait(60)
            assert not select.select([its], [], [], 0)[0]  # the socket itself is still open


def test_closing_an_unopened_executor_ends_its_supervisor(
    tmp_path: Path,
) -> None:
    executor = LocalExecutor(slots=1)
    executor.prepare("never-opened", tmp_path / "executor", "0123456789abcdef")
    started = executor._started
    assert started is not None
    executor.close()
    assert started.sock.fileno() < 0
    with pytest.raises(ChildProcessError):  # already reaped
        os.waitpid(started._child, os.WNOHANG)
