"""Fixtures: a real Grid Engine, with a qmaster and an execd on this machine in a temporary folder.

Tests are skipped if its programs are missing (Debian: ``gridengine-master``, ``-exec``,
``-client``) or without root, since its daemons switch users.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from ensemble_testing.processes import free_ports

#: The programs. Debian's in ``/usr/bin`` start a compiler to find the architecture.
TOOLS = Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
#: Folders of the packages' programs, libraries and messages.
HOME = Path("/var/lib/gridengine")
SLOTS = 8

BOOTSTRAP = """\
admin_user              none
default_domain          none
ignore_fqdn             false
spooling_method         classic
spooling_lib            libspoolc
spooling_params         {base}/default/common;{base}/spool
binary_path             {tools}
qmaster_spool_dir       {base}/spool
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
PE = """\
pe_name            smp
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $pe_slots
control_slaves     FALSE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


def lacking() -> str | None:
    """Return what is missing for a cluster, or ``None``."""
    for program in ("sge_qmaster", "sge_execd", "qsub", "qstat", "qdel", "qconf"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            return f"no Grid Engine: {program} is missing (apt install gridengine-master -exec -client)"
    if not (TOOLS / "spoolinit").exists() or os.getuid() != 0:
        return "no Grid Engine: only root can start its daemons, on Debian"
    return None


def replaced(text: str, **fields: str) -> str:
    for name, value in fields.items():
        text = re.sub(rf"^{name}\s.*$", f"{name} {value}", text, flags=re.M)
    return text


class Cluster:
    """A Grid Engine cell: one host with some slots."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="ens-ge-", dir="/tmp"))
        self.base.chmod(0o755)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        common = self.base / "default" / "common"
        common.mkdir(parents=True)
        (self.base / "spool" / "job_scripts").mkdir(parents=True)
        (self.base / "execd").mkdir()
        for name in ("bin", "lib", "util", "utilbin"):
            (self.base / name).symlink_to(HOME / name)
        master, execd = free_ports(2)
        self.environment = {
            **os.environ,
            "PATH": f"{TOOLS}:{os.environ.get('PATH', '')}:/usr/sbin",
            "SGE_ROOT": str(self.base),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(master),
            "SGE_EXECD_PORT": str(execd),
            "SGE_ND": "1",
        }
        (common / "bootstrap").write_text(BOOTSTRAP.format(base=self.base, tools=TOOLS))
        (common / "act_qmaster").write_text("localhost\n")
        (common / "host_aliases").write_text(f"localhost {socket.gethostname()}\n")
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        base = self.base
        conf = replaced(
            (SHARED / "default-configuration").read_text(),
            execd_spool_dir=f"{base}/execd",
            min_uid="0",
            min_gid="0",
            mailer="/bin/true",
            # No login shell: if a job is killed while the user's profile holds a lock, all later
            # jobs hang.
            login_shells="none",
            load_report_time="00:00:02",
            reporting_params="accounting=true reporting=false flush_time=00:00:01 joblog=false",
        )
        (base / "conf").write_text(conf)
        spool = f"{base}/default/common;{base}/spool"
        self.run(str(TOOLS / "spoolinit"), "classic", "libspoolc", spool, "init")
        defaults = str(TOOLS / "spooldefaults")
        self.run(defaults, "configuration", str(base / "conf"))
        self.run(defaults, "complexes", str(SHARED / "util/resources/centry"))
        self.run(defaults, "usersets", str(SHARED / "util/resources/usersets"))
        self.run(defaults, "managers", "root")
        self.start_qmaster()
        self.run("qconf", "-as", "localhost")
        self._configure("-Msconf", replaced(
            self.run("qconf", "-ssconf"), schedule_interval="0:0:1", flush_submit_sec="1",
            flush_finish_sec="1", job_load_adjustments="NONE",
        ))  # fmt: skip
        self._configure("-Ap", PE)
        self._configure("-Aq", replaced(
            self.run("qconf", "-sq"), qname="all.q", hostlist="localhost", pe_list="smp",
            slots=str(SLOTS), load_thresholds="NONE",
        ))  # fmt: skip
        self._start("execd", "sge_execd")
        self.wait(lambda: "lx-" in self.run("qstat", "-f"), "a host")

    def _configure(self, flag: str, text: str) -> None:
        file = self.base / "given"
        file.write_text(text)
        self.run("qconf", flag, str(file))

    def _start(self, name: str, program: str) -> None:
        tied = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        with (self.base / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*tied, TOOLS / program], env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def start_qmaster(self) -> None:
        self._start("qmaster", "sge_qmaster")
        self.wait(lambda: self.tried("qconf", "-sss") == 0, "qmaster")

    def tried(self, *words: str) -> int:
        return subprocess.run(
            words, env=self.environment, capture_output=True, timeout=150, check=False
        ).returncode

    def run(self, *words: str) -> str:
        """Run a command of Grid Engine in this cluster and return its output."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=150, check=False
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stderr} {done.stdout}")
        return done.stdout

    def wait(self, done: Callable[[], bool], what: str, timeout: float = 100.0) -> None:
        end = time.monotonic() + timeout
        while not done():
            if time.monotonic() > end:
                logs = "".join(path.read_text()[-1500:] for path in self.base.glob("*.out"))
                raise AssertionError(f"{what}: not seen within {timeout:g} s\n{logs}")
            time.sleep(0.1)

    def jobs(self) -> list[str]:
        """Return the lines of ``qstat``."""
        return self.run("qstat", "-u", "*").splitlines()[2:]

    @contextmanager
    def limited(self, **fields: str) -> Iterator[None]:
        """Change fields of the cell's configuration inside the block."""
        before = self.run("qconf", "-sconf")
        file = self.base / "global"
        try:
            file.write_text(replaced(before, **fields))
            self.run("qconf", "-Mconf", str(file))
            yield
        finally:
            file.write_text(before)
            self.run("qconf", "-Mconf", str(file))

    @contextmanager
    def crashed(self) -> Iterator[None]:
        """Kill qmaster; restart it after the block."""
        self._processes["qmaster"].kill()
        self._processes["qmaster"].wait(120)
        try:
            yield
        finally:
            self.start_qmaster()

    def forget(self, job: int) -> None:
        """Remove a job from the records of a crashed qmaster, which then reuses the id."""
        number = f"{job:010}"
        path = self.base / "spool" / "jobs" / number[:2] / number[2:6] / number[6:]
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.base / "spool" / "jobseqnum").write_text(f"{job - 1}\n")

    def wait_idle(self) -> None:
        self.wait(lambda: not self.jobs(), "an empty queue")

    def close(self) -> None:
        if "qmaster" in self._processes:
            with suppress(Exception):
                self.tried("qdel", "-f", "-u", "*")
                self.wait(lambda: not self.jobs(), "an empty queue", 8.0)
        for process in self._processes.values():  # don't save: the folder is deleted
            process.kill()
            process.wait(120)
        mark = os.fsencode(str(self.base))
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    if mark in words:
                        os.kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(self.base, ignore_errors=True)


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    reason = lacking()
    if reason is not None:
        pytest.skip(reason)
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield the shared cluster, with its variables in the environment."""
    for name in ("PATH", "SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"):
        monkeypatch.setenv(name, _cluster.environment[name])
    yield _cluster
    _cluster.tried("qdel", "-u", "root")
