"""Commands that run a job in its environment, and checks that the environment exists.

Environments are modules, conda and venv, which set up software of the machine, and containers of
Apptainer and Podman.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import ENVIRONMENT_FAILED, EnsembleError

if TYPE_CHECKING:
    from ensemble_core import Job


def failed(message: str) -> str:
    """Return shell commands that end the job with this message, in which ``$`` is expanded."""
    return f'{{ echo "ensemble: {message}" >&2; exit {ENVIRONMENT_FAILED}; }}'


def listed(value: str | list[str]) -> list[str]:
    """Return an option that is a text or a list as a list."""
    return [value] if isinstance(value, str) else list(value)


#: Bash function. ``attempt NAME COMMAND …`` runs a command that changes the shell. If it fails, it
#: is run again in another shell for its words, which become the last line of the job's standard
#: error. Modules may set variables of any name, so ours have long names.
_ATTEMPT = rf"""
attempt() {{
  local ensemble_name=$1 ensemble_said; shift
  "$@" && return
  ensemble_said=$("$@" 2>&1)
  ensemble_said=$(grep -i -m 1 -A 1 error <<<"$ensemble_said" || grep -m 1 . <<<"$ensemble_said")
  ensemble_said=${{ensemble_said#"${{ensemble_said%%[![:space:]]*}}"}}
  ensemble_said=${{ensemble_said//$'\n'/ }}
  echo "ensemble: '$ensemble_name' failed: $ensemble_said" >&2
  exit {ENVIRONMENT_FAILED}
}}
"""

#: A login shell defines the function ``module``, but the shells of jobs are not login shells.
_MODULE = """
if ! type module >/dev/null 2>&1; then
  for init in "${MODULESHOME:-}/init/bash" "${LMOD_PKG:-}/init/bash" \\
      /etc/profile.d/{modules,z00_lmod,lmod,z01_lmod}.sh /usr/share/modules/init/bash \\
      /usr/share/lmod/lmod/init/bash /usr/share/Modules/init/bash /opt/cray/pe/lmod/lmod/init/bash
  do
    [ -r "$init" ] && . "$init" >/dev/null && type module >/dev/null 2>&1 && break
  done
fi
"""

#: Version 3 of Environment Modules reports no failure: a module that is not loaded has failed.
_LOAD = r"""
load() {
  local ensemble_before=${LOADEDMODULES:-}
  module load "$1" || return
  case ":${LOADEDMODULES:-}:" in ":$ensemble_before:") ;; *) return 0 ;; esac
  case ":$ensemble_before" in *":${1%%/*}:"* | *":${1%%/*}/"* | *":${1%%/*}") return 0 ;; esac
  return 1
}
"""


def module(job: Job, options: Mapping[str, Any]) -> list[str]:
    """Return a command that loads modules first."""
    missing = failed("there is no command 'module' on $(hostname)")
    lines = [
        'command=("$@"); set --',
        _ATTEMPT.strip(),
        _MODULE.strip(),
        f"type module >/dev/null 2>&1 || {missing}",
        _LOAD.strip(),
    ]
    if options.get("purge"):
        lines.append("module purge")
    lines += [
        _attempt(f"module use {shlex.quote(each)}") for each in listed(options.get("use", []))
    ]
    lines += [
        _attempt(f"module load {each}", f"load {shlex.quote(each)}")
        for each in listed(options["module"])
    ]
    return _bash(lines, job)


#: Where conda is installed if it is not on the PATH.
_USUAL = '"$HOME"/{miniforge3,miniconda3,mambaforge,anaconda3}/bin/conda /opt/conda/bin/conda'
_ACTIVATE = r"""
case ${program##*/} in micromamba | mamba) name=${program##*/} ;; *) name=conda ;; esac
hook=$("$program" shell.bash hook 2>/dev/null) || hook=$("$program" shell hook --shell bash)
eval "$hook"
"""


def conda(job: Job, options: Mapping[str, Any]) -> list[str]:
    """Return a command that activates an environment of conda first."""
    missing = failed("neither conda, mamba nor micromamba found on $(hostname)")
    given, given_name = options.get("program"), shlex.quote(options["conda"])
    usual = f'"${{CONDA_EXE:-}}" "${{MAMBA_EXE:-}}" conda mamba micromamba {_USUAL}'
    programs = shlex.quote(given) if given else usual
    lines = [
        'command=("$@"); set --',
        _ATTEMPT.strip(),
        f'for each in {programs}; do program=$(type -P -- "$each") && break; done',
        f'[ -n "$program" ] || {missing}',
        _ACTIVATE.strip(),
        _attempt(f"conda activate {options['conda']}", f'"$name" activate {given_name}'),
    ]
    return _bash(lines, job)


def venv(job: Job, options: Mapping[str, Any]) -> list[str]:
    """Return a command that activates a virtual environment of Python first."""
    missing = failed("'$VIRTUAL_ENV' on $(hostname) is not a virtual environment: no bin/python")
    lines = [
        f"export VIRTUAL_ENV={shlex.quote(options['venv'])}",
        f'[ -x "$VIRTUAL_ENV/bin/python" ] || {missing}',
        "PATH=$VIRTUAL_ENV/bin:$PATH; export PATH; unset PYTHONHOME",
        'exec "$@"',
    ]
    return ["sh", "-c", "\n".join(lines), "venv", *job.command]


def _attempt(name: str, command: str = "") -> str:
    return f"attempt {shlex.quote(name)} {command or name}"


def _bash(lines: list[str], job: Job) -> list[str]:
    return ["bash", "-c", "\n".join([*lines, 'exec "${command[@]}"']), "within", *job.command]


#: Variables of queues, MPI launchers and GPUs, which a container of Podman gets beside those of the
#: group. Apptainer passes on all variables.
_VARIABLES = (
    "ENSEMBLE_*", "OMP_*", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK", "SLURM_*", "PBS_*", "FLUX_*", "PMI_*", "PMIX_*", "OMPI_*", "JOB_ID",
)  # fmt: skip


def is_file(image: str) -> bool:
    """Return True if an image of Apptainer is a file or folder, and not a URI."""
    return "://" not in image


def apptainer(job: Job, options: Mapping[str, Any]) -> list[str]:
    """Return a command that runs in a container of Apptainer, or of Singularity, its old name."""
    image = options["apptainer"]
    missing = failed("neither apptainer nor singularity found on $(hostname)")
    words = ["exec", "--bind", '"$PWD"', "--pwd", '"$PWD"']
    words += [f"--{name}" for name in ("nv", "rocm") if options.get(name)]
    for each in options.get("bind", ()):
        words += ["--bind", shlex.quote(each)]
    words += [shlex.quote(each) for each in options.get("args", ())]
    lines = [
        "program=$(command -v apptainer || command -v singularity) || " + missing,
        f"image={shlex.quote(image)}",
    ]
    if is_file(image):
        lines.append('[ -r "$image" ] || ' + failed("there is no image '$image' on $(hostname)"))
    lines.append(f'exec "$program" {" ".join(words)} "$image" "$@"')
    return ["sh", "-c", "\n".join(lines), "apptainer", *job.command]


def podman(job: Job, options: Mapping[str, Any]) -> list[str]:
    """Return a command that runs in a container of Podman.

    The container stays in the cgroup of the job, so that the queue's limits hold for it and the
    queue can end it. With an init process, signals reach the program.
    """
    words = ["run", "--rm", "--network=host", "--cgroups=disabled", "$init"]
    words += ["--security-opt=label=disable", '--volume="$PWD:$PWD"', '--workdir="$PWD"']
    names = dict.fromkeys((*_VARIABLES, *job.environment))
    words += [f"--env={shlex.quote(name)}" for name in names]
    words += [f"--volume={shlex.quote(_volume(each))}" for each in options.get("bind", ())]
    words += [shlex.quote(each) for each in options.get("args", ())]
    folders = "/usr/libexec/podman /usr/libexec /usr/local/libexec/podman /usr/lib/podman /usr/bin"
    pull = failed("cannot pull the image '$image' on $(hostname): $(tail -n 1 <<X\n$said\nX\n)")
    lines = [
        "command -v podman >/dev/null || " + failed("there is no command 'podman' on $(hostname)"),
        f"image={shlex.quote(options['podman'])}",
        'podman image exists "$image" || said=$(podman pull -q "$image" 2>&1) || ' + pull,
        f'init=; for each in {folders}; do [ ! -x "$each/catatonit" ] || init=--init; done',
        # Rootless, the user outside is the user inside, so that files belong to the user.
        'own=--userns=keep-id; [ "$(id -u)" -ne 0 ] || own=--userns=host',
        f'exec podman {" ".join(words)} "$own" "$image" "$@"',
    ]
    return ["sh", "-c", "\n".join(lines), "podman", *job.command]


def _volume(bind: str) -> str:
    """Return a bind of Apptainer as Podman writes it: always with the path inside."""
    return bind if ":" in bind else f"{bind}:{bind}"


def check(options: Mapping[str, Any], local: bool) -> None:
    """Raise :class:`EnsembleError` if an environment does not exist.

    With ``local``, jobs run on this machine, which must have the program of a container.
    """
    import shutil  # slow: it loads archive formats

    for each in options.get("bind", ()):
        _check_path(each.partition(":")[0], "folder or file")
    if "venv" in options:
        folder = options["venv"]
        _check_path(folder, "virtual environment", f"python3 -m venv {folder}")
        if not os.access(os.path.join(folder, "bin", "python"), os.X_OK):
            # '--clear' removes everything in the folder, so only what is broken gets this hint.
            broken = os.path.exists(os.path.join(folder, "pyvenv.cfg"))
            raise _missing(
                f"{folder!r} is not a virtual environment: it has no bin/python",
                f"python3 -m venv {f'--clear {folder}' if broken else f'{folder}/venv'}",
            )
    elif "conda" in options and "/" in options["conda"]:
        folder = options["conda"]
        _check_path(folder, "environment of conda", f"conda create -p {folder} …")
        if not os.path.isdir(os.path.join(folder, "conda-meta")):
            raise _missing(f"{folder!r} is not an environment of conda: it has no conda-meta")
    elif "apptainer" in options:
        if is_file(options["apptainer"]):
            _check_path(options["apptainer"], "image")
        if local and not (shutil.which("apptainer") or shutil.which("singularity")):
            raise _missing("neither apptainer nor singularity is installed on this machine")
    elif "podman" in options and local and not shutil.which("podman"):
        raise _missing("podman is not installed on this machine")


def _check_path(path: str, noun: str, create: str = "") -> None:
    if not os.path.isabs(path):
        expanded = os.path.expanduser(os.path.expandvars(path))
        other = expanded if os.path.isabs(expanded) else f"{{here}}/{path}"
        raise EnsembleError(
            f"the path of the {noun}, {path!r}, is not absolute"
            + (", and no shell expands it" if other == expanded else ""),
            hint=f"write {other}",
            code="bad-value",
        )
    if not os.path.exists(path):
        raise _missing(f"there is no {noun} {path!r}", create)


def _missing(what: str, create: str = "") -> EnsembleError:
    return EnsembleError(what, hint=create and f"create it: {create}", code="no-such-environment")
