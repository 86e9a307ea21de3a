"""Fixtures for tests on a real Slurm: munged, slurmctld and four slurmds on this machine.

The daemons use one temporary folder and stop at the end of the tests. They need no root. Without
Slurm's programs (Debian: ``slurm-wlm`` and ``munge``), the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import ensemble_slurm
import pytest
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import free_ports

NODES = ("n1", "n2", "n3", "n4")
CORES = 2
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")

CONF = """
ClusterName=tiny
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={base}/munge/s
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/ctld.pid
SlurmdPidFile={base}/%n.pid
SlurmctldLogFile={base}/log/ctld
SlurmdLogFile={base}/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MailProg=/bin/true
MinJobAge=300
KillWait=2
RequeueExit=99
RequeueExitHold=98
SlurmdTimeout=60
MessageTimeout=5
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=n1 MaxTime=1 State=UP
PartitionName=urgent Nodes=n4 PriorityTier=10 State=UP
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""


def programs() -> str | None:
    """Return a message that names the missing programs, or ``None``."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"no Slurm: {', '.join(missing)} not on the PATH" if missing else None


class Cluster:
    """A separate Slurm cluster on this machine.

    The text ``conf`` is added to its configuration, and ``changes`` replaces parts of it. The text
    ``cgroup`` is its ``cgroup.conf``.
    """

    #: Folder in which the site's script records ended jobs, and its prolog looks for ``bad-NODE``.
    ended: Path

    def __init__(
        self, conf: str = "", changes: Mapping[str, str] | None = None, cgroup: str = ""
    ) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="ens-slurm-", dir="/tmp"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("munge", "state", "spool", "log"):
            (self.base / name).mkdir(mode=0o755)
        key = self.base / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        import pwd

        host = socket.gethostname().partition(".")[0]
        ports = free_ports(1 + len(NODES))
        user = pwd.getpwuid(os.getuid()).pw_name
        text = CONF.format(host=host, ports=ports, user=user, base=self.base)
        for name, port in zip(NODES, ports[1:], strict=True):
            text += (
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={CORES} RealMemory=1000\n"
            )
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        self.conf = self.base / "slurm.conf"
        self.conf.write_text(text + conf)
        self.conf.chmod(0o644)
        if cgroup:
            (self.base / "cgroup.conf").write_text(cgroup)
        try:
            self._start("munged", self._munged())
            self._wait(lambda: (self.base / "munge" / "s").exists(), "munged's socket")
            self.start_slurmctld()
            for name in NODES:
                self.start_slurmd(name)
            self._wait(lambda: self.run("sinfo", "-ho%T").split() == ["idle"], "idle nodes")
        except BaseException:
            self.close()
            raise

    def _munged(self) -> list[str]:
        folder = self.base / "munge"
        return [
            "munged", "--foreground", f"--key-file={folder}/key", f"--socket={folder}/s",
            f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed",
            "--num-threads=4", "--force",
        ]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": path}

    def _start(self, name: str, words: Sequence[str]) -> None:
        tied = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        with (self.base / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*tied, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_slurmctld(self) -> None:
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
        self._wait(lambda: "is UP" in self.run("scontrol", "ping", check=False), "slurmctld")

    def start_slurmd(self, node: str) -> None:
        self._start(node, ["slurmd", "-D", "-N", node, "-f", str(self.conf)])

    def kill(self, name: str) -> None:
        """Kill a daemon with SIGKILL: ``slurmctld``, or the slurmd of a node."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(120)

    def _wait(self, done: Callable[[], bool], what: str, timeout: float = 100.0) -> None:
        end = time.monotonic() + timeout
        while not done():
            if time.monotonic() > end:
                logs = "".join(
                    path.read_text(errors="replace")[-1500:]
                    for path in sorted((self.base / "log").glob("*"))
                )
                raise AssertionError(f"{what} not there within {timeout:g} s\n{logs}")
            time.sleep(0.05)

    def run(self, *words: str, check: bool = True) -> str:
        """Return the output of a Slurm command in this cluster."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def jobs(self, state: str = "all") -> list[tuple[str, str, str]]:
        """Return the id, name and state of each job."""
        text = self.run("squeue", "-har", "-t", state, "-O", "JobArrayID:30,Name:60,State:20")
        return [
            (line[:30].strip(), line[30:90].strip(), line[90:].strip())
            for line in text.splitlines()
        ]

    def active(self) -> list[tuple[str, str, str]]:
        """Return unfinished jobs."""
        return self.jobs("PD,R,S,CG,CF")

    def wait_idle(self) -> None:
        """Wait until no job is left."""
        self._wait(lambda: not self.active(), "an empty queue")

    def requests(self) -> int:
        """Return the total number of requests that slurmctld has received."""
        lines = self.run("sdiag").splitlines()
        at = next(i for i, line in enumerate(lines) if "message type" in line)
        count = 0
        for line in lines[at + 1 :]:
            if "count:" not in line:
                break
            count += int(line.partition("count:")[2].split()[0])
        return count

    def close(self) -> None:
        if "slurmctld" in self._processes:
            with suppress(Exception):
                self.run("scancel", "-u", str(os.getuid()), check=False)
                self._wait(lambda: not self.active(), "an empty queue", 8.0)
        for name in [*NODES, "slurmctld", "munged"]:
            process = self._processes.pop(name, None)
            if process is not None:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
        for pid in self._left():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if keep := os.environ.get("ENSEMBLE_SLURM_LOGS"):  # to investigate a failure
            shutil.copytree(self.base / "log", Path(keep) / self.base.name)
        shutil.rmtree(self.base, ignore_errors=True)

    def _left(self) -> list[int]:
        """Return the ids of remaining processes of the cluster: slurmstepds and their children."""
        mark = os.fsencode(str(self.base))
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    if mark in words:
                        found.append(int(entry.name))
        return found


@pytest.fixture(scope="session")
def slurm_programs() -> None:
    missing = programs()
    if missing is not None:
        pytest.skip(f"{missing} (Debian: apt install slurm-wlm munge)")


@pytest.fixture(scope="session")
def shared_cluster(slurm_programs: None) -> Iterator[Cluster]:
    """Start one cluster for all tests that leave it unchanged."""
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Make this process submit to the shared cluster."""
    _enter(shared_cluster, monkeypatch)
    return shared_cluster


