"""Fixtures of the executor's tests: a simulated and a real Flux instance.

The real instance is a small MiniCluster on this machine: brokers configured like those of the Flux
Operator's pods, started and killed one by one. ``flux`` is taken from ``ENSEMBLE_FLUX_PREFIX/bin``
or from the PATH. Without ``flux`` or ensemble-flux, the tests that need it are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from ensemble_minicluster.cluster import Patience, to_ranks
from ensemble_minicluster.executor import MiniCluster, Part
from ensemble_testing.executor import Session, wait_until
from ensemble_testing.fakes import FakeExecutor

from ensemble_core import (
    EnsembleError,
    Executor,
    ExecutorError,
    Resized,
    ResizeOutcome,
    Resources,
    executor_record,
)

# The test process may ignore signals (nohup and "&" do), but its children must handle them.
for _signal in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(
            _signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL
        )


class Instance:
    """Simulated Flux instance with a handle. The test sets which nodes are up and where jobs
    are.
    """

    def __init__(self, size: int) -> None:
        self.online = set(range(size))
        self.drained: dict[int, str] = {}
        self.busy: set[int] = set()
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        #: Errors that requests of these topics raise.
        self.refuses: dict[str, OSError] = {}
        #: Start time of the instance.
        self.began = "1.0"

    def attr_get(self, name: str) -> str:
        assert name == "broker.starttime"
        return self.began

    def rpc(self, topic: str, payload: Mapping[str, Any] | None, nodeid: int) -> _Future:
        assert nodeid == 0
        self.asked.append((topic, payload or {}))
        return _Future(self, topic, payload or {})

    def answer(self, topic: str, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        if topic in self.refuses:
            raise self.refuses[topic]
        if topic == "resource.status":
            return {
                "online": ",".join(map(str, sorted(self.online))),
                "offline": "",
                "exclude": "",
                "drain": {str(r): {"timestamp": 1.0, "reason": w} for r, w in self.drained.items()},
            }
        if topic == "resource.sched-status":
            ranks = ",".join(map(str, sorted(self.busy)))
            lite = [{"rank": ranks, "children": {"core": "0"}}] if ranks else []
            return {"allocated": {"version": 1, "execution": {"R_lite": lite}}}
        ranks_given = to_ranks(payload["targets"])
        if topic == "resource.drain":
            if payload.get("mode") != "update" and ranks_given & self.drained.keys():
                raise FileExistsError(17, "already drained")
            for rank in ranks_given:
                self.drained.setdefault(rank, payload["reason"])
            return None
        assert topic == "resource.undrain"
        for rank in ranks_given:
            del self.drained[rank]
        return None


class _Future:
    def __init__(self, instance: Instance, topic: str, payload: Mapping[str, Any]) -> None:
        self._ask = (instance, topic, payload)

    def wait_for(self, timeout: float) -> None:
        assert timeout > 0

    def get(self) -> dict[str, Any] | None:
        instance, topic, payload = self._ask
        return instance.answer(topic, payload)


class FakeFlux(FakeExecutor):
    """Executor like ``flux``: it has a handle and gauges of nodes, and cannot resize."""

    capabilities = frozenset({"submit", "cancel", "reattach", "detach"})

    def __init__(self, instance: Instance | None, size: int = 2) -> None:
        super().__init__(nodes=size if instance is None else len(instance.online))
        self.instance = instance
        self.forgot: list[str] = []

    @property
    def handle(self) -> object:
        return self.instance

    def resize(self, request: str, delta: int, *, when_busy: Any = "wait") -> None:
        raise AssertionError("flux cannot resize")

    def forget(self, jobs: Sequence[str]) -> None:
        self.forgot += jobs

    def tell_up(self, up: int) -> None:
        """Emit a gauge with the number of nodes that are up."""
        self.nodes = up
        self._send(Resources(self._clock(), {"nodes.up": up}))


class Cloud:
    """Simulated ensemble service for one member with ``size`` nodes.

    ``act`` changes the nodes; it is called with the old and the new size. The next requests raise
    the errors in ``fails``.
    """

    def __init__(self, size: int, smallest: int = 1, largest: int = 4) -> None:
        self.count, self.smallest, self.largest = size, smallest, largest
        self.requests: list[tuple[str, int]] = []
        self.answers: dict[str, tuple[int, Resized]] = {}
        self.fails: list[EnsembleError] = []
        #: Errors that the next requests raise after their change took effect.
        self.loses: list[EnsembleError] = []
        self.act: Callable[[int, int], None] = lambda before, after: None
        self.knows_size = True
        self.closed = False

    def size(self) -> int | None:
        return self.count if self.knows_size else None

    def resize(self, request: str, delta: int) -> Resized:
        self.requests.append((request, delta))
        if self.fails:
            raise self.fails.pop(0)
        if request not in self.answers:
            self.answers[request] = (delta, self._carry_out(delta))
        assert self.answers[request][0] == delta, "asked again for another change"
        if self.loses:
            raise self.loses.pop(0)
        return self.answers[request][1]

    def _carry_out(self, delta: int) -> Resized:
        before, asked = self.count, self.count + delta
        granted = min(max(asked, self.smallest), self.largest)
        self.count = granted
        self.act(before, granted)
        outcome: Literal["granted", "partial", "denied"] = "granted"
        reason = ""
        if granted == before:
            outcome, reason = "denied", "there are no more"
        elif granted != asked:
            outcome, reason = "partial", "that is the maximum"
        return Resized(outcome=outcome, before=before, asked=asked, granted=granted, reason=reason)

    def close(self) -> None:
        self.closed = True


#: Waits for tests. ``arrival`` and ``drain`` are long; a test that depends on them sets its own.
QUICK = Patience(arrival=150, drain=150, settle=0.3)


class Played:
    """Open minicluster executor over a simulated Flux, with its emitted events."""

    def __init__(
        self, folder: Path, size: int, patience: Patience = QUICK, *, handle: bool = True
    ) -> None:
        self.instance = Instance(size)
        self.flux = FakeFlux(self.instance if handle else None, size)
        self.cloud = Cloud(size)
        self._folder = folder
        self._patience = patience
        self._first: Session | None = None
        self.session = self._session()

    def _session(self) -> Session:
        executor = MiniCluster(Part("flux", lambda: self.flux), lambda: self.cloud, self._patience)
        session = Session(executor, self._folder)
        self._first = session.resume(self._first or session)
        session.__enter__()
        return session

    @property
    def tag(self) -> str:
        return self.session.tag

    @property
    def run(self) -> str:
        """The run's tag and identity."""
        return f"{self.session.tag}.{self.session.run_id}"

    def follow(self) -> None:
        """Let nodes appear and disappear as soon as the service resizes."""

        def act(before: int, after: int) -> None:
            self.instance.online |= set(range(before, after))
            self.instance.online -= set(range(after, before))
            self.flux.tell_up(after)

        self.cloud.act = act

    def looked(self, times: int = 4) -> None:
        """Wait until the executor has polled Flux ``times`` more times."""
        before = len(self.instance.asked)
        wait_until(lambda: len(self.instance.asked) >= before + times)

    def outcomes(self, request: str) -> list[ResizeOutcome]:
        events = list(self.session.events)
        return [e for e in events if isinstance(e, ResizeOutcome) and e.request == request]

    def answer(self, request: str, count: int = 1) -> ResizeOutcome:
        """Wait for the outcome of a request."""
        self.session.wait(lambda: len(self.outcomes(request)) >= count, f"the answer to {request}")
        assert len(self.outcomes(request)) == count
        return self.outcomes(request)[-1]

    def resize(self, request: str, delta: int, when_busy: Any = "wait") -> ResizeOutcome:
        """Send a request and wait for its outcome."""
        count = len(self.outcomes(request)) + 1
        self.session.executor.resize(request, delta, when_busy=when_busy)
        return self.answer(request, count)

    def warnings(self) -> list[str]:
        return [e.message for e in self.session.events if e.type == "problem"]  # type: ignore[attr-defined]

    def kill(self) -> None:
        """Simulate a kill of the controller and a resume."""
        executor = self.session.executor
        assert isinstance(executor, MiniCluster)
        executor._emit = None  # it emits nothing more
        assert executor._resizing is not None
        executor._resizing._cluster.undrain = lambda *_, **__: None  # type: ignore[method-assign]
        executor._resizing._cluster.end()
        self.flux = FakeFlux(self.instance, self.flux.nodes)
        self.session = self._session()

    def close(self) -> None:
        self.session.executor.close()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Callable[..., Played]]:
    """Yield a function that creates miniclusters over a simulated Flux; close them after the
    test.
    """
    made: list[Played] = []

    def make(size: int = 2, patience: Patience = QUICK, *, handle: bool = True) -> Played:
        made.append(Played(tmp_path, size, patience, handle=handle))
        return made[-1]

    yield make
    for each in made:
        if each.session.executor._resizing is not None:  # type: ignore[attr-defined]
            each.close()


