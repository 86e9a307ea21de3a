"""Tests of jobspecs on real queues: Flux, Slurm and Grid Engine.

Examples work, and queues accept the converted texts. The examples are rewritten from jobspec 0.0
and 0.1. Fixtures of the queues' plugins start the queues.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from ensemble_jobspec import read
from ensemble_jobspec.conversion import Options, convert

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(600)]

MAIN = [
    sys.executable,
    "-c",
    "import sys; from ensemble_core.cli.main import main; main(sys.argv[1:])",
]


class Queue(NamedTuple):
    """A running queue, with options of ``ensemble`` and an environment."""

    name: str
    environment: dict[str, str]
    words: tuple[str, ...]


def _conftest(queue: str) -> ModuleType:
    path = Path(__file__).parents[2] / f"ensemble-{queue}" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{queue}_conftest_of_jobspec", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", params=["flux", "slurm", "gridengine"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    name: str = request.param
    environment = dict(os.environ)
    close: Callable[[], None]
    words: tuple[str, ...] = ()
    if name == "flux":
        module = _conftest("flux")
        command = module.command()
        if command is None:
            pytest.skip("no Flux: 'flux' is not on the PATH and ENSEMBLE_FLUX_PREFIX is not set")
        instance = module.Instance(command)
        close = instance.close
        environment |= instance.environment()
        environment["PATH"] = f"{Path(command).parent}{os.pathsep}{environment['PATH']}"
    else:
        module = _conftest(name)
        missing = module.programs() if name == "slurm" else module.lacking()
        if missing is not None:
            pytest.skip(missing)
        cluster = module.Cluster()
        close = cluster.close
        environment |= cluster.environment
        words = (
            ("-o", "look=1", "-o", "rate=50")
            if name == "slurm"
            else ("-o", "poll=1", "-o", "environment=smp")
        )
    # Jobs find ``ensemble`` where this process does.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    yield Queue(name, environment, ("--executor", name, *words))
    close()


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(queue: Queue, text: str, *words: str, code: int = 0) -> str:
    """Run ``ensemble jobspec run`` and return its output."""
    Path("work.yaml").write_text(text)
    command = [*MAIN, "jobspec", "run", "work.yaml", "--state", "state", "--no-progress"]
    done = subprocess.run(
        [*command, *queue.words, *words], env=queue.environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def notes() -> list[str]:
    return Path("notes").read_text().split() if Path("notes").exists() else []


# -- the examples ----------------------------------------------------------------------------------

SLOT = "resources: [{type: slot, count: 1, label: one, with: [{type: core, count: 1}]}]"
HELLO = f"""\
version: 1
{SLOT}
task:
  name: hello
  slot: one
  count: {{per_slot: 1}}
  scripts:
  - {{name: hello.sh, content: "#!/bin/bash\\necho $(basename $PWD) >>$HERE/notes; echo it-said"}}
  - {{name: bye.sh, content: "echo bye >>$HERE/notes\\n"}}
  transform:
  - {{step: write, filename: hello.sh, executable: true}}
  - {{step: write, filename: bye.sh}}
  - {{step: STEP, filename: hello.sh, WAIT: true}}
  - {{step: submit, filename: bye.sh}}
attributes: {{system: {{duration: 5m, environment: {{HERE: "@HERE@"}}}}}}
"""


@pytest.mark.parametrize(
    ("step", "wait"), [("submit", "wait"), ("submit", "watch"), ("batch", "wait")]
)
def test_hello_world_of_jobspec_0_0(queue: Queue, step: str, wait: str) -> None:
    text = HELLO.replace("STEP", step).replace("WAIT", wait).replace("@HERE@", os.getcwd())
    said = run(queue, text)
    assert ("\nit-said\n" in said) == (wait == "watch")
    assert len(notes()) == 2
    assert notes()[0].startswith("jobspec-hello-")  # in the staging folder
    assert notes()[1] == "bye"


@pytest.mark.parametrize("step", ["submit", "batch"])
def test_the_script_of_a_batch_runs_once_with_the_resources_of_all_tasks(
    queue: Queue, step: str
) -> None:
    slots = "{type: slot, count: 2, label: one, with: [{type: core, count: 1}]}"
    several = queue.name != "gridengine"  # whose jobs have one node
    if several:
        slots = "{type: node, count: 2, with: [" + slots.replace("count: 2", "count: 1") + "]}"
    flux = "level $(flux getattr instance-level) size $(flux getattr size)"
    said = flux if queue.name == "flux" else "ran"
    text = f"""\
