"""Commands that run in a container: Apptainer and Podman."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_environments.software import failed

if TYPE_CHECKING:
    from ensemble_core import Job

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
