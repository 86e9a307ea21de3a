"""Node that runs the containers of pods as local processes, which tests can kill.

It communicates only with the API server, over HTTP: it binds pods, mounts their volumes, starts
their containers, and reports their status. So it works with the stand-in and with a real control
plane without scheduler and kubelet.

The folders of containers have other paths on this machine, which replace them in commands,
variables and mounted files. As in real containers, the first process gets SIGTERM only if it has a handler. A
name of a headless Service resolves while an EndpointSlice lists it as ready. A script stands in for
Flux: one broker runs the command; the others find it by name and end with it.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ensemble_testing.processes import process_files

from .endpoints import SERVICE
from .jobs import INDEX
from .pods import pod_status
from .store import now

__all__ = ["Node", "Proxy", "python"]

Object = dict[str, Any]
#: Variable in the environment of all processes of a pod, and the name of this node.
_POD, _NODE = "POD_OF_NODE", "node-of-tests"
#: Seconds between the kubelet's listings of containers. It misses shorter changes.
_RELIST = 1.0
_MERGE = "application/merge-patch+json"

#: Replacement of ``flux start`` in a MiniCluster. Without a command it is a worker, which ends with
#: the broker that it found, or, if the queue outlives that broker's container, once the command has
#: succeeded. Other commands of ``flux`` do nothing.
_FLUX = """\
#!/bin/sh
[ "$1" = start ] || exit 0
shift
while [ $# -gt 0 ]; do
  case $1 in --config) shift 2 ;; -*) shift ;; *) break ;; esac
done
lead=$NODE_BROKERS/$NODE_LEAD
if [ $# -gt 0 ]; then
  echo "$$" > "$lead"
  "$@"
  code=$?
  [ "$code" != 0 ] && [ -n "$NODE_OUTLIVED" ] || : > "$lead.left-$$"
  [ "$(cat "$lead")" = "$$" ] && rm "$lead"
  exit "$code"
fi
while :; do
  until [ -e "$NODE_NAMES/$NODE_LEAD.$NODE_DOMAIN" ] && [ -e "$lead" ]; do sleep 0.1; done
  read -r broker < "$lead" || exit 1
  echo "$(hostname) joined $broker" >> "$NODE_BROKERS/joined"
  while kill -0 "$broker" 2>/dev/null && [ ! -e "$lead.left-$broker" ]; do sleep 0.1; done
  [ -e "$lead.left-$broker" ] && exit 0
  [ -n "$NODE_OUTLIVED" ] || exit 1
  sleep 0.1
done
"""


def python(module: str) -> list[str]:
    """Return the command that calls a module's ``main``."""
    return [sys.executable, "-c", f"from {module} import main; main()"]


class Proxy:
    """HTTP proxy on loopback that resolves every name to this machine.

    It replaces a cluster's name service, which resolves the names of Services to their pods.
    """

    def __init__(self) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = self.rfile.readline().split()
                if len(asked) < 2:  # the client is gone
                    return
                port = int(asked[1].rpartition(b":")[2])
                while self.rfile.readline().strip():
                    pass
                try:
                    there = socket.create_connection(("127.0.0.1", port))
                except OSError:
                    self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                    return
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_pump, args=(there, self.connection), daemon=True)
                back.start()
                _pump(self.connection, there)
                back.join()
                there.close()

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class _Api:
    """Client of the API server that a kubeconfig names."""

    def __init__(self, kubeconfig: Path) -> None:
        found = yaml.safe_load(kubeconfig.read_text())
        cluster = found["clusters"][0]["cluster"]
        self.url, self.token = cluster["server"], found["users"][0]["user"]["token"]
        self.authority = cluster.get("certificate-authority")
        data = cluster.get("certificate-authority-data")
        self.data = base64.b64decode(data).decode() if data else None
        self._tls = None
        if self.url.startswith("https"):
            self._tls = ssl.create_default_context(cafile=self.authority, cadata=self.data)

    def __call__(self, method: str, path: str, body: object = None, kind: str = "") -> Object:
        """Return the answer. Raises :class:`LookupError` if the request fails, for example because
        the object was deleted or changed meanwhile."""
        request = urllib.request.Request(
            self.url + path, method=method, data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}",
                     "Content-Type": kind or "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
                found: Object = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            raise LookupError(f"{method} {path}: {error.code} {error.read()[:300]!r}") from None
        except (OSError, http.client.HTTPException) as error:
            raise LookupError(f"{method} {path}: {error}") from None


