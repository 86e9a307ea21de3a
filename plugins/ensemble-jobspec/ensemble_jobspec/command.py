"""Read, convert and run jobspecs."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ensemble_core import EnsembleError, FileErrors, UsageError
from ensemble_core.cli.toolkit import (
    Display,
    choose_executor,
    display_options,
    executor_option,
    key_value_option,
    load_plugins,
    plugin_option,
    print_error,
    print_line,
    print_warning,
    read_file,
    read_options,
    resume_instead,
    run_text,
    set_option,
    state_folder,
    state_option,
    to_json,
    wall_option,
)
from ensemble_jobspec.command_options import (
    conversion_options,
    conversion_settings,
    convert_workload,
    form_option,
    read_workload,
    run_options,
)

if TYPE_CHECKING:
    from ensemble_jobspec.workload import Workload

#: Program that runs a third-party transformer, which submits jobspecs to a further kind of queue.
#: The transformer's base classes are in the package ``jobspec``, which its process imports. After a
#: failed step, they print the exception and call ``sys.exit()``, which would be exit code 0.
_CODE = """\
import importlib, sys
module = importlib.import_module(sys.argv[1])
try:
    code = module.Transformer().run(sys.argv[2])
except SystemExit as end:
    failed = end.code in (None, 0) and isinstance(end.__context__, Exception)
    code = 1 if failed else end.code
