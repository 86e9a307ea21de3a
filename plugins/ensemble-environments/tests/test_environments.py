"""The environments at work: real ones where this machine has them, otherwise programs like them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_environments import ensemble_environments
from ensemble_testing import EnvironmentContract

from ensemble_core import ENVIRONMENT_FAILED, EnsembleError, Job

RECORDS = {record.name: record for record in ensemble_environments()}
#: Words that a shell would change.
WORDS = ("two words", "$HOME", "it's", '"', "*", "\\", "")
SHOW = (sys.executable, "-c", "import os, sys; print(os.getcwd(), *sys.argv[1:], sep='|')")

#: Debian can have only one of them at a time: environment-modules or lmod.
REAL_MODULES = ("/usr/share/modules/init/bash", "/usr/share/lmod/lmod/init/bash")
#: Lmod: fails with several lines, and shows how long the list of arguments is if it gets any.
LMOD = """
module() {
  case $1 in
    use) export MODULEPATH=$2 ;;
    purge) unset LOADEDMODULES ;;
    load)
      [ -d "$MODULEPATH/$2" ] || {
        printf 'Lmod has detected the following error: unknown:\\n"%s"\\n\\n' "$2" >&2
        printf 'Please check the spelling or version number.\\n' >&2; return 1; }
      export LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}$2 ensemble=set name=set ;;
  esac
}
"""
#: Version 3 of Environment Modules: its exit code is 0 even if it fails.
OLD = LMOD.replace("return 1; }", "return 0; }").replace(
    "Lmod has detected", "ModuleCmd: ERROR:105:"
)
CONDA = """#!/bin/bash
[ "$1 $2" = "HOOK" ] || { echo "invalid choice: $1" >&2; exit 2; }
cat <<'X'
NAME() {
  [ "$1" = activate ] || return 2
  [ -d "ROOT/envs/$2" ] || {
    printf '\\nEnvironmentNameNotFound: Could not find conda environment: %s\\n' "$2" >&2; return 1; }
  export CONDA_PREFIX=ROOT/envs/$2 PATH=ROOT/envs/$2/bin:$PATH
}
X
"""
APPTAINER = """#!/bin/bash
# Rejects unknown options, and starts in / unless the working directory is in the container.
[ "$1" = exec ] || exit 255; shift
while [ "${1#--}" != "$1" ]; do
  case $1 in
    --bind) binds+=("${2%%:*}"); shift 2 ;;
    --pwd) folder=$2; shift 2 ;;
    --nv | --rocm) export GPU=$1; shift ;;
    --cleanenv) unset SECRET; shift ;;
    *) echo "Error: unknown flag: $1" >&2; exit 255 ;;
  esac
done
image=$1; shift
[ -r "$image" ] || { echo "FATAL: could not open image $image" >&2; exit 255; }
cd /
for each in "${binds[@]}"; do [ "$each" != "$folder" ] || cd "$folder"; done
exec "$@"
"""
PODMAN = """#!/bin/bash
# Its container has only the variables that the options name.
case "$1 $2" in
  "image exists") [ "$3" = here ]; exit ;;
  "pull -q") [ "$3" = far ] || { echo "Error: pinging registry: refused" >&2; exit 125; }; exit ;;
esac
[ "$1" = run ] || exit 125; shift
kept=()
while [ "${1#--}" != "$1" ]; do
  case $1 in
    --rm | --init | --network=host | --cgroups=* | --security-opt=* | --userns=* | --shm-size=1g) ;;
    --volume=*:*) volumes+=" ${1#*=}" ;;
    --workdir=*) folder=${1#*=} ;;
    --env=*\\*) for n in $(compgen -e "$(x=${1#*=}; echo "${x%?}")"); do kept+=("$n=${!n}"); done ;;
    --env=*) n=${1#*=}; [ -z "${!n+x}" ] || kept+=("$n=${!n}") ;;
    *) echo "Error: unknown flag: $1" >&2; exit 125 ;;
  esac
  shift