class _Waits(Exception):
    """Raised if a pod cannot start yet."""


class _Pod:
    """Pod on the node. ``root`` contains its folders."""

    def __init__(self, node: Node, pod: Object) -> None:
        metadata = pod["metadata"]
        self.node, self.name, self.namespace = node, metadata["name"], metadata["namespace"]
        self.uid, self.job = metadata["uid"], metadata.get("labels", {}).get("job-name", "")
        self.index = metadata.get("labels", {}).get(INDEX, "0")
        self.pod = pod
        self.root = node.folder / "pods" / self.name
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.states: dict[str, Object] = {}
        self.ready: dict[str, bool] = {}
        #: Start time of each container.
        self.since: dict[str, float] = {}
        self.restarts: dict[str, int] = {}
        self.address = node.address()
        #: For each container.
        self.environments: dict[str, dict[str, str]] = {}
        self.moved: dict[str, dict[str, str]] = {}
        self.temporary: dict[str, str] = {}
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self._bound = bool(pod["spec"].get("nodeName"))
        self._begun = self._over = False
        self._wait = 0.0
        self._said: Object = {}
        self._end: float | None = None

    def look(self, pod: Object) -> None:
        self.pod = pod
        leaving = "deletionTimestamp" in pod["metadata"]
        if not self._bound:
            if leaving:
                return
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": self.name}}
            target = {"apiVersion": "v1", "kind": "Node", "name": _NODE}
            self.node.api("POST", f"{self._path}/binding", {**body, "target": target})
            self._bound = True
        if leaving:
            self._leave()
        elif not self._begun and time.monotonic() >= self._wait:
            try:
                self._begin()
                self._begun = True
            except _Waits as why:
                self._wait = time.monotonic() + 1.0
                self._event("FailedMount", str(why))
        else:
            self._restart()
        self._see()

    # -- life cycle --------------------------------------------------------------------------------

    def _begin(self) -> None:
        spec = self.pod["spec"]
        texts = {each["name"]: self._volume(each) for each in spec.get("volumes", ())}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            folder = self.root / container["name"]
            folder.mkdir(parents=True, exist_ok=True)
            moved = {**self.node.images, "/dev/termination-log": str(folder / "termination-log")}
            (folder / "termination-log").touch()
            for mount in container.get("volumeMounts", ()):
                moved[mount["mountPath"].rstrip("/")] = str(texts[mount["name"]][0])
            # /tmp stays in files and commands, because tests have their folders there. In variables
            # it is the pod's own, so that pods don't overwrite each other's files.
            self.temporary[container["name"]] = moved.pop("/tmp", "/tmp")
            self.moved[container["name"]] = moved
        # Mounted files name folders too. All containers that mount a file share it.
        every = {path: place for each in self.moved.values() for path, place in each.items()}
        first = self._main()["name"]
        every["/dev/termination-log"] = self.moved[first]["/dev/termination-log"]
        for place, files in texts.values():
            for name, data in files.items():
                target = place / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                target.write_bytes(data if data.startswith(b"\0") else _moved_bytes(data, every))
                target.chmod(0o700)
        for container in spec.get("initContainers", ()):
            self._start(container).wait(60)
            self.states[container["name"]] = _ended(self.processes[container["name"]].returncode)
        for container in spec["containers"]:
            self._start(container)

    def _restarts(self, name: str) -> bool:
        """Return whether a container that has ended starts again, as its pod's policy says."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if policy == "OnFailure":
            return self.processes[name].returncode != 0
        return bool(policy == "Always")

    def _restart(self) -> None:
        """Start containers again that have ended, after a pause that does not grow.

        They are in the same pod, so its volumes keep their files.
        """
        for container in self.pod["spec"]["containers"]:
            name = container["name"]
            waits = "waiting" in self.states.get(name, {})
            if waits and time.monotonic() >= self.since[name] + _RELIST:
                self._start(container)
                self.restarts[name] = self.restarts.get(name, 0) + 1

    def _main(self) -> Object:
        containers: list[Object] = self.pod["spec"]["containers"]
        return next((each for each in containers if each["name"] == self.job), containers[0])

    def _volume(self, volume: Object) -> tuple[Path, dict[str, bytes]]:
        """Return the folder of a volume, and the files to write there."""
        name, files = volume["name"], {}
        place = self.root / "volumes" / name
        where = f"/api/v1/namespaces/{self.namespace}"
        if "persistentVolumeClaim" in volume:
            place = self.node.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
        elif "configMap" in volume or "secret" in volume:
            # Shared by all replacements of a pod: a run identifies its file by the path.
            place = self.node.folder / "mounts" / f"{self.job or self.name}-{self.index}" / name
            kind = "configMap" if "configMap" in volume else "secret"
            source = volume[kind]
            called = source.get("name") or source.get("secretName")
            try:
                found = self.node.api("GET", f"{where}/{kind.lower()}s/{called}")
            except LookupError:
                why = f'MountVolume.SetUp failed for volume "{name}" : {kind.lower()} "{called}"'
                raise _Waits(f"{why} not found") from None
            data = found.get("data") or {}
            keys = {each["key"]: each["path"] for each in source.get("items") or ()}
            for key, path in (keys or {key: key for key in data}).items():
                text = data[key]
                files[path] = base64.b64decode(text) if kind == "secret" else text.encode()
        place.mkdir(parents=True, exist_ok=True)
        return place, files

    def _start(self, container: Object) -> subprocess.Popen[bytes]:
        name, spec = container["name"], self.pod["spec"]
        moved = self.moved[name]
        every = {**moved, "/tmp": self.temporary[name]}
        own = {e["name"]: _moved(self._value(e), every) for e in container.get("env", ())}
        host, domain = spec.get("hostname", self.name), spec.get("subdomain", "")
        lead = host.rpartition("-")[0] + "-0"
        places = {
            "NODE_NAMES": str(self.node.names),
            "NODE_BROKERS": str(self.node.brokers(self.namespace, self.job)),
            "NODE_LEAD": lead,
            "NODE_DOMAIN": f"{domain}.{self.namespace}",
            "NODE_OUTLIVED": "1" if self.node.outlived else "",
            "HOSTNAME": host,
        }
        self.environments[name] = {**self.node.environment, **places, **own, _POD: self.name}
        words = [*container.get("command", ()), *container.get("args", ())]
        words = [re.sub(r"\$\((\w+)\)", lambda m: own.get(m[1], m[0]), each) for each in words]
        words = [_moved(each, {**moved, "0.0.0.0": "127.0.0.1"}) for each in words]
        if words[:1] == ["ensemble-server"]:
            words.append(f"--option=kubeconfig={self._kubeconfig()}")
        folder = self.root / name
        self.processes[name] = subprocess.Popen(
            words or ["sleep", "infinity"], env=self.environments[name], cwd=folder,
            stdout=(folder / "log").open("ab"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.states[name] = {"running": {"startedAt": now()}}
        self.since[name] = time.monotonic()
        return self.processes[name]

    def _value(self, variable: Object) -> str:
        field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if field is None:
            return str(variable.get("value", ""))
        if field == "metadata.namespace":
            return str(self.namespace)
        return str(self.index)

    def _kubeconfig(self) -> Path:
        """Write a kubeconfig for the pod's service account; return its path."""
        account: str = self.pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token: str = self.node.api("POST", path, body)["status"]["token"]
        api = self.node.api
        cluster: Object = {"server": api.url}
        cluster |= {"certificate-authority": api.authority} if api.authority else {}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        file: Path = self.root / "kubeconfig"
        file.write_text(json.dumps(found))
        return file

    def _leave(self) -> None:
        """Stop its containers gracefully; kill them after the grace period."""
        if self._end is None:
            grace = self.pod["metadata"].get("deletionGracePeriodSeconds") or 0
            self._end = time.monotonic() + min(grace, self.node.grace)
            threading.Thread(target=self._ask_to_end, daemon=True).start()
        elif time.monotonic() > self._end:
            for name, process in self.processes.items():
                if process.poll() is None:
                    process.kill()
                    self.states.setdefault(name, {})
            _kill_all(self.name)

    def _ask_to_end(self) -> None:
        for container in self.pod["spec"]["containers"]:
            process = self.processes.get(container["name"])
            if process is None or process.poll() is not None:
                continue
            hook = ((container.get("lifecycle") or {}).get("preStop") or {}).get("exec")
            if hook:
                words = [_moved(each, self.moved[container["name"]]) for each in hook["command"]]
                with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                    subprocess.run(
                        words, env=self.environments[container["name"]], check=False,
                        timeout=self.node.grace, capture_output=True,
                    )  # fmt: skip
            if process.poll() is None and _catches(process.pid, signal.SIGTERM):
                process.terminate()

    def _see(self) -> None:
        """Report a changed status; remove the pod if it has ended and is being deleted."""
        leaving = "deletionTimestamp" in self.pod["metadata"]
        initial = {each["name"] for each in self.pod["spec"].get("initContainers", ())}
        for name, process in self.processes.items():
            if process.poll() is None or "terminated" in self.states[name]:
                continue
            if leaving or name in initial or not self._restarts(name):
                told = self.root / name / "termination-log"
                self.states[name] = _ended(process.returncode, told.read_text()[:4096])
            elif "running" in self.states[name]:
                self.states[name] = {"waiting": {"reason": "CrashLoopBackOff"}}
                self.since[name] = time.monotonic()
        for container in self.pod["spec"]["containers"]:
            old = time.monotonic() - self.since.get(container["name"], 0.0) >= _RELIST
            self.ready[container["name"]] = old and self._probed(container)
        status = pod_status(self.pod, self.states, self.ready, self.address, self.restarts)
        over = status["phase"] in ("Succeeded", "Failed")
        if over and not self._over:
            # A container that ends takes all its processes with it.
            self._over = True
            if not self.node.outlived:
                _kill_all(self.name)
        if status != self._said:
            self.node.api("PATCH", f"{self._path}/status", {"status": status}, _MERGE)
            self._said = status
            self.pod["status"] = status
        gone = over or not self.processes
        if leaving and gone:
            _kill_all(self.name)
            self.node.api("DELETE", f"{self._path}?gracePeriodSeconds=0")

    def _probed(self, container: Object) -> bool:
        probe = (container.get("readinessProbe") or {}).get("httpGet")
        if not probe:
            return True
        ports = {each.get("name"): each["containerPort"] for each in container.get("ports", ())}
        port = ports.get(probe["port"], probe["port"])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe['path']}", timeout=2) as a:
                return bool(a.status == 200)
        except OSError:
            return False

    def _event(self, reason: str, message: str) -> None:
        about = {"kind": "Pod", "name": self.name, "namespace": self.namespace, "uid": self.uid}
        body = {
            "metadata": {"generateName": f"{self.name}.", "namespace": self.namespace},
            "involvedObject": {"apiVersion": "v1", **about},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "source": {"component": "kubelet"},
        }
        with contextlib.suppress(LookupError):
            self.node.api("POST", f"/api/v1/namespaces/{self.namespace}/events", body)


