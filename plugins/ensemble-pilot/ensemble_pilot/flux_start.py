"""Runs the part of a job on one node: a broker of a Flux instance that the job has for itself.

It is a program that needs only Python: ``flux_start.py PLAN``. Flux is only the launcher of the
job's tasks: cores, GPUs, memory, time limit, signals and the end are the supervisor's, whose child
this is. So brokers need no graceful end: they are killed once Flux says that all tasks are over.

The head writes the configuration into a folder that all parts see, and submits the job. This
process passes signals on, each task gets one, and ends with the exit code of the job. The other
parts wait for the configuration, and get SIGTERM when the head is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

#: The variable with the path of ``flux`` on this node.
FLUX = "ENSEMBLE_FLUX"
#: Seconds within which all parts must have found one another, between two looks at a file, and
#: within which a pilot ends if one of its nodes is lost.
_CONNECTING, _LOOK, _ENDING = 120.0, 0.05, 30.0
_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1),
    *(signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH),
)
#: These end a job that has not begun.
_DEADLY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: Variables of the part, or of a Flux around it, that tasks do not see.
_OWN = ("FLUX_", "PMI_", "PMIX_", FLUX, "ENSEMBLE_TASK_RANK")
#: What the first broker runs: it submits the job, and says how it goes on.
_FIRST = """
id=$("$1" job submit "$2/job.json") && echo "began $id" > "$3/said" &&
"$1" job attach "$id" 2> "$3/words"
echo "ended $?" > "$3/said"
exec sleep 600
"""
#: Sets the variables of each task.
_TASKS = """
plugin.register { name = "ensemble", handlers = { { topic = "task.init", fn = function ()
  task.setenv ("ENSEMBLE_TASK_RANK", task.info.rank)
  local each = %d
  if each > 0 then
    local file = assert (io.open ("%s/gpus-" .. shell.info.rank))
    local first, number = each * task.getenv ("FLUX_TASK_LOCAL_ID"), 0
    local mine = {}
    for gpu in file:read ("*l"):gmatch ("[^,]+") do
      if number >= first and number < first + each then mine[#mine + 1] = gpu end
      number = number + 1
    end
    file:close ()
    for _, name in ipairs { "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES" } do
      task.setenv (name, table.concat (mine, ","))
    end
  end
end } } }
"""


#: Folders of parts. Sockets of Flux have short paths. Each part holds a lock on its own folder.
_PLACES = "/tmp/ens-flux-"


def _lock(place: str) -> int:
    """Return a descriptor of a folder with its lock. Raises ``OSError`` if it is taken or gone."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.stat(place), os.fstat(fd)):
            raise FileNotFoundError(place)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _new_place() -> tuple[str, int]:
    """Make a folder, and return it with the descriptor that holds its lock."""
    for _ in range(100):
        place = tempfile.mkdtemp(prefix=os.path.basename(_PLACES), dir=os.path.dirname(_PLACES))
        with contextlib.suppress(OSError):  # another process has removed it before it was locked
            return place, _lock(place)
    raise OSError(f"cannot lock a folder {_PLACES}*")


def remove_leftovers() -> None:
    """Remove the folders of this user's parts that were killed on this node."""
    for place in glob.glob(f"{_PLACES}*"):
        with contextlib.suppress(OSError):
            if os.stat(place).st_uid == os.getuid():
                fd = _lock(place)
                shutil.rmtree(place, ignore_errors=True)
                os.close(fd)


class _Failed(Exception):
    """Raised if this part cannot work. ``code`` is the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Part:
    """The part of a job on this node."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.folder = plan, str(plan["folder"])
        self.flux = os.environ.get(FLUX) or shutil.which("flux") or ""
        remove_leftovers()
        self.place, self._locked = _new_place()
        self.broker: subprocess.Popen[bytes] | None = None
        self.job = ""
        self.received: list[int] = []
        self.woken, self.wake = socket.socketpair()
        for end in (self.woken, self.wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wake.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda number, _: self.received.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def close(self) -> None:
        if self.broker is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.broker.pid, signal.SIGKILL)
            self.broker.wait()
        shutil.rmtree(self.place, ignore_errors=True)

    def file(self, name: str, text: str) -> None:
        """Write a file that other parts may look for."""
        path = os.path.join(self.folder, name)
        fd = os.open(f"{path}.{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.rename(f"{path}.{os.getpid()}", path)

    def wait(self, seconds: float, *files: int) -> bool:
        """Wait for a signal, the end of a child, or input. Return whether there is input."""
        woken = self.woken.fileno()
        ready, _, _ = select.select([woken, *files], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self.woken.recv(4096)
        return any(each != woken for each in ready)

    def start_broker(self, *words: str) -> subprocess.Popen[bytes]:
        if self.plan["gpus_per_task"]:
            self.file(f"gpus-{self.plan['place']}", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLUX_", "PMI_", "PMIX_", "SLURM_"))
        }
        environment["SHELL"] = "/bin/sh"  # the user's could read slow files for each start script
        with open(os.path.join(self.place, "log"), "w") as log:
            broker = self.broker = subprocess.Popen(
                [
                    *(self.flux, "broker", f"--config-path={self.folder}/flux.toml"),
                    *(f"-Shostname=node{self.plan['place']}", f"-Srundir={self.place}"),
                    *("-Stbon.topo=kary:0", *words),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return broker

    # The head.

    def head(self) -> int:
        plan = self.plan
        program = plan["command"][0]
        if shutil.which(program) is None:
            raise _Failed(f"{program}: command not found on the job's PATH", 127)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        # Nobody else gets this port as long as this socket has it. Flux may listen on it.
        with socket.socket() as port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("", 0))
            self.write(port.getsockname()[1])
            said = os.path.join(self.place, "said")
            os.mkfifo(said)
            reader = os.open(said, os.O_RDWR)  # open for writing, too, so that it never ends
            words = ("sh", "-c", _FIRST, "sh", self.flux, self.folder, self.place)
            return self.follow(reader, self.start_broker(*words))

    def follow(self, reader: int, broker: subprocess.Popen[bytes]) -> int:
        """Pass signals on until the job has ended. Return its exit code."""
        deadline, told = time.monotonic() + _CONNECTING, b""
        while True:
            if self.wait(0.5, reader):
                told += os.read(reader, 4096)
            while b"\n" in told:
                text, _, told = told.partition(b"\n")
                what, value = text.decode().split()
                if what == "began":
                    self.job = value
                else:
                    return self.ended(int(value))
            if broker.poll() is not None:
                raise _Failed(f"the Flux broker has ended: {self.log()}")
            if self.job:
                while self.received:
                    self.pass_on(self.received.pop(0))
                continue
            for number in self.received:
                if number in _DEADLY:
                    name = signal.Signals(number).name
                    raise _Failed(f"got {name} before it began", 128 + number)
            failed = os.path.join(self.folder, "failed")
            if os.path.exists(failed):
                with open(failed) as file:
                    raise _Failed(f"a node cannot take part: {file.read()}")
            if time.monotonic() > deadline:
                raise _Failed(
                    f"its {self.plan['nodes']} nodes have not found one another within "
                    f"{_CONNECTING:g} s: {self.log()}"
                )

    def pass_on(self, number: int) -> None:
        uri = f"local://{self.place}/local-0"
        subprocess.run(
            [self.flux, "job", "kill", "-s", str(int(number)), self.job],
            env={**os.environ, "FLUX_URI": uri},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,  # the job may be over
        )

    def ended(self, code: int) -> int:
        """Show what Flux has said about the job, except about its output files and exit code."""
        if not self.job:
            raise _Failed(f"Flux does not take the job: {self.log()}")
        with contextlib.suppress(OSError), open(os.path.join(self.place, "words")) as file:
            words = file.read()
            for text in words.splitlines():
                if " redirected to /proc/" not in text and ": task(s) " not in text:
                    print(text, file=sys.stderr)
            killed = self.plan["nodes"] > 1 and code == 128 + signal.SIGKILL
            if killed or " node failure on node" in words:
                self.lost()
        return code

    def lost(self) -> None:
        """Wait for the end of the pilot if a node may be lost: then the job has no own end."""
        sys.stderr.flush()
        deadline = time.monotonic() + _ENDING
        while time.monotonic() < deadline:
            self.wait(1.0)

    def log(self) -> str:
        try:
            with open(os.path.join(self.place, "log"), errors="replace") as file:
                return " / ".join(file.read().splitlines()[-5:]) or "it has said nothing"
        except OSError as error:
            return str(error)

    def write(self, port: int) -> None:
        """Write the configuration, which the other parts wait for."""
        plan, folder = self.plan, self.folder
        subprocess.run(
            [self.flux, "keygen", f"{folder}/key"], check=True, stdout=subprocess.DEVNULL
        )
        with open(f"{folder}/tasks.lua", "w") as file:
            file.write(_TASKS % (plan["gpus_per_task"], folder))
        with open(f"{folder}/job.json", "w") as file:
            os.fchmod(file.fileno(), 0o600)
            json.dump(self.jobspec(), file)
        nodes = range(1, plan["nodes"])
        first = f'{{host = "node0", bind = "tcp://*:{port}", connect = "tcp://{_name()}:{port}"}}'
        hosts = ", ".join([first, *(f'{{host = "node{number}"}}' for number in nodes)])
        cores = ",".join(map(str, range(plan["cores"])))  # "0-0" is invalid
        self.file(
            "flux.toml",
            f"""
[bootstrap]
curve_cert = "{folder}/key"
hosts = [{hosts}]
[resource]
noverify = true
config = [{{hosts = "node[0-{plan["nodes"] - 1}]", cores = "{cores}"}}]
[ingest.validator]
disable = true
[ingest.frobnicator]
disable = true
""",
        )

    def jobspec(self) -> dict[str, Any]:
        plan = self.plan
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_OWN)
        }
        environment["ENSEMBLE_TASK_COUNT"] = str(plan["tasks"])
        environment["ENSEMBLE_CORES"] = str(plan["cores_per_task"])
        if plan["threads"] is None and environment.get("OMP_NUM_THREADS") == str(plan["cores"]):
            environment["OMP_NUM_THREADS"] = str(plan["cores_per_task"])
        each = -(-plan["tasks"] // plan["nodes"])
        even = not plan["tasks"] % plan["nodes"]
        share = [{"type": "core", "count": plan["cores_per_task"]}]
        slot = {"type": "slot", "label": "task", "count": each, "with": share}
        streams = {
            name: {"type": "file", "path": f"/proc/{os.getpid()}/fd/{number}"}
            for name, number in (("stdout", 1), ("stderr", 2))
        }
        # The tasks have the cores and GPUs of this process.
        shell = {
            "cpu-affinity": "off",
            "gpu-affinity": "off",
            "userrc": f"{self.folder}/tasks.lua",
            "output": {**streams, "mode": "append"},
        }
        return {
            "version": 1,
            "resources": [{"type": "node", "count": plan["nodes"], "with": [slot]}],
            "tasks": [
                {
                    "command": plan["command"],
                    "slot": "task",
                    "count": {"per_slot": 1} if even else {"total": plan["tasks"]},
                }
            ],
            "attributes": {
                "system": {
                    "duration": 0,
                    "cwd": os.getcwd(),
                    "environment": environment,
                    "shell": {"options": shell},
                }
            },
        }

    # Another part.

    def other(self) -> int:
        """Take part until the head's broker is gone. The supervisor may end this before."""
        config = os.path.join(self.folder, "flux.toml")
        while not os.path.exists(config):
            if any(number in _DEADLY for number in self.received):
                return 0
            self.wait(_LOOK)
        try:
            broker = self.start_broker()
        except OSError as error:
            self.file("failed", f"{_name()}: {error}")
            raise
        # SIGTERM comes when the head is over. If it comes because the pilot ends, the head passes
        # it on, and this part goes on as long as the head does.
        while broker.poll() is None and not (self.received and self.head_is_over()):
            self.wait(_LOOK if self.received else 60.0)
        return 0

    def head_is_over(self) -> bool:
        try:
            os.close(os.open(os.path.join(self.folder, "flux.toml"), os.O_RDONLY))
        except FileNotFoundError:
            return True
        except OSError:
            pass  # the file system is away
        return False


def _name() -> str:
    return socket.gethostname()


def main() -> None:
    """Run a part. The argument is the plan of ``flux_part``, as JSON."""
    plan = json.loads(sys.argv[1])
    part = Part(plan)
    try:
        code = part.other() if plan["place"] else part.head()
    except _Failed as failed:
        print(f"ensemble: {failed}", file=sys.stderr)
        code = failed.code
    except (OSError, subprocess.SubprocessError) as error:
        print(f"ensemble: cannot start Flux: {error}", file=sys.stderr)
        code = 1
    finally:
        part.close()
        if not plan["place"]:
            shutil.rmtree(plan["folder"], ignore_errors=True)
    for number in _SIGNALS:  # the supervisor takes a failure of what handles them for its own end
        if number not in part.received:
            signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    main()
