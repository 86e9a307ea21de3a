"""Tests of rendered objects and their scripts, and of the pods that the Flux Operator creates.

They need no cluster: the Flux Operator is simulated.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from ensemble_operator.main import main
from ensemble_service.commands.member import member as member_command
from ensemble_service.commands.server import main as server_command
from kubernetes_stand_in import definition, job_of, pod_errors
from kubernetes_stand_in.kinds import of_definition
from kubernetes_stand_in.schema import complete, errors, unknown

from ensemble_core.cli.main import main as ensemble_command

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))
Object = dict[str, Any]


def rendered(file: Path) -> list[Object]:
    done = CliRunner().invoke(main, ["render", str(file)], standalone_mode=False)
    assert done.exception is None, done.exception
    return list(yaml.safe_load_all(done.output))


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_a_minicluster_is_accepted_and_its_pods_can_be_created(file: Path) -> None:
    kind = of_definition(yaml.safe_load(definition().read_text(encoding="utf-8")))
    assert kind.schema is not None
    for found in of_kind(rendered(file), "MiniCluster"):
        whole = complete(found, dict(kind.schema))
        assert errors({**whole, "metadata": {}}, dict(kind.schema)) == []
        bare = {key: each for key, each in found.items() if key != "metadata"}
        assert unknown(bare, dict(kind.schema)) == [], "it would be left out without a word"
        job = job_of({**found, **whole, "metadata": found["metadata"]})
        assert pod_errors(job["spec"]["template"]["spec"]) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_every_command_line_is_valid(file: Path) -> None:
    objects = rendered(file)
    scripts = [each["data"]["start.sh"] for each in of_kind(objects, "ConfigMap")]
    assert scripts
    for script in scripts:
        (line,) = [each for each in script.splitlines() if "follow ensemble " in each]
        program, *words = shlex.split(line.partition("follow ")[2])
        assert program == "ensemble"
        command: Any = ensemble_command
        if words[0] == "member":
            command, words = member_command, words[1:]
        name, words = words[0], words[1:]
        context = click.Context(command)
        chosen = command.get_command(context, name)
        parsed = chosen.make_context(name, list(words)).params
        assert parsed
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    start = server_command.commands["start"]
    parsed = start.make_context("start", list(container["args"])).params
    assert parsed["kubernetes"] is True
    assert parsed["insecure"] is False


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_our_pods_run_without_privileges(file: Path) -> None:
    for kind in ("Deployment", "Job"):
        for found in of_kind(rendered(file), kind):
            pod = found["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in pod["containers"]:
                security = container["securityContext"]
                assert security["capabilities"] == {"drop": ["ALL"]}
                assert security["allowPrivilegeEscalation"] is False
                assert security["readOnlyRootFilesystem"] is True
                mounts = {each["name"] for each in container["volumeMounts"]}
                assert mounts == {each["name"] for each in pod["volumes"]}


def test_the_program_is_copied_to_a_volume_that_both_containers_mount() -> None:
    """The Flux Operator mounts every emptyDir at /dev/shm."""
    (found,) = of_kind(rendered(EXAMPLES[-1].parent / "hello-world.yaml"), "MiniCluster")
    kind = of_definition(yaml.safe_load(definition().read_text(encoding="utf-8")))
    whole = complete(found, dict(kind.schema or {}))
    pod = job_of({**found, **whole, "metadata": found["metadata"]})["spec"]["template"]["spec"]
    runs, view = pod["containers"]
    shared = {m["name"] for m in runs["volumeMounts"] if m["mountPath"] == "/mnt/flux"}
    assert shared == {m["name"] for m in view["volumeMounts"] if m["mountPath"] == "/mnt/flux"}
    assert len(shared) == 1
    init = found["spec"]["containers"][1]["commands"]["init"]
    assert "/mnt/flux/ensemble" in init
    assert (
        "until [ -e /mnt/flux/ensemble/ready ]" in found["spec"]["containers"][0]["commands"]["pre"]
    )


# -- the scripts, run by a shell ---------------------------------------------------------------------


def script(
    tmp_path: Path, command: str, *, run: bool = False, resumed: bool = True
) -> tuple[Path, Path]:
    from ensemble_operator import member_objects

    told = tmp_path / "termination-log"
    text = member_objects.start_script(shlex.split(command), run=run, resumed=resumed)
    text = text.replace("/dev/termination-log", str(told))
    (tmp_path / "start.sh").write_text(text)
    (tmp_path / "stop.sh").write_text(member_objects._STOP)
    return tmp_path / "start.sh", told


@pytest.mark.parametrize("code", [0, 1, 70])
def test_the_exit_code_of_a_run_is_reported_and_its_pod_succeeds(tmp_path: Path, code: int) -> None:
    start, told = script(tmp_path, f"sh -c 'exit {code}'")
    env = {"PATH": "/usr/bin:/bin", "ENSEMBLE_PID": str(tmp_path / "pid")}
    done = subprocess.run(["/bin/sh", start], env=env, timeout=150, check=False)
    assert done.returncode == 0
    assert told.read_text() == f"ensemble: exit {code}\n"


def test_a_killed_run_reports_nothing_and_its_pod_fails(tmp_path: Path) -> None:
    start, told = script(tmp_path, "sh -c 'kill -9 $$'")
    env = {"PATH": "/usr/bin:/bin", "ENSEMBLE_PID": str(tmp_path / "pid")}
    done = subprocess.run(["/bin/sh", start], env=env, timeout=150, check=False)
    assert done.returncode == 137
    assert not told.exists()


#: Executor that cannot be opened while the file ``away`` exists, or is lost if ``lost`` exists.
AWAY = """
from pathlib import Path