def _enter(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_")):
            monkeypatch.delenv(name)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environment[name])


@pytest.fixture(scope="session")
def _site(slurm_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster that has a prolog, limits arrays and records ended jobs."""
    ended = tmp_path_factory.mktemp("ended")
    source = Path(ensemble_slurm.__file__).with_name("jobcomp-ensemble.sh").read_text()
    script = ended.with_name("jobcomp.sh")
    script.write_text(source.replace("/var/spool/slurm/ensemble", str(ended)))
    script.chmod(0o755)
    prolog = ended.with_name("prolog.sh")
    prolog.write_text(f'#!/bin/sh\n[ ! -e "{ended}/bad-$SLURMD_NODENAME" ]\n')
    prolog.chmod(0o755)
    cluster = Cluster(
        f"Prolog={prolog}\n"
        "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1,"
        "requeue_delay=1,max_array_tasks=2\n"
        f"JobCompType=jobcomp/script\nJobCompLoc={script}\n"
    )
    cluster.ended = ended
    yield cluster
    cluster.close()


@pytest.fixture
def site_cluster(_site: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Make this process submit to the site's cluster. ``ended`` is its folder of ended jobs."""
    _enter(_site, monkeypatch)
    return _site


@pytest.fixture
def full_cluster(slurm_programs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Make this process submit to a cluster that accepts only eight jobs."""
    cluster = Cluster("MaxJobCount=8\n")
    _enter(cluster, monkeypatch)
    yield cluster
    cluster.close()


@pytest.fixture
def memory_cluster(slurm_programs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Make this process submit to a cluster that kills jobs for their use of memory."""
    kill = "jobacct_gather/linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill"
    cluster = Cluster(changes={"jobacct_gather/none": kill, "=CR_Core\n": "=CR_Core_Memory\n"})
    _enter(cluster, monkeypatch)
    yield cluster
    cluster.close()


@pytest.fixture
def cgroup_cluster(slurm_programs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Make this process submit to a cluster that limits memory by control groups."""
    root = Path("/sys/fs/cgroup/memory")
    if os.getuid() != 0 or not os.access(root / "memory.oom_control", os.W_OK):
        pytest.skip("only root can limit memory, with the control groups of version 1")
    cgroup = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"
    changes = {"=CR_Core\n": "=CR_Core_Memory\n", "task/none": "task/cgroup"}
    cluster = Cluster(changes=changes, cgroup=cgroup)
    _enter(cluster, monkeypatch)
    yield cluster
    cluster.close()
    for node in NODES:
        for folder, _, _ in os.walk(root / f"slurm_{node}", topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


@pytest.fixture(scope="session")
def shell_of() -> Callable[[str], int]:
    """Return a function that finds a batch script's process by a word in its job's command.

    A child of the script waits for the command.
    """

    def parent_of(pid: str) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]

    def shells(word: str) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                if word in (entry / "cmdline").read_text().split("\0"):
                    shell = parent_of(parent_of(entry.name))
                    if "slurm_script" in Path(f"/proc/{shell}/cmdline").read_text():
                        yield int(shell)

    def find(word: str) -> int:
        wait_until(lambda: any(shells(word)))
        return next(shells(word))

    return find
