"""Commands that set up software of the machine: modules, conda and venv."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import ENVIRONMENT_FAILED

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
