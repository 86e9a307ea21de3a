"""Chooses a run's executor, and builds executors and resizers.

Without ``--executor``, the available executor with the highest priority is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, UsageError, call_plugin, plugin_raised
from ensemble_core.quick_dataclass import dataclass, replace
from ensemble_core.session.executor_options import is_meant, plugin_name, read_options

if TYPE_CHECKING:
    from ensemble_core.config.profile import Profile
    from ensemble_core.model.jobs import Job
    from ensemble_core.plugin.executor import Executor, Rendered
    from ensemble_core.plugin.records import ExecutorPlugin, ResizerPlugin
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.plugin.resizer import Resizer


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executor of a run: its name, its record, its options, and why it was chosen."""

    name: str
    record: ExecutorPlugin
    detail: str
    why: str
    options: Mapping[str, object] = field(default_factory=dict)
    profile: Profile | None = None
    #: False if neither the user nor a profile named the executor.
    named: bool = True

    def __str__(self) -> str:
        # Options take precedence over the environment, which the record describes.
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        detail = f" ({options or self.detail})" if options or self.detail else ""
        return f"executor {self.name}{detail}: {self.why}"


def choose_executor(
    registry: Registry, name: str | None, profile: Profile | None = None
) -> ExecutorChoice:
    """Return the executor to use: the one with this name, that of the profile, or the best one.

    Raises :class:`UsageError` with the reasons if none is available.
    """
    choice = _choose(registry, name, profile)
    if profile is None:
        return choice
    why = f"{choice.why}; profile {profile.name}"
    if name is None and profile.executor is not None:
        why = f"profile {profile.name}{_surroundings(registry, choice.record)}"
    elif profile.options and not is_meant(registry, choice.record, profile):
        why += f" without its options, which are for {profile.executor}"
    return replace(choice, why=why, profile=profile)


def _choose(registry: Registry, name: str | None, profile: Profile | None) -> ExecutorChoice:
    if name is None and profile is not None:
        name = profile.executor
    if name is not None:
        record = registry.lookup("executor", name)
        works, detail = probe(record)
        # Use it even if ``available`` returned false, because options may make it work. If they do
        # not, ``open`` fails.
        why = "chosen with --executor" + _surroundings(registry, record)
        return ExecutorChoice(name, record, detail if works else "", why)
    probed: dict[str, tuple[ExecutorPlugin, bool, str]] = {}
    for each, record in registry.executors.items():
        # A record may have several names; the shortest comes first.
        if all(record is not other for other, _, _ in probed.values()):
            probed[each] = (record, *probe(record))
    able = [each for each, (_, works, _) in probed.items() if works]
    if not able:
        reasons = "; ".join(f"{each}: {detail}" for each, (_, _, detail) in probed.items())
        raise UsageError(
            "no executor is available on this machine",
            cause=reasons or "no executor is installed",
            hint="'ensemble plugins list' shows installed and broken plugins",
            code="no-executor",
        )
    best = max(able, key=lambda each: probed[each][0].priority)
    record, _, detail = probed[best]
    if own := _inside(record):
        here = "" if "local" not in able else "--executor local runs them on this node; "
        raise UsageError(
            f"this is {own}: the jobs would go to the queue, not into it",
            cause="they may have to wait until it ends, so the run would wait for itself",
            hint=f"{here}--executor {best} submits them to the queue",
            code="inside-queue",
        )
    if len(able) == 1:
        others = ", ".join(
            f"{each}: {reason or 'not available'}"
            for each, (_, works, reason) in probed.items()
            # Leave out executors that work only if the user names them.
            if not works and f"--executor {each}" not in reason
        )
        why = f"the only one available here ({others})" if others else "the only one installed"
    else:
        others = ", ".join(each for each in able if each != best)
        why = f"preferred to {others}; --executor chooses another"
    return ExecutorChoice(best, record, detail, why + _surroundings(registry, record), named=False)


def _inside(record: ExecutorPlugin) -> str:
    """Return the job of the executor's queue in which this process runs, or an empty text."""
    if record.inside is None:
        return ""
    try:
        found: object = record.inside()
        return found if isinstance(found, str) else ""
    except Exception:  # a bug in a plugin must not prevent a run with another executor
        return ""


def _surroundings(registry: Registry, chosen: ExecutorPlugin) -> str:
    """Return a remark about the job of a queue in which this process runs."""
    if own := _inside(chosen):
        return f"; this is {own}: jobs go to the queue, not into it"
    around = next(filter(None, map(_inside, registry.executors.values())), "")
    if not around:
        return ""
    # The executor of this machine is the only one that can use no other node.
    idle = ": only this node is used" if chosen.name == "local" and "nodes" in around else ""
    return f"; this is {around}{idle}"


def build_executor(
    registry: Registry, record: ExecutorPlugin, options: Mapping[str, Any]
) -> Executor:
    """Build the executor with these options and with the defaults in its schema.

    Raises :class:`UsageError` if the executor rejects the options.
    """
    from ensemble_core.config.schema import defaults
    from ensemble_core.plugin.discovery import use_registry
    from ensemble_core.plugin.executor import Executor

    with use_registry(registry), _convert_build_errors(registry, "executor", record):
        whose, given = plugin_name(registry, "executor", record), defaults(record.options, options)
        built: Executor = call_plugin(record.build, given, returns=Executor, whose=whose)
        return built


def build_resizer(registry: Registry, name: str, given: Iterable[str]) -> Resizer:
    """Build the resizer with this name, with options from ``-o KEY=VALUE``.

    Raises :class:`UsageError` if the resizer rejects the options, and :class:`PluginError` if it
    does not exist or is broken.
    """
    from ensemble_core.config.schema import defaults
    from ensemble_core.plugin.resizer import Resizer

    record = registry.lookup("resizer", name)
    options = defaults(record.options, read_options(record, given, {}))
    with _convert_build_errors(registry, "resizer", record):
        whose = plugin_name(registry, "resizer", record)
        built: Resizer = call_plugin(record.build, options, returns=Resizer, whose=whose)
        return built


@contextlib.contextmanager
def _convert_build_errors(
    registry: Registry, kind: str, record: ExecutorPlugin | ResizerPlugin
) -> Iterator[None]:
    """Convert exceptions of a plugin's ``build`` to errors about its options or about the
    plugin.
    """
    try:
        yield
    except EnsembleError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{kind} {record.name!r} rejects these options",
            cause=str(error),
            hint=f"'ensemble plugins show {kind} {record.name}' describes them",
            code="bad-option",
        ) from error
    except Exception as error:
        raise plugin_raised(f"cannot build {plugin_name(registry, kind, record)}", error) from error


def rendered(record: ExecutorPlugin, job: Job, options: Mapping[str, Any]) -> Rendered:
    """Return what the executor would submit for a job.

    Raises :class:`PluginError` if the executor's ``render`` fails.
    """
    from ensemble_core.plugin.executor import Rendered

    assert record.render is not None
    whose = f"executor {record.name!r}"
    failed = f"{whose} cannot show what it submits for {job.id}"
    made: Rendered = call_plugin(
        record.render, job, options, returns=Rendered, method="render", whose=whose, failed=failed
    )
    return made


def probe(record: ExecutorPlugin) -> tuple[bool, str]:
    """Return whether an executor is available here, and why."""
    if record.available is None:
        return True, ""
    try:
        works, detail = record.available()
    except Exception as error:  # an error in a plugin only means that it is not available
        return False, f"{type(error).__name__}: {error}"
    return bool(works), str(detail or "")