from ensemble_core import ExecutorError, ExecutorLost, ExecutorPlugin, hookimpl
from ensemble_testing import FakeExecutor


class Away(FakeExecutor):
    def open(self, run, emit):
        if Path("away").exists():
            raise ExecutorError("the network is down")
        super().open(run, emit)
        if Path("lost").exists():
            emit([ExecutorLost(run.clock(), "fake", "the network is down")])


@hookimpl
def ensemble_executors():
    return [ExecutorPlugin(name="fake", summary="A queue", build=lambda o: Away(instant=True),
                           capabilities=Away.capabilities, options={"type": "object"})]
"""
WAITS = "{trigger: interval, seconds: 1000, action: {name: log, message: x}}"
ENDS = "{trigger: start, action: {name: terminate, exit_code: 75}}"


class Pod:
    """Environment of a pod's start script, with the program and a folder for runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "away.py").write_text(AWAY)
        program = folder / "ensemble"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ensemble_core.cli "$@"\n')
        program.chmod(0o755)
        self.env = {"PATH": f"{folder}:/usr/bin:/bin", "ENSEMBLE_PID": str(folder / "pid")}
        self.env |= {"ENSEMBLE_STATE": str(folder / "state"), "HOME": str(folder)}

    def run(
        self, tag: str, rule: str, *more: str, resumed: bool = True, pauses: str = "0 1 2"
    ) -> tuple[int, str]:
        """Run the start script; return its exit code and its termination message."""
        (self.folder / "e.yaml").write_text(
            f"jobs: [{{name: work, command: x}}]\nrules: [{rule}]\n"
        )
        words = ["ensemble", "run", "--or-resume", "--tag", tag, "--plugin", "away.py"]
        words += ["--executor", "fake", *more, "e.yaml"]
        start, told = script(self.folder, shlex.join(words), run=True, resumed=resumed)
        start.write_text(start.read_text().replace("0 1 2 4 8 16 32", pauses))
        told.unlink(missing_ok=True)
        done = subprocess.run(
            ["/bin/sh", start], env=self.env, cwd=self.folder, timeout=250, check=False
        )
        return done.returncode, told.read_text() if told.exists() else ""


@pytest.mark.parametrize("why", ["locked", "away", "lost"])
def test_a_run_that_temporarily_cannot_continue_is_not_over(tmp_path: Path, why: str) -> None:
    """The pod fails, so that its Job creates another. Regression: the run was reported as ended."""
    from ensemble_core.journal.lock import Lock

    pod = Pod(tmp_path)
    assert pod.run("study", WAITS, "--wall", "1s") == (0, "ensemble: exit 5\n")
    lock = Lock(tmp_path / "state" / "runs" / "study")
    if why == "locked":
        lock.acquire()
    else:
        (tmp_path / why).touch()
    try:
        assert pod.run("study", WAITS) == (75, "")
    finally:
        lock.release()