version: 1
resources: [{slots}]
task:
  slot: one
  count: {{per_slot: 1}}
  scripts: [{{name: job.sh, content: 'echo "{said}" >>"$HERE/notes"'}}]
  transform:
  - {{step: write, filename: job.sh}}
  - {{step: {step}, filename: job.sh, wait: true}}
attributes: {{system: {{duration: 5m, environment: {{HERE: "{os.getcwd()}"}}}}}}
"""
    run(queue, text)
    lines = Path("notes").read_text().splitlines()
    if step == "submit":
        assert len(lines) == 2
    elif queue.name == "flux":
        assert lines == ["level 1 size 2"]
    else:
        assert lines == ["ran"]


def test_hello_world_that_fails_is_reported(queue: Queue) -> None:
    text = HELLO.replace("STEP", "submit").replace("WAIT", "wait").replace("@HERE@", os.getcwd())
    run(queue, text.replace("echo $(basename $PWD) >>$HERE/notes; echo it-said", "exit 7"), code=1)
    assert notes() == []


STEPS = f"""\
version: 1
{SLOT}
task:
  name: steps
  scripts:
  - {{name: first.sh, content: 'echo "$(basename "$PWD") $(cat in/data)" >>"$HERE/notes"'}}
  - {{name: second.sh, content: 'echo "${{PWD##*/jobspec-steps-*}}." >>"$HERE/notes"'}}
  transform:
  - {{step: auth, command: [sh, -c, "echo signed-on >>notes"]}}
  - {{step: set, key: stage, value: "own{{index}}"}}
  - {{step: copy, source: data, filename: in/data}}
  - {{step: write, filename: first.sh, executable: true}}
  - {{step: submit, filename: first.sh, wait: true}}
  - {{step: unset, key: stage}}
  - {{step: write, filename: second.sh}}
  - {{step: batch, filename: second.sh}}
