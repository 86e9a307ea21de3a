"""Tests of ``ensemble jobspec run``: order, failed dependencies, resumes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_jobspec.command import run_upstream
from ensemble_testing import wait_until

from ensemble_core.cli.main import main

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; from ensemble_core.cli.main import main; main(sys.argv[1:])",
]
RUN = ("--executor", "local", "-o", "slots=2", "--no-progress")


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(document: Any, *arguments: str, code: int = 0) -> Result:
    """Run a jobspec on this machine by ``ensemble jobspec run``."""
    text = document if isinstance(document, str) else json.dumps(document)
    Path("work.yaml").write_text(text)
    words = ["jobspec", "run", "work.yaml", "--state", "state", *RUN, *arguments]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output
    return result


def tasks(*given: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "tasks": list(given)}


def note(word: str) -> list[str]:
    """Return a command that appends a word to ``notes``."""
    return ["sh", "-c", 'echo "$0" >>"$1"', word, os.path.abspath("notes")]


def notes() -> list[str]:
    return Path("notes").read_text().split() if Path("notes").exists() else []


def test_a_task_starts_when_all_its_dependencies_have_succeeded() -> None:
    run(
        tasks(
            {"name": "last", "command": note("last"), "depends_on": ["b", "c"]},
            {"name": "b", "command": note("b"), "depends_on": ["a"], "replicas": 3},
            {"name": "c", "command": note("c"), "depends_on": ["a"]},
            {"name": "a", "command": note("a")},
        )
    )
    assert notes()[0] == "a"
    assert notes()[-1] == "last"
    assert sorted(notes()) == ["a", "b", "b", "b", "c", "last"]


@pytest.mark.parametrize("inside", [False, True], ids=["a task", "a task in a group"])
def test_dependents_of_a_failed_task_never_start_and_the_run_exits_with_1(inside: bool) -> None:
    failing = {"command": "sh -c 'exit 7'"}
    document = tasks(
        {"name": "a", **({"group": "g"} if inside else failing)},
        {"name": "b", "command": note("b"), "depends_on": ["a"]},
        {"name": "c", "command": note("c"), "depends_on": ["b"]},
        {"name": "other", "command": note("other")},
    )
    if inside:
        document["groups"] = [{"name": "g", "tasks": [failing]}]
    result = run(document, code=1)
    assert notes() == ["other"]
    never = [line for line in result.output.splitlines() if line.strip().startswith("never")]
    assert [line.split()[1] for line in never] == ["b", "c"]


def test_a_failed_replica_blocks_the_dependents() -> None:
    half = ["sh", "-c", 'test "$ENSEMBLE_INDEX" != 1']
    run(
        tasks(
            {"name": "a", "command": half, "replicas": 3},
            {"name": "b", "command": note("b"), "depends_on": ["a"]},
        ),
        code=1,
    )
    assert notes() == []


def test_local_groups_run_flat_and_count_as_a_whole() -> None:
    run(
        {
            "version": 1,
            "tasks": [
                {"name": "before", "command": note("before")},
                {"name": "middle", "group": "g", "depends_on": ["before"]},
                {"name": "after", "command": note("after"), "depends_on": ["middle"]},
            ],
            "groups": [{"name": "g", "tasks": [{"command": note("g1")}, {"command": note("g2")}]}],
        }
    )
    assert (notes()[0], sorted(notes()[1:3]), notes()[3]) == ("before", ["g1", "g2"], "after")


def test_nested_groups_and_groups_with_dependencies_run() -> None:
    inner = {"name": "inner", "tasks": [{"command": note("inner")}]}
    run(
        {
            "version": 1,
            "groups": [
                {"name": "second", "depends_on": ["first"], "tasks": [{"command": note("second")}]},
                {
                    "name": "first",
                    "groups": [inner],
                    "tasks": [{"command": note("own"), "depends_on": ["inner"]}],
                },
            ],
        }
    )
    assert notes() == ["inner", "own", "second"]


def test_a_single_group_can_be_run_by_name() -> None:
    document = {"version": 1, "tasks": [{"command": note("x")}],
                "groups": [{"name": "g", "tasks": [{"command": note("g")}]}]}  # fmt: skip
    run(document, "--only", "g")
    assert notes() == ["g"]
    assert "did you mean 'g'" in run(document, "--only", "gg", code=2).output


def test_no_text_of_a_jobspec_reaches_a_shell() -> None:
    nasty = "$(touch owned); `touch owned` {index} '"
    document = tasks(
        {"name": "a; touch owned", "command": ["printf", "%s", nasty]},
        {
            "name": "b",
            "command": "#!/bin/sh\nprintf '%s' '{index}'\n",
            "depends_on": ["a; touch owned"],
        },
    )
    inside = {"name": "; touch owned", "command": ["printf", "%s", nasty]}
    run({**document, "groups": [{"name": "g", "tasks": [inside]}]})
    assert not list(Path().rglob("owned"))
    outputs = {path.name: path.read_text() for path in Path("state").rglob("*.out")}
    assert outputs == {
        "a-touch-owned.0.out": nasty,
        "b.0.out": "{index}",
        "g--touch-owned.0.out": nasty,
    }


# -- the steps of a transform ----------------------------------------------------------------------


def transform(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    scripts = [
        {"name": "one.sh", "content": "echo one >here\n"},
        {"name": "two.sh", "content": "cat here\n"},
        {"name": "bad.sh", "content": "exit 7\n"},
    ]
    slot = {"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]}
    task = {"name": "t", "scripts": scripts, "transform": list(steps), **more}
    return {"version": 1, "resources": [slot], "task": task}


def output(name: str) -> str:
    (found,) = Path("state").rglob(f"{name}.out")
    return found.read_text()


def test_scripts_are_written_to_one_folder_and_submitted_in_order() -> None:
    run(
        transform(
            {"step": "write", "filename": "one.sh"},
            {"step": "write", "filename": "two.sh", "executable": True},
            {"step": "submit", "filename": "one.sh", "wait": True},
            {"step": "submit", "filename": "two.sh"},
        )
    )
    assert output("t-two-sh.0") == "one\n"
    (stage,) = Path().glob("jobspec-*")
    assert sorted(path.name for path in stage.iterdir()) == ["here", "one.sh", "two.sh"]
    assert (stage / "two.sh").stat().st_mode & 0o777 == 0o700


def test_a_failed_step_fails_the_run_and_no_step_follows() -> None:
    run(
        transform(
            {"step": "write", "filename": "bad.sh"},
            {"step": "write", "filename": "two.sh"},
            {"step": "submit", "filename": "bad.sh", "wait": True},
            {"step": "submit", "filename": "two.sh"},
        ),
        code=1,
    )
    assert not list(Path("state").rglob("t-two-sh*"))


def test_the_staging_folder_is_the_one_set_until_it_is_unset() -> None:
    run(
        transform(
            {"step": "set", "key": "stage", "value": "mine {index}"},
            {"step": "write", "filename": "one.sh"},
            {"step": "submit", "filename": "one.sh", "wait": True},
            {"step": "unset", "key": "stage"},
            {"step": "write", "filename": "two.sh"},
            {"step": "batch", "filename": "two.sh"},
        ),
        code=1,  # the second folder lacks 'here'
    )
    assert Path("mine {index}/one.sh").exists()
    (stage,) = Path().glob("jobspec-*")
    assert (stage / "two.sh").exists()


def test_files_are_copied_into_the_folder() -> None:
    Path("data.txt").write_text("data\n")
    run(
        transform(
            {"step": "copy", "source": "data.txt", "filename": "here"},
            {"step": "write", "filename": "two.sh"},
            {"step": "submit", "filename": "two.sh"},
        )
    )
    assert output("t.0") == "data\n"


def test_a_file_that_cannot_be_copied_ends_the_run_with_1() -> None:
    result = run(
        transform(
            {"step": "copy", "source": "data.txt"},
            {"step": "write", "filename": "two.sh"},
            {"step": "submit", "filename": "two.sh"},
        ),
        code=1,
    )
    assert "cannot put 'data.txt'" in result.output


def test_a_link_out_of_the_staging_folder_is_rejected_with_the_steps_name() -> None:
    Path("mine").mkdir()
    Path("mine/one.sh").symlink_to("../outside")
    result = run(
        transform(
            {"step": "set", "key": "stage", "value": "mine"},
            {"step": "write", "filename": "one.sh"},
            {"step": "submit", "filename": "one.sh"},
        ),
        code=1,
    )
    assert "'t-files' cannot put 'one.sh' into" in result.output
    assert not Path("outside").exists()


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("; exit 3", 1)])
def test_a_sign_on_comes_first_its_output_is_secret_and_its_failure_ends_the_run(
    ending: str, code: int
) -> None:
    command = f"sh -c 'echo secret-$((40+2)){ending}'"
    result = run(
        transform({"step": "auth", "command": command}, {"step": "submit"}, command=note("ran")),
        code=code,
    )
    assert notes() == ([] if code else ["ran"])
    assert "secret-42" not in result.output
    kept = [path for path in Path("state").rglob("*") if path.is_file()]
    assert kept
    assert not any(b"secret-42" in path.read_bytes() for path in kept)


def test_steps_can_be_skipped() -> None:
    run(
        transform(
            {"step": "auth", "command": "false"}, {"step": "submit"}, command=note("ran")
        ),
        "--skip", "auth",
    )  # fmt: skip
    assert notes() == ["ran"]


# -- local tasks of converted ensemble files ------------------------------------------------------


def test_an_ensemble_file_runs_local_tasks_beside_the_controller() -> None:
    document = tasks(
        {"name": "a", "command": note("a"), "local": True},
        {"name": "b", "command": note("b"), "depends_on": ["a", "j"]},
        {"name": "j", "command": note("j")},
        {
            "name": "c",
            "command": ["sh", "-c", "echo 'said {index}'; echo c >>notes"],
            "local": True,
            "depends_on": ["b"],
        },
        {"name": "d", "command": note("d"), "depends_on": ["c"]},
    )
    Path("work.yaml").write_text(json.dumps(document))
    made = CliRunner().invoke(
        main, ["jobspec", "convert", "work.yaml", "--to", "ensemble", "-o", "."]
    )
    assert made.exit_code == 0, made.output
    result = CliRunner().invoke(main, ["run", "work.yaml", "--state", "state", *RUN])
    assert result.exit_code == 0, result.output
    assert sorted(notes()[:2]) == ["a", "j"]
    assert notes()[2:] == ["b", "c", "d"]
    assert "c: said {index}" in result.output


def test_replicas_of_a_local_task_run_one_after_another() -> None:
    document = tasks({"name": "a", "command": note("a"), "local": True, "replicas": 3})
    Path("work.yaml").write_text(json.dumps(document))
    CliRunner().invoke(main, ["jobspec", "convert", "work.yaml", "--to", "ensemble", "-o", "."])
    result = CliRunner().invoke(main, ["run", "work.yaml", "--state", "state", *RUN])
    assert result.exit_code == 0, result.output
    assert notes() == ["a", "a", "a"]


def test_a_failed_local_task_blocks_its_dependents() -> None:
    document = tasks(
        {"name": "a", "command": ["sh", "-c", "echo why >&2; exit 5"], "local": True},
        {"name": "b", "command": note("b"), "depends_on": ["a"]},
    )
    Path("work.yaml").write_text(json.dumps(document))
    CliRunner().invoke(main, ["jobspec", "convert", "work.yaml", "--to", "ensemble", "-o", "."])
    result = CliRunner().invoke(main, ["run", "work.yaml", "--state", "state", *RUN])
    assert result.exit_code == 1
    assert "'a' ended with exit code 5: why" in result.output
    assert notes() == []


def wait_to_be_let_go(word: str) -> list[str]:
    """Return a command that appends a word to ``notes`` and waits for the file ``go``."""
    script = 'echo "$0" >>notes; until test -e go; do sleep 0.05; done; echo let go'
    return ["sh", "-c", script, word]


def killed_beside(kind: str) -> None:
    """Run a local task, and kill the controller meanwhile."""
    document = tasks(
        {"name": "a", "command": wait_to_be_let_go("once"), "local": True},
        {"name": "b", "command": note("b"), "depends_on": ["a"]},
    )
    if kind == "a sign-on":
        sign_on = {"step": "auth", "command": wait_to_be_let_go("once")}
        document = transform(sign_on, {"step": "submit"}, command=note("b"))
    Path("work.yaml").write_text(json.dumps(document))
    made = CliRunner().invoke(main, ["jobspec", "convert", "work.yaml", "--to", "ensemble"])
    Path("study.yaml").write_text(made.stdout)
    words = ["run", "study.yaml", "--state", "state", "--tag", "one", *RUN]
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.DEVNULL)
    wait_until(lambda: notes() == ["once"] or process.poll() is not None)
    process.kill()
    process.wait()


RESUME = ("resume", "one", "--state", "state", "--no-progress")


@pytest.mark.parametrize("kind", ["a local task", "a sign-on"])
def test_a_local_task_of_a_killed_controller_does_not_run_twice(kind: str) -> None:
    killed_beside(kind)
    process = subprocess.Popen([*PROGRAM, *RESUME], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # wait for the start
    Path("go").touch()
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert notes() == ["once", "b"]
    assert ("a: let go" in said) == (kind == "a local task")


def test_a_local_task_killed_with_its_controller_is_reported_and_not_repeated() -> None:
    killed_beside("a local task")
    (record,) = Path("state").rglob("jobspec-local/*.0")
    os.killpg(int(record.read_text()), signal.SIGKILL)
    result = CliRunner().invoke(main, list(RESUME))
    assert result.exit_code == 1, result.output
    assert "'a' was interrupted when an earlier controller died" in result.output
    assert notes() == ["once"]


def test_output_of_watched_jobs_is_printed_while_they_run() -> None:
    script = "echo said a; until test -e go; do sleep 0.05; done; printf 'and more'"
    watched = {"name": "a", "command": ["sh", "-c", script], "attributes": {"watch": True}}
    Path("work.yaml").write_text(json.dumps(tasks(watched, {"name": "b", "command": "echo not b"})))
    words = ["jobspec", "run", "work.yaml", "--state", "state", *RUN]
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    before = []
    while "said a\n" not in before:  # the output comes before the end
        before.append(process.stdout.readline())
        assert before[-1], before
    assert "== a.0.out\n" in before
    Path("go").touch()
    rest, _ = process.communicate()
    assert process.returncode == 0
    assert "and more\n" in rest
    assert "\nnot b" not in rest


def test_output_of_watched_jobs_follows_a_live_table() -> None:
    watched = {"name": "a", "command": "echo said a", "attributes": {"watch": True}}
    result = run(tasks(watched), "--progress")
    assert "== a.0.out\nsaid a\n" in result.output


# -- capacity of the queue ------------------------------------------------------------------------


def alternatives(first: int, second: int) -> dict[str, Any]:
    resources = {
        name: {"type": "slot", "count": 1, "with": [{"type": "core", "count": cores}]}
        for name, cores in (("big", first), ("small", second))
    }
    return {
        "resources": resources,
        **tasks({"name": "t", "command": note("t"), "resources": "big|small"}),
    }


def test_the_first_alternative_that_fits_this_machine_is_used() -> None:
    run(alternatives(64, 2))
    assert notes() == ["t"]
    assert "cores.up is 2, needs 64" in run(alternatives(64, 32), code=2).output
    assert notes() == ["t"]


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ({"type": "core", "count": 3}, "cores.up is 2, needs 3"),
        ({"type": "gpu", "count": 1}, "gpus.up is 0, needs 1"),
    ],
)
def test_resources_that_this_machine_never_has_are_rejected_before_submitting(
    inside: dict[str, Any], why: str
) -> None:
    much = {"type": "slot", "count": 1, "with": [inside]}
    first = {"name": "first", "command": note("first")}
    given = tasks(first, {"name": "t", "command": note("t"), "resources": "much"})
    result = run({"resources": {"much": much}, **given}, code=2)
    assert "the queue can never hold these resources" in result.output
    assert f"much: {why}" in result.output
    assert not Path("state").exists()
    assert notes() == []


@pytest.mark.parametrize("more", [{}, {"exclusive": True, "with": [{"type": "core", "count": 1}]}])
def test_a_whole_node_that_this_machine_does_not_reserve_causes_a_warning(
    more: dict[str, Any],
) -> None:
    document = tasks({"name": "a", "command": "true", "resources": "n"})
    document["resources"] = {"n": {"type": "node", "count": 1, **more}}
    output = run(document).output
    assert "'a' requests whole nodes, but 'local' reserves only its cores" in output


def test_options_before_run_are_accepted_as_in_jobspec_0_0() -> None:
    Path("work.yaml").write_text(json.dumps(tasks({"command": note("t")})))
    words = ["jobspec", "--quiet", "run", "work.yaml", "--state", "state", *RUN]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.output) == (0, "")


# -- many tasks, and kills ------------------------------------------------------------------------


def many(count: int) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return a jobspec with random dependencies, and the dependencies by task."""
    chance = random.Random(7)
    before = {
        f"t{n}": [f"t{m}" for m in chance.sample(range(n), min(n, chance.randrange(4)))]
        for n in range(count)
    }
    given = [
        {"name": name, "command": note(name), "depends_on": waits} for name, waits in before.items()
    ]
    chance.shuffle(given)
    return tasks(*given), before


