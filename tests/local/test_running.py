"""Jobs of the local executor: environment, folder, command, output and status."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing.executor import Session

from ensemble_core.errors import ExecutorError
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.events import JobEvent, ResizeOutcome, Resources
from ensemble_core.model.jobs import Job


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Session]:
    executor = LocalExecutor(slots=4, max_slots=6, gpus=4, grace=0.3)
    with Session(executor, tmp_path / "run", 120, tidy=True) as session:
        yield session


def sh(session: Session, script: str, **fields: Any) -> Job:
    return session.job("sh", "-c", script, **fields)


def output(session: Session, job: Job, stream: str = "stdout") -> str:
    return Path(session.context(job, "start")[stream]).read_text()


def exception(session: Session, job: Job) -> tuple[str, str, int]:
    context = session.context(job, "exception")
    assert context["severity"] == 0
    return context["type"], context["note"], context.get("status", 0) >> 8


def test_each_task_knows_its_job_and_rank(local: Session) -> None:
    script = "echo $ENSEMBLE_JOB_ID $ENSEMBLE_GROUP $ENSEMBLE_INDEX $ENSEMBLE_RUN"
    script += " $ENSEMBLE_TASK_RANK/$ENSEMBLE_TASK_COUNT"
    job = sh(local, script, tasks=3, group="melt")
    local.run(job)
    lines = sorted(output(local, job).splitlines())
    assert lines == [f"melt.0 melt 0 {local.tag} {rank}/3" for rank in range(3)]


def test_tasks_start_together(local: Session) -> None:
    """Each waits for all others, so they would hang if started one after the other."""
    script = "touch r$ENSEMBLE_TASK_RANK; until [ -e r0 -a -e r1 -a -e r2 -a -e r3 ]; do :; done"
    job = sh(local, script, tasks=4, workdir=str(local.folder / "w"), duration=20)
    local.run(job)
    assert local.context(job, "finish")["status"] == 0


def test_gpus_are_disjoint_among_tasks_and_jobs(local: Session) -> None:
    script = (
        'echo "$CUDA_VISIBLE_DEVICES"; touch $ENSEMBLE_GROUP; until [ -e a -a -e b ]; do :; done'
    )
    where = str(local.folder / "w")
    pair = sh(local, script, group="a", tasks=2, gpus_per_task=1, workdir=where, duration=20)
    one = sh(local, script, group="b", gpus_per_task=2, workdir=where, duration=20)
    none = sh(local, "echo $CUDA_VISIBLE_DEVICES", group="c")
    local.run(pair, one, none)
    assert sorted(output(local, pair).split()) == ["0", "1"]
    assert output(local, one).split() == ["2,3"]
    assert output(local, none).split() == ["-1"]


def test_an_outer_mpi_launcher_is_not_seen_by_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "FLUX_TASK_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KEEP", "1")
    with Session(LocalExecutor(slots=1), tmp_path) as session:
        job = session.job("env", environment={"PMI_SIZE": "7"})
        session.run(job)
        seen = output(session, job).splitlines()
    assert "KEEP=1" in seen
    assert "PMI_SIZE=7" in seen
    assert not [line for line in seen if line.startswith(("PMI_RANK", "PMIX", "OMPI", "FLUX_T"))]


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 77", 77), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
)
def test_status_is_the_exit_code_or_the_signal(local: Session, script: str, code: int) -> None:
    job = sh(local, script)
    local.run(job)
    assert os.waitstatus_to_exitcode(local.context(job, "finish")["status"]) == code


def test_the_status_is_the_highest_exit_code_of_the_tasks(local: Session) -> None:
    job = sh(local, "exit $((ENSEMBLE_TASK_RANK * 2))", tasks=4)
    local.run(job)
    assert os.waitstatus_to_exitcode(local.context(job, "finish")["status"]) == 6


def test_an_error_of_one_task_does_not_end_the_others(local: Session) -> None:
    job = sh(local, "[ $ENSEMBLE_TASK_RANK = 0 ] && exit 5; sleep 0.6; echo done", tasks=3)
    local.run(job)
    assert output(local, job) == "done\ndone\n"
    assert os.waitstatus_to_exitcode(local.context(job, "finish")["status"]) == 5


def test_a_task_killed_by_a_signal_ends_the_others_and_gives_the_status(local: Session) -> None:
    job = sh(local, "[ $ENSEMBLE_TASK_RANK = 1 ] && kill -9 $$; sleep 1000", tasks=3)
    local.run(job)
    assert os.waitstatus_to_exitcode(local.context(job, "finish")["status"]) == -9


def test_signals_that_python_ignores_are_not_ignored_by_jobs(local: Session) -> None:
    """A job that writes into a closed pipe must end as in a shell."""
    job = local.job("grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
    local.run(job)
    for line in output(local, job).splitlines():
        assert int(line.split()[1], 16) & (1 << 12 | 1 << 1) == 0, line


def test_signals_that_a_user_ignores_are_ignored_by_jobs(tmp_path: Path) -> None:
    """As with nohup."""
    ignored = (signal.SIGHUP, signal.SIGUSR1)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        with Session(LocalExecutor(slots=1), tmp_path, 120) as session:
            job = session.job("grep", "^SigIgn", "/proc/self/status")
            session.run(job)
            bits = int(output(session, job).split()[1], 16)
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    assert [number for number in signal.valid_signals() if bits >> (number - 1) & 1] == [*ignored]


def test_jobs_inherit_no_descriptors(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        with Session(LocalExecutor(slots=1), tmp_path, 120) as session:
            job = session.job("ls", "/proc/self/fd")
            session.run(job)
            assert set(output(session, job).split()) <= {"0", "1", "2", "3"}
            os.close(writing)
            assert os.read(reading, 1) == b""  # nor did the supervisor inherit it
    finally:
        os.close(reading)


def test_standard_input_is_empty(local: Session) -> None:
    job = local.job("cat")
    local.run(job)
    assert local.context(job, "finish")["status"] == 0


def test_a_missing_workdir_is_created(local: Session, tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "ü" / "c"
    job = local.job("pwd", workdir=str(folder))
    local.run(job)
    assert output(local, job) == f"{folder}\n"
    assert local.context(job, "start")["workdir"] == str(folder)


def test_relative_workdirs_start_at_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(LocalExecutor(slots=1), Path("run"), 120) as session:
        first = session.job("pwd", workdir="x/../y")
        session.run(first)
        (tmp_path / "elsewhere").mkdir()
        os.chdir(tmp_path / "elsewhere")  # as a custom function might
        second, third = session.job("pwd", workdir="y"), session.job("pwd")
        session.run(second, third)
        assert os.getcwd() == str(tmp_path / "elsewhere")
        texts = [output(session, job) for job in (first, second, third)]
    assert texts == [f"{tmp_path}/y\n", f"{tmp_path}/y\n", f"{tmp_path}\n"]
    assert (tmp_path / "run" / "t.0.out").exists()


def test_the_controllers_working_directory_never_changes(local: Session, tmp_path: Path) -> None:
    before = os.getcwd()
    local.run(*(local.job("true", workdir=str(tmp_path / str(n))) for n in range(10)))
    assert os.getcwd() == before


def test_an_impossible_workdir_fails_the_job(local: Session) -> None:
    file = local.folder.parent / "file"
    file.write_text("")
    under, itself = (local.job("true", workdir=str(path)) for path in (file / "sub", file))
    strange = local.job("true", workdir="a\0b")
    good = local.job("true")
    local.run(under, itself, strange, good)
    assert exception(local, under)[0] == "workdir"
    assert exception(local, itself)[0] == "workdir"
    assert exception(local, strange)[0] == "workdir"
    assert "start" not in local.names(under)
    assert local.names(good)[-1] == "clean"


def test_a_relative_command_is_searched_in_the_workdir(local: Session, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\necho from $1\n")
    (folder / "tool").chmod(0o755)
    job = local.job("./tool", "here", workdir=str(folder))
    named = local.job("tool", "path", environment={"PATH": f"/nowhere:{folder}"})
    plain = local.job("tool", workdir=str(folder))
    local.run(job, named, plain)
    assert output(local, job) == "from here\n"
    assert output(local, named) == "from path\n"
    kind, note, code = exception(local, plain)
    assert (kind, code) == ("exec", 127)
    assert "./tool" in note


def test_the_note_says_why_a_command_cannot_run(local: Session, tmp_path: Path) -> None:
    plain, orphan = tmp_path / "plain", tmp_path / "orphan"
    plain.write_text("data")
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    cases = {
        "no-such-command": (127, "command not found"),
        "./none": (127, "no such file"),
        str(plain): (126, "chmod"),
        str(tmp_path): (126, "folder"),
        str(orphan): (127, "interpreter"),
        "": (127, "empty"),
    }
    jobs = {command: local.job(command) for command in cases}
    local.run(*jobs.values())
    for command, job in jobs.items():
        kind, note, code = exception(local, job)
        assert (kind, code) == ("exec", cases[command][0]), note
        assert cases[command][1] in note
        assert local.names(job)[-2:] == ["free", "clean"]
        assert "finish" not in local.names(job)


def test_a_script_without_a_shebang_runs_as_in_a_shell(local: Session) -> None:
    script = local.folder.parent / "script"
    script.write_text("echo $1 $2\n")
    script.chmod(stat.S_IRWXU)
    job = local.job(str(script), "one", "two")
    local.run(job)
    assert output(local, job) == "one two\n"


def test_a_program_that_is_replaced_during_the_run_is_found_again(local: Session) -> None:
    folder = local.folder.parent
    first, second = folder / "1", folder / "2"
    for place in (first, second):
        place.mkdir()
        (place / "tool").write_text(f"#!/bin/sh\necho {place.name}\n")
        (place / "tool").chmod(0o755)
    path = {"PATH": f"{first}:{second}:{os.environ['PATH']}"}
    before = local.job("tool", environment=path)
    local.run(before)
    (first / "tool").unlink()
    after = local.job("tool", environment=path)
    local.run(after)
    assert (output(local, before), output(local, after)) == ("1\n", "2\n")


def test_too_long_arguments_fail_the_job(local: Session) -> None:
    job, odd = local.job("echo", "x" * 3_000_000), local.job("echo", "a\0b")
    bad = local.job("true", environment={"A=B": "1"})
    good = local.job("true")
    local.run(job, odd, bad, good)
    assert "too long" in exception(local, job)[1]
    assert exception(local, odd)[0] == "exec"
    assert exception(local, bad)[0] == "exec"
    assert local.context(good, "finish")["status"] == 0


def test_output_is_kept_in_the_runs_folder_without_empty_files(local: Session) -> None:
    job = sh(local, "echo out; echo err >&2")
    silent = local.job("true")
    local.run(job, silent)
    assert output(local, job) == "out\n"
    assert output(local, job, "stderr") == "err\n"
    kept = sorted(path.name for path in local.folder.iterdir() if path.is_file())
    assert kept == ["t.0.err", "t.0.out"]


def test_output_is_never_in_the_file_of_another_job(local: Session) -> None:
    jobs = [sh(local, "true" if n % 3 else f"echo {n}; echo {n} >&2") for n in range(60)]
    local.run(*jobs)
    kept = {path.name: path.read_text() for path in local.folder.iterdir() if path.is_file()}
    loud = range(0, 60, 3)
    assert kept == {f"t.{n}.{kind}": f"{n}\n" for n in loud for kind in ("out", "err")}


def test_a_followed_file_never_becomes_that_of_another_job(local: Session, tmp_path: Path) -> None:
    """A follower keeps a job's output open for a while after the job's end."""
    gate = tmp_path / "gate"
    waits = f"while [ ! -e {gate} ]; do sleep 0.01; done"
    silent = [sh(local, waits, observe={"lines": {}}) for _ in range(4)]
    local.submit(*silent)
    with contextlib.ExitStack() as stack:
        followed = [
            stack.enter_context(open(local.wait_for(job, "start")["stdout"])) for job in silent
        ]
        loud = [sh(local, f"echo {n}") for n in range(20)]
        local.submit(*loud)
        gate.touch()
        local.wait_clean(*silent, *loud)
        assert [file.read() for file in followed] == [""] * len(silent)


def test_both_streams_may_share_a_file(local: Session) -> None:
    folder = local.folder.parent / "w"
    script = "for n in 1 2 3 4 5; do echo o$n; echo e$n >&2; done"
    job = sh(
        local, script, tasks=4, workdir=str(folder), stdout="log/a.txt", stderr="log/../log/a.txt"
    )
    local.run(job)
    lines = (folder / "log" / "a.txt").read_text().split()
    assert sorted(lines) == sorted([f"{s}{n}" for s in "oe" for n in range(1, 6)] * 4)


def test_jobs_share_a_file_but_output_of_earlier_runs_is_removed(local: Session) -> None:
    file = local.folder.parent / "all.txt"
    file.write_text("from an earlier run\n")
    jobs = [sh(local, f"echo {n}", stdout=str(file)) for n in range(20)]
    local.run(*jobs[:10])
    local.run(*jobs[10:])
    assert sorted(file.read_text().split(), key=int) == [str(n) for n in range(20)]


def test_an_output_file_that_cannot_be_opened_fails_the_job(local: Session) -> None:
    pipe = local.folder.parent / "pipe"
    os.mkfifo(pipe)
    jobs = [
        local.job("true", stdout=path)
        for path in (str(local.folder.parent), "/proc/none/x", "a\0b", str(pipe))
    ]
    jobs.append(local.job("true", stderr="/dev/null/x"))
    good = local.job("true", stdout="/dev/null")
    local.run(*jobs, good)
    assert {exception(local, job)[0] for job in jobs} == {"output"}
    assert local.context(good, "finish")["status"] == 0


def test_a_full_disk_fails_the_job(local: Session) -> None:
    job = sh(local, "echo text", stdout="/dev/full")
    local.run(job)
    assert local.context(job, "finish")["status"] != 0


def test_a_job_that_never_fits_fails_at_once_with_a_hint(local: Session) -> None:
    wide, many = local.job("true", tasks=7), local.job("true", gpus_per_task=5)
    nodes = local.job("true", nodes=4, tasks=4)
    local.run(wide, many, nodes)
    assert exception(local, wide)[0] == exception(local, many)[0] == "alloc"
    assert "--max-slots 7" in exception(local, wide)[1]
    assert local.names(wide) == [
        *("submit", "validate", "depend", "priority", "exception", "clean"),
    ]
    assert local.context(nodes, "finish")["status"] == 0


def test_invalid_values_in_a_job_fail_that_job(local: Session) -> None:
    jobs = [local.job("true", urgency=32), local.job("true", tasks=0)]
    local.run(*jobs)
    assert {exception(local, job)[0] for job in jobs} == {"validate"}


def test_jobs_never_exceed_the_slots(local: Session) -> None:
    jobs = [local.job("true", tasks=n % 3 + 1) for n in range(60)]
    local.run(*jobs)
    used, cores = 0, {job.id: job.cores for job in jobs}
    for event in local.events:
        if isinstance(event, JobEvent):
            used += {"alloc": 1, "free": -1}.get(event.name, 0) * cores[event.job]
            assert 0 <= used <= 4


def test_gauges_are_reported_only_when_they_change(local: Session) -> None:
    job = local.job("sleep", "0.2", tasks=3)
    local.run(job)
    local.wait(
        lambda: (
            [dict(e.values) for e in local.events if isinstance(e, Resources)]
            == [{"cores.free": 1.0}, {"cores.free": 4.0}]
        ),
        "the gauges",
    )
    assert local.executor.resources()["cores.free"] == 4


def resize(session: Session, request: str, delta: int) -> tuple[str, int | None, str]:
    session.executor.resize(request, delta)
    found: list[ResizeOutcome] = []

    def answered() -> bool:
        found[:] = [
            e for e in session.events if isinstance(e, ResizeOutcome) and e.request == request
        ]
        return bool(found)

    session.wait(answered, request)
    return found[0].outcome, found[0].size, found[0].reason


def test_grow_adds_slots_up_to_the_bound(local: Session) -> None:
    jobs = [local.job("sleep", "1000") for _ in range(6)]
    local.submit(*jobs)
    local.wait_for(jobs[3], "start")
    assert "start" not in local.names(jobs[4])
    assert resize(local, "a", 1) == ("granted", 5, "")
    local.wait_for(jobs[4], "start")
    assert resize(local, "b", 4) == ("granted", 6, "--max-slots is 6")
    local.wait_for(jobs[5], "start")
    assert resize(local, "c", 1) == ("denied", 6, "--max-slots is 6")


def test_shrink_ends_no_job(local: Session) -> None:
    jobs = [
        sh(local, "until [ -e go ]; do sleep 0.02; done", workdir=str(local.folder)) for _ in "ab"
    ]
    later = local.job("true", tasks=1)
    local.submit(*jobs)
    local.wait_for(jobs[1], "start")
    assert resize(local, "a", -3) == ("granted", 1, "")
    assert resize(local, "b", -1) == ("denied", 1, "--min-slots is 1")
    assert local.executor.resources()["cores.free"] == 0
    local.submit(later)
    (local.folder / "go").write_text("")
    local.wait_clean(*jobs, later)
    assert {local.context(job, "finish")["status"] for job in jobs} == {0}


def test_a_held_job_waits_until_it_is_cancelled(local: Session) -> None:
    held, other = local.job("true", urgency=0), local.job("true")
    local.submit(held)
    local.run(other)
    assert local.names(held) == ["submit", "validate", "depend", "priority"]
    local.executor.cancel([held.id])
    local.wait_clean(held)


def test_a_batch_with_a_duplicate_id_is_rejected(local: Session) -> None:
    first, other = local.job("sleep", "1000"), local.job("true")
    local.submit(first)
    with pytest.raises(ExecutorError, match=r"t\.0 was submitted already"):
        local.submit(other, first)
    with pytest.raises(ExecutorError, match="already"):
        local.submit(other, other)
    local.run(local.job("true"))
    assert not local.of(other)
    local.run(other)


def test_events_come_in_batches(local: Session) -> None:
    jobs = [local.job("true") for _ in range(2000)]
    local.run(*jobs)
    assert len(local.batches) < len(local.events) / 3


def test_a_closed_executor_can_be_opened_again(tmp_path: Path) -> None:
    executor = LocalExecutor(slots=1)
    with Session(executor, tmp_path):
        pass
    with Session(executor, tmp_path) as session:
        session.run(session.job("true"))


def test_importing_it_loads_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys, ensemble_core.local.executor;"
        "print([n for n in ('river', 'numpy', 'rich', 'yaml', 'subprocess') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