@pytest.mark.parametrize("code", [1, 75, 143])
def test_the_exit_code_of_a_rule_is_an_end(tmp_path: Path, code: int) -> None:
    ends = ENDS.replace("75", str(code))
    assert Pod(tmp_path).run("study", ends) == (0, f"ensemble: exit {code}\n")


def test_an_image_without_the_program_is_reported_at_once(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    (tmp_path / "ensemble").unlink()
    assert pod.run("study", ENDS, pauses="0 1000") == (0, "ensemble: exit 127\n")


@pytest.mark.parametrize("resumed", [True, False])
def test_a_run_without_a_service_at_first_starts_once_there_is_one(
    tmp_path: Path, resumed: bool
) -> None:
    """Regression: the run was reported as failed before it had started."""
    pod, away = Pod(tmp_path), tmp_path / "away"
    away.touch()
    given_up = (75, "") if resumed else (0, "ensemble: exit 1\n")
    assert pod.run("study", ENDS, resumed=resumed, pauses="0 0.1") == given_up
    back = threading.Timer(1.0, away.unlink)
    back.start()
    try:
        assert pod.run("study", ENDS, resumed=resumed, pauses="0 1 2 4 8 16 32") == (
            0,
            "ensemble: exit 75\n",
        )
    finally:
        back.join()


def test_a_deleted_pod_stops_its_run_and_waits_for_it(tmp_path: Path) -> None:
    mark = tmp_path / "stopped"
    body = f"trap 'touch {mark}; exit 3' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
    start, told = script(tmp_path, shlex.join(["sh", "-c", body]))
    env = {"PATH": "/usr/bin:/bin", "ENSEMBLE_PID": str(tmp_path / "pid")}
    with subprocess.Popen(["/bin/sh", start], env=env) as running:
        from ensemble_testing import wait_until

        wait_until((tmp_path / "up").exists)
        pid = tmp_path / "pid"  # the script writes it while the run starts
        wait_until(lambda: pid.exists() and pid.read_text())
        subprocess.run(["/bin/sh", tmp_path / "stop.sh"], env=env, timeout=150, check=True)
        assert mark.exists()
        assert running.wait(60) == 0
    assert told.read_text() == "ensemble: exit 3\n"


def test_a_run_never_starts_after_its_pod_was_told_to_stop(tmp_path: Path) -> None:
    """Regression: a signal right after a fork was lost."""
    begun = tmp_path / "begun"
    start, _ = script(tmp_path, shlex.join(["touch", str(begun)]), run=True)
    start.write_text(start.read_text().replace("0 1 2 4 8 16 32", "0"))
    env = {"PATH": "/usr/bin:/bin", "ENSEMBLE_PID": str(tmp_path / "pid")}
    (tmp_path / "pid.stop").touch()
    for _ in range(50):
        assert (
            subprocess.run(["/bin/sh", start], env=env, timeout=60, check=False).returncode == 143
        )
        assert not begun.exists()


@pytest.mark.parametrize("how", ["preStop", "SIGTERM"])
@pytest.mark.parametrize("when", ["before it begins", "between two attempts"])
def test_no_run_starts_again_after_a_stop(tmp_path: Path, how: str, when: str) -> None:
    """Regression: if the service was away during the stop, the run restarted and submitted jobs to
    a queue that was about to end.
    """
    begun = tmp_path / "begun"
    command = shlex.join(["sh", "-c", f"echo begun >> {begun}; exit 1"])
    start, told = script(tmp_path, command, run=True)
    start.write_text(start.read_text().replace("0 1 2 4 8", "0.5 5 5 5 5"))
    env = {"PATH": "/usr/bin:/bin", "ENSEMBLE_PID": str(tmp_path / "pid")}
    with subprocess.Popen(["/bin/sh", start], env=env) as running:
        from ensemble_testing import wait_until

        first = when == "before it begins"
        wait_until((tmp_path / "pid").exists if first else begun.exists)
        if how == "preStop":
            subprocess.run(["/bin/sh", tmp_path / "stop.sh"], env=env, timeout=150, check=True)
        else:
            running.terminate()
        assert running.wait(60) == 143
    assert not told.exists()
    assert not first or not begun.exists()
    assert first or begun.read_text().splitlines() == ["begun"]