class Node:
    """Node that runs the pods of ``namespace`` until it is closed.

    ``folder`` is for volumes, ``environment`` is set in every container, and ``grace`` limits the
    grace periods of pods, in seconds. With ``outlived``, a queue outlives the container that
    started it, unlike in a cluster; this is for tests of other things. ``images`` maps folders in
    all images to local folders.
    """

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        environment: Mapping[str, str],
        *,
        namespace: str = "default",
        grace: float = 30.0,
        outlived: bool = False,
        images: Mapping[str, Path] | None = None,
    ) -> None:
        self.api, self.folder, self.namespace = _Api(kubeconfig), folder, namespace
        self.grace, self.outlived = grace, outlived
        self.images = {path: str(place) for path, place in (images or {}).items()}
        self.names = folder / "names"
        programs = folder / "bin"
        for each in (self.names, programs):
            each.mkdir(parents=True, exist_ok=True)
        server = " ".join(f"'{each}'" for each in python("ensemble_service.commands.server"))
        for name, text in (
            ("flux", _FLUX),
            ("hostname", '#!/bin/sh\necho "$HOSTNAME"\n'),
            ("ensemble-server", f'#!/bin/sh\nexec {server} "$@"\n'),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.environment = {**environment, "PATH": f"{programs}:{environment['PATH']}"}
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._pods: dict[str, _Pod] = {}
        self._count = 0
        self._due = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="node", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(60)
        for each in self._pods.values():
            _kill_all(each.name)
            for process in each.processes.values():
                process.wait()

    def address(self) -> str:
        self._count += 1
        return f"10.244.{self._count // 250}.{self._count % 250 + 1}"

    def brokers(self, namespace: str, job: str) -> Path:
        """Return the folder in which brokers of a MiniCluster register."""
        found = self.folder / "brokers" / f"{namespace}-{job}"
        found.mkdir(parents=True, exist_ok=True)
        return found

    def joined(self, job: str) -> list[str]:
        """Return the workers of a MiniCluster that found their broker, once for each time."""
        file = self.brokers(self.namespace, job) / "joined"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    # -- killing -----------------------------------------------------------------------------------

    def kill_service(self, name: str) -> bool:
        """Kill the service's process; return whether there was one."""
        return self._each(lambda pod: not pod.job and pod.name.startswith(f"{name}-"), _kill_first)

    def kill_run(self, job: str) -> bool:
        """Kill all processes in the pods of a run's Job; return whether there were any."""
        return self._each(lambda pod: pod.job == job, lambda pod: _kill_all(pod.name))

    def kill_pod(self, job: str) -> bool:
        """Kill what Flux runs in a member's first pod, but not the queue; return whether there was
        any."""
        return self._each(lambda pod: pod.job == job and pod.index == "0", _kill_started)

    def kill_container(self, job: str) -> bool:
        """Kill everything in a member's first pod; return whether there was anything."""
        return self._each(
            lambda pod: pod.job == job and pod.index == "0", lambda pod: _kill_all(pod.name)
        )

    def drain(self, job: str, index: int = 0) -> bool:
        """Delete a pod of a Job, as if its node were drained; return whether there was one."""
        return self._each(
            lambda pod: pod.job == job and pod.index == str(index),
            lambda pod: bool(
                self.api("DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
            ),
        )

    def _each(self, which: Any, kill: Any) -> bool:
        with self._lock:
            found = [
                pod
                for pod in self._pods.values()
                if which(pod) and any(each.poll() is None for each in pod.processes.values())
                and "deletionTimestamp" not in pod.pod["metadata"]
            ]  # fmt: skip
            done = [kill(pod) for pod in found]
            return any(done)

    # -- one round ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._ended.wait(0.15):
            with self._lock:
                try:
                    self._look()
                except LookupError as error:  # retry in the next round
                    self.problems.append(str(error))

    def _beat(self) -> None:
        """Register this node and report it as ready, so that a control plane keeps its pods. The
        stand-in has no nodes."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 10
        with contextlib.suppress(LookupError):
            try:
                self.api("GET", f"/api/v1/nodes/{_NODE}")
            except LookupError:
                body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}}
                self.api("POST", "/api/v1/nodes", body)
            ready = {"type": "Ready", "status": "True", "reason": "Played", "message": ""}
            ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
            path = f"/api/v1/nodes/{_NODE}"
            self.api("PATCH", f"{path}/status", {"status": {"conditions": [ready]}}, _MERGE)

    def _look(self) -> None:
        self._beat()
        self._resolve()
        there = set()
        for pod in self.api("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]:
            uid = pod["metadata"]["uid"]
            there.add(uid)
            mine = self._pods.get(uid)
            if mine is None:
                mine = self._pods[uid] = _Pod(self, pod)
            try:
                mine.look(pod)
            except LookupError as error:
                self.problems.append(str(error))
        for uid in self._pods.keys() - there:
            _kill_all(self._pods.pop(uid).name)

    def _resolve(self) -> None:
        """Keep a file for each name that the cluster's name service would resolve."""
        root = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        known = set()
        for each in self.api("GET", root)["items"]:
            service = each["metadata"].get("labels", {}).get(SERVICE, "")
            for endpoint in each.get("endpoints") or ():
                if endpoint.get("hostname") and endpoint["conditions"].get("ready"):
                    known.add(f"{endpoint['hostname']}.{service}.{self.namespace}")
        there = {each.name for each in self.names.iterdir()}
        for name in known - there:
            (self.names / name).touch()
        for name in there - known:
            (self.names / name).unlink()


def _ended(code: int, message: str = "") -> Object:
    code = 128 - code if code < 0 else code
    told = {"message": message} if message else {}
    reason = "Error" if code else "Completed"
    ended = {"exitCode": code, "reason": reason, "finishedAt": now(), **told}
    return {"terminated": ended}


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, as a container's first one needs."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)  # type: ignore[index]
    return bool(caught >> (number - 1) & 1)


def _kill_first(pod: _Pod) -> bool:
    for process in pod.processes.values():
        process.kill()
        process.wait()
    return True


def _kill_started(pod: _Pod) -> bool:
    """Kill the script that a broker started, and the run that the script follows."""
    found = []
    mark = f"{_POD}={pod.name}\0".encode()
    mine = {pid for pid, environment in process_files("environ") if mark in environment}
    for pid, command in process_files("cmdline"):
        words = command.split(b"\0")
        if pid in mine and words[1:2] and words[1].endswith(b"/start.sh"):
            found.append(pid)
    if not found:
        return False
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)  # so that it starts nothing meanwhile
    begun = []
    for pid in found:
        with contextlib.suppress(OSError):
            begun += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    with contextlib.suppress(OSError, ValueError):
        file = pod.environments[pod.job]["ENSEMBLE_PID"]
        begun += Path(file).read_text().split()  # empty while it is being written
    for each in (*found, *map(int, begun)):
        with contextlib.suppress(OSError):
            os.kill(each, signal.SIGKILL)
    return True


def _kill_all(pod: str) -> bool:
    """Kill all processes of a pod, until none is left; return whether there were any."""
    mark = f"{_POD}={pod}\0".encode()
    left, any_ = True, False
    while left:
        left = False
        for pid, environment in process_files("environ"):
            if mark in environment:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    left = any_ = True
    return any_


def _moved(text: str, moved: Mapping[str, str]) -> str:
    """Return the text with these folders replaced by those of this machine, in one pass."""
    longest = sorted(filter(None, moved), key=len, reverse=True)
    pattern = "|".join(f"{re.escape(each)}(?![\\w-])" for each in longest)
    return re.sub(pattern, lambda found: moved[found[0]], text) if longest else text


def _moved_bytes(data: bytes, moved: Mapping[str, str]) -> bytes:
    try:
        return _moved(data.decode(), moved).encode()
    except UnicodeDecodeError:
        return data