attributes: {{system: {{environment: {{HERE: "@HERE@"}}}}}}
"""


def test_sign_on_set_and_unset_folders_and_copies_work(queue: Queue) -> None:
    Path("data").write_text("copied\n")
    run(queue, STEPS.replace("@HERE@", os.getcwd()))
    assert notes() == ["signed-on", "own{index}", "copied", "."]
    assert Path("own{index}/in/data").read_text() == "copied\n"


NOTE = """sh, -c, 'echo "$0" >>notes'"""
#: Each example: jobspec, expected lines of ``notes`` (words of a line in any order), exit code.
EXAMPLES: dict[str, tuple[str, list[str], int]] = {
    "a script": ("tasks:\n- command: |\n    #!/bin/bash\n    for n in 1 2; do echo $n >>notes; done", ["1", "2"], 0),
    "a local task": (
        (f"tasks:\n- {{name: here, local: true, command: [{NOTE}, here]}}\n"
        f"- {{name: there, depends_on: [here], command: [{NOTE}, there]}}"),
        ["here", "there"], 0,
    ),
    "cores of one task are not copies": (
        ("resources: {two: {type: node, count: 1, with: [{type: slot, count: 1, with: [{type: core, count: 1}]}]}}\n"
        f"tasks: [{{resources: two, command: [{NOTE}, once]}}]"),
        ["once"], 0,
    ),
    "a group between tasks": (
        (f"tasks:\n- {{name: before, command: [{NOTE}, before]}}\n- {{name: g, group: inner, depends_on: [before]}}\n"
        f"- {{name: after, depends_on: [g], command: [{NOTE}, after]}}\n"
        f"groups: [{{name: inner, tasks: [{{command: [bash, -c, 'echo a; sleep 0.1; echo in >>notes']}}]}}]"),
        ["before", "in", "after"], 0,
    ),
    "a group that fails": (
        ("resources: {one: {type: slot, count: 1, with: [{type: core, count: 1}]}}\n"
        "groups: [{name: g, resources: one, tasks: [{command: 'false'}]}, "
        f"{{name: h, depends_on: [g], tasks: [{{command: [{NOTE}, h]}}]}}]"),
        [], 1,
    ),
    "alternatives": (
        ("resources: {few: {type: slot, count: 1, with: [{type: core}]}, many: {type: slot, count: 1, with: [{type: core}]}}\n"
        f"tasks: [{{resources: few|many, command: [{NOTE}, ran]}}]"),
        ["ran"], 0,
    ),
    "nothing is pasted": ("tasks: [{name: 'a; touch X', command: [sh, -c, 'echo \"$0\" >>notes', '$(touch_X);{index}']}]", ["$(touch_X);{index}"], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_its_expected_result(queue: Queue, name: str) -> None:
    text, wanted, code = EXAMPLES[name]
    run(queue, f"version: 1\n{text}\n", code=code)
    found = notes()
    for line in wanted:
        here, found = found[: len(line.split())], found[len(line.split()) :]
        assert sorted(here) == sorted(line.split())
    assert found == []
    assert not list(Path().rglob("X"))


# -- converted texts ------------------------------------------------------------------------------

SHAPES = """\
version: 1
resources:
  plain: {type: slot, count: 1, with: [{type: core, count: 1}]}
  spread: {type: slot, count: 3, with: [{type: core, count: 1}]}
  nodes: {type: node, count: 2, with: [{type: slot, count: 1, with: [{type: core, count: 1}]}]}
  whole: {type: node, count: 1}
tasks:
- {name: plain, command: "true", resources: plain, attributes: {duration: 90}}
- {name: spread, command: [echo, "$(x) {index} 'y'"], resources: spread, attributes: {environment: {A: "b c;d"}}}
- {name: nodes, command: "true", resources: nodes, attributes: {cwd: /tmp}}
- {name: whole, command: "#!/bin/sh\\ntrue\\n", resources: whole}
"""


def test_converted_texts_are_accepted_by_the_queue(queue: Queue) -> None:
    if queue.name not in ("flux", "slurm"):
        pytest.skip("nothing is submitted by a text there")
    Path("work.yaml").write_text(SHAPES)
    done = subprocess.run(
        [*MAIN, "jobspec", "convert", "work.yaml", "--to", queue.name, "-o", "out"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = sorted(Path("out").iterdir())
    assert [file.stem for file in files] == ["nodes", "plain", "spread", "whole"]
    for file in files:
        words = ["sbatch", "--test-only", str(file)]
        if queue.name == "flux":
            words = ["flux", "job", "submit", str(file)]
        done = subprocess.run(
            words, env=queue.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (file.read_text(), done.stderr)
        if queue.name == "flux":
            words = ["flux", "job", "status", done.stdout.strip()]
            done = subprocess.run(
                words, env=queue.environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (file.read_text(), done.stderr)


def test_a_script_for_flux_submits_everything_in_order(queue: Queue) -> None:
    if queue.name != "flux":
        pytest.skip("a script for Flux")
    text, wanted, _ = EXAMPLES["a group between tasks"]
    Path("work.yaml").write_text(f"version: 1\n{text}\n")
    made = subprocess.run(
        [*MAIN, "jobspec", "convert", "work.yaml", "--to", "flux-script"],
        capture_output=True,
        text=True,
        check=True,
    )
    done = subprocess.run(
        ["sh"],
        input=made.stdout,
        env=queue.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert notes() == wanted


#: A group on two nodes that its last task ends, and 'after', which waits for the group.
WIDE = """\
version: 1
resources: {two: {type: node, count: 2, with: [{type: slot, count: 1, with: [{type: core, count: 1}]}]}}
tasks: [{name: after, depends_on: [g], command: [sh, -c, 'echo after >>notes']}]
groups:
- name: g
  resources: two
  tasks:
  - {name: sees, command: [sh, -c, 'flux resource list -no {nnodes} -s all >>notes']}
  - {name: wide, depends_on: [sees], resources: two, command: [sh, -c, 'echo wide >>notes']}
  - {name: last, depends_on: [wide], command: [sh, -c, 'exit ENDING']}