done
shift
cd / && case $volumes in *" $folder:$folder"*) cd "$folder" ;; esac
exec env -i "VOLUMES=$volumes" "${kept[@]}" "$@"
"""


class Machine:
    """A machine with the programs of a test, on which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.work = folder / "the work"
        self.bin.mkdir()
        self.work.mkdir()
        self.variables = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder), "SECRET": "s"}

    def program(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(
        self, name: str, options: Mapping[str, Any], command: tuple[str, ...] = (*SHOW, *WORDS)
    ) -> subprocess.CompletedProcess[str]:
        job = Job(id="a.0", group="a", index=0, command=command, environment={"COLOR": "red"})
        words = RECORDS[name].wrap(job, options)
        return subprocess.run(
            words,
            cwd=self.work,
            env={**self.variables, "COLOR": "red", "ENSEMBLE_INDEX": "0"},
            capture_output=True,
            text=True,
        )

    def shows(self, name: str, options: Mapping[str, Any], code: str) -> str:
        """Return what Python code prints in the environment, after checking the command's words."""
        done = self.run(name, options)
        assert done.stdout == "|".join([str(self.work), *WORDS]) + "\n", done.stderr
        done = self.run(name, options, (sys.executable, "-c", f"import os; E = os.environ; {code}"))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def fails(self, name: str, options: Mapping[str, Any]) -> str:
        """Return the last line of the error of an environment that cannot be set up."""
        done = self.run(name, options)
        assert (done.returncode, done.stdout) == (ENVIRONMENT_FAILED, ""), done.stderr
        return done.stderr.splitlines()[-1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def modules(machine: Machine, text: str | None) -> None:
    """Give the machine modules; ``None``: the real ones."""
    if text is None:
        if not any(map(os.path.exists, REAL_MODULES)):
            pytest.skip("neither Environment Modules nor Lmod is installed")
    else:
        (machine.folder / "init").mkdir()
        (machine.folder / "init" / "bash").write_text(text)
        machine.variables["LMOD_PKG"] = str(machine.folder)
    for name in ("gromacs/2024", "cuda"):
        path = machine.folder / "modules" / name
        if text is not None:
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#%Module\nsetenv ensemble set\nsetenv name set\n")


@pytest.mark.parametrize("text", [None, LMOD, OLD], ids=["real", "lmod", "version 3"])
def test_modules_are_loaded_in_order(machine: Machine, text: str | None) -> None:
    modules(machine, text)
    own = str(machine.folder / "modules")
    options = {"module": ["gromacs/2024", "cuda"], "use": own, "purge": True}
    shown = machine.shows("module", options, "print(E['LOADEDMODULES'], E['name'], E['ensemble'])")
    assert shown == "gromacs/2024:cuda set set"
    wrong = machine.fails("module", {"module": "gromacs/2099", "use": own})
    assert wrong.startswith("ensemble: 'module load gromacs/2099' failed: "), wrong
    assert "error" in wrong.lower(), wrong
    assert wrong.count("gromacs/2099") == 2, wrong


def test_a_machine_without_modules_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_environments.environment_commands._MODULE", "")
    assert "there is no command 'module' on " in machine.fails("module", {"module": "x"})


@pytest.mark.parametrize(
    ("program", "hook", "where"),
    [
        ("conda", "shell.bash hook", "PATH"),
        ("conda", "shell.bash hook", "option"),
        ("conda", "shell.bash hook", "home"),
        ("micromamba", "shell hook", "PATH"),
    ],
)
def test_an_environment_of_conda_is_activated(
    machine: Machine, program: str, hook: str, where: str
) -> None:
    text = CONDA.replace("HOOK", hook).replace("NAME", program, 1)
    path = machine.program(program, text.replace("ROOT", str(machine.folder)))
    (machine.folder / "envs" / "md").mkdir(parents=True)
    options = {"conda": "md"}
    if where != "PATH":
        home = machine.folder / "miniforge3" / "bin"
        home.mkdir(parents=True)
        path = path.rename(home / program)
        options |= {"program": str(path)} if where == "option" else {}
    shown = machine.shows("conda", options, "print(E['CONDA_PREFIX'])")
    assert shown == f"{machine.folder}/envs/md"
    wrong = machine.fails("conda", {**options, "conda": "nd"})
    assert wrong == (
        "ensemble: 'conda activate nd' failed: EnvironmentNameNotFound: Could not find conda "
        "environment: nd"
    )


def test_a_machine_without_conda_says_so(machine: Machine) -> None:
    assert "neither conda, mamba nor micromamba found" in machine.fails("conda", {"conda": "x"})


def test_a_virtual_environment_is_activated(machine: Machine) -> None:
    folder = machine.folder / "my env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    options = {"venv": str(folder)}
    shown = machine.shows("venv", options, "print(E['VIRTUAL_ENV'])")
    assert shown == str(folder)
    done = machine.run("venv", options, ("python", "-c", "import sys; print(sys.prefix)"))
    assert done.stdout == f"{folder}\n"
    wrong = machine.fails("venv", {"venv": str(machine.work)})
    assert wrong.endswith("is not a virtual environment: no bin/python")


@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_a_command_runs_in_a_container_of_apptainer(machine: Machine, program: str) -> None:
    machine.program(program, APPTAINER)
    image = machine.folder / "my image.sif"
    image.write_text("")
    options = {"apptainer": str(image), "bind": ["/data:/data:ro"]}
    assert machine.shows("apptainer", options, "print(E['SECRET'])") == "s"
    options |= {"nv": True, "args": ["--cleanenv"]}
    shown = machine.shows("apptainer", options, "print(E['GPU'], 'SECRET' in E)")
    assert shown == "--nv False"
    wrong = machine.fails("apptainer", {"apptainer": "/none.sif"})
    assert wrong.startswith("ensemble: there is no image '/none.sif' on ")
    (machine.bin / program).unlink()
    assert "neither apptainer nor singularity found" in machine.fails("apptainer", options)


def test_a_command_runs_in_a_container_of_podman(machine: Machine) -> None:
    machine.program("podman", PODMAN)
    options = {"podman": "here", "bind": ["/data", "/x:/y"], "args": ["--shm-size=1g"]}
    code = "print(E['COLOR'], E['ENSEMBLE_INDEX'], 'SECRET' in E, *E['VOLUMES'].split('work')[2:])"
    assert machine.shows("podman", options, code) == "red 0 False  /data:/data /x:/y"
    machine.shows("podman", {"podman": "far"}, "")
    wrong = machine.fails("podman", {"podman": "none"})
    assert wrong.endswith(": Error: pinging registry: refused")


#: Settings of a real Podman, and arguments of ours. The second one is for a machine on which nobody
#: may raise limits, and on which crun does not understand the cgroups.
LIMITED = """
[containers]
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
[engine]
runtime = "runc"
"""
SETTINGS = {"": [], LIMITED: ["--cgroups=enabled"]}
LINKS = ("bin", "lib", "lib64", "sbin")
USR = "/usr:/usr:ro"


def real_podman(machine: Machine) -> dict[str, Any]:
    """Return options for a container that has this machine's programs, or skip the test."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    store = machine.folder / "store"
    storage, config = machine.folder / "storage.conf", machine.folder / "containers.conf"
    storage.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{store}/all"\nrunroot = "{store}/run"\n'
    )
    machine.variables["CONTAINERS_STORAGE_CONF"] = str(storage)
    machine.variables["CONTAINERS_CONF"] = str(config)
    machine.variables["PATH"] = f"{machine.bin}:/usr/bin:/bin:/usr/sbin:/sbin"
    image = machine.folder / "image.tar"
    with tarfile.open(image, "w") as archive:
        for name in LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)

    def podman(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *words], env=machine.variables, capture_output=True, text=True
        )

    config.write_text("")
    done = podman("import", str(image), "here")
    for text, words in SETTINGS.items():
        config.write_text(text)
        arguments = words or ["--cgroups=disabled"]
        done = podman("run", "--rm", "--network=host", *arguments, f"-v={USR}", "here", "true")
        if done.returncode == 0:
            return {"podman": "here", "bind": [USR], "args": words}
    pytest.skip(f"podman starts no container here: {done.stderr.splitlines()[-1:]}")


def test_a_command_runs_in_a_container_of_a_real_podman(machine: Machine) -> None:
    options = real_podman(machine)
    text = 'echo "$PWD $# $1 $2 $COLOR $ENSEMBLE_INDEX ${SECRET-none}" | tee out; ls /; exit 3'
    done = machine.run("podman", options, ("sh", "-c", text, "sh", "two words", "$HOME"))
    assert done.returncode == 3, done.stderr
    first, *root = done.stdout.splitlines()
    assert first == f"{machine.work} 2 two words $HOME red 0 none"
    assert "root" not in root, "the machine's own folders are not there"
    assert (machine.work / "out").read_text() == f"{first}\n"


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"venv": "{0}/none"}, "there is no virtual environment '{0}/none'", "python3 -m venv"),
        (
            {"venv": "{0}"},
            "'{0}' is not a virtual environment: it has no bin/python",
            "-m venv {0}/venv",
        ),
        ({"venv": "env"}, "'env', is not absolute", "write {{here}}/env"),
        ({"venv": "~/env"}, "'~/env', is not absolute, and no shell expands it", "write /"),
        ({"conda": "{0}/none"}, "there is no environment of conda '{0}/none'", "conda create"),
        ({"conda": "{0}"}, "it has no conda-meta", ""),
        ({"apptainer": "{0}/a.sif"}, "there is no image '{0}/a.sif'", ""),
        ({"apptainer": "docker://a", "bind": ["{0}/none:/a"]}, "there is no folder or file", ""),
        ({"apptainer": "docker://a"}, "neither apptainer nor singularity is installed", ""),
        ({"podman": "a"}, "podman is not installed on this machine", ""),
    ],
)
def test_what_does_not_exist_is_reported_before_the_start(
    options: Mapping[str, Any],
    what: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    fill: Callable[[Any], Any] = lambda value: (  # noqa: E731
        [fill(each) for each in value] if isinstance(value, list) else value.format(tmp_path)
    )
    given = {name: fill(value) for name, value in options.items()}
    check = RECORDS[next(iter(given))].check
    assert check is not None
    with pytest.raises(EnsembleError) as caught:
        check(given, True)
    assert fill(what) in caught.value.what
    assert fill(hint) in (caught.value.hint or "")


def test_only_a_broken_virtual_environment_is_to_be_cleared(tmp_path: Path) -> None:
    """``--clear`` removes everything in the folder, which may be a home folder."""
    check = RECORDS["venv"].check
    assert check is not None
    for clears in (False, True):
        with pytest.raises(EnsembleError) as caught:
            check({"venv": str(tmp_path)}, True)
        assert ("--clear" in (caught.value.hint or "")) == clears
        (tmp_path / "pyvenv.cfg").touch()


def test_what_only_nodes_have_is_no_error_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for options in ({"podman": "a"}, {"apptainer": "docker://a"}, {"conda": "name"}):
        check = RECORDS[next(iter(options))].check
        assert check is not None
        check(options, False)


class TestModule(EnvironmentContract):
    plugin = RECORDS["module"]
    options: ClassVar = {"module": "cuda"}
    bad_options = ({"module": []}, {"module": "x", "purge": "yes"}, {"module": ""})
    missing: ClassVar = {"module": "gromacs/2099"}

    def prepare(self, folder: Path) -> Mapping[str, str]:
        machine = Machine(folder)
        modules(machine, LMOD)
        self.options = {"module": ["gromacs/2024", "cuda"], "use": str(folder / "modules")}
        return machine.variables


class TestConda(EnvironmentContract):
    plugin = RECORDS["conda"]
    options: ClassVar = {"conda": "md"}
    missing: ClassVar = {"conda": "nd"}
    bad_options = ({"conda": ["md"]}, {"conda": ""})

    def prepare(self, folder: Path) -> Mapping[str, str]:
        machine = Machine(folder)
        text = CONDA.replace("HOOK", "shell.bash hook").replace("NAME", "conda", 1)
        machine.program("conda", text.replace("ROOT", str(folder)))
        (folder / "envs" / "md").mkdir(parents=True)
        return machine.variables


class TestVenv(EnvironmentContract):
    plugin = RECORDS["venv"]
    options: ClassVar = {"venv": "/env"}
    missing: ClassVar = {"venv": "/no/such/folder"}
    bad_options = ({"venv": 3},)
    python = "python"

    def prepare(self, folder: Path) -> Mapping[str, str]:
        self.options = {"venv": str(folder / "it's my env")}
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", self.options["venv"]], check=True
        )
        return Machine(folder).variables


class TestApptainer(EnvironmentContract):
    plugin = RECORDS["apptainer"]
    options: ClassVar = {"apptainer": "a.sif"}
    missing: ClassVar = {"apptainer": "/none.sif"}
    bad_options = ({"apptainer": "a.sif", "bind": "/data"}, {"apptainer": "a.sif", "nv": 1})

    def prepare(self, folder: Path) -> Mapping[str, str]:
        machine = Machine(folder)
        machine.program("apptainer", APPTAINER)
        (folder / "it's.sif").write_text("")
        self.options = {"apptainer": str(folder / "it's.sif"), "bind": [f"{folder}:/data:ro"]}
        return machine.variables


class TestPodman(EnvironmentContract):
    plugin = RECORDS["podman"]
    options: ClassVar = {"podman": "here"}
    missing: ClassVar = {"podman": "none"}
    bad_options = ({"podman": "here", "args": "--gpus=all"},)

    def prepare(self, folder: Path) -> Mapping[str, str]:
        machine = Machine(folder)
        machine.program("podman", PODMAN)
        return machine.variables