def heeded(before: dict[str, list[str]]) -> None:
    """Check that each task ran once, after all its dependencies."""
    ran = notes()
    assert sorted(ran) == sorted(before)
    place = {name: number for number, name in enumerate(ran)}
    assert all(place[wait] < place[name] for name, waits in before.items() for wait in waits)


def test_two_hundred_tasks_end_in_an_order_that_respects_their_dependencies() -> None:
    document, before = many(200)
    run(document, "-q")
    heeded(before)


def test_a_killed_run_is_resumed_and_repeats_nothing() -> None:
    document, before = many(60)
    Path("work.yaml").write_text(json.dumps(document))
    words = ["jobspec", "run", "work.yaml", "--state", "state", "--tag", "one", "--or-resume", *RUN]
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.DEVNULL)
    wait_until(lambda: len(notes()) > 10 or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    heeded(before)


@pytest.mark.parametrize(
    ("end", "code"),
    [("return False", 1), ("return True", 0), ("return None", 0), ("return 3", 3), ("1 / 0", 1)],
)
def test_a_third_party_transformer_that_reports_failure_gives_an_exit_code(
    end: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"class Transformer:\n    def run(self, file):\n        {end}\n"
    Path("jobspec_theirs.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_upstream("theirs", "work.yaml") == code
