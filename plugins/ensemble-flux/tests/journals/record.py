"""Record the journals in this folder. Run it inside a Flux instance; see the README.

Jobs of the runs ``night`` and ``other`` are submitted like the executor's. Flux's commands submit
the rest, the foreign jobs.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ensemble_flux.bindings import bindings
from ensemble_flux.jobspec import Jobspecs

from ensemble_core import Job

flux: Any = bindings()
handle = flux.Flux()
streaming = importlib.import_module("flux.constants").FLUX_RPC_STREAMING
folder = Path(__file__).parent
ALONE = {"flux": {"exclusive": True}}


class Recorder:
    """Records a stream of ``job-manager.events-journal`` in a thread."""

    def __init__(self, *, full: bool) -> None:
        self.responses: list[dict[str, Any]] = []
        self._full = full
        threading.Thread(target=self._read, daemon=True).start()
        wait(lambda: any(not response["events"] for response in self.responses))

    def _read(self) -> None:
        future = flux.Flux().rpc("job-manager.events-journal", {"full": self._full}, 0, streaming)
        while True:
            try:
                self.responses.append(json.loads(future.get_str()))
            except OSError:
                return
            future.reset()

    def has(self, job: int, name: str) -> bool:
        return any(
            entry["name"] == name
            for response in self.responses
            if response["id"] == job
            for entry in response["events"]
        )

    def write(self, name: str) -> None:
        with (folder / name).open("w") as file:
            for response in self.responses:
                text = nameless(json.dumps(response, separators=(",", ":")))
                file.write(re.sub(r'"cwd":"[^"]*"', '"cwd":"/home/user"', text) + "\n")


def nameless(text: str) -> str:
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node0", text)


def resources(name: str) -> None:
    """Record the instance's report about its nodes."""
    (folder / name).write_text(nameless(handle.rpc("resource.status").get_str()) + "\n")


def wait(done: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


def command(*words: str, check: bool = True) -> str:
    print("$", *words, flush=True)
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip()


def stranger(*words: str) -> int:
    return int(flux.job.JobID(command("flux", "submit", *words)))


jobspecs = {
    run: Jobspecs(run, f"id-of-{run}", {"PATH": os.environ["PATH"]}, "/tmp")
    for run in ("night", "other")
}


def ours(name: str, *words: str, run: str = "night", **fields: Any) -> int:
    group, _, index = name.partition(".")
    job = Job(id=name, group=group, index=int(index), command=words, **fields)
    print("submit", name, *words, fields or "", flush=True)
    return int(flux.job.submit(handle, jobspecs[run].write(job), urgency=job.urgency))


def over(stream: Recorder, *jobs: int) -> None:
    for job in jobs:
        wait(lambda job=job: stream.has(job, "clean"))  # type: ignore[misc]  # mypy 1: default args


def day() -> None:
    """Record an ordinary day, with streams opened at its beginning, middle and end."""
    live = Recorder(full=False)
    resources("day-resources.json")
    stranger_id = stranger("true")
    over(live, stranger_id)
    done = [
        ours("good.0", "true"),
        ours("code.0", "sh", "-c", "exit 3"),
        ours("signal.0", "sh", "-c", "kill -SEGV $$"),
        ours("missing.0", "no-such-command"),
        ours("large.0", "true", nodes=99, tasks=99),
        ours("wide.0", "true", nodes=3, tasks=6),
        ours("limit.0", "sleep", "60", duration=0.3),
        ours("good.0", "true", run="other"),
        stranger("-n4", "true"),
        stranger("-N2", "--exclusive", "true"),
    ]
    command("flux", "submit", "--queue=none", "true", check=False)  # never gets an id
    command("flux", "submit", "--dependency=afterok:ƒ1", "true", check=False)  # loses its id
    over(live, *done)
    held = ours("held.0", "true", urgency=0)
    long = ours("long.0", "sleep", "600", nodes=4, tasks=4, options=ALONE)
    wait(lambda: live.has(long, "start"))
    after = stranger(f"--dependency=afterok:{long}", "true")
    pending = ours("pending.0", "true", nodes=2, tasks=2)
    waiting = stranger("-n2", "--urgency=5", "true")
    command("flux", "job", "memo", str(long), "mesh=fine")
    command("flux", "job", "raise", "-s", "3", "-t", "note", "-m", "slow", str(long))
    command("flux", "job", "urgency", str(waiting), "20")
    command("flux", "job", "urgency", str(held), "10")
    wait(lambda: live.has(pending, "priority") and live.has(after, "dependency-add"))
    command("flux", "job", "memo", "--volatile", str(long), "seen=once")
    middle = Recorder(full=True)
    active = Recorder(full=False)
    command("flux", "cancel", str(pending))
    command("flux", "cancel", str(long))
    over(live, long, pending, after, waiting, held)
    last = [ours("last.0", "true"), stranger("sh", "-c", "exit 1")]
    over(live, *last)
    over(middle, *last)
    over(active, *last)
    live.write("day.jsonl")
    middle.write("day-middle-full.jsonl")
    active.write("day-middle-active.jsonl")
    Recorder(full=True).write("day-end-full.jsonl")
    Recorder(full=False).write("day-end-active.jsonl")


def restart() -> None:
    """Record a reload of the job manager while one job runs, one waits and one is held."""
    before = Recorder(full=False)
    over(before, ours("good.0", "true"))
    long = ours("long.0", "sleep", "600", nodes=4, tasks=4, options=ALONE)
    wait(lambda: before.has(long, "start"))
    pending = ours("pending.0", "true")
    held = stranger("--urgency=0", "true")
    wait(lambda: before.has(pending, "priority") and before.has(held, "priority"))
    before.write("restart-before.jsonl")
    command("flux", "module", "unload", "sched-simple")
    command("flux", "module", "unload", "job-exec", check=False)
    command("flux", "module", "reload", "job-manager")
    command("flux", "module", "load", "job-exec", check=False)
    command("flux", "module", "load", "sched-simple")
    after = Recorder(full=True)
    command("flux", "cancel", str(long), check=False)
    over(after, long, pending)
    after.write("restart-after.jsonl")


def failure() -> None:
    """Record the death of a broker while a job runs on all four nodes."""
    live = Recorder(full=False)
    resources("failure-resources.json")
    wide = ours("wide.0", "sleep", "2", nodes=4, tasks=4)
    wait(lambda: live.has(wide, "start"))
    pids = command("flux", "exec", "-l", "flux", "getattr", "broker.pid").splitlines()
    os.kill(next(int(line[2:]) for line in pids if line.startswith("3:")), signal.SIGKILL)
    over(live, wide)
    live.write("failure.jsonl")


{"day": day, "restart": restart, "failure": failure}[sys.argv[1]]()
sys.stdout.flush()
os._exit(0)  # the streams' threads never end
