"""A node for the stand-in: containers become processes of this machine, which may be killed.

The service of an Ensemble, the first pods of its members and those of the run beside them are
started as their objects say, with the files that are mounted; only folders are elsewhere. A pod that
is deleted is asked to end first, and takes everything that was begun in it along, as a container
does. Names of Services are found by a proxy.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kubernetes_stand_in.operator import INDEX
from kubernetes_stand_in.refusals import Refusal
from stand import Stand

__all__ = ["Node", "Proxy", "python"]

Object = dict[str, Any]
#: What keeps a pod there until its processes have ended, and the variable that all of them have.
_HERE, _POD = "tests/node", "POD_OF_NODE"
#: Seconds that a pod has to end in.
_GRACE = 30.0


def python(module: str) -> list[str]:
    """The command of a module's ``main``."""
    return [sys.executable, "-c", f"from {module} import main; main()"]


class Proxy:
    """An HTTP proxy on loopback that takes every name for this machine, as the name service of a
    cluster takes those of Services for their pods."""

    def __init__(self) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = self.rfile.readline().split()
                if len(asked) < 2:  # whoever asked is gone
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


class Node:
    """The node: looks at the stand-in until it is closed. ``folder`` takes what is mounted."""

    def __init__(self, stand: Stand, folder: Path, environment: dict[str, str]) -> None:
        self._stand, self._folder, self._environment = stand, folder, environment
        self._lock = threading.Lock()
        #: By the name of a Deployment, and by the name of a pod.
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._pods: dict[str, subprocess.Popen[bytes]] = {}
        self._over: set[str] = set()
        #: Until when pods may go on that are deleted.
        self._leaving: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="node", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(60)
        for each in (*self._services.values(), *self._pods.values()):
            _kill(each)
        for name in self._pods:
            _kill_all(name)

    def kill_service(self, name: str) -> bool:
        """kill -9 of the service's process; whether there was one."""
        with self._lock:
            found = self._services.get(name)
            return found is not None and _kill(found)

    def kill_run(self, job: str) -> bool:
        """kill -9 of the processes of a pod of the run; whether there were any."""
        with self._lock:
            found = [
                n for n, each in self._pods.items() if n.startswith(job) and each.poll() is None
            ]
            for name in found:
                _kill_all(name)
            return bool(found)

    def kill_pod(self, job: str) -> bool:
        """kill -9 of the processes of a member's first pod; whether there were any. Its queue is
        another's business and goes on."""
        with self._lock:
            found = {name: p for name, p in self._pods.items() if name.startswith(f"{job}-0-")}
            running = {name: each for name, each in found.items() if each.poll() is None}
            for name, each in running.items():
                each.send_signal(signal.SIGSTOP)  # so that it begins nothing that is not seen here
                os.waitpid(each.pid, os.WUNTRACED)
                begun = Path(f"/proc/{each.pid}/task/{each.pid}/children").read_text().split()
                _kill(each)
                for process in begun:
                    os.kill(int(process), signal.SIGKILL)
                with contextlib.suppress(OSError, ValueError):
                    run = int((self._folder / job / f"{name}-mnt" / "ensemble.pid").read_text())
                    os.kill(run, signal.SIGKILL)
            return bool(running)

    # -- one look ----------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._ended.wait(0.05):
            with self._lock:
                for found in self._stand.all("Deployment"):
                    self._service(found)
                for pod in self._stand.all("Pod"):
                    self._pod(pod)

    def _service(self, found: Object) -> None:
        name = found["metadata"]["name"]
        process = self._services.get(name)
        if not found["spec"]["replicas"]:
            if process is not None:
                process.terminate()
            return
        if process is not None and process.poll() is None:
            return
        folder = self._folder / name
        pod = found["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
        moved = {"$(POD_NAMESPACE)": "default", "0.0.0.0": "127.0.0.1"}
        for mount in container["volumeMounts"]:
            place = folder / mount["name"]
            moved[mount["mountPath"]] = str(place)
            if mount["name"] in secrets and not self._write_secret(
                secrets[mount["name"]], place, mount["name"]
            ):
                return
        access = self._stand.cluster.access
        token = access.token(f"system:serviceaccount:default:{pod['serviceAccountName']}")
        config = self._stand.cluster.kubeconfig(folder / "config", token)
        words = [_moved(each, moved) for each in container["args"]]
        self._services[name] = subprocess.Popen(
            [*python("ensemble_service.commands.server"), *container["command"][1:], *words,
             f"--option=kubeconfig={config}"],
            env=self._environment, stdout=(folder / "said").open("ab"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _pod(self, pod: Object) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels", {})
        job = labels.get("job-name", "")
        phase = pod.get("status", {}).get("phase")
        if not job or labels.get(INDEX, "0") != "0":
            return
        process = self._pods.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            self._leave(pod)
        elif phase != "Running" or name in self._over:
            return
        elif process is None:
            if self._hold(pod, True):
                self._start(pod, name, job)
        elif process.poll() is not None:
            told = self._folder / job / f"{name}.told"
            message = told.read_text() if told.exists() else ""
            with contextlib.suppress(LookupError):  # deleted meanwhile
                if process.returncode == 0:
                    self._stand.player.end("default", job, message=message)
                else:
                    self._stand.player.kill("default", job)
                self._over.add(name)

    def _hold(self, pod: Object, wanted: bool) -> bool:
        """Keep a pod there when it is deleted, or not any longer; whether that is so now."""
        found = [_HERE] if wanted else []
        if pod["metadata"].get("finalizers", []) == found:
            return True
        body = {**pod, "metadata": {**pod["metadata"], "finalizers": found}}
        with contextlib.suppress(Refusal):  # changed meanwhile: again the next time
            self._stand.cluster.store.write(self._stand.kind("Pod"), "default", body)
            return True
        return False

    def _leave(self, pod: Object) -> None:
        name, now = pod["metadata"]["name"], time.monotonic()
        process = self._pods.get(name)
        if (
            process is not None
            and process.poll() is None
            and now < self._leaving.get(name, now + 1)
        ):
            if name not in self._leaving:
                self._leaving[name] = now + _GRACE
                process.terminate()
            return
        _kill_all(name)
        self._hold(pod, False)

    def _start(self, pod: Object, name: str, job: str) -> None:
        folder = self._folder / job
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "run":
            (container,) = pod["spec"]["containers"]
            words, own = container["command"], {e["name"]: e["value"] for e in container["env"]}
            volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
            mounts = [
                (
                    mount["mountPath"],
                    mount["name"] if mount["name"] != "tmp" else f"{name}-tmp",
                    volumes[mount["name"]].get("configMap", {}).get("name"),
                    volumes[mount["name"]].get("secret", {}).get("secretName"),
                )
                for mount in container["volumeMounts"]
            ]
        else:
            found = self._stand.get("MiniCluster", job)
            if found is None:
                return
            container = found["spec"]["containers"][0]
            words, own = container["command"].split(), container["environment"]
            mounts = [
                (volume["path"], key, volume.get("configMapName"), volume.get("secretName"))
                for key, volume in container["volumes"].items()
            ]
            mounts.append(("/mnt/flux", f"{name}-mnt", None, None))
        places = {path: str(folder / key) for path, key, _, _ in mounts}
        moved = {**places, "/dev/termination-log": f"{folder}/{name}.told"}
        moved.pop("/tmp", None)  # in files it is a folder of this machine
        for path, key, config_map, secret in mounts:
            Path(places[path]).mkdir(parents=True, exist_ok=True)
            if config_map:
                files = self._stand.get("ConfigMap", config_map)
                if files is None:
                    return
                for each, text in files["data"].items():
                    Path(places[path], each).write_text(_moved(text, moved))
            elif secret and not self._write_secret(secret, Path(places[path]), key):
                return
        own = {key: _moved(text, places) for key, text in own.items()}
        self._pods[name] = subprocess.Popen(
            [_moved(each, moved) for each in words],
            env={**self._environment, **own, _POD: name}, stdout=(folder / "said").open("ab"),
            stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip

    def _write_secret(self, name: str, place: Path, key: str) -> bool:
        found = self._stand.get("Secret", name)
        if found is None:
            return False
        place.mkdir(parents=True, exist_ok=True)
        for each, data in found["data"].items():
            (place / each).write_bytes(base64.b64decode(data))
            (place / each).chmod(0o600)
        return True


def _kill(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        return False
    process.kill()
    process.wait()
    return True


def _kill_all(pod: str) -> None:
    """kill -9 of everything that was begun in a pod, until there is nothing left."""
    mark = f"{_POD}={pod}\0".encode()
    left = True
    while left:
        left = False
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in entry.read_bytes():
                    os.kill(int(entry.parent.name), signal.SIGKILL)
                    left = True


def _moved(text: str, moved: dict[str, str]) -> str:
    """A text with each of these where it is here; what is put in is left as it is."""
    longest = sorted(moved, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest)), lambda found: moved[found[0]], text)
