"""Tests of the listener: it accepts only reports with the run's token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ensemble_batch import Batch, BatchExecutor, Place, address_option, network_reports, status_of
from ensemble_batch.job_events import Report
from ensemble_batch.job_script import report_script_of
from ensemble_batch.network_reports import (
    LONGEST,
    Listener,
    ReportFolder,
    address_towards,
    read_report,
)

from ensemble_core import Job, UsageError

TOKEN = "0123456789abcdef"


class Ear:
    """Runs a listener in a thread and collects the reports."""

    def __init__(self, token: str = TOKEN) -> None:
        self.heard: list[Report] = []
        self.token = token
        self.listener = Listener("127.0.0.1", 0, self._take)
        self.thread = threading.Thread(target=self.listener.listen)
        self.thread.start()

    def _take(self, line: bytes) -> bool:
        report = read_report(line, self.token)
        if report is not None:
            self.heard.append(report)
        return report is not None

    def say(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.listener.port), 10) as connection:
            connection.sendall(data)
            return connection.recv(100)

    def close(self) -> None:
        self.listener.close()
        self.thread.join(120)
        assert not self.thread.is_alive()


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


def line(job: str = "sim.0", token: str = TOKEN, rest: str = "7 0 start 5.0 n1") -> bytes:
    return f"ensemble1 {token} {job} {rest}\n".encode()


def test_a_report_with_the_token_is_received_and_answered(ear: Ear) -> None:
    assert ear.say(line()) == b"ok\n"
    assert ear.heard == [Report("start", 5.0, host="n1", job="sim.0", queue_id="7")]


def test_a_report_of_a_resubmitted_job_counts(ear: Ear) -> None:
    assert ear.say(line(job="sim.0-1~2")) == b"ok\n"
    assert [report.job for report in ear.heard] == ["sim.0-1~2"]


@pytest.mark.parametrize(
    "data",
    [
        line(token="f" * 16),
        line(token=""),
        line(rest="7 \u00b2 start 5.0 n1"),
        line(rest="7 \u0663 start 5.0 n1"),
        line(rest=f"7 {'9' * 3000} start 5.0 n1"),
        line(rest="7 0 start nan n1"),
        line(rest="7 0 end 0 - 1.0 inf n1"),
        line(rest=f"7 0 end {'9' * 3900} - 1.0 2.0 n1"),
        line(job="../../etc"),
        line(job="sim"),
        line(rest="7;rm 0 start 5.0 n1"),
        line(rest="7 x start 5.0 n1"),
        line(rest="7 0 end nonsense - 1 2 n1"),
        line(rest="7 0 dance 5.0 n1"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\x00\n",
        b"\n",
    ],
)
def test_anything_else_is_ignored(ear: Ear, data: bytes) -> None:
    assert ear.say(data) == b"no\n"
    assert ear.heard == []


def test_an_endless_line_is_cut_off(ear: Ear) -> None:
    with socket.create_connection(("127.0.0.1", ear.listener.port), 10) as connection:
        try:
            for _ in range(100):
                connection.sendall(b"x" * LONGEST)
            assert connection.recv(100) == b""
        except OSError:
            pass
    assert ear.say(line()) == b"ok\n"


def test_an_idle_connection_is_closed_and_blocks_no_other(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_reports, "_SECONDS", 0.2)
    monkeypatch.setattr(network_reports, "_MOST", 5)
    idle = [socket.create_connection(("127.0.0.1", ear.listener.port), 10) for _ in range(5)]
    assert [connection.recv(1) for connection in idle] == [b""] * 5
    monkeypatch.setattr(network_reports, "_SECONDS", 60.0)
    assert ear.say(line()) == b"ok\n"
    for connection in idle:
        connection.close()


def test_a_report_in_pieces_is_one_report(ear: Ear) -> None:
    with socket.create_connection(("127.0.0.1", ear.listener.port), 10) as connection:
        for byte in line():
            connection.sendall(bytes([byte]))
        assert connection.recv(10) == b"ok\n"
    assert len(ear.heard) == 1


def test_shell_exit_codes_become_wait_statuses() -> None:
    assert [status_of(code) for code in (0, 1, 127, 128, 137, 200, 255)] == [
        0, 1 << 8, 127 << 8, 128 << 8, 9, 200 << 8, 255 << 8,
    ]  # fmt: skip


class Restarting(BatchExecutor):
    """A queue that has restarted each job twice."""

    name = "odd"
    task_id = "7"
    task_restarts = "2"

    def may_restart(self, job: Job) -> bool:
        return True

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        raise NotImplementedError

    ask = find_batch = end_jobs = submit_batch  # type: ignore[assignment]  # not used here


def test_a_wrapper_reports_to_the_current_controller(tmp_path: Path) -> None:
    """The controller named in the script has ended. The folder has the address of the next one."""
    spool = ReportFolder(str(tmp_path / "spool"))
    ear = Ear(spool.token)
    try:
        spool.announce(ear.listener.port, ["127.0.0.1"])
        job = Job(id="sim.4", group="sim", index=4, command=("sh", "-c", "sleep 0.3; exit 3"))
        place = Place(str(tmp_path), str(tmp_path / "o"), str(tmp_path / "e"))
        script = tmp_path / "script"
        script.write_bytes(
            report_script_of(
                "k_1", [(job, place)], tag="r", folder=spool.folder, token=spool.token, port=9,
                hosts=["127.0.0.1"], hooks=Restarting(),
            )
        )  # fmt: skip
        done = subprocess.run(
            ["bash", str(script)], env={"PATH": os.environ["PATH"]}, timeout=150, check=False
        )
        assert done.returncode == 3
        assert [(each.kind, each.life, each.status) for each in ear.heard] == [
            ("start", 2, 0), ("end", 2, 3 << 8),
        ]  # fmt: skip
        assert ear.heard[1].seconds > 0.2
        assert list(spool.reports()) == []
    finally:
        ear.close()


def test_spool_files_are_private_and_the_token_persists(tmp_path: Path) -> None:
    spool = ReportFolder(str(tmp_path / "spool"))
    assert ReportFolder(spool.folder).token == spool.token
    assert len(spool.token) == 32
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0
    assert (tmp_path / "spool" / "token").stat().st_mode & 0o077 == 0


def test_lines_written_while_the_files_are_read_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_reports, "_WHILE", 60.0)
    spool = ReportFolder(str(tmp_path / "spool"))
    folder = tmp_path / "spool" / "reports"
    path = folder / "sim.0.7"
    with path.open("ab", buffering=0) as late:  # opened before the first read
        late.write(b"start\nen")
        assert list(spool.reports()) == [b"start"]
        path.write_bytes(b"another\n")  # by a later wrapper
        late.write(b"d\n")
        assert sorted(set(spool.reports())) == [b"another", b"end", b"start"]
    assert list(spool.reports()) == []
    monkeypatch.setattr(network_reports, "_WHILE", 0.0)
    assert list(spool.reports()) == []
    assert list(folder.iterdir()) == []


def test_the_address_towards_another_machine_is_one_of_ours() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    address = address_towards("no.such.host.invalid")
    with socket.socket() as probe:
        probe.bind((address, 0))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("10.0.0.7", ("10.0.0.7", 0)), ("10.0.0.7:9000", ("10.0.0.7", 9000)),
        ("::1", ("::1", 0)), ("[::1]", ("::1", 0)), ("[::1]:9000", ("::1", 9000)),
        ("login1:9000", ("login1", 9000)), ("none", None), ("auto", ("", 0)),
    ],
)  # fmt: skip
def test_a_listen_address_is_parsed(said: str, meant: tuple[str, int] | None) -> None:
    assert address_option(said) == meant


def test_an_invalid_port_is_rejected() -> None:
    with pytest.raises(UsageError):
        address_option("10.0.0.7:http")


def test_unknown_connections_leave_descriptors_for_the_run() -> None:
    text = """
        import resource, socket, sys, threading
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        from ensemble_batch.network_reports import Listener
        listener = Listener("127.0.0.1", 0, lambda line: True)
        thread = threading.Thread(target=listener.listen)
        thread.start()
        print(listener.port, flush=True)
        sys.stdin.readline()
        files = [open("/dev/null") for _ in range(20)]
        print("well", flush=True)
        sys.stdin.readline()
        listener.close()
        thread.join()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        strangers = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(100)]
        strangers[-1].settimeout(10)
        assert strangers[-1].recv(1) == b""  # all earlier ones were accepted or rejected
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "well\n"
        process.stdin.write("\n")
        process.stdin.flush()
        for stranger in strangers:
            stranger.close()
    assert process.returncode == 0