@pytest.fixture
def cloud() -> type[Cloud]:
    return Cloud


@pytest.fixture
def undelivered() -> ExecutorError:
    return ExecutorError("the service cannot be reached", cause="refused", transient=True)


# -- real Flux -------------------------------------------------------------------------------------

_CONTROL = """
import flux, json, os, sys
handle = flux.Flux(os.environ["FLUX_START_URI"])
print(os.environ["FLUX_URI"], flush=True)
for line in sys.stdin:
    topic, payload = json.loads(line)
    try:
        handle.rpc(topic, payload).get()
    except OSError as error:
        print(error, flush=True)
    else:
        print("", flush=True)
"""


class Pods:
    """Flux instance for up to ``room`` brokers, each as in its own pod. ``size`` of them run."""

    def __init__(self, command: str, folder: Path, size: int, room: int = 4) -> None:
        self.command = command
        self._talk = threading.Lock()
        self._brokers = set(range(size))
        hosts = f"pod[0-{room - 1}]"
        (folder / "config").mkdir(parents=True)
        (folder / "state").mkdir()
        self._run(command, "keygen", "--name", "test", str(folder / "cert"))
        resources = self._run(
            command, "R", "encode", f"--hosts={hosts}", f"-r0-{room - 1}", "-c0-1"
        )
        (folder / "R").write_text(resources)
        (folder / "control.py").write_text(_CONTROL)
        (folder / "config" / "flux.toml").write_text(
            f"""
[bootstrap]
curve_cert = "{folder}/cert"
default_bind = "ipc://{folder}/%h"
default_connect = "ipc://{folder}/%h"
hosts = [{{ host = "{hosts}" }}]
[resource]
path = "{folder}/R"
noverify = true
"""
        )
        self._process = subprocess.Popen(
            [
                *(command, "start", f"--test-size={room}", f"--test-hosts={hosts}"),
                *("--test-start-mode=leader", "--test-exit-mode=leader", "--test-exit-timeout=2s"),
                *(f"--config-path={folder}/config", "-Sbroker.quorum=1", "-Stbon.topo=kary:0"),
                *(f"-Sstatedir={folder}/state", command, "python", f"{folder}/control.py"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "errors").open("w"),
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.uri = self._process.stdout.readline().strip()
        if not self.uri:
            raise RuntimeError(f"flux start gave no URI: {(folder / 'errors').read_text()}")
        for rank in range(1, size):
            self._ask("start.run", rank=rank)
        wait_until(lambda: self.online() == set(range(size)))

    @staticmethod
    def _run(*words: str, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, env=env)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def _ask(self, topic: str, **payload: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._talk:
            self._process.stdin.write(json.dumps([topic, payload]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline().strip()
        assert not answer, f"{topic} {payload}: {answer}"

    def flux(self, *words: str) -> str:
        """Return the output of a flux command in this instance."""
        return self._run(self.command, *words, env={**os.environ, "FLUX_URI": self.uri})

    def ranks(self, *states: str) -> set[int]:
        """Return the ranks in these states, from ``flux resource``."""
        return to_ranks(
            ",".join(
                self.flux(*("resource", "status", "-no", "{ranks}", "-s", ",".join(states))).split()
            )
        )

    def online(self) -> set[int]:
        offline = self.ranks("offline")
        return self.ranks("all") - offline

    def drained(self) -> set[int]:
        return self.ranks("drained", "draining")

    def resize(self, before: int, after: int) -> None:
        """Start or kill brokers, as if their pods started or ended."""
        for rank in range(before, after):
            self._ask("start.run", rank=rank)
        for rank in range(after, before):
            self._ask("start.kill", rank=rank, signum=int(signal.SIGKILL))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="session")
def flux_command() -> Iterator[str]:
    """Put Flux first on the PATH; skip the test without it or without ensemble-flux."""
    prefix = os.environ.get("ENSEMBLE_FLUX_PREFIX")
    found = str(Path(prefix, "bin", "flux")) if prefix else shutil.which("flux")
    if prefix and not Path(str(found)).is_file():
        raise RuntimeError(f"ENSEMBLE_FLUX_PREFIX names no installation of Flux: no {found}")
    if found is None:
        pytest.skip("no Flux: 'flux' is not on the PATH and ENSEMBLE_FLUX_PREFIX is not set")
    try:
        executor_record("flux")
    except EnsembleError:
        pytest.skip("no executor 'flux': pip install ensemble-flux")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(found).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        patch.delenv("FLUX_URI", raising=False)
        yield found


@pytest.fixture(scope="module")
def pods(flux_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Yield a MiniCluster of two nodes with room for four. Tests restore its size."""
    # A socket's path is limited to 107 characters.
    folder = Path(os.path.realpath("/tmp")) / f"pods-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    folder.mkdir()
    pods = Pods(flux_command, folder, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLUX_URI", pods.uri)
        yield pods
    pods.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def over_flux(pods: Pods) -> Callable[..., tuple[Executor, Cloud]]:
    """Return a function that creates miniclusters over the real executor ``flux``; the service
    moves pods.
    """

    def make(patience: Patience = QUICK) -> tuple[Executor, Cloud]:
        cloud = Cloud(2)
        cloud.act = pods.resize
        part = Part("flux", lambda: executor_record("flux").build({}))
        return MiniCluster(part, lambda: cloud, patience), cloud

    return make