"""


def test_a_batch_on_flux_has_its_own_nodes_and_its_failure_counts(queue: Queue) -> None:
    if queue.name != "flux":
        pytest.skip("a batch on Flux")
    run(queue, """\
version: 1
resources: {two: {type: node, count: 2, with: [{type: slot, count: 1, with: [{type: core, count: 1}]}]}}
groups:
- name: g
  resources: two
  tasks:
  - {name: wide, resources: two, command: hostname}
  - {name: sees, depends_on: [wide], command: [sh, -c, 'flux resource list -no {nnodes} -s all >notes']}
""")  # fmt: skip
    assert notes()[0] == "2"


def test_a_batch_on_slurm_has_all_its_nodes_if_flux_is_available(queue: Queue) -> None:
    command = _conftest("flux").command()
    if queue.name != "slurm" or command is None:
        pytest.skip("a batch on Slurm, within which there is Flux")
    text = WIDE.replace("ENDING", "0")
    path = queue.environment["PATH"]
    if shutil.which("flux", path=path) is None:
        assert "without Flux" in run(queue, text, code=2)
    own = {**queue.environment, "PATH": f"{path}{os.pathsep}{Path(command).parent}"}
    run(queue._replace(environment=own), text)
    assert notes() == ["2", "wide", "wide", "after"]
    Path("notes").unlink()
    run(queue._replace(environment=own), WIDE.replace("ENDING", "3"), code=1)
    assert notes() == ["2", "wide", "wide"]


def test_files_travel_in_the_jobspec_if_nodes_share_no_folder(queue: Queue) -> None:
    if queue.name != "flux":
        pytest.skip("files in a jobspec of Flux")
    Path("stage").mkdir()
    text = HELLO.replace("STEP", "submit").replace("WAIT", "wait").replace("@HERE@", os.getcwd())
    text = text.replace("basename $PWD", "basename $0")
    steps = "  - {step: set, key: sharedfs, value: false}\n  - {step: stage, filename: hello.sh}\n"
    text = text.replace(
        "  - {step: submit, filename: hello.sh", steps + "  - {step: submit, filename: hello.sh"
    )
    run(queue, text)
    assert notes() == ["hello.sh", "bye"]
    options = Options(executor="flux", executors=frozenset({"flux"}))
    (first, _) = convert(read(text), options).jobs
    assert first["options"]["flux"]["attributes"]["system.files"]["hello.sh"]["mode"] == 0o100700


def test_files_are_sent_to_the_other_nodes_of_a_slurm_job(queue: Queue) -> None:
    if queue.name != "slurm":
        pytest.skip("files that sbcast sends")
    text = HELLO.replace("STEP", "submit").replace("WAIT", "wait").replace("@HERE@", os.getcwd())
    text = text.replace(
        "{type: slot, count: 1, label: one",
        "{type: node, count: 2, with: [{type: slot, count: 1, label: one",
    )
    text = text.replace("with: [{type: core, count: 1}]}]", "with: [{type: core, count: 1}]}]}]")
    text = text.replace("basename $PWD", "basename $0")
    steps = "  - {step: set, key: sharedfs, value: false}\n  - {step: stage, filename: hello.sh}\n"
    first = "  - {step: submit, filename: hello.sh"
    run(queue, text.replace(first, steps + first))
    assert notes() == ["hello.sh", "hello.sh", "bye", "bye"]


def test_flux_is_available_where_expected() -> None:
    prefix = os.environ.get("ENSEMBLE_FLUX_PREFIX")
    assert prefix is None or shutil.which("flux", path=f"{prefix}/bin") is not None