sys.exit(not code if isinstance(code, bool) else code)
"""


@click.group()
@click.option("--debug", is_flag=True, help="The same as 'ensemble run --debug'.")
@click.option("--quiet", is_flag=True, help="The same as 'ensemble run --quiet'.")
@click.version_option(package_name="ensemble-jobspec", prog_name="ensemble jobspec")
@click.pass_context
def jobspec(ctx: click.Context, debug: bool, quiet: bool) -> None:
    """Read, convert and run jobspecs: one description of work that any queue can run.

    A jobspec has one of three forms: 'flux' is Flux's own, 'transform' is one task with steps, and
    'nextgen' has tasks and groups.
    """
    # Before 'run', as in jobspec 0.0.
    ctx.default_map = {"run": {"debug": debug, "quiet": quiet}}


@jobspec.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path())
@form_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: one line for each file or mistake."
)
def validate(files: tuple[str, ...], form: str | None, as_json: bool) -> int:
    """Check jobspecs and report every mistake with its place.

    The exit code is 2 if there are mistakes.
    """
    from ensemble_jobspec.conversion import convert as converted
    from ensemble_jobspec.jobspec_reader import read_jobspec

    code = 0
    for file in files:
        try:
            workload = read_jobspec(read_file(file), file, form)  # type: ignore[arg-type]
            made = converted(workload)  # this also checks resources and groups
        except FileErrors as errors:
            code = 2
            for error in errors.errors:
                _print_error(error, as_json)
            continue
        except EnsembleError as error:
            code = 2
            _print_error(error, as_json)
            continue
        tasks, groups = len(list(workload.every_task())), len(list(workload.every_group()))
        if as_json:
            print_line(
                to_json(
                    {
                        "type": "jobspec", "file": file, "form": workload.form, "tasks": tasks,
                        "groups": groups, "warnings": list(made.warnings),
                    }
                )
            )  # fmt: skip
            continue
        for warning in made.warnings:
            print_warning(warning)
        counts = f"{tasks} task{'s' * (tasks != 1)}"
        if groups:
            counts += f", {groups} group{'s' * (groups != 1)}"
        print_line(f"{file}: valid, form {workload.form}: {counts}")
    return code


def _print_error(error: EnsembleError, as_json: bool) -> None:
    if as_json:
        print_line(to_json(error.to_dict()))
    else:
        print_error(error)


@jobspec.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "-t",
    "--transform",
    "--transformer",
    "transform",
    metavar="NAME",
    help="The same as --executor.",
)
@executor_option
@key_value_option("Option of the executor.")
@conversion_options
@click.option("--only", metavar="GROUP", help="Run only this group; for a nested one: OUTER/INNER.")
@click.option(
    "--subsystem-dir",
    "subsystems",
    metavar="DIR",
    type=click.Path(),
    help="First check the tasks' requirements against the subsystem graphs in DIR.",
)
@set_option
@plugin_option
@display_options
@click.option(
    "--output", "folder", metavar="DIR", type=click.Path(), help="Folder for the jobs' output."
)
@state_option
@wall_option
@click.option("--no-journal", is_flag=True, help="Write no journal.")
@click.option("--dry-run", is_flag=True, help="Show the first submissions without running them.")
@click.option("--tag", metavar="TAG", help="Name of the run.")
@click.option("--or-resume", is_flag=True, help="Resume the run with this --tag if it exists.")
def run(
    file: str,
    transform: str | None,
    executor: str | None,
    options: tuple[str, ...],
    how: Mapping[str, Any],
    only: str | None,
    overrides: tuple[str, ...],
    subsystems: str | None,
    plugins: tuple[str, ...],
    display: Display,
    folder: str | None,
    state: str | None,
    wall: float | None,
    no_journal: bool,
    dry_run: bool,
    tag: str | None,
    or_resume: bool,
) -> int:
    """Run a jobspec, as 'ensemble run' does with an ensemble file.

    The run has a journal, so 'ensemble resume', 'why' and 'logs' work. The exit code is 0 if every
    task succeeded, 1 if a task failed, 2 for an invalid file. Tasks that depend on a failed task
    are never submitted.
    """
    if transform is not None and executor is not None and transform != executor:
        raise UsageError("--transform cannot be combined with --executor", code="bad-option")
    if not dry_run:
        code = resume_instead(
            file,
            display,
            tag=tag,
            or_resume=or_resume,
            keep=not no_journal,
            state=state,
            wall=wall,
        )
        if code is not None:
            return code
    from ensemble_jobspec.format_writer import as_yaml
    from ensemble_jobspec.output_follower import Follower

    registry = load_plugins(plugins)
    name = executor or transform
    if transform is not None and transform not in registry.executors and _is_installed(transform):
        return run_upstream(transform, file)
    choice = choose_executor(registry, name)
    choice = replace(choice, options=dict(read_options(choice.record, options, {})))
    workload = read_workload(file, how["form"])
    if subsystems is not None:
        _check_subsystems(workload, subsystems)
    wanted = run_options(registry, choice, workload, file, state, how)
    wanted = replace(wanted, only=tuple(only.split("/")) if only else ())
    converted = convert_workload(workload, wanted)
    watched = [] if display.quiet or display.as_json or dry_run else converted.watched
    if watched and tag is None:
        tag = f"{converted.name[:60]}-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
    late = bool(display.progress)
    if watched and not late:
        display = display._replace(progress=False)  # the lines need the terminal
    kept = Path(folder) / str(tag) if folder else state_folder(state) / "runs" / str(tag) / "output"
    with Follower(kept, watched, late=late) if watched else nullcontext():
        return run_text(
            as_yaml(converted.document),
            file,
            registry,
            choice,
            display,
            tag=tag,
            state=state,
            folder=folder,
            wall=wall,
            keep=not no_journal,
            dry_run=dry_run,
            made=True,
            overrides=overrides,
            plugins=plugins,
        )


@jobspec.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--to",
    "target",
    metavar="NAME",
    required=True,
    help="ensemble, nextgen, kubernetes, flux-script, script, or an executor: flux, slurm …",
)
@click.option(
    "-o", "--output", "folder", metavar="DIR", type=click.Path(), help="Write files into DIR."
)
@click.option("--image", metavar="NAME", help="Container image, for kubernetes.")
@conversion_options
@plugin_option
def convert(
    file: str,
    target: str,
    folder: str | None,
    image: str | None,
    how: Mapping[str, Any],
    plugins: tuple[str, ...],
) -> int:
    """Convert a jobspec: print what a queue would receive, or write it into files.

    For executors, only the first replica of a task is shown. The target 'ensemble' writes a
    complete ensemble file for 'ensemble run'.
    """
    from ensemble_jobspec.format_writer import OWN, written

    registry = load_plugins(plugins)
    workload = read_workload(file, how["form"])
    options = conversion_settings(how, registry, None if target in OWN else target, file)
    if target in ("script", "flux-script", "nextgen"):
        options = replace(options, groups="flat")
    elif target == "kubernetes" and options.groups is None:
        options = replace(options, groups="nested")
    found = written(workload, convert_workload(workload, options), target, registry, image)
    for name, made in found.items():
        if folder is None:
            print_line(made.text.rstrip("\n"))
            continue
        Path(folder).mkdir(parents=True, exist_ok=True)
        ending = {"application/json": "json", "application/yaml": "yaml"}.get(made.media_type, "sh")
        path = Path(folder, f"{name}.{ending}")
        path.write_text(made.text if made.text.endswith("\n") else f"{made.text}\n", "utf-8")
        print_line(str(path))
    return 0


@jobspec.command()
@click.argument("file", metavar="FILE", type=click.Path())
@form_option
@click.option(
    "--subsystem-dir",
    "folder",
    metavar="DIR",
    type=click.Path(),
    default=os.path.expanduser("~/.compspec/subsystems"),
    show_default="~/.compspec/subsystems",
    help="Folder of subsystem graphs, one JSON file (JGF) each.",
)
@click.option(
    "--require-all", is_flag=True, help="Check every requirement, not only those of tasks."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def satisfy(file: str, form: str | None, folder: str, require_all: bool, as_json: bool) -> int:
    """Check a jobspec's requirements against graphs of subsystems.

    The exit code is 0 if all requirements are met, 1 if one is not, 2 for an invalid file.
    """
    from ensemble_jobspec.site_requirements import check_requirements

    met, lines = check_requirements(
        read_workload(file, form), Path(folder), require_all=require_all
    )
    if as_json:
        print_line(to_json({"type": "satisfy", "satisfied": met, "requirements": lines}))
    else:
        for name, why in lines.items():
            print_line(f"{name}: {why}")
        print_line("satisfied" if met else "not satisfied")
    return 0 if met else 1


@jobspec.command()
@click.argument("folder", metavar="FOLDER", type=click.Path())
@executor_option
@key_value_option("Option of the executor.")
@click.option(
    "--jobs", default=4, metavar="N", show_default=True, help="Number of concurrent runs."
)
@click.option(
    "--every",
    default=2.0,
    metavar="SECONDS",
    show_default=True,
    help="Interval between checks of the folder.",
)
@click.option("--once", is_flag=True, help="Process the existing files, then exit (for cron).")
@state_option
def serve(
    folder: str,
    executor: str | None,
    options: tuple[str, ...],
    jobs: int,
    every: float,
    once: bool,
    state: str | None,
) -> int:
    """Wait for jobspecs that are moved into FOLDER/new, and run each of them once.

    Each jobspec is validated and run. It is then moved to FOLDER/done or FOLDER/failed, with a text
    file that describes the result. If the server was killed, the next server resumes its runs.
    Files that still grow or whose names end with .part are ignored until they are complete.
    """
    from ensemble_jobspec.folder_server import Runs, Server

    registry = load_plugins(())
    choice = choose_executor(registry, executor)
    read_options(choice.record, options, {})  # reject a wrong option before any jobspec runs
    words = ["--executor", choice.record.name]
    words += [word for option in options for word in ("-o", option)]
    if {"detach", "reattach"} <= choice.record.capabilities:
        words += ["--set", "on_stop=keep"]  # stopping the server cancels no job
    state = os.path.abspath(state) if state else None
    runs = Runs(words, state, at_once=jobs, once=once)
    return Server(Path(folder).absolute(), runs, every=every).serve(once=once)


def _check_subsystems(workload: Workload, folder: str) -> None:
    from ensemble_jobspec.site_requirements import check_requirements

    met, lines = check_requirements(workload, Path(folder))
    if not met:
        raise UsageError(
            "the jobspec's requirements are not met",
            cause="; ".join(f"{name}: {why}" for name, why in lines.items()),
            hint="list them with 'ensemble jobspec satisfy', or run without --subsystem-dir to "
            "skip the check",
            code="not-met",
        )


def _upstream_package(name: str) -> str:
    """Return the Python package of a transformer: a plugin of the package ``jobspec``."""
    return f"jobspec_{name.replace('-', '_')}"


def _is_installed(name: str) -> bool:
    """Return whether this transformer is installed, without importing it."""
    import importlib.util

    found = _upstream_package(name)
    return found.isidentifier() and importlib.util.find_spec(found) is not None


def run_upstream(name: str, file: str) -> int:
    """Run a third-party transformer on a jobspec in a separate process; return its exit code."""
    import subprocess

    words = [sys.executable, "-c", _CODE, _upstream_package(name), file]
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
