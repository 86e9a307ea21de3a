"""Environments for jobs: modules, conda, venv, Apptainer and Podman (``within: {module: …}``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import EnvironmentPlugin, hookimpl

if TYPE_CHECKING:
    from ensemble_core import Job

_TEXT: Mapping[str, Any] = {"type": "string", "minLength": 1}
_ARGUMENTS = {"type": "array", "items": {"description": "One argument.", **_TEXT}, "default": []}
_BIND = {
    "description": "Further folders in the container: PATH or PATH:PATH_INSIDE. It always has the "
    "job's working directory.",
    "type": "array",
    "items": {"description": "PATH, PATH:PATH_INSIDE or PATH:PATH_INSIDE:ro.", **_TEXT},
    "default": [],
}


def _schema(name: str, **options: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": options}


def _several(description: str, item: str) -> dict[str, Any]:
    items = {"description": item, **_TEXT}
    return {
        "description": description,
        "type": ["string", "array"],
        "minLength": 1,
        "minItems": 1,
        "items": items,
    }


def _wrap(name: str) -> Callable[[Job, Mapping[str, Any]], list[str]]:
    def wrap(job: Job, options: Mapping[str, Any]) -> list[str]:
        from ensemble_environments import environment_commands

        command: list[str] = getattr(environment_commands, name)(job, options)
        return command

    return wrap


def _check(options: Mapping[str, Any], local: bool) -> None:
    from ensemble_environments.environment_commands import check

    check(options, local)


@hookimpl
def ensemble_environments() -> Iterable[EnvironmentPlugin]:
    """Return the environments ``module``, ``conda``, ``venv``, ``apptainer`` and ``podman``."""
    yield EnvironmentPlugin(
        name="module",
        summary="modules of Environment Modules or Lmod",
        wrap=_wrap("module"),
        options=_schema(
            "module",
            module=_several("The modules to load, in this order.", "A module."),
            use=_several("Folders with module files of your own, for 'module use'.", "A folder."),
            purge={
                "description": "Unload all modules first.",
                "type": "boolean",
                "default": False,
            },
        ),
    )
    yield EnvironmentPlugin(
        name="conda",
        summary="an environment of conda, mamba or micromamba",
        wrap=_wrap("conda"),
        check=_check,
        options=_schema(
            "conda",
            conda={"description": "The environment: its name, or its path.", **_TEXT},
            program={
                "description": "The program that activates it, if it is not on the PATH of jobs: "
                "a path of conda, mamba or micromamba.",
                **_TEXT,
            },
        ),
    )
    yield EnvironmentPlugin(
        name="venv",
        summary="a virtual environment of Python",
        wrap=_wrap("venv"),
        check=_check,
        options=_schema("venv", venv={"description": "The folder of the environment.", **_TEXT}),
    )
    yield EnvironmentPlugin(
        name="apptainer",
        summary="a container of Apptainer or Singularity",
        wrap=_wrap("apptainer"),
        check=_check,
        options=_schema(
            "apptainer",
            apptainer={
                "description": "The image: a file or folder, or a URI such as docker://….",
                **_TEXT,
            },
            bind=_BIND,
            nv={"description": "NVIDIA GPUs.", "type": "boolean", "default": False},
            rocm={"description": "AMD GPUs.", "type": "boolean", "default": False},
            args={"description": "Further arguments of 'apptainer exec'.", **_ARGUMENTS},
        ),
    )
    yield EnvironmentPlugin(
        name="podman",
        summary="a container of Podman",
        wrap=_wrap("podman"),
        check=_check,
        options=_schema(
            "podman",
            podman={"description": "The image.", **_TEXT},
            bind=_BIND,
            args={"description": "Further arguments of 'podman run'.", **_ARGUMENTS},
        ),
    )
